"""Priorities of standard queues: each has shards of its own (JOB-5)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from conformance.harness import Harness, bodies
from lakequeue import (
    InvalidAttributeValue,
    InvalidParameterValue,
    LakeQueue,
    SendEntry,
)
from lakequeue.runtime.home_shard import ELSEWHERE_EVERY
from lakequeue.storage.bulk import bad_rows

pytestmark = pytest.mark.spec("JOB-5")


@pytest.mark.parametrize("shards", [3, 6])
def test_higher_priorities_are_received_first_in_every_process(harness: Harness, clock, shards: int):
    queue = harness.create(priorities=3, shards=shards, priorities_strict=True)
    queue.send("bulk")
    queue.send("normal", priority=1)
    clock.advance(1)
    queue.send_batch([SendEntry("urgent", priority=2), SendEntry("later"), SendEntry("soon", priority=1)])
    received = [harness.queue().receive()[0] for _ in range(3)]
    assert received[0].body == "urgent" and bodies(received[1:]) == ["normal", "soon"]
    assert [message.priority for message in received] == [2, 1, 1]
    rest = harness.queue().receive(10)
    assert sorted(bodies(rest)) == ["bulk", "later"] and {message.priority for message in rest} == {0}


def test_one_receive_and_a_lease_take_them_in_order(harness: Harness):
    queue = harness.create(priorities=3, priorities_strict=True)
    queue.send_batch([SendEntry(str(number), priority=number % 3) for number in range(9)])
    assert [message.priority for message in queue.receive(5)] == [2, 2, 2, 1, 1]
    lease = harness.queue().lease(2)
    assert lease is not None and sorted(int(body) % 3 for body in lease.arrow()["body"].to_pylist()) == [0, 1]


def test_one_receive_in_sixteen_begins_with_the_lowest_priority(harness: Harness):
    queue = harness.create(priorities=2)
    queue.send_batch([SendEntry(f"bulk {number}") for number in range(20)])
    queue.send_batch([SendEntry(f"urgent {number}", priority=1) for number in range(2 * ELSEWHERE_EVERY)])
    received = [queue.receive()[0].priority for _ in range(2 * ELSEWHERE_EVERY)]
    first = received.index(0)
    assert first < ELSEWHERE_EVERY
    assert received == [int(number % ELSEWHERE_EVERY != first) for number in range(2 * ELSEWHERE_EVERY)]


def test_strict_priorities_leave_the_lowest_for_last(harness: Harness):
    queue = harness.create(priorities=2, priorities_strict=True)
    assert queue.attributes(["priorities_strict"]) == {"priorities_strict": True}
    queue.send_batch([SendEntry("x", priority=number % 2) for number in range(4 * ELSEWHERE_EVERY)])
    urgent = [queue.receive()[0].priority for _ in range(2 * ELSEWHERE_EVERY - 1)]
    assert urgent == [1] * (2 * ELSEWHERE_EVERY - 1)
    harness.queue().set_attributes(priorities_strict=False)
    queue.counts()  # it learns of the change
    received = [queue.receive()[0].priority for _ in range(2)]
    assert sorted(received) == [0, 1] and queue.attributes(["priorities_strict"]) == {"priorities_strict": False}


def test_messages_are_counted_by_priority(harness: Harness, clock):
    queue = harness.create(priorities=3, shards=6, priorities_strict=True)
    queue.send_batch([SendEntry("x", priority=number % 3) for number in range(9)])
    clock.advance(60)
    queue.send("y", priority=1, delay=10)
    assert len(queue.receive(4)) == 4
    counted = harness.queue().priority_counts()
    assert [(of.visible, of.in_flight, of.delayed) for of in counted] == [(3, 0, 0), (2, 1, 1), (0, 3, 0)]
    assert [of.oldest_age for of in counted] == [60, 60, 60]
    other = harness.create("other", shards=2)
    other.send("z")
    assert other.priority_counts() == [other.counts()]


def test_bulk_sends_have_a_priority(harness: Harness):
    queue = harness.create(priorities=2, shards=4, priorities_strict=True)
    rows = pa.table({"body": ["a", "b"]})
    assert queue.send_arrow(rows, priority=1) == 2 and queue.send_arrow(rows, send_id="once") == 2
    assert queue.send_arrow(rows, send_id="once") == 0
    assert queue.send_arrow(rows, send_id="once", priority=1) == 0  # the shards of the other are asked, too
    assert [message.priority for message in harness.queue().receive(10)] == [1, 1, 0, 0]


@pytest.mark.spec("SND-17")
@pytest.mark.parametrize("shards", [3, 6])
def test_each_row_of_a_bulk_send_may_have_a_priority(harness: Harness, shards: int):
    queue = harness.create(priorities=3, shards=shards, priorities_strict=True)
    priorities = [0, 2, None, 1, 2]
    rows = pa.table({"body": [f"{number} {of}" for number, of in enumerate(priorities)], "priority": priorities})
    assert queue.send_arrow(rows, send_id="load") == 5
    assert harness.queue().send_arrow(rows, send_id="load") == 0
    assert queue.send_arrow(rows.slice(2, 2), priority=2) == 2  # that of the row without one
    received = harness.queue().receive(10)
    assert bodies(received[:3]) == ["1 2", "2 None", "4 2"] and bodies(received[3:5]) == ["3 1", "3 1"]
    assert [message.priority for message in received] == [2, 2, 2, 1, 1, 0, 0]


@pytest.mark.spec("SND-17")
def test_a_large_send_fills_all_shards_of_each_priority(lq: LakeQueue):
    queue = lq.create_queue("orders", priorities=2, shards=4, priorities_strict=True)
    rows = pa.table({"body": ["x"] * 900, "priority": pa.array([1.0, 0.0, 0.0] * 300)})
    assert queue.send_arrow(rows) == 900
    visible = [shard.visible for shard in queue.shard_counts()]
    assert (visible[0] + visible[2], visible[1] + visible[3]) == (600, 300) and min(visible) >= 100
    assert [message.priority for message in queue.receive(301)] == [1] * 300 + [0]


@pytest.mark.parametrize("value", [-1, 3, 1.5, float("nan")])
def test_a_row_of_no_such_priority_is_refused_or_left_out(lq: LakeQueue, tmp_path, value: float):
    queue, bad = lq.create_queue("orders", priorities=3), str(tmp_path / "bad")
    rows = pa.table({"body": ["a", "b"], "priority": pa.array([value, 2], pa.float64())})
    with pytest.raises(InvalidParameterValue, match=r"1 row has a priority that is none of 0\.\.2 \(JOB-5\)"):
        queue.send_arrow(rows)
    sent = queue.send_arrow(rows, on_bad_row="divert", bad_rows=bad)
    assert (sent, sent.refused) == (1, 1) and [message.priority for message in queue.receive(10)] == [2]
    refused = DeltaTable(bad).to_pyarrow_table(columns=["body", "priority"]).to_pylist()
    assert str(refused) == str([{"body": "a", "priority": float(value)}])


def test_a_table_of_refused_rows_may_lack_the_column(lq: LakeQueue, tmp_path):
    """Those of earlier versions do."""
    queue, bad = lq.create_queue("orders", priorities=3), str(tmp_path / "bad")
    rows = pa.table({"body": ["a", "b"], "priority": [7, 2]})
    DeltaTable.create(bad, pa.schema([*bad_rows.COLUMNS][:-1]))
    assert queue.send_arrow(rows, on_bad_row="divert", bad_rows=bad) == 1
    assert DeltaTable(bad).to_pyarrow_table()["body"].to_pylist() == ["a"]


def test_a_column_of_priorities_needs_a_queue_that_has_them(lq: LakeQueue):
    queue, rows = lq.create_queue("orders"), pa.table({"body": ["a"], "priority": [1]})
    with pytest.raises(InvalidParameterValue, match="The column priority is there, but .* without priorities"):
        queue.send_arrow(rows)
    assert queue.send_arrow(rows, body="*") == 1  # it is not read
    fifo = lq.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    named = pa.table({"body": ["b", "a"], "group_id": ["g", "g"], "priority": ["late", "early"]})
    assert fifo.send_arrow(named, order_by="priority") == 2
    assert [message.body for message in fifo.receive(10)] == ["a", "b"]
    with pytest.raises(InvalidParameterValue, match="The column priority is string, it must be a whole number"):
        lq.create_queue("others", priorities=2).send_arrow(named.select(["body", "priority"]))


def test_shards_are_a_multiple_and_may_grow_so(harness: Harness):
    queue = harness.create(priorities=2, priorities_strict=True)
    assert queue.attributes(["priorities", "shards"]) == {"priorities": 2, "shards": 2}
    queue.send("urgent", priority=1)
    for shards in (3, 5):
        with pytest.raises(InvalidAttributeValue, match="must be a multiple of the priorities, 2"):
            queue.set_attributes(shards=shards)
    queue.set_attributes(shards=6)
    queue.send_batch([SendEntry(str(number), priority=number % 2) for number in range(12)])
    received = harness.queue().receive(20)
    assert [message.priority for message in received] == [1] * 7 + [0] * 6


@pytest.mark.spec("DLQ-2", "DLQ-8")
@pytest.mark.parametrize("shards", [3, 6])
def test_dead_letters_keep_their_priority_there_and_back(harness: Harness, shards: int):
    dead = harness.create("dead", priorities=3, shards=shards, priorities_strict=True)
    queue = harness.create(priorities=3, priorities_strict=True, dead_letter_queue="dead", max_receive_count=1)
    queue.send_batch([SendEntry(str(number), priority=number % 3) for number in range(6)])
    assert len(queue.receive(10, visibility_timeout=0)) == 6 and harness.queue().receive(10) == []
    letters = dead.receive(10, visibility_timeout=0)
    assert [(int(letter.body) % 3, letter.priority) for letter in letters] == [
        (2, 2), (2, 2), (1, 1), (1, 1), (0, 0), (0, 0)
    ]  # fmt: skip
    assert dead.redrive() == 6
    back = harness.queue().receive(10)
    assert [message.priority for message in back] == [2, 2, 1, 1, 0, 0]
    assert all(int(message.body) % 3 == message.priority for message in back)


@pytest.mark.parametrize(("priorities", "expected"), [(2, [1, 1, 0]), (None, [0, 0, 0]), (10, [2, 1, 0])])
def test_a_queue_with_fewer_priorities_takes_higher_ones_as_its_highest(harness: Harness, priorities, expected):
    queue, other = harness.create(priorities=3), harness.create("other", priorities=priorities, shards=20)
    queue.send_batch([SendEntry(str(number), priority=number) for number in range(3)])
    assert queue.redrive(destination=other) == 3
    received = sorted(other.receive(10), key=lambda message: message.body, reverse=True)
    assert [message.priority for message in received] == expected


def test_a_queue_without_priorities_accepts_no_priority(lq: LakeQueue):
    queue = lq.create_queue("orders")
    assert queue.attributes(["priorities"]) == {"priorities": None}
    assert "Priorities" not in queue.attributes(wire=True)
    queue.send("a", priority=0)
    for priority in (1, -1, True, "1", 1.0):
        with pytest.raises(InvalidParameterValue, match="priority"):
            queue.send("b", priority=priority)
        with pytest.raises(InvalidParameterValue, match="priority"):
            queue.send_arrow(pa.table({"body": ["b"]}), priority=priority)
    result = queue.send_batch([SendEntry("c", priority=1), SendEntry("d")])
    assert [failure.id for failure in result.failed] == ["0"]
    assert bodies(queue.receive(10)) == ["a", "d"]
