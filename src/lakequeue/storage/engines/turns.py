"""Turns of the processes that commit to one table. Without turns, most processes would lose their races.

Turns only save work, because the fence refuses stale commits. On a disk, turns are locks. See ``disk_turn``.

Object stores have no lock that ends with its holder. There, the last committer can commit again at once, before
another process has read the new commit. So a process that lost a race pauses before its next commits. Each loser
commits an empty entry, so that the winner loses its next race, and pauses, too.

Receivers on object stores commit each other's requests, and need no pauses. See ``storage.requests``.
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
"""Seconds to wait for exclusive access. After this time, the commit goes on without exclusive access."""
ASK_AFTER = 3
"""Number of lost races after which a process asks for a turn again."""
COMMITS = 4
"""Length of a pause, as a multiple of the duration of the last commit."""
LONGEST = 2.0
"""Maximum pause before a commit, in seconds."""
MOST = 8
"""Maximum number of pauses, one before each commit, after the last lost race."""


class Turns:
    """The turns of this process to commit to one table. This base class never waits. Not thread-safe."""

    moved = False
    """True if another process has committed. A commit on the loaded snapshot would then lose its race."""
    waited = False
    """True if this process had to wait for the turn of another process."""

    def __init__(self) -> None:
        self._held = ExitStack()

    @contextmanager
    def taken(self, table: Table | None, later: bool = False) -> Iterator[bool]:
        """Waits for a turn to commit, for the block. Yields True if the loaded snapshot is old.

        Choose the requests of the commit inside the block. If ``later``, only ``take`` waits.
        """
        with self._held:
            yield self._begin(table, later)

    def _begin(self, table: Table | None, later: bool) -> bool:
        return False

    def take(self, table: Table, *, patient: bool) -> bool:
        """Waits for the turn within the block of ``taken``. Returns True if the loaded snapshot is old.

        Unless ``patient``, stops waiting once another process commits, and continues without a turn.
        """
        return False

    def commit(self) -> AbstractContextManager[None]:
        """Returns a context for the commit, in which subclasses measure the commit, or show signs of life."""
        return nullcontext()

    def lose(self, table: Table, lost: int) -> bool:
        """Records the lost race number ``lost``. Returns True if the caller must load the newest snapshot."""
        return False

    def end(self) -> None:
        """Ends the turn before the block of ``taken`` ends. Call ``end`` once the commit has landed."""
        self._held.close()


NO_TURNS = Turns()
"""Turns that never wait, for tables with mostly one committing process."""


def turns_at(path: str, commits_alone: bool) -> Turns:
    """Returns the turns for a table: pauses on an object store, locks on a disk."""
    if local_path(path) is None:
        return StoreTurns()
    return _AloneTurns() if commits_alone else _DiskTurns(path)


def ask(table: Table) -> int:
    """Asks another process for a turn, by an empty commit. Returns how often turns at the table were asked for.
    Ignores errors.
    """
    asked = table.transaction(layout.TURN_ID)
    with suppress(Exception):
        table.add([], {layout.TURN_ID: asked + 1}, uuid.uuid4().hex)
        asked += 1
    return asked


class StoreTurns(Turns):
    """Pauses before commits on object stores, in place of turns."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: int | None = None
        self._took = 0.0
        """Duration of this process's last commit, in seconds. 0 after a pause or a lost race."""
        self._pauses = 0
        """Number of pauses that this process must still make. At most one pause comes before each commit."""

    def _begin(self, table: Table | None, later: bool) -> bool:
        """Pauses if this process committed last, and another wants to commit. Returns True after a pause."""
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
        """Asks for a turn once in ``ASK_AFTER`` races. Returns False, as the newest snapshot is loaded."""
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
    """Exclusive access after a lost race, for commits through Spark, whose decisions take a second."""

    def lose(self, table: Table, _: int) -> bool:
        with suppress(LockHeld):
            self._held.enter_context(committing(table.path, exclusive=True, patience=ALONE_PATIENCE))
        return True
