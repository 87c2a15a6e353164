"""The states that SQL's relations show agree with the counts, whatever happened to a queue."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lakequeue import LakeQueue, SendEntry
from lakequeue.testing import ManualClock
from random_consumer import consumed


def rows(lq: LakeQueue, relation: str = "messages", queue: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lq.arrow_views()[relation].to_table().to_pylist()
    return [row for row in found if queue is None or row["queue"] == queue]


def states(lq: LakeQueue, queue: str | None = None) -> dict[str, str]:
    found = rows(lq, queue=queue)
    assert len({row["body"] for row in found}) == len(found)
    return {row["body"]: row["state"] for row in found}


@pytest.mark.spec("DLT-5", "SEQ-4", "SEQ-5", "FIF-8", "DLY-10")
def test_fifo_messages_are_shown_with_numbers_and_a_head_that_moved_up_in_its_state(
    lq: LakeQueue, clock: ManualClock
) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, delay=50)
    lq.create_queue("plain").send("plain")
    numbers = {
        name: queue.send(name, group_id=name[0], dedup_id=name).sequence_number
        for name in ("a1", "a2", "a3", "b1")
    }
    assert set(states(lq, "orders.fifo").values()) == {"delayed"}
    clock.advance(50)
    (first,) = queue.receive()
    clock.advance(10)
    queue.delete(first.receipt_handle)  # the next of the group was never received, and goes behind b1
    queue.send("a4", group_id="a", dedup_id="a4")

    shown = {"a1": "deleted", "a2": "visible", "a3": "visible", "b1": "visible", "a4": "delayed"}
    assert states(lq, "orders.fifo") == shown
    found = {row["body"]: row for row in rows(lq)}
    assert {name: found[name]["sequence_number"] for name in numbers} == numbers
    assert found["plain"]["sequence_number"] is None
    assert found["a2"]["visible_at"] == found["a4"]["sent_at"] and found["a2"]["receive_count"] == 0
    assert [message.body for message in queue.receive(max_messages=10)] == ["b1", "a2", "a3"]

    clock.advance(40)
    queue.set_attributes(delay=45)
    assert states(lq)["a4"] == "delayed"
    queue.set_attributes(delay=5)
    assert states(lq)["a4"] == "visible"
    counts = queue.counts()
    (row,) = rows(lq, "queues", "orders.fifo")
    assert (row["visible"], row["in_flight"], row["delayed"]) == (counts.visible, counts.in_flight, counts.delayed)


@pytest.mark.spec("DLT-5", "INF-9", "STA-13")
def test_held_messages_are_shown_as_such_and_agree_with_the_counts(lq: LakeQueue, clock: ManualClock) -> None:
    fifo = lq.create_queue("orders.fifo", fifo=True, delay=5, max_delayed_messages=2)
    shards = lq.create_queue("shards", shards=2, max_delayed_messages=3, rewind_range=300)
    chance = random.Random(5)
    for number in range(12):
        fifo.send(f"fifo {number}", group_id=chance.choice("ABC"), dedup_id=str(number))
        shards.send(f"shards {number}", delay=chance.choice([0, 3, 8, 20]))
        clock.advance(chance.randint(0, 2))
        if number == 8:
            fifo.set_attributes(delay=40)  # what is left becomes delayed, but nothing held
        for each in (fifo, shards):
            for message in each.receive(2, visibility_timeout=chance.choice([2, 30])):
                if chance.random() < 0.5:
                    each.delete(message.receipt_handle)
    for row in rows(lq, "queues"):
        counts = lq.queue(row["queue"]).counts()
        names = ("visible", "in_flight", "delayed", "held", "oldest_age")
        assert [row[name] for name in names] == [getattr(counts, name) for name in names]
        assert row["delayed"] and row["held"]
    peeked = {m.body: str(m.state.value) for each in (fifo, shards) for m in each.peek(limit=100)}
    shown = [row for row in rows(lq) if row["state"] not in ("deleted", "expired")]
    assert {row["body"]: row["state"] for row in shown} == peeked
    assert {(row["visible_at"], row["receive_count"]) for row in shown if row["state"] == "held"} == {(None, 0)}
    shards.set_attributes(max_delayed_messages=None)
    assert "held" not in states(lq, "shards").values()


@pytest.mark.spec("PUR-1")
def test_what_was_purged_is_not_shown_and_each_read_sees_the_newest(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", shards=2)
    assert states(lq) == {}
    queue.send_batch([SendEntry(body="a"), SendEntry(body="b")])
    queue.send("c")
    assert states(lq) == dict.fromkeys("abc", "visible")
    queue.purge()
    queue.send("d")
    assert states(lq) == {"d": "visible"}
    heads = [(row["shard"], row["state"]) for row in rows(lq, "receipts") if row["first_offset"] == -1]
    assert sorted(heads) == [(0, "head"), (1, "head")]


@pytest.mark.spec("DLT-5", "RWD-4", "RWD-7", "RWD-11", "STA-9", "STA-4")
def test_the_history_agrees_with_the_counts_whatever_happened(lq: LakeQueue, clock: ManualClock) -> None:
    both = [
        lq.create_queue("plain", rewind_range=300),
        lq.create_queue("orders.fifo", fifo=True, rewind_range=300),
    ]
    queues = consumed(both, clock)
    clock.advance(240)  # now the oldest are beyond the range
    for row in rows(lq, "queues"):
        one = queues[row["queue"]]
        history = [each["body"] for each in rows(lq, "history", row["queue"])]
        one.compare(states(lq, row["queue"]), history, row)
        assert 0 < len(one.rewindable()) < len(one.deleted)

    clock.advance(300)
    assert rows(lq, "history") == []
    assert all(queue.counts().rewindable == 0 for queue in both)
