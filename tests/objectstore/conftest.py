"""Servers of object stores, and a session of Spark, for the tests in this directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from benchmarks.object_store import Counted

from lakequeue import LakeQueue
from lakequeue.testing import ManualClock
from objectstore import servers
from objectstore.servers import Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def azure_server(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """Azurite for the whole run."""
    with servers.azure(servers.azurite(request.config.cache.mkdir(servers.AZURITE_CACHE))) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def gcs_server(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """fake-gcs-server for the whole run."""
    with servers.gcs(servers.fake_gcs(request.config.cache.mkdir(servers.FAKE_GCS_CACHE))) as bucket:
        yield bucket


@pytest.fixture(params=["azure", "gcs"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket on each server, reached by storage options."""
    found: Bucket = request.getfixturevalue(f"{request.param}_server")
    for name, value in found.environment.items():
        if name not in found.options:
            monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def lake(bucket: Bucket, clock: ManualClock) -> LakeQueue:
    """A root that does not exist yet."""
    return LakeQueue(bucket.new_root(), engine="point", clock=clock, storage_options=bucket.options)


@pytest.fixture(scope="module")
def store() -> Iterator[Counted]:
    """S3 in this process, which counts requests; clients find it by the environment."""
    with servers.served() as (url, store), servers.found_by_variables(url):
        yield store


@pytest.fixture
def lq(store: Counted) -> LakeQueue:
    """A root there."""
    return LakeQueue(f"s3://lake/{uuid4().hex}", engine="point")


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of what Spark records of the session."""
    return str(tmp_path_factory.mktemp("events"))


@pytest.fixture(scope="session")
def spark(event_log: str) -> Iterator[SparkSession]:
    """As the session of other tests, with the file system of S3; it has no rights to any bucket."""
    from lakequeue.spark.session import build_session

    session = build_session(
        "lakequeue-tests",
        "local[2]",
        root="s3://lake",
        **{
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{event_log}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        },
    )
    yield session
    session.stop()
