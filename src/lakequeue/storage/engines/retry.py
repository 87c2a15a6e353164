"""The one place where a lost race is tried again, be it for a commit or for files that others remove."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from lakequeue.storage.engines.interface import Table

ATTEMPTS = 60
"""Tries of one commit before its callers get RequestThrottled (ERR-9)."""
LOADS = 3
"""Failed reads of the newest rows before the error reaches the caller."""

_T = TypeVar("_T")


class Races:
    """The tries of one commit, numbered from 0; it pauses after each that was lost.

    ::

        races = Races()
        for _ in races:
            if commit(...):
                return
            races.lose()
        raise RequestThrottled(...)
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = ATTEMPTS if most is None else most
        self.lost = 0
        """Races that others won."""

    def lose(self) -> None:
        """Notes a lost race: the next try is made after a pause. Without it the next try is made at once."""
        self.lost += 1

    def __iter__(self) -> Iterator[int]:
        for number in range(self._most):
            lost = self.lost
            yield number
            if self.lost > lost:
                back_off(number)


def back_off(attempt: int) -> None:
    """Sleeps a jittered moment that grows with the attempts, on machine time, at most 0.02 s."""
    time.sleep(random.uniform(0, min(0.02, 0.002 * 2 ** min(attempt, 4))))


def repeated(table: Table, read: Callable[[], _T]) -> _T:
    """Calls a function that reads a table; again if files were rewritten and removed since they were listed."""
    for _ in range(LOADS):
        try:
            return read()
        except OSError:
            table.refresh()
    return read()
