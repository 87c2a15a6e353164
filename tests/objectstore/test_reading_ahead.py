"""Reads of much data request the next parts while earlier ones are used, within a bound of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import obstore
import pyarrow as pa
import pytest
from benchmarks.arrow_rows import reader

from lakequeue import LakeQueue
from lakequeue.storage import remote_files
from lakequeue.storage.folder import RemoteFolder
from lakequeue.storage.remote_files import read_ahead
from objectstore import servers

MIB = 2**20
TIMEOUT = 30
"""Seconds after which a test fails, because requests wait for each other."""


@pytest.fixture(scope="module")
def lq() -> Iterator[LakeQueue]:
    with servers.in_memory() as (url, _), servers.found_by_variables(url):
        yield LakeQueue("s3://lake/ahead", engine="point")


class AtOnce:
    """A pool without threads, whose calls are done when they are submitted."""

    def __init__(self, threads: int) -> None:
        pass

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        done = Future[Any]()
        done.set_result(call(*given))
        return done

    def shutdown(self, cancel_futures: bool) -> None:
        pass


def test_a_lease_requests_several_row_groups_at_once(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = lq.create_queue("row-groups")
    rows = reader(16_384, 1_024).read_all()
    lease = queue.lease(queue.send_arrow(rows))
    assert lease is not None
    both, requested = threading.Barrier(2), []

    def get_ranges(*place: Any, original: Any = obstore.get_ranges, **spans: Any) -> Any:
        requested.append(sum(spans["ends"]) - sum(spans["starts"]))
        both.wait(TIMEOUT)
        return original(*place, **spans)

    monkeypatch.setattr(obstore, "get_ranges", get_ranges)
    assert lease.arrow(["body"]).equals(rows.combine_chunks())
    assert len(requested) == 4 and max(requested) < 5 * MIB


def test_a_lease_opens_several_small_files_at_once(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = lq.create_queue("files")
    for number in range(4):
        queue.send_arrow(pa.table({"body": [f"{number}"] * 3}))
    lease = queue.lease(12)
    assert lease is not None
    both = threading.Barrier(2)

    def read(self: RemoteFolder, name: str, original: Any = RemoteFolder.read) -> bytes:
        if "/part-" in name:
            both.wait(TIMEOUT)
        return bytes(original(self, name))

    monkeypatch.setattr(RemoteFolder, "read", read)
    assert lease.arrow(["body"])["body"].to_pylist() == [f"{number}" for number in range(4) for _ in range(3)]


def test_only_parts_within_the_bound_are_requested_before_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "ThreadPool", AtOnce)
    monkeypatch.setattr(remote_files, "AHEAD", 2 * MIB)
    requested: list[tuple[int, int]] = []

    def get_ranges(*_: Any, starts: list[int], ends: list[int]) -> list[bytes]:
        requested.extend(zip(starts, ends, strict=True))
        return [data[start:end] for start, end in zip(starts, ends, strict=True)]

    monkeypatch.setattr(obstore, "get_ranges", get_ranges)
    data = b"".join(bytes([number]) * MIB for number in range(8))
    spans = [(number * MIB, (number + 1) * MIB) for number in range(5)]
    large = (5 * MIB, 8 * MIB)
    with RemoteFolder("s3://lake", lambda _: obstore.store.MemoryStore()).source("file", len(data)) as source:
        read_ahead(source, [[spans[0], spans[1]], [spans[2]], [spans[3], spans[4]], [large]])
        assert requested == spans[:2]
        for start, end in spans[:2]:
            source.seek(start)
            assert source.read(end - start) == data[start:end]
        assert requested == spans[:3]
        source.seek(2 * MIB)
        assert source.read(MIB) == data[2 * MIB : 3 * MIB]
        assert requested == spans
        source.seek(3 * MIB)
        source.read(MIB)
        assert requested == [*spans, large]
