"""Deduplication ids of standard queues (JOB-6)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from concurrency.harness import apart, small_segments
from conformance.harness import Harness, bodies, every_engine
from lakequeue import (
    InvalidAttributeValue,
    InvalidParameterValue,
    LakeQueue,
    Queue,
    SendEntry,
)
from lakequeue.model.names import shard_of_group
from lakequeue.storage.messages import dedup_window
from mutations import Case, Mutation, answer_from_what_is_known, each_case, shown_by

pytestmark = pytest.mark.spec("JOB-6")


@pytest.mark.parametrize("shards", [1, 4])
def test_an_id_is_taken_once_within_the_interval_by_all_processes(harness: Harness, clock, shards: int):
    queue = harness.create(deduplication_interval=3600, shards=shards)
    first = queue.send("invoice 17", dedup_id="17")
    for again in queue, harness.queue():
        assert again.send("invoice 17 again", dedup_id="17").message_id == first.message_id
    for number in range(20):
        queue.send(f"{number}", dedup_id=f"other-{number}")
        harness.queue().send(f"{number}", dedup_id=f"other-{number}")
    queue.send("without"), queue.send("without")
    received = queue.receive(50)
    assert bodies(received) == sorted(["invoice 17", *map(str, range(20)), "without", "without"])
    queue.delete_batch(received)
    clock.advance(3599)
    assert harness.queue().send("late", dedup_id="17").message_id == first.message_id
    clock.advance(1)
    assert harness.queue().send("later", dedup_id="17").message_id != first.message_id
    assert bodies(queue.receive(50)) == ["later"]


def test_a_batch_holds_an_id_once(harness: Harness):
    queue = harness.create(deduplication_interval=60, shards=3)
    entries = [SendEntry(f"{id} {number}", dedup_id=id) for number in range(3) for id in ("a", "b", None)]
    sent = [done.message_id for done in queue.send_batch(entries).successful]
    assert sent[0] == sent[3] == sent[6] and sent[1] == sent[4] == sent[7] and len({*sent}) == 5
    received = queue.receive(10)
    assert bodies(received) == sorted(["a 0", "b 0", "None 0", "None 1", "None 2"])
    assert {message.dedup_id for message in received} == {"a", "b", None}


@pytest.mark.parametrize("shards", [1, 3])
def test_the_log_distinguishes_ids_with_equal_hashes(harness: Harness, clock, monkeypatch, shards: int):
    monkeypatch.setattr(dedup_window, "hash", lambda key: 7, raising=False)
    queue = harness.create(deduplication_interval=60, shards=shards)
    sent = {id: queue.send(id, dedup_id=id).message_id for id in "abcd"}
    for again in queue, harness.queue():
        assert {id: again.send("again", dedup_id=id).message_id for id in "abcd"} == sent
    assert bodies(queue.receive(10)) == ["a", "b", "c", "d"]
    queue.purge()
    assert queue.send("after", dedup_id="b").message_id != sent["b"]


def test_the_interval_can_change_and_end(harness: Harness, clock):
    queue = harness.create(deduplication_interval=60)
    first = queue.send("a", dedup_id="x")
    clock.advance(100)
    harness.queue().set_attributes(deduplication_interval=600)
    assert queue.send("b", dedup_id="x").message_id == first.message_id
    harness.queue().set_attributes(deduplication_interval=None)
    with pytest.raises(InvalidParameterValue, match="dedup_id"):
        queue.send("c", dedup_id="x")
    queue.send("d")
    assert bodies(queue.receive(10)) == ["a", "d"]


@pytest.mark.spec("DUR-42")
def test_an_erased_message_keeps_its_id_while_that_counts(harness: Harness, clock):
    queue = harness.create(deduplication_interval=3600)
    first = queue.send("secret", dedup_id="x")
    assert harness.queue().erase(first.message_id)
    assert harness.queue().send("secret", dedup_id="x").message_id == first.message_id
    assert queue.receive() == []


def deleted(harness: Harness, queue: Queue, clock) -> None:
    queue.receive()[0].delete()


def cancelled(harness: Harness, queue: Queue, clock) -> None:
    assert queue.cancel(queue.peek()[0].message_id)


def purged(harness: Harness, queue: Queue, clock) -> None:
    queue.purge()


def expired(harness: Harness, queue: Queue, clock) -> None:
    clock.advance(3_600)


def erased(harness: Harness, queue: Queue, clock) -> None:
    assert queue.erase(queue.peek()[0].message_id)


def moved_away(harness: Harness, queue: Queue, clock) -> None:
    assert queue.redrive(destination=harness.create("dead")) == 1


@every_engine
@pytest.mark.parametrize("end", [deleted, moved_away])
def test_an_id_may_be_taken_until_its_message_is_deleted(harness: Harness, clock, end):
    queue = harness.create(deduplication_until_deleted=True, message_retention_period=3_600)
    first = queue.send("a", dedup_id="x").message_id
    assert harness.queue().send("again", dedup_id="x").message_id == first
    queue.receive(visibility_timeout=5)
    assert queue.send("in flight", dedup_id="x").message_id == first
    clock.advance(6)
    assert harness.queue().send("visible again", dedup_id="x").message_id == first
    end(harness, harness.queue(), clock)  # by another process, of which this one must learn
    second = queue.send("b", dedup_id="x").message_id
    assert second != first and harness.queue().send("again", dedup_id="x").message_id == second
    assert queue.send("again", dedup_id="x").message_id == second
    assert bodies(queue.receive(10)) == ["b"]


@pytest.mark.parametrize("end", [cancelled, purged, expired, erased])
def test_other_ends_of_a_message_count_as_its_deletion(harness: Harness, clock, end):
    test_an_id_may_be_taken_until_its_message_is_deleted(harness, clock, end)


MUTATIONS = [
    Mutation(
        "look for taken ids in what is known",
        answer_from_what_is_known,
        {
            shown_by(
                test_an_id_may_be_taken_until_its_message_is_deleted,
                lambda harness, clock: (harness, clock, deleted),
            ): "JOB-6"
        },
    )
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, harness: Harness, clock):
    case.run(lambda _: (harness, clock))


@pytest.mark.parametrize("shards", [1, 3])
def test_ids_whose_messages_stay_are_known_for_long(harness: Harness, clock, monkeypatch, shards: int):
    small_segments(monkeypatch)
    queue = harness.create(deduplication_until_deleted=True, shards=shards)
    entries = [SendEntry("later", delay=600, dedup_id="late"), SendEntry("twice", dedup_id="one")]
    late, one, *_ = [done.message_id for done in queue.send_batch([*entries, entries[1]]).successful]
    for number in range(60):  # past several segments, of which the compactor frees what it may
        queue.send(f"{number}", dedup_id=f"{number % 20}")
        for message in queue.receive(10, visibility_timeout=1 if number == 0 else None):
            message.delete()
    queue.compact()
    clock.advance(86_400)
    assert harness.queue().send("x", dedup_id="late").message_id == late
    assert queue.send("x", dedup_id="late").message_id == late
    assert harness.queue().send("x", dedup_id="one").message_id != one
    window = queue._runtime.shards[shard_of_group("3", shards)].sender._appender._window
    assert len(window.find("3")) <= 1  # each send forgets the one before


def test_messages_restored_by_a_rewind_count_again(harness: Harness, clock):
    queue, begin = harness.create(deduplication_until_deleted=True, rewind_range=600), clock.now()
    first = queue.send("a", dedup_id="x").message_id
    queue.receive()[0].delete()
    second = queue.send("b", dedup_id="x").message_id
    queue.receive()[0].delete()
    third = queue.send("c", dedup_id="x").message_id
    queue.receive()[0].delete()
    clock.advance(1)
    queue.rewind(begin)
    for again in queue, harness.queue():
        assert again.send("d", dedup_id="x").message_id in {first, second, third}
    assert bodies(queue.receive(10)) == ["a", "b", "c"]


def test_shards_stay_and_bulk_sends_have_no_ids(lq: LakeQueue):
    queue = lq.create_queue("orders", deduplication_interval=60)
    with pytest.raises(InvalidAttributeValue, match="must stay 1 while deduplication_interval is set"):
        queue.set_attributes(shards=2)
    switched = lq.create_queue("others", deduplication_until_deleted=True)
    with pytest.raises(InvalidAttributeValue, match="must stay 1 while deduplication_until_deleted is set"):
        switched.set_attributes(shards=2)
    switched.set_attributes(deduplication_until_deleted=False, shards=2)
    with pytest.raises(InvalidParameterValue, match="dedup"):
        queue.send_arrow(pa.table({"body": ["a"], "dedup_id": ["x"]}))
    assert queue.send_arrow(pa.table({"body": ["a"]})) == 1
    [other] = apart(lq.root, queue.clock, 1)
    assert other.queue("orders").attributes(["deduplication_interval"]) == {"deduplication_interval": 60}
    assert other.queue("orders").attributes(wire=True)["DeduplicationInterval"] == "60"
