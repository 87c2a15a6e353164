"""Fixtures: an engine of each kind for tests of engines; roots, harnesses and queues for tests of verbs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.fifo import FifoHarness
from conformance.harness import ENGINES, S3, Harness
from insides import engine_of
from lakequeue import LakeQueue
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from lakequeue.storage.delivery.table import DeltaDeliveryTable


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the engine's tables are."""
    if request.node.callspec.params["engine"] == "s3":
        return request.getfixturevalue("s3_root")
    (tmp_path / "q" / "k" / "0").mkdir(parents=True)
    return str(tmp_path)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param != "spark":
        return Engine(Store())
    from lakequeue.storage.engines.spark import SparkEngine

    return SparkEngine(request.getfixturevalue("spark"), Store())


@pytest.fixture(params=["point", S3])
def lq(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> LakeQueue:
    """A new root, through the point engine, or those that `every_engine` names."""
    if request.param == "s3":
        return LakeQueue(request.getfixturevalue("s3_root"), engine="point", clock=clock)
    root = str(tmp_path / "root")
    if request.param == "point":
        return LakeQueue(root, clock=clock)
    return LakeQueue(root, spark=request.getfixturevalue("spark"), engine="spark", clock=clock)


@pytest.fixture
def harness(lq: LakeQueue, clock: ManualClock) -> Harness:
    return Harness(lq.root, clock, engine_of(lq).name, lq.spark)


@pytest.fixture
def fifo(lq: LakeQueue, clock: ManualClock) -> FifoHarness:
    return FifoHarness(lq.root, clock, engine_of(lq).name, lq.spark)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of ``target``."""
    return tmp_path / "table"


@pytest.fixture
def target(path: Path, tmp_path: Path) -> DeltaDeliveryTable:
    """A delivery table without rows."""
    from conformance.delivery_tables import SCHEMA
    from lakequeue.storage.delivery.table import DeltaDeliveryTable

    found = DeltaDeliveryTable(str(path), {}, str(tmp_path / "root"))
    found.create(SCHEMA)
    return found
