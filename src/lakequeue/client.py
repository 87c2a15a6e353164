"""The entry: a root with queues, as one process sees it."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    LakeQueueError,
    QueueClientError,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
    RequestThrottled,
    coded_for,
)
from lakequeue.model import redrive_policies
from lakequeue.model.attributes import QueueAttributes, check_tags
from lakequeue.model.clock import Clock, SystemClock, from_micros, to_micros
from lakequeue.model.names import new_key, validate_name
from lakequeue.model.redrive_policies import Place
from lakequeue.operations.steps import Steps
from lakequeue.queue import Queue
from lakequeue.runtime.shard_service import ShardService, Shared
from lakequeue.shard import Head
from lakequeue.storage import layout
from lakequeue.storage.catalog import Catalog, QueueRow
from lakequeue.storage.engines import process
from lakequeue.storage.engines.commit import StaleAttributes, back_off, first_line
from lakequeue.storage.engines.interface import Engine
from lakequeue.storage.engines.point import PointEngine
from lakequeue.storage.ledger import create_ledger
from lakequeue.storage.roots import root_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakequeue.operations.compact import CompactionSummary, Progress
    from lakequeue.storage.folder import Freed

ATTEMPTS = 30
MAX_LISTED = 1_000


class _Store:
    """What all objects of this process share about one root and engine: catalog and shards."""

    def __init__(self, engine: Engine, root: str) -> None:
        self.engine = engine
        self.root = root
        self.catalog = Catalog(engine, root)
        self.lock = threading.RLock()
        self._shards: dict[str, list[ShardService]] = {}

    def shards(self, row: QueueRow) -> list[ShardService]:
        with self.lock:
            if row.key not in self._shards:
                shared = Shared.of(row.shards)
                self._shards[row.key] = [
                    ShardService(self.engine, self.root, row.key, shard, shared) for shard in range(row.shards)
                ]
            return self._shards[row.key]

    def forget(self, key: str) -> None:
        """Lets go of the shards of a deleted queue, and of what they have cached."""
        with self.lock:
            self._shards.pop(key, None)


_stores: weakref.WeakValueDictionary[tuple[str, str, int], _Store] = weakref.WeakValueDictionary()
_stores_lock = threading.Lock()


class LakeQueue:
    """Queues under one root directory or URI; thread-safe, and starting it starts no JVM.

    Args:
        root: local path or URI; must be writable and hold nothing else. ``create_queue`` makes it.
        spark: adds the DataFrame verbs.
        engine: ``auto`` commits through delta-rs and moves DataFrames through Spark; ``spark`` commits
            through Spark too, where the Python process may not touch storage (slow); ``point`` refuses Spark.
        clock: source of time; tests pass ``lakequeue.testing.ManualClock``.
        region: part of every queue's identity (NAM-6, NAM-7).
        root_mode: permission bits that the directory of a new local root gets; ``0o2770`` shares it with a group,
            see docs/operation/permissions.md.
    """

    def __init__(
        self,
        root: str,
        *,
        spark: SparkSession | None = None,
        engine: Literal["auto", "point", "spark"] = "auto",
        clock: Clock | None = None,
        region: str = "local",
        root_mode: int = 0o700,
    ) -> None:
        if not isinstance(root_mode, int) or root_mode not in range(0o7777 + 1) or root_mode & 0o700 != 0o700:
            raise InvalidParameterValue(
                f"Value {root_mode} for parameter root_mode is invalid. "
                "Reason: Must be permission bits that give the owner all rights, as 0o700 or 0o2770."
            )
        if engine not in ("auto", "point", "spark"):
            raise InvalidParameterValue(f'engine must be "auto", "point" or "spark", not {engine!r}')
        if engine == "spark" and spark is None:
            raise QueueClientError('engine="spark" needs a session: LakeQueue(root, spark=…)')
        process.check()
        self.root = root_of(root)
        self.clock: Clock = clock or SystemClock()
        self.region = region
        self._root_mode = root_mode
        self._spark = None if engine == "point" else spark
        self._store = _store(self.root, engine == "spark", spark)

    @property
    def engine(self) -> Engine:
        """The engine that commits."""
        return self._store.engine

    def create_queue(
        self, name: str, *, fifo: bool = False, tags: dict[str, str] | None = None, **attributes: Any
    ) -> Queue:
        """Creates a queue, or answers the one that has the name and all the given attributes (QUE-15).

        Args:
            name: 1 to 80 letters, digits, ``-`` and ``_`` (NAM-5); profile ``cmq`` has its own rule (NAM-10).
            fifo: a FIFO queue; its name must end in ``.fifo`` (NAM-1).
            tags: see ``Queue.set_tags``.
            attributes: snake_case or wire names, ``profile`` and ``shards`` among them.

        Raises:
            InvalidParameterValue: the name breaks the rule.
            InvalidAttributeName, InvalidAttributeValue: an attribute is unknown or out of range.
            InvalidParameterValue, QueueDoesNotExist: a redrive policy is refused, see ``Queue.set_attributes``.
            QueueNameExists: the name is taken by a queue that differs (QUE-15), or taken at all (QUE-16).
            QueueDeletedRecently: the profile wants a pause after a deletion (QUE-14).
            QueueClientError: the root holds something else, or cannot be written.
        """
        profile_name = attributes.pop("profile", None) or attributes.pop("Profile", None)
        given = redrive_policies.located(attributes, self.region) | ({"fifo": fifo} if fifo else {})
        wanted = QueueAttributes.create(**({"profile_name": profile_name} if profile_name else {}), **given)
        rules = wanted.profile_rules
        validate_name(name, rules, wanted.fifo)
        if profile_name:
            given["profile"] = profile_name
        tags = check_tags(tags or {})
        with coded_for(rules.name), self.storage_errors(), self._store.lock:
            self._store.catalog.prepare(self._root_mode)
            for attempt in range(ATTEMPTS):
                row = self._store.catalog.live(self.region, name)
                # of the snapshot that knows no such queue; what comes next loads newer ones
                changes = self._store.catalog.changes(self.region, name)
                if row is not None:
                    return self._existing(row, given, rules.existing_name == "error")
                self.check_redrive(self.region, name, wanted)
                self._check_cooldown(name, rules.recreate_cooldown)
                row = self._new_row(name, wanted, tags)
                with self._store.catalog.creating() as in_time:
                    self._make_tables(row)
                    if in_time() and self._store.catalog.put(row, changes):
                        return self._queue(row)
                back_off(attempt)
        raise RequestThrottled("too many queues of this name are being created")

    def queue(self, name: str) -> Queue:
        """The queue of this name in the region.

        Raises:
            QueueDoesNotExist: there is none (QUE-27).
            QueueClientError: the root does not exist, holds something else, or has a newer layout.
        """
        with self.storage_errors():
            with self._store.lock:
                row = self._store.catalog.live(self.region, name)
            if row is None:
                raise QueueDoesNotExist("The specified queue does not exist.")
            queue = self._queue(row)
        with queue.service():
            queue.finish()
        return queue

    def list_queues(self, prefix: str = "", limit: int | None = None, after: str | None = None) -> list[Queue]:
        """Queues of the region by name (QUE-11, QUE-12).

        Args:
            prefix: only names that begin so.
            limit: at most so many, 1 to 1,000.
            after: only names behind this one: the last name of the page before.
        """
        whole = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (whole and 1 <= limit <= MAX_LISTED):
            raise InvalidParameterValue(
                f"Value {limit} for parameter MaxResults is invalid. Reason: Must be between 1 and {MAX_LISTED}."
            )
        queues = [
            queue
            for queue in self.list_all()
            if queue.name.startswith(prefix) and (after is None or queue.name > after)
        ]
        return queues[: limit or MAX_LISTED]

    def delete_queue(self, name: str) -> None:
        """Deletes a queue with everything in it (QUE-13, QUE-14).

        Raises:
            QueueDoesNotExist: there is none.
        """
        queue = self.queue(name)
        with self.storage_errors():
            self.finish_deletion(queue)

    def register_views(
        self, spark: SparkSession, now: datetime | None = None, as_of: datetime | None = None
    ) -> None:
        """Makes the temporary views ``queues``, ``messages``, ``receipts``, ``history`` and ``stats``.

        Args:
            spark: the session.
            now: the instant that states are judged at; None is ``as_of``, or else the time of each query.
            as_of: an aware instant by the machine's clock: show the tables as they were then. Ten minutes back
                are kept, of shards that commit all the time only the last 200 commits; ``stats`` reaches further.

        Raises:
            QueueClientError: the log of a table no longer reaches back to ``as_of``.
            InvalidParameterValue: ``as_of`` is no aware instant.
        """
        for statement in self.view_statements(now, as_of):
            spark.sql(statement)

    def view_statements(self, now: datetime | None = None, as_of: datetime | None = None) -> list[str]:
        """The SQL of these views, for sessions that are not Python's; needs no JVM."""
        from lakequeue.operations.sql_views import view_statements

        try:
            then = None if as_of is None else to_micros(as_of)
        except (AttributeError, TypeError, ValueError):
            raise InvalidParameterValue(
                f"Value {as_of} for parameter as_of is invalid. Reason: Must be an instant with a time zone."
            ) from None
        with self.storage_errors():
            rows = [
                row
                for row in self.rows()
                if row.deleted_at is None or (then is not None and row.created_at <= then < row.deleted_at)
            ]
            return view_statements(self.root, rows, now, as_of)

    def compact(self, progress: Progress | None = None) -> list[CompactionSummary]:
        """Frees what the queues of the root, of all regions, no longer need; changes no answer.

        Expires, drops and joins parts of the logs, removes files and log entries that are old enough, removes
        queues that were deleted a day ago, and notes in the ``stats`` table how each queue stands, once a minute.
        It may run beside everything else, twice at once, and be killed anywhere.

        Args:
            progress: called with queues done, queues in all, and the name of the one that is next.

        Returns:
            A summary per queue, and one for the root's own tables, whose ``queue`` is None. A step that failed
            is named in ``failures``.

        Raises:
            QueueClientError: the root does not exist, or holds no queues.
        """
        from lakequeue.operations.compact import compact_root

        with self.storage_errors():
            return compact_root(self, progress)

    # --- for the other modules of the package

    def prepare(self) -> None:
        """Makes the root where it is missing; QueueClientError if it holds something else or cannot be written."""
        with self.storage_errors(), self._store.lock:
            self._store.catalog.prepare(self._root_mode)

    def check(self) -> None:
        """Reads the catalog as a new process would; QueueClientError if that fails."""
        with self.storage_errors():
            Catalog(self.engine, self.root).rows()

    def micros(self) -> int:
        """The clock's instant in microseconds."""
        return to_micros(self.clock.now())

    def rows(self) -> list[QueueRow]:
        """The catalog's rows of every region, deleted queues too, as of now."""
        with self.storage_errors(), self._store.lock:
            return list(self._store.catalog.rows())

    def live_key(self, place: Place) -> str | None:
        """Key of the living queue of a region and name, as of now."""
        with self._store.lock:
            row = self._store.catalog.live(place.region, place.name)
        return None if row is None else row.key

    def shards(self, row: QueueRow) -> list[ShardService]:
        """What this process does with the shards of a queue."""
        return self._store.shards(row)

    def forget_shards(self, key: str) -> None:
        """Lets go of what this process holds of a deleted queue."""
        self._store.forget(key)

    def open(self, row: QueueRow) -> Queue:
        """The queue of a row, of whatever region."""
        return self._queue(row)

    def list_all(self) -> list[Queue]:
        """Every living queue of the region, by name."""
        rows = [row for row in self.rows() if row.deleted_at is None and row.region == self.region]
        return [self._queue(row) for row in sorted(rows, key=lambda row: row.name)]

    def forget(self, row: QueueRow) -> None:
        """Removes the row of a deleted queue."""
        with self._store.lock:
            for attempt in range(ATTEMPTS):
                newest = self._store.catalog.incarnation(row.key)
                changes = self._store.catalog.changes(row.region, row.name)
                if newest is None or self._store.catalog.remove(newest, changes):
                    return
                back_off(attempt)
        raise RequestThrottled("the row of the queue is being changed too often; nothing was changed")

    def sweep_catalog(self) -> Freed:
        """Removes what nobody needs of the catalog, and tables that it does not name."""
        with self._store.lock:
            return self._store.catalog.sweep()

    @property
    def spark(self) -> SparkSession | None:
        """The session for DataFrame verbs, if there is one."""
        return self._spark

    def require_spark(self, verb: str) -> SparkSession:
        """The session for a DataFrame verb; QueueClientError if there is none."""
        if self._spark is None:
            raise QueueClientError(f"{verb} needs Spark: LakeQueue(root, spark=session)")
        return self._spark

    def row(self, key: str) -> QueueRow | None:
        """The catalog's row of an incarnation, as of now."""
        with self._store.lock:
            return self._store.catalog.incarnation(key)

    def update(self, row: QueueRow, change: Callable[[QueueRow], QueueRow]) -> QueueRow:
        """Changes a living queue's row; ``change`` is applied to the newest one."""
        with self._store.lock:
            for attempt in range(ATTEMPTS):
                newest = self._store.catalog.incarnation(row.key)
                if newest is None or newest.deleted_at is not None:
                    raise QueueDoesNotExist("The specified queue does not exist.")
                changes = self._store.catalog.changes(row.region, row.name)
                changed = change(newest)
                if self._store.catalog.put(changed, changes):
                    return changed
                back_off(attempt)
        raise RequestThrottled("the row of the queue is being changed too often; nothing was changed")

    def finish_deletion(self, queue: Queue) -> None:
        """Deletes a queue, or ends a deletion that was interrupted: shards first, the catalog's row last."""
        with self._store.lock:
            row = self._store.catalog.incarnation(queue.key)
        if row is None or row.deleted_at is not None:
            self.forget_shards(queue.key)
            return
        steps = Steps("the deletion")
        with steps.step():
            queue.close()
        now = to_micros(self.clock.now())
        with steps.step(), suppress(QueueDoesNotExist):  # another process was faster
            self.update(row, lambda newest: attrs.evolve(newest, deleted_at=now))
        self.forget_shards(row.key)

    def check_redrive(self, region: str, name: str, attributes: QueueAttributes) -> None:
        """Raises what a queue's redrive policy is refused with (DLQ-2, DLQ-3, DLQ-6)."""
        policy, given = attributes.redrive, attributes.redrive_policy
        if policy is None:
            return
        place = redrive_policies.place(policy.dead_letter_queue)
        if place is None or place.region != region:
            raise redrive_policies.refused(
                "RedrivePolicy", given, "The dead-letter queue must be of the same region."
            )
        if place.name == name:
            raise redrive_policies.refused("RedrivePolicy", given, "A queue cannot be its own dead-letter queue.")
        with self._store.lock:
            row = self._store.catalog.live(*place)
        if row is None:
            raise QueueDoesNotExist(f"The dead-letter queue {place.name} does not exist.")
        target = QueueAttributes.from_wire(row.attributes)
        if target.fifo != attributes.fifo:
            kind = "FIFO" if attributes.fifo else "standard"
            reason = f"The dead-letter queue of a {kind} queue must be a {kind} queue too."
            raise redrive_policies.refused("RedrivePolicy", given, reason)
        if not target.redrive_allow.allows(redrive_policies.arn(region, name)):
            raise redrive_policies.refused("RedrivePolicy", given, f"Queue {place.name} does not allow it.")

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Turns what storage raises into QueueClientError."""
        process.check()
        try:
            yield
        except (LakeQueueError, StaleAttributes, TypeError, AssertionError):
            raise
        except Exception as error:
            raise QueueClientError(f"{self.root}: {first_line(error)}") from error

    # --- inside

    def _queue(self, row: QueueRow) -> Queue:
        return Queue(self, row, self._store.shards(row))

    def _existing(self, row: QueueRow, given: dict[str, Any], always_refused: bool) -> Queue:
        differences = QueueAttributes.from_wire(row.attributes).differences(given)
        if always_refused or row.attributes.get("Profile") == "cmq":
            raise QueueNameExists(f"A queue named {row.name} already exists.")
        if differences:
            raise QueueNameExists(
                f"A queue already exists with the same name and a different value for attribute {differences[0]}"
            )
        return self._queue(row)

    def _check_cooldown(self, name: str, seconds: float) -> None:
        deleted = [
            row.deleted_at
            for row in self._store.catalog.rows()
            if (row.region, row.name) == (self.region, name) and row.deleted_at is not None
        ]
        if deleted and self.clock.now().timestamp() - from_micros(max(deleted)).timestamp() < seconds:
            raise QueueDeletedRecently(
                f"You must wait {seconds:g} seconds after deleting a queue before you can create "
                "another with the same name."
            )

    def _new_row(self, name: str, attributes: QueueAttributes, tags: dict[str, str]) -> QueueRow:
        now = to_micros(self.clock.now())
        return QueueRow(
            name=name,
            region=self.region,
            key=new_key(self.region, name),
            created_at=now,
            modified_at=now,
            attributes=attributes.to_wire(),
            attributes_version=0,
            tags=tags,
            shards=attributes.shards,
            handle_key=secrets.token_bytes(32),
        )

    def _make_tables(self, row: QueueRow) -> None:
        engine = self._store.engine
        head = Head(committed_at=row.created_at, attributes=dict(row.attributes))

        def make(shard: int) -> None:
            path = layout.messages_path(self.root, row.key, shard)
            engine.create(path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
            create_ledger(engine, layout.receipts_path(self.root, row.key, shard), head)

        with ThreadPoolExecutor(min(row.shards, 8)) as pool:
            list(pool.map(make, range(row.shards)))


def _store(root: str, through_spark: bool, spark: SparkSession | None) -> _Store:
    key = (root, "spark" if through_spark else "point", id(spark) if through_spark else 0)
    with _stores_lock:
        store = _stores.get(key)
        if store is None:
            if through_spark:
                from lakequeue.storage.engines.spark import SparkEngine

                store = _Store(SparkEngine(spark), root)
            else:
                store = _Store(PointEngine(), root)
            _stores[key] = store
        return store
