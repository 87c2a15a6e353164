"""``LakeQueue``: a root and its queues."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeVar

from lakequeue.errors import InvalidParameterValue, LakeQueueError, MissingPackage, QueueClientError
from lakequeue.model import notebook
from lakequeue.model.arguments import (
    check_callable,
    check_instant,
    check_poll_interval,
    check_secrets,
    check_string,
    check_text,
    check_type,
    check_whole,
)
from lakequeue.model.clock import Clock, Duration, SystemClock
from lakequeue.operations import create_queue, deliveries, queues
from lakequeue.queue import Queue
from lakequeue.runtime.pickled import PickledRoot, Reopened
from lakequeue.runtime.root import Root
from lakequeue.storage.roots import root_of
from lakequeue.storage.stores import DURABILITY, Store

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from lakequeue.model.attribute_values import NewQueueAttributes
    from lakequeue.model.damage import Finding, Repair
    from lakequeue.operations.compact import CompactionSummary, Progress
    from lakequeue.operations.copy import CopiedQueue
    from lakequeue.operations.copy import Progress as CopyProgress
    from lakequeue.operations.results import SentRows
    from lakequeue.schedules import Schedules
    from lakequeue.storage.bulk.bad_rows import OnBadRow
    from lakequeue.storage.source_table import Changes

MAX_LISTED = 1_000
_CLOCK = ("now", "wait", "wait_async", "participant")
_Listed = TypeVar("_Listed")


class QueuePage(list[_Listed]):
    """A page of queues, sorted by name.

    Attributes:
        next_after: the value of ``after`` that lists the next page; None on the last page.
    """

    def __init__(self, queues: Iterable[_Listed], next_after: str | None) -> None:
        super().__init__(queues)
        self.next_after = next_after


class RootProperties(Reopened[PickledRoot, Root]):
    """Properties of an open root, for ``LakeQueue`` and ``aio.LakeQueue``."""

    _values = PickledRoot

    @property
    def root(self) -> str:
        """Local path or URI of the root."""
        return self._known.path

    @property
    def region(self) -> str:
        """Region of this object's queues (NAM-6)."""
        return self._known.region

    @property
    def clock(self) -> Clock:
        """Source of time."""
        return self._runtime.clock

    @property
    def spark(self) -> SparkSession | None:
        """Spark session of the DataFrame methods, or None."""
        return self._runtime.spark


