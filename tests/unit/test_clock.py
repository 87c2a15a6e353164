"""Conversions of time, the system clock, and the manual clock under threads and tasks."""

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakequeue.model.clock import SystemClock, duration_micros, from_micros, to_micros
from lakequeue.testing import ManualClock

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(seconds):
    return START + timedelta(seconds=seconds)


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.spec("DLT-2")
@given(st.datetimes(timezones=st.just(timezone.utc)))
@example(datetime(2026, 3, 4, 5, 6, 7, 123_457, tzinfo=timezone.utc))
def test_instants_survive_the_way_through_microseconds(instant):
    assert from_micros(to_micros(instant)) == instant
    assert to_micros(instant.astimezone(timezone(timedelta(hours=5)))) == to_micros(instant)
    assert to_micros(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)) == 1_000_000


def test_a_naive_instant_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        to_micros(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="aware"):
        ManualClock(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("duration", "micros"),
    [
        (1, 1_000_000),
        (0.2, 200_000),
        (timedelta(minutes=1), 60_000_000),
        (-1, -1_000_000),
        (Decimal("0.1"), 100_000),
    ],
)
def test_durations_become_whole_microseconds(duration, micros):
    assert duration_micros(duration) == micros


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), 1e308, "5", None, True])
def test_what_is_no_duration_is_refused(duration):
    with pytest.raises((TypeError, ValueError)):
        duration_micros(duration)


@pytest.mark.spec("LPL-6")
def test_the_system_clock_ends_a_wait_at_its_instant_or_at_a_wake():
    clock = SystemClock()
    assert clock.now().tzinfo is timezone.utc
    until = clock.now() + timedelta(milliseconds=20)
    clock.wait(until, threading.Event())
    assert clock.now() >= until
    wake = threading.Event()
    wake.set()
    clock.wait(clock.now() + timedelta(hours=1), wake)  # returns


@pytest.mark.spec("LPL-6")
def test_the_system_clock_ends_a_wait_of_a_task():
    async def scenario():
        clock, wake = SystemClock(), asyncio.Event()
        until = clock.now() + timedelta(milliseconds=20)
        with clock.participant():
            await clock.wait_async(until, wake)
        assert clock.now() >= until
        wake.set()
        await clock.wait_async(clock.now() + timedelta(hours=1), wake)

    asyncio.run(asyncio.wait_for(scenario(), 5))


