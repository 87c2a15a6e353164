"""The long polls of one queue that wait in this process.

Only a few waiters poll, however many there are. The first waiter polls at intervals for changes by other processes
and for messages that become visible with time. A change in this process wakes the first waiter that is not yet
woken, and a waiter that finds messages wakes two more. So a message costs one or two polls, and many messages
reach many receivers within a few shared commits.

Where the system tells of logs that change on a disk (inotify), waits are shorter. Where it does not, or other
machines write, receives look at intervals.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import attrs


@attrs.define(eq=False)
class Waiter:
    """One long poll.

    Attributes:
        woken: it was woken and has not yet begun. A poll clears it first, so that later changes wake it again.
        found: it found messages and is about to leave.
    """

    waiters: Waiters
    wake: Callable[[], None]
    woken: bool = False
    found: bool = False

    @property
    def first(self) -> bool:
        """Whether this waiter polls at intervals."""
        return self.waiters.first is self


class Waiters:
    """All waiters of a queue, in order of arrival. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[Waiter, None] = {}
        self._attributes_version = 0
        self.first: Waiter | None = None
        self.active_at: int | None = None
        """When a receive last found messages, or the first long poll began, in microseconds."""

    @contextmanager
    def waiter(self, wake: Callable[[], None]) -> Iterator[Waiter]:
        """Adds a waiter for the block; when it leaves, it hands an unused wake-up to the next."""
        waiter = Waiter(self, wake)
        with self._lock:
            self._waiters[waiter] = None
            self.first = self.first or waiter
        try:
            yield waiter
        finally:
            self._leave(waiter)

    def wake(self, number: int = 1) -> None:
        """Wakes the first ``number`` waiters that are not yet woken."""
        with self._lock:
            if self._waiters:
                self._wake(number)

    def announce(self, attributes_version: int) -> None:
        """Wakes all waiters if these attributes are new: the wait time may have changed (QUE-25)."""
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
        waiter.woken = True
        with suppress(RuntimeError):  # its event loop was closed
            waiter.wake()


PAUSE = 0.02
"""Seconds without further wake-ups after one: a queue that others keep busy costs a process that waits little."""


class LogWatch:
    """The directories that receives of this process wait for. Thread-safe."""

    def __init__(self) -> None:
        from inotify_simple import INotify, flags

        self._lock = threading.Lock()
        self._system = INotify()
        self._kinds = flags.CREATE | flags.MOVED_TO
        self._wakes: dict[int, list[Callable[[], None]]] = {}
        threading.Thread(target=self._tell, name="lakequeue log watch", daemon=True).start()

    @contextmanager
    def waking(self, folders: Sequence[str], wake: Callable[[], None]) -> Iterator[None]:
        """Calls ``wake`` when files come into one of some directories, during the block."""
        watched: list[int] = []
        with self._lock, suppress(OSError):  # a directory is gone, or the system watches as many as it may
            for folder in folders:
                watch = self._system.add_watch(folder, self._kinds)
                self._wakes.setdefault(watch, []).append(wake)
                watched.append(watch)
        try:
            yield
        finally:
            with self._lock:
                for watch in watched:
                    self._wakes[watch].remove(wake)
                    if not self._wakes[watch]:
                        del self._wakes[watch]
                        with suppress(OSError):  # with its directory it went by itself
                            self._system.rm_watch(watch)

    def _tell(self) -> None:
        while True:
            changed = {event.wd for event in self._system.read()}
            with self._lock:
                woken = dict.fromkeys(wake for watch in changed for wake in self._wakes.get(watch, ()))
            for wake in woken:
                wake()
            if woken:
                time.sleep(PAUSE)


@cache
def log_watch() -> LogWatch | None:
    """That of this process; None where the system has none."""
    with suppress(ImportError, OSError):
        return LogWatch()
    return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=log_watch.cache_clear)
