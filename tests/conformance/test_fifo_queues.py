"""FIFO queues: what they share with standard queues, delay, caps, and whole flows."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from conformance.fifo import (
    NAME,
    FifoHarness,
    bodies,
    delete,
    send,
)
from conformance.harness import Call, long_on_s3
from lakequeue import LakeQueue, Queue, SendEntry, errors

TEXT = "This is my message text."


@pytest.mark.spec("DLY-8", "DLY-10", "FIF-19", "QUE-10", "SND-6", "DLY-7", "DLT-3")
def test_the_delay_of_the_queue_holds_for_all_that_was_never_received(fifo: FifoHarness, clock):
    queue = fifo.create(delay=10)
    queue.send("A1", group_id="A", dedup_id="1", delay=0)
    send(queue, "A2", "B1")
    clock.advance(9.999)
    assert fifo.queue().receive(10) == []
    assert fifo.queue().counts().delayed == 3
    clock.advance(0.001)
    assert bodies(fifo.queue().receive(1, visibility_timeout=0)) == ["A1"]
    fifo.queue().set_attributes(delay=100)
    assert bodies(fifo.queue().receive(10, visibility_timeout=0)) == ["A1"]
    assert fifo.queue().counts().delayed == 2
    queue.set_attributes(delay=12)
    clock.advance(1.999)
    assert bodies(fifo.queue().receive(10, visibility_timeout=0)) == ["A1"]
    clock.advance(0.001)
    assert bodies(fifo.queue().receive(10)) == ["A1", "A2", "B1"]


@pytest.mark.spec("INF-7", "INF-4")
@pytest.mark.parametrize("profile", ["lake", "sqs", "sqs-2018"])
def test_a_long_poll_at_the_cap_waits_for_room_and_refuses_nothing(fifo: FifoHarness, clock, profile):
    queue = fifo.create(profile=profile, max_inflight_messages=1)
    send(queue, "A1", "B1", "C1")
    (a1,) = queue.receive()
    started = clock.now()
    call = Call(clock, lambda: queue.receive(wait_time=5)).after(3)
    delete(queue, a1)
    assert bodies(call.join()) == ["B1"]
    assert call.ended_at - started == timedelta(seconds=3)
    assert Call(clock, lambda: queue.receive(wait_time=5)).after(6).join() == []


@long_on_s3
@pytest.mark.spec("PER-4", "QTA-4", "INF-4", "PRF-3")
def test_twenty_thousand_messages_are_in_flight_and_no_more(fifo: FifoHarness):
    names = {"sqs-2018": "20000", "sqs": "120000"}
    for profile, cap in names.items():
        made = fifo.create(f"{profile}.fifo", profile=profile)
        assert made.attributes(["MaxInflightMessages"], wire=True) == {"MaxInflightMessages": cap}
    queue = fifo.create(max_inflight_messages=20_000)
    entries = [SendEntry("x", group_id=f"g{n // 5}", dedup_id=f"{n}") for n in range(20_010)]
    assert len(queue.send_batch(entries).successful) == 20_010
    held = queue.receive(15_000)
    assert len(fifo.queue().receive(15_000)) == 5_000
    assert fifo.queue().receive(10) == [] and fifo.queue().lease() is None
    assert fifo.queue().counts().in_flight == 20_000
    delete(fifo.queue(), *held[:4])
    assert len(fifo.queue().receive(10)) == 4


@pytest.mark.spec("QUE-29", "QUE-5", "QUE-23", "QUE-25", "QUE-28", "RET-1", "RET-6", "INF-1", "PRF-4")
def test_a_fifo_queue_has_counts_tags_and_attributes_that_change(fifo: FifoHarness, clock):
    queue = fifo.create(tags={"team": "blue"})
    send(fifo.queue(), "A1", "A2", "A3")
    queue.receive()
    clock.advance(2)
    before = fifo.versions()
    seen = [(m.body, m.state, m.receive_count) for m in fifo.queue().peek()]
    assert seen == [("A1", "in_flight", 1), ("A2", "visible", 0), ("A3", "visible", 0)]
    counts = fifo.queue().counts()
    assert (counts.visible, counts.in_flight, counts.delayed, counts.oldest_age) == (2, 1, 0, 2)
    wire = fifo.queue().attributes(wire=True)
    assert (wire["ApproximateNumberOfMessages"], wire["ApproximateNumberOfMessagesNotVisible"]) == ("2", "1")
    assert fifo.versions() == before
    fifo.queue().set_attributes(visibility_timeout=5, message_retention_period=60)
    fifo.queue().set_tags(team="red")
    assert queue.tags() == {"team": "red"}
    clock.advance(28)
    assert bodies(queue.receive(10)) == ["A1", "A2", "A3"]
    clock.advance(5)
    assert len(queue.receive(10)) == 3
    clock.advance(24.999)
    assert len(queue.receive(10)) == 3
    clock.advance(0.001)
    assert queue.counts().in_flight == 0 and queue.receive(10) == []


@pytest.mark.spec("EXM-1", "QUE-1", "QUE-11", "QUE-13", "SND-3", "SEQ-2", "MSA-1", "RCV-10", "ERR-1", "NAM-3")
def test_the_walkthrough_of_the_guide(lq: LakeQueue, fifo: FifoHarness):
    queue = lq.create_queue("MyFifoQueue.fifo", **{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
    assert queue.fifo
    assert [q.name for q in lq.list_queues()] == ["MyFifoQueue.fifo"]
    sent = queue.send(TEXT, group_id="messageGroup1", dedup_id="1")
    assert sent.message_id and sent.sequence_number
    (message,) = fifo.queue("MyFifoQueue.fifo").receive(10, attempt_id="1")
    assert (message.body, message.md5_of_body) == (TEXT, "6a1559560f67c5e7a7d5d838bf0272ee")
    assert (message.message_id, message.sequence_number) == (sent.message_id, sent.sequence_number)
    assert (message.group_id, message.dedup_id) == ("messageGroup1", "1")
    queue.delete(message.receipt_handle)
    assert queue.receive(10) == []
    lq.delete_queue("MyFifoQueue.fifo")
    assert lq.list_queues() == []
    with pytest.raises(errors.QueueServiceError) as caught:
        queue.send(TEXT, group_id="messageGroup1")
    error = caught.value
    assert (error.code, error.http_status, error.sender_fault) == ("QueueDoesNotExist", 400, True)
    assert error.message == "The specified queue does not exist."
    assert re.fullmatch(r"[0-9a-f-]{36}", error.request_id)


@pytest.mark.spec("EXM-8", "QUE-2", "QUE-3", "SND-6", "DLY-8", "FIF-15")
def test_a_standard_queue_is_moved_to_fifo(fifo: FifoHarness, clock):
    def consumer(queue: Queue) -> list[str]:
        worked_on = []
        while messages := queue.receive(10):
            for message in messages:
                worked_on.append(message.body)
                queue.delete(message.receipt_handle)
        return worked_on

    old = fifo.create("orders", profile="sqs")
    old.send("A1", delay=15)
    old.send("A2", delay=15)
    clock.advance(15)
    assert sorted(consumer(fifo.queue("orders"))) == ["A1", "A2"]
    with pytest.raises(errors.InvalidAttributeName, match="Unknown Attribute fifo"):
        old.set_attributes(FifoQueue="true")
    fifo.open().delete_queue("orders")
    clock.advance(60)
    new = fifo.create(profile="sqs", delay=15)
    with pytest.raises(errors.InvalidParameterValue, match="delay"):
        new.send("A1", group_id="orders", dedup_id="1", delay=15)
    for number in range(1, 4):
        new.send(f"A{number}", group_id="orders", dedup_id=f"{number}")
    assert consumer(fifo.queue()) == []
    clock.advance(15)
    assert consumer(fifo.queue()) == ["A1", "A2", "A3"]


@pytest.mark.spec("DLT-4", "FIF-4", "DDP-1", "ATT-3", "SEQ-6", "QUE-33")
@pytest.mark.parametrize("lq", [pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_what_one_engine_begins_the_other_carries_on(fifo: FifoHarness, clock):
    through_spark = fifo.create()
    through_point = fifo.open(engine="point").queue(NAME)
    first = send(through_spark, "A1", "B1", "A2")
    again = send(through_point, "A2", "A3")
    assert again[0].message_id == first[2].message_id
    assert int(again[1].sequence_number) > int(first[2].sequence_number)
    held = through_spark.receive(4, attempt_id="x")
    assert bodies(held) == ["A1", "A2", "A3", "B1"]
    send(through_spark, "A4", "A3")
    assert through_point.receive(4, attempt_id="x") == held
    assert through_point.receive(4) == []
    clock.advance(1)
    delete(through_point, *held)
    assert bodies(through_spark.receive(4)) == ["A4"]
