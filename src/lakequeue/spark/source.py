"""Readers and writers of the Spark data source ``lakequeue``."""

# mypy: allow-subclassing-any
# mypy does not analyse pyspark.

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark.sql import datasource

from lakequeue import frame_verbs
from lakequeue.errors import InvalidOptions, LeaseLost, QueueClientError
from lakequeue.frame_verbs import LeaseTask, PlannedSend, Written
from lakequeue.lease import Lease
from lakequeue.model.states import MessageState
from lakequeue.queue import Queue
from lakequeue.renewal.policies import ComputedRenewal
from lakequeue.spark import source_schema
from lakequeue.spark.options import SourceOptions, Use
from lakequeue.spark.source_schema import one_line
from pyspark_lakequeue.stream import shaped

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger("lakequeue")
Offset = dict[str, Any]
"""Offset of a stream: a dict with the id of a lease and the key of the queue."""
START: Offset = {"lease": ""}
# Spark 4.0 passes rows instead of record batches.
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
_ROWS = 1_000
_QUERY = "sql.streaming.queryId"
"""Name of the property in which Spark gives tasks the id of their query. The checkpoint keeps this id."""
_BATCH = "streaming.sql.batchId"


class QueueReader(datasource.DataSourceReader):
    """Reads the rows of SQL's table ``messages`` from the newest ledgers. Spark applies the query's filters."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._schema = schema
        self._condition = options.condition()

    @one_line
    def partitions(self) -> Sequence[datasource.InputPartition]:
        queue = None if self._options.queue is None else self._options.open_queue()  # It may be deleted by now.
        if queue is not None and self._options.message_id is not None:
            tasks = frame_verbs.tasks_of_message(queue, self._options.message_id)
        else:
            tasks = frame_verbs.message_tasks(self._options.open_root(), self._condition)
        return [datasource.InputPartition(task) for task in tasks]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark adds an empty partition if there is none.
            return
        lake, schema = self._options.open_root(), frame_verbs.arrow_schema(self._schema)
        names = [name for name in schema.names if name != "receipt_handle"] or ["shard"]
        yield from shaped(frame_verbs.read_messages(lake, self._condition, partition.value, names), schema, {})


class StreamLeases:
    """Receives from a queue, in a Python process next to the driver. A micro-batch is a lease.

    Spark asks for the next offset only after its checkpoint says that the last batch is done. Therefore,
    ``latest_offset`` deletes the lease of the last batch. ``commit`` would be late: Spark calls it with the next
    batch, maybe hours later.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._renewal = ComputedRenewal(options.visibility_timeout, options.lease_seconds)
        self._kept: dict[str, tuple[Lease, ExitStack]] = {}
        self._deleted = ""
        self._offered: tuple[Offset, Offset] | None = None
        self._reached = START
        self._left: int | None = None
        self._quiet_until = 0.0

    @cached_property
    def _queue(self) -> Queue:
        return self._options.open_queue()

    def initial_offset(self) -> Offset:
        return dict(START)

    @one_line
    def prepare_for_available_now(self) -> None:
        frame_verbs.decide_all(self._queue)  # else no claim would decide them if no message is visible
        self._left = self._queue.counts().visible

    @one_line
    def latest_offset(self, start: Offset | None) -> Offset:
        """Claims the next batch. Returns the offset after the batch, or ``start`` if there is no batch.

        Raises InvalidOptions for a checkpoint of another stream or queue, and QueueDoesNotExist.
        """
        start = self._reached if start is None else start  # Spark before 4.2 passes no start.
        self.commit(start)
        if self._offered is not None and self._offered[0] == start:
            return self._offered[1]  # The batch is claimed already, and not planned yet.
        # Without a pause, an idle stream would poll a hundred times a second.
        if self._left == 0 or time.monotonic() < self._quiet_until:
            return start
        most = self._options.max_messages if self._left is None else min(self._left, self._options.max_messages)
        timeout, delivers = self._options.visibility_timeout, self._options.delivers
        lease = frame_verbs.claimed_lease(self._queue, most, timeout, delivers=delivers)
        if lease is None:
            self._quiet_until = time.monotonic() + frame_verbs.poll_interval(self._queue)
            return start
        if self._left is not None:
            self._left -= lease.message_count
        self._keep(lease)
        end = {"lease": frame_verbs.lease_id(lease), "queue": self._queue.key}
        self._offered = start, end
        return end

    @one_line
    def tasks(self, start: Offset, end: Offset) -> Sequence[tuple[LeaseTask, Mapping[str, str | None]]]:
        """Returns the part of a batch that each task reads, with the values of constant columns."""
        self._offered = None
        self.commit(start)
        self._reached = end
        lease = None if start == end else self._lease(end)
        tasks = [] if lease is None else frame_verbs.lease_tasks(lease)
        place = {"queue": self._options.queue, "region": self._options.region}
        return [(task, place | {"state": MessageState.IN_FLIGHT.value}) for task in tasks]

    def _lease(self, end: Offset) -> Lease | None:
        """Returns the lease of a batch, or None if all its messages were lost and will be received again."""
        lease_id = self._id(end)
        if lease_id in self._kept:
            return self._kept[lease_id][0]
        lease = frame_verbs.resumed_lease(self._queue, lease_id, self._options.visibility_timeout)
        if lease is None:
            _log.warning("nothing is left of the batch that was interrupted; its messages come in later ones")
            if self._left is not None:
                self.prepare_for_available_now()  # counts these messages, too
            return None
        self._keep(lease)
        return lease

    @one_line
    def commit(self, end: Offset) -> None:
        """Deletes the messages of a finished batch, unless ``process_lease`` has deleted them (TAB-31)."""
        lease_id = self._id(end)
        if lease_id in ("", self._deleted):
            return
        kept, renewal = self._kept.pop(lease_id, (None, nullcontext()))
        # Messages that the batch's function handed back are not held any more, so they stay.
        lease = frame_verbs.held_lease(self._queue, lease_id)
        with renewal, suppress(LeaseLost):
            if lease is not None and not self._options.delivers:
                lease.delete()
        if kept is not None and frame_verbs.is_taken(kept):
            _log.warning("messages were lost to a timeout; they will be received again")
        if self._left is not None:
            self._left += frame_verbs.failed_together(self._queue, lease_id)
        self._deleted = lease_id

    def _keep(self, lease: Lease) -> None:
        renewal = ExitStack()
        renewal.enter_context(lease.keep_alive(self._renewal))
        self._kept[frame_verbs.lease_id(lease)] = lease, renewal

    def _id(self, end: Offset) -> str:
        """Returns the lease id of an offset. Raises InvalidOptions if the offset is of another stream."""
        if "lease" not in end:
            other = "another kind of stream"
        elif end["lease"] and end.get("queue") != self._queue.key:
            other = f"another queue than {self._queue.name}, or of one before it that was deleted"
        else:
            return str(end["lease"])
        raise InvalidOptions([f"option checkpointLocation: the checkpoint is of {other}; use a new one"])


