"""A root through the session of the test run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lq(tmp_path: Path, spark: SparkSession, clock: ManualClock) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock)
