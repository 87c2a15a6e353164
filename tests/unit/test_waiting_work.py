"""Many works in a few threads, by a manual clock: each goes on when its wait ends or its event is set."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

import pytest

from lakequeue.model.clock import NEVER, Interrupt
from lakequeue.model.waiting_work import WaitingThreads, Waits, run
from lakequeue.testing import ManualClock

WORKS = 40


@pytest.mark.spec("JOB-9")
@pytest.mark.parametrize("threads", [1, 3, 2 * WORKS])
def test_each_work_goes_on_when_its_wait_ends(threads: int) -> None:
    clock, chance, running = ManualClock(), random.Random(threads), set[int]()
    pool, began, most = WaitingThreads(clock, threads, "pool"), clock.now(), [0]
    late: list[timedelta] = []
    names: set[threading.Thread] = set()

    def work(number: int, pauses: list[int]) -> Waits[None]:
        for pause in pauses:
            until = clock.now() + timedelta(seconds=pause)
            assert number not in running
            yield until
            running.add(number)
            late.append(clock.now() - until)
            names.add(threading.current_thread())
            most[0] = max(most[0], len(running))
            running.remove(number)

    each = [[chance.randint(0, 9) for _ in range(10)] for _ in range(WORKS)]
    for number, pauses in enumerate(each):
        pool.add(work(number, pauses), Interrupt())
    clock.advance(100)
    assert len(late) == 10 * WORKS and set(late) == {timedelta(0)}
    assert len(names) <= threads and most[0] <= threads
    assert clock.now() - began == timedelta(seconds=100)


@pytest.mark.spec("JOB-9")
def test_an_event_ends_the_wait_of_its_work_alone_and_threads_end_with_the_last() -> None:
    clock, wakes = ManualClock(), [Interrupt() for _ in range(WORKS)]
    pool, woken = WaitingThreads(clock, 4, "pool of the test"), list[int]()

    def work(number: int) -> Waits[None]:
        for _ in range(3):
            wakes[number].clear()
            yield NEVER
            woken.append(number)

    for number, wake in enumerate(wakes):
        pool.add(work(number), wake)
    clock.advance(0)
    assert not woken
    order = [number for number in range(WORKS) for _ in range(3)]
    random.Random(1).shuffle(order)
    for number in order:
        wakes[number].set()
        clock.advance(0)
    assert woken == order
    clock.advance(1)
    assert not [each for each in threading.enumerate() if each.name == "pool of the test"]


def test_work_goes_on_in_its_own_context_and_an_error_of_a_wait_is_raised_in_it() -> None:
    class Broken(ManualClock):
        def wait(self, *arguments: object) -> None:
            raise KeyboardInterrupt

    def work() -> Waits[str]:
        try:
            yield NEVER
        except KeyboardInterrupt:
            return "ended in order"
        return "waited"

    assert run(work(), Broken(), threading.Event()) == "ended in order"
    wake = threading.Event()
    wake.set()
    assert run(work(), ManualClock(), wake) == "waited"


@pytest.mark.spec("JOB-9")
def test_waits_that_were_ended_early_are_forgotten() -> None:
    clock, wake, steps = ManualClock(), Interrupt(), list[int]()
    pool = WaitingThreads(clock, 1, "pool")

    def work() -> Waits[None]:
        for step in range(1_000):
            wake.clear()
            yield clock.now() + timedelta(days=1)
            steps.append(step)

    pool.add(work(), wake)
    for _ in range(1_000):
        clock.advance(0)
        wake.set()
    clock.advance(0)
    assert len(steps) == 1_000 and len(pool._queue) < 100
