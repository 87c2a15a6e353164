"""What a process holds of a root: it is shown, bounded, and released without a loss."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from insides import forget, shard_of
from lakequeue import LakeQueue
from lakequeue.runtime import root as roots
from lakequeue.testing import ManualClock


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), clock=ManualClock(), region="r1")


def test_a_root_says_where_it_is(lq: LakeQueue) -> None:
    assert repr(lq) == f"LakeQueue({lq.root!r}, region='r1', engine='point')"


def test_leaving_a_queue_releases_its_tables_and_deletes_nothing(lq: LakeQueue) -> None:
    with lq.create_queue("orders") as queue:
        queue.send("a")
        [message] = queue.receive()
        held = weakref.ref(shard_of(queue).ledger._ledger)
        assert held() is not None
    gc.collect()
    assert held() is None
    queue.delete(message.receipt_handle)
    queue.send("b")
    assert [message.body for message in queue.receive()] == ["b"]


def test_leaving_a_root_releases_the_tables_of_all_queues(lq: LakeQueue) -> None:
    with lq:
        queues = [lq.create_queue(name) for name in ("a", "b")]
        for queue in queues:
            queue.send("x")
        held = [weakref.ref(shard_of(queue).sender._appender) for queue in queues]
    gc.collect()
    assert [each() for each in held] == [None, None]
    assert [queue.counts().visible for queue in lq.list_queues()] == [1, 1]


def test_shards_of_queues_that_nobody_has_open_are_kept_in_bounds(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "CACHED_QUEUES", 2)
    opened = lq.create_queue("open")
    held = {name: weakref.ref(lq.create_queue(name)._runtime.shards[0]) for name in "abc"}
    gc.collect()
    assert [name for name, shard in held.items() if shard() is not None] == ["b", "c"]
    assert lq.queue("open")._runtime.shards is opened._runtime.shards


def test_shards_of_a_queue_that_another_process_deleted_are_forgotten(lq: LakeQueue) -> None:
    held = weakref.ref(lq.create_queue("orders")._runtime.shards[0])
    forget()
    LakeQueue(lq.root, clock=lq.clock, region="r1").delete_queue("orders")
    assert lq.list_queues() == []
    gc.collect()
    assert held() is None
