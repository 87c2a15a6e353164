"""Turns among processes that commit to one table of an object store, where no lock makes the busy ones wait.

Whoever has in memory what was just committed begins the next commit at once. Whoever has to read first comes too
late each time, and the other does not notice: one lost 26 races in 16 s. So it says in the log that it is there,
by a commit that gets in the way of nobody, and the busy one lets it go first.
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
"""Lost races between two questions."""
LONGEST = 2.0
"""Seconds that others are let go first, at most; else what the last commit took."""


class Turns:
    """The turns of this process at one table; its owner calls one method at a time."""

    def __init__(self) -> None:
        self._answered: int | None = None
        self._took = 0.0

    def give(self, table: Table | None) -> None:
        """Waits for a moment if somebody asked for a turn since the last time; to be called before a decision."""
        if table is None or local_path(table.path) is not None:
            return
        asked, answered = table.transaction(layout.TURN_ID) or 0, self._answered
        self._answered = asked
        if answered is not None and asked != answered:
            sleep(min(LONGEST, self._took))

    def ask(self, table: Table, lost: int) -> None:
        """Asks the others for a turn, after every few lost races."""
        if local_path(table.path) is not None or lost % ASK_AFTER:
            return
        with suppress(Exception):  # who asks at the same time asks for both; and it is for speed alone
            asked = (table.transaction(layout.TURN_ID) or 0) + 1
            table.add([], {layout.TURN_ID: asked}, uuid.uuid4().hex)
            self._answered = asked

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measures a commit."""
        began = monotonic()
        yield
        self._took = monotonic() - began
