"""A root of queues in this process: engine, clock, region, catalog, and the shards of its queues."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from lakequeue.errors import (
    LakeQueueError,
    MissingPackage,
    QueueClientError,
    QueueDoesNotExist,
    RootDoesNotExist,
)
from lakequeue.model.arguments import SHORTEST_POLL
from lakequeue.model.clock import Clock, SystemClock, to_micros
from lakequeue.model.redrive_policies import QueueLocation
from lakequeue.runtime.calls import Tallies
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.shared_state import Shared
from lakequeue.storage.catalog import Catalog, QueueRow
from lakequeue.storage.clock_guard import ClockGuard, Doubt
from lakequeue.storage.compaction_notes import NotesCache
from lakequeue.storage.engines import process, spark_access
from lakequeue.storage.engines.commit_failures import is_storage_failure
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.engines.transaction import Answer, Change, Decision
from lakequeue.storage.roots import local_path
from lakequeue.storage.snapshot import ReplacedLog
from lakequeue.storage.store_failures import first_line, hide_secrets
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_INTERVAL, REMOTE_POLL_INTERVAL = 500_000, 1_000_000
"""Maximum microseconds between two polls of a waiting receive: on disks, and on object stores."""
IDLE_POLL_INTERVAL, IDLE_PART = 4_000_000, 15
"""On object stores, the maximum pause between two polls of a waiting receive is 1/``IDLE_PART`` of the time
without messages, but at most ``IDLE_POLL_INTERVAL`` microseconds.
"""
LINGER, REMOTE_LINGER = 100_000, 2_000_000
"""Maximum microseconds until a finished message is settled without a claim: on disks, and on object stores."""
REMOTE_CLAIM_INTERVAL = 1_000_000
"""Minimum microseconds from a claim that took all messages to the next claim. Used on object stores."""
_BUSY = "the row of the queue is being changed too often; nothing was changed"
ROW_INTERVAL, REMOTE_ROW_INTERVAL = 1_000_000, 60_000_000
"""Microseconds between two checks that the catalog has the queue's row: on disks, and on object stores."""
CACHED_QUEUES = 1_000
"""Maximum number of unused queues whose shards and caches stay in memory."""


class _OpenShards(list[OpenShard]):
    """The shards of a queue, kept while the queue is open or was used recently. Shards may be added (QUE-34)."""

    def __init__(self, engine: Engine, root: str, row: QueueRow, guard: ClockGuard) -> None:
        super().__init__()
        self._make = partial(OpenShard, engine, root, row.key)
        self._growing = threading.Lock()
        # weakly: its members call it, and must not keep the list
        self._shared = Shared.of(row.shards, row.name, guard, weakref.WeakMethod(self.grow))
        self.grow(row.shards)

    def grow(self, shards: int) -> None:
        if shards <= len(self):
            return
        with self._growing:
            self.extend([self._make(shard, self._shared) for shard in range(len(self), shards)])
            self._shared.home.grow(len(self))
            self._shared.sends.grow(len(self))


