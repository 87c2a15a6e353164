"""The shard that a process keeps to, so that processes on one queue meet at few commits.

Commits of two processes to one shard wait for each other, those to two shards do not. So a process sends to one
shard, and receives from one while it finds messages there. Where it keeps losing races it moves on at random; with
as many shards as processes each soon has one of its own.
"""

from __future__ import annotations

import random
import threading

_LEAST, _MOST = 2, 256
"""Commits at which others were met before the next move, at first and at most."""
_QUIET = 64
"""Commits in a row without others after which the count begins anew."""
ELSEWHERE_EVERY = 16
"""Receives of which one begins at another shard, so that none is forgotten with fewer consumers than shards."""


class HomeShard:
    """One choice of a process for one queue. Thread-safe."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._chance = random.Random()
        self._lock = threading.Lock()
        self._patience = _LEAST
        self._met = self._quiet = self._receives = 0
        self._elsewhere = 0
        self.current = self._chance.randrange(shards)

    def order(self) -> list[int]:
        """All shards, the home first and the others behind it in turn."""
        return self._from(self.current)

    def order_of_receive(self) -> list[int]:
        """The same, but every ``ELSEWHERE_EVERY``-th time one of the others, in turn, before them."""
        with self._lock:
            order = self._from(self.current)
            self._receives += 1
            if self._receives % ELSEWHERE_EVERY == 0 and self._shards > 1:
                self._elsewhere += 1
                order.insert(0, order.pop(1 + self._elsewhere % (self._shards - 1)))
            return order

    def stay(self, shard: int) -> None:
        """Makes a shard the home, because there is something."""
        with self._lock:
            self.current = shard

    def committed(self, shard: int, met: bool) -> None:
        """Notes a commit to a shard, and whether another process committed to it at the same time."""
        if shard != self.current or self._shards == 1:
            return
        with self._lock:
            self._met += met
            self._quiet = 0 if met else self._quiet + 1
            if self._quiet >= _QUIET:
                self._met, self._patience = 0, _LEAST
            elif self._met >= self._patience:
                # it may stay: two that always moved at the same time would always meet
                self.current = self._chance.randrange(self._shards)
                self._met, self._patience = 0, min(_MOST, 2 * self._patience)

    def _from(self, first: int) -> list[int]:
        return [(first + step) % self._shards for step in range(self._shards)]
