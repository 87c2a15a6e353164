"""The turn at a table on local disks: of all that want to commit, one decides and commits while the rest wait.

It is only for speed. A decision is right because ``commit`` checks its base, so whoever would wait for a process
that is stopped commits without a turn, and may lose the race.

Whoever wants the turn becomes the next first. So a process that gives it up cannot have it again before the one
that waits.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from lakequeue.storage import no_links
from lakequeue.storage.engines.file_lock import FileLock, Held, table_id
from lakequeue.storage.roots import local_path

STOPPED = 0.25
"""Seconds without a sign of the one that has the turn, until the others go on; signs are changes of the file."""
LONGEST = 5.0
"""Maximum number of seconds to wait for a turn, however many others have theirs meanwhile."""
POLL = 0.001
"""Longest pause in seconds between two tries of the next one; the others make longer ones."""


TURN_LOCKS = ("_next_turn.lock", "_turn.lock")
"""Files of a table that are locked."""


_mine = Held()


class DiskTurn(NamedTuple):
    """A turn that a process has, or went on without."""

    still_here: Callable[[], None] = lambda: None
    """Shows the others that this process is not stopped."""
    waited: bool = False
    """Whether others had it."""


@contextmanager
def turn(
    table_path: str, longest: float = LONGEST, until: Callable[[], bool] = lambda: False
) -> Iterator[DiskTurn]:
    """Holds the turn at a local table, or nothing if others keep it for too long. It is reentrant in a thread.

    ``until`` ends the wait without it.
    """
    local = local_path(table_path) or ""
    try:
        folder = no_links.open_table(local)
    except FileNotFoundError:  # the commit tells what is wrong
        yield DiskTurn()
        return
    table, waited = table_id(folder), False
    if table in _mine.locks:
        os.close(folder)
        yield DiskTurn()
        return
    place, holder = (FileLock(os.path.join(local, name), folder) for name in TURN_LOCKS)
    _mine.locks[table] = holder

    def waits(lock: FileLock) -> bool:
        nonlocal waited
        # a process that was stopped, and a clock that was set back, make nobody wait again
        if not 0 <= time.time() - lock.stamped < STOPPED or time.monotonic() > deadline or until():
            return False
        waited = True
        return True

    try:
        with suppress(OSError):  # the commit tells what is wrong
            deadline = time.monotonic() + longest
            _take(place, waits, 3 * POLL)
            if _take(holder, waits, POLL):
                place.release()
            else:  # those that go on without it do so one by one
                place.stamp()
        yield DiskTurn(lambda: (holder if holder.exclusive else place).stamp(), waited)
    finally:
        place.release()
        holder.release()
        _mine.locks.pop(table, None)
        os.close(folder)


def _take(lock: FileLock, waits: Callable[[FileLock], bool], pause: float) -> bool:
    while not lock.take(exclusive=True):
        if not waits(lock):
            return False
        time.sleep(random.uniform(pause / 2, pause))
    lock.stamp()
    return True