@attrs.define
class WrittenPart(datasource.WriterCommitMessage):
    """The result of a task that writes. ``written`` is None if the same send was made before."""

    send: PlannedSend
    written: Written | None


class _Writer:
    """Sends rows in one commit per shard. Executors use copies of this object, which do not open the queue."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOptions(['mode overwrite: messages can only be added; say .mode("append")'])
        self._options = options
        self._schema = schema
        # This process does not know if the session is case-sensitive.
        self._names, order_by = frame_verbs.spelled(schema.names, options.order_by)
        columns = [
            (name, type_) for name, (_, type_) in zip(self._names, frame_verbs.columns_of(schema), strict=True)
        ]
        choices = options.send_id, options.on_bad_row, options.bad_rows
        self._send = frame_verbs.plan_send(options.open_queue(), columns, order_by, *choices)

    def _send_of_task(self) -> PlannedSend:
        return self._send

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        send = self._send_of_task()
        batches = (batch.rename_columns(self._names) for batch in _batches(iterator, self._schema))
        return WrittenPart(send, send.write(batches))

    @one_line
    def commit(self, messages: Sequence[WrittenPart | None], batchId: int | None = None) -> None:
        parts = [part for part in messages if part is not None]
        if parts:
            written = [part.written for part in parts if part.written is not None]
            frame_verbs.complete_send(self._options.open_queue(), parts[0].send, written)

    @one_line
    def abort(self, messages: Sequence[WrittenPart | None], batchId: int | None = None) -> None:
        if None in messages:  # A task failed. Otherwise a commit has begun, and may have reached a shard.
            send = next((part.send for part in messages if part is not None), self._send)
            frame_verbs.discard_send(self._options.open_queue(), send)


class QueueWriter(_Writer, datasource.DataSourceArrowWriter):
    """Sends the rows of a DataFrame."""


class QueueStreamWriter(_Writer, _StreamWriter):
    """Sends the rows of micro-batches. Each task returns the id of the query, because only tasks know this id."""

    def _send_of_task(self) -> PlannedSend:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise QueueClientError("this Spark does not pass its tasks the id of their query")
        return self._send.of_batch(query, int(batch))


def _batches(rows: Iterator[pa.RecordBatch], schema: StructType) -> Iterable[pa.RecordBatch]:
    """Returns the rows of a task as record batches. Converts single rows, which some versions of Spark pass."""
    first = next(rows, None)
    if first is None:
        return ()
    if isinstance(first, pa.RecordBatch):
        return chain([first], rows)
    return _converted(chain([first], rows), schema)


def _converted(rows: Iterator[tuple[object, ...]], schema: StructType) -> Iterator[pa.RecordBatch]:
    arrow = frame_verbs.arrow_schema(schema)
    while some := list(islice(rows, _ROWS)):
        columns = [
            pa.array([list(value.items()) if isinstance(value, dict) else value for value in values], field.type)
            for field, values in zip(arrow, zip(*some, strict=True), strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)


@one_line
def columns(raw_options: Mapping[str, str]) -> StructType:
    """Returns the same columns for a batch read and a stream, because Spark does not say which it plans."""
    options = SourceOptions.parse(raw_options, Use.ANY_READ)
    if options.queue is not None:
        options.open_queue()  # Reports a wrong root or queue where it is named.
    return source_schema.schema()


@one_line
def reader(raw_options: Mapping[str, str], schema: StructType) -> QueueReader:
    return QueueReader(SourceOptions.parse(raw_options, Use.READ), schema)


@one_line
def writer(raw_options: Mapping[str, str], schema: StructType, overwrite: bool) -> QueueWriter:
    return QueueWriter(SourceOptions.parse(raw_options, Use.WRITE), schema, overwrite)


@one_line
def stream_writer(raw_options: Mapping[str, str], schema: StructType, overwrite: bool) -> QueueStreamWriter:
    return QueueStreamWriter(SourceOptions.parse(raw_options, Use.STREAM_WRITE), schema, overwrite)


@one_line
def stream_leases(raw_options: Mapping[str, str], schema: StructType) -> StreamLeases:
    return StreamLeases(SourceOptions.parse(raw_options, Use.STREAM_READ), schema)
