"""Helpers for tests of lakequeue, and of programs with lakequeue."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

import attrs

_POLL = 0.001  # Real seconds between checks of wake events. Setting an event does not notify the clock.
_ARRIVAL = 0.1  # Real seconds that a new thread has to become a participant.

_Who: TypeAlias = "threading.Thread | asyncio.Task[object]"


@attrs.define(eq=False)
class _ClockWait:
    """A wait in progress. ``stir`` makes it check the clock again."""

    who: _Who
    until: datetime
    wake: threading.Event | asyncio.Event
    loop: asyncio.AbstractEventLoop | None
    stir: Callable[[], object]
    late: bool = False


class ManualClock:
    """A clock that only ``advance`` moves.

    ``advance`` stops at the end of each wait, and continues once all participants wait again, so that tests do not
    depend on the machine's speed.

    Args:
        start: first instant, aware; 2026-01-01 UTC by default.
        patience: real seconds until ``advance`` gives up on a participant.
    """

    def __init__(self, start: datetime | None = None, *, patience: float = 60.0) -> None:
        start = start or datetime(2026, 1, 1, tzinfo=timezone.utc)
        if start.tzinfo is None:
            raise ValueError("a clock starts at an aware instant")
        self._now = start.astimezone(timezone.utc)
        self._late_now = self._now
        self._patience = patience
        self._changed = threading.Condition()
        self._waiters: list[_ClockWait] = []
        self._busy: Counter[_Who] = Counter()
        self._late: Counter[_Who] = Counter()
        self._advancing: Counter[_Who] = Counter()
        self._known_threads = set(threading.enumerate())

    def now(self) -> datetime:
        return self._now

    @property
    def waiting(self) -> int:
        """Number of waits in progress."""
        with self._changed:
            return len(self._waiters)

    def wait_for_waiters(self, count: int = 1) -> None:
        """Blocks until ``count`` threads or tasks wait on this clock. Blocks in real time."""
        with self._changed:
            self._until(lambda: len(self._waiters) >= count, f"{count} waiters")

    def wait(self, until: datetime, wake: threading.Event) -> None:
        with self._changed:
            who = _current()
            waiter = _ClockWait(who, until, wake, None, self._changed.notify_all, self._late[who] > 0)
            with self._waiting(waiter):
                while not self._due(waiter) and not wake.is_set():
                    self._changed.wait(_POLL)

    async def wait_async(self, until: datetime, wake: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = asyncio.Event()
        waiter = _ClockWait(_current(), until, wake, loop, lambda: loop.call_soon_threadsafe(due.set))
        with self._waiting(waiter):
            if self._now >= until or wake.is_set():
                return
            races = [asyncio.ensure_future(event.wait()) for event in (due, wake)]
            try:
                await asyncio.wait(races, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for race in races:
                    race.cancel()

    @contextmanager
    def participant(self, *, late: bool = False) -> Iterator[None]:
        who = _current()
        with self._changed:
            self._busy[who] += 1
            self._late[who] += late
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy[who] -= 1
                self._late[who] -= late
                self._busy += Counter()  # Drops counts of 0.
                self._late += Counter()
                self._changed.notify_all()

    def advance(self, seconds: float | timedelta) -> None:
        """Moves time forward. Stops at the end of each wait. Returns when all participants wait.

        Blocks an event loop. Use ``advance_async`` inside a loop.

        Raises:
            AssertionError: a participant did not wait again within the clock's patience.
        """
        step = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        if step < timedelta(0):
            raise ValueError("time does not run backwards")
        loop, me = _running_loop(), _current()
        with self._changed:
            self._advancing[me] += 1
            try:
                self._let_new_threads_arrive()
                self._rest(loop)
                target = self._now + step
                while self._now < target:
                    due = [w.until for w in self._waiters if w.loop is not loop or loop is None]
                    self._now = max(self._now, min([target, *due]))
                    self._stir()
                    self._rest(loop)
                    self._late_now = self._now
                    self._stir()
                    self._rest(loop)
            finally:
                self._advancing[me] -= 1
                self._advancing += Counter()

    async def advance_async(self, seconds: float | timedelta) -> None:
        """Moves time as ``advance``, inside an event loop."""
        me = _current()
        with self._changed:
            self._advancing[me] += 1
        try:
            for _ in range(10):  # Lets new tasks reach their first wait.
                await asyncio.sleep(0)
            await asyncio.to_thread(self.advance, seconds)
        finally:
            with self._changed:
                self._advancing[me] -= 1

    @contextmanager
    def _waiting(self, waiter: _ClockWait) -> Iterator[None]:
        with self._changed:
            self._waiters.append(waiter)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiters.remove(waiter)
                self._changed.notify_all()

    def _due(self, waiter: _ClockWait) -> bool:
        return waiter.until <= (self._late_now if waiter.late else self._now)

    def _stir(self) -> None:
        for waiter in self._waiters:
            if self._due(waiter):
                waiter.stir()

    def _rest(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._until(lambda: not self._restless(loop), "everybody to come to rest")

    def _restless(self, loop: asyncio.AbstractEventLoop | None) -> list[_Who]:
        resting, restless = set(), []
        for waiter in self._waiters:
            if not self._due(waiter) and not waiter.wake.is_set():
                resting.add(waiter.who)
            elif loop is None or waiter.loop is not loop:
                restless.append(waiter.who)
        for who in self._busy:
            if who in resting or who in self._advancing or not _alive(who):
                continue
            if loop is None or not (isinstance(who, asyncio.Task) and who.get_loop() is loop):
                restless.append(who)
        return restless

    def _let_new_threads_arrive(self) -> None:
        new = set(threading.enumerate()) - self._known_threads
        deadline = time.monotonic() + _ARRIVAL
        while time.monotonic() < deadline:
            arrived = {waiter.who for waiter in self._waiters} | set(self._busy) | set(self._advancing)
            if all(thread in arrived or not thread.is_alive() for thread in new):
                break
            self._changed.wait(_POLL)
        self._known_threads = set(threading.enumerate())

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._patience
        while not reached():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"gave up after {self._patience} s waiting for {what}; "
                    f"restless: {self._restless(_running_loop())}, waiting: {len(self._waiters)}"
                )
            self._changed.wait(_POLL)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _current() -> _Who:
    task = asyncio.current_task() if _running_loop() else None
    return task or threading.current_thread()


def _alive(who: _Who) -> bool:
    return not who.done() if isinstance(who, asyncio.Task) else who.is_alive()
