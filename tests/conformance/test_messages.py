"""Messages go through the tables: every process can receive them and sees their state."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from conformance.harness import Call, Harness, batch, bodies, every_engine, handles, numbered
from lakequeue import SendEntry, errors

TEXTS = [
    "a line\nand another\r\n\tindented\n",
    " \t leading and trailing \n ",
    "\U0001f600 \U0001f469\u200d\U0001f4bb cafe\u0301 \u4e16\u754c \U0010fffd \ufffd",
    '{"key": "va\\"lue", "path": "a/b%20c+d", "null": null}',
    "'; DROP TABLE messages; -- ${x} {y} `z` \\",
    "null",
    "x" * 100_000,
]


@pytest.mark.spec("DLT-6", "MSA-1", "SND-3", "SND-12", "RCV-10", "BAT-2", "RCP-14", "QUE-33")
def test_bodies_arrive_byte_for_byte_in_another_process(harness: Harness):
    sent = harness.create().send_batch(batch(*TEXTS))
    received = harness.queue().receive(10)
    assert [m.body for m in received] == TEXTS
    assert [m.md5_of_body for m in received] == [s.md5_of_body for s in sent.successful]
    assert [m.md5_of_body for m in received] == [
        hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest() for text in TEXTS
    ]
    assert [m.message_id for m in received] == [s.message_id for s in sent.successful]
    assert len(set(handles(received))) == len(TEXTS)


@every_engine
@pytest.mark.spec("MSA-2", "MSA-4", "SND-15", "RCV-11", "SND-14")
def test_attributes_of_messages_arrive_with_their_types(harness: Harness, clock):
    attributes = {
        "text": "tab\t, line\n and \U0001f600",
        "number": 42,
        "binary": b"\x00\xff\x00",
        "labelled": ("Number.price", "1.50"),
        "foo.a": "1",
        "foo.b": "2",
    }
    sent = harness.create().send(
        "body", attributes=attributes, group_id="tag", system_attributes={"AWSTraceHeader": "Root=1-2"}
    )
    harness.queue().send("bare")
    clock.advance(2)
    full, bare = harness.queue().receive(2)
    assert full.message_attributes == {
        "text": ("String", "tab\t, line\n and \U0001f600"),
        "number": ("Number", "42"),
        "binary": ("Binary", b"\x00\xff\x00"),
        "labelled": ("Number.price", "1.50"),
        "foo.a": ("String", "1"),
        "foo.b": ("String", "2"),
    }
    assert full.md5_of_message_attributes == sent.md5_of_message_attributes
    assert (full.group_id, full.attributes["AWSTraceHeader"]) == ("tag", "Root=1-2")
    assert full.attributes["ApproximateReceiveCount"] == "1"
    assert int(full.attributes["ApproximateFirstReceiveTimestamp"]) == (
        int(full.attributes["SentTimestamp"]) + 2000
    )
    assert (bare.message_attributes, bare.md5_of_message_attributes, bare.group_id) == ({}, None, None)
    clock.advance(30)
    part = harness.queue().receive(1, attribute_names=["foo.*"])[0]
    assert set(part.message_attributes) == {"foo.a", "foo.b"}


@pytest.mark.spec("BAT-3", "BAT-4", "DEL-10", "VIS-7", "VIS-10", "VIS-12")
def test_a_batch_answers_for_each_entry_and_a_refused_entry_spoils_nothing(harness: Harness, clock):
    queue = harness.create()
    sent = queue.send_batch([*batch("a", "b", "c"), SendEntry("\x01", id="bad"), SendEntry("d", id="last")])
    assert [s.id for s in sent.successful] == ["0", "1", "2", "last"]
    assert [(f.id, f.code) for f in sent.failed] == [("bad", "InvalidMessageContents")]
    a, b, c, d = harness.queue().receive(10)
    changed = harness.queue().change_visibility_batch(
        [
            *((a.receipt_handle, 0), (b.receipt_handle, 60), ("garbage", 5), (c.receipt_handle, -1)),
            (d.receipt_handle, None),  # which deletes nothing
        ]
    )
    assert [s.id for s in changed.successful] == ["0", "1"]
    assert [(f.id, f.code) for f in changed.failed] == [
        ("2", "ReceiptHandleIsInvalid"),
        ("3", "InvalidParameterValue"),
        ("4", "MissingParameter"),
    ]
    assert harness.queue().counts().in_flight == 3
    deleted = harness.queue().delete_batch([c.receipt_handle, "garbage", d.receipt_handle])
    assert [s.receipt_handle for s in deleted.successful] == [c.receipt_handle, d.receipt_handle]
    assert [(f.id, f.code, f.sender_fault) for f in deleted.failed] == [("1", "ReceiptHandleIsInvalid", True)]
    assert bodies(harness.queue().receive(10, visibility_timeout=100)) == ["a"]
    clock.advance(60)
    assert bodies(harness.queue().receive(10)) == ["b"]


@pytest.mark.spec("RCV-3", "VIS-9", "DLT-3")
def test_a_lease_settles_all_its_messages_at_once(harness: Harness, clock):
    queue = harness.create()
    queue.send_batch(batch(*numbered(50)))
    lease = harness.queue().lease(40, visibility_timeout=10)
    assert (lease.message_count, lease.visible_at) == (40, clock.now() + timedelta(seconds=10))
    assert lease.extend(100).done == 40
    clock.advance(99)
    assert harness.queue().counts().in_flight == 40
    before = harness.versions()
    assert lease.delete().done == 40
    after = harness.versions()
    assert sum(after.values()) - sum(before.values()) == 1
    assert bodies(harness.queue().receive(100)) == numbered(10, 40)
    with pytest.raises(errors.LeaseLost):
        lease.release()
    assert harness.queue().lease() is None


# --- two processes, or two engines, on one queue


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
