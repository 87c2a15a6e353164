"""Rounds of a consumer: one commit settles what was handled and claims what comes next, also ahead of hands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from concurrency.harness import apart, keep_to
from consumer.harness import Handler, Harness, commits, raises, sleeper
from lakequeue import (
    Consumer,
    HeartbeatRenewal,
    Message,
    OverLimit,
    QueueClientError,
    RedrivePolicy,
    RetryBackoff,
)
from lakequeue.entry_verbs import FreeHands, Request, exchange

Make = Callable[..., Harness]


# --- one commit


@pytest.mark.spec("HBN-24")
def test_a_delete_and_the_next_claim_are_one_commit(harness: Harness) -> None:
    harness.send(*"ABCDE")
    before = commits(harness)
    harness.consumer(sleeper(0), concurrency=1, prefetch=0).run(until_empty=True)
    assert commits(harness) - before == 6  # five claims and the last delete
    assert harness.other.counts().in_flight == 0


@pytest.mark.spec("HBN-24", "DEL-10")
def test_a_round_settles_what_came_from_several_shards(make: Make) -> None:
    harness = make(shards=3)
    for shard in range(3):
        keep_to(harness.other, shard)
        harness.send(f"{shard}a", f"{shard}b")
    first = harness.other.receive(3)
    rest = harness.other.receive(3)
    before = commits(harness)
    wanted = [*((one.receipt_handle, None) for one in first), *((one.receipt_handle, 0) for one in rest)]
    found = exchange(harness.other, wanted, Request(1, enough=1))
    assert list(found.errors) == [None] * 6 and found.refused is None
    [again] = found.messages  # handed back by the very commit that claims it
    assert again.body in {one.body for one in rest} and again.receive_count == 2
    assert commits(harness) - before == 3
    counts = harness.other.counts()
    assert (counts.visible, counts.in_flight) == (2, 1)


@pytest.mark.spec("HBN-24", "DLQ-2")
def test_a_round_that_meets_dead_letters_settles_once(make: Make) -> None:
    harness = make()
    harness.with_dead_letters(1)
    harness.send("A", "B", "C")
    messages = harness.other.receive(2)
    wanted = [(messages[0].receipt_handle, None), (messages[1].receipt_handle, 0)]
    found = exchange(harness.other, wanted, Request(2, enough=2))
    assert list(found.errors) == [None, None]
    assert [message.body for message in found.messages] == ["C"]
    assert [message.body for message in harness.lq.queue("dead").receive(2)] == ["B"]


@pytest.mark.spec("HBN-24", "INF-3")
def test_what_keeps_a_claim_from_going_ahead_does_not_touch_what_is_settled(make: Make) -> None:
    harness = make(profile="sqs")
    harness.other.set_attributes(max_inflight_messages=2)
    harness.send("A", "B", "C")
    messages = harness.other.receive(2)
    found = exchange(harness.other, [(messages[0].receipt_handle, 300)], Request(1, enough=1))
    assert list(found.errors) == [None] and not found.messages
    assert isinstance(found.refused, OverLimit)
    assert exchange(harness.other, [("no handle", None)]).errors[0] is not None


@pytest.mark.spec("HBN-19", "HBN-24", "FIF-1")
def test_the_next_message_of_a_group_begins_when_the_last_one_is_deleted(fifo: Harness) -> None:
    fifo.send("a1", "a2", "b1")
    fifo.fails(QueueClientError("no network"), verbs="delete", body="a1", until=5)
    handler = fifo.handler(1)
    fifo.consume(handler, 20, prefetch=5)
    assert sorted(handler.begun) == [(0, "a1"), (0, "b1"), (8.5, "a2")]  # tried again after 0.5, 1, 2 and 4 s
    assert fifo.other.counts().in_flight == 0


@pytest.mark.spec("HBN-24")
def test_what_cannot_be_deleted_holds_up_nothing_else(harness: Harness) -> None:
    harness.send("1", "2.2")
    harness.fails(QueueClientError("no network"), verbs="delete", body="1", until=5)
    harness.consume(harness.handler(lambda message: float(message.body)), 10)
    assert [at for at, body in harness.queue.deletes() if body == "2.2"] == [2.2]


# --- hands


@pytest.mark.spec("HBN-18")
def test_a_fixed_number_of_threads_works_them_all_off(harness: Harness) -> None:
    harness.send(*(str(number) for number in range(40)))
    threads = set()
    harness.consume(harness.handler(answer=lambda message: threads.add(threading.get_ident())), 2, concurrency=3)
    assert harness.other.counts().visible == harness.other.counts().in_flight == 0
    assert len(threads) <= 3


# --- ahead


@pytest.mark.spec("HBN-18", "HBN-23", "DLQ-1")
@pytest.mark.parametrize(
    ("prefetch", "seconds", "first", "largest", "receives"),
    [
        *((0, 0.01, 2, 2, None), (5, 0.01, 7, 7, None), (5, 1, 7, 7, None)),
        *((None, 0.01, 2, 50, None), (None, 1, 2, 2, None), (None, 0.05, 2, 10, None)),
        *((None, 0.01, 2, 50, 2), (None, 0.01, 2, 50, 5)),  # a dead-letter queue leaves a consumer its pace
    ],
)
def test_how_much_a_consumer_claims_ahead(
    harness: Harness, prefetch: int | None, seconds: float, first: int, largest: int, receives: int | None
) -> None:
    if receives is not None:
        harness.with_dead_letters(receives)
    harness.send(*(str(number) for number in range(200)))
    held = []
    handler = harness.handler(lambda message: held.append(consumer.health.active) or seconds)
    consumer = harness.consumer(handler, concurrency=2, prefetch=prefetch)
    with harness.running(consumer):
        harness.clock.advance(60 * seconds)
    assert harness.queue.receives()[0]["max_messages"] == first
    assert max(held) == largest


@pytest.mark.spec("HBN-23", "DLQ-1")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_last_receive_is_for_a_hand_that_begins_at_once(
    harness: Harness, concurrency: int, asynchronous: bool
) -> None:
    """And does not wait until nothing else is there."""
    harness.with_dead_letters(2)
    harness.send(*(f"{number:03}" for number in range(120)))
    waited: list[float] = []
    fails = raises(ValueError("poison"), "020")

    def answer(message: Message) -> None:
        assert message.received_at is not None
        waited.append((harness.clock.now() - message.received_at).total_seconds())
        if message.receive_count == 2:
            assert waited[-1] == 0.01 and len(waited) < 100
        fails(message)

    handler = harness.handler(0.01, answer, asynchronous)
    harness.consume(handler, 2, concurrency=concurrency, retry_failed_at_once=True)
    assert len(waited) == 121 and max(waited) > 0.05 and handler.receives.count(2) == 1
    assert [message.body for message in harness.lq.queue("dead").receive(2)] == ["020"]


@pytest.mark.spec("HBN-3", "DLQ-2")
@pytest.mark.parametrize("options", [{}, {"retry_delay": RetryBackoff(20)}])
def test_what_has_no_try_left_moves_at_once(harness: Harness, options: Any) -> None:
    harness.with_dead_letters(1)
    harness.send("A")
    harness.consume(harness.handler(answer=raises(ValueError("poison"))), 2, wait_time=1, **options)
    assert [message.body for message in harness.lq.queue("dead").peek()] == ["A"]


def test_a_consumer_counts_as_it_goes(harness: Harness) -> None:
    harness.send("A", "B", "C")
    seen: list[tuple[int, int]] = []
    handler = harness.handler(
        lambda message: seen.append((consumer.handled, consumer.failed)) or 0, raises(ValueError("poison"), "A")
    )
    consumer = harness.consumer(handler, concurrency=1)
    with harness.running(consumer):
        harness.clock.advance(1)
    assert seen == [(0, 0), (0, 1), (1, 1)] and (consumer.handled, consumer.failed) == (2, 1)


@pytest.mark.spec("HBN-23", "QUE-25")
def test_a_claim_obeys_a_redrive_policy_of_which_its_process_has_not_heard(make: Make) -> None:
    harness = make()
    harness.send(*"ABC")
    [other] = apart(harness.lq.root, harness.clock, 1)
    other.create_queue("dead")
    other.queue("orders").set_attributes(redrive_policy=RedrivePolicy("dead", max_receive_count=1))
    found = exchange(harness.other, [], Request(3, hands=FreeHands(lambda: 1), enough=3))
    assert [message.body for message in found.messages] == ["A"]


@pytest.mark.spec("HBN-19", "HBN-23", "DLQ-11")
@pytest.mark.parametrize("options", [{}, {"concurrency": 4, "prefetch": 0}, {"concurrency": 1}])
@pytest.mark.parametrize("most", [1, 2])
def test_only_what_a_handler_has_seen_becomes_a_dead_letter(
    make: Make, options: dict[str, int], most: int
) -> None:
    harness = make(fifo=True)
    dead = harness.with_dead_letters(most)
    harness.send("a0", "a1", "a2", "a3", "b0", "b1")
    handler = harness.handler(answer=raises(ValueError("poison"), "a1"))
    harness.consumer(handler, retry_failed_at_once=True, **options).run(until_empty=True)
    handled = sorted(handler.bodies, key=lambda body: body[0])  # which keeps the order within a group
    assert handled == ["a0", *["a1"] * most, "a2", "a3", "b0", "b1"]
    assert [message.body for message in dead.peek()] == ["a1"]


@pytest.mark.spec("HBN-19", "HBN-23")
def test_what_waited_behind_a_failure_in_its_group_was_not_received(fifo: Harness) -> None:
    fifo.with_dead_letters(3)
    fifo.send("a0", "a1", "a2")
    handler = fifo.handler(answer=raises(ValueError("poison"), "a0"))
    fifo.consumer(handler, make_failed_messages_visible_immediately=True).run(until_empty=True)
    seen = [*zip(handler.bodies, handler.receives, strict=True)]
    assert seen == [("a0", 1), ("a0", 2), ("a0", 3), ("a1", 1), ("a2", 1)]


@pytest.mark.spec("HBN-23")
def test_stops_make_no_dead_letters(make: Make) -> None:
    harness = make(fifo=True)
    dead = harness.with_dead_letters(1)
    harness.send("a0", "a1", "a2", "a3")
    handler = harness.handler(answer=lambda message: consumer.stop())
    for _ in range(4):
        consumer = harness.consumer(handler)
        consumer.run()
    assert handler.bodies == ["a0", "a1", "a2", "a3"] and not dead.peek()


@pytest.mark.spec("HBN-23")
def test_a_stop_amid_a_claim_makes_no_dead_letters(make: Make) -> None:
    harness = make()
    dead = harness.with_dead_letters(1)
    harness.send(*"ABC")
    handler = harness.handler()
    consumer = harness.consumer(handler)
    harness.queue.before = lambda verb, _: consumer.stop() if verb == "receive" else None
    consumer.run()
    harness.fails()
    assert harness.visible() == ["A", "B", "C"] and not handler.begun
    harness.consumer(handler).run(until_empty=True)
    assert sorted(handler.bodies) == ["A", "B", "C"] and not dead.peek()


@pytest.mark.spec("HBN-23", "VIS-4")
@pytest.mark.parametrize("end", ["stop", "pause"])
def test_a_stop_and_a_pause_hand_back_what_was_not_begun(harness: Harness, end: str) -> None:
    harness.send("A", "B", "C")
    consumer = harness.consumer(sleeper(10), concurrency=1, prefetch=2)
    with harness.running(consumer):
        harness.clock.advance(5)
        getattr(consumer, end)()
        harness.clock.advance(0)
        assert harness.visible() == ["B", "C"] and consumer.health.active == 1
        assert {message.receive_count for message in harness.other.receive(2)} == {1}
        harness.clock.advance(5)
    assert harness.queue.deletes() == [(10, "A")]


def slow_from(harness: Harness, number: int) -> Handler:
    """A handler that takes 10 ms, and a minute from one message on."""
    handler: Handler = harness.handler(lambda message: 0.01 if len(handler.begun) < number else 60)
    return handler


@pytest.mark.spec("HBN-23")
def test_a_consumer_that_falls_behind_gives_back_what_it_has_not_begun(harness: Harness) -> None:
    harness.send(*(f"{number:02}" for number in range(60)))
    consumer = harness.consumer(slow_from(harness, 20), concurrency=1, wait_time=1)
    with harness.running(consumer):
        harness.clock.advance(1)
        assert consumer.health.active > 10
        ahead = harness.other.counts().visible
        harness.clock.advance(1)
        assert consumer.health.active == 1
        assert harness.other.counts().visible > ahead
        harness.clock.advance(10)
        assert consumer.health.active == 1
    assert harness.other.counts().in_flight == 0


@pytest.mark.spec("HBN-23")
def test_an_idle_consumer_takes_over_what_a_slow_one_gives_back(harness: Harness) -> None:
    harness.send(*(f"{number:02}" for number in range(60)))
    handled: list[str] = []
    slow = harness.consumer(slow_from(harness, 20), concurrency=1, wait_time=1)
    idle = Consumer(harness.other, lambda message, _: handled.append(message.body), concurrency=1)
    with harness.running(slow):
        harness.clock.advance(1)
        with harness.running(idle):
            harness.clock.advance(0)
            held = slow.health.active
            assert held > 10 and len(handled) == 41 - held and idle.health.active == 0
            harness.clock.advance(2)
            assert slow.health.active == 1
            assert len(handled) == len(set(handled)) == 40
            assert (harness.other.counts().visible, harness.other.counts().in_flight) == (0, 1)


@pytest.mark.spec("HBN-23")
def test_what_was_asked_for_is_held_however_long_it_takes(harness: Harness) -> None:
    harness.send("A", "B", "C")
    consumer = harness.consumer(sleeper(20), concurrency=1, prefetch=2, renewal=HeartbeatRenewal(120, 30, 1))
    with harness.running(consumer):
        harness.clock.advance(15)
        assert consumer.health.active == 3 and harness.queue.changes() == []


@pytest.mark.spec("HBN-23", "FIF-1", "FIF-9")
def test_a_group_keeps_its_order_whatever_is_given_back(fifo: Harness) -> None:
    bodies = [f"{group}{number:02}" for group in "abcdefgh" for number in range(10)]
    fifo.send(*bodies)
    handler: Handler = fifo.handler(lambda message: 3 if 11 <= len(handler.begun) < 15 else 0.01)
    consumers = [fifo.consumer(handler, concurrency=2) for _ in range(2)]
    with fifo.running(consumers[0]), fifo.running(consumers[1]):
        fifo.clock.advance(5)
    assert sorted(handler.bodies, key=lambda body: body[0]) == bodies and fifo.queue.changes()


@pytest.mark.spec("JOB-11")
def test_a_consumer_that_ends_with_the_last_message_waits_for_its_rate_limit(harness: Harness) -> None:
    harness.other.set_attributes(rate_limit="6/m", rate_burst=2)
    harness.send("A", "B", "C", "D")
    handler = harness.handler()
    with harness.running(harness.consumer(handler), until_empty=True) as running:
        for _ in range(2):
            harness.clock.advance(10)
        running.join()
        assert sorted(handler.begun) == [(0, "A"), (0, "B"), (10, "C"), (20, "D")]


@pytest.mark.spec("JOB-11", "JOB-1")
def test_a_run_until_empty_leaves_a_paused_group_of_a_limited_queue(harness: Harness) -> None:
    harness.other.set_attributes(rate_limit="6/m", rate_burst=1)
    for number in range(4):
        harness.other.send(str(number), group_id="ab"[number % 2])
    harness.other.pause("the tenant asked for it", group_id="a")
    handler = harness.handler()
    with harness.running(harness.consumer(handler), until_empty=True) as running:
        harness.clock.advance(20)
        running.join()
        assert handler.bodies == ["1", "3"]


@pytest.mark.spec("JOB-11")
def test_a_consumer_ends_when_others_have_what_its_rate_limit_held_back(harness: Harness) -> None:
    harness.other.set_attributes(rate_limit="1/m")
    harness.send("A")
    late = harness.other.send("B").message_id
    with harness.running(harness.consumer(sleeper(0)), until_empty=True) as running:
        harness.clock.advance(5)
        assert running.thread.is_alive()
        harness.other.cancel(late)
        harness.clock.advance(2)  # not a whole wait of 20 s
        running.join()


@pytest.mark.spec("JOB-1")
def test_a_consumer_waits_while_its_queue_is_paused(harness: Harness) -> None:
    handler = harness.handler(
        answer=lambda message: harness.other.pause("the bank is down") if message.body == "A" else None
    )
    harness.send("A", "B")
    with harness.running(harness.consumer(handler, concurrency=1)) as running:
        harness.clock.advance(60)
        assert handler.bodies == ["A"] and running.thread.is_alive()
        harness.other.resume()
        harness.clock.advance(30)
    assert handler.bodies == ["A", "B"] and harness.other.counts().visible == 0
