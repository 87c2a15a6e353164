"""Servers of object stores for the tests in this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakequeue import LakeQueue
from lakequeue.testing import ManualClock
from objectstore import servers
from objectstore.servers import Bucket


@pytest.fixture(scope="session")
def azure_server(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """Azurite for the whole run."""
    with servers.azure(Path(request.config.cache.mkdir(f"azurite-{servers.AZURITE}"))) as bucket:
        yield bucket


@pytest.fixture(params=["azure"])
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
