"""The long polls of one queue that wait in this process.

Only a few of many waiters poll. The first waiter polls at intervals, for changes by other processes, and for
messages that have become visible. A change in this process wakes the first waiter that is not yet woken. A waiter
that finds messages wakes two more waiters. A message therefore costs one or two polls, and many messages reach
many receivers within a few shared commits.

If the system reports changed logs on a disk, waits end sooner; see ``log_watch``. Otherwise, and for changes by
other machines, receives poll at intervals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Protocol

import attrs


class WatchedPlace(Protocol):
    """The logs of a queue on a disk, which one process watches. ``changes`` counts the changes of the logs."""

    changes: int

    def is_watched_here(self) -> bool:
        """True if this process watches the logs. Each change of a log wakes a waiter of the watching process."""
        ...

    def trusted_for(self, seconds: float) -> float:
        """Returns for how many seconds this process need not poll, because another process takes all messages."""
        ...

    def found_nothing(self, changes: int, seconds: float | None) -> None:
        """Records that a poll left no messages. Expects none for ``seconds``; if None, until the logs change."""
        ...


@attrs.define(eq=False)
class Waiter:
    """One long poll.

    Attributes:
        woken: True from a wake-up until the poll begins. A change after the poll has begun wakes the waiter again.
        found: True if the waiter found messages and is about to leave.
        full: True if the waiter found as many messages as its caller can handle now.
        woken_at: time of the last wake-up, in monotonic seconds.
        place: the logs whose changes wake this waiter; None if the system reports no changes.
    """

    waiters: Waiters
    wake: Callable[[], None]
    woken: bool = False
    found: bool = False
    full: bool = False
    woken_at: float = 0.0
    place: WatchedPlace | None = None

    @property
    def first(self) -> bool:
        return self.waiters.first is self


class Waiters:
    """All waiters of a queue, in order of arrival. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[Waiter, None] = {}
        self._attributes_version = 0
        self.first: Waiter | None = None
        self.active_at: int | None = None
        """Microseconds at which a receive last found messages, or at which the first long poll began."""

    @contextmanager
    def waiter(self, wake: Callable[[], None]) -> Iterator[Waiter]:
        """Adds a waiter for the block. At the end, an unused wake-up goes to another waiter."""
        waiter = Waiter(self, wake)
        with self._lock:
            self._waiters[waiter] = None
            self.first = self.first or waiter
        try:
            yield waiter
        finally:
            self._leave(waiter)

    def idle_for(self, now: int) -> int:
        """Returns the microseconds since a receive found messages, or since the first long poll."""
        if self.active_at is None:
            self.active_at = now
        return now - self.active_at

    def woken_for(self) -> float:
        """Returns the seconds since the oldest wake-up without a poll, or 0.0 if every woken waiter has polled."""
        with self._lock:
            instants = [waiter.woken_at for waiter in self._waiters if waiter.woken]
        return monotonic() - min(instants) if instants else 0.0

    def wake(self, number: int = 1) -> None:
        with self._lock:
            if self._waiters:
                self._wake(number)

    def announce(self, attributes_version: int) -> None:
        """Wakes all waiters for a new version of the attributes, which may change the wait time (QUE-25)."""
        with self._lock:
            if attributes_version > self._attributes_version:
                self._attributes_version = attributes_version
                self._wake(len(self._waiters))

    def _leave(self, waiter: Waiter) -> None:
        with self._lock:
            del self._waiters[waiter]
            if self.first is waiter:
                self.first = next(iter(self._waiters), None)
                if self.first is not None:
                    self._wake_one(self.first)  # from now on it polls at intervals
            self._wake(2 if waiter.found else int(waiter.woken))

    def _wake(self, number: int) -> None:
        for waiter in self._waiters:
            if number <= 0:
                return
            if not waiter.woken:
                self._wake_one(waiter)
                number -= 1

    def _wake_one(self, waiter: Waiter) -> None:
        waiter.woken, waiter.woken_at = True, monotonic()
        with suppress(RuntimeError):  # its event loop was closed
            waiter.wake()
