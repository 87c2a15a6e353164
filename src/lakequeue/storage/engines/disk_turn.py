"""The turn to commit to a table on a local disk: one process decides and commits, while the others wait.

Turns only save work: the fence refuses stale commits also without them. If the process that has the turn does not
continue, the waiting processes stop waiting, commit without a turn, and may lose a race.

There are two locks: one for the turn, and one for the next in line, who takes it before it waits for the turn. So
a process that has ended its turn cannot take the turn again before the process that is next in line.
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
"""Seconds without a sign of life from the process that has the turn, after which other processes wait no more."""
FRESH = 0.05
"""Minimum seconds between two signs of life of a process, because each is a write to the disk."""
LONGEST = 5.0
"""Maximum seconds for which a process waits for turns of other processes. Then it commits without a turn."""
POLL = 0.001
"""Maximum seconds between the first attempts of the process next in line to take the turn. Processes behind it
pause up to three times as long. Later pauses are longer, see ``PATIENCE``."""
PATIENCE = 1 / 16
"""Maximum pause between attempts, as a share of the time waited. Shorter pauses cost more CPU than commits."""


TURN_LOCKS = ("_next_turn.lock", "_turn.lock")
"""Lock files of a table."""


_mine = Held()


class DiskTurn(NamedTuple):
    """A turn of a process, or its permission to continue without one."""

    still_here: Callable[[], None] = lambda: None
    """Call it as a sign of life, so that other processes go on waiting for this turn."""
    waited: bool = False
    """True if another process had the turn."""


@contextmanager
def turn(
    table_path: str, longest: float = LONGEST, until: Callable[[], bool] = lambda: False
) -> Iterator[DiskTurn]:
    """Waits for the turn to commit, and holds it while the ``with`` block runs. The block runs without the turn
    after ``longest`` seconds, if ``until()`` returns True, or if its holder shows no sign of life. Reentrant.
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