class LakeQueue(RootProperties):
    """The queues under a root directory or URI. Thread-safe. Starts no JVM.

    A ``with`` block closes the root's tables at its end. A later call opens the tables again. A pickled LakeQueue
    contains root, region and options without secrets. In another process, an unpickled copy uses the credentials
    of that process, and no Spark session. Equal copies in a process share their open tables (JOB-13).

    Args:
        root: local path or URI of a writable directory with nothing else in it. ``create_queue`` creates the
            directory.
        spark: Spark session for the DataFrame methods.
        engine: ``auto`` commits without a JVM, and uses Spark only for DataFrames. ``point`` never uses Spark.
            ``spark`` commits by Delta's MERGE, which is slow and only meant for comparisons.
        clock: source of time. Tests pass ``lakequeue.testing.ManualClock``.
        region: region of the queues. Two regions can have queues of the same name (NAM-6, NAM-7).
        root_mode: permission bits of a new local root's directory. ``0o2770`` shares the root with a group. See
            docs/operation/permissions.md.
        storage_options: options of the object store, never shown. Names are delta-rs's, such as
            ``AWS_ENDPOINT_URL``. Environment variables with these names apply too. Spark has its own settings: on
            S3, lakequeue adds this bucket's credentials, endpoint and region. See docs/operation/storage.md.
        network_file_system: True to allow a root on a network file system. Only one machine may use the root. The
            environment variable ``LAKEQUEUE_NETWORK_FILE_SYSTEM`` sets the default.
        durability: failures that acknowledged messages survive on a local disk (DUR-1). ``power`` syncs each
            commit to the disk. ``process`` is for scratch data: a power cut or system crash may lose the newest
            commits, or the queue. None for ``LAKEQUEUE_DURABILITY`` of the environment, by default ``power``.
        poll_interval: maximum seconds between two polls, by which a waiting receive finds messages of other
            processes. None means 0.5 s on a disk, and 1 s on an object store, where polls cost requests: see
            docs/operation/cost.md.

    Raises:
        InvalidParameterValue: an argument is invalid. The text names the argument and the valid values.
        QueueClientError: the root is on a network file system, and ``network_file_system`` is not set.
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
        storage_options: Mapping[str, str] | None = None,
        network_file_system: bool = False,
        durability: Literal["power", "process"] | None = None,
        poll_interval: Duration | None = None,
    ) -> None:
        if not isinstance(root_mode, int) or root_mode not in range(0o7777 + 1) or root_mode & 0o700 != 0o700:
            raise InvalidParameterValue.of(
                root_mode,
                "root_mode",
                "Must be permission bits that give the owner all rights, as 0o700 or 0o2770.",
            )
        if engine not in ("auto", "point", "spark"):
            raise InvalidParameterValue(f'engine must be "auto", "point" or "spark", not {engine!r}')
        if engine == "spark":
            for package in ("pyspark", "delta"):
                MissingPackage.check('engine="spark"', "spark", package)
        if engine == "spark" and spark is None:
            raise QueueClientError('engine="spark" needs a session: LakeQueue(root, spark=…)')
        check_text("region", region)
        if spark is not None:
            check_callable("spark", spark, "sql", expected="a SparkSession")
        if clock is not None:
            check_callable("clock", clock, *_CLOCK, expected="a Clock")
        check_secrets("storage_options", storage_options)
        check_type("network_file_system", network_file_system, bool, "True or False")
        used = None if engine == "point" else spark
        for level in durability, os.environ.get(DURABILITY) or None:
            if level not in (None, "power", "process"):
                raise InvalidParameterValue.of(repr(level), "durability", 'Must be "power" or "process".')
        store = Store(root_of(root), storage_options, durability, network_file_system)
        store.check()
        store.check_use()
        poll = None if poll_interval is None else check_poll_interval(poll_interval)
        self._runtime = Root(store, clock or SystemClock(), region, root_mode, used, engine == "spark", poll)
        self._schedules: Schedules | None = None

    def __enter__(self) -> LakeQueue:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the tables and clears the caches of this process. Deletes nothing."""
        self._runtime.release()

    def __repr__(self) -> str:
        return f"LakeQueue({self.root!r}, region={self.region!r}, engine={self._known.engine.name!r})"

    def _repr_html_(self) -> str | None:
        try:
            counted = {queue.name: queue.counts().cells() for queue in self.list_queues(limit=notebook.ROWS + 1)}
        except LakeQueueError:
            return None  # A notebook then shows the plain text.
        columns = ["queue", *next(iter(counted.values()), {})]
        return notebook.table(repr(self), columns, ([name, *cells.values()] for name, cells in counted.items()))

    @property
    def schedules(self) -> Schedules:
        """The schedules of the region: messages to be sent at given times (JOB-7)."""
        from lakequeue.operations.schedules import OpenSchedules
        from lakequeue.schedules import Schedules

        if self._schedules is None:
            self._schedules = Schedules(OpenSchedules(self._runtime))
        return self._schedules

    def create_queue(
        self,
        name: str,
        *,
        fifo: bool = False,
        tags: dict[str, str] | None = None,
        update: bool = False,
        table_options: Mapping[str, str] | None = None,
        **attributes: Unpack[NewQueueAttributes],
    ) -> Queue:
        """Creates a queue, or returns an existing queue of this name with these attributes.

        Args:
            name: 1 to 80 letters, digits, ``-`` and ``_``. Profile ``cmq`` has its own rule.
            fifo: True to create a FIFO queue. The name must end in ``.fifo``.
            tags: see ``Queue.set_tags``.
            update: True to change attributes and tags of an existing queue.
            table_options: see ``queue``.
            attributes: attributes by snake_case names or SQS names, including ``profile`` and ``shards``.

        Raises:
            InvalidParameterValue: the name breaks the rule for names.
            InvalidAttributeName, InvalidAttributeValue: an attribute is unknown or out of range.
            InvalidParameterValue, QueueDoesNotExist: a redrive policy is refused, see ``Queue.set_attributes``.
            QueueNameExists: a queue of this name exists with other attributes, or has profile ``cmq``.
            QueueDeletedRecently: the profile requires a pause after a deletion.
            QueueClientError: the root has other content or cannot be written, or this machine's clock is wrong.

        QUE-15, NAM-5, NAM-10, NAM-1, QUE-36, QUE-16, QUE-14, DUR-82
        """
        check_string("name", name)
        check_type("fifo", fifo, bool, "True or False")
        check_type("update", update, bool, "True or False")
        check_secrets("table_options", table_options)
        opened = create_queue.create(self._runtime, name, fifo, tags, attributes, update)
        opened.delivery.options = table_options
        return Queue(opened)

    def queue(self, name: str, *, table_options: Mapping[str, str] | None = None) -> Queue:
        """Returns the queue with this name in the region.

        Args:
            table_options: storage options of the queue's delivery table, not stored. None means the root's
                options, or options from the environment if the table is on another kind of storage.

        Raises:
            QueueDoesNotExist: the region has no such queue.
            QueueClientError: the root is missing, has other content, or has a newer layout.

        QUE-27
        """
        check_string("name", name)
        check_secrets("table_options", table_options)
        opened = queues.find(self._runtime, name)
        opened.delivery.options = table_options
        return Queue(opened)

    def list_queues(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> QueuePage[Queue]:
        """Returns queues of the region, sorted by name.

        Args:
            prefix: only names with this prefix.
            limit: maximum number of queues, 1 to 1,000; None for all. Else raises InvalidParameterValue.
            after: only names after this name. ``next_after`` of a page continues the list.

        QUE-11, QUE-12
        """
        check_string("prefix", prefix)
        check_string("after", after, optional=True)
        whole = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (whole and 1 <= limit <= MAX_LISTED):
            raise InvalidParameterValue.of(limit, "limit", f"Must be between 1 and {MAX_LISTED}.")
        found, more = queues.listed(self._runtime, prefix, limit, after)
        return QueuePage(map(Queue, found), found[-1].name if more else None)

    def delete_queue(self, name: str) -> None:
        """Deletes a queue with all its messages.

        Raises:
            QueueDoesNotExist: the region has no such queue.
            QueueClientError: storage failed, or this machine's clock is wrong.

        QUE-13, QUE-14, DUR-82
        """
        check_string("name", name)
        queues.delete(self._runtime, name)

    def register_views(
        self, spark: SparkSession, now: datetime | None = None, as_of: datetime | None = None
    ) -> None:
        """Creates the temporary views ``queues``, ``messages``, ``groups``, ``receipts``, ``history``, ``stats``.

        Spark's tasks read the views through lakequeue. Spark before 4.1, or tasks without lakequeue, scan tables
        instead. Views that scan tables show only the queues that exist now. A query of such a view takes about 0.4
        seconds for each shard.

        Args:
            now: aware instant at which states are computed. None means ``as_of`` if given, else each query's time.
            as_of: aware instant; the views read the tables as they were then. Most tables keep ten minutes of
                versions. A busy shard keeps only its last 200 commits. Only ``stats`` reaches further back.

        Raises:
            QueueClientError: a log does not reach back to ``as_of``, or the session lacks Delta, which scans need.
            InvalidParameterValue: ``now`` or ``as_of`` is not an aware instant.
        """
        from lakequeue.operations import sql_views, task_views

        MissingPackage.check("register_views", "spark", "pyspark")
        check_callable("spark", spark, "sql", expected="a SparkSession")
        if task_views.create(self._runtime, spark, now, as_of):
            return
        self._runtime.allow(spark)
        sql_views.create(spark, self.view_statements(now, as_of))

    def view_statements(self, now: datetime | None = None, as_of: datetime | None = None) -> list[str]:
        """Returns SQL statements that create the views of ``register_views`` in sessions outside Python."""
        from lakequeue.operations import sql_views

        return sql_views.statements_of(self._runtime, now, as_of)

    def create_views(self, spark: SparkSession, schema: str) -> None:
        """Creates or replaces the views in a catalog's schema. Other sessions and tools can query the views.

        The views show the queues that exist now. Repeat the call after queues are created or deleted. A view fails
        a day after a queue's deletion. ``jobs/compact.py --views`` repeats the call after each pass.

        Args:
            spark: a session that can create views. Sessions that query views need Delta's extension and catalog.
            schema: an existing schema, as ``SCHEMA`` or ``CATALOG.SCHEMA``.

        Raises:
            InvalidParameterValue: ``schema`` is not the name of a schema.
            QueueClientError: the catalog refuses the views. The text has the first line of the reason.
        """
        from lakequeue.operations import sql_views

        MissingPackage.check("create_views", "spark", "pyspark")
        check_callable("spark", spark, "sql", expected="a SparkSession")
        self._runtime.allow(spark)
        sql_views.create(spark, sql_views.statements_of(self._runtime, None, None, schema))

    def arrow_views(self, now: datetime | None = None, as_of: datetime | None = None) -> dict[str, Dataset]:
        """Returns Arrow datasets: ``queues``, ``messages``, ``groups``, ``receipts``, ``history`` and ``stats``.

        The datasets have the columns and rows of ``register_views``. Readers such as DuckDB, polars and pandas
        need no JVM. Polars reads by ``scan_pyarrow_dataset``. Each query reads the newest state, in bounded
        batches. A choice of columns reduces the files that are opened, and so does a filter on ``queue``,
        ``region``, ``shard``, ``state``, ``log_offset`` or ``sent_at``.

        Args:
            now: aware instant of the states. None means ``as_of`` if given, else the time of each read.
            as_of: the instant whose tables are read, see ``register_views``. Queues created later are left out.

        Returns:
            The datasets by name. Each has ``schema``, ``scanner``, ``to_table``, ``to_batches``, ``head`` and
            ``count_rows``. The methods take ``columns`` and ``filter``.

        Raises:
            QueueClientError: the root is unreadable, or a log begins after ``as_of``.
            InvalidParameterValue: ``now`` or ``as_of`` is not an aware instant.
        """
        from lakequeue.operations import relations

        return dict(relations.relations(self._runtime, now, as_of))

    def copy(
        self,
        to: LakeQueue,
        queue: str | None = None,
        progress: CopyProgress | None = None,
    ) -> list[CopiedQueue]:
        """Copies this root, or a queue, to another root, for backup, restore and moves. This root may be in use.

        The copy has everything that was acknowledged before the call. Each shard is copied as it was at some
        instant during the call. Receipts and deduplication ids stay valid in the copy. Earlier versions of the
        tables are not copied. A message that moves between queues during the call may be in the copies of both
        queues. A failed or killed call leaves no visible queue, and can be repeated. An object store's root takes
        one copy at a time.

        Args:
            to: the target root. A missing root is created. The root may have other queues.
            queue: name of a queue of the region. None copies all queues of all regions, and also the tables
                ``stats`` and ``schedules``.
            progress: called with the number of copied files, the number of all files, and the queue's name.

        Raises:
            QueueDoesNotExist: the region has no such queue.
            QueueClientError: ``to`` has one of the queues or other content, or storage failed.
            InvalidParameterValue: ``to`` is this root, or inside it.
            DamagedTable: a file is missing or has another size.

        DUR-40, DUR-41
        """
        from lakequeue.operations.copy import copy

        check_type("to", to, LakeQueue, "a LakeQueue")
        check_string("queue", queue, optional=True)
        if progress is not None:
            check_callable("progress", progress)
        return copy(self._runtime, to._runtime, queue, progress)

    def upgrade(self, progress: Progress | None = None) -> int:
        """Converts a root of layout 5 to the present layout. Returns the number of converted queues.

        First end all processes that use the root. A killed upgrade can be repeated. To go back, see
        docs/operation/upgrading.md.

        Args:
            progress: called with the number of converted tables, the number of all tables, and the next queue.

        Raises:
            QueueClientError: the root is missing, has an unknown layout, or is open in another process.

        DUR-43
        """
        from lakequeue.operations.upgrade import upgrade

        if progress is not None:
            check_callable("progress", progress)
        return upgrade(self._runtime, progress or (lambda done, total, name: None))

    def relay(
        self,
        table: str | None = None,
        queue: Queue | None = None,
        *,
        files: str | None = None,
        body: str = "*",
        start: int | datetime | Literal["now"] = "now",
        changes: Changes = "appends",
        skip_changes: bool = False,
        group_column: str | None = None,
        dedup_column: str | None = None,
        delay_column: str | None = None,
        priority_column: str | None = None,
        on_bad_row: OnBadRow = "fail",
        bad_rows: str | None = None,
        table_options: Mapping[str, str] | None = None,
    ) -> SentRows:
        """Sends each new row of a Delta table as a message, exactly once. Returns the number of messages.

        A call sends the rows of all versions after the last sent version. The queue's log records the last sent
        version, so no checkpoint is needed. Calls may run at the same time, and may be killed. Versions with more
        than 100,000 rows are sent in pieces. Needs the extra ``delta``, but no JVM. See docs/guides/relay.md.

        With ``files`` instead of ``table``, each new file becomes a message, exactly once. A file counts as new if
        its name, size or time has changed. The message is a JSON object with ``path``, ``size`` and
        ``modified_at``. For files, no extra is needed.

        Args:
            table: path or URI of the table, outside of the root.
            queue: the queue that gets the messages.
            files: pattern of paths or URIs, such as ``landing/*.json``, in which ``**`` matches any directories.
                Of the other arguments, only the columns and ``table_options`` can be given with it.
            body: column with the bodies. ``*`` sends each row as a JSON object, like ``Queue.send_arrow``.
            start: where the first call begins. ``now`` means after the existing versions, and a number means at
                this version. An aware datetime means at the first version committed then or later. If a later
                call names a later start, the unsent versions before that start are skipped.
            changes: ``appends`` to send appended rows, ``feed`` to send the rows of the table's change feed:
                inserted, deleted, and updated rows with their new values. Rows of a feed have the feed's columns,
                and their messages have the message attribute ``change_type``.
            skip_changes: True to skip versions that removed or rewrote rows. With ``feed``, True to skip versions
                without a change feed.
            group_column, dedup_column, delay_column, priority_column: columns that become ``group_id``,
                ``dedup_id``, ``delay_seconds`` and ``priority``. None means the column of that name, if there is
                one. A column ``message_attributes`` is also used, see ``Queue.send_dataframe``.
            on_bad_row, bad_rows: treatment of rows that break a rule, see ``Queue.send_dataframe``.
            table_options: storage options of the table; None for the root's options.

        Raises:
            InvalidOptions: a version removed or rewrote rows, or there is another table at the path than before.
            InvalidParameterValue, InvalidMessageContents: an argument breaks a rule, or rows of a version do. The
                error names the version.
            QueueClientError: the table cannot be read, or VACUUM or log cleanup has removed unsent rows.
            OverLimit: the queue has reached its cap on stored messages.

        RLY-1 to RLY-6
        """
        check_string("table", table, optional=True)
        check_string("files", files, optional=True)
        check_string("body", body)
        if isinstance(start, datetime):
            check_instant("start", start)
        elif start != "now" and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
            raise InvalidParameterValue.of(start, "start", 'Must be "now", a version from 0 on, or an instant.')
        if changes not in ("appends", "feed"):
            raise InvalidParameterValue.of(changes, "changes", 'Must be "appends" or "feed".')
        check_type("skip_changes", skip_changes, bool, "True or False")
        columns = {
            "group_id": group_column,
            "dedup_id": dedup_column,
            "delay_seconds": delay_column,
            "priority": priority_column,
        }
        for name, column in columns.items():
            check_string(f"{name.partition('_')[0]}_column", column, optional=True)
        check_string("on_bad_row", on_bad_row)
        check_string("bad_rows", bad_rows, optional=True)
        check_secrets("table_options", table_options)
        if not isinstance(queue, Queue):
            raise InvalidParameterValue.of(type(queue).__name__, "queue", "Must be a Queue.")
        if files is not None:
            from lakequeue.operations.relay_files import Pattern, relay_files

            if table is not None or (body, start, changes, skip_changes) != ("*", "now", "appends", False):
                reason = "Goes without table, body, start, changes and skip_changes."
                raise InvalidParameterValue.of(files, "files", reason)
            return relay_files(queue._runtime, Pattern.of(files), columns, table_options)
        if table is None:
            raise InvalidParameterValue.of(table, "table", "Give either a table or files.")
        MissingPackage.check("relay", "delta", "deltalake")
        from lakequeue.operations.relay import RelayOptions, relay

        wanted = RelayOptions(
            table, body, start, changes, skip_changes, columns, on_bad_row, bad_rows, table_options
        )
        return relay(queue._runtime, wanted)

    def compact(
        self, progress: Progress | None = None, *, processes: int = 1, now: float | None = None
    ) -> list[CompactionSummary]:
        """Frees storage of the queues of all regions. Returns a summary for each queue.

        Expires messages. Drops and merges parts of the logs. Removes old files and log entries. Removes queues a
        day after their deletion. Records the depth of each queue in ``stats``. May run during all other calls, and
        be killed. In the summary of the root's own tables, ``queue`` is None. ``failures`` lists failed steps.

        Args:
            progress: called with the number of finished queues, the number of all queues, and the name of the next
                queue; with several processes, the name of the last finished queue.
            processes: number of new processes of this machine. The processes must be able to import the main
                module.
            now: for a full local disk. Removes deleted queues, and files that a reader may still need, after this
                many seconds. A lease, DataFrame or view whose file was removed fails with an error that names the
                file.

        Raises:
            QueueClientError: the root is missing or has no queues. With several processes: the root has its own
                clock, or commits through Spark. With ``now``: the root is on an object store.
            InvalidParameterValue: ``processes`` is not a whole number above 0, or ``now`` is not from 0 to 86,400.

        DUR-65
        """
        from lakequeue.operations.compact import compact_root, in_processes

        if progress is not None:
            check_callable("progress", progress)
        check_whole("processes", processes)
        return compact_root(self._runtime, progress, in_processes(processes) if processes > 1 else None, now)

    def check(self, name: str | None = None) -> list[Finding]:
        """Reads every file of the tables. Returns damage and warnings, or an empty list. Changes nothing.

        Checks logs, ledgers, catalog, sizes and rows of files, locks, free space, the clock, and table features
        that lakequeue does not know. May run during all other calls.

        Args:
            name: a queue of the region; None for the whole root.

        Raises:
            QueueDoesNotExist: the region has no such queue.
            QueueClientError: the root does not exist, or has another layout.

        DUR-30
        """
        from lakequeue.operations.check import check

        check_string("name", name, optional=True)
        return check(self._runtime, name)

    def repair(
        self,
        name: str | None = None,
        *,
        apply: bool = False,
        clock: bool = False,
        force: bool = False,
        adopt: bool = False,
        new_delivery_id: bool = False,
    ) -> list[Repair]:
        """Repairs the damage found by ``check``. Reports messages that are lost or may be received again.

        On a local disk, the repair locks each table. On an object store, first stop the queue's processes. A
        killed repair can be repeated. Replaced files stay in ``_damaged`` below the table.

        Args:
            name: a queue of the region, even if the catalog has lost the queue; None for all queues of the root.
            apply: True to repair, False to only report the steps.
            clock: True to only set back future instants that a wrong clock stored. Messages sent in the future
                count as sent now. Messages received in the future become visible. Schedules continue. First
                correct this machine's clock.
            force: True to repair a shard even if lost or repeated messages cannot be determined.
            adopt: True to give ``name`` to a queue that the catalog has lost. Another queue with this name loses
                the name. If several queues are lost, each further call gives the name to the next of them.
            new_delivery_id: True to only give the queue a new delivery id. Messages of the queue's deliveries
                become visible. Use this for a root that was copied without ``copy``.

        Returns:
            A report for the catalog and for each damaged shard. An ``applied`` report lists the messages that the
            repair lost or made receivable again.

        Raises:
            QueueDoesNotExist: the region has no such queue.
            QueueClientError: the root does not exist, or another process held a table's lock for too long.

        DUR-31 to DUR-36, DUR-83
        """
        from lakequeue.operations.repair import repair, repair_clock

        check_string("name", name, optional=True)
        check_type("apply", apply, bool, "True or False")
        check_type("clock", clock, bool, "True or False")
        check_type("force", force, bool, "True or False")
        check_type("adopt", adopt, bool, "True or False")
        check_type("new_delivery_id", new_delivery_id, bool, "True or False")
        if new_delivery_id:
            if name is None or clock or adopt:
                raise InvalidParameterValue.of(
                    True, "new_delivery_id", "Goes with the name of a queue, and alone."
                )
            return deliveries.renew(queues.find(self._runtime, name), apply)
        if adopt and (name is None or clock):
            raise InvalidParameterValue.of(adopt, "adopt", "Goes with the name of a queue, and not with clock.")
        if clock:
            return repair_clock(self._runtime, name, apply=apply)
        return repair(self._runtime, name, apply=apply, force=force, adopt=adopt)
