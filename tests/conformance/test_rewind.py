"""Rewind through the tables: deleted messages become visible in their old order, and others do not change."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from conformance.harness import Harness, every_engine
from lakequeue import Queue, errors
from lakequeue.testing import ManualClock

HOUR = 3_600
DAY = 86_400


def send_each(queue: Queue, clock: ManualClock, *bodies: str, every: float = 10, **fields) -> None:
    """Sends messages at an interval in seconds; the first now."""
    for body in bodies:
        queue.send(body, **fields)
        clock.advance(every)


def delete(queue: Queue, *bodies: str) -> None:
    """Receives all messages, deletes these in this order, and releases the others."""
    received = {message.body: message for message in queue.receive(1_000)}
    for body in bodies:
        queue.delete(received.pop(body).receipt_handle)
    if received:
        queue.change_visibility_batch([(message.receipt_handle, 0) for message in received.values()])


def bodies(queue: Queue) -> list[str]:
    return [message.body for message in queue.receive(1_000)]


@every_engine
@pytest.mark.spec("RWD-4", "DLT-5")
def test_the_history_says_when_messages_were_received_and_deleted(harness: Harness, clock: ManualClock) -> None:
    def history() -> list[tuple[object, ...]]:
        shown = harness.open().arrow_views()["history"].to_table(names).to_pylist()
        return [tuple(row.values()) for row in sorted(shown, key=lambda row: row["log_offset"])]

    names = ["log_offset", "body", "receive_count", "first_received_at", "settled_at"]
    queue = harness.create(rewind_range=HOUR)
    start = clock.now()
    send_each(queue, clock, "a", "b", "c", "d", every=0)
    queue.receive(2, visibility_timeout=1)
    clock.advance(1)
    both, others = queue.receive(2), queue.receive(2)
    assert [message.body for message in [*both, *others]] == ["a", "b", "c", "d"]
    clock.advance(1)
    queue.delete_batch([message.receipt_handle for message in [*both, others[0]]])
    clock.advance(1)
    queue.delete(others[1].receipt_handle)
    after = [start + timedelta(seconds=seconds) for seconds in range(4)]
    twice, once = (2, start, after[2]), (1, after[1], after[2])
    assert history() == [(0, "a", *twice), (1, "b", *twice), (2, "c", *once), (3, "d", 1, after[1], after[3])]
    queue.rewind(start)
    clock.advance(1)
    queue.delete(queue.receive()[0].receipt_handle)
    assert history() == [(0, "a", 1, clock.now(), clock.now())]


@pytest.mark.spec("RWD-4", "RWD-7", "RWD-9", "RWD-10", "RWD-16", "RWD-19", "RWD-20")
@pytest.mark.spec("STA-9", "DEL-4", "QUE-22", "EXM-5")
def test_what_was_deleted_comes_back_in_the_order_of_sending(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(rewind_range=HOUR)
    start = clock.now()
    sent = queue.send("a")
    clock.advance(10)
    send_each(queue, clock, "b", "c", "d")
    delete(queue, "d", "b", "c", "a")
    assert harness.queue().counts().rewindable == 4
    assert bodies(harness.queue()) == []

    assert harness.queue().rewind(start + timedelta(seconds=10)) == 3  # b was sent at that instant
    assert harness.queue().counts().rewindable == 1
    first, *others = harness.queue().receive(1), *harness.queue().receive(10)
    assert [first[0].body, *(message.body for message in others)] == ["b", "c", "d"]
    assert {message.receive_count for message in [*first, *others]} == {1}
    for message in [*others, *first]:
        queue.delete(message.receipt_handle)
    assert harness.queue().rewind(start) == 4
    again = harness.queue().receive(10)
    assert [message.body for message in again] == ["a", "b", "c", "d"]
    assert again[0].message_id == sent.message_id
    assert again[0].sent_at == start


@pytest.mark.spec("RWD-9", "QUE-21")
def test_shards_are_rewound_and_history_does_not_count_as_stored(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(shards=3, rewind_range=HOUR, profile_strict=False, max_stored_messages=3)
    start = clock.now()
    for _ in range(2):  # each shard stores one message, and again once that is deleted
        for body in "abc":
            queue.send(body)
        queue.delete_batch([message.receipt_handle for message in queue.receive(3)])
    assert harness.queue().counts().rewindable == 6
    clock.advance(1)
    assert harness.queue().rewind(start) == 6
    assert sorted(bodies(harness.queue())) == sorted("abcabc")


@pytest.mark.spec("RWD-11", "RWD-24")
def test_the_earliest_instant_works_a_moment_later(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(rewind_range=HOUR, shards=2)
    send_each(queue, clock, "a", "b", every=0)
    earliest = clock.now()
    clock.advance(HOUR - 1)
    delete(queue, "a", "b")
    clock.advance(1)
    assert queue.min_rewind_time == earliest
    assert queue.rewindable(earliest) == 2
    clock.advance(0.999999)
    assert queue.rewindable(earliest) == queue.rewind(earliest) == 0  # what was sent then is out of range
    clock.advance(0.000001)
    for verb in queue.rewindable, queue.rewind:
        with pytest.raises(errors.InvalidParameterValue, match="Must be between"):
            verb(earliest)


@pytest.mark.spec("RWD-11")
@pytest.mark.parametrize("to", [datetime(2026, 1, 1), "yesterday", None])
def test_an_instant_without_a_zone_is_refused(harness: Harness, to: object) -> None:
    queue = harness.create(rewind_range=HOUR)
    with pytest.raises(errors.InvalidParameterValue, match="for parameter to is invalid"):
        queue.rewind(to)  # type: ignore[arg-type]


@pytest.mark.spec("ERR-7", "RWD-15", "RWD-11", "QUE-17")
def test_cmq_queues_say_their_numbers(harness: Harness, clock: ManualClock) -> None:
    off = harness.create("off", profile="cmq")
    on = harness.create("on", profile="cmq", rewind_range=HOUR)
    refused = {}
    for name, call in {
        "off": lambda: off.rewind(clock.now()),
        "early": lambda: on.rewind(clock.now() - timedelta(hours=2)),
        "range": lambda: on.set_attributes(rewind_range=5 * DAY),
    }.items():
        with pytest.raises(errors.QueueServiceError) as error:
            call()
        refused[name] = (error.value.cmq_code, error.value.cmq_module_code)
    assert refused == {"off": (6050, 10670), "early": (10680, 10680), "range": (10700, 10700)}
