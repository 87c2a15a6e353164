"""The one place where a lost race is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

ATTEMPTS = 60
"""Tries of one commit before its callers get RequestThrottled (ERR-9)."""


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
