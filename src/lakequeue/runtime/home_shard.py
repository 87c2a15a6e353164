"""The home shard: the shard that a process tries first. Processes with different homes rarely race for a commit.

A process has one home shard for receives, and one for sends. If the process keeps losing races at a home, the home
moves to another shard. The home for receives also moves if only other shards have messages for a while. The home
for sends also moves with each new segment, so that sends fill all shards.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

ELSEWHERE_EVERY = 16
"""Of this many receives, one starts at another shard than the home. Even one consumer thus serves all shards."""
_ALONE = 0.125
"""A lost race adds 1 to the strain of the home. A commit without lost races subtracts this constant."""
_LEAST, _MOST = 2.0, 64.0
"""First and highest limit of a home's strain. There, the home may move. The limit doubles without a free shard."""
_QUIET = 64
"""If the home is without strain for this many commits in a row, the limit of the strain is ``_LEAST`` again."""
_MISSES = 8
"""Number of receives in a row that find messages only in other shards, after which the home moves."""


class HomeShard:
    """Chooses the home shard of a process for one queue. Thread-safe."""

    def __init__(self, shards: int, first: int | None = None) -> None:
        self._shards = shards
        self._chance = random.Random()
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._patience = _LEAST
        self._strain = 0.0
        self._quiet = self._misses = 0
        # from 0, processes that receive only a few times would never start elsewhere
        self._receives = self._chance.randrange(ELSEWHERE_EVERY)
        self._elsewhere = self._chance.randrange(shards)
        self._seen: dict[int, object] = {}
        self.current = self._chance.randrange(shards) if first is None else first

    def grow(self, shards: int) -> None:
        self._shards = shards

    def order(self) -> list[int]:
        return self._from(self.current)

    def anywhere(self) -> list[int]:
        """Returns all shards in circular order, beginning with a random shard."""
        return self._from(self._chance.randrange(self._shards))

    def elsewhere(self) -> int | None:
        """Every ``ELSEWHERE_EVERY`` calls, returns a shard to try before the home. Otherwise returns None."""
        with self._lock:
            self._receives += 1
            if self._receives % ELSEWHERE_EVERY or self._shards == 1:
                return None
            self._elsewhere += 1
            return self._from(self.current)[1 + self._elsewhere % (self._shards - 1)]

    def found(self, shard: int) -> None:
        """Records that a receive began at the home, and found messages in ``shard``. May move the home."""
        with self._lock:
            self._misses = 0 if shard == self.current else self._misses + 1
            if self._misses >= _MISSES:
                self._move(shard)

    def committed(self, shard: int, lost: int) -> None:
        """Records a commit to ``shard``, and the number of races that were lost before the commit."""
        if shard != self.current or self._shards == 1:
            return
        with self._lock:
            self._strain = max(0.0, self._strain + (lost or -_ALONE))
            self._quiet = 0 if self._strain else self._quiet + 1
            if self._quiet >= _QUIET:
                self._patience = _LEAST

    def leave(self, shard: int) -> None:
        """Moves the home to the next shard, if ``shard`` is the home."""
        with self._lock:
            if shard == self.current:
                self._move((shard + 1) % self._shards)

    def consider_moving(self, activity: Callable[[Sequence[int]], Sequence[object]]) -> None:
        """May move the home if this process often loses races there. The function ``activity`` gets the numbers of
        shards, and returns one value per shard. A shard's value changes with each commit to the shard.
        """
        if not (self._strain or self._seen) or not self._moving.acquire(blocking=False):
            return
        try:
            strain, seen, home = self._strain, self._seen, self.current
            if not strain:
                self._seen = {}
            elif not seen or strain >= self._patience:
                others = [shard for shard in range(self._shards) if shard != home]
                now = dict(zip(others, activity(others), strict=True))
                with self._lock:
                    if self.current != home:
                        return
                    if not seen:
                        self._seen = now
                        return
                    free = [shard for shard in others if seen.get(shard) == now[shard]]
                    self._patience = _LEAST if free else min(_MOST, 2 * self._patience)
                    # the home may stay: two processes that always moved together would always meet
                    self._move(self._chance.choice([home, self._chance.choice(free or others)]))
        finally:
            self._moving.release()

    def _move(self, shard: int) -> None:
        self.current, self._strain, self._misses, self._seen = shard, 0.0, 0, {}

    def _from(self, first: int) -> list[int]:
        return [(first + step) % self._shards for step in range(self._shards)]
