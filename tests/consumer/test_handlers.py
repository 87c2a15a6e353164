"""What can be a handler, what one may return, and when a message that failed comes again."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from consumer.harness import LONG_ENOUGH, Harness, raises, sleeper
from lakequeue import (
    ComputedRenewal,
    Consumer,
    Context,
    HeartbeatRenewal,
    InvalidOptions,
    Message,
    Outcome,
    RetryBackoff,
    aio,
)


class Worker:
    """Handlers of other shapes."""

    def handle(self, message: Message, context: Context) -> None: ...

    async def work(self, message: Message, context: Context) -> Outcome:
        return Outcome.SUCCESS

    def __call__(self, message: Message, context: Context, retries: int = 3) -> None: ...


class AsyncWorker:
    async def __call__(self, message: Message, context: Context) -> None: ...


def one(message: Message) -> None: ...


def three(message: Message, context: Context, other: int) -> None: ...


def keyword(message: Message, *, context: Context) -> None: ...


def generator(message: Message, context: Context) -> Iterator[None]:
    yield


def says_bool(message: Message, context: Context) -> bool:
    return True


async def says_text(message: Message, context: Context) -> str:
    return "done"


def takes_any(*given: Any, **options: Any) -> Any: ...


@pytest.mark.parametrize(
    "handler",
    [Worker().handle, Worker().work, Worker(), AsyncWorker(), takes_any, functools.partial(three, other=1)],
)
def test_what_can_be_called_with_a_message_and_its_context_is_a_handler(harness: Harness, handler: Any) -> None:
    harness.send("A")
    harness.consumer(handler).run(until_empty=True)
    assert [body for _, body in harness.queue.deletes()] == ["A"]


@pytest.mark.spec("HBN-17")
@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (None, "handler: must be callable, not None; a handler takes a message and its context: def handle("),
        (one, "handler: one(message) cannot be called with two arguments; a handler takes a message and its"),
        (three, "handler: three(message, context, other) cannot be called with two arguments; "),
        (keyword, "handler: keyword(message, *, context) cannot be called with two arguments; "),
        (Worker.handle, "handler: Worker.handle(self, message, context) cannot be called with two arguments; "),
        (generator, "handler: generator is a generator, which nobody would iterate; "),
        (says_bool, "handler: says_bool returns bool; a handler returns an Outcome or None"),
        (says_text, "handler: says_text returns str; a handler returns an Outcome or None"),
    ],
)
def test_what_cannot_is_refused_when_the_consumer_is_made(harness: Harness, handler: Any, problem: str) -> None:
    with pytest.raises(InvalidOptions) as refused:
        harness.consumer(handler)
    assert len(refused.value.problems) == 1
    assert refused.value.problems[0].startswith(problem)
    assert "\n" not in str(refused.value)


@pytest.mark.spec("HBN-3")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("result", [False, 0, "done", {"ok": True}])
def test_any_other_result_is_an_error_of_the_handler(
    harness: Harness, caplog: pytest.LogCaptureFixture, asynchronous: bool, result: Any
) -> None:
    harness.send("A")

    async def later(message: Message, context: Context):  # type: ignore[no-untyped-def]
        return result

    handler = later if asynchronous else lambda message, context: result
    harness.consumer(handler).run(until_empty=True)
    assert harness.queue.deletes() == []
    assert f"a handler returns an Outcome or None, not {result!r}" in caplog.text
    assert ("rows are for a consumer with batch=" in caplog.text) == isinstance(result, dict)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_nobody_awaits_is_an_error_that_says_what_to_do(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    work = Worker().work
    harness.consumer(lambda message, context: work(message, context)).run(until_empty=True)
    assert harness.queue.deletes() == []
    assert "make the handler itself `async def`" in caplog.text


def test_a_queue_of_another_kind_is_refused(tmp_path: Path) -> None:
    async def opened() -> aio.Queue:
        async with aio.LakeQueue(str(tmp_path)) as lake:
            return await lake.create_queue("orders")

    no_queue = "queue: must be a Queue or a list of them, not "
    with pytest.raises(InvalidOptions, match=f"{no_queue}'orders'$"):
        Consumer("orders", sleeper(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match=f"{no_queue}aio.Queue.*; give its .sync"):
        Consumer(asyncio.run(opened()), sleeper(0))  # type: ignore[arg-type]


# --- async def


@pytest.mark.spec("HBN-18", "HBN-2")
def test_async_handlers_run_together_in_one_event_loop(harness: Harness) -> None:
    harness.send(*(str(number) for number in range(12)))
    loops = set()
    handler = harness.handler(10, lambda message: loops.add(asyncio.get_running_loop()), asynchronous=True)
    harness.consume(handler, 31, concurrency=5)
    assert handler.most == 5 and len(handler.begun) == 12 and len(loops) == 1
    assert [at for at, _ in harness.queue.deletes()] == [10] * 5 + [20] * 5 + [30] * 2


@pytest.mark.spec("HBN-3", "HBN-15")
@pytest.mark.parametrize("asynchronous", [True, False])
def test_async_handlers_fail_as_others_do(
    harness: Harness, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    harness.send("raises", "fails", "cancels")
    errors = {"raises": ValueError("by a handler"), "cancels": asyncio.CancelledError()}

    def answer(message: Message) -> Outcome:
        if message.receive_count > 1:
            return Outcome.SUCCESS
        if message.body in errors:
            raise errors[message.body]
        return Outcome.FAILED

    harness.consume(harness.handler(answer=answer, asynchronous=asynchronous), 41)
    assert [at for at, _ in harness.queue.deletes()] == [30] * 3
    assert "by a handler" in caplog.text and "the handler was cancelled" in caplog.text


def test_what_waits_behind_a_failed_message_is_given_back_outside_the_event_loop(fifo: Harness) -> None:
    fifo.send("a1", "a2", "a3")
    threads: dict[str, str] = {}

    def note(verb: str, bodies: list[str]) -> None:
        if verb == "change":
            threads.update(dict.fromkeys(bodies, threading.current_thread().name))

    fifo.queue.before = note
    handler = fifo.handler(1, raises(ValueError(), "a1"), asynchronous=True)
    with fifo.running(fifo.consumer(handler, prefetch=5)):
        fifo.clock.advance(2)
        assert threads.keys() == {"a2", "a3"} and "lakequeue event loop" not in threads.values()
        assert fifo.other.counts().visible == 2


@pytest.mark.spec("HBN-20")
def test_a_lost_receipt_wakes_an_async_handler(harness: Harness) -> None:
    harness.send("A")
    told = []
    lost, ended = threading.Event(), threading.Event()

    async def handle(message: Message, context: Context) -> None:
        harness.other.change_visibility(message.receipt_handle, 0)
        harness.other.receive(visibility_timeout=500)
        lost.set()
        told.append(await context.sleep_async(10_000))
        told.append(await context.sleep_async(10_000))  # at once now
        ended.set()
        context.raise_if_lost()

    with harness.running(harness.consumer(handle, concurrency=1)) as running:
        assert lost.wait(LONG_ENOUGH)
        harness.clock.advance(26)
        assert ended.wait(LONG_ENOUGH)  # the clock does not see that another thread has woken the loop
    assert told == [False, False]
    assert running.error is None and harness.other.counts().in_flight == 1


@pytest.mark.spec("HBN-1")
def test_a_stop_cancels_async_handlers_that_do_not_end_in_time(harness: Harness) -> None:
    harness.send("A")
    ends = []

    async def handle(message: Message, context: Context) -> None:
        try:
            await harness.clock.wait_async(harness.clock.now() + timedelta(days=1), asyncio.Event())
        except asyncio.CancelledError:
            ends.append(context.lost.is_set())
            raise

    consumer = harness.consumer(handle)
    with harness.running(consumer) as running:
        consumer.stop(timeout=0)
        assert running.join() is None
    assert ends == [True] and harness.visible() == ["A"]


def test_a_sleep_that_would_hold_up_the_event_loop_is_refused(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")

    async def handle(message: Message, context: Context) -> None:
        context.sleep(1)

    harness.consumer(handle).run(until_empty=True)
    assert "await context.sleep_async instead" in caplog.text and harness.queue.deletes() == []


# --- delays of failing messages


@pytest.mark.spec("HBN-3", "HNS-14")
@pytest.mark.parametrize("policy", [HeartbeatRenewal(), ComputedRenewal()])
@pytest.mark.parametrize(
    ("profile", "delay", "at"),
    [
        ("lake", RetryBackoff(first=2, factor=3, longest=20), [0, 2, 8, 26, 46, 66]),
        ("lake", lambda count: 10 * count, [0, 10, 30, 60, 100]),
        ("lake", 40, [0, 40, 80]),
        ("lake", 0.25, [0, 0.25, 0.5, 0.75, 1]),
        ("sqs", 0.3, [0, 1, 2]),  # which knows whole seconds only
    ],
)
def test_a_failing_message_comes_again_after_the_delay_for_its_receive_count(
    make: Callable[..., Harness], policy: Any, profile: str, delay: Any, at: list[float]
) -> None:
    harness = make(profile=profile, visibility_timeout=120)
    harness.send("A")
    handler = harness.handler(answer=Outcome.FAILED)
    harness.consume(handler, at[-1], renewal=policy, retry_delay=delay)
    assert handler.at == at
    assert handler.receives == [*range(1, len(at) + 1)]


@pytest.mark.spec("HBN-15")
def test_a_retry_now_wins_over_the_delay(harness: Harness) -> None:
    harness.send("A")
    handler = harness.handler(
        answer=lambda message: Outcome.FAILED_RETRY_NOW if message.receive_count < 3 else Outcome.FAILED
    )
    harness.consume(handler, 8, retry_delay=7)
    assert handler.at == [0, 0, 0, 7]


@pytest.mark.spec("HBN-19", "FIF-9")
def test_a_group_waits_for_the_delay_of_its_first_message(fifo: Harness) -> None:
    fifo.send("a1", "a2", "b1")
    handler = fifo.handler(
        answer=lambda message: Outcome.FAILED if (message.body, message.receive_count) == ("a1", 1) else None
    )
    fifo.consume(handler, 6, retry_delay=5)
    assert sorted(handler.begun) == [(0, "a1"), (0, "b1"), (5, "a1"), (5, "a2")]


@pytest.mark.spec("VIS-9")
def test_no_delay_exceeds_the_twelve_hours_of_a_receipt(harness: Harness) -> None:
    harness.send("A")
    harness.other.set_attributes(message_retention_period=1_209_600)
    harness.consume(sleeper(10, Outcome.FAILED), 11, concurrency=1, retry_delay=43_200)
    assert harness.queue.changes() == [(10, 43_190)]


def test_a_delay_that_cannot_be_computed_leaves_the_message_to_its_timeout(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    handler = harness.handler(answer=Outcome.FAILED)
    harness.consume(handler, 31, retry_delay=lambda count: "soon")
    assert handler.at == [0, 30]
    assert "no retry delay" in caplog.text


def test_every_option_of_a_backoff_is_checked() -> None:
    with pytest.raises(InvalidOptions) as refused:
        RetryBackoff(-1, 0.5, 43_201, jitter=2)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        *("first", "longest", "factor", "jitter"),
    ]


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), -float("inf"), True, "2", None])
def test_a_backoff_has_a_finite_factor(factor: Any) -> None:
    with pytest.raises(InvalidOptions, match="factor: must be a finite number of at least 1, not "):
        RetryBackoff(factor=factor)


@pytest.mark.parametrize("factor", [1e308, 10**400, 1.5])
@pytest.mark.parametrize("first", [0, 1e-6, 1, 900])
def test_a_backoff_of_any_finite_factor_ends_at_its_longest_delay(first: float, factor: float) -> None:
    backoff = RetryBackoff(first, factor, longest=43_200)
    delays = [backoff(count) for count in range(1, 200)]
    assert delays == sorted(delays) and delays[0] == first
    assert delays[-1] == (43_200 if first else 0)


def test_a_backoff_with_jitter_is_shorter_by_up_to_its_share() -> None:
    plain, spread = RetryBackoff(10, longest=100), RetryBackoff(10, longest=100, jitter=0.25)
    for count in range(1, 7):
        delays = {spread(count) for _ in range(50)}
        assert len(delays) > 10 and plain(count) * 0.75 <= min(delays) and max(delays) <= plain(count)
    assert {RetryBackoff(10)(1) for _ in range(10)} == {10}
