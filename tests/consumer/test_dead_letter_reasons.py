"""Why a message became a dead letter: kept from the handler that had it last, until a redrive."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest

from insides import shard_of
from lakequeue import Consumer, DeadLetterReason, LakeQueue, Outcome, Queue, RedrivePolicy
from lakequeue.model.failures import parse_reason


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def pair(lq: LakeQueue, ending: str = "", receives: int = 1) -> tuple[Queue, Queue]:
    fifo = {"fifo": True} if ending else {}
    dead = lq.create_queue(f"dead{ending}", **fifo)
    policy = RedrivePolicy(dead.name, receives)
    return lq.create_queue(f"orders{ending}", redrive_policy=policy, visibility_timeout=10, **fifo), dead


def consume(queue: Queue, handler: Any, **options: Any) -> Consumer:
    consumer = Consumer(queue, handler, wait_time=0, name="worker", **options)
    consumer.run(until_empty=True)
    return consumer


def bury(queue: Queue, handler: Any, at_once: bool = True) -> None:
    """Has the only message of a queue handled until it is a dead letter."""
    consume(queue, handler, make_failed_messages_visible_immediately=at_once)
    queue.clock.advance(60)  # type: ignore[attr-defined]
    assert queue.receive() == []


def failing(error: BaseException) -> Any:
    def handle(message: Any, context: Any) -> None:
        raise error

    return handle


@pytest.mark.spec("DLQ-4")
@pytest.mark.parametrize("ending", ["", ".fifo"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_dead_letter_has_its_last_error(lq: LakeQueue, ending: str, at_once: bool) -> None:
    orders, dead = pair(lq, ending)
    orders.send("a", **({"group_id": "g", "dedup_id": "1"} if ending else {}))
    began = lq.clock.now()
    bury(orders, failing(ValueError("no such customer")), at_once)
    [peeked], [received] = dead.peek(), dead.receive()
    reason = received.dead_letter_reason
    assert reason is not None and peeked.dead_letter_reason == reason
    assert (reason.error, reason.text, reason.consumer) == ("ValueError", "no such customer", "worker")
    assert reason.at == began
    assert "no such customer" not in str(received.attributes)  # clients of SQS see what they know
    assert dead.peek("dead_letter_reason->>'$.error' = 'ValueError'") == dead.peek()
    shown = lq.arrow_views()["messages"].to_batches(columns=["queue", "dead_letter_reason"])
    told = {row["queue"]: row["dead_letter_reason"] for batch in shown for row in batch.to_pylist()}
    assert told == {orders.name: None, dead.name: reason.json()}


def test_a_reason_costs_no_commit_more(lq: LakeQueue) -> None:
    def commits(queue: Queue) -> int:
        def handle(message: Any, context: Any) -> None:
            consumer.stop()
            raise ValueError

        queue.send("a")
        shard = shard_of(queue)
        before = shard.ledger.query(lambda machine: machine.head.epoch)
        consumer = Consumer(queue, handler=handle, wait_time=0, make_failed_messages_visible_immediately=True)
        consumer.run()
        return shard.ledger.query(lambda machine: machine.head.epoch) - before

    orders, _ = pair(lq, receives=1)  # so its first failure is the last one
    assert commits(orders) == commits(lq.create_queue("others")) == 2


def test_only_the_last_failure_is_kept(lq: LakeQueue) -> None:
    orders, dead = pair(lq, receives=2)
    orders.send("a")
    errors = iter([ValueError("first"), KeyError("second")])
    bury(orders, lambda message, context: (_ for _ in ()).throw(next(errors)))
    [letter] = dead.receive()
    assert letter.dead_letter_reason is not None and letter.dead_letter_reason.error == "KeyError"


def test_a_killed_consumer_leaves_no_reason(lq: LakeQueue) -> None:
    orders, dead = pair(lq, receives=2)
    orders.send("a")

    def handle(message: Any, context: Any) -> None:
        consumer.stop()
        raise ValueError

    consumer = Consumer(orders, handle, wait_time=0, make_failed_messages_visible_immediately=True)
    consumer.run()
    orders.receive(visibility_timeout=0)  # by one that says nothing any more
    assert orders.receive() == []
    assert dead.receive()[0].dead_letter_reason is None


@pytest.mark.parametrize(
    ("handler", "error", "length"),
    [
        (lambda message, context: Outcome.FAILED, "Outcome.FAILED", 0),
        (failing(RuntimeError("é" * 1_000)), "RuntimeError", 512),
    ],
)
def test_reasons_are_short_whatever_the_error_is(lq: LakeQueue, handler: Any, error: str, length: int) -> None:
    orders, dead = pair(lq)
    orders.send("a")
    bury(orders, handler)
    reason = dead.receive()[0].dead_letter_reason
    assert reason is not None and (reason.error, len(reason.text)) == (error, length)


def test_an_error_that_cannot_be_printed_is_a_reason(lq: LakeQueue) -> None:
    reason = DeadLetterReason.of(Broken(), lq.clock.now(), "worker")
    assert (reason.error, reason.text) == ("Broken", "")
    assert parse_reason(reason.json()) == reason and parse_reason("load-1") is parse_reason(None) is None


@pytest.mark.spec("DLQ-8")
def test_a_redrive_and_an_erasure_clear_the_reason(lq: LakeQueue) -> None:
    orders, dead = pair(lq)
    orders.send("a")
    bury(orders, failing(ValueError("secret")))
    assert dead.redrive() == 1
    assert orders.peek()[0].dead_letter_reason is None
    bury(orders, failing(ValueError("secret")))
    [letter] = dead.peek()
    assert letter.dead_letter_reason is not None
    dead.erase(letter.message_id)
    shown = lq.arrow_views()["messages"].to_batches(
        columns=["body", "dead_letter_reason"], filter=pc.field("queue") == "dead"
    )
    rows = [row for batch in shown for row in batch.to_pylist()]
    assert {"body": "", "dead_letter_reason": None} in rows


def test_a_failure_is_logged_with_its_message(lq: LakeQueue, caplog: pytest.LogCaptureFixture) -> None:
    orders, _ = pair(lq)
    sent = orders.send("a")
    consumer = consume(orders, failing(ValueError("bad")))
    [record] = [each for each in caplog.records if each.exc_info]
    assert {name: getattr(record, name) for name in ("queue", "message_id", "receive_count", "consumer")} == {
        **{"queue": "orders", "message_id": sent.message_id, "receive_count": 1, "consumer": "worker"}
    }
    assert (consumer.handled, consumer.failed) == (0, 1)
