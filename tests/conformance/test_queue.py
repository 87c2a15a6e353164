"""What a queue does, through the public API, on both engines: everything that storage could get wrong.

Single rules are shown at cheaper levels; here each scenario crosses the tables, and most look at the result
through an entry that knows nothing yet, as another process would.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from concurrency.rig import keep_to
from conformance.bench import Bench, Call, point_only
from lakequeue import LakeQueue, Queue, SendEntry, errors
from lakequeue.runtime import shard_service
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard import Purge
from lakequeue.storage import ledger
from lakequeue.storage.engines import commit
from lakequeue.storage.engines.interface import LostRace
from lakequeue.storage.layout import messages_path, receipts_path
from lakequeue.storage.messages import append, merge_segments

TEXTS = [
    "a line\nand another\r\n\tindented\n",
    " \t leading and trailing \n ",
    "\U0001f600 \U0001f469\u200d\U0001f4bb cafe\u0301 \u4e16\u754c \U0010fffd \ufffd",
    '{"key": "va\\"lue", "path": "a/b%20c+d", "null": null}',
    "'; DROP TABLE messages; -- ${x} {y} `z` \\",
    "null",
    "x" * 100_000,
]


def bodies(messages) -> list[str]:
    return sorted(message.body for message in messages)


def batch(*texts: str, **fields) -> list[SendEntry]:
    return [SendEntry(text, **fields) for text in texts]


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:04}" for number in range(start, start + count)]


def handles(messages) -> list[str]:
    return [message.receipt_handle for message in messages]


def live_files(queue: Queue, path) -> int:
    return len(DeltaTable(path(queue.runtime.root.path, queue.key, 0)).file_uris())


# --- what is sent is what arrives


@pytest.mark.spec("DLT-6", "MSA-1", "SND-3", "SND-12", "RCV-10", "BAT-2", "RCP-14", "QUE-33")
def test_bodies_arrive_byte_for_byte_in_another_process(bench: Bench):
    sent = bench.create().send_batch(batch(*TEXTS))
    received = bench.queue().receive(10)
    assert [m.body for m in received] == TEXTS
    assert [m.md5_of_body for m in received] == [s.md5_of_body for s in sent.successful]
    assert [m.md5_of_body for m in received] == [
        hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest() for text in TEXTS
    ]
    assert [m.message_id for m in received] == [s.message_id for s in sent.successful]
    assert len(set(handles(received))) == len(TEXTS)


@pytest.mark.spec("MSA-2", "MSA-4", "SND-15", "RCV-11", "SND-14")
def test_attributes_of_messages_arrive_with_their_types(bench: Bench, clock):
    attributes = {
        "text": "tab\t, line\n and \U0001f600",
        "number": 42,
        "binary": b"\x00\xff\x00",
        "labelled": ("Number.price", "1.50"),
        "foo.a": "1",
        "foo.b": "2",
    }
    sent = bench.create().send(
        "body", attributes=attributes, group_id="tag", system_attributes={"AWSTraceHeader": "Root=1-2"}
    )
    bench.queue().send("bare")
    clock.advance(2)
    full, bare = bench.queue().receive(2)
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
    part = bench.queue().receive(1, attribute_names=["foo.*"])[0]
    assert set(part.message_attributes) == {"foo.a", "foo.b"}


@pytest.mark.spec("BAT-1", "RCV-2", "INF-1", "STA-12", "DEL-3")
def test_a_batch_of_hundreds_comes_out_once_and_its_gaps_stay_gaps(bench: Bench, clock):
    queue = bench.create()
    queue.send_batch(batch(*numbered(300)))
    first = bench.queue().receive(200)
    assert [m.body for m in first] == numbered(200)
    kept, gone = first[::40], [m for index, m in enumerate(first) if index % 40]
    assert not bench.queue().delete_batch(handles(gone)).failed
    clock.advance(30)
    again = bench.queue().receive(1000)
    assert bodies(again) == sorted([m.body for m in kept] + numbered(100, 200))
    assert {m.receive_count for m in again if m.body in {k.body for k in kept}} == {2}
    counts = bench.queue().counts()
    assert (counts.visible, counts.in_flight) == (0, 105)


@point_only
@pytest.mark.spec("BAT-3", "BAT-4", "DEL-10", "VIS-7", "VIS-12")
def test_a_batch_answers_for_each_entry_and_what_is_refused_spoils_nothing(bench: Bench, clock):
    queue = bench.create()
    sent = queue.send_batch([*batch("a", "b", "c"), SendEntry("\x01", id="bad"), SendEntry("d", id="last")])
    assert [s.id for s in sent.successful] == ["0", "1", "2", "last"]
    assert [(f.id, f.code) for f in sent.failed] == [("bad", "InvalidMessageContents")]
    a, b, c, d = bench.queue().receive(10)
    changed = bench.queue().change_visibility_batch(
        [(a.receipt_handle, 0), (b.receipt_handle, 60), ("garbage", 5), (c.receipt_handle, -1)]
    )
    assert [s.id for s in changed.successful] == ["0", "1"]
    assert [(f.id, f.code) for f in changed.failed] == [
        ("2", "ReceiptHandleIsInvalid"),
        ("3", "InvalidParameterValue"),
    ]
    deleted = bench.queue().delete_batch([c.receipt_handle, "garbage", d.receipt_handle])
    assert [s.receipt_handle for s in deleted.successful] == [c.receipt_handle, d.receipt_handle]
    assert [(f.id, f.code, f.sender_fault) for f in deleted.failed] == [("1", "ReceiptHandleIsInvalid", True)]
    assert bodies(bench.queue().receive(10, visibility_timeout=100)) == ["a"]
    clock.advance(60)
    assert bodies(bench.queue().receive(10)) == ["b"]


# --- state lies in the tables alone


@pytest.mark.core
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
def test_a_message_lives_on_when_every_step_is_another_process(bench: Bench, clock):
    bench.create().send("A")
    (first,) = bench.queue().receive()
    assert bench.queue().receive() == []
    bench.queue().change_visibility(first.receipt_handle, 100)
    clock.advance(99)
    assert bench.queue().receive() == []
    clock.advance(1)
    (second,) = bench.queue().receive()
    assert (second.body, second.message_id, second.receive_count) == ("A", first.message_id, 2)
    assert second.first_received_at == first.first_received_at
    assert second.receipt_handle != first.receipt_handle
    bench.queue().delete(second.receipt_handle)
    bench.queue().delete(second.receipt_handle)
    clock.advance(1000)
    assert bench.queue().receive() == []
    with pytest.raises(errors.InvalidParameterValue, match="not exist"):
        bench.queue().change_visibility(second.receipt_handle, 5)


@point_only
@pytest.mark.spec("EXM-3", "VIS-1", "VIS-3", "VIS-4", "VIS-5", "VIS-6", "VIS-9", "RCP-13")
def test_a_change_of_visibility_counts_from_its_call_and_for_its_receipt_alone(bench: Bench, clock):
    queue = bench.create(visibility_timeout=60)
    queue.send("A")
    (m,) = queue.receive()
    clock.advance(15)
    bench.queue().change_visibility(m.receipt_handle, 10)
    clock.advance(9.999)
    assert bench.queue().counts().in_flight == 1
    clock.advance(0.001)
    (m,) = bench.queue().receive()
    clock.advance(3)
    bench.queue().change_visibility(m.receipt_handle, 0)
    (m,) = bench.queue().receive()
    with pytest.raises(errors.InvalidParameterValue, match="43200"):
        clock.advance(1)
        queue.change_visibility(m.receipt_handle, 43_200)
    clock.advance(59)
    assert [again.receive_count for again in bench.queue().receive()] == [4]


@point_only
@pytest.mark.spec("RCV-5", "RCV-12", "VIS-12")
def test_a_timeout_of_the_receive_holds_for_it_alone_and_zero_hides_nothing(bench: Bench, clock):
    queue = bench.create()
    queue.send("A")
    assert [m.receive_count for m in queue.receive(visibility_timeout=0)] == [1]
    assert [m.receive_count for m in bench.queue().receive(visibility_timeout=5)] == [2]
    clock.advance(5)
    assert [m.receive_count for m in queue.receive()] == [3]
    clock.advance(29.9)
    assert bench.queue().receive() == []
    assert queue.attributes(["VisibilityTimeout"]) == {"VisibilityTimeout": "30"}


# --- two processes, one queue


@pytest.mark.spec("DLT-1", "DLT-4", "SND-17", "STA-7")
def test_two_processes_that_send_in_turn_lose_and_repeat_nothing(bench: Bench):
    here = bench.create()
    there = bench.queue()
    for here_says, there_says in zip(numbered(3), numbered(3, 10), strict=True):
        here.send(here_says)
        there.send(there_says)
    assert here.counts() == there.counts()
    assert [m.body for m in bench.queue().receive(10)] == ["0000", "0010", "0001", "0011", "0002", "0012"]


@pytest.mark.spec("RCV-3", "RCV-15", "STA-6", "STA-7", "RCV-14")
def test_a_process_with_an_old_view_gets_nothing_that_another_one_holds(bench: Bench, clock):
    here = bench.create()
    there = bench.queue()
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
def test_an_older_receipt_has_no_power_over_a_later_one_of_another_process(bench: Bench, clock):
    here = bench.create(visibility_timeout=10)
    there = bench.queue()
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


@point_only
@pytest.mark.spec("INF-3", "INF-5", "RCV-14")
def test_a_refusal_is_never_given_from_an_old_view(bench: Bench):
    here = bench.create(max_inflight_messages=1)
    there = bench.queue()
    assert here.receive() == there.receive() == []
    here.send_batch(batch("a", "b"))
    (a,) = there.receive()
    with pytest.raises(errors.OverLimit):
        here.receive()
    there.delete(a.receipt_handle)
    assert bodies(here.receive()) == ["b"]
    with pytest.raises(errors.OverLimit):
        there.receive()


@pytest.mark.spec("DLT-4", "RCV-15", "SND-17", "QUE-33")
def test_two_processes_at_once_hand_every_message_to_one_consumer(bench: Bench):
    per_sender = 25 if bench.engine == "point" else 3
    here, there = bench.create(), bench.queue()
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
        Call(bench.clock, work)
        for work in (
            lambda: send(here, 0),
            lambda: send(there, 1000),
            lambda: consume(here),
            lambda: consume(there),
        )
    ]
    assert [call.join() for call in calls] == [None] * 4
    assert sorted(received) == numbered(per_sender) + numbered(per_sender, 1000)
    counts = bench.queue().counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


@pytest.mark.core
@pytest.mark.spec("DLT-4", "QUE-33")
@pytest.mark.parametrize("lq", [pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_what_one_engine_does_the_other_carries_on(bench: Bench, clock):
    through_spark = bench.create()
    through_point = bench.open(engine="point").queue("orders")
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


@point_only
@pytest.mark.spec("INF-11", "INF-2", "RCV-15")
def test_the_cap_in_flight_holds_among_receivers_of_two_processes(bench: Bench):
    here = bench.create(max_inflight_messages=10)
    there = bench.queue()
    here.send_batch(batch(*numbered(100)))
    received: list[str] = []

    def consume(queue):
        for _ in range(5):
            try:
                received.extend(bodies(queue.receive(3)))
            except errors.OverLimit:
                return

    calls = [Call(bench.clock, lambda q=queue: consume(q)) for queue in [here, there] * 4]
    assert [call.join() for call in calls] == [None] * 8
    assert len(received) == len(set(received)) == 10
    assert bench.queue().counts().in_flight == 10


@point_only
@pytest.mark.spec("DLT-1", "RET-1")
def test_a_process_whose_clock_is_behind_turns_no_time_back(bench: Bench, clock):
    from lakequeue.testing import ManualClock

    queue = bench.create()
    late = bench.open()
    late.runtime.clock = ManualClock(clock.now() - timedelta(hours=1))
    queue.send("a")
    late.queue("orders").send("b")
    first, second = queue.receive(2)
    assert second.sent_at >= first.sent_at
    assert late.queue("orders").receive(2) == []
    clock.advance(30)
    assert len(queue.receive(2)) == 2


# --- the queue itself


@pytest.mark.spec("QUE-1", "QUE-4", "QUE-6", "QUE-13", "QUE-15", "QUE-27", "PRF-1", "DLT-3")
def test_a_queue_is_made_found_and_deleted(lq: LakeQueue, bench: Bench, clock):
    made = lq.create_queue("orders", visibility_timeout=60, tags={"team": "blue"})
    found = bench.queue()
    assert (found.name, found.region, found.fifo, found.created_at) == ("orders", "local", False, clock.now())
    wire = found.attributes()
    assert (wire["Profile"], wire["VisibilityTimeout"]) == ("lake", "60")
    assert bench.open().create_queue("orders", visibility_timeout=60).key == made.key
    made.send("A")
    assert bodies(found.receive()) == ["A"]
    bench.open().delete_queue("orders")
    with pytest.raises(errors.QueueDoesNotExist):
        made.send("B")
    with pytest.raises(errors.QueueDoesNotExist):
        bench.queue()


@pytest.mark.spec("QUE-5", "QUE-24", "QUE-25", "RET-6")
def test_changed_attributes_hold_at_once_for_sends_and_receives_elsewhere(bench: Bench, clock):
    here = bench.create(delay=100)
    there = bench.queue()
    there.send("late")
    assert there.receive() == []
    clock.advance(1)
    here.set_attributes(delay=0, visibility_timeout=5, maximum_message_size=1024)
    there.send("now")
    with pytest.raises(errors.InvalidParameterValue, match="1024"):
        there.send("x" * 1025)
    assert bodies(there.receive(5)) == ["now"]
    clock.advance(5)
    assert bodies(there.receive(5)) == ["now"]
    wire = there.attributes()
    assert int(wire["LastModifiedTimestamp"]) == int(wire["CreatedTimestamp"]) + 1
    here.set_attributes(maximum_message_size=2048)
    there.send("x" * 2048)


@point_only
@pytest.mark.spec("QUE-25", "LPL-3")
def test_a_changed_wait_time_holds_at_once_for_receives_elsewhere(bench: Bench, clock):
    here, there = bench.create(), bench.queue()
    assert there.receive() == []
    here.set_attributes(receive_wait_time=5)
    call = Call(clock, there.receive)
    clock.wait_for_waiters()
    started = clock.now()
    clock.advance(20)
    assert call.join() == []
    assert call.ended_at - started == timedelta(seconds=5)


@point_only
@pytest.mark.spec("QUE-25", "PRF-2", "VIS-10")
def test_a_widened_range_holds_at_once_for_receives_and_changes_elsewhere(bench: Bench, clock):
    here = bench.create(profile="cmq")
    there = bench.queue()
    here.send_batch(batch("a", "b"))
    with pytest.raises(errors.InvalidParameterValue):
        there.receive(visibility_timeout=0)
    (a,) = there.receive()
    here.set_attributes(allow_zero_visibility=True)
    there.change_visibility(a.receipt_handle, 0)
    assert bodies(there.receive(visibility_timeout=0)) == ["a"]


@point_only
@pytest.mark.spec("QUE-25", "DLT-3")
def test_a_change_of_attributes_that_was_cut_short_is_finished_by_whoever_comes_next(bench, monkeypatch):
    queue, other = bench.create(), bench.queue()
    with monkeypatch.context() as patch:
        patch.setattr(
            OpenQueue, "announce_attributes", lambda self: os.kill
        )  # the process ends before it tells the shards
        queue.set_attributes(delay=50)
    assert other.attributes(["DelaySeconds"]) == {"DelaySeconds": "50"}
    sending = Call(bench.clock, lambda: other.send("a"))
    sending.thread.join(20)
    assert not sending.thread.is_alive(), "the send never ends"
    listed = bench.open().list_queues()[0]
    listed.send("b")
    assert bench.queue().counts().delayed == 2


@pytest.mark.spec("QUE-13", "QUE-14", "RCP-9", "DLT-4")
def test_a_queue_created_again_shares_nothing_with_the_old_one(bench: Bench):
    old = bench.create()
    elsewhere = bench.queue()
    old.send_batch(batch("a", "b"))
    (a,) = elsewhere.receive()
    bench.open().delete_queue("orders")
    new = bench.create()
    for dead in (old, elsewhere):
        for verb in (
            lambda q=dead: q.send("late"),
            lambda q=dead: q.send_batch(batch("late")),
            lambda q=dead: q.receive(),
            lambda q=dead: q.delete(a.receipt_handle),
            lambda q=dead: q.change_visibility(a.receipt_handle, 5),
            lambda q=dead: q.purge(),
            lambda q=dead: q.attributes(),
            lambda q=dead: q.set_attributes(delay=5),
            lambda q=dead: q.set_tags(a="b"),
            lambda q=dead: q.tags(),
        ):
            with pytest.raises(errors.QueueDoesNotExist):
                verb()
    with pytest.raises(errors.ReceiptHandleIsInvalid):
        new.delete(a.receipt_handle)
    assert new.receive() == []
    new.send("c")
    assert bodies(bench.queue().receive(10)) == ["c"]


@point_only
@pytest.mark.spec("QUE-13", "DLT-3")
@pytest.mark.parametrize("step", ["after the first commit", "before the catalog"])
def test_a_deletion_that_was_cut_short_is_finished_by_whoever_comes_next(bench, monkeypatch, step):
    queue, other = bench.create(shards=2), bench.queue()
    queue.send_batch(batch("a"))
    if step == "after the first commit":
        queue.runtime.shards[0].mark(close=True)
    else:
        queue.runtime.close_shards()
    keep_to(other, 0)
    with pytest.raises(errors.QueueDoesNotExist):
        other.send("b")
    keep_to(other, 1)
    with pytest.raises(errors.QueueDoesNotExist):
        other.send("b")
    with pytest.raises(errors.QueueDoesNotExist):
        bench.queue()
    assert bench.create().receive() == []


@pytest.mark.spec("PUR-1", "PUR-2", "PUR-3", "PUR-4", "DLT-3")
def test_a_purge_removes_what_was_sent_before_it(bench: Bench, clock):
    queue = bench.create()
    queue.send_batch([*batch("received", "waiting"), SendEntry("delayed", delay=10)])
    (m,) = bench.queue().receive()
    queue.purge()
    bench.queue().send("after")
    bench.queue().delete(m.receipt_handle)
    with pytest.raises(errors.InvalidParameterValue):
        queue.change_visibility(m.receipt_handle, 5)
    clock.advance(59)
    with pytest.raises(errors.PurgeQueueInProgress):
        bench.queue().purge()
    assert bodies(bench.queue().receive(10)) == ["after"]
    clock.advance(1)
    bench.queue().purge()
    clock.advance(60)
    assert queue.receive(10) == []


@pytest.mark.spec("RET-1", "RET-2", "RET-3", "RET-9", "STA-5", "DEL-9")
def test_retention_ends_messages_in_every_state_without_anybody_sweeping(bench: Bench, clock):
    queue = bench.create(message_retention_period=60)
    queue.send_batch([*batch("received", "waiting"), SendEntry("delayed", delay=59.5)])
    clock.advance(55)
    (m,) = queue.receive(visibility_timeout=30)
    queue.send("younger")
    clock.advance(4.999)
    assert bench.queue().counts().visible + bench.queue().counts().in_flight == 4
    clock.advance(0.001)
    assert bodies(bench.queue().receive(10)) == ["younger"]
    bench.queue().delete(m.receipt_handle)
    clock.advance(30)
    assert bodies(bench.queue().receive(10)) == ["younger"]
    assert bench.queue().counts().in_flight == 1


@point_only
@pytest.mark.spec("RET-6", "QUE-25")
def test_a_changed_retention_holds_for_what_is_there(bench: Bench, clock):
    queue = bench.create()
    queue.send("old")
    clock.advance(100)
    bench.queue().set_attributes(message_retention_period=60)
    queue.send("young")
    assert bodies(queue.receive(10, visibility_timeout=1)) == ["young"]
    bench.queue().set_attributes(message_retention_period=1000)
    clock.advance(500)
    assert bodies(bench.queue().receive(10)) == ["young"]


@pytest.mark.spec("EXM-11", "DLY-1", "DLY-2", "DLY-9", "DLY-10", "DLY-11", "DLY-12", "STA-8", "PRF-4", "QUE-10")
def test_delayed_messages_come_when_they_are_due(bench: Bench, clock):
    queue = bench.create(delay=10)
    queue.send_batch([SendEntry("queue"), SendEntry("none", delay=0), SendEntry("own", delay=20)])
    assert bodies(bench.queue().receive(10)) == ["none"]
    counts = queue.counts()
    assert (counts.visible, counts.in_flight, counts.delayed) == (0, 1, 2)
    bench.queue().set_attributes(delay=1)
    clock.advance(9.999)
    assert bench.queue().receive(10) == []
    clock.advance(0.001)
    assert bodies(bench.queue().receive(10, visibility_timeout=100)) == ["queue"]
    clock.advance(9.999)
    assert bench.queue().counts().delayed == 1
    clock.advance(0.001)
    assert bodies(bench.queue().receive(10)) == ["own"]


@pytest.mark.spec("INF-1", "INF-2", "INF-3", "INF-6", "INF-7")
def test_a_receive_gets_what_room_the_cap_leaves(bench: Bench, clock):
    queue = bench.create(max_inflight_messages=5)
    queue.send_batch(batch(*numbered(9)))
    held = queue.receive(3)
    assert len(bench.queue().receive(10)) == 2
    with pytest.raises(errors.OverLimit):
        bench.queue().receive(10)
    bench.queue().delete(held[0].receipt_handle)
    bench.queue().change_visibility(held[1].receipt_handle, 0)
    assert [m.body for m in bench.queue().receive(10)] == [held[1].body, "0005"]
    clock.advance(30)
    assert len(bench.queue().receive(10)) == 5


@point_only
@pytest.mark.spec("QUE-21")
def test_a_full_queue_takes_messages_as_others_are_deleted(bench: Bench):
    queue = bench.create(max_stored_messages=3)
    queue.send("a")
    result = bench.queue().send_batch(batch("b", "c", "d"))
    assert [s.id for s in result.successful] == ["0", "1"]
    assert [(f.id, f.code) for f in result.failed] == [("2", "OverLimit")]
    with pytest.raises(errors.OverLimit):
        queue.send("e")
    (a,) = queue.receive()
    with pytest.raises(errors.OverLimit):
        bench.queue().send("e")
    bench.queue().delete(a.receipt_handle)
    queue.send("f")
    assert bodies(bench.queue().receive(10)) == ["b", "c", "f"]


@pytest.mark.spec("QUE-23", "STA-6", "STA-8", "PRF-4")
def test_counts_and_a_peek_tell_states_and_change_nothing(bench: Bench, clock):
    queue = bench.create()
    queue.send_batch([*batch("received", "waiting"), SendEntry("delayed", delay=10)])
    queue.receive()
    clock.advance(2)
    before = bench.versions()
    other = bench.queue()
    assert [(m.body, m.state, m.receive_count) for m in other.peek()] == [
        ("received", "in_flight", 1),
        ("waiting", "visible", 0),
        ("delayed", "delayed", 0),
    ]
    assert [m.body for m in other.peek(limit=2)] == ["received", "waiting"]
    counts = other.counts()
    assert (counts.visible, counts.in_flight, counts.delayed, counts.rewindable) == (1, 1, 1, 0)
    assert counts.oldest_age == 2
    wire = other.attributes()
    assert [wire[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")] == ["1"] * 3
    assert wire["QueueArn"].endswith(":orders")
    assert other.attributes([]) == {}
    assert bench.versions() == before
    clock.advance(28)
    assert [m.state for m in other.peek()] == ["visible"] * 3


@pytest.mark.spec("QUE-28")
def test_tags_are_added_overwritten_and_removed(bench: Bench):
    queue = bench.create(tags={"team": "blue"})
    bench.queue().set_tags({"Team": "red", "empty": ""}, team="green")
    assert queue.tags() == {"team": "green", "Team": "red", "empty": ""}
    queue.remove_tags("Team", "unknown")
    assert bench.queue().tags() == {"team": "green", "empty": ""}


@point_only
@pytest.mark.spec("QUE-11", "QUE-12", "NAM-9")
def test_queues_are_listed_by_name_in_pages(bench: Bench):
    for name in ["b", "a", "B", "c-1", "c-2"]:
        bench.create(name)
    lq = bench.open()
    assert [q.name for q in lq.list_queues()] == ["B", "a", "b", "c-1", "c-2"]
    assert [q.name for q in lq.list_queues("c-")] == ["c-1", "c-2"]
    pages, after = [], None
    while page := [q.name for q in lq.list_queues(limit=2, after=after)]:
        pages.append(page)
        after = page[-1]
    assert pages == [["B", "a"], ["b", "c-1"], ["c-2"]]
    lq.delete_queue("a")
    assert [q.name for q in bench.open().list_queues()] == ["B", "b", "c-1", "c-2"]


@point_only
@pytest.mark.spec("NAM-6", "NAM-7", "NAM-9")
def test_region_and_exact_name_together_make_a_queue(bench: Bench):
    bench.create("orders").send("lower")
    bench.create("Orders").send("upper")
    bench.open(region="r2", engine="point").create_queue("orders")
    there = bench.open(region="r2")
    there.queue("orders").send("there")
    with pytest.raises(errors.QueueDoesNotExist):
        there.queue("Orders")
    assert [q.name for q in there.list_queues()] == ["orders"]
    assert bodies(bench.queue("orders").receive(10)) == ["lower"]
    assert bodies(bench.queue("Orders").receive(10)) == ["upper"]
    assert bodies(bench.open(region="r2").queue("orders").receive(10)) == ["there"]


# --- shards


@pytest.mark.spec("INF-3", "INF-11", "BAT-2", "DLT-3")
def test_a_queue_of_three_shards_behaves_as_one(bench: Bench, clock):
    queue = bench.create(shards=3, max_inflight_messages=9)
    for number, text in enumerate("abc"):
        keep_to(queue, number)
        queue.send(text)
    other = bench.queue()
    keep_to(other, 1)
    clock.advance(1)
    other.send_batch(batch("d", "e", "f"))
    assert queue.counts().visible == 6
    first = bench.queue().receive(10)
    assert len(set(handles(first))) == len(first) == 5  # three of four in the second shard, for the cap
    clock.advance(15)
    keep, *gone = first
    assert not bench.queue().delete_batch(handles(gone)).failed
    rest = bench.queue().receive(10)
    assert bodies([*first, *rest]) == list("abcdef")
    clock.advance(15)
    assert bodies(bench.queue().receive(10)) == [keep.body]


@point_only
@pytest.mark.spec("INF-11", "QUE-21", "QUE-13", "PUR-1")
def test_caps_attributes_purge_and_deletion_reach_every_shard(bench: Bench):
    queue = bench.create(shards=3, max_inflight_messages=7, max_stored_messages=12)
    for number in range(12):
        queue.send(f"{number}")
    with pytest.raises(errors.OverLimit):
        queue.send("13")
    assert len(bench.queue().receive(100)) == 6
    with pytest.raises(errors.OverLimit):
        bench.queue().receive()
    queue.set_attributes(max_inflight_messages=12)
    assert len(bench.queue().receive(100)) == 6
    queue.purge()
    assert bench.queue().counts().in_flight == 0
    for _ in range(12):
        queue.send("again")
    assert len(bench.queue().receive(100)) == 12
    other = bench.queue()
    bench.open().delete_queue("orders")
    for _ in range(3):
        with pytest.raises(errors.QueueDoesNotExist):
            other.send("late")


# --- housekeeping changes no result


@pytest.mark.spec("DLT-7", "RCV-16", "DLT-6")
def test_segments_close_and_merge_and_nobody_notices(bench: Bench, monkeypatch, clock):
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 3)
    queue, other = bench.create(), bench.queue()
    texts = [f"{number}\n\t\U0001f600" for number in range(5)]
    attributes = {"binary": b"\x00\xff", "number": 1}
    for text in texts:
        queue.send(text, attributes=attributes, delay=5 if text == texts[3] else None)
    actions = bench.log_actions(f"q/{queue.key}/0/messages")
    assert any("remove" in action for action in actions), "nothing was merged"
    assert live_files(queue, messages_path) < 5
    assert len(other.receive(2)) == 2
    clock.advance(5)
    received = [*other.receive(1), *bench.queue().receive(10)]
    assert [m.body for m in received] == texts[2:]
    assert {m.message_attributes["binary"] for m in received} == {("Binary", b"\x00\xff")}
    assert {m.sent_at for m in received} == {clock.now() - timedelta(seconds=5)}


@pytest.mark.spec("DLT-7", "STA-5", "DEL-3")
def test_segments_of_deleted_messages_are_dropped_and_the_rest_stays(bench: Bench, monkeypatch):
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    queue, other = bench.create(), bench.queue()
    for text in numbered(3):
        queue.send(text)
    queue.delete_batch(handles(queue.receive(2)))
    for text in numbered(2, 3):
        queue.send(text)
    stored = sum(action["num_records"] for action in _adds(queue))
    assert stored == 3
    assert [m.body for m in other.receive(10)] == numbered(3, 2)
    assert [m.body for m in bench.queue().peek()] == numbered(3, 2)


def _adds(queue: Queue):
    import pyarrow as pa

    table = DeltaTable(messages_path(queue.runtime.root.path, queue.key, 0))
    return pa.table(table.get_add_actions(flatten=True)).to_pylist()


@pytest.mark.spec("DLT-7", "DLT-3")
def test_the_ledger_is_compacted_and_nobody_notices(bench: Bench, monkeypatch, clock):
    queue, other = bench.create(), bench.queue()
    queue.send_batch(batch(*numbered(12)))
    received = queue.receive(12)
    assert other.counts().in_flight == 12
    monkeypatch.setattr(ledger, "_LOOK_EVERY", 1)
    monkeypatch.setattr(ledger, "MAX_FILES", 1)
    monkeypatch.setattr(ledger, "RANGE_ROWS", 2)
    queue.delete_batch(handles(received[1::3]))
    for message in received[::6]:
        queue.change_visibility(message.receipt_handle, 60)
    commits = [
        action["commitInfo"]["operation"]
        for action in bench.log_actions(f"q/{queue.key}/0/receipts")
        if "commitInfo" in action
    ]
    assert commits[:3] == ["CREATE TABLE", "WRITE", "MERGE"]
    assert "WRITE" in commits[3:], "nothing was compacted"
    left = [m.body for index, m in enumerate(received) if index % 3 != 1]
    assert bodies(bench.queue().peek(limit=20)) == left
    assert (other.counts().in_flight, bench.queue().counts().in_flight) == (8, 8)
    other.delete(received[6].receipt_handle)
    clock.advance(30)
    assert bodies(other.receive(20)) == [m for m in left if m not in ("0000", "0006")]
    clock.advance(30)
    assert "0000" in bodies(bench.queue().receive(20))


@point_only
@pytest.mark.spec("DLT-7", "RCV-15")
def test_merges_of_one_process_hinder_no_send_of_another(bench: Bench, monkeypatch):
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 2)
    here, there = bench.create(), bench.queue()

    def send(queue, start):
        for text in numbered(40, start):
            queue.send(text)

    calls = [Call(bench.clock, lambda: send(here, 0)), Call(bench.clock, lambda: send(there, 1000))]
    assert [call.join() for call in calls] == [None, None]
    assert bodies(bench.queue().receive(1000)) == numbered(40) + numbered(40, 1000)
    assert live_files(here, messages_path) < 40


# --- leases, without DataFrames


@pytest.mark.spec("RCV-3", "VIS-9", "DLT-3")
def test_a_lease_settles_all_its_messages_at_once(bench: Bench, clock):
    queue = bench.create()
    queue.send_batch(batch(*numbered(50)))
    lease = bench.queue().lease(40, visibility_timeout=10)
    assert (lease.message_count, lease.visible_at) == (40, clock.now() + timedelta(seconds=10))
    assert lease.extend(100).done == 40
    clock.advance(99)
    assert bench.queue().counts().in_flight == 40
    before = bench.versions()
    assert lease.delete().done == 40
    after = bench.versions()
    assert sum(after.values()) - sum(before.values()) == 1
    assert bodies(bench.queue().receive(100)) == numbered(10, 40)
    with pytest.raises(errors.LeaseLost):
        lease.release()
    assert bench.queue().lease() is None


# --- waiting


def after(clock, call: Call, seconds: float) -> Call:
    """Waits until the call waits, then lets time pass."""
    clock.wait_for_waiters()
    clock.advance(seconds)
    return call


@pytest.mark.spec("LPL-1", "LPL-5", "LPL-6", "RCV-4")
def test_a_long_poll_returns_with_the_first_message_that_comes(bench: Bench, clock):
    queue = bench.create()
    started = clock.now()
    call = after(clock, Call(clock, lambda: queue.receive(10, wait_time=10)), 4)
    queue.send("A")
    assert bodies(call.join()) == ["A"]
    assert call.ended_at - started == timedelta(seconds=4)
    clock.advance(29.9)
    assert queue.receive() == []
    clock.advance(0.1)
    assert bodies(queue.receive(10, wait_time=20)) == ["A"]


@pytest.mark.spec("LPL-1", "RCV-14")
def test_a_long_poll_for_nothing_ends_with_its_wait(bench: Bench, clock):
    queue = bench.create(receive_wait_time=2)
    started = clock.now()
    before = bench.versions()
    call = after(clock, Call(clock, queue.receive), 5)
    assert call.join() == []
    assert call.ended_at - started == timedelta(seconds=2)
    assert bench.versions() == before


@point_only
@pytest.mark.spec("LPL-1", "LPL-6", "DLT-4")
def test_a_long_poll_finds_soon_what_another_process_sends(bench: Bench, clock):
    queue, other = bench.create(), bench.queue()
    call = after(clock, Call(clock, lambda: queue.receive(10, wait_time=10)), 4)
    other.send("A")
    sent_at = clock.now()
    clock.advance(1)
    assert bodies(call.join()) == ["A"]
    assert call.ended_at - sent_at <= timedelta(seconds=0.5)


@point_only
@pytest.mark.spec("LPL-4", "LPL-6")
@pytest.mark.parametrize("hidden_by", ["a delay", "a visibility timeout", "retention at the cap"])
def test_a_long_poll_wakes_at_the_instant_a_message_becomes_available(bench: Bench, clock, hidden_by):
    queue = bench.create(max_inflight_messages=1, message_retention_period=60)
    if hidden_by == "a delay":
        queue.send("A", delay=3.0625)
    elif hidden_by == "a visibility timeout":
        queue.send("A")
        queue.receive(visibility_timeout=3.0625)
    else:
        queue.send("old")
        clock.advance(60 - 3.0625)
        queue.receive(visibility_timeout=1000)
        queue.send("A")
    started = clock.now()
    call = after(clock, Call(clock, lambda: queue.receive(10, wait_time=10)), 10)
    assert bodies(call.join()) == ["A"]
    assert call.ended_at - started == timedelta(seconds=3.0625)


@point_only
@pytest.mark.spec("INF-7")
def test_a_long_poll_at_the_cap_waits_for_room(bench: Bench, clock):
    queue = bench.create(profile="sqs", max_inflight_messages=1)
    queue.send_batch(batch("a", "b"))
    (a,) = queue.receive()
    with pytest.raises(errors.OverLimit):
        queue.receive()
    call = after(clock, Call(clock, lambda: queue.receive(wait_time=5)), 3)
    queue.delete(a.receipt_handle)
    assert bodies(call.join()) == ["b"]
    call = after(clock, Call(clock, lambda: queue.receive(wait_time=5)), 6)
    assert call.join() == []


@point_only
@pytest.mark.spec("INF-7")
def test_a_long_poll_at_the_cap_of_2018_is_refused_when_its_wait_ends(bench: Bench, clock):
    queue = bench.create(profile="sqs-2018", max_inflight_messages=1)
    queue.send_batch(batch("a", "b"))
    queue.receive()
    started = clock.now()
    call = after(clock, Call(clock, lambda: queue.receive(wait_time=5)), 6)
    assert isinstance(call.join(), errors.OverLimit)
    assert call.ended_at - started == timedelta(seconds=5)


@point_only
@pytest.mark.spec("LPL-1", "LPL-4", "LPL-5", "LPL-6")
def test_tasks_wait_without_threads_and_share_what_comes(bench: Bench, clock):
    queue = bench.create()

    async def scenario():
        started = clock.now()
        ended = []

        async def one():
            messages = await queue.receive_async(1, wait_time=10)
            ended.append((clock.now() - started).total_seconds())
            return messages

        tasks = [asyncio.create_task(one()) for _ in range(3)]
        await clock.advance_async(4)
        await asyncio.to_thread(queue.send, "A")
        await clock.advance_async(0)
        assert ended == [4]
        await asyncio.to_thread(queue.send, "B", 3)
        await clock.advance_async(10)
        got = [bodies(task.result()) for task in tasks]
        assert sorted(got) == [[], ["A"], ["B"]]
        assert ended == [4, 7, 10]

    asyncio.run(scenario())


@point_only
@pytest.mark.spec("LPL-1")
def test_a_task_that_is_cancelled_leaves_no_waiter_behind(bench: Bench, clock):
    queue = bench.create()

    async def scenario():
        task = asyncio.create_task(queue.receive_async(wait_time=20))
        await clock.advance_async(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert clock.waiting == 0
    assert queue.runtime.shards[0].shared.waiters.first is None
    queue.send("A")
    assert bodies(queue.receive()) == ["A"]


# --- refusals change nothing


class Refused:
    """Three queues in which something may be refused for each reason there is."""

    def __init__(self, bench: Bench, clock) -> None:
        self.bench, self.clock = bench, clock
        point = bench.open(engine="point")
        full = point.create_queue("full", profile="sqs", max_inflight_messages=1, max_stored_messages=3)
        full.purge()
        full.send_batch(batch("0", "1", "2"))
        full.delete(full.receive()[0].receipt_handle)
        self.older = full.receive(visibility_timeout=1)[0].receipt_handle
        clock.advance(1)
        self.latest = full.receive(visibility_timeout=3_000)[0].receipt_handle
        full.send("3")
        open_ = point.create_queue("open", profile="sqs-2018")
        open_.send_batch(batch("gone", "handed back"))
        gone, back = open_.receive(2)
        open_.delete(gone.receipt_handle)
        open_.change_visibility(back.receipt_handle, 0)
        self.gone, self.back = gone.receipt_handle, back.receipt_handle
        strict = point.create_queue("strict", profile="cmq", visibility_timeout=1)
        strict.send("A")
        self.ended = strict.receive()[0].receipt_handle
        clock.advance(1)
        point.create_queue("recent", profile="sqs")
        point.delete_queue("recent")
        lease_queue = point.create_queue("lease")
        lease_queue.send("A")
        self.lease = bench.open().queue("lease").lease(visibility_timeout=1)
        clock.advance(1)
        lease_queue.receive(visibility_timeout=3_000)
        self.lq = bench.open()
        self.full, self.open, self.strict = (self.lq.queue(name) for name in ("full", "open", "strict"))


ELSEWHERE = '{"deadLetterTargetArn": "nowhere", "maxReceiveCount": 5}'
REFUSALS = {
    "no such queue": ("QueueDoesNotExist", lambda r: r.lq.queue("none")),
    "deleting no queue": ("QueueDoesNotExist", lambda r: r.lq.delete_queue("none")),
    "name taken": (
        "QueueNameExists",
        lambda r: r.lq.create_queue("full", profile="sqs", visibility_timeout=1),
    ),
    "name taken in cmq": ("QueueNameExists", lambda r: r.lq.create_queue("strict", profile="cmq")),
    "name given up": ("QueueDeletedRecently", lambda r: r.lq.create_queue("recent", profile="sqs")),
    "bad name": ("InvalidParameterValue", lambda r: r.lq.create_queue("a b")),
    "fifo name": ("InvalidParameterValue", lambda r: r.lq.create_queue("a.fifo")),
    "unknown attribute": ("InvalidAttributeName", lambda r: r.lq.create_queue("new", colour="red")),
    "bad attribute": ("InvalidAttributeValue", lambda r: r.lq.create_queue("new", visibility_timeout=43_201)),
    "unknown profile": ("InvalidAttributeValue", lambda r: r.lq.create_queue("new", profile="rabbit")),
    "bad tag": ("InvalidParameterValue", lambda r: r.lq.create_queue("new", tags={"": "x"})),
    "redrive policy": ("InvalidParameterValue", lambda r: r.lq.create_queue("new", redrive_policy="{}")),
    "no dead-letter queue": ("QueueDoesNotExist", lambda r: r.open.set_attributes(redrive_policy=ELSEWHERE)),
    "rewind without a history": ("UnsupportedOperation", lambda r: r.open.rewind(r.lq.clock.now())),
    "page of none": ("InvalidParameterValue", lambda r: r.lq.list_queues(limit=0)),
    "page too long": ("InvalidParameterValue", lambda r: r.lq.list_queues(limit=1_001)),
    "no body": ("MissingParameter", lambda r: r.open.send("")),
    "body too long": ("InvalidParameterValue", lambda r: r.open.send("x" * 262_145)),
    "forbidden character": ("InvalidMessageContents", lambda r: r.open.send("\x01")),
    "half a character": ("InvalidMessageContents", lambda r: r.open.send("\ud800")),
    "delay too long": ("InvalidParameterValue", lambda r: r.open.send("a", delay=901)),
    "bad message attribute": ("InvalidParameterValue", lambda r: r.open.send("a", attributes={"a": ""})),
    "bad group": ("InvalidParameterValue", lambda r: r.full.send("a", group_id="a b")),
    "dedup id": ("InvalidParameterValue", lambda r: r.open.send("a", dedup_id="d")),
    "full": ("OverLimit", lambda r: r.full.send("a")),
    "empty batch": ("EmptyBatchRequest", lambda r: r.open.send_batch([])),
    "long batch": ("TooManyEntriesInBatchRequest", lambda r: r.open.send_batch(batch(*"0123456789a"))),
    "repeated id": ("BatchEntryIdsNotDistinct", lambda r: r.open.send_batch(batch("a", "b", id="x"))),
    "bad id": ("InvalidBatchEntryId", lambda r: r.open.send_batch([SendEntry("a", id="a b")])),
    "heavy batch": ("BatchRequestTooLong", lambda r: r.open.send_batch(batch(*["x" * 131_073] * 2))),
    "receive none": ("InvalidParameterValue", lambda r: r.open.receive(0)),
    "receive too many": ("InvalidParameterValue", lambda r: r.open.receive(11)),
    "hide too long": ("InvalidParameterValue", lambda r: r.open.receive(visibility_timeout=43_201)),
    "wait too long": ("InvalidParameterValue", lambda r: r.open.receive(wait_time=21)),
    "attempt id": ("InvalidParameterValue", lambda r: r.open.receive(attempt_id="a")),
    "all in flight": ("OverLimit", lambda r: r.full.receive()),
    "lease at the cap": ("OverLimit", lambda r: r.full.lease()),
    "lease of none": ("InvalidParameterValue", lambda r: r.open.lease(0)),
    "garbage handle": ("ReceiptHandleIsInvalid", lambda r: r.open.delete("garbage")),
    "foreign handle": ("ReceiptHandleIsInvalid", lambda r: r.open.delete(r.latest)),
    "tampered handle": ("ReceiptHandleIsInvalid", lambda r: r.full.delete(tampered(r.latest))),
    "change of a deleted one": ("InvalidParameterValue", lambda r: r.open.change_visibility(r.gone, 5)),
    "change by an older receipt": ("InvalidParameterValue", lambda r: r.full.change_visibility(r.older, 5)),
    "change too long": ("InvalidParameterValue", lambda r: r.full.change_visibility(r.latest, 43_200)),
    "change to nothing": ("MissingParameter", lambda r: r.full.change_visibility(r.latest, None)),
    "change of a visible one": ("MessageNotInflight", lambda r: r.open.change_visibility(r.back, 5)),
    "change after the end": ("MessageNotInflight", lambda r: r.strict.change_visibility(r.ended, 5)),
    "delete after the end": ("InvalidParameterValue", lambda r: r.strict.delete(r.ended)),
    "no deletes": ("EmptyBatchRequest", lambda r: r.open.delete_batch([])),
    "too many deletes": ("TooManyEntriesInBatchRequest", lambda r: r.open.delete_batch(["x"] * 11)),
    "no changes": ("EmptyBatchRequest", lambda r: r.open.change_visibility_batch([])),
    "lost lease": ("LeaseLost", lambda r: r.lease.delete()),
    "purge again": ("PurgeQueueInProgress", lambda r: r.full.purge()),
    "set unknown": ("InvalidAttributeName", lambda r: r.open.set_attributes(QueueName="x")),
    "set read-only": ("InvalidAttributeName", lambda r: r.open.set_attributes(QueueArn="x")),
    "set out of range": ("InvalidAttributeValue", lambda r: r.open.set_attributes(delay=901)),
    "set fixed": ("InvalidAttributeName", lambda r: r.open.set_attributes(profile="lake")),
    "get unknown": ("InvalidAttributeName", lambda r: r.open.attributes(["Colour"])),
    "peek at none": ("InvalidParameterValue", lambda r: r.open.peek(limit=0)),
    "peek by a statement": ("InvalidParameterValue", lambda r: r.open.peek("true; DROP TABLE messages")),
    "tag too long": ("InvalidParameterValue", lambda r: r.open.set_tags({"k": "v" * 257})),
}


def tampered(handle: str) -> str:
    return handle[:-1] + ("0" if handle[-1] != "0" else "1")


@pytest.mark.spec("ERR-8", "ERR-1", "ERR-3", "SND-16", "BAT-7", "RCP-9", "RCP-15")
@pytest.mark.timeout(120)
def test_what_is_refused_changes_no_table(bench: Bench, clock):
    refused = Refused(bench, clock)
    before = bench.versions()
    wrong = {}
    for reason, (code, operation) in REFUSALS.items():
        try:
            operation(refused)
            wrong[reason] = "was not refused"
        except errors.LakeQueueError as error:
            if type(error).__name__ != code:
                wrong[reason] = repr(error)
        if bench.versions() != before:
            wrong[reason] = f"{wrong.get(reason, '')} changed {before} to {bench.versions()}"
            before = bench.versions()
    assert wrong == {}


@pytest.mark.spec("ERR-6", "ERR-8")
def test_every_error_of_the_service_is_among_the_refusals():
    elsewhere = {"RequestThrottled", "ResourceNotFoundException", "InvalidIdFormat"}
    assert set(errors.SERVICE_ERRORS) - elsewhere <= {code for code, _ in REFUSALS.values()}


# --- trouble with the storage


def table_class(bench: Bench):
    return type(bench.open().runtime.engine.open(f"{bench.root}/queues"))


@pytest.mark.core
@pytest.mark.spec("SND-17", "ERR-9", "DLT-1")
def test_a_commit_that_landed_but_raised_is_not_made_again(bench: Bench, monkeypatch):
    queue = bench.create()
    table = table_class(bench)
    failed = []

    def landing(name):
        plain = getattr(table, name)

        def raises(self, *args):
            plain(self, *args)
            failed.append(name)
            raise OSError("the answer was lost")

        monkeypatch.setattr(table, name, raises)

    landing("append")
    landing("merge")
    queue.send("A")
    (m,) = queue.receive(10)
    assert bench.queue().counts().in_flight == 1
    queue.delete(m.receipt_handle)
    assert failed == ["append", "merge", "merge"]
    assert bench.queue().peek() == []


@point_only
@pytest.mark.spec("ERR-2", "ERR-8", "SND-17")
def test_a_commit_that_fails_is_an_error_of_the_client_and_leaves_nothing(bench: Bench, monkeypatch):
    queue = bench.create()
    queue.send("A")
    before = bench.versions()

    def fails(self, *args):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        for name in ("append", "merge"):
            patch.setattr(table_class(bench), name, fails)
        for verb in (lambda: queue.send("B"), queue.receive, lambda: queue.set_attributes(delay=5)):
            with pytest.raises(errors.QueueClientError, match="no space left") as caught:
                verb()
            assert not caught.value.outcome_unknown
    assert bench.versions() == before
    queue.send("C")
    assert bodies(queue.receive(10)) == ["A", "C"]


@point_only
@pytest.mark.spec("ERR-2", "DEL-7", "RCP-10")
def test_a_commit_whose_outcome_is_unknown_says_so_and_may_be_repeated(bench: Bench, monkeypatch):
    queue = bench.create()
    queue.send("A")
    (m,) = queue.receive()
    table = table_class(bench)
    plain = table.merge

    def lands_and_raises(self, *args):
        plain(self, *args)
        raise OSError("the answer was lost")

    def unreachable(self, *args):
        raise OSError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(table, "merge", lands_and_raises)
        patch.setattr(table, "landed", unreachable)
        with pytest.raises(errors.QueueClientError, match="unknown") as caught:
            queue.delete(m.receipt_handle)
    assert caught.value.outcome_unknown
    queue.delete(m.receipt_handle)
    assert bench.queue().peek() == []


@point_only
@pytest.mark.spec("ERR-9", "ERR-8")
def test_a_race_lost_again_and_again_ends_in_a_refusal_that_changed_nothing(bench: Bench, monkeypatch):
    queue = bench.create()
    queue.send("A")
    before = bench.versions()

    def loses(self, *args):
        raise LostRace("another commit was faster")

    with monkeypatch.context() as patch:
        patch.setattr(shard_service, "ATTEMPTS", 3)
        patch.setattr(commit, "_REPEATS", 2)
        for name in ("append", "merge"):
            patch.setattr(table_class(bench), name, loses)
        for verb in (lambda: queue.send("B"), queue.receive):
            with pytest.raises(errors.RequestThrottled):
                verb()
    assert bench.versions() == before
    assert bodies(queue.receive(10)) == ["A"]


@point_only
@pytest.mark.spec("ERR-2", "ERR-8")
def test_a_root_of_a_newer_layout_is_left_alone(bench: Bench):
    bench.create()
    DeltaTable(f"{bench.root}/queues").update({"layout_version": "99"})
    before = bench.versions()
    lq = bench.open()
    for verb in (
        lambda: lq.queue("orders"),
        lambda: lq.list_queues(),
        lambda: lq.create_queue("other"),
        lambda: lq.delete_queue("orders"),
    ):
        with pytest.raises(errors.QueueClientError, match="99"):
            verb()
    assert bench.versions() == before


@pytest.mark.spec("ERR-2")
def test_only_create_makes_a_root(lq: LakeQueue, bench: Bench):
    for verb in (lambda: lq.queue("orders"), lambda: lq.list_queues(), lambda: lq.delete_queue("orders")):
        with pytest.raises(errors.QueueClientError, match="does not exist"):
            verb()
    assert not Path(bench.root).exists()


@point_only
@pytest.mark.spec("ERR-2", "ERR-8")
def test_a_root_that_holds_something_else_is_left_alone(lq: LakeQueue, bench: Bench):
    Path(bench.root).mkdir()
    (Path(bench.root) / "notes.txt").write_text("mine")
    for verb in (lambda: lq.create_queue("orders"), lambda: lq.queue("orders"), lambda: lq.list_queues()):
        with pytest.raises(errors.QueueClientError, match="holds"):
            verb()
    assert os.listdir(bench.root) == ["notes.txt"]


@point_only
@pytest.mark.spec("ERR-2")
def test_a_root_that_cannot_be_written_is_an_error_of_the_client(bench: Bench, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "root"):
        lq = LakeQueue(str(root), clock=bench.clock)
        with pytest.raises(errors.QueueClientError, match="file") as caught:
            lq.create_queue("orders")
        assert "\n" not in str(caught.value)
        with pytest.raises(errors.QueueClientError):
            lq.list_queues()


@point_only
@pytest.mark.spec("ERR-2")
def test_tables_that_vanished_are_an_error_of_the_client(bench: Bench):
    import shutil

    queue = bench.create()
    shutil.rmtree(f"{bench.root}/q/{queue.key}")
    for verb in (
        lambda: bench.queue().send("A"),
        lambda: bench.queue().receive(),
        lambda: bench.queue().counts(),
    ):
        with pytest.raises(errors.QueueClientError):
            verb()


@point_only
@pytest.mark.spec("RCP-3", "RCP-9", "RCP-15")
def test_a_handle_with_any_character_changed_opens_nothing(bench: Bench):
    queue = bench.create()
    bench.create("other")
    queue.send("A")
    (m,) = queue.receive()
    wrong = [
        m.message_id,
        "",
        m.receipt_handle.upper(),
        m.receipt_handle + " ",
        *(_changed(m.receipt_handle, place) for place in range(len(m.receipt_handle))),
    ]
    before = bench.versions()
    other = bench.queue()
    for handle in wrong:
        with pytest.raises(errors.ReceiptHandleIsInvalid):
            other.delete(handle)
    with pytest.raises(errors.ReceiptHandleIsInvalid):
        bench.queue("other").change_visibility(m.receipt_handle, 5)
    assert bench.versions() == before
    other.delete(m.receipt_handle)
    assert bench.queue().peek() == []


def _changed(text: str, place: int) -> str:
    return text[:place] + ("1" if text[place] != "1" else "2") + text[place + 1 :]


@point_only
@pytest.mark.spec("DLT-1")
def test_calls_that_wait_for_a_commit_go_into_the_next_one_together(bench: Bench):
    queue = bench.create()
    queue.send_batch(batch(*numbered(20)))
    received = queue.receive(20)
    before = bench.versions()
    go = threading.Barrier(20)

    def delete(handle):
        go.wait(20)
        queue.delete(handle)

    calls = [Call(bench.clock, lambda h=handle: delete(h)) for handle in handles(received)]
    assert [call.join() for call in calls] == [None] * 20
    after = bench.versions()
    assert sum(after.values()) - sum(before.values()) < 15
    assert bench.queue().peek() == []


@point_only
@pytest.mark.spec("DLT-3")
def test_the_ledger_has_one_head_row_for_each_shard(bench: Bench):
    queue = bench.create(shards=2)
    for shard in range(2):
        keep_to(queue, shard)
        queue.send("a")
        queue.receive()
    for shard in range(2):
        rows = DeltaTable(receipts_path(bench.root, queue.key, shard)).to_pyarrow_table(
            columns=["first_offset", "last_offset", "state"]
        )
        head, run = sorted(tuple(row.values()) for row in rows.to_pylist())
        assert head == (-1, -1, "head") and run[2] == "in_flight"


@pytest.mark.spec("PUR-2", "ERR-8")
@point_only
def test_a_purge_that_was_cut_short_between_shards_can_be_repeated(bench: Bench) -> None:
    queue = bench.create(shards=3)
    for number in range(6):
        queue.send(str(number))
    last = queue.runtime.shards[-1]
    last.command([Purge(queue.name, at_any_time=True)], queue.runtime.now)  # as far as the first call got
    queue.purge()
    assert queue.counts().visible == 0
    with pytest.raises(errors.PurgeQueueInProgress):
        queue.purge()
