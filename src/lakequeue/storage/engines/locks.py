"""The commit lock of a table on local disks, between threads and between processes.

A committer holds it shared, from the check of the version that it builds on until it knows the outcome. Removing
log entries or files needs it exclusively, so neither happens while a process is in a commit, however long it is
stopped there. Commits through Spark hold it exclusively too: Spark's log store on ``file://`` checks that a commit
file is absent and then renames its own over it, while delta-rs creates the file atomically.

Object stores need no lock: they create log entries by a conditional PUT.

Every wait has a deadline, as a process that holds the lock may be stopped.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from lakequeue.errors import QueueClientError
from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.roots import local_path

PATIENCE = 30.0
"""Seconds that a commit waits for the lock."""
_POLL = 0.002
"""Seconds between two tries for a lock that others hold."""


class LockHeld(QueueClientError):
    """Others held the lock until the deadline; nothing was changed."""


class _Held(threading.local):
    """Tables whose lock a thread holds, and whether exclusively."""

    def __init__(self) -> None:
        self.tables: dict[str, bool] = {}


_held = _Held()


@contextlib.contextmanager
def committing(table_path: str, *, exclusive: bool, patience: float | None = None) -> Iterator[None]:
    """Holds the table's commit lock; does nothing on remote storage, whose stores arbitrate.

    It is reentrant in a thread, but a shared hold cannot become exclusive.

    Raises:
        LockHeld: others held it for ``patience`` (None: ``PATIENCE``) seconds.
        OSError: the table's directory is gone, or the lock cannot be written.
    """
    local = local_path(table_path)
    folder = "" if local is None else os.path.realpath(local)
    patience = PATIENCE if patience is None else patience
    mine = _held.tables.get(folder)
    if local is None or mine or (mine is False and not exclusive):
        yield
        return
    path = os.path.join(folder, "_commit.lock")
    if mine is False:  # two threads that waited for this would wait for each other
        raise _refused(path, 0)
    lock, deadline = FileLock(path), time.monotonic() + patience
    try:
        while not lock.take(exclusive=exclusive):
            if time.monotonic() >= deadline:
                raise _refused(path, patience)
            time.sleep(_POLL)
        _held.tables[folder] = exclusive
        yield
    finally:
        _held.tables.pop(folder, None)
        lock.release()


def _refused(path: str, patience: float) -> LockHeld:
    return LockHeld(
        f"{path} was held by another process for {patience:g} s; it may be stopped, or remove files. "
        "Nothing was changed"
    )
