"""Turns to commit to a table on a local disk. While one process commits, other processes wait for their turn.

Without turns, commits are still correct, because a commit that came too late fails. Turns avoid lost races. See
docs/internals/fence.md.

The process whose turn it is holds one lock, and the next process holds another. No process can take two turns in a
row while another process waits.
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
"""If the process with the turn shows no sign of life for so many seconds, others commit without a turn."""
FRESH = 0.05
"""Minimum seconds between two signs of life, because each sign is a write to the disk."""
LONGEST = 5.0
"""Maximum seconds that a process waits for its turn. Then it commits without a turn."""
POLL = 0.001
"""Maximum seconds of the first pauses of the next process in line. Other processes pause up to 3 times as long."""
PATIENCE = 1 / 16
"""A pause between two attempts may grow to this share of the time that the process has waited so far."""


TURN_LOCKS = ("_next_turn.lock", "_turn.lock")
"""Names of a table's lock files: for the process that is next, and for the process that has the turn now."""


_mine = Held()


class DiskTurn(NamedTuple):
    """The result of waiting for a turn. The process may now commit, even if it did not get the turn."""

    still_here: Callable[[], None] = lambda: None
    """Call this from time to time, so that other processes go on waiting for this process."""
    waited: bool = False
    """True if the process had to wait for another process's turn."""


@contextmanager
def turn(
    table_path: str, longest: float = LONGEST, until: Callable[[], bool] = lambda: False
) -> Iterator[DiskTurn]:
    """Waits for the turn to commit, and holds the turn during the block. Blocks may be nested.

    Stops waiting after ``longest`` seconds, once ``until()`` returns True, or if the process that has the turn
    shows no sign of life. Then the block runs without a turn.
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
            if not holder.take(exclusive=True):
                _show(place)
                _take(holder, waits, POLL)
            if holder.exclusive:
                _show(holder)
                place.release()
            else:  # those that go on without it do so one by one
                _show(place)
        yield DiskTurn(lambda: _show(holder if holder.exclusive else place), waited)
    finally:
        place.release()
        holder.release()
        _mine.locks.pop(table, None)
        os.close(folder)


def opened_folder(table_path: str) -> int | None:
    """Returns the descriptor of the directory at a path, if this thread has a turn there. None without a turn."""
    with suppress(OSError):
        status = os.stat(table_path)
        holder = _mine.locks.get((status.st_dev, status.st_ino))
        return None if holder is None else holder.folder
    return None


def _take(lock: FileLock, waits: Callable[[FileLock], bool], pause: float) -> None:
    began = time.monotonic()
    while not lock.take(exclusive=True) and waits(lock):
        longest = max(pause, PATIENCE * (time.monotonic() - began))
        time.sleep(random.uniform(longest / 2, longest))


def _show(lock: FileLock) -> None:
    if not 0 <= time.time() - lock.stamped < FRESH:
        lock.stamp()
