"""What was handled waits for the next claim of its consumer, so that one commit does both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.harness import Harness, commits, raises, sleeper
from lakequeue import Message, NoRenewal, Outcome, Queue

Make = Callable[..., Harness]


def linger(harness: Harness, seconds: float = 0.1) -> Harness:
    """Lets what is handled wait as if time passed by itself."""
    harness.queue._runtime.root.linger = round(seconds * 1_000_000)
    return harness


def deleted_at(harness: Harness, seconds: float = 5, **options: Any) -> list[float]:
    """When a consumer whose handlers take no time deletes what there is."""
    harness.consume(sleeper(0), seconds, **options)
    return [at for at, _ in harness.queue.deletes()]


def one_commit_for_a_round(harness: Harness) -> None:
    linger(harness)
    before = commits(harness)
    with harness.running(harness.consumer(harness.handler(0.005))):
        for body in "ABCDEF":
            harness.send(body)
            harness.clock.advance(0.05)
        harness.clock.advance(1)
    assert commits(harness) - before == 7, "six claims, five of which delete, and the last delete"
    assert harness.other.counts().in_flight == 0


def a_handled_message_waits_as_long_as_it_may(harness: Harness) -> None:
    linger(harness).send("A")
    assert deleted_at(harness) == [0.1]


def a_receipt_is_not_used_up(harness: Harness) -> None:
    linger(harness, 60).send("A")
    assert deleted_at(harness, 60, renewal=NoRenewal()) == [40]


def what_is_urgent_does_not_wait_with_the_rest(harness: Harness) -> None:
    linger(harness, 2).send("A", "B")

    def fails(message: Message) -> Outcome | None:
        return Outcome.FAILED_RETRY_NOW if message.body == "B" and message.receive_count == 1 else None

    harness.consume(harness.handler(lambda message: 0.5 * (message.body == "B"), fails), 1)
    assert harness.queue.deletes()[0] == (0.5, "A") and harness.queue.changes("B")[0] == (0.5, 0)


def nothing_waits(harness: Harness) -> None:
    harness.send("A")
    assert deleted_at(harness) == [0]


@pytest.mark.spec("HBN-24", "HBN-27")
def test_a_commit_deletes_and_claims_though_the_next_message_comes_later(harness: Harness) -> None:
    one_commit_for_a_round(harness)


@pytest.mark.spec("HBN-27")
def test_a_handled_message_waits_a_tenth_of_a_second_for_the_next_claim(harness: Harness) -> None:
    a_handled_message_waits_as_long_as_it_may(harness)


@pytest.mark.spec("HBN-27")
def test_a_handled_message_waits_for_a_third_of_what_is_left_of_its_receipt(harness: Harness) -> None:
    a_receipt_is_not_used_up(harness)


@pytest.mark.spec("HBN-15", "HBN-27")
def test_a_failure_is_settled_at_once_and_so_is_what_waits(harness: Harness) -> None:
    what_is_urgent_does_not_wait_with_the_rest(harness)


@pytest.mark.spec("HBN-27", "INF-3", "JOB-11", "FIF-8")
@pytest.mark.parametrize(
    "attributes",
    [{"fifo": True}, {"max_inflight_messages": 10}, {"rate_limit": "100/s"}, {"group_in_flight_limit": 5}],
    ids=lambda attributes: next(iter(attributes)),
)
def test_nothing_waits_where_a_claim_may_wait_for_it(make: Make, attributes: dict[str, Any]) -> None:
    nothing_waits(linger(make(**attributes)))


@pytest.mark.spec("HBN-27")
def test_nothing_waits_while_there_are_messages_and_at_the_end(harness: Harness) -> None:
    linger(harness, 2).send(*"ABC")
    harness.consumer(sleeper(0), concurrency=1, prefetch=0).run(until_empty=True)
    assert [at for at, _ in harness.queue.deletes()] == [0, 0, 0]


@pytest.mark.spec("HBN-27", "HBN-19")
@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_stop_and_a_pause_settle_what_waits(harness: Harness, how: str) -> None:
    linger(harness, 2).send("A")
    consumer = harness.consumer(sleeper(0))
    with harness.running(consumer):
        harness.clock.advance(0.5)
        assert harness.other.counts().in_flight == 1
        getattr(consumer, how)()
        harness.clock.advance(0)
        assert [at for at, _ in harness.queue.deletes()] == [0.5]


@pytest.mark.spec("HBN-27", "HBN-26", "JOB-3")
def test_what_waits_and_is_cancelled_by_others_does_no_harm(harness: Harness) -> None:
    linger(harness, 2).send("A")
    with harness.running(harness.consumer(sleeper(0))):
        harness.clock.advance(0.5)
        [message] = harness.other.peek()
        assert harness.other.cancel(message.message_id)
        harness.clock.advance(5)
        harness.send("B")
        harness.clock.advance(5)
    assert harness.other.counts().in_flight == harness.other.counts().visible == 0


# --- claims of all messages


def claimed_at(harness: Harness, *options: Any, **more: Any) -> list[float]:
    """Seconds at which handlers begin with A at 0, B at 0.2, C at 0.4 and D at 5."""
    handler = harness.handler()
    with harness.running(harness.consumer(handler, **more)):
        for body, then in (("A", 0.2), ("B", 0.2), ("C", 4.6), ("D", 1)):
            harness.send(body)
            harness.clock.advance(then)
    return handler.at


def one_claim_in_an_interval(harness: Harness) -> None:
    before = commits(harness)
    assert claimed_at(harness, claim_interval=1) == [0, 1, 1, 5]
    assert commits(harness) - before == 5, "three claims, of which one deletes, and two deletes"


def what_a_claim_left_is_claimed_at_once(harness: Harness) -> None:
    harness.send(*"ABC")
    handler = harness.handler(0.1)
    harness.consume(handler, 1, concurrency=1, prefetch=0, claim_interval=1)
    assert handler.at == pytest.approx([0, 0.1, 0.2])


def nothing_rests(harness: Harness) -> None:
    assert claimed_at(harness, claim_interval=1) == pytest.approx([0, 0.2, 0.4, 5])


@pytest.mark.spec("HBN-29")
def test_after_a_claim_of_all_messages_the_next_claim_waits_for_the_interval(harness: Harness) -> None:
    one_claim_in_an_interval(harness)


@pytest.mark.spec("HBN-29")
def test_what_a_claim_left_is_claimed_at_once(harness: Harness) -> None:
    what_a_claim_left_is_claimed_at_once(harness)


@pytest.mark.spec("HBN-29", "INF-3", "JOB-11", "FIF-8")
@pytest.mark.parametrize(
    "attributes",
    [{"fifo": True}, {"max_inflight_messages": 10}, {"rate_limit": "100/s"}, {"group_in_flight_limit": 5}],
    ids=lambda attributes: next(iter(attributes)),
)
def test_a_claim_that_may_wait_for_a_delete_has_no_interval(make: Make, attributes: dict[str, Any]) -> None:
    nothing_rests(make(**attributes))


@pytest.mark.spec("HBN-29", "HBN-15")
def test_a_failure_is_settled_within_the_interval(harness: Harness) -> None:
    harness.send("A")
    handler = harness.handler(0.5, lambda message: Outcome.FAILED_RETRY_NOW)
    harness.consume(handler, 0.9, claim_interval=1)
    assert handler.at == [0, 0.5]


@pytest.mark.spec("HBN-29")
@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_stop_and_a_pause_settle_within_the_interval(harness: Harness, how: str) -> None:
    harness.send("A")
    consumer = harness.consumer(sleeper(0), claim_interval=1)
    with harness.running(consumer):
        harness.clock.advance(0.5)
        getattr(consumer, how)()
        harness.clock.advance(0)
        assert [at for at, _ in harness.queue.deletes()] == [0.5]


# --- failures on last receives


def dying(harness: Harness, number: int, seconds: float = 0.1) -> Queue:
    """Messages whose only receive fails. Returns their dead-letter queue."""
    dead: Queue = linger(harness, seconds).with_dead_letters(1)
    harness.send(*(str(each) for each in range(number)))
    return dead


def several_move_together(harness: Harness) -> None:
    dead, before = dying(harness, 20), commits(harness)
    harness.consumer(harness.handler(0, raises(ValueError())), concurrency=1).run(until_empty=True)
    assert dead.counts().visible == 20
    assert commits(harness) - before <= 26, "20 claims, and two or three for one move, or for two"


def a_letter_waits_for_no_hand(harness: Harness) -> None:
    dead = dying(harness, 3)
    handler = harness.handler(lambda message: 60 * (message.body == "1"), raises(ValueError(), "0"))
    with harness.running(harness.consumer(handler, concurrency=1)):
        harness.clock.advance(0.05)
        assert (dead.counts().visible, harness.other.counts().in_flight) == (0, 2)
        harness.clock.advance(0.1)
        assert (dead.counts().visible, harness.other.counts().in_flight) == (1, 1)


@pytest.mark.spec("HBN-28", "DLQ-2")
def test_messages_that_fail_for_the_last_time_move_in_one_commit(harness: Harness) -> None:
    several_move_together(harness)


@pytest.mark.spec("HBN-28", "DLQ-2")
def test_a_message_that_failed_moves_in_time_while_all_handlers_are_busy(harness: Harness) -> None:
    a_letter_waits_for_no_hand(harness)


@pytest.mark.spec("HBN-28", "JOB-10")
def test_a_message_that_failed_does_not_wait_without_others_and_keeps_its_reason(
    harness: Harness,
) -> None:
    dead = dying(harness, 1, 60)
    harness.consume(harness.handler(0, raises(ValueError("poison"))), 1)
    [letter] = dead.peek()
    assert letter.dead_letter_reason is not None and "poison" in str(letter.dead_letter_reason)


@pytest.mark.spec("HBN-28", "FIF-8", "INF-3", "JOB-11")
@pytest.mark.parametrize(
    "attributes",
    [{"fifo": True}, {"max_inflight_messages": 10}, {"rate_limit": "100/s"}, {"group_in_flight_limit": 5}],
    ids=lambda attributes: next(iter(attributes)),
)
def test_no_failure_waits_where_a_claim_may_wait_for_it(make: Make, attributes: dict[str, Any]) -> None:
    harness = make(**attributes)
    dying(harness, 2, 60)
    handler = harness.handler(lambda message: 5 * (message.body == "1"), raises(ValueError(), "0"))
    with harness.running(harness.consumer(handler)):
        harness.clock.advance(1)
        assert [at for at, _ in harness.queue.changes("0")] == [0]


@pytest.mark.spec("HBN-28", "HBN-20")
@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_stop_and_a_pause_settle_failures_that_wait(harness: Harness, how: str) -> None:
    dying(harness, 3, 30)
    handler = harness.handler(lambda message: 3 * (message.body == "1"), raises(ValueError(), "0"))
    consumer = harness.consumer(handler, concurrency=1)
    with harness.running(consumer):
        harness.clock.advance(1)
        assert not harness.queue.changes("0")
        getattr(consumer, how)()
        harness.clock.advance(0)
        assert [at for at, _ in harness.queue.changes("0")] == [1]
        harness.clock.advance(5)
