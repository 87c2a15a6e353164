"""Turns of the processes that commit to one table. Without turns, most processes would lose their races.

Turns only save work, because a commit that came too late fails anyway. On a local disk, turns are locks; see
``disk_turn``.

On an object store, turns are pauses, because a lock would stay if its process died. The process that committed
last could commit again before other processes have read its commit. So a process that has lost a race pauses
before its next commits. After several lost races, the process also commits an empty entry. The winner then loses a
race, and pauses, too.

Receivers on object stores need no pauses, because they commit each other's requests; see ``storage.requests``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from time import monotonic, sleep

from lakequeue.storage import layout
from lakequeue.storage.delta_log import has_entry
from lakequeue.storage.engines.disk_turn import DiskTurn, turn
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.point import Table
from lakequeue.storage.roots import local_path

ALONE_PATIENCE = 2.0
"""Seconds to wait for exclusive access. Then the commit is made without exclusive access."""
ASK_AFTER = 3
"""A process asks for a turn each time it has lost this number of races."""
COMMITS = 4
"""A pause lasts this many times as long as the process's last commit."""
LONGEST = 2.0
"""Maximum pause before a commit, in seconds."""
MOST = 8
"""Maximum number of pauses after lost races. Each pause comes before one of the process's next commits."""


class Turns:
    """The turns of this process to commit to one table. This base class never waits. Not thread-safe."""

    moved = False
    """True if another process has committed since the loaded snapshot. A commit on this snapshot would fail."""
    waited = False
    """True if this process had to wait because another process had the turn."""

    def __init__(self) -> None:
        self._held = ExitStack()

    @contextmanager
    def taken(self, table: Table | None, later: bool = False) -> Iterator[bool]:
        """Waits for the turn, and keeps it during the block. Yields True if the loaded snapshot may be old.

        Do not choose the requests for the commit before the block begins. If ``later`` is True, does not wait at
        the start of the block, but when the method ``take`` is called.
        """
        with self._held:
            yield self._begin(table, later)

    def _begin(self, table: Table | None, later: bool) -> bool:
        return False

    def take(self, table: Table, *, patient: bool) -> bool:
        """Waits for the turn, if ``taken`` did not wait. Returns True if the loaded snapshot is old.

        If ``patient`` is False, goes on without a turn as soon as another process commits.
        """
        return False

    def commit(self) -> AbstractContextManager[None]:
        """Context manager for a commit. Subclasses measure the duration, or show that this process is alive."""
        return nullcontext()

    def lose(self, table: Table, lost: int) -> bool:
        """Called after each lost race. ``lost`` is the number of races that the transaction has lost so far.
        Returns True if the caller must load the newest snapshot.
        """
        return False

    def end(self) -> None:
        """Ends the turn as soon as the commit has landed, before the ``with`` block of ``taken`` ends."""
        self._held.close()


NO_TURNS = Turns()
"""Turns that never wait. For tables to which usually only one process commits."""


def turns_at(path: str, commits_alone: bool) -> Turns:
    """Returns the turns for a table: pauses on an object store, locks on a disk."""
    if local_path(path) is None:
        return StoreTurns()
    return _AloneTurns() if commits_alone else _DiskTurns(path)


def ask(table: Table) -> int:
    """Makes an empty commit, with which this process asks for a turn. Returns how often processes have asked."""
    asked = table.transaction(layout.TURN_ID)
    with suppress(Exception):
        table.add([], {layout.TURN_ID: asked + 1}, uuid.uuid4().hex)
        asked += 1
    return asked


class StoreTurns(Turns):
    """Turns on object stores, where processes pause before commits."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: int | None = None
        self._took = 0.0
        """Duration of the last commit in seconds. 0 if this process has paused or lost a race since."""
        self._pauses = 0
        """Number of this process's next commits before which it must still pause."""

    def _begin(self, table: Table | None, later: bool) -> bool:
        """Pauses if a pause is due and this process committed since its last pause. Returns True after a pause."""
        if table is None:
            return False
        asked, known = table.transaction(layout.TURN_ID), self._asked
        self._asked = asked
        if known is not None and asked != known:
            self._meet()
        if not (self._pauses and self._took):
            return False
        self._pauses -= 1
        pause, self._took = min(LONGEST, COMMITS * self._took), 0.0
        sleep(pause)
        return True

    def lose(self, table: Table, lost: int) -> bool:
        """Asks for a turn after every ``ASK_AFTER`` lost races. Returns False: the caller need not refresh."""
        self._meet()
        self._took = 0.0
        if lost % ASK_AFTER == 0:
            self._asked = ask(table)
        return False

    @contextmanager
    def commit(self) -> Iterator[None]:
        began = monotonic()
        yield
        self._took = monotonic() - began

    def _meet(self) -> None:
        self._pauses = min(MOST, 2 * self._pauses + 1)


class _DiskTurns(Turns):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._turn: DiskTurn | None = None

    def _begin(self, table: Table | None, later: bool) -> bool:
        self._turn = None
        return later or self._take(table, patient=True)

    def take(self, table: Table, *, patient: bool) -> bool:
        moved = self._take(table, patient)
        if moved and not patient:
            self._held.close()
            self._turn = None
        return moved

    def _take(self, table: Table | None, patient: bool) -> bool:
        def moved() -> bool:
            return table is not None and has_entry(table.folder, table.version + 1)

        if self._turn is None:
            self._turn = self._held.enter_context(turn(self._path, until=lambda: not patient and moved()))
        self.moved, self.waited = moved(), self._turn.waited
        if table is not None and self.moved:
            table.lost_races = 1
        return self.moved

    def commit(self) -> AbstractContextManager[None]:
        self._show()
        return nullcontext()

    def lose(self, _: Table, __: int) -> bool:
        self._show()
        return False

    def _show(self) -> None:
        if self._turn is not None:
            self._turn.still_here()


class _AloneTurns(Turns):
    """Turns of commits through Spark. After a lost race, a turn is exclusive: each attempt takes a second."""

    def lose(self, table: Table, _: int) -> bool:
        with suppress(LockHeld):
            self._held.enter_context(committing(table.path, exclusive=True, patience=ALONE_PATIENCE))
        return True
