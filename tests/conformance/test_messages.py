"""Messages go through the tables: every process can receive them and sees their state."""

from __future__ import annotations

import hashlib

import pytest

from conformance.harness import Harness, batch, bodies, every_engine, handles, numbered
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


@pytest.mark.spec("BAT-1", "RCV-2", "INF-1", "STA-12", "DEL-3")
def test_a_batch_of_hundreds_comes_out_once_and_its_gaps_stay_gaps(harness: Harness, clock):
    queue = harness.create()
    queue.send_batch(batch(*numbered(300)))
    first = harness.queue().receive(200)
    assert [m.body for m in first] == numbered(200)
    kept, gone = first[::40], [m for index, m in enumerate(first) if index % 40]
    assert not harness.queue().delete_batch(handles(gone)).failed
    clock.advance(30)
    again = harness.queue().receive(1000)
    assert bodies(again) == sorted([m.body for m in kept] + numbered(100, 200))
    assert {m.receive_count for m in again if m.body in {k.body for k in kept}} == {2}
    counts = harness.queue().counts()
    assert (counts.visible, counts.in_flight) == (0, 105)


@pytest.mark.spec("BAT-3", "BAT-4", "DEL-10", "VIS-7", "VIS-10", "VIS-12")
def test_a_batch_answers_for_each_entry_and_what_is_refused_spoils_nothing(harness: Harness, clock):
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


@pytest.mark.spec(
    "DLT-3",
    "STA-1",
    "STA-2",
    "STA-3",
    "STA-4",
    "STA-10",
    "STA-14",
    "RCV-6",
    "RCP-5",
    "RCP-10",
    "RCP-11",
    "VIS-16",
)
def test_a_message_lives_on_when_every_step_is_another_process(harness: Harness, clock):
    harness.create().send("A")
    (first,) = harness.queue().receive()
    assert harness.queue().receive() == []
    harness.queue().change_visibility(first.receipt_handle, 100)
    clock.advance(99)
    assert harness.queue().receive() == []
    clock.advance(1)
    (second,) = harness.queue().receive()
    assert (second.body, second.message_id, second.receive_count) == ("A", first.message_id, 2)
    assert second.first_received_at == first.first_received_at
    assert second.receipt_handle != first.receipt_handle
    harness.queue().delete(second.receipt_handle)
    harness.queue().delete(second.receipt_handle)
    clock.advance(1000)
    assert harness.queue().receive() == []
    with pytest.raises(errors.InvalidParameterValue, match="not exist"):
        harness.queue().change_visibility(second.receipt_handle, 5)
