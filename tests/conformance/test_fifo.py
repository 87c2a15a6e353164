"""What a FIFO queue does, through the public API: order, blocked groups, deduplication and attempt ids.

Messages are named by their group: ``A2`` is the second one of group ``A``. Most scenarios look at the result
through an entry that knows nothing yet, as another process would.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from concurrency.rig import at_once, log_rows, small_segments
from conformance.bench import Bench, Call, point_only
from lakequeue import LakeQueue, Lease, Message, Queue, SendEntry, errors
from lakequeue.storage import ledger
from lakequeue.storage.messages import merge_segments
from lakequeue.testing import ManualClock

NAME = "orders.fifo"
TEXT = "This is my message text."


class FifoBench(Bench):
    """A bench whose queue is a FIFO queue, unless a test asks for another."""

    def create(self, name: str = NAME, **attributes) -> Queue:
        return super().create(name, **({"fifo": True} if name.endswith(".fifo") else {}), **attributes)

    def queue(self, name: str = NAME) -> Queue:
        return super().queue(name)


@pytest.fixture
def bench(lq: LakeQueue, clock: ManualClock) -> FifoBench:
    return FifoBench(lq.root, clock, lq.runtime.engine.name, lq.spark)


def entry(text: str, dedup_id: str | None = None, **fields) -> SendEntry:
    return SendEntry(text, group_id=text[0], dedup_id=dedup_id or text, **fields)


def send(queue: Queue, *texts: str):
    """A batch of messages, each in the group of its first letter, its text being its deduplication id."""
    result = queue.send_batch([entry(text) for text in texts])
    assert not result.failed
    return result.successful


def bodies(messages: Sequence[Message]) -> list[str]:
    """In the order of delivery, which matters here."""
    return [message.body for message in messages]


def handles(messages: Sequence[Message]) -> list[str]:
    return [message.receipt_handle for message in messages]


def delete(queue: Queue, *messages: Message) -> None:
    assert not queue.delete_batch(handles(messages)).failed


def drain(queue: Queue) -> list[Message]:
    """Everything there is, received and deleted ten at a time."""
    drained = []
    while messages := queue.receive(10):
        drained += messages
        delete(queue, *messages)
    return drained


def numbered(group: str, count: int, start: int = 1) -> list[str]:
    return [f"{group}{number}" for number in range(start, start + count)]


def group_of(messages: Sequence[Message], group: str) -> list[str]:
    return [message.body for message in messages if message.group_id == group]


# --- order within groups, and groups that wait


@pytest.mark.core
@pytest.mark.spec("FIF-1", "FIF-3", "FIF-4", "FIF-5", "FIF-6", "FIF-7", "FIF-8", "DEL-5", "DLT-3")
def test_a_group_comes_in_order_and_waits_while_any_of_it_is_in_flight(bench: FifoBench):
    send(bench.create(), "A1", "B1", "A2", "A3", "B2", "A4", "C1")
    a1, a2, a3 = bench.queue().receive(3)
    assert bodies([a1, a2, a3]) == ["A1", "A2", "A3"]
    assert bodies(bench.queue().receive(10)) == ["B1", "B2", "C1"]
    delete(bench.queue(), a1, a3)
    assert bench.queue().receive(10) == []
    delete(bench.queue(), a2)
    assert bodies(bench.queue().receive(10)) == ["A4"]


@point_only
@pytest.mark.spec("FIF-3", "FIF-4", "RCV-6", "DEL-5")
def test_two_consumers_get_the_messages_of_one_group_one_by_one(bench: FifoBench, clock):
    here = bench.create()
    there = bench.queue()
    send(here, *numbered("A", 3))
    (a1,) = here.receive()
    assert there.receive() == here.receive() == []
    clock.advance(30)
    (again,) = there.receive()
    assert (again.body, again.message_id, again.receive_count) == ("A1", a1.message_id, 2)
    assert here.receive() == []
    delete(there, again)
    (a2,) = here.receive()
    assert there.receive() == []
    delete(here, a2)
    assert bodies(there.receive(10)) == ["A3"]


@point_only
@pytest.mark.spec("FIF-6", "FIF-7", "RCV-2")
def test_a_receive_fills_up_with_the_next_groups(bench: FifoBench):
    queue = bench.create()
    send(queue, *numbered("A", 3), *numbered("B", 9), *numbered("C", 2))
    assert bodies(bench.queue().receive(2)) == numbered("A", 2)
    assert bodies(bench.queue().receive(10)) == [*numbered("B", 9), "C1"]
    assert bench.queue().receive(10) == []
    send(queue, "A4", "D1", "C3", "D2")
    assert bodies(bench.queue().receive(10)) == ["D1", "D2"]


@point_only
@pytest.mark.spec("FIF-9", "FIF-10", "VIS-4", "DLT-3")
def test_a_group_is_delivered_up_to_its_first_hidden_message(bench: FifoBench, clock):
    send(bench.create(), *numbered("A", 4))
    a1, a2, a3 = bench.queue().receive(3, visibility_timeout=10)
    bench.queue().change_visibility(a1.receipt_handle, 0)
    bench.queue().change_visibility(a3.receipt_handle, 40)
    assert bodies(bench.queue().receive(10, visibility_timeout=5)) == ["A1"]
    clock.advance(10)
    assert bodies(bench.queue().receive(10)) == ["A1", "A2"]
    clock.advance(30)
    assert bodies(bench.queue().receive(10)) == ["A1", "A2", "A3", "A4"]


@point_only
@pytest.mark.spec("FIF-10")
def test_of_several_in_flight_the_extended_one_holds_back_those_behind_it(bench: FifoBench, clock):
    send(bench.create(), *numbered("A", 3))
    _, a2, _ = bench.queue().receive(3, visibility_timeout=1)
    bench.queue().change_visibility(a2.receipt_handle, 4)
    clock.advance(2.5)
    (a1,) = bench.queue().receive(5)
    assert a1.body == "A1"
    delete(bench.queue(), a1)
    assert bench.queue().receive(5) == []
    clock.advance(1.5)
    assert bodies(bench.queue().receive(5)) == ["A2", "A3"]


@point_only
@pytest.mark.spec("FIF-18", "RCV-12")
def test_a_timeout_of_zero_keeps_the_order_and_frees_the_groups_at_once(bench: FifoBench, clock):
    send(bench.create(), "A1", "A2", "B1")
    for count in (1, 2):
        received = bench.queue().receive(10, visibility_timeout=0)
        assert bodies(received) == ["A1", "A2", "B1"]
        assert {m.receive_count for m in received} == {count}
        clock.advance(count)


@pytest.mark.spec("FIF-14", "FIF-18", "DLT-3")
def test_the_turns_of_groups_lie_in_the_table(bench: FifoBench, clock):
    send(bench.create(), "A1", "A2", "B1", "B2", "C1")
    clock.advance(1)
    assert bodies(bench.queue().receive(1, visibility_timeout=0)) == ["A1"]
    (b1,) = bench.queue().receive(1)
    clock.advance(1)
    delete(bench.queue(), b1)
    assert bodies(bench.queue().receive(10)) == ["C1", "A1", "A2", "B2"]


@point_only
@pytest.mark.spec("FIF-14", "DLT-3")
def test_a_group_that_was_served_or_handed_back_goes_behind_those_that_wait(bench: FifoBench, clock):
    send(bench.create(), *numbered("A", 4), *numbered("B", 2))
    clock.advance(1)
    (a1,) = bench.queue().receive(1)
    bench.queue().change_visibility(a1.receipt_handle, 0)
    assert bodies(bench.queue().receive(3, visibility_timeout=0)) == ["B1", "B2", "A1"]
    clock.advance(1)
    served = bench.queue().receive(2)
    assert bodies(served) == ["A1", "A2"]
    delete(bench.queue(), *served)
    (b1,) = bench.queue().receive(1)
    assert b1.body == "B1"
    clock.advance(1)
    delete(bench.queue(), b1)
    assert bodies(bench.queue().receive(10)) == ["A3", "A4", "B2"]


@point_only
@pytest.mark.spec("FIF-14", "DEL-5", "DLT-4")
def test_a_delete_sends_its_group_behind_others_that_came_through_another_process(bench: FifoBench, clock):
    here = bench.create()
    there = bench.queue()
    send(here, "A1")
    (a1,) = here.receive()
    for text in ("A2", "B1"):
        clock.advance(1)
        send(there, text)
    clock.advance(1)
    delete(here, a1)
    assert bodies(there.receive(10)) == ["B1", "A2"]


@point_only
@pytest.mark.spec("FIF-14", "RCV-16")
@pytest.mark.parametrize("same_process", [True, False])
def test_no_group_starves_beside_one_that_never_ends(bench: FifoBench, clock, same_process):
    queue = bench.create()
    send(queue, *numbered("A", 5), *numbered("B", 3), *numbered("C", 2))
    served = []
    for number in range(6, 15):
        clock.advance(1)
        queue = queue if same_process else bench.queue()
        (message,) = queue.receive()
        served.append(message.body)
        delete(queue, message)
        send(queue, f"A{number}")
    assert served == ["A1", "B1", "C1", "A2", "B2", "C2", "A3", "B3", "A4"]


@point_only
@pytest.mark.spec("FIF-12", "FIF-14", "QTA-10")
def test_a_thousand_groups_live_in_one_queue(bench: FifoBench):
    queue = bench.create()
    entries = [
        SendEntry(f"{group}/{turn}", group_id=f"g{group}", dedup_id=f"{group}/{turn}")
        for turn in range(3)
        for group in range(1_000)
    ]
    assert len(queue.send_batch(entries).successful) == 3_000
    first = bench.queue().receive(10)
    assert bodies(first) == [f"{group}/{turn}" for group in range(4) for turn in range(3)][:10]
    delete(bench.queue(), *first[:9])
    rest = bench.queue().receive(3_000)
    assert bodies(rest) == [f"{group}/{turn}" for group in range(4, 1_000) for turn in range(3)]
    delete(queue, first[9])
    assert bodies(bench.queue().receive(10)) == ["3/1", "3/2"]


@point_only
@pytest.mark.spec("INF-10", "FIF-7")
def test_a_backlog_of_a_blocked_group_hides_no_group_behind_it(bench: FifoBench):
    queue = bench.create()
    send(queue, *numbered("A", 5_000))
    queue.receive(1)
    send(queue, "B1")
    assert bodies(bench.queue().receive(10)) == ["B1"]
    send(queue, "C1")
    assert bodies(queue.receive(10)) == ["C1"]


@point_only
@pytest.mark.spec("FIF-1", "FIF-12", "FIF-13")
def test_groups_that_lie_far_apart_in_the_log_keep_their_order(bench: FifoBench):
    send(bench.create(), *[f"{group}{turn}" for turn in range(1, 2_001) for group in "ABC"])
    received = [m for count in (10, 6_000) for m in bench.queue().receive(count, visibility_timeout=0)]
    assert bodies(received[:10]) == numbered("A", 10)
    everything = received[10:]
    assert all(group_of(everything, group) == numbered(group, 2_000) for group in "ABC")


@point_only
@pytest.mark.spec("FIF-13", "FIF-15", "DDP-17", "RCV-9")
@pytest.mark.parametrize("name", ["orders", NAME])
def test_a_consumer_drains_either_kind_of_queue_and_gets_each_message_once(bench: FifoBench, name):
    queue = bench.create(name)
    texts = [group + str(number) for number in range(1, 18) for group in "ABC"]
    for text in texts:
        queue.send(text, group_id=text[0], **({"dedup_id": text} if queue.fifo else {}))
    drained = drain(bench.queue(name))
    assert sorted(bodies(drained)) == sorted(texts)
    assert len({m.message_id for m in drained}) == len(texts)
    if queue.fifo:
        assert all(group_of(drained, group) == numbered(group, 17) for group in "ABC")
    assert bench.queue(name).peek() == []
    with pytest.raises(TypeError):
        queue.receive(group_id="A")  # type: ignore[call-arg]


@point_only
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
def test_what_belongs_together_is_worked_on_in_order(bench: FifoBench, story):
    queue = bench.create()
    for turn in range(3):
        for group, steps in story.items():
            if turn < len(steps):
                queue.send(steps[turn], group_id=group, dedup_id=f"{group} {turn}".replace(" ", "-"))
    done: dict[str, list[str]] = {}
    failed = False
    while messages := bench.queue().receive(1):
        step = messages[0]
        if step.body in ("rm notes", "price 12", "enrol") and not failed:
            failed = True  # the consumer gives it back, and nothing overtakes it
            bench.queue().change_visibility(step.receipt_handle, 0)
            bench.clock.advance(1)
            continue
        done.setdefault(step.group_id or "", []).append(step.body)
        delete(bench.queue(), step)
    assert failed and done == story


# --- senders


@point_only
@pytest.mark.spec("SND-7", "FIF-1", "FIF-11", "SEQ-2", "SEQ-4")
def test_single_sends_of_one_group_come_out_in_their_order(bench: FifoBench):
    queue = bench.create()
    sent = [queue.send(f"A{n}", group_id="A", dedup_id=f"{n}") for n in range(20)]
    drained = drain(bench.queue())
    assert bodies(drained) == [f"A{n}" for n in range(20)]
    assert [m.message_id for m in drained] == [s.message_id for s in sent]
    assert [m.sequence_number for m in drained] == [s.sequence_number for s in sent]


@pytest.mark.spec("BAT-6", "BAT-8", "SEQ-1", "SEQ-2", "SEQ-3", "SEQ-4", "SEQ-6", "DDP-12", "SND-3", "DDP-8")
def test_a_batch_keeps_its_order_and_its_numbers_reach_the_consumer(bench: FifoBench):
    first = send(bench.create(), "A1", "B1", "A2", "A1", "B2")
    assert first[3].message_id == first[0].message_id
    assert first[3].sequence_number == first[0].sequence_number
    later = bench.queue().send("A3", group_id="A", dedup_id="A3")
    numbers = [int(first[n].sequence_number) for n in (0, 1, 2, 4)] + [int(later.sequence_number)]
    assert all(number > 10**18 and len(str(number)) == 20 for number in numbers)
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert min(gaps) > 0 and set(gaps) != {1}
    received = bench.queue().receive(10)
    assert bodies(received) == ["A1", "A2", "A3", "B1", "B2"]
    assert [m.attributes["SequenceNumber"] for m in received] == [str(numbers[n]) for n in (0, 2, 4, 1, 3)]
    assert [m.attributes["MessageDeduplicationId"] for m in received] == bodies(received)
    assert [m.attributes["MessageGroupId"] for m in received] == ["A"] * 3 + ["B"] * 2
    assert {m.receive_count for m in received} == {1}


@point_only
@pytest.mark.spec("SEQ-5", "DDP-12")
def test_messages_of_standard_queues_have_no_number_and_no_deduplication_id(bench: FifoBench):
    queue = bench.create("orders")
    assert queue.send("a", group_id="A").sequence_number is None
    assert queue.send_batch([SendEntry("b")]).successful[0].sequence_number is None
    for message in bench.queue("orders").receive(10):
        assert (message.sequence_number, message.dedup_id) == (None, None)
        assert not {"SequenceNumber", "MessageDeduplicationId"} & set(message.attributes)


@point_only
@pytest.mark.spec("SEQ-6", "DLT-7")
def test_numbers_go_on_when_all_messages_are_gone_and_purged(bench: FifoBench, clock):
    queue = bench.create()
    last = int(send(queue, "A1", "A2")[-1].sequence_number)
    drain(queue)
    for number, emptied in enumerate([bench.queue().purge, lambda: clock.advance(10**6)]):
        emptied()
        after = int(send(bench.queue(), f"A{number}")[0].sequence_number)
        assert after > last
        last = after


@point_only
@pytest.mark.spec("SND-8", "SND-9", "SEQ-3")
def test_threads_that_send_to_one_group_have_the_order_of_their_arrival(bench: FifoBench):
    here = bench.create()
    there = bench.queue()

    def produce(queue: Queue, thread: str) -> list[str]:
        # to the group of all, and to one of its own
        for number in range(25):
            queue.send(f"{thread}{number}", group_id="all", dedup_id=f"{thread}{number}")
        return bodies_of(queue.send_batch([entry(f"{thread}{n}", f"own{thread}{n}") for n in range(25)]))

    def bodies_of(result) -> list[str]:
        return [success.sequence_number for success in result.successful]

    own = at_once([lambda q=queue, t=t: produce(q, t) for queue, t in zip([here, there] * 2, "ABCD", strict=True)])
    drained = drain(bench.queue())
    shared = [m for m in drained if m.group_id == "all"]
    assert len(shared) == len({m.body for m in shared}) == 100
    numbers = [int(m.sequence_number or 0) for m in shared]
    assert numbers == sorted(set(numbers))
    for thread, sequence in zip("ABCD", own, strict=True):
        ordered = [f"{thread}{number}" for number in range(25)]
        assert [m.body for m in shared if m.body[0] == thread] == ordered
        assert group_of(drained, thread) == ordered
        assert [m.sequence_number for m in drained if m.group_id == thread] == sequence


@point_only
@pytest.mark.spec("SND-10", "EXM-9", "DDP-9")
def test_a_producer_that_retries_adds_and_reorders_nothing(bench: FifoBench, clock):
    first = send(bench.create(), "A1", "A2")
    for _ in range(5):
        clock.advance(50)
        (again,) = send(bench.queue(), "A1")
        assert (again.message_id, again.sequence_number) == (first[0].message_id, first[0].sequence_number)
    assert bodies(drain(bench.queue())) == ["A1", "A2"]


@point_only
@pytest.mark.spec("SND-16", "BAT-4", "ERR-8")
def test_a_send_that_is_refused_leaves_its_deduplication_id_free(bench: FifoBench):
    queue = bench.create(max_stored_messages=2)
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
    assert bench.queue().send_batch([entry("A3", "d")]).failed[0].code == "OverLimit"
    delete(queue, *queue.receive(1))
    bench.queue().send("A4", group_id="A", dedup_id="d")
    bench.queue().send("A5", group_id="A", dedup_id="A2")  # a duplicate needs no room
    assert bodies(bench.queue().receive(10)) == ["A2", "A4"]


# --- deduplication


@pytest.mark.spec("DDP-1", "QTA-9", "DDP-2", "DDP-3", "DDP-8", "DDP-9", "DDP-11", "DLT-3")
def test_an_id_counts_for_five_minutes_from_its_first_send_in_every_process(bench: FifoBench, clock):
    first = bench.create().send("A1", group_id="A", dedup_id="d")
    clock.advance(200)
    delete(bench.queue(), *bench.queue().receive())
    clock.advance(99.999999)
    again = bench.queue().send("other", group_id="B", dedup_id="d")
    assert (again.message_id, again.sequence_number) == (first.message_id, first.sequence_number)
    assert again.md5_of_body == hashlib.md5(b"other", usedforsecurity=False).hexdigest()
    assert bench.queue().receive() == []
    clock.advance(0.000001)
    later = bench.queue().send("A2", group_id="A", dedup_id="d")
    assert int(later.sequence_number) > int(first.sequence_number)
    assert bodies(bench.queue().receive(10)) == ["A2"]


@point_only
@pytest.mark.spec("DDP-9", "DDP-1")
@pytest.mark.parametrize("same_process", [True, False])
def test_duplicates_do_not_prolong_the_window(bench: FifoBench, clock, same_process):
    queue = bench.create()
    counts = []
    for seconds in (0, 100, 100, 99, 1, 299, 1):
        clock.advance(seconds)
        queue = queue if same_process else bench.queue()
        queue.send("A", group_id="A", dedup_id="d")
        counts.append(queue.counts().visible)
    assert counts == [1, 1, 1, 1, 2, 2, 3]


@point_only
@pytest.mark.spec("DDP-1", "DLT-1")
def test_a_window_is_measured_on_the_clock_of_the_queue(bench: FifoBench, clock):
    queue = bench.create()
    late = bench.open()
    late.runtime.clock = ManualClock(clock.now() - timedelta(hours=1))
    send(queue, "A1")
    send(late.queue(NAME), "A1", "A2")
    assert bodies(bench.queue().peek()) == ["A1", "A2"]
    clock.advance(299)
    send(queue, "A1", "A2")
    assert bodies(bench.queue().peek()) == ["A1", "A2"]
    clock.advance(1)
    send(queue, "A3")
    send(late.queue(NAME), "A1", "A2")
    assert bodies(bench.queue().peek()) == ["A1", "A2", "A3", "A1", "A2"]


@pytest.mark.spec("DDP-4", "DDP-5", "DDP-6", "DDP-7", "DDP-12", "MSA-6", "QUE-9", "SND-5")
def test_the_hash_of_the_body_is_the_id_where_none_is_given(bench: FifoBench):
    queue = bench.create(content_based_deduplication=True)
    first = queue.send(TEXT, group_id="A", attributes={"a": 1})
    again = bench.queue().send(TEXT, group_id="B", attributes={"b": b"2"})
    assert again.message_id == first.message_id
    assert again.md5_of_message_attributes != first.md5_of_message_attributes
    given = queue.send_batch([SendEntry(TEXT, group_id="A", dedup_id=id) for id in ("x", "y", "x")])
    assert len({s.message_id for s in given.successful}) == 2
    hashed = hashlib.sha256(TEXT.encode()).hexdigest()
    assert hashed == "92b3693fce932bbbff0f6795ab3cc33a9c0a51c264160e90507fd8ea8ba2e598"
    assert bench.queue().send("other", group_id="A", dedup_id=hashed).message_id == first.message_id
    received = bench.queue().receive(10)
    assert [(m.body, m.dedup_id) for m in received] == [(TEXT, hashed), (TEXT, "x"), (TEXT, "y")]
    assert set(received[0].message_attributes) == {"a"}


@point_only
@pytest.mark.spec("QUE-9", "DDP-4", "SND-5", "QUE-25")
def test_content_based_deduplication_can_be_switched(bench: FifoBench):
    here, there = bench.create(), bench.queue()
    assert here.attributes(["ContentBasedDeduplication"]) == {"ContentBasedDeduplication": "false"}
    here.set_attributes(content_based_deduplication=True)
    there.send("a", group_id="A")
    assert there.attributes(["ContentBasedDeduplication"]) == {"ContentBasedDeduplication": "true"}
    there.set_attributes(ContentBasedDeduplication="false")
    with pytest.raises(errors.InvalidParameterValue, match="ContentBasedDeduplication"):
        here.send("b", group_id="A")
    assert bodies(bench.queue().receive(10)) == ["a"]


@pytest.mark.spec("DDP-13", "PUR-5", "PUR-1", "PUR-3", "DLT-3")
def test_a_purge_clears_groups_and_deduplication_ids(bench: FifoBench, clock):
    queue = bench.create()
    other = bench.queue()
    first = send(queue, "A1", "A2", "B1")
    send(other, "A1")
    queue.receive(1)
    other.purge()
    second = send(bench.queue(), "A2", "A1", "A2")
    assert second[2].message_id == second[0].message_id
    assert not {s.message_id for s in second} & {s.message_id for s in first}
    third = send(queue, "A1", "B1")  # its window holds what it sent itself before the purge
    assert third[0].message_id == second[1].message_id
    assert bodies(bench.queue().receive(10)) == ["A2", "A1", "B1"]
    clock.advance(299)
    send(bench.queue(), "A2", "B1")
    assert bench.queue().counts().visible == 3


@point_only
@pytest.mark.spec("QUE-3", "QUE-13", "DDP-3")
def test_a_queue_that_is_made_again_knows_no_ids_of_the_old_one(bench: FifoBench):
    dead = bench.create()
    old = send(dead, "A1")
    bench.open().delete_queue(NAME)
    new = send(bench.create(), "A1")
    with pytest.raises(errors.QueueDoesNotExist):
        send(dead, "A1")
    assert new[0].message_id != old[0].message_id
    assert bodies(bench.queue().receive(10)) == ["A1"]


@point_only
@pytest.mark.spec("DDP-14", "DDP-15", "QUE-25", "DLT-3")
def test_the_scope_is_the_message_group_if_the_queue_was_created_so(bench: FifoBench, clock):
    queue = bench.create(deduplication_scope="message_group", FifoThroughputLimit="perMessageGroupId")
    scopes = ["DeduplicationScope", "FifoThroughputLimit"]
    wire = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    assert bench.queue().attributes(scopes) == wire
    sent = [queue.send("1", group_id=group, dedup_id="d") for group in "AB"]
    again = [bench.queue().send("2", group_id=group, dedup_id="d") for group in "AB"]
    assert [s.message_id for s in again] == [s.message_id for s in sent]
    bench.queue().set_attributes(DeduplicationScope="queue", fifo_throughput_limit="per_queue")
    assert queue.attributes(["DeduplicationScope"]) == {"DeduplicationScope": "queue"}
    assert queue.send("3", group_id="C", dedup_id="d").message_id not in {s.message_id for s in sent}
    clock.advance(299)
    assert bench.queue().send("4", group_id="B", dedup_id="d").message_id == sent[1].message_id
    assert [(m.group_id, m.body) for m in bench.queue().receive(10)] == [("A", "1"), ("B", "1"), ("C", "3")]


@point_only
@pytest.mark.spec("DDP-2", "DDP-14", "DDP-15")
def test_a_scope_that_is_changed_later_is_shown_and_has_no_effect(bench: FifoBench):
    queue = bench.create()
    assert queue.attributes(["DeduplicationScope"]) == {"DeduplicationScope": "queue"}
    queue.set_attributes(deduplication_scope="messageGroup", fifo_throughput_limit="perMessageGroupId")
    shown = bench.queue().attributes()
    assert (shown["DeduplicationScope"], shown["FifoThroughputLimit"]) == ("messageGroup", "perMessageGroupId")
    assert "CreatedDeduplicationScope" not in shown
    ids = {q.send(g, group_id=g, dedup_id="d").message_id for q in (queue, bench.queue()) for g in "AB"}
    assert len(ids) == 1
    assert bodies(bench.queue().receive(10)) == ["A"]


@point_only
@pytest.mark.spec("DDP-10", "DDP-8", "DDP-17", "SND-17")
@pytest.mark.parametrize("processes", [1, 2])
def test_senders_of_one_id_at_once_store_one_message(bench: FifoBench, processes):
    entries = [bench.create(), bench.queue()][:processes]
    calls = [
        lambda q=queue, n=n: q.send(f"A{n}", group_id="A", dedup_id="d")
        for n, queue in zip(range(16), itertools.cycle(entries))
    ]
    sent = at_once(calls)
    assert len({s.message_id for s in sent}) == len({s.sequence_number for s in sent}) == 1
    assert [row.message_id for row in log_rows(entries[0])] == [sent[0].message_id]
    (message,) = bench.queue().receive(10)
    assert sent[int(message.body[1:])].md5_of_body == message.md5_of_body


# --- time: delay, retention, caps


@point_only
@pytest.mark.spec("DLY-8", "DLY-10", "FIF-19", "QUE-10", "SND-6", "DLY-7", "DLT-3")
def test_the_delay_of_the_queue_holds_for_all_that_was_never_received(bench: FifoBench, clock):
    queue = bench.create(delay=10)
    queue.send("A1", group_id="A", dedup_id="1", delay=0)
    send(queue, "A2", "B1")
    clock.advance(9.999)
    assert bench.queue().receive(10) == []
    assert bench.queue().counts().delayed == 3
    clock.advance(0.001)
    assert bodies(bench.queue().receive(1, visibility_timeout=0)) == ["A1"]
    bench.queue().set_attributes(delay=100)
    assert bodies(bench.queue().receive(10, visibility_timeout=0)) == ["A1"]
    assert bench.queue().counts().delayed == 2
    queue.set_attributes(delay=12)
    clock.advance(1.999)
    assert bodies(bench.queue().receive(10, visibility_timeout=0)) == ["A1"]
    clock.advance(0.001)
    assert bodies(bench.queue().receive(10)) == ["A1", "A2", "B1"]


@point_only
@pytest.mark.spec("DLY-10", "FIF-14", "FIF-19")
def test_a_longer_delay_hides_again_what_a_delete_had_freed(bench: FifoBench, clock):
    send(bench.create(), *numbered("A", 3))
    clock.advance(1)
    delete(bench.queue(), *bench.queue().receive(1))
    assert bench.queue().counts().visible == 2
    bench.queue().set_attributes(delay=5)
    counts = bench.queue().counts()
    assert (counts.visible, counts.delayed) == (0, 2)
    clock.advance(3.999)
    assert bench.queue().receive(10) == []
    clock.advance(0.001)
    assert bodies(bench.queue().receive(10)) == ["A2", "A3"]


@point_only
@pytest.mark.spec("DLY-10")
def test_a_changed_delay_is_retroactive_on_fifo_queues_only(bench: FifoBench, clock):
    standard, fifo = bench.create("orders", delay=100), bench.create(delay=100)
    for queue in (standard, fifo):
        queue.send("A", group_id="A", **({"dedup_id": "A"} if queue.fifo else {}))
    clock.advance(1)
    for queue in (standard, fifo):
        queue.set_attributes(delay=5)
    clock.advance(3.999)
    assert bench.queue("orders").receive() == bench.queue().receive() == []
    clock.advance(0.001)
    assert bodies(bench.queue().receive()) == ["A"]
    clock.advance(94)
    assert bench.queue("orders").receive() == []
    clock.advance(1)
    assert bodies(bench.queue("orders").receive()) == ["A"]


@point_only
@pytest.mark.spec("RET-10", "RET-11", "RET-9", "DDP-3", "DDP-9", "DLT-7")
def test_expired_messages_free_their_group_and_their_ids_outlive_them(bench: FifoBench, clock, monkeypatch):
    small_segments(monkeypatch, commits=1)
    queue = bench.create(message_retention_period=60)
    first = send(queue, "A1", "B1")
    queue.receive(1, visibility_timeout=1000)
    clock.advance(30)
    send(queue, "A2")
    clock.advance(29.999)
    assert bodies(bench.queue().receive(10, visibility_timeout=0)) == ["B1"]
    clock.advance(0.001)
    delete(queue, *bench.queue().receive(10))
    clock.advance(60)
    again = send(bench.queue(), "A1", "C1")
    assert again[0].message_id == first[0].message_id
    assert bodies(bench.queue().receive(10)) == ["C1"]
    clock.advance(179.999)
    send(bench.queue(), "B1", "D1")
    assert {"A1", "B1"} <= {row.body for row in log_rows(queue)}, "a segment went before its ids were free"
    assert bodies(bench.queue().receive(10)) == ["D1"]
    clock.advance(0.001)
    send(bench.queue(), "A1", "B1")
    assert bodies(bench.queue().receive(10)) == ["A1", "B1"]


@point_only
@pytest.mark.spec("RET-11", "DLT-7", "DDP-1")
def test_old_segments_are_dropped_once_no_id_in_them_counts(bench: FifoBench, clock, monkeypatch):
    small_segments(monkeypatch, commits=1)
    queue = bench.create()
    for number in range(4):
        send(queue, f"A{number}")
    drain(queue)
    clock.advance(299)
    send(bench.queue(), "B1")
    send(bench.queue(), "A0", "A1", "A2", "A3")
    assert len(log_rows(queue)) == 5
    clock.advance(2)
    send(bench.queue(), "B2")
    left = {row.body for row in log_rows(queue)}
    assert not left & {"A0", "A1", "A2"}
    assert bodies(drain(bench.queue())) == ["B1", "B2"]


@point_only
@pytest.mark.spec("RET-10", "LPL-4")
def test_a_group_whose_head_expires_goes_on_with_the_rest(bench: FifoBench, clock):
    queue = bench.create(message_retention_period=60)
    send(queue, "A1")
    clock.advance(55)
    queue.receive(1, visibility_timeout=1000)
    send(queue, "A2")
    started = clock.now()
    call = Call(clock, lambda: queue.receive(10, wait_time=20)).after(20)
    assert bodies(call.join()) == ["A2"]
    assert call.ended_at - started == timedelta(seconds=5)


@pytest.mark.spec("INF-4", "INF-6", "PRF-3")
def test_a_full_queue_answers_nothing_and_no_error(bench: FifoBench):
    queue = bench.create(max_inflight_messages=3)
    send(queue, "A1", "B1", "C1", "D1", "D2")
    held = bench.queue().receive(2)
    assert bodies(bench.queue().receive(10)) == ["C1"]
    assert bench.queue().receive(10) == [] and queue.lease() is None
    delete(bench.queue(), *held)
    assert bodies(bench.queue().receive(10)) == ["D1", "D2"]
    assert bench.queue().receive() == []


@point_only
@pytest.mark.spec("INF-7", "INF-4")
@pytest.mark.parametrize("profile", ["lake", "sqs", "sqs-2018"])
def test_a_long_poll_at_the_cap_waits_for_room_and_refuses_nothing(bench: FifoBench, clock, profile):
    queue = bench.create(profile=profile, max_inflight_messages=1)
    send(queue, "A1", "B1", "C1")
    (a1,) = queue.receive()
    started = clock.now()
    call = Call(clock, lambda: queue.receive(wait_time=5)).after(3)
    delete(queue, a1)
    assert bodies(call.join()) == ["B1"]
    assert call.ended_at - started == timedelta(seconds=3)
    assert Call(clock, lambda: queue.receive(wait_time=5)).after(6).join() == []


@point_only
@pytest.mark.spec("INF-11", "INF-4", "RCV-15")
def test_the_cap_holds_among_receivers_of_two_processes(bench: FifoBench):
    here = bench.create(max_inflight_messages=5)
    there = bench.queue()
    send(here, *[f"{group}1" for group in "ABCDEFGHIJKL"])
    answers = at_once([lambda q=q: q.receive(2) for q in [here, there] * 4])
    received = bodies(list(itertools.chain(*answers)))
    assert len(received) == len(set(received)) == 5
    assert bench.queue().counts().in_flight == 5


@point_only
@pytest.mark.spec("PER-4", "QTA-4", "INF-4", "PRF-3")
def test_twenty_thousand_messages_are_in_flight_and_no_more(bench: FifoBench):
    names = {"sqs-2018": "20000", "sqs": "120000"}
    for profile, cap in names.items():
        made = bench.create(f"{profile}.fifo", profile=profile)
        assert made.attributes(["MaxInflightMessages"]) == {"MaxInflightMessages": cap}
    queue = bench.create(max_inflight_messages=20_000)
    entries = [SendEntry("x", group_id=f"g{n // 5}", dedup_id=f"{n}") for n in range(20_010)]
    assert len(queue.send_batch(entries).successful) == 20_010
    held = queue.receive(15_000)
    assert len(bench.queue().receive(15_000)) == 5_000
    assert bench.queue().receive(10) == []
    assert bench.queue().counts().in_flight == 20_000
    delete(bench.queue(), *held[:4])
    assert len(bench.queue().receive(10)) == 4


# --- attempt ids


@pytest.mark.spec("ATT-1", "ATT-2", "ATT-3", "ATT-8", "ATT-11", "DLT-3")
def test_a_retried_receive_answers_the_same_messages_and_handles_in_another_process(bench: FifoBench, clock):
    send(bench.create(), "A1", "B1", "A2", "B2", "C1")
    lost = bench.queue().receive(4, attempt_id="x")
    assert bodies(lost) == ["A1", "A2", "B1", "B2"]
    clock.advance(20)
    again = bench.queue().receive(1, attempt_id="x")
    assert again == lost
    assert bodies(bench.queue().receive(10, attempt_id="y")) == ["C1"]
    clock.advance(29.999)
    assert bench.queue().receive(10, attempt_id="z") == []
    assert bench.queue().counts().in_flight == 5
    delete(bench.queue(), *again)
    clock.advance(0.001)
    assert bodies(bench.queue().receive(10, attempt_id="x")) == ["C1"]


@point_only
@pytest.mark.spec("ATT-4")
def test_an_attempt_can_be_retried_for_five_minutes_from_its_first_receive(bench: FifoBench, clock):
    send(bench.create(), "A1", "A2", "B1")
    lost = bench.queue().receive(2, visibility_timeout=600, attempt_id="x")
    for seconds in (150, 149.999999):
        clock.advance(seconds)
        assert bench.queue().receive(2, visibility_timeout=600, attempt_id="x") == lost
    clock.advance(0.000001)
    assert bodies(bench.queue().receive(2, attempt_id="x")) == ["B1"]
    assert bodies(bench.queue().receive(2, attempt_id="x")) == ["B1"]
    delete(bench.queue(), *lost)  # the receipts live on


@point_only
@pytest.mark.spec("ATT-5", "ATT-11")
@pytest.mark.parametrize("change", ["delete", "shorten", "repeat", "hand back"])
def test_an_attempt_is_over_when_one_of_its_messages_was_touched(bench: FifoBench, clock, change):
    send(bench.create(), "A1", "A2", "B1", "C1", "C2")
    a1, a2, b1 = bench.queue().receive(3, attempt_id="x")
    if change == "delete":
        delete(bench.queue(), a1)
    else:
        timeout = {"shorten": 10, "repeat": 29, "hand back": 0}[change]
        clock.advance(1)
        bench.queue().change_visibility(a1.receipt_handle, timeout)
    fresh = bench.queue().receive(1, attempt_id="x")
    assert bodies(fresh) == ["C1"]
    assert bench.queue().receive(10, attempt_id="x") == fresh
    assert bodies(bench.queue().receive(10, attempt_id="y")) == (["A1"] if change == "hand back" else [])
    delete(bench.queue(), a2, b1)


@point_only
@pytest.mark.spec("ATT-6", "ATT-10")
def test_after_its_timeout_a_retry_is_a_receive_like_any_other(bench: FifoBench, clock):
    send(bench.create(), "A1", "A2")
    lost = bench.queue().receive(2, visibility_timeout=10, attempt_id="x")
    assert bench.queue().receive(2) == []
    clock.advance(10)
    fresh = bench.queue().receive(2, attempt_id="x")
    assert bodies(fresh) == ["A1", "A2"]
    assert {m.receive_count for m in fresh} == {2}
    assert not set(handles(fresh)) & set(handles(lost))
    assert bench.queue().receive(2, attempt_id="x") == fresh
    with pytest.raises(errors.InvalidParameterValue, match="expired"):
        bench.queue().delete(lost[0].receipt_handle)


@point_only
@pytest.mark.spec("ATT-1", "ATT-3")
def test_an_attempt_is_answered_by_the_shard_that_answered_it_first(bench: FifoBench):
    queue = bench.create(deduplication_scope="message_group", shards=2)
    by_shard = {zlib.crc32(group.encode()) % 2: group for group in "ABCDEFGH"}
    first_asked = zlib.crc32(b"x") % 2
    send(queue, f"{by_shard[1 - first_asked]}1")
    held = bench.queue().receive(10, attempt_id="x")
    assert len(held) == 1
    send(queue, f"{by_shard[first_asked]}1")
    assert bench.queue().receive(10, attempt_id="x") == held
    assert len(bench.queue().receive(10)) == 1


@point_only
@pytest.mark.spec("ATT-8")
def test_an_attempt_that_found_nothing_is_not_remembered(bench: FifoBench, clock):
    queue = bench.create()
    before = bench.versions()
    assert bench.queue().receive(10, attempt_id="x") == []
    assert bench.versions() == before
    send(queue, "A1")
    found = bench.queue().receive(10, attempt_id="x")
    assert bodies(found) == ["A1"]
    before = bench.versions()
    assert queue.receive(10, attempt_id="x") == found
    assert bench.versions() == before  # at the same instant nothing changes
    clock.advance(1)
    assert queue.receive(10, attempt_id="x") == found
    assert sum(bench.versions().values()) == sum(before.values()) + 1


@point_only
@pytest.mark.spec("ATT-3", "ATT-8", "INF-4", "RCV-12")
def test_a_retry_needs_no_room_and_a_timeout_of_zero_leaves_nothing_to_retry(bench: FifoBench):
    send(bench.create(max_inflight_messages=2), "A1", "A2", "A3")
    held = bench.queue().receive(10, attempt_id="x")
    assert bodies(held) == ["A1", "A2"]
    assert bench.queue().receive(10, attempt_id="x") == held
    assert bench.queue().receive(10, attempt_id="y") == []
    assert bench.queue().receive(10, visibility_timeout=0, attempt_id="x") == held
    again = bench.queue().receive(1, visibility_timeout=0, attempt_id="x")
    assert bodies(again) == ["A1"]
    assert again[0].receive_count == 2


@point_only
@pytest.mark.spec("ATT-9", "ATT-10", "VIS-15")
def test_an_attempt_id_spares_the_queue_a_pause_after_a_lost_receive(bench: FifoBench, clock):
    send(bench.create(visibility_timeout=3600), "A1", "A2")
    lost = bench.queue().receive(1)
    clock.advance(3599)
    assert bench.queue().receive(1) == []
    clock.advance(1)
    lost = bench.queue().receive(1, attempt_id="x")
    assert bodies(lost) == ["A1"]
    clock.advance(1)
    (a1,) = bench.queue().receive(1, attempt_id="x")
    delete(bench.queue(), a1)
    assert bodies(bench.queue().receive(1)) == ["A2"]


@point_only
@pytest.mark.spec("ATT-1", "ATT-4", "RET-10", "PUR-1")
def test_messages_that_are_gone_are_left_out_of_a_retry(bench: FifoBench, clock):
    queue = bench.create(message_retention_period=60)
    send(queue, "A1")
    clock.advance(30)
    send(queue, "A2", "B1")
    first = bench.queue().receive(2, visibility_timeout=300, attempt_id="x")
    clock.advance(30)
    assert bench.queue().receive(10, visibility_timeout=300, attempt_id="x") == first[1:]
    bench.queue().purge()
    send(queue, "A3")
    assert bodies(bench.queue().receive(10, attempt_id="x")) == ["A3"]


@point_only
@pytest.mark.spec("ATT-1", "LPL-1")
def test_a_waiting_receive_takes_an_attempt_id_and_a_task_retries_it(bench: FifoBench, clock):
    queue = bench.create()
    call = Call(clock, lambda: queue.receive(10, wait_time=10, attempt_id="x")).after(4)
    send(queue, "A1", "A2")
    found = call.join()
    assert bodies(found) == ["A1", "A2"]
    assert asyncio.run(bench.queue().receive_async(10, wait_time=10, attempt_id="x")) == found


@point_only
@pytest.mark.spec("DLT-7", "ATT-3", "FIF-14", "DLT-3")
def test_the_ledger_is_compacted_and_attempts_and_turns_stay(bench: FifoBench, clock, monkeypatch):
    queue = bench.create()
    send(queue, *[group + turn for turn in "12" for group in "ABCDEF"])
    clock.advance(1)
    lost = queue.receive(4, attempt_id="x")
    assert bodies(lost) == ["A1", "A2", "B1", "B2"]
    monkeypatch.setattr(ledger, "_LOOK_EVERY", 1)
    monkeypatch.setattr(ledger, "MAX_FILES", 1)
    monkeypatch.setattr(ledger, "RANGE_ROWS", 2)
    for _ in range(2):
        delete(queue, *queue.receive(1))  # C1, then D1
        clock.advance(1)
    commits = [
        action["commitInfo"]["operation"]
        for action in bench.log_actions(f"q/{queue.key}/0/receipts")
        if "commitInfo" in action
    ]
    assert "WRITE" in commits[3:], "nothing was compacted"
    assert bench.queue().receive(1, attempt_id="x") == lost
    assert bodies(bench.queue().receive(10)) == ["E1", "E2", "F1", "F2", "C2", "D2"]


# --- waiting for a group


@point_only
@pytest.mark.spec("LPL-4", "DEL-5", "LPL-6")
@pytest.mark.parametrize("where", ["in this process", "in another process"])
def test_a_waiting_receive_ends_when_its_group_becomes_free(bench: FifoBench, clock, where):
    queue, other = bench.create(), bench.queue()
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
    assert late <= timedelta(seconds=0 if where == "in this process" else 0.5)


@point_only
@pytest.mark.spec("LPL-4", "FIF-4", "FIF-9")
@pytest.mark.parametrize("until", ["the timeout ends", "the delay ends", "the message is handed back"])
def test_a_waiting_receive_ends_at_the_instant_its_group_is_visible(bench: FifoBench, clock, until):
    queue = bench.create(delay=3.0625 if until == "the delay ends" else 0)
    send(queue, "A1", "A2")
    held = queue.receive(1, visibility_timeout=3.0625 if until == "the timeout ends" else 100)
    started = clock.now()
    call = Call(clock, lambda: queue.receive(10, wait_time=10))
    if until == "the message is handed back":
        call.after(3.0625)
        queue.change_visibility(held[0].receipt_handle, 0)
    else:
        call.after(10)
    assert bodies(call.join()) == ["A1", "A2"]
    assert call.ended_at - started == timedelta(seconds=3.0625)


# --- several shards


def shard_of(message) -> int:
    """The sequence number tells the shard (it says nothing else)."""
    return (int(message.sequence_number) - 10**19) // 256 % 1_024


@pytest.mark.spec("DDP-14", "FIF-1", "SEQ-4", "BAT-6", "DLT-3")
def test_groups_of_two_shards_keep_order_ids_and_numbers(bench: FifoBench):
    queue = bench.create(deduplication_scope="message_group", shards=2)
    sent = send(queue, "A1", "D1", "A2", "D2")
    assert len({shard_of(s) for s in sent}) == 2
    result = bench.queue().send_batch([entry("D1"), entry("A3", "A1"), entry("D3", "A1")])
    assert [s.message_id for s in result.successful[:2]] == [sent[1].message_id, sent[0].message_id]
    received = bench.queue().receive(10)
    assert group_of(received, "A") == ["A1", "A2"]
    assert group_of(received, "D") == ["D1", "D2", "D3"]
    numbers = {m.message_id: m.sequence_number for m in received}
    assert numbers == {s.message_id: s.sequence_number for s in [*sent, result.successful[2]]}


@point_only
@pytest.mark.spec("DDP-14", "FIF-1", "FIF-4", "BAT-6", "SEQ-3", "DLT-3", "INF-1")
def test_a_group_stays_on_its_shard_and_keeps_its_order(bench: FifoBench, clock):
    queue = bench.create(deduplication_scope="message_group", shards=3)
    texts = [group + turn for turn in "123" for group in "ABCDEF"]
    sent = send(queue, *texts)
    assert [s.id for s in sent] == [str(n) for n in range(18)]
    assert [shard_of(s) for s in sent] == [zlib.crc32(text[0].encode()) % 3 for text in texts]
    assert len({shard_of(s) for s in sent}) > 1
    again = send(bench.queue(), "F1", "A4", "B4")
    assert again[0].message_id == sent[5].message_id
    assert bench.queue().counts().visible == 20
    received = bench.queue().receive(100)
    numbers = {m.message_id: m.sequence_number for m in received}
    assert all(numbers[s.message_id] == s.sequence_number for s in sent)
    for group in "ABCDEF":
        assert group_of(received, group) == numbered(group, 4 if group in "AB" else 3)
    send(bench.queue(), "A5", "C4", "D4")
    assert bench.queue().receive(100) == []
    delete(bench.queue(), *(m for m in received if m.group_id in "AC"))
    assert sorted(bodies(bench.queue().receive(100))) == ["A5", "C4"]
    assert bench.queue().counts().in_flight == 15


@point_only
@pytest.mark.spec("ATT-1", "ATT-3", "ATT-8", "ATT-11", "DLT-3")
def test_attempt_ids_find_their_shard(bench: FifoBench, clock):
    queue = bench.create(deduplication_scope="message_group", shards=4)
    send(queue, *[group + turn for turn in "12" for group in "ABCDEFGH"])
    seen: dict[str, list[Message]] = {}
    for id in ("x", "y", "z"):
        seen[id] = bench.queue().receive(3, attempt_id=id)
        assert len({shard_of(m) for m in seen[id]}) == 1
    assert len({m.message_id for messages in seen.values() for m in messages}) == sum(map(len, seen.values()))
    clock.advance(20)
    for id in ("z", "x", "y"):
        assert bench.queue().receive(10, attempt_id=id) == seen[id]
    delete(bench.queue(), seen["x"][0])
    other = bench.queue().receive(1, attempt_id="x")
    assert not set(handles(other)) & set(handles(seen["x"]))
    left = []
    while messages := bench.queue().receive(10, visibility_timeout=1000):
        left += messages
    received = [*itertools.chain(*seen.values()), *other, *left]
    assert len({m.message_id for m in received}) == len(received)
    assert queue.receive(10, attempt_id="v") == []


@point_only
@pytest.mark.spec("ATT-1", "ATT-3")
def test_retries_at_once_get_one_and_the_same_set(bench: FifoBench):
    queue = bench.create(deduplication_scope="message_group", shards=2)
    send(queue, *[group + turn for turn in "12" for group in "ABCDEFGH"])
    here, there = bench.queue(), bench.queue()
    answers = at_once([lambda q=q: q.receive(3, attempt_id="x") for q in [here, there] * 4])
    assert len({tuple(handles(messages)) for messages in answers}) == 1
    assert bench.queue().counts().in_flight == 3


@point_only
@pytest.mark.spec("INF-11", "INF-4", "PUR-1", "DDP-13", "QUE-13")
def test_cap_delay_purge_and_deletion_reach_every_shard(bench: FifoBench, clock):
    queue = bench.create(deduplication_scope="message_group", shards=2, max_inflight_messages=5)
    texts = [f"{group}1" for group in "ABCDEFGH"]
    send(queue, *texts)
    shards = Counter(zlib.crc32(text[0].encode()) % 2 for text in texts)
    assert len(bench.queue().receive(100)) == sum(min(2, count) for count in shards.values())
    assert bench.queue().receive(100) == []
    queue.set_attributes(delay=50, max_inflight_messages=100)
    assert bench.queue().counts().delayed == 8 - sum(min(2, count) for count in shards.values())
    bench.queue().purge()
    send(bench.queue(), *texts)
    clock.advance(50)
    assert sorted(bodies(bench.queue().receive(100))) == texts
    other = bench.queue()
    bench.open().delete_queue(NAME)
    for text in texts:
        with pytest.raises(errors.QueueDoesNotExist):
            send(other, text)


# --- leases


def leased(bench: FifoBench, count: int, **arguments) -> Lease:
    lease = bench.queue().lease(count, **arguments)
    assert lease is not None
    return lease


@pytest.mark.spec("FIF-4", "FIF-5", "FIF-8", "DEL-5", "DLT-3")
def test_a_lease_blocks_its_groups_until_it_is_settled(bench: FifoBench, clock):
    send(bench.create(), *numbered("A", 4), "B1")
    lease = leased(bench, 3, visibility_timeout=10)
    assert lease.message_count == 3
    assert bodies(bench.queue().receive(10)) == ["B1"]
    assert lease.extend(100).done == 3
    clock.advance(99)
    assert lease.delete().done == 3
    assert bodies(bench.queue().receive(10)) == ["B1", "A4"]


@point_only
@pytest.mark.spec("FIF-9", "VIS-4", "FIF-14")
def test_a_lease_gives_its_messages_back_in_order(bench: FifoBench, clock):
    send(bench.create(), *numbered("A", 3), *numbered("B", 3))
    lease = leased(bench, 4)
    clock.advance(1)
    assert lease.release().done == 4
    assert bodies(bench.queue().receive(10)) == [*numbered("A", 3), *numbered("B", 3)]


@point_only
@pytest.mark.spec("FIF-9", "FIF-8", "FIF-14", "ATT-5")
def test_a_lease_that_keeps_failed_messages_hands_them_back_before_their_successors(bench: FifoBench, clock):
    queue = bench.create()
    send(queue, *numbered("A", 4), *numbered("B", 2))
    lease = leased(bench, 3)
    seal = handles_of(lease, queue)
    clock.advance(1)
    counts = lease.delete_except([seal(1)])
    assert (counts.done, counts.lost) == (3, 0)
    assert bodies(bench.queue().receive(10)) == ["B1", "B2", "A2", "A4"]
    with pytest.raises(errors.LeaseLost):
        lease.release()


def handles_of(lease: Lease, queue: Queue):
    """Receipt handles of a lease by offset, as its DataFrame would have them."""
    from lakequeue.model.receipt_handles import Seal

    return Seal(queue.key, 0, lease._leased.lease_id, queue.runtime.row.handle_key).text


# --- everything else as on standard queues


class Either:
    """A queue of one kind or the other, with one message group, and what to say in it."""

    def __init__(self, bench: FifoBench, fifo: bool) -> None:
        self.bench, self.fifo = bench, fifo
        self.name = NAME if fifo else "orders"
        self._ids = itertools.count()

    def create(self, **attributes) -> Queue:
        return self.bench.create(self.name, **attributes)

    def queue(self) -> Queue:
        return self.bench.queue(self.name)

    def entry(self, body: str, **fields) -> SendEntry:
        ids = {"group_id": "G", "dedup_id": f"{next(self._ids)}"} if self.fifo else {}
        return SendEntry(body, **ids, **fields)

    def say(self, *texts: str, **fields):
        return self.queue().send_batch([self.entry(text, **fields) for text in texts])


@pytest.fixture(params=["standard", "FIFO"])
def either(request: pytest.FixtureRequest, bench: FifoBench) -> Either:
    return Either(bench, request.param == "FIFO")


@point_only
@pytest.mark.spec("QUE-29", "MSA-1", "MSA-2", "MSA-4", "SND-3", "SND-15", "RCV-10", "RCV-11", "BAT-2", "DLT-6")
def test_either_kind_carries_bodies_and_attributes(either: Either, clock):
    either.create()
    texts = ["a line\n\tand another\r\n", "\U0001f600 cafe\u0301", "x" * 100_000]
    attributes = {"text": "\U0001f600", "number": 42, "binary": b"\x00\xff", "foo.a": "1"}
    sent = either.say(*texts, attributes=attributes, system_attributes={"AWSTraceHeader": "Root=1-2"})
    clock.advance(2)
    received = either.queue().receive(10, attribute_names=["foo.*", "binary"])
    assert bodies(received) == texts
    assert [m.md5_of_body for m in received] == [s.md5_of_body for s in sent.successful]
    assert [m.message_id for m in received] == [s.message_id for s in sent.successful]
    for message in received:
        assert message.message_attributes == {"binary": ("Binary", b"\x00\xff"), "foo.a": ("String", "1")}
        wire = message.attributes
        assert (wire["AWSTraceHeader"], wire["ApproximateReceiveCount"]) == ("Root=1-2", "1")
        assert int(wire["ApproximateFirstReceiveTimestamp"]) == int(wire["SentTimestamp"]) + 2000


@point_only
@pytest.mark.spec("QUE-29", "RCV-3", "RCV-5", "RCV-6", "RCP-5", "RCP-10", "RCP-11", "VIS-16", "QUE-4", "STA-14")
def test_either_kind_hides_a_message_until_its_timeout_and_forgets_it_when_deleted(either: Either, clock):
    queue = either.create()
    either.say("a")
    (first,) = queue.receive()
    clock.advance(29.999)
    assert either.queue().receive() == []
    clock.advance(0.001)
    (second,) = either.queue().receive(visibility_timeout=5)
    assert second.receipt_handle != first.receipt_handle
    assert (second.receive_count, second.first_received_at) == (2, first.first_received_at)
    clock.advance(5)
    (third,) = either.queue().receive()
    either.queue().delete(third.receipt_handle)
    either.queue().delete(third.receipt_handle)
    with pytest.raises(errors.InvalidParameterValue, match="not exist"):
        either.queue().change_visibility(third.receipt_handle, 5)
    clock.advance(1000)
    assert either.queue().receive() == either.queue().peek() == []


@point_only
@pytest.mark.spec("QUE-29", "VIS-1", "VIS-3", "VIS-4", "VIS-9", "RCP-13", "RCV-12", "BAT-3", "BAT-4", "DEL-10")
def test_either_kind_changes_visibility_alone_and_in_batches(either: Either, clock):
    either.create(visibility_timeout=60)
    either.say("a", "b", "c")
    a, b, c = either.queue().receive(10)
    clock.advance(15)
    with pytest.raises(errors.InvalidParameterValue, match="43200"):
        either.queue().change_visibility(a.receipt_handle, 43_190)
    changed = either.queue().change_visibility_batch(
        [(a.receipt_handle, 10), (b.receipt_handle, 60), ("garbage", 5), (c.receipt_handle, -1)]
    )
    assert [s.id for s in changed.successful] == ["0", "1"]
    assert [f.code for f in changed.failed] == ["ReceiptHandleIsInvalid", "InvalidParameterValue"]
    clock.advance(9.999)
    assert either.queue().receive(10) == []
    clock.advance(0.001)
    assert bodies(either.queue().receive(10, visibility_timeout=0)) == ["a"]
    deleted = either.queue().delete_batch([b.receipt_handle, "garbage", c.receipt_handle])
    assert [s.id for s in deleted.successful] == ["0", "2"]
    assert [m.receive_count for m in either.queue().receive(10)] == [3]


@point_only
@pytest.mark.spec("QUE-29", "QUE-5", "QUE-23", "QUE-25", "QUE-28", "RET-1", "RET-6", "INF-1", "PRF-4")
def test_either_kind_has_counts_tags_and_attributes_that_change(either: Either, clock):
    queue = either.create(tags={"team": "blue"})
    either.say("a", "b", "c")
    queue.receive()
    clock.advance(2)
    before = either.bench.versions()
    seen = [(m.body, m.state, m.receive_count) for m in either.queue().peek()]
    assert seen == [("a", "in_flight", 1), ("b", "visible", 0), ("c", "visible", 0)]
    counts = either.queue().counts()
    assert (counts.visible, counts.in_flight, counts.delayed, counts.oldest_age) == (2, 1, 0, 2)
    wire = either.queue().attributes()
    assert (wire["ApproximateNumberOfMessages"], wire["ApproximateNumberOfMessagesNotVisible"]) == ("2", "1")
    assert either.bench.versions() == before
    either.queue().set_attributes(visibility_timeout=5, message_retention_period=60)
    either.queue().set_tags(team="red")
    assert queue.tags() == {"team": "red"}
    clock.advance(28)
    assert bodies(queue.receive(10)) == ["a", "b", "c"]
    clock.advance(5)
    assert len(queue.receive(10)) == 3
    clock.advance(24.999)
    assert len(queue.receive(10)) == 3
    clock.advance(0.001)
    assert queue.counts().in_flight == 0 and queue.receive(10) == []


@point_only
@pytest.mark.spec("QUE-29", "PUR-1", "PUR-2", "PUR-3", "PUR-4", "QUE-13", "QUE-14", "RCP-9")
def test_either_kind_is_purged_deleted_and_made_again(either: Either, clock):
    queue = either.create()
    either.say("received", "waiting")
    (m,) = queue.receive()
    queue.purge()
    either.say("after")
    either.queue().delete(m.receipt_handle)
    with pytest.raises(errors.InvalidParameterValue):
        queue.change_visibility(m.receipt_handle, 5)
    with pytest.raises(errors.PurgeQueueInProgress):
        either.queue().purge()
    assert bodies(either.queue().receive(10)) == ["after"]
    either.bench.open().delete_queue(either.name)
    for verb in (queue.receive, queue.purge, lambda: queue.delete(m.receipt_handle)):
        with pytest.raises(errors.QueueDoesNotExist):
            verb()
    new = either.create()
    assert new.receive() == []
    with pytest.raises(errors.ReceiptHandleIsInvalid):
        new.delete(m.receipt_handle)


@point_only
@pytest.mark.spec("QUE-29", "LPL-1", "LPL-5", "RCV-4", "RCV-14")
def test_either_kind_lets_a_receive_wait(either: Either, clock):
    queue = either.create(receive_wait_time=10)
    started = clock.now()
    call = Call(clock, lambda: queue.receive(10)).after(4)
    queue.send_batch([either.entry("a")])
    assert bodies(call.join()) == ["a"]
    assert call.ended_at - started == timedelta(seconds=4)
    clock.advance(29.999)
    assert queue.receive(wait_time=0) == []
    clock.advance(0.001)
    assert bodies(queue.receive(10)) == ["a"]
    assert Call(clock, lambda: queue.receive(10)).after(12).join() == []


@point_only
@pytest.mark.spec("QUE-29", "RCV-15", "DLT-4", "STA-7", "SND-17")
def test_either_kind_hands_each_message_to_one_of_many_consumers(either: Either):
    here = either.create()
    there = either.queue()
    here.send_batch([either.entry(f"{n:03}") for n in range(30)])
    received: list[str] = []

    def consume(queue: Queue) -> None:
        while len(received) < 30:
            for message in queue.receive(4):
                received.append(message.body)
                queue.delete(message.receipt_handle)

    assert at_once([lambda q=q: consume(q) for q in [here, there] * 2]) == [None] * 4
    assert sorted(received) == [f"{n:03}" for n in range(30)]
    assert received == sorted(received) or not either.fifo
    assert either.queue().peek() == []


@point_only
@pytest.mark.spec("QUE-29", "DLT-7", "RCV-16")
def test_either_kind_is_tidied_and_nobody_notices(either: Either, monkeypatch):
    small_segments(monkeypatch, commits=1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 2)
    queue = either.create()
    other = either.queue()
    for number in range(6):
        queue.send_batch([either.entry(f"{number}")])
    assert any("remove" in action for action in either.bench.log_actions(f"q/{queue.key}/0/messages"))
    (first,) = other.receive(1)
    other.delete(first.receipt_handle)
    queue.send_batch([either.entry("6")])
    assert bodies([first, *other.receive(10)]) == list("0123456")


@point_only
@pytest.mark.spec("QUE-29", "VIS-9", "RCV-3")
def test_either_kind_is_leased(either: Either, clock):
    either.create()
    either.say(*"abcdef")
    lease = either.queue().lease(4, visibility_timeout=10)
    assert lease is not None and lease.message_count == 4
    assert lease.extend(100).done == 4
    clock.advance(99)
    assert either.queue().counts().in_flight == 4
    assert lease.delete().done == 4
    assert bodies(either.queue().receive(10)) == ["e", "f"]
    with pytest.raises(errors.LeaseLost):
        lease.release()


@point_only
@pytest.mark.spec("RCP-7", "RCP-12", "VIS-2", "ERR-8")
def test_receipts_of_fifo_queues_end_with_their_timeout(bench: FifoBench, clock):
    queue = bench.create(visibility_timeout=1)
    send(queue, "A1", "A2")
    (old,) = queue.receive()
    clock.advance(1)
    before = bench.versions()
    with pytest.raises(errors.InvalidParameterValue, match="Reason: The receipt handle has expired"):
        bench.queue().delete(old.receipt_handle)
    with pytest.raises(errors.MessageNotInflight):
        bench.queue().change_visibility(old.receipt_handle, 5)
    assert bench.versions() == before
    (new,) = bench.queue().receive()
    assert new.body == "A1"
    with pytest.raises(errors.InvalidParameterValue, match="expired"):
        bench.queue().delete(old.receipt_handle)
    with pytest.raises(errors.InvalidParameterValue):
        bench.queue().change_visibility(old.receipt_handle, 5)
    delete(bench.queue(), new)
    assert bodies(bench.queue().receive()) == ["A2"]


# --- whole flows


@point_only
@pytest.mark.spec("EXM-1", "QUE-1", "QUE-11", "QUE-13", "SND-3", "SEQ-2", "MSA-1", "RCV-10", "ERR-1", "NAM-3")
def test_the_walkthrough_of_the_guide(lq: LakeQueue, bench: FifoBench):
    queue = lq.create_queue("MyFifoQueue.fifo", **{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
    assert queue.fifo
    assert [q.name for q in lq.list_queues()] == ["MyFifoQueue.fifo"]
    sent = queue.send(TEXT, group_id="messageGroup1", dedup_id="1")
    assert sent.message_id and sent.sequence_number
    (message,) = bench.queue("MyFifoQueue.fifo").receive(10, attempt_id="1")
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


@point_only
@pytest.mark.spec("EXM-8", "QUE-2", "QUE-3", "SND-6", "DLY-8", "FIF-15")
def test_a_standard_queue_is_moved_to_fifo(bench: FifoBench, clock):
    def consumer(queue: Queue) -> list[str]:
        worked_on = []
        while messages := queue.receive(10):
            for message in messages:
                worked_on.append(message.body)
                queue.delete(message.receipt_handle)
        return worked_on

    old = bench.create("orders", profile="sqs")
    old.send("A1", delay=15)
    old.send("A2", delay=15)
    clock.advance(15)
    assert sorted(consumer(bench.queue("orders"))) == ["A1", "A2"]
    with pytest.raises(errors.InvalidAttributeName, match="Unknown Attribute FifoQueue"):
        old.set_attributes(FifoQueue="true")
    bench.open().delete_queue("orders")
    clock.advance(60)
    new = bench.create(profile="sqs", delay=15)
    with pytest.raises(errors.InvalidParameterValue, match="DelaySeconds"):
        new.send("A1", group_id="orders", dedup_id="1", delay=15)
    for number in range(1, 4):
        new.send(f"A{number}", group_id="orders", dedup_id=f"{number}")
    assert consumer(bench.queue()) == []
    clock.advance(15)
    assert consumer(bench.queue()) == ["A1", "A2", "A3"]


@pytest.mark.core
@pytest.mark.spec("DLT-4", "FIF-4", "DDP-1", "ATT-3", "SEQ-6", "QUE-33")
@pytest.mark.parametrize("lq", [pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_what_one_engine_begins_the_other_carries_on(bench: FifoBench, clock):
    through_spark = bench.create()
    through_point = bench.open(engine="point").queue(NAME)
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


# --- refusals


class Refused:
    """Queues in which something may be refused for each reason that only FIFO knows."""

    def __init__(self, bench: FifoBench) -> None:
        self.fifo = bench.create()
        self.standard = bench.create("orders")
        self.old = bench.create("2018", profile="sqs-2018")
        send(self.fifo, "A1")
        self.lq = bench.open()

    def create(self, name: str, **attributes) -> Queue:
        return self.lq.create_queue(name, **attributes)

    def send(self, **fields):
        return self.fifo.send(**({"body": "x", "group_id": "A", "dedup_id": "d"} | fields))


GROUP_MISSING = "The request must contain the parameter MessageGroupId."
DEDUP_MISSING = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)
WRONG_KIND = "The request include parameter that is not valid for this queue type."
IDENTIFIER = " can only include alphanumeric and punctuation characters. 1 to 128 in length."
FIFO_NAME = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    "must end with .fifo suffix and be 1 to 80 in length"
)
STANDARD_NAME = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
ONLY_FIFO = "You can specify the {} only when FifoQueue is set to true."


def invalid(attribute: str) -> str:
    return f"Invalid value for the parameter {attribute}."


REFUSALS = {
    "no group": ("MissingParameter", GROUP_MISSING, lambda r: r.send(group_id=None)),
    "no group in a batch": (
        "InvalidParameterValue",
        GROUP_MISSING,
        lambda r: r.fifo.send_batch([entry("A2"), SendEntry("x", dedup_id="x")]),
    ),
    "no deduplication id": ("InvalidParameterValue", DEDUP_MISSING, lambda r: r.send(dedup_id=None)),
    "no deduplication id in a batch": (
        "InvalidParameterValue",
        DEDUP_MISSING,
        lambda r: r.fifo.send_batch([entry("A2"), SendEntry("x", group_id="A")]),
    ),
    "delay of a message": (
        "InvalidParameterValue",
        f"Value 2 for parameter DelaySeconds is invalid. Reason: {WRONG_KIND}",
        lambda r: r.send(delay=2),
    ),
    "empty group": ("InvalidParameterValue", f"MessageGroupId{IDENTIFIER}", lambda r: r.send(group_id="")),
    "group with a space": (
        "InvalidParameterValue",
        f"Value A B for parameter MessageGroupId is invalid. Reason: MessageGroupId{IDENTIFIER}",
        lambda r: r.send(group_id="A B"),
    ),
    "long group": ("InvalidParameterValue", f"MessageGroupId{IDENTIFIER}", lambda r: r.send(group_id="g" * 129)),
    "empty id": ("InvalidParameterValue", f"MessageDeduplicationId{IDENTIFIER}", lambda r: r.send(dedup_id="")),
    "long id": (
        "InvalidParameterValue",
        f"MessageDeduplicationId{IDENTIFIER}",
        lambda r: r.send(dedup_id="d" * 129),
    ),
    "id beyond ASCII": (
        "InvalidParameterValue",
        f"MessageDeduplicationId{IDENTIFIER}",
        lambda r: r.send(dedup_id="\u00e9"),
    ),
    "deduplication id on a standard queue": (
        "InvalidParameterValue",
        "The request includes a parameter that is not valid for this queue type.",
        lambda r: r.standard.send("x", group_id="A", dedup_id="d"),
    ),
    "group on a standard queue of 2018": (
        "InvalidParameterValue",
        "The request includes a parameter that is not valid for this queue type.",
        lambda r: r.old.send("x", group_id="A"),
    ),
    "attempt id on a standard queue": (
        "InvalidParameterValue",
        f"Value x for parameter ReceiveRequestAttemptId is invalid. Reason: {WRONG_KIND}",
        lambda r: r.standard.receive(attempt_id="x"),
    ),
    "empty attempt id": (
        "InvalidParameterValue",
        f"ReceiveRequestAttemptId{IDENTIFIER}",
        lambda r: r.fifo.receive(attempt_id=""),
    ),
    "long attempt id": (
        "InvalidParameterValue",
        f"ReceiveRequestAttemptId{IDENTIFIER}",
        lambda r: r.fifo.receive(attempt_id="x" * 129),
    ),
    "attempt id with a space": (
        "InvalidParameterValue",
        f"ReceiveRequestAttemptId{IDENTIFIER}",
        lambda r: r.fifo.receive(attempt_id="a b"),
    ),
    "name without suffix": ("InvalidParameterValue", FIFO_NAME, lambda r: r.create("new", fifo=True)),
    "suffix alone": ("InvalidParameterValue", FIFO_NAME, lambda r: r.create(".fifo", fifo=True)),
    "name too long": ("InvalidParameterValue", FIFO_NAME, lambda r: r.create("a" * 76 + ".fifo", fifo=True)),
    "suffix of a standard queue": ("InvalidParameterValue", STANDARD_NAME, lambda r: r.create("new.fifo")),
    "no truth": (
        "InvalidAttributeValue",
        invalid("FifoQueue"),
        lambda r: r.create("new.fifo", FifoQueue="yes"),
    ),
    "unknown scope": (
        "InvalidAttributeValue",
        invalid("DeduplicationScope"),
        lambda r: r.create("new.fifo", fifo=True, deduplication_scope="group"),
    ),
    "limit by group without its scope": (
        "InvalidAttributeValue",
        invalid("FifoThroughputLimit"),
        lambda r: r.create("new.fifo", fifo=True, fifo_throughput_limit="perMessageGroupId"),
    ),
    "limit by group set without its scope": (
        "InvalidAttributeValue",
        invalid("FifoThroughputLimit"),
        lambda r: r.fifo.set_attributes(FifoThroughputLimit="perMessageGroupId"),
    ),
    "shards without the scope of a group": (
        "InvalidAttributeValue",
        invalid("Shards"),
        lambda r: r.create("new.fifo", fifo=True, shards=2),
    ),
    "scope on a standard queue": (
        "InvalidAttributeName",
        ONLY_FIFO.format("DeduplicationScope"),
        lambda r: r.create("new", deduplication_scope="queue"),
    ),
    "scope set on a standard queue": (
        "InvalidAttributeName",
        ONLY_FIFO.format("DeduplicationScope"),
        lambda r: r.standard.set_attributes(DeduplicationScope="messageGroup"),
    ),
    "throughput limit on a standard queue": (
        "InvalidAttributeName",
        ONLY_FIFO.format("FifoThroughputLimit"),
        lambda r: r.standard.set_attributes(fifo_throughput_limit="per_queue"),
    ),
    "content-based on a standard queue": (
        "InvalidAttributeName",
        "Unknown Attribute ContentBasedDeduplication.",
        lambda r: r.standard.set_attributes(content_based_deduplication=True),
    ),
    "standard made FIFO": (
        "InvalidAttributeName",
        "Unknown Attribute FifoQueue.",
        lambda r: r.standard.set_attributes(FifoQueue="true"),
    ),
    "FIFO made standard": (
        "InvalidAttributeValue",
        "Modifying queue type is not supported.",
        lambda r: r.fifo.set_attributes(fifo=False),
    ),
    "scope of creation": (
        "InvalidAttributeName",
        "Unknown Attribute CreatedDeduplicationScope.",
        lambda r: r.fifo.set_attributes(CreatedDeduplicationScope="messageGroup"),
    ),
    "scope of creation asked for": (
        "InvalidAttributeName",
        "Unknown Attribute CreatedDeduplicationScope.",
        lambda r: r.fifo.attributes(["CreatedDeduplicationScope"]),
    ),
    "FIFO in cmq": (
        "InvalidAttributeValue",
        invalid("FifoQueue"),
        lambda r: r.create("new.fifo", fifo=True, profile="cmq"),
    ),
    "name taken by another scope": (
        "QueueNameExists",
        "different value for attribute DeduplicationScope",
        lambda r: r.create(NAME, fifo=True, deduplication_scope="message_group"),
    ),
}


@point_only
@pytest.mark.spec("ERR-8", "ERR-5", "SND-4", "SND-5", "SND-6", "SND-13", "SND-14", "DLY-7", "ATT-7", "DDP-14")
@pytest.mark.spec("NAM-1", "NAM-2", "NAM-4", "QUE-1", "QUE-2", "QUE-9", "QUE-15", "DDP-15")
def test_what_fifo_refuses_is_said_and_changes_no_table(bench: FifoBench):
    refused = Refused(bench)
    before = bench.versions()
    wrong = {}
    for reason, (code, text, operation) in REFUSALS.items():
        try:
            operation(refused)
            wrong[reason] = "was not refused"
        except errors.LakeQueueError as error:
            if type(error).__name__ != code or text not in str(error):
                wrong[reason] = repr(error)
        if bench.versions() != before:
            wrong[reason] = f"{wrong.get(reason, '')} changed {before} to {bench.versions()}"
            before = bench.versions()
    assert wrong == {}
    assert bodies(bench.queue().receive(10)) == ["A1"]


@point_only
@pytest.mark.spec("SND-13", "ATT-7", "NAM-2")
def test_the_longest_ids_and_names_are_taken(bench: FifoBench):
    name = "a" * 75 + ".fifo"
    queue = bench.create(name)
    longest = "".join(chr(code) for code in range(ord("!"), ord("~") + 1)) + "x" * 34
    assert len(longest) == 128
    queue.send("1", group_id=longest, dedup_id=longest)
    (message,) = bench.queue(name).receive(attempt_id=longest)
    assert (message.group_id, message.dedup_id) == (longest, longest)
    assert bench.queue(name).receive(attempt_id=longest) == [message]
