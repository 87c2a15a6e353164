"""The states that SQL's relations show agree with the counts, whatever happened to a queue."""

from __future__ import annotations

from typing import Any

import pytest

from lakequeue import LakeQueue
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