class _RootState:
    """State that ``Root`` objects with the same location, options and engine share in this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.path = path = engine.store.root
        self.catalog = Catalog(engine, path)
        self.guard = ClockGuard(engine.store)
        self.notes = NotesCache(engine.store)
        self.lock = threading.RLock()
        self._shards: weakref.WeakValueDictionary[str, _OpenShards] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, _OpenShards] = OrderedDict()

    def shards(self, row: QueueRow) -> list[OpenShard]:
        with self.lock:
            shards = self._shards.get(row.key)
            if shards is None:
                shards = self._shards[row.key] = _OpenShards(self.engine, self.path, row, self.guard)
            shards.grow(row.shards)
            self._recent[row.key] = shards
            self._recent.move_to_end(row.key)
            if len(self._recent) > CACHED_QUEUES:
                self._recent.popitem(last=False)
            return shards

    def forget_shards(self, key: str) -> None:
        with self.lock:
            self._shards.pop(key, None)
            self._recent.pop(key, None)

    def forget_others(self, keys: Collection[str]) -> None:
        with self.lock:
            for key in set(self._shards) - set(keys):
                self.forget_shards(key)

    def release(self) -> None:
        with self.lock:
            self.catalog.release()
            shards = [shard for queue in self._shards.values() for shard in queue]
            self._recent.clear()
        for shard in shards:
            shard.release()


_Key = tuple[str, frozenset[tuple[str, str]], bool, int]
opened: weakref.WeakValueDictionary[_Key, _RootState] = weakref.WeakValueDictionary()
"""Roots in use in this process, keyed by path, options and Spark session."""
_opened_lock = threading.Lock()
by_id: weakref.WeakValueDictionary[str, Root] = weakref.WeakValueDictionary()
"""Roots of this process by id. If a root is unpickled in its own process, the copy uses the original root."""


class Root:
    """One root with a clock and a region. Thread-safe.

    Args:
        store: location of the root, and the options that reach it.
        region: region of new queues.
        mode: permission bits of the directory of a new local root.
        spark: session for DataFrame verbs, or None.
        through_spark: True to commit through Spark instead of the point engine.
        poll_interval: longest pause between polls of a waiting receive, in microseconds; None for the storage's
            default.

    Attributes:
        id: unique among the roots of all processes.
        catalog: the table of queues; use it under ``lock``.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        region: str,
        mode: int,
        spark: SparkSession | None,
        through_spark: bool,
        poll_interval: int | None = None,
    ) -> None:
        process.check()
        self.id = uuid.uuid4().hex
        by_id[self.id] = self
        self._local = local = local_path(store.root) is not None
        self.given_poll_interval = poll_interval
        self.poll_interval = poll_interval or (POLL_INTERVAL if local else REMOTE_POLL_INTERVAL)
        self._idle_poll_interval = poll_interval or (POLL_INTERVAL if local else IDLE_POLL_INTERVAL)
        # under a clock that is set by hand nothing waits unless it must
        waits = isinstance(clock, SystemClock)
        self.linger = (LINGER if local else REMOTE_LINGER) if waits else 0
        self.claim_interval = REMOTE_CLAIM_INTERVAL if waits and not local else 0
        self.row_interval = ROW_INTERVAL if local else REMOTE_ROW_INTERVAL
        self.path = store.root
        self.clock = clock
        self.region = region
        self.tallies = Tallies()
        self.spark = spark
        self.mode = mode
        self._tables = tables = _tables(store, spark if through_spark else None)
        self.engine, self.catalog, self.lock = tables.engine, tables.catalog, tables.lock
        self.notes = tables.notes
        tables.guard.now = (lambda: to_micros(clock.now())) if isinstance(clock, SystemClock) else None

    def first_pause(self, idle: int) -> int:
        """Returns the pause after a wait's first poll. ``idle``: microseconds without messages before that."""
        recent = self._local or idle < IDLE_PART * REMOTE_POLL_INTERVAL
        return SHORTEST_POLL if recent else max(SHORTEST_POLL, self.longest_pause(idle) // 4)

    def longest_pause(self, idle: int) -> int:
        """Returns the maximum microseconds between polls, after ``idle`` microseconds without messages."""
        return max(self.poll_interval, min(idle // IDLE_PART, self._idle_poll_interval))

    def now(self) -> int:
        """Returns the clock's time in microseconds."""
        return to_micros(self.clock.now())

    def check_clock(self, what: str) -> None:
        """Compares the clock with the storage's clock; see ``ClockGuard.check_now``."""
        self._tables.guard.check_now(what)

    @property
    def check_expiry(self) -> Doubt:
        """Checks the clock before messages count as expired; see ``ClockGuard.check_expiry``."""
        return self._tables.guard.check_expiry

    def prepare(self) -> None:
        """Creates a missing root. Raises QueueClientError if the place has other contents or is read-only."""
        with self.storage_errors(), self.lock:
            self.catalog.prepare(self.mode)

    def check(self) -> None:
        """Reads the catalog as a new process would. Raises the error that a new process would get."""
        with self.storage_errors():
            Catalog(self.engine, self.path).rows()

    def require_spark(self, verb: str) -> SparkSession:
        """Returns the root's Spark session. Raises QueueClientError if the session is missing or was stopped."""
        if self.spark is None:
            MissingPackage.check(verb, "spark", "pyspark")
            raise QueueClientError(f"{verb} needs Spark: LakeQueue(root, spark=session)")
        # else PySpark raises AssertionError or AttributeError, as errors of the program do
        if spark_access.is_stopped(self.spark):
            raise QueueClientError(f"{verb} needs Spark, and its session was stopped")
        self.allow(self.spark)
        return self.spark

    def allow(self, spark: SparkSession) -> None:
        """Lets a session reach the root's storage. Raises QueueClientError if that is impossible."""
        spark_access.allow(spark, self.engine.store)

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Turns storage failures into QueueClientError. Drops caches after a possible restore."""
        process.check()
        try:
            yield
        except Exception as error:
            # each may mean that a backup was restored; what a bulk send has staged is the cause of another error
            if isinstance(error, ReplacedLog | FileNotFoundError) or isinstance(
                error.__cause__, FileNotFoundError
            ):
                self.release()
                if isinstance(error, FileNotFoundError):
                    self._check_exists(error)
            reason = first_line(error)
            hide_secrets(error)
            if not is_storage_failure(error):
                raise
            raise QueueClientError(f"{self.path}: {reason}") from error

    def _check_exists(self, error: Exception) -> None:
        try:
            Catalog(self.engine, self.path).rows()
        except RootDoesNotExist as missing:
            found = missing.message.partition(";")[0].partition(" (is its")[0]
            text = f"{found}; is it mounted, was it emptied? See docs/operation/damage.md"
            raise RootDoesNotExist(text) from error
        except Exception as other:
            if not is_storage_failure(other) and not isinstance(other, LakeQueueError):
                raise

    # --- the catalog

    def rows(self) -> list[QueueRow]:
        """Returns the catalog's current rows for every region, including the rows of deleted queues."""
        with self.storage_errors(), self.lock:
            rows = list(self.catalog.rows())
            self._tables.forget_others({row.key for row in rows if row.deleted_at is None})
            return rows

    def living(self, key: str) -> QueueRow | None:
        """Returns the current row of the queue with this key. None if the queue is missing or was deleted."""
        with self.lock:
            row = self.catalog.incarnation(key)
        return None if row is None or row.deleted_at is not None else row

    def newest_row(self, key: str, known: QueueRow) -> QueueRow | None:
        """Returns the newest row with this key, or None. Returns ``known`` if the catalog is unreadable."""
        with self.lock:
            try:
                return self.catalog.incarnation(key)
            except ReplacedLog:  # it was put back, which is no damage while it has the row
                self.catalog.release()
                return self.catalog.incarnation(key)
            except Exception as error:
                if not is_storage_failure(error) and not isinstance(error, LakeQueueError):
                    raise
                return known

    def living_at(self, place: QueueLocation) -> QueueRow | None:
        """Returns the current row of the queue with this region and name, or None for no such queue."""
        with self.lock:
            return self.catalog.live(place.region, place.name)

    def update(self, row: QueueRow, change: Callable[[QueueRow], QueueRow]) -> QueueRow:
        """Applies the function ``change`` to the newest row. Returns the changed row. Raises QueueDoesNotExist."""

        def changed() -> Change[QueueRow]:
            newest = self.catalog.incarnation(row.key)
            if newest is None or newest.deleted_at is not None:
                raise QueueDoesNotExist()
            fence = self.catalog.fence(newest.place)  # first, as ``change`` may commit to the catalog
            wanted = change(newest)
            return self.catalog.put([wanted], fence, wanted)

        with self.lock:
            return self.catalog.transact(changed, _BUSY)

    def remove(self, row: QueueRow) -> None:

        def removed() -> Decision[None]:
            newest = self.catalog.incarnation(row.key)
            return Answer(None) if newest is None else self.catalog.remove(newest)

        with self.lock:
            self.catalog.transact(removed, _BUSY)

    def put_rows(self, made: Callable[[], list[QueueRow]]) -> list[QueueRow]:
        """Writes the rows of the function ``made`` in one commit. Calls ``made`` again after a lost race."""

        def put() -> Decision[list[QueueRow]]:
            rows = made()
            fence = self.catalog.fence(*(row.place for row in rows))
            return self.catalog.put(rows, fence, rows) if rows else Answer(rows)

        with self.lock:
            return self.catalog.transact(put, "the catalog is being changed too often; nothing was changed")

    def release(self) -> None:
        """Closes this process's handles on the root's tables. The next call opens them again."""
        self._tables.release()

    # --- shards

    def shards(self, row: QueueRow) -> list[OpenShard]:
        return self._tables.shards(row)

    def forget_shards(self, key: str) -> None:
        self._tables.forget_shards(key)


def _tables(store: Store, spark: SparkSession | None) -> _RootState:
    """Returns the state that roots with the same options share. With ``spark``, commits go through Spark."""
    # other options, other handles: they may have other rights
    key = (store.root, store.client_options, store.syncs, 0 if spark is None else id(spark))
    with _opened_lock:
        tables = opened.get(key)
        if tables is None:
            if spark is None:
                tables = _RootState(Engine(store))
            else:
                from lakequeue.storage.engines.spark import SparkEngine

                tables = _RootState(SparkEngine(spark, store))
            opened[key] = tables
        return tables


@lru_cache(maxsize=8)
def root_of_worker(
    path: str,
    options: tuple[tuple[str, str], ...],
    region: str,
    durability: str | None = None,
    network_file_system: bool = False,
    mode: int = 0,
    poll_interval: int | None = None,
) -> Root:
    """Returns the root for a process that has not opened it, such as a Spark task's process."""
    store = Store(path, dict(options), durability, network_file_system)
    return Root(store, SystemClock(), region, mode, None, False, poll_interval)
