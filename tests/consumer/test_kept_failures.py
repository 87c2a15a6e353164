"""What a consumer keeps of the handlers that failed with a message (JOB-10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.harness import Harness, raises, sleeper
from insides import shard_of
from lakequeue import Context, Message, Outcome, RetryBackoff

pytestmark = pytest.mark.spec("JOB-10")


def attempts(harness: Harness) -> list[list[tuple[float, str, str, str]]]:
    """Second, error, text and consumer of the failed attempts of each message."""
    return [
        [
            ((each.at - harness.queue.began).total_seconds(), each.error, each.text, each.consumer)
            for each in message.attempts
        ]
        for message in harness.other.peek()
    ]


def failing(message: Message, context: Context) -> Any:
    if message.receive_count == 2:
        return Outcome.FAILED
    raise ValueError(f"attempt {message.receive_count}")


async def failing_async(message: Message, context: Context) -> Any:
    return failing(message, context)


def failing_batch(messages: list[Message], contexts: list[Context]) -> Any:
    return failing(messages[0], contexts[0])


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (failing, {}),
        (failing_async, {}),
        (failing_batch, {"batch": 3, "batch_wait": 0}),
        (failing, {"retry_delay": RetryBackoff(30, factor=1)}),
    ],
)
def test_each_failed_attempt_is_kept(harness: Harness, handler: Any, options: dict[str, Any]) -> None:
    harness.send("A")
    with harness.running(harness.consumer(handler, name="worker", **options)):
        harness.clock.advance(20)
        assert attempts(harness) == [[(0, "ValueError", "attempt 1", "worker")]]
        harness.clock.advance(60)
    assert attempts(harness) == [
        [
            (0, "ValueError", "attempt 1", "worker"),
            (30, "Outcome.FAILED", "", "worker"),
            (60, "ValueError", "attempt 3", "worker"),
        ]
    ]


def test_a_queue_of_which_nothing_fails_pays_nothing(harness: Harness) -> None:
    harness.send(*"ABC")
    before = shard_of(harness.other).ledger.query(lambda machine: machine.head.epoch)
    harness.consumer(sleeper(0), concurrency=1, prefetch=0).run(until_empty=True)
    assert shard_of(harness.other).ledger.query(lambda machine: machine.head.epoch) - before == 4
    assert shard_of(harness.other).ledger.query(lambda machine: machine.runs) == []


def test_a_success_after_failures_leaves_nothing(make: Callable[..., Harness]) -> None:
    harness = make(visibility_timeout=5, rewind_range=3600)
    harness.send("A")
    fails = raises(ValueError())
    handler = harness.handler(answer=lambda message: fails(message) if message.receive_count < 4 else None)
    harness.consume(handler, 1, retry_failed_at_once=True)
    assert harness.other.counts().rewindable == 1
    assert harness.other.rewind(harness.other.created_at) == 1
    assert attempts(harness) == [[]]
