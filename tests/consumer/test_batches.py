"""Handlers of batches (JOB-4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from consumer.harness import Handler, Harness, raises
from lakequeue import Context, InvalidOptions, Message, Outcome
from lakequeue.consumer.queue_loop import QueueLoop
from lakequeue.storage.bulk.lease_batches import MESSAGE_SCHEMA, SCHEMA

pytestmark = pytest.mark.spec("JOB-4")


def sizes(handler: Handler) -> list[int]:
    return [len(bodies) for bodies in handler.bodies]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_full_batches_begin_at_once_and_the_last_one_after_its_wait(harness: Harness, asynchronous: bool) -> None:
    harness.send(*(str(number) for number in range(25)))
    seen = harness.handler(asynchronous=asynchronous)
    with harness.running(harness.consumer(seen, concurrency=1, batch=10, batch_wait=5)):
        harness.clock.advance(4)
        assert sizes(seen) == [10, 10] and harness.other.counts().in_flight == 5
        harness.send("late")
        harness.clock.advance(2)
        assert seen.begun[2:] == [(5, ["20", "21", "22", "23", "24", "late"])]
        harness.clock.advance(2)
    assert harness.other.counts().visible == harness.other.counts().in_flight == 0
    assert sorted(sum(seen.bodies, [])) == sorted([*map(str, range(25)), "late"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_message_of_a_batch_has_an_outcome(harness: Harness, asynchronous: bool) -> None:
    outcomes = {"good": Outcome.SUCCESS, "bad": Outcome.FAILED, "plain": None}
    harness.send(*outcomes)
    seen = harness.handler(0, lambda messages: [outcomes[each.body] for each in messages], asynchronous)
    consumer = harness.consumer(seen, batch=3, retry_delay=10)
    with harness.running(consumer):
        harness.clock.advance(1)
        assert harness.queue.deletes() == [(0, "good"), (0, "plain")]
        assert (consumer.handled, consumer.failed) == (2, 1)
        harness.clock.advance(10)
    assert seen.begun[1:] == [(10, ["bad"])]


@pytest.mark.parametrize("result", [[None], (None, None, None), "yes", Outcome.FAILED])
def test_what_is_no_outcome_of_all_fails_all(
    harness: Harness, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("a", "b")
    consumer = harness.consumer(harness.handler(answer=lambda messages: result), batch=2)
    with harness.running(consumer):
        harness.clock.advance(1)
        assert (consumer.handled, consumer.failed) == (0, 2)
    assert ("a handler of 2 messages returns an Outcome for all or a list of 2" in caplog.text) is not isinstance(
        result, str | Outcome
    )
    assert harness.other.counts().in_flight == 2


@pytest.mark.spec("DLQ-1", "DLQ-4")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_poison_message_becomes_a_dead_letter_alone(harness: Harness, asynchronous: bool) -> None:
    fails = raises(ValueError("cannot read it"), "poison")
    harness.with_dead_letters(2)
    harness.send(*"abcd", "poison", *"efgh")
    seen = harness.handler(0, lambda messages: [fails(each) for each in messages], asynchronous)
    harness.consume(seen, 5, concurrency=2, batch=9, retry_failed_at_once=True)
    assert sizes(seen)[0] == 9 and sizes(seen)[1:] == [1] * 9
    [letter] = harness.lq.queue("dead").peek()
    assert letter.body == "poison" and letter.dead_letter_reason is not None
    assert letter.dead_letter_reason.text == "cannot read it"
    assert sorted(body for _, body in harness.queue.deletes()) == list("abcdefgh")


@pytest.mark.spec("HBN-23", "DLQ-1")
@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_last_receive_is_for_a_hand_that_begins_at_once(harness: Harness, concurrency: int, batch: int) -> None:
    """So that a consumer that is killed makes no dead letter that no handler has seen."""
    harness.with_dead_letters(2)
    harness.send(*(str(number) for number in range(60)))
    again: list[float] = []

    def handle(messages: list[Message], contexts: list[Context]) -> None:
        if messages[0].receive_count == 2:
            assert messages[0].received_at is not None and len(messages) == 1
            again.append((harness.clock.now() - messages[0].received_at).total_seconds())
        contexts[0].sleep(0.1)
        if messages[0].receive_count == 1 and len(again) < 10:
            raise ValueError("not now")

    options = {"concurrency": concurrency, "batch": batch, "batch_wait": 0, "retry_failed_at_once": True}
    harness.consume(handle, 30, **options)
    assert len(again) >= 10 and {*again} == {0}
    assert harness.other.counts().visible == harness.other.counts().in_flight == 0
    assert harness.lq.queue("dead").counts().visible == 0


@pytest.mark.spec("HBN-23")
@pytest.mark.parametrize("batch", [None, 20])
def test_a_hand_that_was_kept_begins_nothing_before_the_last_receive_that_was_claimed_for_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    harness.with_dead_letters(2)
    harness.send(*(str(number) for number in range(60)))
    begin, taken = QueueLoop._begin, list[object]()

    def late(loop: QueueLoop, messages: Sequence[Message]) -> None:
        if any(message.last_receive for message in messages):
            taken.append(loop.take())  # as a hand does that is awake before the message is there
        begin(loop, messages)

    monkeypatch.setattr(QueueLoop, "_begin", late)
    options = {} if batch is None else {"batch": batch, "batch_wait": 0}
    handler = harness.handler(0.1, raises(ValueError("not now")))
    harness.consume(handler, 6, concurrency=1, retry_failed_at_once=True, **options)
    assert len(taken) >= 10 and not any(taken)


@pytest.mark.spec("HBN-20")
def test_a_stop_returns_a_batch_that_has_not_begun_as_never_received(harness: Harness) -> None:
    harness.send("a", "b")
    seen = harness.handler()
    with harness.running(harness.consumer(seen, batch=10, batch_wait=30)) as running:
        harness.clock.advance(1)
        assert harness.other.counts().in_flight == 2
        running._consumer.stop()
        running.join()
    assert seen.begun == [] and harness.visible() == ["a", "b"]
    assert [message.receive_count for message in harness.other.peek()] == [0, 0]


def test_a_message_that_was_lost_is_not_in_the_batch_and_has_no_outcome(harness: Harness) -> None:
    harness.send("a", "b", "c")
    lost: list[list[bool]] = []

    def handle(messages: list[Message], contexts: list[Context]) -> None:
        harness.other.cancel(messages[1].message_id)
        contexts[0].sleep(40)
        lost.append([bool(context.lost) for context in contexts])

    harness.consume(handle, 60, batch=3)
    assert lost == [[False, True, False]]
    assert [body for _, body in harness.queue.deletes()] == ["a", "c"]


def test_a_handler_of_single_messages_is_refused(harness: Harness) -> None:
    with pytest.raises(InvalidOptions, match=r"a handler of batches takes two lists"):
        harness.consumer(lambda messages: None, batch=5)


def test_a_batch_is_a_table_of_arrow(harness: Harness) -> None:
    tables: list[pa.Table] = []

    def handle(table: pa.Table, contexts: list[Context]) -> list[Outcome]:
        tables.append(table)
        return [Outcome.SUCCESS if body != "b" else Outcome.FAILED for body in table["body"].to_pylist()]

    harness.other.send("a", attributes={"lang": "en", "raw": b"\0"})
    harness.other.send("b")
    harness.consume(handle, 5, concurrency=1, batch=2, as_arrow=True)
    [table] = tables
    assert table.schema.equals(MESSAGE_SCHEMA) and set(MESSAGE_SCHEMA.names) < set(SCHEMA.names)
    assert table["body"].to_pylist() == ["a", "b"] and table["receive_count"].to_pylist() == [1, 1]
    first, second = (dict(each) for each in table["message_attributes"].to_pylist())
    assert first["lang"]["string_value"] == "en" and first["raw"]["binary_value"] == b"\0" and second == {}
    assert harness.other.counts().in_flight + harness.other.counts().visible == 1
