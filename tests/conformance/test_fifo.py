"""FIFO queues through the tables: groups of one and of several shards, repeated receives, deduplication ids."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import zlib
from datetime import timedelta

import pytest

from concurrency.harness import at_once
from conformance.fifo import (
    NAME,
    FifoHarness,
    bodies,
    delete,
    drain,
    entry,
    group_of,
    numbered,
    send,
    shard_of,
)
from conformance.harness import Call, handles, long_on_s3
from lakequeue import LakeQueue, Message, Queue, SendEntry, errors
from lakequeue.storage import ledger
from lakequeue.testing import ManualClock


@pytest.mark.spec("INF-10", "FIF-7")
def test_a_backlog_of_a_blocked_group_hides_no_group_behind_it(fifo: FifoHarness):
    queue = fifo.create()
    send(queue, *numbered("A", 5_000))
    queue.receive(1)
    send(queue, "B1")
    assert bodies(fifo.queue().receive(10)) == ["B1"]
    send(queue, "C1")
    assert bodies(queue.receive(10)) == ["C1"]


@pytest.mark.spec("FIF-1", "FIF-12", "FIF-13")
def test_groups_that_lie_far_apart_in_the_log_keep_their_order(fifo: FifoHarness):
    send(fifo.create(), *[f"{group}{turn}" for turn in range(1, 2_001) for group in "ABC"])
    received = [m for count in (10, 6_000) for m in fifo.queue().receive(count, visibility_timeout=0)]
    assert bodies(received[:10]) == numbered("A", 10)
    everything = received[10:]
    assert all(group_of(everything, group) == numbered(group, 2_000) for group in "ABC")


@pytest.mark.spec("BAT-6", "BAT-8", "SEQ-1", "SEQ-2", "SEQ-3", "SEQ-4", "SEQ-6", "DDP-12", "SND-3", "DDP-8")
def test_a_batch_keeps_its_order_and_its_numbers_reach_the_consumer(fifo: FifoHarness):
    first = send(fifo.create(), "A1", "B1", "A2", "A1", "B2")
    assert first[3].message_id == first[0].message_id
    assert first[3].sequence_number == first[0].sequence_number
    later = fifo.queue().send("A3", group_id="A", dedup_id="A3")
    numbers = [int(first[n].sequence_number) for n in (0, 1, 2, 4)] + [int(later.sequence_number)]
    assert all(number > 10**18 and len(str(number)) == 20 for number in numbers)
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert min(gaps) > 0 and set(gaps) != {1}
    received = fifo.queue().receive(10)
    assert bodies(received) == ["A1", "A2", "A3", "B1", "B2"]
    assert [m.attributes["SequenceNumber"] for m in received] == [str(numbers[n]) for n in (0, 2, 4, 1, 3)]
    assert [m.attributes["MessageDeduplicationId"] for m in received] == bodies(received)
    assert [m.attributes["MessageGroupId"] for m in received] == ["A"] * 3 + ["B"] * 2
    assert {m.receive_count for m in received} == {1}


@pytest.mark.spec("SEQ-6", "DLT-7")
def test_numbers_go_on_when_all_messages_are_gone_and_purged(fifo: FifoHarness, clock):
    queue = fifo.create()
    last = int(send(queue, "A1", "A2")[-1].sequence_number)
    drain(queue)
    for number, emptied in enumerate([fifo.queue().purge, lambda: clock.advance(10**6)]):
        emptied()
        after = int(send(fifo.queue(), f"A{number}")[0].sequence_number)
        assert after > last
        last = after


@long_on_s3
@pytest.mark.spec("SND-8", "SND-9", "SEQ-3", "FIF-11", "FIF-16", "EXM-2")
def test_threads_that_send_to_one_group_have_the_order_of_their_arrival(fifo: FifoHarness):
    here = fifo.create()
    there = fifo.queue()

    def produce(queue: Queue, thread: str) -> list[str]:
        # to the group of all, and to one of its own
        for number in range(25):
            queue.send(f"{thread}{number}", group_id="all", dedup_id=f"{thread}{number}")
        return bodies_of(queue.send_batch([entry(f"{thread}{n}", f"own{thread}{n}") for n in range(25)]))

    def bodies_of(result) -> list[str]:
        return [success.sequence_number for success in result.successful]

    own = at_once([lambda q=queue, t=t: produce(q, t) for queue, t in zip([here, there] * 2, "ABCD", strict=True)])
    drained = drain(fifo.queue())
    shared = [m for m in drained if m.group_id == "all"]
    assert len(shared) == len({m.body for m in shared}) == 100
    numbers = [int(m.sequence_number or 0) for m in shared]
    assert numbers == sorted(set(numbers))
    for thread, sequence in zip("ABCD", own, strict=True):
        ordered = [f"{thread}{number}" for number in range(25)]
        assert [m.body for m in shared if m.body[0] == thread] == ordered
        assert group_of(drained, thread) == ordered
        assert [m.sequence_number for m in drained if m.group_id == thread] == sequence


@pytest.mark.spec("LPL-4", "DEL-5", "LPL-6")
@pytest.mark.parametrize("where", ["in this process", "in another process"])
def test_a_waiting_receive_ends_when_its_group_becomes_free(fifo: FifoHarness, clock, where):
    queue, other = fifo.create(), fifo.queue()
    send(queue, "A1", "A2", "A3")
    a1, a2 = queue.receive(2)
    started = clock.now()
    call = Call(clock, lambda: queue.receive(10, wait_time=20)).after(4)
    settling = queue if where == "in this process" else other
    delete(settling, a1)
    clock.advance(1)
    assert call.thread.is_alive()
    delete(settling, a2)
    clock.advance(1)
    assert bodies(call.join()) == ["A3"]
    late = call.ended_at - started - timedelta(seconds=5)
    poll = timedelta(seconds=1 if fifo.root.startswith("s3://") else 0.5)
    assert late <= (timedelta() if where == "in this process" else poll)


@pytest.mark.spec("DDP-14", "FIF-1", "SEQ-3", "SEQ-4", "BAT-6", "DLT-3")
def test_groups_of_two_shards_keep_order_ids_and_numbers(fifo: FifoHarness):
    queue = fifo.create(deduplication_scope="message_group", shards=2)
    sent = send(queue, "A1", "D1", "A2", "D2")
    assert [shard_of(s) for s in sent] == [zlib.crc32(group) % 2 for group in (b"A", b"D", b"A", b"D")]
    assert len({shard_of(s) for s in sent}) == 2
    result = fifo.queue().send_batch([entry("D1"), entry("A3", "A1"), entry("D3", "A1")])
    assert [s.message_id for s in result.successful[:2]] == [sent[1].message_id, sent[0].message_id]
    received = fifo.queue().receive(10)
    assert group_of(received, "A") == ["A1", "A2"]
    assert group_of(received, "D") == ["D1", "D2", "D3"]
    numbers = {m.message_id: m.sequence_number for m in received}
    assert numbers == {s.message_id: s.sequence_number for s in [*sent, result.successful[2]]}


# --- what they share with standard queues


TEXT = "This is my message text."


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


# --- receives that are retried with their attempt id


@pytest.mark.spec("ATT-1", "LPL-1")
def test_a_waiting_receive_takes_an_attempt_id_and_a_task_retries_it(fifo: FifoHarness, clock):
    queue = fifo.create()
    call = Call(clock, lambda: queue.receive(10, wait_time=10, attempt_id="x")).after(4)
    send(queue, "A1", "A2")
    found = call.join()
    assert bodies(found) == ["A1", "A2"]
    assert asyncio.run(fifo.queue().receive_async(10, wait_time=10, attempt_id="x")) == found


@pytest.mark.spec("DLT-7", "ATT-3", "FIF-14", "DLT-3")
def test_the_ledger_is_compacted_and_attempts_and_turns_stay(fifo: FifoHarness, clock, monkeypatch):
    queue = fifo.create()
    send(queue, *[group + turn for turn in "12" for group in "ABCDEF"])
    clock.advance(1)
    lost = queue.receive(4, attempt_id="x")
    assert bodies(lost) == ["A1", "A2", "B1", "B2"]
    monkeypatch.setattr(ledger, "_CHECK_EVERY", 1)
    monkeypatch.setattr(ledger, "MAX_FILES", 1)
    monkeypatch.setattr(ledger, "RANGE_ROWS", 2)
    for _ in range(2):
        delete(queue, *queue.receive(1))  # C1, then D1
        clock.advance(1)
    commits = [
        action["commitInfo"]["operation"]
        for action in fifo.log_actions(f"q/{queue.key}/0/receipts")
        if "commitInfo" in action
    ]
    assert "WRITE" in commits[commits.index("MERGE") :], "nothing was compacted"
    assert fifo.queue().receive(1, attempt_id="x") == lost
    assert bodies(fifo.queue().receive(10)) == ["E1", "E2", "F1", "F2", "C2", "D2"]


@long_on_s3
@pytest.mark.spec("ATT-1", "ATT-3", "ATT-8", "ATT-11", "DLT-3")
def test_attempt_ids_find_their_shard(fifo: FifoHarness, clock):
    queue = fifo.create(deduplication_scope="message_group", shards=4)
    send(queue, *[group + turn for turn in "12" for group in "ABCDEFGH"])
    seen: dict[str, list[Message]] = {}
    for id in ("x", "y", "z"):
        seen[id] = fifo.queue().receive(3, attempt_id=id)
        assert len({shard_of(m) for m in seen[id]}) == 1
    assert len({m.message_id for messages in seen.values() for m in messages}) == sum(map(len, seen.values()))
    clock.advance(20)
    for id in ("z", "x", "y"):
        assert fifo.queue().receive(10, attempt_id=id) == seen[id]
    delete(fifo.queue(), seen["x"][0])
    other = fifo.queue().receive(1, attempt_id="x")
    assert not set(handles(other)) & set(handles(seen["x"]))
    left = []
    while messages := fifo.queue().receive(10, visibility_timeout=1000):
        left += messages
    received = [*itertools.chain(*seen.values()), *other, *left]
    assert len({m.message_id for m in received}) == len(received)
    assert queue.receive(10, attempt_id="v") == []


# --- deduplication ids


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


@pytest.mark.spec("DDP-1", "DLT-1", "QTA-9")
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
def test_the_hash_of_the_body_is_the_id_of_a_row_without_an_id(fifo: FifoHarness):
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
