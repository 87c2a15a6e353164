"""Failed attempts stay with a message until it is deleted, through the tables of both engines (JOB-10)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

from conformance.harness import Harness, every_engine
from insides import shard_of
from lakequeue import DeadLetterReason, LakeQueue, Message, Queue, RedrivePolicy, SendEntry
from lakequeue.model.failures import dead_letter_note, parse_note
from lakequeue.operations.consumer_round import exchange
from lakequeue.shard import runs
from lakequeue.storage import layout
from lakequeue.storage.ledger import run_rows, to_runs
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace

pytestmark = pytest.mark.spec("JOB-10")


def fail(queue: Queue, message: Message, error: Exception | None = None, again_in: float | None = 0) -> None:
    """Settles a message as a consumer does whose handler failed."""
    reason = DeadLetterReason.of(error, queue.clock.now(), "worker")
    wanted = [] if again_in is None else [(message.receipt_handle, again_in)]
    found = exchange(queue._runtime, wanted, failures={message.receipt_handle: reason})
    assert list(found.errors) == [None] * len(wanted)


def said(queue: Queue) -> list[str]:
    [message] = queue.peek()
    return [f"{each.error} {each.text}".strip() for each in message.attempts]


def attempts_stay(clock: ManualClock, *processes: Queue) -> None:
    """Each attempt is of another process, and so is what is shown then."""
    sent = processes[0].send("a")
    begun = clock.now()
    for number in range(12):
        queue, other = processes[number % len(processes)], processes[(number + 1) % len(processes)]
        [message] = queue.receive(visibility_timeout=5, consumer="worker" if number % 3 else None)
        assert len(said(other)) == min(number, 10)
        # the receipt ends by itself, too
        fail(queue, message, ValueError(f"attempt {number // 2}"), None if number % 2 else 0)
        clock.advance(10)
    found = processes[0].get(sent.message_id).attempts
    assert [each.text for each in found] == [f"attempt {number // 2}" for number in range(2, 12)]
    assert [each.at for each in found] == [begun + timedelta(seconds=10 * number) for number in range(2, 12)]
    assert {(each.error, each.consumer) for each in found} == {("ValueError", "worker")}


@every_engine
def test_the_last_ten_stay_with_any_holder_of_the_message(harness: Harness, clock: ManualClock):
    attempts_stay(
        clock, harness.create(visibility_timeout=60), harness.queue(), harness.open(engine="point").queue("orders")
    )


def test_failed_attempts_are_gone_with_the_message(harness: Harness, clock: ManualClock):
    queue, other = harness.create(rewind_range=3600), harness.queue()
    queue.send("a")
    fail(queue, queue.receive()[0], ValueError("first"))
    queue.send("b")
    queue.receive()[0].delete()
    assert "ValueError" not in str(shard_of(queue).ledger.query(lambda machine: machine.history))
    clock.advance(1)
    assert other.rewind(queue.created_at) == 1
    assert [message.attempts for message in other.peek()] == [(), ()]


def test_a_receive_with_an_attempt_id_and_its_repetition_keep_them(harness: Harness):
    queue = harness.create("orders.fifo", fifo=True)
    queue.send("a", group_id="g", dedup_id="1")
    fail(queue, queue.receive()[0], ValueError("first"))
    [message] = queue.receive(attempt_id="once")
    assert harness.queue("orders.fifo").receive(attempt_id="once") == [message]
    assert said(harness.queue("orders.fifo")) == ["ValueError first"]
    queue.change_visibility(message.receipt_handle, 0)
    assert said(harness.queue("orders.fifo")) == ["ValueError first"]


@pytest.mark.parametrize("killed", [False, True])
@every_engine
def test_a_dead_letter_brings_them_along(harness: Harness, clock: ManualClock, killed: bool):
    point = harness.open(engine="point")
    point.create_queue("dead")
    orders = point.create_queue("orders", redrive_policy=RedrivePolicy("dead", 3))
    orders.send("a")
    for number in range(3):
        [message] = orders.receive(visibility_timeout=5)
        if number < 2 or not killed:
            fail(orders, message, ValueError(f"attempt {number}"))
        clock.advance(10)
    assert harness.open().queue("orders").receive() == []
    dead = harness.open().queue("dead")
    [letter] = dead.peek()
    assert said(dead) == [f"ValueError attempt {number}" for number in range(2 if killed else 3)]
    assert (letter.dead_letter_reason is None) is killed
    assert len(dead.peek("dead_letter_reason IS NULL")) == killed
    assert letter.dead_letter_reason is None or letter.dead_letter_reason == letter.attempts[-1]
    [message] = point.queue("dead").receive()
    assert message.dead_letter_reason == letter.dead_letter_reason
    fail(point.queue("dead"), message, KeyError("there"))
    assert said(harness.open().queue("dead")) == ["KeyError 'there'"]
    assert dead.redrive() == 1
    assert said(harness.open().queue("orders")) == []


def test_neighbours_that_fail_together_are_one_run(harness: Harness):
    queue = harness.create()
    queue.send_batch([SendEntry(body) for body in "abcdef"])
    messages = queue.receive(6)
    at = datetime(2026, 1, 1, 0, 0, 0, 999_999, timezone.utc)
    reason = DeadLetterReason.of(ValueError("the service is down"), at, "worker")
    handles = [message.receipt_handle for message in messages]
    exchange(queue._runtime, [(each, 0) for each in handles], failures=dict.fromkeys(handles, reason))
    assert len(shard_of(queue).ledger.query(lambda machine: machine.runs)) == 1
    assert {len(message.attempts) for message in harness.queue().peek()} == {1}


def test_a_batch_that_fails_together_is_an_attempt_of_each():
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    reason = DeadLetterReason.of(ValueError("no: é"), at, "batch on host")
    run = runs.Run(0, 9).failed(reason, 10)
    assert to_runs(run_rows([run], [], None)) == [run]
    assert run.failed_together == 10 and run.failed_attempts == (reason,)


@every_engine
def test_attempts_that_fail_in_the_same_second_for_the_same_reason_are_all_listed(harness: Harness) -> None:
    queue = harness.create()
    queue.send("a")
    for _ in range(4):
        fail(queue, queue.receive()[0], ValueError("no"))
    assert said(queue) == said(harness.queue()) == ["ValueError no"] * 4


def test_a_failure_that_is_reported_twice_is_one_attempt(harness: Harness) -> None:
    queue = harness.create()
    queue.send("a")
    [message] = queue.receive()
    for again_in in (None, 0):
        fail(queue, message, ValueError("no"), again_in)
    assert said(queue) == ["ValueError no"]


def reason(**changed: object) -> str:
    return json.dumps({"error": "E", "text": "", "at": "2026-01-01T00:00:00Z", "consumer": "c"} | changed)


WRONG = [{"text": "\ud800"}, {"at": "9999-12-31T23:59:59-23:00"}, {"error": 1}, {"more": 1}]
DAMAGED = ["", "null", "{}", "[1]", "key#2", "[" * 100_000, '{"attempts":1}', '{"attempts":[1]}']
DAMAGED += [f'{{"attempts":[{reason(**wrong)}]}}' for wrong in WRONG]


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda text: text[:60])
def test_a_damaged_note_of_a_dead_letter_does_not_count(damaged: str) -> None:
    assert parse_note(damaged) == (None, ())


def test_a_note_has_the_reason_unless_the_last_consumer_was_killed() -> None:
    failed = DeadLetterReason("E", 'no: é "', datetime(2026, 1, 1, tzinfo=timezone.utc), "c")
    assert parse_note(dead_letter_note(failed, (failed, failed))) == (failed, (failed, failed))
    assert parse_note(dead_letter_note(None, (failed,))) == (None, (failed,))
    assert dead_letter_note(None, ()) is None and parse_note(None) == (None, ())


@pytest.mark.parametrize("field", ["error", "text", "at", "consumer"])
def test_a_failure_without_a_field_does_not_count(field: str) -> None:
    failed = DeadLetterReason("E", "", datetime(2026, 1, 1, tzinfo=timezone.utc), "c")
    run = runs.Run(0, 9, failure=failed, failed_attempts=(failed,))
    [cells] = run_rows([run], [], None).to_pylist()
    cells["run"]["failure"][field] = cells["run"]["failed_attempts"][0][field] = None
    assert to_runs(pa.Table.from_pylist([cells], layout.RECEIPTS)) == [runs.Run(0, 9)]


MUTATIONS = [
    Mutation(
        "only the last attempt is kept",
        replace(runs, "MOST_ATTEMPTS", 1),
        {attempts_stay: "JOB-10"},
    ),
    Mutation(
        "a hand-back forgets them",
        replace(runs.Run, "failed_attempts", ()),
        {attempts_stay: "JOB-10"},
    ),
]


@each_case(MUTATIONS)
def test_a_guarantee_needs_its_safeguard(case: Case, tmp_path, clock: ManualClock):
    root = str(tmp_path / "mutated")
    case.run(
        lambda patch: (
            clock,
            LakeQueue(root, clock=clock).create_queue("orders"),
            LakeQueue(root, clock=clock).queue("orders"),
        )
    )
