"""Fixtures that several modules use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from concurrency.processes import Processes, Workers, anchor
from concurrency.stopping import short_logs
from lakequeue import LakeQueue


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """A queue with one shard, or as many as the test needs, or with the attributes that it needs."""
    short_logs(monkeypatch)
    param = getattr(request, "param", 1)
    attributes = param if isinstance(param, dict) else {"shards": param}
    root = tmp_path / "root"
    queue = LakeQueue(str(root)).create_queue("orders", **attributes)
    anchor(queue)
    workers = Workers(root, queue)
    yield workers
    workers.end()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes on a root that does not exist yet, which end with the test."""
    processes = Processes(tmp_path / "root")
    yield processes
    processes.end()
