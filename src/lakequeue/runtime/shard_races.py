"""Races of this process with other processes for commits to a shard."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakequeue.errors import QueueServiceError
from lakequeue.runtime import calls
from lakequeue.runtime.home_shard import HomeShard
from lakequeue.storage.engines.commit_failures import StaleAttributes

ROUNDS = 200
"""Number of commits and lost races after which the share of lost races is checked again."""
TOO_MANY = 1 / 3
"""Share of lost races above which a warning is logged."""

_log = logging.getLogger("lakequeue")


class RaceCounts:
    """Counts this process's commits to a queue's shards, and its lost or avoided races. A race is avoided if
    another process commits while this process waits for its turn. Thread-safe.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._commits, self._lost = Counter({0: 0}), Counter[int]()
        self._rounds = self._lost_rounds = 0
        self._warned = False

    def committed(self, shard: int, lost: int, avoided: int = 0, home: HomeShard | None = None) -> None:
        """Adds a commit, and races lost before it, to the counts of the queue, of this call and of ``home``."""
        calls.committed(shard, lost)
        if home is not None:
            home.committed(shard, lost + avoided)
        with self._lock:
            self._commits[shard] += 1
            self._lost[shard] += lost + avoided
            self._rounds += 1 + lost
            self._lost_rounds += lost
            if self._rounds < ROUNDS:
                return
            share, self._rounds, self._lost_rounds = self._lost_rounds / self._rounds, 0, 0
            warn, self._warned = share > TOO_MANY and not self._warned, self._warned or share > TOO_MANY
        if warn:
            _log.warning(
                "%s: other processes came first in %.0f %% of the last rounds; more shards serve more processes, "
                "or fewer processes with a higher concurrency (see Scaling consumers in the guide)",
                *(self._queue, 100 * share),
            )

    def by_shard(self) -> dict[int, tuple[int, int]]:
        """Returns commits, and lost or avoided races, by shard, since the process opened the queue."""
        with self._lock:
            return {shard: (commits, self._lost[shard]) for shard, commits in sorted(self._commits.items())}


@contextmanager
def dropping(drop: Callable[[], None]) -> Iterator[None]:
    """Calls ``drop`` if the block fails. QueueServiceError and StaleAttributes do not count as failures."""
    try:
        yield
    except (QueueServiceError, StaleAttributes):
        raise  # an answer
    except BaseException:
        drop()
        raise
