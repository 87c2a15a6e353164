"""One consumer of several queues, which share its hands (JOB-9)."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest

from consumer.harness import Harness, Recorder, Running, raises, scrape, sleeper
from lakequeue import (
    Consumer,
    Context,
    InvalidOptions,
    LakeQueue,
    Message,
    NoRenewal,
    Outage,
    Outcome,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    SendEntry,
)
from lakequeue.consumer import queue_loop
from lakequeue.consumer.pool import Pool
from lakequeue.consumer.shared_hands import SharedHands
from lakequeue.entry_verbs import Request
from lakequeue.model.waiting_work import Waits
from mutations import Case, Mutation, Patch, each_case, replace
from serve.serving import free_port

pytestmark = pytest.mark.spec("JOB-9")
Make = Callable[..., Harness]


@attrs.define
class Several:
    """A queue, ``orders``, and others beside it."""

    harness: Harness
    begun: list[tuple[float, str, str]] = attrs.field(factory=list)
    """Second, queue and body of each call of the handler."""

    def queue(self, name: str, **attributes: Any) -> Recorder:
        return Recorder.of(self.harness.lq.create_queue(name, **attributes))

    @property
    def orders(self) -> Recorder:
        return self.harness.queue

    @property
    def now(self) -> float:
        return self.harness.now

    def advance(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)

    def running(self, consumer: Consumer, **options: Any) -> AbstractContextManager[Running]:
        return self.harness.running(consumer, **options)

    def consume(self, queues: list[Queue], handler: Any, seconds: float, *arguments: Any, **options: Any) -> None:
        """Runs a consumer for so long."""
        with self.running(Consumer(queues, handler, *arguments, **options)):
            self.advance(seconds)

    def handler(self, seconds: float = 0, spread: float = 0) -> Callable[[Message, Context], Any]:
        def handle(message: Message, context: Context) -> None:
            self.begun.append((self.now, context.queue.name, message.body))
            context.sleep(seconds + spread * random.random())

        return handle

    def async_handler(self, seconds: float = 0, spread: float = 0) -> Callable[[Message, Context], Any]:
        async def handle(message: Message, context: Context) -> None:
            self.begun.append((self.now, context.queue.name, message.body))
            await context.sleep_async(seconds + spread * random.random())

        return handle

    def by_queue(self, until: float = float("inf")) -> Counter[str]:
        return Counter(queue for at, queue, _ in self.begun if at < until)


def fill(queue: Recorder, number: int, group: Callable[[int], str | None] = lambda number: None) -> None:
    entries = [
        SendEntry(str(each), group_id=group(each), dedup_id=str(each) if queue.fifo else None)
        for each in range(number)
    ]
    assert not queue.send_batch(entries).failed


@pytest.fixture
def several(harness: Harness) -> Several:
    return Several(harness)


# --- whose turn it is


def hands_are_shared_by_weight(several: Several, kind: str = "handler", concurrency: int = 4) -> None:
    bulk, seconds = several.queue("bulk"), min(50, 200 / concurrency)
    for queue in (several.orders, bulk):
        fill(queue, 300)
    handler = getattr(several, kind)(1, spread=0.5)
    several.consume([several.orders, bulk], handler, seconds, concurrency, weights=[3, 1])
    counted = several.by_queue()
    assert counted.total() == pytest.approx(seconds / 1.25 * concurrency, rel=0.1)  # no hand was ever idle
    assert counted["orders"] == pytest.approx(counted.total() * 3 / 4, rel=0.1)


@pytest.mark.parametrize(  # a case below has four hands for functions
    ("kind", "concurrency"),
    [("handler", 1), ("handler", 10), ("async_handler", 1), ("async_handler", 4), ("async_handler", 10)],
)
def test_hands_are_shared_by_weight(several: Several, kind: str, concurrency: int) -> None:
    hands_are_shared_by_weight(several, kind, concurrency)


def a_light_queue_is_never_starved(several: Several) -> None:
    heavy, light = several.orders, several.queue("light")
    fill(heavy, 200)
    fill(light, 5)
    several.consume([heavy, light], several.handler(1, spread=0.5), 60, 2, weights=[20, 1])
    at = [at for at, queue, _ in several.begun if queue == "light"]
    assert len(at) >= 4 and max(later - earlier for earlier, later in zip(at, at[1:], strict=False)) <= 20


def test_all_hands_go_to_the_queue_that_has_messages(several: Several) -> None:
    other = several.queue("other")
    fill(several.orders, 40)
    with several.running(Consumer([other, several.orders], several.handler(1), 8)):
        several.advance(3)
        assert several.by_queue() == {"orders": 32}
        fill(other, 40)
        several.advance(4)
    counted = several.by_queue()
    assert counted.total() == 64 and counted["other"] >= 12


def test_batches_are_of_one_queue_each(several: Several) -> None:
    other = several.queue("other")
    for queue in (several.orders, other):
        fill(queue, 25)
    batches: list[tuple[float, str, int]] = []

    def handle(messages: list[Message], contexts: list[Context]) -> None:
        [name] = {context.queue.name for context in contexts}
        batches.append((several.now, name, len(messages)))

    with several.running(Consumer([several.orders, other], handler=handle, batch=10, batch_wait=5)):
        several.advance(4)
        assert sorted(batches) == [(0, "orders", 10)] * 2 + [(0, "other", 10)] * 2
        several.advance(4)
    assert sorted(batches[4:]) == [(5, "orders", 5), (5, "other", 5)]


def test_what_no_hand_comes_to_is_given_back_but_for_one_message(several: Several) -> None:
    other = several.queue("other")
    fill(several.orders, 20)
    with several.running(Consumer([several.orders, other], several.handler(1_000), 4)):
        several.advance(1)
        fill(other, 20)
        several.advance(30)
        assert several.by_queue() == {"orders": 4}
        assert several.harness.other.counts().in_flight <= 5
        assert other.counts().in_flight == 1


def test_a_queue_catches_up_by_its_share_of_the_hands_that_there_are_by_now(several: Several) -> None:
    late = several.queue("late")
    fill(several.orders, 100)
    consumer = Consumer([several.orders, late], several.handler(1), 40, prefetch=20)
    with several.running(consumer):
        several.advance(0.5)
        consumer.concurrency = 2
        several.advance(2)
        fill(late, 20)
        before = several.by_queue()["orders"]
        several.advance(10)
    counted = several.by_queue()
    assert counted.total() == before + 20 and 10 <= counted["late"] <= 12


def test_hands_ask_only_queues_that_have_messages(several: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    queues, asked, begins = [several.queue(f"queue-{number}") for number in range(20)], set[Pool](), Pool.begins

    def noted(pool: Pool, now: int) -> bool:
        asked.add(pool)
        return begins(pool, now)

    monkeypatch.setattr(Pool, "begins", noted)
    with several.running(Consumer(queues, several.handler(1))):
        asked.clear()
        fill(queues[7], 3)
        several.advance(5)
    assert several.by_queue() == {"queue-7": 3} and len(asked) == 1


# --- waiting


def test_idle_queues_are_not_polled_more_often_than_one(several: Several) -> None:
    other = several.queue("other")
    several.consume([other], several.handler(), 100)
    alone = len(other.calls)
    with several.running(Consumer([several.orders, other], several.handler())):
        several.advance(100)
        assert len(several.orders.calls) <= alone and len(other.calls) <= 2 * alone
        fill(other, 1)
        several.advance(0)
        assert several.begun == [(200, "other", "0")]


def test_queues_that_wait_hold_no_thread(several: Several) -> None:
    queues = [several.orders, *(several.queue(f"other{number}") for number in range(40))]
    before = set(threading.enumerate())
    with several.running(Consumer(queues, several.handler(), 3, wait_time=20)):
        for queue in queues:
            queue.send("once")
        several.advance(30)
        assert several.by_queue() == {queue.name: 1 for queue in queues}
        held = [thread.name for thread in threading.enumerate() if thread not in before]
        beside = held.count("lakequeue presence") + held.count("lakequeue log watch")
        assert beside <= 2 and len(held) - beside <= 1 + 3 + 2 * 8


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "late"])
def test_a_run_until_empty_ends_when_all_are(several: Several, monkeypatch: Patch, slow: bool) -> None:
    first, second, third = several.orders, several.queue("second"), several.queue("third")
    waits = {"before orders": 1, "after third": 12} if slow else {}
    clock, receive = several.harness.clock, queue_loop.receive_for_hands

    def handle(message: Message, context: Context) -> None:
        several.begun.append((several.now, context.queue.name, message.body))
        if context.queue.name != "third":
            context.sleep(5)
            {"orders": second, "second": third}[context.queue.name].send(message.body)

    def received(queue: Any, request: Request, wake: threading.Event) -> Waits[list[Message]]:
        """The third queue tells that it is empty when messages have gone through the other two to it."""
        wait(f"before {queue.name}")
        found = yield from receive(queue, request, wake)
        wait(f"after {queue.name}")
        return found

    def wait(when: str) -> None:
        if when in waits:
            clock.wait(clock.now() + timedelta(seconds=waits.pop(when)), threading.Event())

    monkeypatch.setattr(queue_loop, "receive_for_hands", received)
    fill(first, 3)
    consumer = Consumer([third, second, first], handle)
    with several.running(consumer, until_empty=True) as running:
        several.advance(20)
        assert running.join() is None
    assert several.by_queue() == {"orders": 3, "second": 3, "third": 3}
    assert [queue.counts().in_flight for queue in (first, second, third)] == [0, 0, 0]
    with several.running(consumer, until_empty=True) as running:
        assert running.join() is None


# --- the end of one, and of all


def test_a_queue_that_is_deleted_does_not_end_the_others(
    several: Several, caplog: pytest.LogCaptureFixture
) -> None:
    other = several.queue("other")
    fill(other, 2)
    consumer = Consumer([several.orders, other], several.handler(1), 1)
    with several.running(consumer) as running:
        several.advance(0.5)
        several.harness.lq.delete_queue("orders")
        several.advance(30)
        fill(other, 3)
        several.advance(10)
        assert several.by_queue() == {"other": 5} and consumer.health.running
        assert "nothing more is received from orders: " in caplog.text
        consumer.stop()
        assert isinstance(running.join(), QueueDoesNotExist)
    assert other.counts().in_flight == 0


def test_a_queue_whose_storage_fails_does_not_stop_the_others(several: Several) -> None:
    other = several.queue("other")

    def fail(verb: str, bodies: Sequence[str]) -> None:
        if several.now < 60:
            raise QueueClientError("no network")

    several.orders.before = fail
    fill(several.orders, 1)
    fill(other, 20)
    consumer = Consumer([other, several.orders], several.handler(1), 1)
    with several.running(consumer):
        several.advance(50)
        assert several.by_queue() == {"other": 20}
        assert consumer.health.last_error == "no network" and not consumer.health.ok
        several.advance(50)
        assert several.by_queue() == {"other": 20, "orders": 1} and consumer.health.ok
    several.orders.before = lambda verb, bodies: fail(verb, bodies) if several.now < 200 else None
    options = {"outage": Outage(give_up_after=10)}
    with several.running(Consumer([several.orders], sleeper(0), **options)) as running:
        assert consumer.health.running is False
        several.advance(1)
    assert running.error is None


def test_a_stop_waits_for_handlers_and_hands_back_the_rest(several: Several) -> None:
    other = several.queue("other")
    for queue in (several.orders, other):
        fill(queue, 10)
    consumer = Consumer([several.orders, other], several.handler(5), 4)
    with several.running(consumer) as running:
        several.advance(0.5)
        consumer.stop()
        several.advance(10)
        assert running.join() is None
    assert consumer.handled == 4 and len(several.begun) == 4
    waiting = [*several.harness.other.peek(limit=20), *other.peek(limit=20)]
    assert len(waiting) == 16 and {message.receive_count for message in waiting} == {0}
    assert consumer.health.active == 0


def test_nothing_begins_after_a_stop_that_waits_for_nobody(several: Several) -> None:
    queues = [several.orders, *(several.queue(f"other{number}") for number in range(6))]
    for queue in queues:
        fill(queue, 3)
    consumer = Consumer(queues, several.handler(1_000), 4)
    with several.running(consumer) as running:
        several.advance(0.5)
        consumer.stop(timeout=0)
        running.join()
    assert len(several.begun) == 4
    assert {queue.counts().visible for queue in queues} == {3}


@pytest.mark.spec("HBN-20")
def test_an_error_for_the_process_stops_all(several: Several) -> None:
    other = several.queue("other")
    fill(other, 1)
    handler = several.harness.handler(answer=raises(SystemExit(3)))
    with several.running(Consumer([several.orders, other], handler)) as running:
        several.advance(1)
        assert isinstance(running.join(), SystemExit)
    assert other.counts().visible == 1


def test_an_interrupt_of_the_runner_ends_all_in_order(several: Several, monkeypatch: Patch) -> None:
    other, wait, stop = several.queue("other"), several.harness.clock.wait, KeyboardInterrupt()
    fill(other, 1)
    waited: list[datetime] = []

    def interrupted(until: datetime, wake: threading.Event) -> None:
        if not threading.current_thread().name.startswith("lakequeue"):
            waited.append(until)
            if len(waited) == 1:
                raise stop
        wait(until, wake)

    monkeypatch.setattr(several.harness.clock, "wait", interrupted)
    with several.running(Consumer([several.orders, other], several.handler(5))) as running:
        several.advance(5)
        assert running.join() is stop
    fill(several.orders, 1)
    several.advance(60)
    assert "orders" not in several.by_queue() and other.counts().in_flight == 0


# --- what each queue says holds


@pytest.mark.spec("HBN-23", "DLQ-1")
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_last_receive_is_for_a_hand_that_begins_at_once(several: Several, concurrency: int) -> None:
    """As with one queue, and nobody else has to wait for ever."""
    first, second = several.orders, several.queue("second")
    third = several.queue("third")
    several.harness.with_dead_letters(1, second)
    for queue in (first, second, third):
        fill(queue, 40)
    late: list[float] = []

    def handle(message: Message, context: Context) -> None:
        several.begun.append((several.now, context.queue.name, message.body))
        assert message.received_at is not None
        if message.last_receive:
            late.append((several.harness.clock.now() - message.received_at).total_seconds())
        context.sleep(0.1)

    several.consume([first, second, third], handle, 13, concurrency)
    assert len(late) == 80 and {*late} == {0}
    assert several.by_queue() == {"orders": 40, "second": 40, "third": 40}
    middle = several.by_queue(until=2)
    assert min(middle.values()) * 6 >= max(middle.values()) and len(middle) == 3
    assert several.harness.lq.queue("dead").counts().visible == 0


def a_hand_is_not_kept_for_the_interval(several: Several) -> None:
    first, second = several.orders, several.queue("second")
    several.harness.with_dead_letters(2)
    fill(first, 1)

    def handle(message: Message, context: Context) -> Outcome | None:
        several.begun.append((several.now, context.queue.name, message.body))
        context.sleep(1 if context.queue is first else 0.4)
        return Outcome.FAILED_RETRY_NOW if context.queue is first and message.receive_count == 1 else None

    with several.running(Consumer([first, second], handle, 2, claim_interval=20)):
        several.advance(0.1)
        fill(second, 40)  # each takes the other hand for 0.4 s
        several.advance(4)
    again = [at for at, queue, _ in several.begun if queue == "orders"][1:]
    assert again == pytest.approx([1.3]), "a hand of the second queue is free then"


@pytest.mark.spec("HBN-23", "HBN-29")
def test_a_hand_that_is_kept_for_a_last_receive_ends_the_interval(several: Several) -> None:
    a_hand_is_not_kept_for_the_interval(several)


def test_no_hand_is_kept_for_a_queue_that_is_deleted(several: Several) -> None:
    first, second = several.orders, several.queue("second")
    several.harness.with_dead_letters(1)
    fill(first, 40)
    fill(second, 40)

    receive = first.receive_for_hands

    def gone(request: Request, wake: threading.Event) -> Waits[list[Message]]:
        messages = yield from receive(request, wake)
        if several.now > 5 and consumer._loops[0].pool._kept:
            raise QueueDoesNotExist("it was deleted")
        return messages

    first.receive_for_hands = gone  # type: ignore[method-assign]
    consumer = Consumer([first, second], several.handler(1), 1)
    with several.running(consumer) as running:
        several.advance(60)
    assert isinstance(running.error, QueueDoesNotExist)
    assert several.by_queue()["second"] == 40


@pytest.mark.spec("FIF-1", "HNS-4")
def test_order_and_visibility_timeout_are_those_of_each_queue(several: Several) -> None:
    ordered = several.queue("ordered.fifo", fifo=True, visibility_timeout=7)
    fill(ordered, 8, group=lambda number: "ab"[number % 2])  # as many of a group as there are hands
    fill(several.orders, 1)
    with several.running(Consumer([several.orders, ordered], several.handler(1), 4, renewal=NoRenewal())):
        several.advance(0.5)
        held = [several.harness.other.peek()[0], ordered.peek()[0]]
        assert [(one.visible_at - several.orders.began).total_seconds() for one in held] == [120, 7]
        several.advance(10)
    begun = sorted((at, body) for at, queue, body in several.begun if queue == "ordered.fifo")
    assert begun == [(number // 2, str(number)) for number in range(8)]


def test_metrics_and_logs_name_the_queue(several: Several, caplog: pytest.LogCaptureFixture) -> None:
    other = several.queue("other")
    fill(other, 1)
    port, handler = free_port(), several.harness.handler(answer=raises(ValueError("by a handler")))
    with several.running(Consumer([several.orders, other], handler, metrics_port=port)):
        several.advance(1)
        found = scrape(port)
    assert found['lakequeue_consumer_failed_total{queue="other"}'] == 1
    assert found["lakequeue_consumer_failed_total"] == 0  # of orders
    assert found['lakequeue_consumer_errors_total{error="ValueError",queue="other"}'] == 1
    assert found['lakequeue_consumer_up{queue="other"}'] == found["lakequeue_consumer_up"] == 1
    [record] = [record for record in caplog.records if "the handler failed" in record.message]
    assert record.queue == "other"  # type: ignore[attr-defined]


# --- options


@pytest.mark.parametrize(
    ("names", "weights", "text"),
    [
        ([], None, r"queue: must be a Queue or a list of at least one, not \[\]"),
        (["orders", "other", "orders"], None, "queue: orders is there 2 times"),
        (["orders", None], None, "queue: must be a Queue or a list of them, not None"),
        *(
            (["orders", "other"], weights, "weights: must be a whole number of 1 to 1000 for each queue, of which")
            for weights in ([1], [1, 2, 3], [0, 1], [1, 1_001], [1, 1.5], [True, 1], "31", 3)
        ),
    ],
)
def test_bad_options_are_named(tmp_path: Any, names: list[str | None], weights: Any, text: str) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    queues = {name: lq.create_queue(name) for name in ("orders", "other")}
    given: Any = [name and lq.queue(name) for name in names]
    with pytest.raises(InvalidOptions, match=text):
        Consumer(given, sleeper(0), weights=weights)
    both = [LakeQueue(str(tmp_path / "copy")).create_queue("orders"), *queues.values()]
    assert Consumer(both, sleeper(0), weights=(1, 1_000, 2)).handled == 0


def keeping_the_interval(self: Pool, event: Any, hand_free: Callable[..., None] = Pool._hand_free) -> None:
    claims_again = self._claims_again
    hand_free(self, event)
    self._claims_again = claims_again


MUTATIONS = [
    Mutation(
        "the heaviest queue goes first",
        replace(SharedHands, "_in_turn", lambda self, shares: max(shares, key=lambda share: share.rules.weight)),
        {a_light_queue_is_never_starved: "JOB-9", hands_are_shared_by_weight: "JOB-9"},
    ),
    Mutation(
        "all queues take turns",
        replace(SharedHands, "_in_turn", lambda self, shares: min(shares, key=lambda share: share.busy)),
        {hands_are_shared_by_weight: "JOB-9"},
    ),
    Mutation(
        "the interval goes on while a hand is kept",
        replace(Pool, "_hand_free", keeping_the_interval),
        {a_hand_is_not_kept_for_the_interval: "HBN-29"},
    ),
]


@each_case(MUTATIONS)
def test_a_guarantee_needs_its_safeguard(case: Case, make: Make) -> None:
    case.run(lambda patch: (Several(make()),))
