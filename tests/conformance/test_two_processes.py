"""Two processes, or two engines, on one queue."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.harness import Call, Harness, batch, bodies, every_engine, numbered
from lakequeue import errors


@pytest.mark.spec("RCV-3", "RCV-15", "STA-6", "STA-7", "RCV-14")
def test_a_process_with_an_old_view_gets_nothing_that_another_one_holds(harness: Harness, clock):
    here = harness.create()
    there = harness.queue()
    here.send_batch(batch("a", "b", "c"))
    assert there.counts().visible == here.counts().visible == 3
    mine = here.receive(2)
    theirs = there.receive(2)
    assert bodies(mine + theirs) == ["a", "b", "c"]
    assert here.receive(2) == there.receive(2) == []
    here.send("d")
    assert bodies(there.receive(2)) == ["d"]
    clock.advance(30)
    assert bodies(there.receive(10)) == ["a", "b", "c", "d"]
    assert here.receive(10) == []


@pytest.mark.spec("RCP-6", "RCP-8", "VIS-2", "VIS-13", "DEL-7", "ERR-4")
def test_an_older_receipt_has_no_power_over_a_later_one_of_another_process(harness: Harness, clock):
    here = harness.create(visibility_timeout=10)
    there = harness.queue()
    here.send("A")
    (old,) = here.receive()
    clock.advance(10)
    (new,) = there.receive()
    here.delete(old.receipt_handle)
    with pytest.raises(errors.InvalidParameterValue, match="expired"):
        here.change_visibility(old.receipt_handle, 100)
    assert here.counts().in_flight == 1
    clock.advance(11)
    there.change_visibility(new.receipt_handle, 30)
    assert here.receive() == []
    clock.advance(31)
    there.delete(new.receipt_handle)
    assert here.receive() == [] and here.counts().visible == 0


@pytest.mark.spec("INF-3", "INF-5", "RCV-14")
def test_a_refusal_is_never_given_from_an_old_view(harness: Harness):
    here = harness.create(max_inflight_messages=1)
    there = harness.queue()
    assert here.receive() == there.receive() == []
    here.send_batch(batch("a", "b"))
    (a,) = there.receive()
    with pytest.raises(errors.OverLimit):
        here.receive()
    there.delete(a.receipt_handle)
    assert bodies(here.receive()) == ["b"]
    with pytest.raises(errors.OverLimit):
        there.receive()


@every_engine
@pytest.mark.spec("DLT-1", "DLT-4", "RCV-15", "SND-17", "QUE-33")
def test_two_processes_at_once_hand_every_message_to_one_consumer(harness: Harness):
    per_sender = 25 if harness.engine == "point" else 3
    here, there = harness.create(), harness.queue()
    received: list[str] = []

    def send(queue, start):
        for text in numbered(per_sender, start):
            queue.send(text)

    def consume(queue):
        while len(received) < 2 * per_sender:
            for message in queue.receive(5):
                received.append(message.body)
                queue.delete(message.receipt_handle)

    calls = [
        Call(harness.clock, work)
        for work in (
            lambda: send(here, 0),
            lambda: send(there, 1000),
            lambda: consume(here),
            lambda: consume(there),
        )
    ]
    assert [call.join() for call in calls] == [None] * 4
    assert sorted(received) == numbered(per_sender) + numbered(per_sender, 1000)
    counts = harness.queue().counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


@pytest.mark.core
@pytest.mark.spec("DLT-4", "QUE-33")
@pytest.mark.parametrize("lq", [pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_what_one_engine_does_the_other_carries_on(harness: Harness, clock):
    through_spark = harness.create()
    through_point = harness.open(engine="point").queue("orders")
    through_point.send("from the point engine", attributes={"b": b"\x00\xff"})
    through_spark.send("from Spark", attributes={"b": b"\x00\xff"}, delay=5)
    (m,) = through_spark.receive(2, visibility_timeout=5)
    assert (m.body, m.message_attributes["b"]) == ("from the point engine", ("Binary", b"\x00\xff"))
    assert through_point.receive(2) == []
    through_point.change_visibility(m.receipt_handle, 20)
    clock.advance(5)
    (delayed,) = through_point.receive(2)
    assert (delayed.body, delayed.message_attributes["b"]) == ("from Spark", ("Binary", b"\x00\xff"))
    through_spark.delete(delayed.receipt_handle)
    through_spark.delete(m.receipt_handle)
    clock.advance(100)
    assert through_point.counts() == through_spark.counts()
    assert through_point.receive(2) == []


@pytest.mark.spec("DLT-1", "RET-1")
def test_a_process_whose_clock_is_behind_turns_no_time_back(harness: Harness, clock):
    from lakequeue.testing import ManualClock

    queue = harness.create()
    late = harness.open()
    late._runtime.clock = ManualClock(clock.now() - timedelta(hours=1))
    queue.send("a")
    late.queue("orders").send("b")
    first, second = queue.receive(2)
    assert second.sent_at >= first.sent_at
    assert late.queue("orders").receive(2) == []
    clock.advance(30)
    assert len(queue.receive(2)) == 2
