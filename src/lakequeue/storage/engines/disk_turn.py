"""Turns to commit to a table on a local disk. While one process has the turn and commits, other processes wait.

Turns only save work. The fence refuses stale commits. See docs/internals/fence.md.

The process that has the turn holds one lock. The next process in line holds another lock, so no process takes two
turns in a row while another process waits.
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
"""Seconds without a sign of life from the process in turn, after which processes go on without a turn."""
FRESH = 0.05
"""Minimum seconds between two signs of life of a process. Each sign is a write to the disk."""
LONGEST = 5.0
"""Maximum seconds for which a process waits for a turn. After this time, the process commits without a turn."""
POLL = 0.001
"""Maximum seconds of the next process's first pauses. Later processes pause up to three times as long."""
PATIENCE = 1 / 16
"""Maximum pause between two attempts to take the turn. The value is a share of the time waited."""


TURN_LOCKS = ("_next_turn.lock", "_turn.lock")
"""Names of a table's lock files for turns. The process that is next in line holds the first file's lock."""


_mine = Held()


class DiskTurn(NamedTuple):
    """A process's turn to commit, or its permission to commit without a turn."""

    still_here: Callable[[], None] = lambda: None
    """Shows a sign of life, so that other processes go on waiting for this turn."""
    waited: bool = False
    """True if the process had to wait for another process's turn."""


@contextmanager
def turn(
    table_path: str, longest: float = LONGEST, until: Callable[[], bool] = lambda: False
) -> Iterator[DiskTurn]:
    """Waits for the turn to commit, and holds the turn during the block. Reentrant.

    The wait ends without the turn after ``longest`` seconds, once ``until()`` returns True, or if the process that
    has the turn shows no sign of life.
    """
    local = local_path(table_path) or ""
    try:
        folder = no_links.open_table(local)
    except FileNotFoundError:  # the commit reports the error
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
        with suppress(OSError):  # the commit reports the error
            deadline = time.monotonic() + longest
            _take(place, waits, 3 * POLL)
            if _take(holder, waits, POLL):
                place.release()
            else:  # those that go on without it do so one by one
                _show(place)
        yield DiskTurn(lambda: _show(holder if holder.exclusive else place), waited)
    finally:
        place.release()
        holder.release()
        _mine.locks.pop(table, None)
        os.close(folder)


def _take(lock: FileLock, waits: Callable[[FileLock], bool], pause: float) -> bool:
    began = time.monotonic()
    while not lock.take(exclusive=True):
        if not waits(lock):
            return False
        longest = max(pause, PATIENCE * (time.monotonic() - began))
        time.sleep(random.uniform(longest / 2, longest))
    _show(lock)
    return True


def _show(lock: FileLock) -> None:
    if not 0 <= time.time() - lock.stamped < FRESH:
        lock.stamp()
