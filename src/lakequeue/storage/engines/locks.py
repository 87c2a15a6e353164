"""The commit lock of a table on a local disk, for threads and processes. Object stores need no lock.

A commit of the point engine takes the lock shared. The removal of files takes the lock exclusively, and so does a
commit through Spark, which may overwrite another commit on ``file://``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from lakequeue.errors import QueueClientError
from lakequeue.storage import no_links
from lakequeue.storage.engines.disk_turn import TURN_LOCKS, turn
from lakequeue.storage.engines.file_lock import FileLock, Held, table_id
from lakequeue.storage.roots import local_path

PATIENCE = 30.0
"""Seconds for which a commit waits for the lock before it raises LockHeld."""
_POLL = 0.002
"""Seconds between two attempts to take the lock."""
LOCKS = ("_commit.lock", *TURN_LOCKS)
"""Names of a table's lock files."""


class LockHeld(QueueClientError):
    """Raised if another process held the lock for too long. Nothing was changed."""


_mine = Held()


@contextlib.contextmanager
def committing(
    table_path: str, *, exclusive: bool, patience: float | None = None, folder: int | None = None
) -> Iterator[None]:
    """Holds the table's commit lock during the block. Does nothing on object stores.

    Blocks of one thread may be nested, but a block with an exclusive lock must not be inside a block with a shared
    lock. ``folder`` is an open descriptor of the table's directory.

    Raises:
        LockHeld: another process held the lock for ``patience`` seconds. None means ``PATIENCE``.
        OSError: the directory is gone, or the lock's file is not writable.
    """
    local = local_path(table_path)
    if local is None:
        yield
        return
    opened = no_links.open_table(local) if folder is None else folder
    try:
        table = table_id(opened)
        mine = _mine.locks.get(table)
        held = None if mine is None else mine.exclusive  # asks the lock: a note may be wrong after an interrupt
        if held or (held is False and not exclusive):
            yield
            return
        patience = PATIENCE if patience is None else patience
        lock, deadline = FileLock(os.path.join(local, LOCKS[0]), opened), time.monotonic() + patience
        if held is False:  # two threads that waited for this would wait for each other
            raise _refused(lock, 0)
        # busy committers take turns, so that one that wants it exclusively gets in between
        with turn(table_path, patience / 2) if exclusive else contextlib.nullcontext():
            try:
                while not lock.take(exclusive=exclusive):
                    if time.monotonic() >= deadline:
                        raise _refused(lock, patience)
                    time.sleep(_POLL)
                _mine.locks[table] = lock
                yield
            finally:
                lock.release()
    finally:
        if folder is None:
            os.close(opened)


def _refused(lock: FileLock, patience: float) -> LockHeld:
    return LockHeld(
        f"{lock.path} was held by another process for {patience:g} s; it may be stopped, or remove files. "
        "Nothing was changed"
    )
