"""Turns of the processes that commit to one table.

Without turns, most processes lose their races. Turns only save work. The fence refuses stale commits. On a disk,
turns are locks. See ``disk_turn``.

A store's locks would not end with their holder. The last committer of a store can commit again first. In a
measurement, another process lost 26 races. A process that lost a race pauses before its commits. A process without
lost races never pauses. A loser therefore commits an empty entry. The winner loses a race to the empty entry.

Receivers on object stores need no pauses. Receivers commit each other's requests. See ``storage.requests``. An
empty entry makes a lone receiver post requests, too.
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
"""Seconds to wait for exclusive access. Afterwards, the commit goes on without exclusive access."""
ASK_AFTER = 3
"""Number of lost races between two requests for a turn."""
COMMITS = 4
"""Length of a pause, in durations of the last commit."""
LONGEST = 2.0
"""Maximum pause before a commit, in seconds."""
MOST = 8
"""Maximum number of paused commits after the last lost race."""


class Turns:
    """The turns to commit of this process at one table. This base class never waits. Not thread-safe."""

    moved = False
    """True if another process committed since. A commit would lose a race."""
    waited = False
    """True if this process had to wait for another's turn."""

    def __init__(self) -> None:
        self._held = ExitStack()

    @contextmanager
    def taken(self, table: Table | None, later: bool = False) -> Iterator[bool]:
        """Waits for a turn. Keeps the turn during the block. Yields True if the loaded snapshot is old.

        Choose the requests of the commit inside the block. If ``later``, only ``take`` waits.
        """
        with self._held:
            yield self._begin(table, later)

    def _begin(self, table: Table | None, later: bool) -> bool:
        return False

    def take(self, table: Table, *, patient: bool) -> bool:
        """Waits for the turn within the block of ``taken``. Returns True if the loaded snapshot is old.

        Unless ``patient``, stops waiting once another process commits. The process continues without a turn.
        """
        return False

    def commit(self) -> AbstractContextManager[None]:
        """Returns a context for the commit itself. Subclasses measure its duration, or give signs of life."""
        return nullcontext()

    def lose(self, table: Table, lost: int) -> bool:
        """Records lost race number ``lost`` of a call. Returns True if the newest snapshot must be loaded."""
        return False

    def end(self) -> None:
        """Ends the turn before the block ends. Call ``end`` once the commit has landed."""
        self._held.close()


NO_TURNS = Turns()
"""Turns that never wait. For tables with a single committing process."""


def turns_at(path: str, commits_alone: bool) -> Turns:
    """Returns the turns at a table: pauses on a store, locks on a disk."""
    if local_path(path) is None:
        return StoreTurns()
    return _AloneTurns() if commits_alone else _DiskTurns(path)


def ask(table: Table) -> int:
    """Asks another process for a turn, by an empty commit. Returns the number of requests. Ignores errors."""
    asked = table.transaction(layout.TURN_ID)
    with suppress(Exception):
        table.add([], {layout.TURN_ID: asked + 1}, uuid.uuid4().hex)
        asked += 1
    return asked


class StoreTurns(Turns):
    """Pauses before commits, instead of turns, on object stores."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: int | None = None
        self._took = 0.0
        """Duration of this process's last commit, in seconds; 0 after a pause or a lost race."""
        self._pauses = 0
        """Number of commits that this process still delays."""

    def _begin(self, table: Table | None, later: bool) -> bool:
        """Pauses if other processes want to commit. Returns True after a pause."""
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
        """Asks for a turn once in ``ASK_AFTER`` lost races. Returns False, as the newest snapshot is loaded."""
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
    """Exclusive access after a lost race, for Spark's commits: a decision takes a second, too long for turns."""

    def lose(self, table: Table, _: int) -> bool:
        with suppress(LockHeld):
            self._held.enter_context(committing(table.path, exclusive=True, patience=ALONE_PATIENCE))
        return True
