"""What a process holds of a queue is let go of while others use it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from lakequeue import LakeQueue
from lakequeue.runtime import root
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_sender import ShardSender


@pytest.mark.parametrize(("part", "held"), [(ShardLedger, "_ledger"), (ShardSender, "_appender")])
def test_handles_that_another_thread_lets_go_of_before_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type, held: str
) -> None:
    """The first look at a handle, outside its lock, finds it; then it is gone."""
    queue = LakeQueue(str(tmp_path)).create_queue("orders")
    queue.send("a")
    queue.receive(visibility_timeout=0)
    [shard] = queue._runtime.shards
    [owner] = (each for each in (shard.ledger, shard.sender) if isinstance(each, part))
    handle = owner.__dict__.pop(held)

    def read(self: Any) -> Any:
        found = self.__dict__.get(held, handle)
        self.__dict__[held] = None
        monkeypatch.undo()
        return found

    monkeypatch.setattr(part, held, property(read), raising=False)
    queue.send("b")
    assert [message.body for message in queue.receive(2)] == ["a", "b"]


def test_shards_in_use_outlive_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two services for a shard in one process would race each other for its commits."""
    monkeypatch.setattr(root, "CACHED_QUEUES", 1)
    lq = LakeQueue(str(tmp_path))
    queue = lq.create_queue("orders")
    queue.send("a")
    lease = queue.lease()
    assert lease is not None
    lq.create_queue("others")
    assert lq.queue("orders")._runtime.shards is queue._runtime.shards
    [shard] = queue._runtime.shards
    del queue
    lq.queue("others")
    gc.collect()
    assert lq.queue("orders")._runtime.shards[0] is shard
    assert lease.delete().done == 1


def test_a_root_and_a_queue_that_are_released_work_on(tmp_path: Path) -> None:
    with LakeQueue(str(tmp_path)) as lq, lq.create_queue("orders") as queue:
        queue.send("a")
        shards = queue._runtime.shards
    assert (shards[0].sender._appender, shards[0].ledger._ledger) == (None, None)
    assert [message.body for message in queue.receive()] == ["a"]
    assert lq.queue("orders")._runtime.shards is shards
