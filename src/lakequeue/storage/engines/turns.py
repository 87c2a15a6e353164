"""Turns of processes that commit to one table: of those that decide on one version, all but one lose the race."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Protocol

from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.disk_turn import Turn, turn
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.store_turns import StoreTurns
from lakequeue.storage.roots import local_path

ALONE_PATIENCE = 2.0
"""Seconds to wait until others are kept out: a process may be stopped in a commit, and must not stop the rest."""


class Turns(Protocol):
    """Turns of this process at one table; not thread-safe, its owner locks."""

    moved: bool
    """Whether others committed since this process did, so that it would have lost a race without its turn."""

    waited: bool
    """Whether others had the turn when this process wanted it."""

    def taken(self, table: Table | None, later: bool = False) -> AbstractContextManager[bool]:
        """Waits for a turn, and has it during the block; yields whether what is known of the table is old.

        Enter it before the callers are chosen whose requests go into the next commit. ``later``: what they need
        can be prepared beside others, and locks are waited for in ``take``.
        """

    def take(self, table: Table, *, patient: bool) -> bool:
        """Waits for the turn within such a block, and has it; returns whether what is known of the table is old.

        If it is not ``patient``, it waits until somebody commits, and then does without.
        """

    def commit(self) -> AbstractContextManager[None]:
        """A commit within the turn."""

    def lose(self, table: Table, lost: int) -> bool:
        """Notes that this process lost its last races, this many of them; returns whether the table is old."""

    def end(self) -> None:
        """Ends the turn before its block: there is a commit, and what follows keeps nobody waiting."""


def turns_at(path: str, commits_alone: bool) -> Turns:
    """Turns at a table. A store has no locks that go with their holder, so there pauses take their place."""
    if local_path(path) is None:
        return StoreTurns()
    return _AloneTurns() if commits_alone else _DiskTurns(path)


class _LocalTurns:
    moved = waited = False

    def __init__(self) -> None:
        self._held = ExitStack()

    def take(self, _: Table, *, patient: bool) -> bool:
        return False

    def end(self) -> None:
        self._held.close()


class _DiskTurns(_LocalTurns):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._turn: Turn | None = None

    @contextmanager
    def taken(self, table: Table | None, later: bool = False) -> Iterator[bool]:
        with self._held:
            self._turn = None
            yield later or self._take(table, patient=True)

    def take(self, table: Table, *, patient: bool) -> bool:
        moved = self._take(table, patient)
        if moved and not patient:
            self._held.close()
            self._turn = None
        return moved

    def _take(self, table: Table | None, patient: bool) -> bool:
        def moved() -> bool:
            return table is not None and table.folder.exists(entry_name(table.version + 1))

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


class _AloneTurns(_LocalTurns):
    """Turns of an engine that commits through Spark, which takes a second to decide: longer than others wait."""

    @contextmanager
    def taken(self, _: Table | None, later: bool = False) -> Iterator[bool]:
        with self._held:
            yield False

    def commit(self) -> AbstractContextManager[None]:
        return nullcontext()

    def lose(self, table: Table, _: int) -> bool:
        with suppress(LockHeld):
            self._held.enter_context(committing(table.path, exclusive=True, patience=ALONE_PATIENCE))
        return True
