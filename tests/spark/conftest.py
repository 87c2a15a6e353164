"""A root through the session of the test run, and what streams need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue
from lakequeue.testing import ManualClock
from spark.dropped_files import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lq(tmp_path: Path, spark: SparkSession, clock: ManualClock) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Folder:
    return Folder(tmp_path / "in", spark)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"
