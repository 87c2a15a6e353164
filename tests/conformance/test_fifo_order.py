"""Order in groups, blocked groups, and groups on several shards."""

from __future__ import annotations

import itertools
import zlib
from datetime import timedelta

import pytest

from concurrency.harness import at_once
from conformance.fifo import (
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
from conformance.harness import Call, long_on_s3
from lakequeue import Queue, SendEntry


@pytest.mark.spec("FIF-1", "FIF-3", "FIF-4", "FIF-5", "FIF-6", "FIF-7", "FIF-8", "DEL-5", "DLT-3")
def test_a_group_comes_in_order_and_waits_while_any_of_it_is_in_flight(fifo: FifoHarness):
    send(fifo.create(), "A1", "B1", "A2", "A3", "B2", "A4", "C1")
    a1, a2, a3 = fifo.queue().receive(3)
    assert bodies([a1, a2, a3]) == ["A1", "A2", "A3"]
    assert bodies(fifo.queue().receive(10)) == ["B1", "B2", "C1"]
    delete(fifo.queue(), a1, a3)
    assert fifo.queue().receive(10) == []
    delete(fifo.queue(), a2)
    assert bodies(fifo.queue().receive(10)) == ["A4"]


@pytest.mark.spec("FIF-12", "FIF-14", "QTA-10")
def test_a_thousand_groups_live_in_one_queue(fifo: FifoHarness):
    queue = fifo.create()
    entries = [
        SendEntry(f"{group}/{turn}", group_id=f"g{group}", dedup_id=f"{group}/{turn}")
        for turn in range(3)
        for group in range(1_000)
    ]
    assert len(queue.send_batch(entries).successful) == 3_000
    first = fifo.queue().receive(10)
    assert bodies(first) == [f"{group}/{turn}" for group in range(4) for turn in range(3)][:10]
    delete(fifo.queue(), *first[:9])
    rest = fifo.queue().receive(3_000)
    assert bodies(rest) == [f"{group}/{turn}" for group in range(4, 1_000) for turn in range(3)]
    delete(queue, first[9])
    assert bodies(fifo.queue().receive(10)) == ["3/1", "3/2"]


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


@long_on_s3
@pytest.mark.spec("FIF-16", "FIF-11", "EXM-2")
@pytest.mark.parametrize(
    "story",
    [
        {"user-1": ["cd /tmp", "rm notes", "ls"], "user-2": ["ls", "exit"]},
        {"product-7": ["price 10", "price 12", "price 11"]},
        {"student-1": ["register", "enrol"], "student-2": ["register", "enrol"], "student-3": ["register"]},
    ],
    ids=["commands", "prices", "registrations"],
)
def test_what_belongs_together_is_worked_on_in_order(fifo: FifoHarness, story):
    queue = fifo.create()
    for turn in range(3):
        for group, steps in story.items():
            if turn < len(steps):
                queue.send(steps[turn], group_id=group, dedup_id=f"{group} {turn}".replace(" ", "-"))
    done: dict[str, list[str]] = {}
    failed = False
    while messages := fifo.queue().receive(1):
        step = messages[0]
        if step.body in ("rm notes", "price 12", "enrol") and not failed:
            failed = True  # the consumer gives it back, and nothing overtakes it
            fifo.queue().change_visibility(step.receipt_handle, 0)
            fifo.clock.advance(1)
            continue
        done.setdefault(step.group_id or "", []).append(step.body)
        delete(fifo.queue(), step)
    assert failed and done == story


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


@pytest.mark.spec("SEQ-5", "DDP-12")
def test_messages_of_standard_queues_have_no_number_and_no_deduplication_id(fifo: FifoHarness):
    queue = fifo.create("orders")
    assert queue.send("a", group_id="A").sequence_number is None
    assert queue.send_batch([SendEntry("b")]).successful[0].sequence_number is None
    for message in fifo.queue("orders").receive(10):
        assert (message.sequence_number, message.dedup_id) == (None, None)
        assert not {"SequenceNumber", "MessageDeduplicationId"} & set(message.attributes)


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
@pytest.mark.spec("SND-8", "SND-9", "SEQ-3", "FIF-11")
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


@pytest.mark.spec("FIF-4", "FIF-5", "FIF-8", "DEL-5", "DLT-3")
def test_a_lease_blocks_its_groups_until_it_is_settled(fifo: FifoHarness, clock):
    send(fifo.create(), *numbered("A", 4), "B1")
    lease = fifo.queue().lease(3, visibility_timeout=10)
    assert lease.message_count == 3
    assert bodies(fifo.queue().receive(10)) == ["B1"]
    assert lease.extend(100).done == 3
    clock.advance(99)
    assert lease.delete().done == 3
    assert bodies(fifo.queue().receive(10)) == ["B1", "A4"]
