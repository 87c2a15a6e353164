"""What becomes of messages: outcomes of handlers, groups, stops, lost receipts, and bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from consumer.harness import Harness, raises, sleeper
from lakequeue import (
    ComputedRenewal,
    Consumer,
    Context,
    HeartbeatRenewal,
    InvalidOptions,
    LeaseLost,
    Message,
    NoRenewal,
    Outcome,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    RequestThrottled,
)
from lakequeue.testing import ManualClock

HEARTBEAT, COMPUTED = HeartbeatRenewal(), ComputedRenewal(30)


# --- outcomes


@pytest.mark.spec("HBN-2", "DEL-6", "FIF-15")
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("result", [None, Outcome.SUCCESS])
def test_a_queue_is_consumed_until_it_is_empty(make: Callable[..., Harness], fifo: bool, result: Any) -> None:
    harness = make(fifo=fifo)
    bodies = [f"{group}{number}" for number in range(4) for group in "abc"]
    harness.send(*bodies)
    handler = harness.handler(answer=result)
    harness.consumer(handler, concurrency=5).run(until_empty=True)
    assert sorted(handler.bodies) == sorted(bodies)
    assert harness.other.counts().in_flight == 0
    assert harness.clock.now() == ManualClock().now()  # nothing waited


@pytest.mark.spec("HBN-3", "HBN-15", "HNS-14")
@pytest.mark.parametrize(
    ("policy", "option", "at"),
    [
        (HEARTBEAT, None, 30),
        (HEARTBEAT, False, 30),
        (HEARTBEAT, True, 5),
        (COMPUTED, None, 5),
        (COMPUTED, True, 5),
        (COMPUTED, False, 30),
    ],
)
@pytest.mark.parametrize("fails", [lambda message: Outcome.FAILED, raises(ValueError("no"))])
def test_when_a_failed_message_comes_again(
    harness: Harness, policy: Any, option: bool | None, at: float, fails: Any
) -> None:
    harness.send("A")
    handler = harness.handler(
        lambda message: 5 if message.receive_count == 1 else 0,
        lambda message: fails(message) if message.receive_count == 1 else Outcome.SUCCESS,
    )
    harness.consume(handler, 40, concurrency=1, renewal=policy, make_failed_messages_visible_immediately=option)
    assert handler.at == [0, at]
    assert harness.queue.deletes() == [(at, "A")]


@pytest.mark.spec("HBN-15")
@pytest.mark.parametrize("policy", [HEARTBEAT, COMPUTED, NoRenewal()])
def test_a_handler_may_ask_for_a_retry_at_once(harness: Harness, policy: Any) -> None:
    harness.send("A")
    handler = harness.handler(
        answer=lambda message: Outcome.SUCCESS if message.receive_count == 3 else Outcome.FAILED_RETRY_NOW
    )
    harness.consumer(handler, renewal=policy, retry_failed_at_once=False).run(until_empty=True)
    assert handler.receives == [1, 2, 3]


@pytest.mark.spec("RET-5", "HBN-3")
def test_a_failed_message_comes_again_until_it_expires(harness: Harness) -> None:
    harness.other.set_attributes(message_retention_period=60)
    harness.send("A")
    handler = harness.handler(20, Outcome.FAILED)
    harness.consume(handler, 200)
    assert handler.at == [0, 30]


@pytest.mark.spec("HBN-3")
def test_what_a_handler_raises_is_logged_and_harms_nothing_else(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("good", "bad", "odd", "good as well")
    fails = raises(ZeroDivisionError("by a handler"), "bad")
    handler = harness.handler(answer=lambda message: fails(message) or (True if message.body == "odd" else None))
    harness.consumer(handler, concurrency=2).run(until_empty=True)
    assert sorted(body for _, body in harness.queue.deletes()) == ["good", "good as well"]
    assert "by a handler" in caplog.text
    assert "returns an Outcome or None, not True" in caplog.text


def test_a_queue_that_allows_no_zero_gets_failed_messages_after_a_second(make: Callable[..., Harness]) -> None:
    harness = make(profile="cmq")
    harness.send("A")
    with harness.running(harness.consumer(sleeper(0, Outcome.FAILED_RETRY_NOW), concurrency=1), until_empty=True):
        harness.clock.advance(1)
    assert harness.queue.changes()[0] == (0, 1)


# --- concurrency


@pytest.mark.spec("HBN-18", "HNS-20")
@pytest.mark.parametrize(("concurrency", "largest"), [(3, 3), (25, 10)])
def test_a_receive_asks_for_no_more_than_may_be_active(
    make: Callable[..., Harness], concurrency: int, largest: int
) -> None:
    harness = make(profile="sqs")
    for _ in range(3):
        harness.send(*"0123456789")
    handler = harness.handler(1)
    with harness.running(harness.consumer(handler, concurrency=concurrency), until_empty=True):
        harness.clock.advance(20)
    asked = [call["max_messages"] for call in harness.queue.receives()]
    assert asked[0] == largest and max(asked) <= largest
    assert handler.most == concurrency and len(handler.begun) == 30


@pytest.mark.spec("HBN-18", "HBN-17")
def test_a_full_consumer_waits_for_an_end_instead_of_asking(harness: Harness) -> None:
    harness.send("A", "B")
    with harness.running(harness.consumer(sleeper(10), concurrency=1)):
        harness.clock.advance(9)
        assert [call["wait_time"] for call in harness.queue.receives()] == [20]
        harness.clock.advance(1)
        assert [call["max_messages"] for call in harness.queue.receives()] == [1, 1]


@pytest.mark.spec("HBN-18")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_concurrency_may_change_while_a_consumer_runs(harness: Harness, asynchronous: bool) -> None:
    harness.send(*"ABCDEFGHIJ")
    handler = harness.handler(10, asynchronous=asynchronous)
    consumer = harness.consumer(handler, concurrency=1, prefetch=0)
    with harness.running(consumer):
        for number, at in ((3, 5), (2, 12), (4, 32)):
            harness.clock.advance(at - harness.now)
            consumer.concurrency = number
            harness.clock.advance(0)
        harness.clock.advance(10)
    assert sorted(handler.at) == [0, 5, 5, 10, 15, 20, 25, 30, 32, 32]
    with pytest.raises(InvalidOptions, match="concurrency: must be a whole number of at least 1, not 0"):
        consumer.concurrency = 0


@pytest.mark.spec("HBN-18")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_lower_concurrency_holds_for_what_was_claimed_ahead(harness: Harness, asynchronous: bool) -> None:
    harness.send(*map(str, range(20)))
    handler = harness.handler(10, asynchronous=asynchronous)
    consumer = harness.consumer(handler, concurrency=4, prefetch=16)
    with harness.running(consumer):
        harness.clock.advance(5)
        consumer.concurrency = 2
        harness.clock.advance(40)
    assert [handler.at.count(at) for at in (0, 20, 30, 40)] == [4, 2, 2, 2]


def test_a_receive_that_does_not_wait_is_repeated_with_pauses(harness: Harness) -> None:
    harness.consume(sleeper(0), 2, wait_time=0)
    assert 5 <= len(harness.queue.receives()) <= 12


# --- groups


@pytest.mark.spec("HBN-19", "FIF-3")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_groups_go_in_parallel_and_their_messages_in_turn(fifo: Harness, asynchronous: bool) -> None:
    fifo.send("a1", "b1", "a2", "b2", "a3")
    handler = fifo.handler(lambda message: 2 if message.group_id == "a" else 1, asynchronous=asynchronous)
    with fifo.running(fifo.consumer(handler, prefetch=5), until_empty=True):
        fifo.clock.advance(10)
    assert sorted(handler.begun) == [(0, "a1"), (0, "b1"), (1, "b2"), (2, "a2"), (4, "a3")]
    assert [body for _, body in fifo.queue.deletes() if body[0] == "a"] == ["a1", "a2", "a3"]


@pytest.mark.spec("HBN-18", "HBN-19")
def test_each_hand_begins_a_group_of_its_own_and_other_processes_get_the_other_groups(fifo: Harness) -> None:
    fifo.send(*(f"{group}{number}" for group in "abcdef" for number in range(4)))
    handler = fifo.handler(1)
    consumer = fifo.consumer(handler, concurrency=4)
    with fifo.running(consumer):
        fifo.clock.advance(0.5)
        assert sorted(handler.bodies) == ["a0", "b0", "c0", "d0"] and consumer.health.active == 4
        assert {message.group_id for message in fifo.other.receive(10)} == {"e", "f"}
        fifo.clock.advance(1)  # what the handlers have finished frees their groups in the same commit
        assert sorted(handler.bodies[4:]) == ["a1", "b1", "c1", "d1"]


@pytest.mark.spec("HBN-18", "HBN-19")
@pytest.mark.parametrize(("most", "groups"), [(1_000, "abcd"), (7, "ab")])
def test_a_free_hand_begins_another_group_however_many_messages_wait_in_the_first(
    fifo: Harness, monkeypatch: pytest.MonkeyPatch, most: int, groups: str
) -> None:
    """And no more are held than a consumer holds ever."""
    monkeypatch.setattr("lakequeue.consumer.pool.MOST", most)
    fifo.send(*(f"{group}{number}" for group in "abcd" for number in range(4)))
    handler = fifo.handler(1)
    consumer = fifo.consumer(handler, concurrency=4, prefetch=3)
    with fifo.running(consumer):
        fifo.clock.advance(0.5)
        assert sorted(handler.bodies) == [f"{group}0" for group in groups]
        assert consumer.health.active == min(most, 4 + 3 + 2 + 1)


@pytest.mark.spec("HBN-19", "FIF-1")
@pytest.mark.parametrize(("at_once", "again"), [(False, 30), (True, 5)])
def test_after_a_failure_the_rest_of_the_group_is_skipped(fifo: Harness, at_once: bool, again: float) -> None:
    fifo.send("a1", "a2", "a3", "b1", "b2")
    handler = fifo.handler(
        lambda message: 2.5 if message.group_id == "a" else 1,
        lambda message: Outcome.FAILED if message.body == "a2" and message.receive_count == 1 else None,
    )
    fifo.consume(handler, 40, make_failed_messages_visible_immediately=at_once, prefetch=5)
    assert [entry for entry in handler.begun if entry[1][0] == "a"] == [
        (0, "a1"),
        (2.5, "a2"),
        (again, "a2"),
        (again + 2.5, "a3"),
    ]
    assert [body for _, body in fifo.queue.deletes()] == ["b1", "b2", "a1", "a2", "a3"] or at_once
    assert fifo.other.counts().in_flight == 0


@pytest.mark.spec("HBN-19", "FIF-9")
def test_a_group_is_handed_back_in_its_order(make: Callable[..., Harness]) -> None:
    harness = make(fifo=True, profile="sqs")
    bodies = [f"{group}{number}" for group, count in (("a", 8), ("b", 2), ("c", 5)) for number in range(count)]
    harness.send(*bodies[:10])
    harness.send(*bodies[10:])
    orders: list[str] = []
    consumer = harness.consumer(sleeper(5, Outcome.FAILED_RETRY_NOW), concurrency=15, prefetch=5)

    def look(verb: str, asked: list[str]) -> None:
        if verb == "change":
            orders.extend(asked)
            assert harness.other.receive(10, visibility_timeout=0) == []  # while the first of each is hidden

    harness.queue.before = look
    with harness.running(consumer):
        consumer.stop()
        harness.clock.advance(0)
        assert orders == [body for body in bodies if body[1] != "0"]  # at once
        harness.fails()
        harness.clock.advance(5)
    again = [message.body for message in harness.other.receive(10) + harness.other.receive(10)]
    assert sorted(again, key=lambda body: body[0]) == bodies  # sorting keeps the order within a group


@pytest.mark.spec("HBN-19", "HBN-20")
def test_a_group_is_not_continued_behind_a_message_that_was_lost(fifo: Harness) -> None:
    fifo.send("a1", "a2")
    handler = fifo.handler(35)  # longer than the timeout, which nobody extends
    consumer = fifo.consumer(handler, renewal=HeartbeatRenewal(disable_extension=True))
    with fifo.running(consumer):
        fifo.clock.advance(20)
        consumer.stop(timeout=100)
        fifo.clock.advance(20)
    assert handler.bodies == ["a1"]
    assert fifo.visible() == ["a1", "a2"]


# --- lost receipts


@pytest.mark.spec("HBN-20", "HNS-13", "RCP-6")
@pytest.mark.parametrize(("policy", "at"), [(HeartbeatRenewal(30, 5, 1), 25), (ComputedRenewal(30), 20)])
def test_a_handler_learns_of_its_lost_receipt_and_the_renewal_ends(
    harness: Harness, policy: Any, at: float, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    told = []

    def handle(message: Message, context: Context) -> None:
        harness.other.change_visibility(message.receipt_handle, 0)  # as a purge of hands elsewhere would
        [again] = harness.other.receive(visibility_timeout=500)
        assert not context.lost
        assert context.sleep(1_000) is False
        told.append(harness.now)
        assert context.lost and context.lost.is_set()
        context.raise_if_lost()

    harness.consume(handle, 100, concurrency=1, renewal=policy)
    assert told == [at]
    assert len(harness.queue.changes()) == 1
    assert harness.other.counts().in_flight == 1  # with the other one
    assert "was lost while" in caplog.text and "the handler failed" not in caplog.text
    why = "its timeout passed, or it was taken elsewhere; its handler still runs"
    assert caplog.messages[0].startswith("extending message ") and caplog.messages[0].endswith(f"failed: {why}")


@pytest.mark.spec("HBN-20")
def test_nothing_is_lost_before_it_is(harness: Harness) -> None:
    harness.send("A")
    results = []
    harness.consumer(lambda _, context: results.append(context.raise_if_lost())).run(until_empty=True)
    assert results == [None]
    context = Context(Message.__new__(Message), harness.queue, lambda: None)
    context.lost.set()
    with pytest.raises(LeaseLost):
        context.raise_if_lost()


@pytest.mark.spec("HBN-20", "RCP-11")
def test_the_handler_of_a_deleted_message_learns_that_it_is_lost(harness: Harness) -> None:
    harness.send("A")
    lost = []

    def handle(message: Message, context: Context) -> None:
        harness.other.delete(message.receipt_handle)
        lost.append(not context.sleep(60))

    running = harness.consume(handle, 61, concurrency=1)
    assert lost == [True]
    assert harness.queue.changes() == []  # it was known before
    assert running.error is None


@pytest.mark.spec("HBN-20")
@pytest.mark.parametrize("bodies", ["A", ""])
def test_a_queue_deleted_under_a_consumer_ends_it(harness: Harness, bodies: str) -> None:
    """One that is full, of which only the heartbeat can notice, and one that asks."""
    for body in bodies:
        harness.send(body)
    handler = harness.handler(100)
    with harness.running(harness.consumer(handler, concurrency=1)) as running:
        harness.clock.advance(1)
        harness.lq.delete_queue("orders")
        harness.clock.advance(24 if bodies else 1)
        assert isinstance(running.join(), QueueDoesNotExist)
    assert handler.slept == [False] * len(bodies)


# --- stopping


@pytest.mark.spec("HBN-1", "HBN-19")
def test_a_stop_finishes_what_runs_and_hands_back_what_waits(fifo: Harness) -> None:
    fifo.send("a1", "a2", "a3")
    consumer = fifo.consumer(sleeper(10), prefetch=5)
    with fifo.running(consumer) as running:
        fifo.clock.advance(5)
        consumer.stop()
        fifo.clock.advance(0)
        assert fifo.queue.changes() == [(5, 0), (5, 0)]
        assert fifo.queue.deletes() == []
        fifo.clock.advance(5)
        assert running.join() is None
    assert fifo.queue.deletes() == [(10, "a1")]
    assert [message.body for message in fifo.other.receive(10)] == ["a2", "a3"]


@pytest.mark.spec("HBN-1")
def test_a_stop_hands_back_what_does_not_end_in_time(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.send("A")
    handler = harness.handler(1_000)
    consumer = harness.consumer(handler)
    with harness.running(consumer) as running:
        harness.clock.advance(5)
        consumer.stop(timeout=30)
        harness.clock.advance(30)
        assert running.join() is None
    harness.clock.advance(0)
    assert handler.slept == [False]
    assert harness.queue.changes() == [(25, 30), (35, 0)]  # kept until then
    assert harness.queue.deletes() == []
    assert harness.visible() == ["A"]
    said = "orders: the handlers of 1 message did not end within 30 s; 1 of these were handed back"
    assert caplog.messages == [said]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_run_counts_the_messages_whose_handlers_did_not_end(
    harness: Harness, asynchronous: bool, batch: int | None
) -> None:
    bodies = [str(number) for number in range(6)]
    harness.send(*bodies)

    def stuck(each: Any) -> float:
        return 1_000 if "5" in str([message.body for message in each] if batch else each.body) else 0

    handler = harness.handler(stuck, asynchronous=asynchronous)
    consumer = harness.consumer(handler, batch=batch)
    with harness.running(consumer) as running:
        harness.clock.advance(5)
        assert (consumer.handled, consumer.unended) == (6 - (batch or 1), 0)
        consumer.stop(timeout=1)
        harness.clock.advance(1)
        assert running.join() is None
    assert (consumer.unended, consumer.handed_back) == (batch or 1,) * 2
    harness.clock.advance(0)
    assert (consumer.handled, consumer.failed) == (6 - (batch or 1), 0)  # what ended later does not count
    assert len(harness.visible()) == (batch or 1)


@pytest.mark.parametrize("harm", ["storage", "another consumer"])
def test_messages_that_could_not_be_handed_back_are_not_counted_as_such(
    harness: Harness, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    harness.send("A", "B")
    consumer = harness.consumer(sleeper(1_000), renewal=NoRenewal(), concurrency=2)
    with harness.running(consumer) as running:
        if harm == "storage":
            harness.clock.advance(5)
            harness.fails(QueueClientError("the disk is gone"), verbs="change", until=600)
        else:
            harness.clock.advance(120)
            assert len(harness.other.receive(10)) == 2
        consumer.stop(timeout=1)
        harness.clock.advance(1)
        assert running.join() is None
    assert (consumer.handled, consumer.failed, consumer.unended, consumer.handed_back) == (0, 0, 2, 0)
    assert "the handlers of 2 messages did not end within 1 s; 0 of these were handed back" in caplog.text


def test_a_second_stop_may_shorten_the_first(harness: Harness) -> None:
    harness.send("A")
    consumer = harness.consumer(sleeper(1_000))
    with harness.running(consumer) as running:
        consumer.stop(timeout=500)
        harness.clock.advance(5)
        consumer.stop(timeout=0)
        assert running.join() is None
    assert harness.queue.changes() == [(5, 0)]


def test_a_stop_ends_a_wait_for_messages_and_one_before_the_start_counts(harness: Harness) -> None:
    consumer = harness.consumer(sleeper(0))
    with harness.running(consumer) as running:
        harness.clock.advance(1)
        consumer.stop()
        assert running.join() is None  # no time passed
    consumer.stop()
    consumer.run()
    assert len(harness.queue.receives()) == 1
    harness.send("A")
    consumer.run(until_empty=True)  # and it may run again
    assert harness.queue.deletes() == [(1, "A")]


def test_a_consumer_runs_once_at_a_time(harness: Harness) -> None:
    consumer = harness.consumer(sleeper(0))
    with harness.running(consumer), pytest.raises(RuntimeError, match="already running"):
        consumer.run()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_that_ends_the_process_ends_the_consumer_in_order(
    fifo: Harness, error: BaseException, asynchronous: bool
) -> None:
    fifo.send("a1", "a2", "b1")
    handler = fifo.handler(
        lambda message: 0 if message.body == "a1" else 5, raises(error, "a1"), asynchronous=asynchronous
    )
    with fifo.running(fifo.consumer(handler)) as running:
        fifo.clock.advance(5)
        assert running.join() is error
    assert [body for _, body in fifo.queue.deletes()] == ["b1"]
    assert fifo.visible() == ["a1", "a2"]


def test_a_handler_that_outlasts_its_run_ends_no_later_one(harness: Harness) -> None:
    harness.send("A")

    def handle(message: Message, context: Context) -> None:
        if message.receive_count == 1:
            harness.clock.wait(harness.queue.began + timedelta(seconds=10), threading.Event())
            raise SystemExit

    consumer = harness.consumer(handle)
    with harness.running(consumer):
        pass  # and the handler goes on
    harness.clock.advance(10)
    with harness.running(consumer):
        harness.clock.advance(0)
    assert [body for _, body in harness.queue.deletes()] == ["A"]


def test_an_interrupt_of_the_runner_ends_it_in_order(harness: Harness) -> None:
    harness.send("A")
    stop = KeyboardInterrupt()

    def interrupt(verb: str, bodies: list[str]) -> None:
        if verb == "receive" and len(harness.queue.receives()) == 2:
            raise stop

    harness.queue.before = interrupt
    with harness.running(harness.consumer(sleeper(5), concurrency=2)) as running:
        harness.clock.advance(5)
        assert running.join() is stop
    assert harness.queue.deletes() == [(5, "A")]


# --- storage and options


def test_storage_that_fails_now_and_then_is_asked_again(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    harness.fails(OverLimit("full"), RequestThrottled("busy"), QueueClientError("no network"), verbs="receive")
    with harness.running(harness.consumer(sleeper(0)), until_empty=True) as running:
        harness.clock.advance(10)
        assert running.join() is None
    assert [body for _, body in harness.queue.deletes()] == ["A"]
    assert "no network" in caplog.text and "busy" in caplog.text


def test_a_delete_that_fails_is_repeated(harness: Harness) -> None:
    harness.send("A")
    harness.fails(QueueClientError("lost", outcome_unknown=True), RequestThrottled("busy"), verbs="delete")
    with harness.running(harness.consumer(sleeper(0)), until_empty=True):
        harness.clock.advance(5)
    assert harness.queue.deletes() == [(0, "A"), (0.5, "A"), (1.5, "A")]
    assert harness.other.counts().in_flight == 0


@pytest.mark.spec("HBN-17", "HBN-11")
def test_every_option_out_of_range_is_named(harness: Harness) -> None:
    with pytest.raises(InvalidOptions) as refused:
        Consumer(harness.queue, "handler", 0, "policy", "yes", 21)  # type: ignore[arg-type]
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "handler",
        "concurrency",
        "renewal",
        "retry_failed_at_once",
        "wait_time",
    ]
    assert "<= 20" in refused.value.problems[-1]


_BOTH = "make_failed_messages_visible_immediately"


@pytest.mark.spec("HBN-17", "HNS-11", "HBN-23", "JOB-4")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"renewal": HeartbeatRenewal(30.5)}, "renewal: .*visibility_timeout"),
        ({"renewal": ComputedRenewal(0.5)}, "renewal: .*visibility_timeout"),
        *(({"concurrency": no}, "concurrency: must be a whole number of at least 1") for no in (True, 1.5, -1)),
        *(
            ({"prefetch": no}, "prefetch: must be a whole number of 0 to 10000, not")
            for no in (-1, 10_001, 1.5, True, "all")
        ),
        *(({"retry_delay": no}, "retry_delay: must be") for no in (-1, 43_201, "soon", True)),
        *(
            ({"retry_delay": 1, _BOTH: both}, "retry_delay: cannot go with retry_failed_at_once")
            for both in (True, False)
        ),
        *(
            ({"retry_failed_at_once": both, _BOTH: both}, f"retry_failed_at_once: is the same as {_BOTH}")
            for both in (True, False)
        ),
        *(({"batch": no}, "batch: must be a whole number of 1 to 10000, not ") for no in (0, 10_001, 2.0)),
        *(({"batch": 2, "batch_wait": no}, "batch_wait: must be 0 to 60 seconds, not ") for no in (61, -1)),
        ({"batch": 2, "batch_wait": "1"}, "batch_wait: must be seconds or a timedelta, not '1'"),
        ({"batch_wait": 1}, "batch_wait: goes with a batch"),
        *(({"claim_interval": no}, "claim_interval: must be 0 to 60 seconds, not ") for no in (61, -1)),
        ({"as_arrow": True}, "as_arrow: goes with a batch"),
        ({"outage": 15}, "outage: must be an Outage, not 15"),
        *(
            ({"metrics_port": no}, "metrics_port: must be a whole number of 0 to 65535")
            for no in (-1, 65_536, "9100", True)
        ),
        ({"name": ""}, "name: must be a text of 1 to 100 characters"),
    ],
)
def test_an_option_out_of_range_is_refused(
    make: Callable[..., Harness], options: dict[str, Any], text: str
) -> None:
    """By the queue as well: one of profile ``sqs`` knows whole seconds only."""
    with pytest.raises(InvalidOptions, match=text):
        make(profile="sqs").consumer(lambda message, context: None, **options)


def test_a_time_for_a_stop_is_a_duration(harness: Harness) -> None:
    with pytest.raises((TypeError, ValueError)):
        harness.consumer(sleeper(0)).stop(timeout="soon")  # type: ignore[arg-type]


@pytest.mark.spec("HBN-17")
def test_the_default_options(harness: Harness) -> None:
    harness.send(*(str(number) for number in range(12)))
    handler = harness.handler(1)
    harness.consume(handler, 2.5)
    assert handler.at == [0] * 10 + [1] * 2 and handler.most == 10
    first = harness.queue.receives()[0]
    assert (first["max_messages"], first["visibility_timeout"], first["wait_time"]) == (10, 30, 20)


def test_a_fault_of_the_framework_ends_the_consumer_instead_of_hanging_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    fault = TypeError("a fault of this package")

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr("lakequeue.consumer.pool.Pool._deletion", fail)
    with harness.running(harness.consumer(sleeper(0)), until_empty=True) as running:
        assert running.join() is fault
    monkeypatch.setattr("lakequeue.renewal.heartbeat.HeartbeatScheduler.beat", fail)
    with harness.running(harness.consumer(sleeper(0))) as running:
        assert running.join() is fault
    assert "the heartbeat ended" in caplog.text
