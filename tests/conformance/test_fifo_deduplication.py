"""Deduplication of sends: ids, their five minutes, their scope, and what ends them."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from concurrency.harness import log_rows, small_segments
from conformance.fifo import (
    NAME,
    FifoHarness,
    bodies,
    delete,
    drain,
    entry,
    send,
)
from lakequeue import SendEntry, errors
from lakequeue.testing import ManualClock

TEXT = "This is my message text."


@pytest.mark.spec("SND-16", "BAT-4", "ERR-8")
def test_a_send_that_is_refused_leaves_its_deduplication_id_free(fifo: FifoHarness):
    queue = fifo.create(max_stored_messages=2)
    for refused in (
        {"body": "\x01", "group_id": "A"},
        {"body": "x", "group_id": "A", "delay": 2},
        {"body": "x", "group_id": "A B"},
        {"body": "x"},
    ):
        with pytest.raises(errors.QueueServiceError):
            queue.send(**refused, dedup_id="d")
    result = queue.send_batch([entry("A\x01", "d"), entry("A1", "e"), entry("A2", "f", delay=2)])
    assert [s.id for s in result.successful] == ["1"]
    assert [(f.id, f.code) for f in result.failed] == [
        ("0", "InvalidMessageContents"),
        ("2", "InvalidParameterValue"),
    ]
    send(queue, "A2")
    assert fifo.queue().send_batch([entry("A3", "d")]).failed[0].code == "OverLimit"
    delete(queue, *queue.receive(1))
    fifo.queue().send("A4", group_id="A", dedup_id="d")
    fifo.queue().send("A5", group_id="A", dedup_id="A2")  # a duplicate needs no room
    assert bodies(fifo.queue().receive(10)) == ["A2", "A4"]


@pytest.mark.spec("SND-10", "EXM-9", "DDP-1", "QTA-9", "DDP-2", "DDP-3", "DDP-8", "DDP-9", "DDP-11", "DLT-3")
def test_an_id_counts_for_five_minutes_from_its_first_send_in_every_process(fifo: FifoHarness, clock):
    first = fifo.create().send("A1", group_id="A", dedup_id="d")
    clock.advance(200)
    delete(fifo.queue(), *fifo.queue().receive())
    clock.advance(99.999999)
    again = fifo.queue().send("other", group_id="B", dedup_id="d")
    assert (again.message_id, again.sequence_number) == (first.message_id, first.sequence_number)
    assert again.md5_of_body == hashlib.md5(b"other", usedforsecurity=False).hexdigest()
    assert fifo.queue().receive() == []
    clock.advance(0.000001)
    later = fifo.queue().send("A2", group_id="A", dedup_id="d")
    assert int(later.sequence_number) > int(first.sequence_number)
    assert bodies(fifo.queue().receive(10)) == ["A2"]


@pytest.mark.spec("DDP-1", "DLT-1")
def test_a_window_is_measured_on_the_clock_of_the_queue(fifo: FifoHarness, clock):
    queue = fifo.create()
    late = fifo.open()
    late._runtime.clock = ManualClock(clock.now() - timedelta(hours=1))
    send(queue, "A1")
    send(late.queue(NAME), "A1", "A2")
    assert bodies(fifo.queue().peek()) == ["A1", "A2"]
    clock.advance(299)
    send(queue, "A1", "A2")
    assert bodies(fifo.queue().peek()) == ["A1", "A2"]
    clock.advance(1)
    send(queue, "A3")
    send(late.queue(NAME), "A1", "A2")
    assert bodies(fifo.queue().peek()) == ["A1", "A2", "A3", "A1", "A2"]


@pytest.mark.spec("DDP-4", "DDP-5", "DDP-6", "DDP-7", "DDP-12", "MSA-6", "QUE-9", "SND-5")
def test_the_hash_of_the_body_is_the_id_where_none_is_given(fifo: FifoHarness):
    queue = fifo.create(content_based_deduplication=True)
    first = queue.send(TEXT, group_id="A", attributes={"a": 1})
    again = fifo.queue().send(TEXT, group_id="B", attributes={"b": b"2"})
    assert again.message_id == first.message_id
    assert again.md5_of_message_attributes != first.md5_of_message_attributes
    given = queue.send_batch([SendEntry(TEXT, group_id="A", dedup_id=id) for id in ("x", "y", "x")])
    assert len({s.message_id for s in given.successful}) == 2
    hashed = hashlib.sha256(TEXT.encode()).hexdigest()
    assert hashed == "92b3693fce932bbbff0f6795ab3cc33a9c0a51c264160e90507fd8ea8ba2e598"
    assert fifo.queue().send("other", group_id="A", dedup_id=hashed).message_id == first.message_id
    received = fifo.queue().receive(10)
    assert [(m.body, m.dedup_id) for m in received] == [(TEXT, hashed), (TEXT, "x"), (TEXT, "y")]
    assert set(received[0].message_attributes) == {"a"}


@pytest.mark.spec("QUE-9", "DDP-4", "SND-5", "QUE-25")
def test_content_based_deduplication_can_be_switched(fifo: FifoHarness):
    here, there = fifo.create(), fifo.queue()
    assert here.attributes()["content_based_deduplication"] is False
    here.set_attributes(content_based_deduplication=True)
    there.send("a", group_id="A")
    assert there.attributes()["content_based_deduplication"] is True
    there.set_attributes(ContentBasedDeduplication="false")
    with pytest.raises(errors.InvalidParameterValue, match="content_based_deduplication"):
        here.send("b", group_id="A")
    assert bodies(fifo.queue().receive(10)) == ["a"]


@pytest.mark.spec("DDP-13", "PUR-5", "PUR-1", "PUR-3", "DLT-3")
def test_a_purge_clears_groups_and_deduplication_ids(fifo: FifoHarness, clock):
    queue = fifo.create()
    other = fifo.queue()
    first = send(queue, "A1", "A2", "B1")
    send(other, "A1")
    queue.receive(1)
    other.purge()
    second = send(fifo.queue(), "A2", "A1", "A2")
    assert second[2].message_id == second[0].message_id
    assert not {s.message_id for s in second} & {s.message_id for s in first}
    third = send(queue, "A1", "B1")  # its window holds what it sent itself before the purge
    assert third[0].message_id == second[1].message_id
    assert bodies(fifo.queue().receive(10)) == ["A2", "A1", "B1"]
    clock.advance(299)
    send(fifo.queue(), "A2", "B1")
    assert fifo.queue().counts().visible == 3


@pytest.mark.spec("DDP-14", "DDP-15", "QUE-25", "DLT-3")
def test_the_scope_is_the_message_group_if_the_queue_was_created_so(fifo: FifoHarness, clock):
    queue = fifo.create(deduplication_scope="message_group", FifoThroughputLimit="perMessageGroupId")
    scopes = ["DeduplicationScope", "FifoThroughputLimit"]
    wire = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    assert fifo.queue().attributes(scopes, wire=True) == wire
    sent = [queue.send("1", group_id=group, dedup_id="d") for group in "AB"]
    again = [fifo.queue().send("2", group_id=group, dedup_id="d") for group in "AB"]
    assert [s.message_id for s in again] == [s.message_id for s in sent]
    fifo.queue().set_attributes(DeduplicationScope="queue", fifo_throughput_limit="per_queue")
    assert queue.attributes()["deduplication_scope"] == "queue"
    assert queue.send("3", group_id="C", dedup_id="d").message_id not in {s.message_id for s in sent}
    clock.advance(299)
    assert fifo.queue().send("4", group_id="B", dedup_id="d").message_id == sent[1].message_id
    assert [(m.group_id, m.body) for m in fifo.queue().receive(10)] == [("A", "1"), ("B", "1"), ("C", "3")]


@pytest.mark.spec("DDP-2", "DDP-14", "DDP-15")
def test_a_scope_that_is_changed_later_is_shown_and_has_no_effect(fifo: FifoHarness):
    queue = fifo.create()
    assert queue.attributes()["deduplication_scope"] == "queue"
    queue.set_attributes(deduplication_scope="messageGroup", fifo_throughput_limit="perMessageGroupId")
    shown = fifo.queue().attributes(wire=True)
    assert (shown["DeduplicationScope"], shown["FifoThroughputLimit"]) == ("messageGroup", "perMessageGroupId")
    assert "CreatedDeduplicationScope" not in shown
    ids = {q.send(g, group_id=g, dedup_id="d").message_id for q in (queue, fifo.queue()) for g in "AB"}
    assert len(ids) == 1
    assert bodies(fifo.queue().receive(10)) == ["A"]


@pytest.mark.spec("RET-10", "RET-11", "RET-9", "DDP-3", "DDP-9", "DLT-7")
def test_expired_messages_free_their_group_and_their_ids_outlive_them(fifo: FifoHarness, clock, monkeypatch):
    small_segments(monkeypatch, commits=1)
    queue = fifo.create(message_retention_period=60)
    first = send(queue, "A1", "B1")
    queue.receive(1, visibility_timeout=1000)
    clock.advance(30)
    send(queue, "A2")
    clock.advance(29.999)
    assert bodies(fifo.queue().receive(10, visibility_timeout=0)) == ["B1"]
    clock.advance(0.001)
    delete(queue, *fifo.queue().receive(10))
    clock.advance(60)
    again = send(fifo.queue(), "A1", "C1")
    assert again[0].message_id == first[0].message_id
    assert bodies(fifo.queue().receive(10)) == ["C1"]
    clock.advance(179.999)
    send(fifo.queue(), "B1", "D1")
    assert {"A1", "B1"} <= {row.body for row in log_rows(queue)}, "a segment went before its ids were free"
    assert bodies(fifo.queue().receive(10)) == ["D1"]
    clock.advance(0.001)
    send(fifo.queue(), "A1", "B1")
    assert bodies(fifo.queue().receive(10)) == ["A1", "B1"]


@pytest.mark.spec("RET-11", "DLT-7", "DDP-1")
def test_old_segments_are_dropped_once_no_id_in_them_counts(fifo: FifoHarness, clock, monkeypatch):
    small_segments(monkeypatch, commits=1)
    queue = fifo.create()
    for number in range(4):
        send(queue, f"A{number}")
    drain(queue)
    clock.advance(299)
    send(fifo.queue(), "B1")
    send(fifo.queue(), "A0", "A1", "A2", "A3")
    assert len(log_rows(queue)) == 5
    clock.advance(2)
    send(fifo.queue(), "B2")
    left = {row.body for row in log_rows(queue)}
    assert not left & {"A0", "A1", "A2"}
    assert bodies(drain(fifo.queue())) == ["B1", "B2"]
