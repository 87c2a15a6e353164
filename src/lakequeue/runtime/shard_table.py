"""Base class of ``ShardLedger`` and ``ShardSender``: this process's requests to one table of a shard."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from lakequeue.errors import RequestThrottled
from lakequeue.runtime import calls, shard_races
from lakequeue.runtime.group_commit import Answer, GroupCommit, Request
from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.shared_state import ShardTables, Shared
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Answered, Committed, Decision, transact
from lakequeue.storage.engines.turns import turns_at

Now = Callable[[], int]
"""Returns the caller's time in microseconds. Called for each decision, because lost races take time (RCV-4)."""
_T = TypeVar("_T")


class ShardTable(ABC, Generic[Request, Answer]):
    """Answers the waiting requests of all threads in one transaction, under a lock. Thread-safe."""

    def __init__(self, tables: ShardTables, shared: Shared, path: str) -> None:
        self._tables = tables
        self._shared = shared
        self._group: GroupCommit[Request, Answer] = GroupCommit(self._run, self._in_turn)
        self._turns = turns_at(path, tables.engine.commits_alone)
        self._lock = threading.RLock()

    def release(self) -> None:
        with self._lock:
            self._drop()

    @abstractmethod
    def _run(self, requests: Sequence[Request]) -> Sequence[Answer | BaseException]:
        """Answers the requests, in order, by one call of ``_transact``."""

    @abstractmethod
    def _known(self) -> tuple[Table | None, bool]:
        """Returns the arguments of ``Turns.taken``. The argument ``table`` is None if there is no need to wait."""

    @abstractmethod
    def _catch_up(self, stale: bool) -> None:
        """Called when a turn begins, before requests are chosen. Reads the table if its snapshot is ``stale``."""

    @abstractmethod
    def _drop(self) -> None: ...

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self._turns.taken(*self._known()) as stale:
            self._catch_up(stale)
            yield

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock, shard_races.dropping(self._drop):
            yield

    def _transact(
        self,
        table: Table,
        decide: Callable[[int], Decision[_T]],
        *,
        busy: str,
        fresh: bool = False,
        home: HomeShard | None = None,
    ) -> Committed[_T] | Answered[_T]:
        """Runs a transaction in this process's turn. Counts races. Wakes waiters after a commit."""
        try:
            outcome = transact(table, decide, busy=busy, fresh=fresh, turns=self._turns)
        except RequestThrottled as error:
            calls.gave_up(error.lost_races)
            raise
        if isinstance(outcome, Committed):
            self._shared.races.committed(self._tables.number, outcome.lost, outcome.avoided, home)
            self._shared.waiters.wake()
        return outcome
