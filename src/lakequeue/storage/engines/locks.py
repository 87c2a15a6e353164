"""The commit lock of a table on local disks, between threads and between processes.

A committer holds it shared, from the check of the version that it builds on until it knows the outcome. Removing
log entries or files needs it exclusively, so neither happens while a process is in a commit, however long it is
stopped there. Commits through Spark hold it exclusively too: Spark's log store on ``file://`` checks that a commit
file is absent and then renames its own over it, while delta-rs creates the file atomically.

Object stores need no lock: they create log entries by a conditional PUT.

Every wait has a deadline, as a process that holds the lock may be stopped. A turnstile in front of the lock lets
an exclusive waiter in between busy committers. It only serves fairness, so a committer passes it after a moment.

The lock of the operating system belongs to a process: a second thread would get it too, and release it for both by
closing the file. So the threads of a process coordinate first, and those that share the lock hold it together.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from fasteners import InterProcessReaderWriterLock

from lakequeue.errors import QueueClientError
from lakequeue.storage.roots import local_path

PATIENCE = 30.0
"""Seconds that a commit waits for the lock."""
FAIRNESS = 0.25
"""Seconds that a committer waits at the turnstile while another wants the lock exclusively."""
_POLL = 0.005
"""Seconds between two tries for a lock that another process holds."""


class LockHeld(QueueClientError):
    """Others held the lock until the deadline; nothing was changed."""


class _TableLock:
    """The commit lock of one table, for the threads of this process."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "_commit.lock")
        self._processes = InterProcessReaderWriterLock(self._path)
        self._turnstile = InterProcessReaderWriterLock(os.path.join(folder, "_turnstile.lock"))
        self._changed = threading.Condition()
        self._sharing: set[int] = set()  # threads
        self._owner: int | None = None  # the thread that holds it exclusively
        self._claimant: int | None = None  # the thread that waits for that

    @contextlib.contextmanager
    def shared(self, patience: float) -> Iterator[None]:
        me = threading.get_ident()
        if self._owner == me or me in self._sharing:
            yield
            return
        deadline = time.monotonic() + patience
        self._wait(self._passes, min(deadline, time.monotonic() + FAIRNESS))
        try:
            if not self._wait(lambda: self._joins(me), deadline):
                raise self._held(patience)
            yield
        finally:
            self._leave(me)

    @contextlib.contextmanager
    def exclusive(self, patience: float) -> Iterator[None]:
        me = threading.get_ident()
        if self._owner == me:
            yield
            return
        if me in self._sharing:
            raise self._held(0)  # two threads that did this would wait for each other
        deadline = time.monotonic() + patience
        try:
            claimed = self._wait(lambda: self._claims(me), deadline)
            if not (claimed and self._wait(lambda: self._owns(me), deadline)):
                raise self._held(patience)
            self._give_way(me)
            yield
        finally:
            self._give_way(me)
            self._leave(me)

    def _wait(self, done: Callable[[], bool], deadline: float) -> bool:
        with self._changed:
            while not done():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                # threads of this process notify; other processes must be polled
                self._changed.wait(min(left, _POLL))
            return True

    def _passes(self) -> bool:
        if self._claimant is not None or not self._turnstile.acquire_read_lock(blocking=False):
            return False
        self._turnstile.release_read_lock()
        return True

    def _joins(self, me: int) -> bool:
        if self._owner is not None or not (self._sharing or self._processes.acquire_read_lock(blocking=False)):
            return False
        self._sharing.add(me)
        return True

    def _claims(self, me: int) -> bool:
        if self._claimant is not None or not self._turnstile.acquire_write_lock(blocking=False):
            return False
        self._claimant = me
        return True

    def _owns(self, me: int) -> bool:
        if self._owner is not None or self._sharing or not self._processes.acquire_write_lock(blocking=False):
            return False
        self._owner = me
        return True

    # Both check what the system holds, not only what was noted: an interrupt may come between the two.

    def _give_way(self, me: int) -> None:
        with self._changed:
            if self._claimant == me:
                self._claimant = None
            if self._claimant is None and self._turnstile.lockfile is not None:
                self._turnstile.release_write_lock()
            self._changed.notify_all()

    def _leave(self, me: int) -> None:
        with self._changed:
            self._sharing.discard(me)
            if self._owner == me:
                self._owner = None
            if self._owner is None and not self._sharing and self._processes.lockfile is not None:
                self._processes.release_write_lock()
            self._changed.notify_all()

    def _held(self, patience: float) -> LockHeld:
        return LockHeld(
            f"{self._path} was held by another process for {patience:g} s; it may be stopped, or remove files. "
            "Nothing was changed"
        )


_locks: weakref.WeakValueDictionary[str, _TableLock] = weakref.WeakValueDictionary()
_locks_mutex = threading.Lock()


@contextlib.contextmanager
def committing(table_path: str, *, exclusive: bool, patience: float | None = None) -> Iterator[None]:
    """Holds the table's commit lock; does nothing on remote storage, whose stores arbitrate.

    It is reentrant in a thread, but a shared hold cannot become exclusive. A writer that keeps losing its races
    can take it exclusively, decide and commit.

    Raises:
        LockHeld: others held it for ``patience`` (None: ``PATIENCE``) seconds.
    """
    local = local_path(table_path)
    if local is None:
        yield
        return
    folder = os.path.realpath(local)
    with _locks_mutex:
        lock = _locks.get(folder)
        if lock is None:
            lock = _locks[folder] = _TableLock(folder)
    patience = PATIENCE if patience is None else patience
    with lock.exclusive(patience) if exclusive else lock.shared(patience):
        yield
