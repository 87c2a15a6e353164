"""Calls of several commits that fail in the middle: the error says that the call can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import drain, elsewhere, keep_to
from concurrency.steps import WRITES, at
from lakequeue import LakeQueue, Queue, QueueClientError, SendEntry
from lakequeue.model.names import shard_of_group
from lakequeue.operations import queues
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock
from mutations import Patch

SHARDS = 3


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Queue:
    """Two messages in each shard: one visible, one deleted that can be rewound."""
    lq = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue = lq.create_queue("orders", shards=SHARDS, rewind_range=3_600)
    for shard in range(SHARDS):
        keep_to(queue, shard)
        queue.send_batch([SendEntry(body=f"{number} of {shard}") for number in range(2)])
        [message] = queue.receive()
        queue.delete(message.receipt_handle)
    return queue


def fail_at(patch: Patch, number: int) -> None:
    """Makes all writes from a given number fail (the first is 1)."""
    at(patch, Table, WRITES, OSError("disk on fire"), number=number, times=1_000)


def rewind(queue: Queue) -> None:
    queue.rewind(queue.clock.now() - timedelta(hours=1))


VERBS: dict[str, tuple[Callable[[Queue], Any], int]] = {
    # with the number of writes
    "purge": (Queue.purge, SHARDS),
    "rewind": (rewind, SHARDS),
    "set_attributes": (lambda queue: queue.set_attributes(delay=5), 2 * SHARDS + 1),
    "delete_queue": (lambda queue: queues.delete(queue._runtime.root, "orders"), 2 * SHARDS + 1),
}


@pytest.mark.spec("ERR-2", "ERR-8")
@pytest.mark.parametrize(
    ("verb", "number"), [(v, n) for v, (_, writes) in VERBS.items() for n in range(1, writes + 1)]
)
def test_a_call_that_fails_in_the_middle_says_so_and_may_be_repeated(
    queue: Queue, monkeypatch: Patch, verb: str, number: int
) -> None:
    call, _ = VERBS[verb]
    with monkeypatch.context() as patch:
        fail_at(patch, number)
        with pytest.raises(QueueClientError, match="disk on fire") as caught:
            call(queue)
        assert caught.value.outcome_unknown == (number > 1)
    call(queue)
    if verb == "delete_queue":
        assert queues.listed(queue._runtime.root, "", None, None) == ([], False)
        return
    counts = elsewhere(queue).counts()
    expected = {"purge": (0, 0), "rewind": (2 * SHARDS, 0), "set_attributes": (SHARDS, SHARDS)}[verb]
    assert (counts.visible, counts.rewindable) == expected


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("number", range(1, SHARDS + 1))
@pytest.mark.parametrize("verb", ["delete", "extend", "release"])
def test_a_lease_that_is_settled_in_part_is_settled_by_a_repetition(
    queue: Queue, monkeypatch: Patch, verb: str, number: int
) -> None:
    lease = queue.lease()
    assert lease is not None and lease.message_count == SHARDS
    call = (lambda: lease.extend(600)) if verb == "extend" else getattr(lease, verb)
    with monkeypatch.context() as patch:
        fail_at(patch, number)
        with pytest.raises(QueueClientError) as caught:
            call()
        assert caught.value.outcome_unknown == (number > 1)
    call()
    counts = elsewhere(queue).counts()
    assert (counts.visible, counts.in_flight) == {"delete": (0, 0), "extend": (0, 3), "release": (3, 0)}[verb]


@pytest.mark.spec("BAT-4", "DEL-10", "BAT-3")
@pytest.mark.parametrize("verb", ["delete_batch", "change_visibility_batch"])
def test_a_batch_over_shards_returns_for_each_entry_if_storage_failed(
    queue: Queue, monkeypatch: Patch, verb: str
) -> None:
    handles = [message.receipt_handle for message in queue.receive(max_messages=SHARDS)]

    def call() -> Any:
        return queue.delete_batch(handles) if verb == "delete_batch" else queue.change_visibility_batch(changes)

    changes = [(handle, 600) for handle in handles]
    with monkeypatch.context() as patch:
        fail_at(patch, 2)
        result = call()
    assert len(result.successful) == 1
    assert [(failure.code, failure.sender_fault) for failure in result.failed] == [
        ("ServiceUnavailable", False)
    ] * 2
    assert "nothing was changed" in result.failed[0].message
    assert len(call().successful) == SHARDS
    counts = elsewhere(queue).counts()
    assert counts.in_flight == (0 if verb == "delete_batch" else SHARDS)


@pytest.mark.spec("BAT-4")
def test_a_batch_of_sends_over_shards_returns_for_each_entry_if_storage_failed(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    lq = LakeQueue(str(tmp_path / "fifo"), clock=clock)
    queue = lq.create_queue("orders.fifo", fifo=True, shards=SHARDS, deduplication_scope="message_group")
    entries = [SendEntry(body=f"{n}", group_id=f"g{n}", dedup_id=f"d{n}") for n in range(9)]
    with monkeypatch.context() as patch:
        fail_at(patch, 2)
        result = queue.send_batch(entries)
    assert 0 < len(result.successful) < 9
    assert len(result.successful) + len(result.failed) == 9
    assert {failure.code for failure in result.failed} == {"ServiceUnavailable"}
    assert len(queue.send_batch(entries).successful) == 9
    assert sorted(drain(queue)) == [f"{n}" for n in range(9)]


@pytest.mark.spec("BAT-4", "ERR-8")
def test_a_batch_keeps_what_a_shard_took_when_newer_attributes_cannot_be_read(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue = lq.create_queue("orders.fifo", fifo=True, shards=2, deduplication_scope="message_group")
    groups = {shard_of_group(name, 2): name for name in ("a", "b", "c", "d")}
    with monkeypatch.context() as patch:  # a change ends when one log of two knows of it
        fail_at(patch, 4)
        with pytest.raises(QueueClientError):
            elsewhere(queue).set_attributes(delay=5)
    entries = [SendEntry(f"{shard}", group_id=groups[shard], dedup_id=f"{shard}") for shard in (0, 1)]
    with monkeypatch.context() as patch:
        at(patch, OpenQueue, ("renew",), OSError("disk on fire"), times=1_000)
        result = queue.send_batch(entries)
    assert [len(result.successful), len(result.failed)] == [1, 1]
    assert result.failed[0].code == "ServiceUnavailable"
    assert [message.body for message in elsewhere(queue).peek()] == [result.successful[0].id]


@pytest.mark.spec("BAT-4", "QUE-21")
def test_a_batch_keeps_what_a_shard_took_when_the_next_one_fails(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue = lq.create_queue("orders", shards=2, max_stored_messages=4)  # two for each shard
    with monkeypatch.context() as patch:
        fail_at(patch, 2)
        result = queue.send_batch([SendEntry(f"{number}") for number in range(3)])
    assert [len(result.successful), len(result.failed)] == [2, 1]
    assert result.failed[0].code == "ServiceUnavailable"
    assert sorted(message.body for message in elsewhere(queue).peek()) == ["0", "1"]
