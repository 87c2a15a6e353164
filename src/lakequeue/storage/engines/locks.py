"""The commit lock of a table on local disks, between threads and between processes.

Whoever commits shares it, from the look at the version that the commit builds on to the answer. Whoever removes
log entries or files holds it alone: so neither ever goes while a process is in a commit, however long that process
is stopped there. Whoever commits through Spark holds it alone too, because Spark's log store on ``file://`` looks
whether a commit file is there and then renames its own over it; delta-rs creates the file atomically.

Object stores need no lock: they create an entry of the log by a conditional PUT.

Nobody waits without a deadline, as a process that holds the lock may be stopped. A turnstile in front of the lock
lets whoever wants it alone get in between busy committers. It is for fairness only, so a committer that waited
for a moment goes past it.

The system's lock belongs to a process: a second thread would get it too, and end it for both by closing the file.
So the threads of a process settle among themselves first, and those that share it hold it together.
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
"""Seconds that a committer waits at the turnstile while somebody wants the lock alone."""
_POLL = 0.005
"""Seconds between two tries for a lock that another process holds."""


class LockHeld(QueueClientError):
    """The lock was held by others until the deadline; nothing was changed."""


class _TableLock:
    """The commit lock of one table, as the threads of this process share it."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "_commit.lock")
        self._processes = InterProcessReaderWriterLock(self._path)
        self._turnstile = InterProcessReaderWriterLock(os.path.join(folder, "_turnstile.lock"))
        self._changed = threading.Condition()
        self._sharing: set[int] = set()  # threads
        self._owner: int | None = None  # the thread that has it alone
        self._claimant: int | None = None  # the thread that is about to

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
            raise self._held(0)  # two that share it and each want it alone would wait for each other
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
                # those of this process notify, others have to be asked again
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

    # Both go by what the system has, and not only by what was noted: an interrupt may strike between the two.

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
    """Holds the table's commit lock; nothing to do on remote storage, whose stores arbitrate.

    A thread may take it again inside, but not alone what it shares. So a writer that keeps losing its races can
    take it alone, decide and commit.

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
