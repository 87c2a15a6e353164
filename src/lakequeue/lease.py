"""``Lease``: many messages, received together, and processed as a DataFrame."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, cast

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    LeaseLost,
    QueueClientError,
    RequestThrottled,
    RowsRefused,
)
from lakequeue.model.arguments import check_callable, check_type, check_visibility_timeout, list_of
from lakequeue.model.clock import Duration, duration_micros, from_micros
from lakequeue.operations import lease as operations
from lakequeue.operations.lease import LeasedMessages
from lakequeue.renewal.heartbeat import LeaseHeartbeat
from lakequeue.renewal.policies import Hold, Renewal
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import LeaseCounts
from lakequeue.storage.engines.spark_access import is_remote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lakequeue.operations.delivery import Delivering


@attrs.frozen
class Delivery:
    """Identity and table of a lease's delivery, for your own write (TAB-28).

    Attributes:
        app_id: application id of the transaction; ``txnAppId`` in Spark.
        version: version of the transaction; ``txnVersion`` in Spark.
        table: the ``deltalake.DeltaTable`` whose log shows that this lease may still deliver. Write once. With
            ``deltalake`` and polars, write through this object: such a write fails if another process has blocked
            the delivery. A write to the table's path succeeds, and may deliver the rows a second time.
    """

    app_id: str
    version: int
    table: Any


class Lease:
    """Messages that were claimed together. Get a lease from ``Queue.lease``.

    Settling takes one commit per shard, without Spark. Methods that settle or extend return ``LeaseCounts``. Its
    ``lost`` is the number of messages that no longer belong to the lease.
    """

    def __init__(self, leased: LeasedMessages) -> None:
        self._runtime = leased
        self._visible_at = leased.visible_at
        self._claimed = Hold.fresh(leased.received_at, self._visible_at, leased.queue.now())
        self._heartbeat: LeaseHeartbeat | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Lease cannot be pickled, as this process extends and settles it: pass the queue and the receipt "
            "handles of lease.messages or lease.batches(), which Queue.delete_batch takes in any process"
        )

    @property
    def message_count(self) -> int:
        """Number of claimed messages."""
        return self._runtime.count

    @property
    def visible_at(self) -> datetime:
        """Instant at which the messages become visible again, unless the lease is extended."""
        return from_micros(self._visible_at)

    @property
    def messages(self) -> DataFrame:
        """Returns the messages as a lazy DataFrame. The files of the DataFrame stay for 24 hours.

        Columns: message_id, body, receipt_handle, sent_at, message_attributes, group_id; delay_seconds,
        receive_count, shard, offset, dedup_id, sequence_number.
        """
        return operations.frame(self._runtime)

    def batches(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Returns the messages as Arrow record batches, without Spark. ``messages`` lists the columns.

        Batches are read on demand. Memory holds two batches, usually a few MiB. On an object store, it also holds
        up to 64 MiB of files that are read ahead. The files stay for 24 hours.

        Args:
            columns: the columns to read, in this order; None for all. Fewer columns are read faster.

        Raises:
            InvalidParameterValue: a column is unknown.
            QueueClientError: storage failed in this call, or while batches are read.
        """
        named = [columns] if isinstance(columns, str) else columns
        chosen = None if named is None else list_of("columns", named, str, "a column's name")
        return operations.batches(self._runtime, chosen)

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the messages as an Arrow table in memory; see ``batches``."""
        return self.batches(columns).read_all()

    def extend(self, visibility_timeout: Duration) -> LeaseCounts:
        """Makes the lease end in this many seconds.

        Raises:
            InvalidParameterValue: the timeout is out of range, or exceeds 12 h in total (VIS-9).
            LeaseLost: the lease no longer holds any message.
        """
        now = self._queue.now()
        counts = self._extend(visibility_timeout)
        heartbeat, hold = self._heartbeat, self._heartbeat and self._heartbeat.hold
        if heartbeat and hold:
            timeout = check_visibility_timeout(self._queue.attributes, visibility_timeout)
            heartbeat.keep(hold.extended(now, timeout))
        return counts

    @contextmanager
    def keep_alive(self, policy: Renewal) -> Iterator[Lease]:
        """Extends the lease in the background while the block runs. Stops when the block settles the lease.

        Extensions go on while the Spark session is busy. If the lease is lost, the Spark jobs of the block's
        thread are cancelled.

        Args:
            policy: ``HeartbeatRenewal`` or ``ComputedRenewal``, applied to the lease and its timeout.

        Raises:
            LeaseLost: at the block's end, if the lease no longer holds any message.
            QueueDoesNotExist: at the block's end, if the queue was deleted.
        """
        check_callable("policy", policy, "next_check", "extension", expected="a renewal policy")
        if self._heartbeat is not None:
            raise RuntimeError("the lease is being kept already")
        trouble: list[BaseException] = []
        with _cancellable(self._queue.root.spark) as cancel:

            def broken(error: BaseException) -> None:
                trouble.append(error)
                cancel()

            def lost() -> None:
                broken(LeaseLost(0, self.message_count))

            name, clock = f"a lease of {self._queue.name}", self._queue.root.clock
            heartbeat = LeaseHeartbeat(name, clock, policy, self._extend, lost, broken)
            heartbeat.start()
            heartbeat.keep(self._hold(policy))
            self._heartbeat = heartbeat
            try:
                yield self
            except Exception as error:
                if trouble:
                    raise trouble[0] from error
                raise
            finally:
                self._heartbeat = None
                heartbeat.stop()
        if trouble:
            raise trouble[0]

    def _hold(self, policy: Renewal) -> Hold:
        own = policy.receive_timeout
        timeout = self._claimed.timeout if own is None else duration_micros(own)
        return attrs.evolve(self._claimed, visible_at=self._visible_at, timeout=timeout)

    def _extend(self, visibility_timeout: Duration) -> LeaseCounts:
        counts, self._visible_at = operations.extend(self._runtime, visibility_timeout)
        return counts

    @property
    def _queue(self) -> OpenQueue:
        return self._runtime.queue

    def delete(self) -> LeaseCounts:
        """Deletes every message of the lease. Raises LeaseLost if the lease no longer holds any message."""
        return self._settle(operations.delete)

    def release(self) -> LeaseCounts:
        """Makes every message of the lease visible. Raises LeaseLost if the lease no longer holds any message."""
        return self._settle(operations.release)

    def delete_except(
        self, failed: DataFrame | Iterable[str | tuple[str, str | None]] | Mapping[str, str | None] | Any
    ) -> LeaseCounts:
        """Deletes all messages except ``failed``. Failed messages become visible.

        Up to 1 KiB of a reason is kept, and shown by ``attempts`` and dead letters (JOB-10).

        Args:
            failed: receipt handles or message ids of the lease; pairs of a handle or id, and a reason; or a Spark,
                polars, pandas or Arrow table with the column ``receipt_handle`` or ``message_id``, and optionally
                ``reason``.

        Raises:
            ReceiptHandleIsInvalid, InvalidParameterValue: a handle or id is not of this lease, or a reason is no
                text.
            LeaseLost: the lease no longer holds any message.
        """
        kept = failed_of(failed)
        return self._settle(lambda leased: operations.delete(leased, kept))

    # --- the delivery table

    def append(self, rows: Any, *, merge_schema: bool = False) -> int:
        """Appends rows to the delivery table, then deletes the messages. Returns the number of rows.

        Each row is appended once. After a failure, the table has the rows once, or the queue still has the
        messages.

        Args:
            rows: an Arrow table, batches or reader, a list of dicts, or a frame of Spark, polars or pandas.
                Without rows, the messages are only deleted.
            merge_schema: True to add columns that the table does not have.

        Raises:
            RowsRefused: the table does not accept these rows. The lease still has the messages, so that the caller
                can append other rows.
            LeaseLost: another process has received the messages again, or has blocked these rows.
            TableUnavailable: the table cannot be reached. If ``outcome_unknown`` is true, rows may have arrived.
                The messages stay undecided until the table can be read.
            UnsupportedOperation: the queue has no delivery table.
            MissingPackage: ``deltalake`` is not installed.

        TAB-23, TAB-25, TAB-30
        """
        check_type("merge_schema", merge_schema, bool, "True or False")
        return self._deliver(rows, {}, merge_schema)[0]

    def _deliver(
        self, rows: Any, failed: Mapping[str, str | None], merge_schema: bool = False
    ) -> tuple[int, LeaseCounts]:
        """Releases failed messages, then appends rows. Returns the number of rows, and the counts of messages."""
        delivering, released = self._delivering(), 0
        try:
            if failed:
                released = delivering.release_named(failed)
            if delivering.leased.count:
                number = delivering.append(rows, merge_schema)
                return number, attrs.evolve(delivering.counts, released=released)
            if self._heartbeat:
                self._heartbeat.drop()
            return 0, LeaseCounts(0, 0, released)
        except RowsRefused:
            parts = delivering.anew()
            if parts is None:  # an earlier request of this call had landed late
                return 0, LeaseCounts(delivering.leased.count, 0, released)
            [delivering] = parts
            raise
        finally:
            self._runtime = delivering.leased

    @property
    def delivery(self) -> Delivery:
        """The delivery of this lease, for your own write. See docs/guides/tables.md.

        Commit on ``table`` with ``app_id`` and ``version``, then call ``delivered``.

        Raises:
            LeaseLost: another process has blocked the delivery of this lease.
            TableUnavailable: the table does not exist, or cannot be reached.
            UnsupportedOperation: the queue has no delivery table.
        """
        delivering = self._delivering()
        identity, table = delivering.open()
        self._runtime = delivering.leased
        return Delivery(identity.app_id, identity.version, table)

    def delivered(self) -> LeaseCounts:
        """Deletes the messages, if the table has the delivery's commit.

        Raises:
            LeaseLost: another process has blocked the delivery of this lease.
            QueueClientError: the table has no such commit.
            TableUnavailable: the table cannot be reached.

        TAB-28
        """
        return self._delivering().delivered()

    def _delivering(self) -> Delivering:
        from lakequeue.operations.delivery import Delivering

        return Delivering(self._runtime, lambda leased: self._settle(lambda _: operations.delete(leased)))

    def _settle(self, settle: Callable[[LeasedMessages], LeaseCounts]) -> LeaseCounts:
        """Settles the lease. Ends the heartbeat, unless a retry may succeed."""
        heartbeat, hold = self._heartbeat, self._heartbeat and self._heartbeat.drop()
        try:
            return settle(self._runtime)
        except (RequestThrottled, QueueClientError):
            if heartbeat and hold:
                heartbeat.keep(hold)
            raise


def failed_of(failed: Any) -> dict[str, str | None]:
    """Parses the argument of ``delete_except``. Returns reasons by handle or message id."""
    found: Iterable[Any]
    if hasattr(failed, "toLocalIterator"):  # A Spark DataFrame.
        columns = _columns(failed.columns)
        rows = failed.select(*columns).toLocalIterator()
        found = rows if columns[1:] else (row[0] for row in rows)
    elif hasattr(failed, "__arrow_c_stream__") or hasattr(failed, "__arrow_c_array__"):
        found = _of_arrow(failed)
    else:
        items = failed.items() if isinstance(failed, Mapping) else failed
        found = list_of(
            "failed", items, (str, tuple), "a receipt handle or message id, or a pair of that and a reason"
        )
    pairs: dict[str, str | None] = {}
    for index, each in enumerate(found):
        identifier, reason = each if isinstance(each, tuple) and len(each) == 2 else (each, None)
        check_type(f"failed[{index}]", identifier, str, "a receipt handle or message id")
        check_type(f"the reason of failed[{index}]", reason, (str, type(None)), "a text or None")
        pairs.setdefault(identifier, reason)
    return pairs


def _of_arrow(failed: Any) -> Iterable[Any]:
    import pyarrow as pa

    try:
        found = pa.table(failed)
    except (TypeError, ValueError):  # A single column.
        return cast("list[Any]", pa.chunked_array(failed if hasattr(failed, "chunks") else [failed]).to_pylist())
    columns = [found[name].to_pylist() for name in _columns(found.column_names)]
    return zip(*columns, strict=True) if columns[1:] else columns[0]


def _columns(names: Sequence[str]) -> list[str]:
    for name in ("receipt_handle", "message_id"):
        if name in names:
            return [name, "reason"] if "reason" in names else [name]
    raise InvalidParameterValue("The column receipt_handle or message_id is missing.")


@contextmanager
def _cancellable(spark: SparkSession | None) -> Iterator[Callable[[], None]]:
    """Yields a function that cancels the Spark jobs that this thread began in the block."""
    if spark is None:
        yield lambda: None
        return
    # Uses a tag instead of a job group: a thread has only one group, which may be the user's.
    tag = f"lakequeue-{uuid.uuid4()}"
    context = None if is_remote(spark) else spark.sparkContext
    if context is None:
        add, cancel, remove = spark.addTag, spark.interruptTag, spark.removeTag
    else:
        add, cancel, remove = context.addJobTag, context.cancelJobsWithTag, context.removeJobTag
    add(tag)
    try:
        yield lambda: cancel(tag)
    finally:
        remove(tag)
