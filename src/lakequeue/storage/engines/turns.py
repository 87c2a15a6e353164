"""Fairness among processes that commit to one table of an object store, where no lock makes a busy one wait.

The process that made the last commit can start the next at once; one that has to read it first is late each time
(it lost 26 races in 16 s). So after lost races it asks for a turn, by a commit that conflicts with no other, and
the busy process pauses once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from lakequeue.storage import layout
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.roots import local_path

ASK_AFTER = 4
"""Lost races after which a process asks for a turn (again)."""
COMMITS = 6
"""Length of a pause, in times that the last commit took: the other process reads the log and the ledger, waits a
moment, decides and commits."""
LONGEST = 2.0
"""Maximum pause in seconds."""


class Turns:
    """Turns of this process at one table; not thread-safe, its owner locks."""

    def __init__(self) -> None:
        self._answered: int | None = None
        self._took = 0.0

    def give(self, table: Table | None) -> None:
        """Pauses if another process asked for a turn since the last call; call it before a decision."""
        if table is None or local_path(table.path) is not None:
            return
        asked, answered = table.transaction(layout.TURN_ID) or 0, self._answered
        self._answered = asked
        if answered is not None and asked != answered:
            sleep(min(LONGEST, COMMITS * self._took))

    def ask(self, table: Table, lost: int) -> None:
        """Asks for a turn after every few lost races."""
        if local_path(table.path) is not None or lost % ASK_AFTER:
            return
        with suppress(Exception):  # it is only for speed, and a request that came first serves both
            asked = (table.transaction(layout.TURN_ID) or 0) + 1
            table.add([], {layout.TURN_ID: asked}, uuid.uuid4().hex)
            self._answered = asked

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measures a commit."""
        began = monotonic()
        yield
        self._took = monotonic() - began