@pytest.mark.spec("DLT-2")
def test_the_manual_clock_moves_only_by_advance():
    clock = ManualClock()
    assert clock.now() == START
    clock.advance(1.5)
    clock.advance(timedelta(seconds=1))
    assert clock.now() == at(2.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


@pytest.mark.spec("LPL-6")
def test_waiters_wake_one_instant_at_a_time_and_may_wait_again():
    clock, seen = ManualClock(), []

    def every(name, step, times):
        with clock.participant():
            for n in range(1, times + 1):
                clock.wait(at(n * step), threading.Event())
                seen.append((name, (clock.now() - START).total_seconds()))

    threads = [in_thread(lambda: every("a", 2, 4)), in_thread(lambda: every("b", 3, 3))]
    clock.wait_for_waiters(2)
    clock.advance(7)
    assert sorted(seen) == [("a", 2), ("a", 4), ("a", 6), ("b", 3), ("b", 6)]
    assert [when for _, when in seen] == sorted(when for _, when in seen)
    clock.advance(2)
    assert {("a", 8), ("b", 9)} < set(seen)
    assert not any(thread.is_alive() for thread in threads) or clock.waiting == 0


@pytest.mark.spec("LPL-6")
def test_a_wait_is_over_at_its_instant_not_before():
    clock, done = ManualClock(), threading.Event()

    def work():
        with clock.participant():
            clock.wait(at(10), threading.Event())
            done.set()

    in_thread(work)
    clock.wait_for_waiters()
    clock.advance(9.999)
    assert not done.is_set()
    clock.advance(0.001)
    assert done.is_set()


@pytest.mark.spec("LPL-6")
def test_advance_returns_only_when_woken_participants_have_finished():
    clock, steps = ManualClock(), []

    def work():
        with clock.participant(), clock.participant():  # nested, as a receive inside a consumer is
            clock.wait(at(1), threading.Event())
            for n in range(50):
                threading.Event().wait(0.001)  # busy in real time
                steps.append(n)

    in_thread(work)
    clock.wait_for_waiters()
    clock.advance(5)
    assert len(steps) == 50


@pytest.mark.spec("LPL-6")
def test_a_set_wake_ends_a_wait_without_time_passing():
    clock, wake, seen = ManualClock(), threading.Event(), []

    def work():
        with clock.participant():
            clock.wait(at(10), wake)
            seen.append(clock.now())

    in_thread(work)
    clock.wait_for_waiters()
    wake.set()
    clock.advance(3)
    assert seen == [START]


@pytest.mark.spec("LPL-6")
def test_a_thread_started_just_before_advance_is_waited_for():
    for _ in range(5):
        clock, seen = ManualClock(), []

        def work(clock=clock, seen=seen):
            threading.Event().wait(0.01)  # slow to arrive
            with clock.participant():
                clock.wait(clock.now() + timedelta(seconds=5), threading.Event())
                seen.append(clock.now())

        thread = in_thread(work)
        clock.advance(5)
        thread.join(60)
        assert seen == [at(5)]


def test_a_participant_that_never_rests_is_reported():
    clock, leave = ManualClock(patience=0.05), threading.Event()

    def work():
        with clock.participant():
            leave.wait(60)

    thread = in_thread(work)
    while not clock._busy:
        threading.Event().wait(0.001)
    with pytest.raises(AssertionError, match="come to rest"):
        clock.advance(1)
    leave.set()
    thread.join()


def test_a_participant_may_itself_advance():
    clock = ManualClock(patience=1)
    with clock.participant():
        clock.advance(1)
    assert clock.now() == at(1)


@pytest.mark.spec("LPL-6")
def test_tasks_wake_one_instant_at_a_time():
    async def scenario():
        clock, seen = ManualClock(patience=5), []

        async def every(step, times):
            with clock.participant():
                for n in range(1, times + 1):
                    await clock.wait_async(at(n * step), asyncio.Event())
                    await asyncio.sleep(0.002)
                    seen.append((step, (clock.now() - START).total_seconds()))

        tasks = [asyncio.create_task(every(2, 3)), asyncio.create_task(every(3, 2))]
        await clock.advance_async(10)
        assert sorted(seen) == [(2, 2), (2, 4), (2, 6), (3, 3), (3, 6)]
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.spec("LPL-6")
def test_tasks_wait_for_a_clock_that_another_thread_advances():
    clock, seen = ManualClock(patience=5), []

    async def scenario():
        with clock.participant():
            await clock.wait_async(at(4), asyncio.Event())
            seen.append(clock.now())

    thread = in_thread(lambda: asyncio.run(scenario()))
    clock.wait_for_waiters()
    clock.advance(3)
    assert seen == []
    clock.advance(3)
    assert seen == [at(4)]
    thread.join(60)


def test_advance_inside_the_loop_is_seen_after_the_next_await():
    async def scenario():
        clock, wake = ManualClock(patience=1), asyncio.Event()

        async def work(until):
            with clock.participant():
                await clock.wait_async(until, wake)
                return clock.now()

        due, woken = asyncio.create_task(work(at(5))), asyncio.create_task(work(at(500)))
        await asyncio.sleep(0)
        clock.advance(5)
        assert await due == at(5)
        wake.set()
        assert await woken == at(5)

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.spec("HBN-10", "LPL-6")
def test_a_late_participant_comes_after_all_others_of_an_instant():
    clock, seen = ManualClock(patience=5), []

    def work(name, late):
        with clock.participant(late=late):
            for n in (1, 2):
                clock.wait(at(n), threading.Event())
                if not late:
                    threading.Event().wait(0.02)
                seen.append(name)

    for name, late in (("late", True), ("other", False)):
        in_thread(lambda name=name, late=late: work(name, late))
        clock.wait_for_waiters(1 + len(seen))
    clock.wait_for_waiters(2)
    clock.advance(2)
    assert seen == ["other", "late", "other", "late"]


@pytest.mark.spec("HBN-10")
def test_a_late_participant_that_is_woken_may_let_the_instant_pass_first():
    clock, wake, seen = ManualClock(patience=5), threading.Event(), []

    def late():
        with clock.participant(late=True):
            clock.wait(at(100), wake)
            clock.wait(clock.now(), threading.Event())
            seen.append("late")

    def other():
        with clock.participant():
            clock.wait(at(1), threading.Event())
            wake.set()
            threading.Event().wait(0.02)
            seen.append("other")

    for work in (late, other):
        in_thread(work)
    clock.wait_for_waiters(2)
    clock.advance(1)
    assert seen == ["other", "late"]
