"""``write`` and ``writeStream`` of ``format("lakequeue")``: tasks write files, the driver commits them.

Imports pyspark.
"""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lakequeue import frame_verbs
from lakequeue.errors import InvalidOptions, QueueClientError
from lakequeue.frame_verbs import PlannedSend, Written
from lakequeue.spark.options import Options
from lakequeue.spark.source_schema import arrow_schema, one_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 gives rows instead of record batches
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

_ROWS = 1_000
_QUERY = "sql.streaming.queryId"
"""Property of a task: the id of its query, which Spark keeps in the checkpoint."""
_BATCH = "streaming.sql.batchId"


@attrs.define
class WrittenPart(WriterCommitMessage):
    """What a task wrote; None if its rows were not needed."""

    send: PlannedSend
    written: Written | None


class _Writer:
    """Sends rows in one commit a shard. A copy of it writes in the executors, without opening the queue."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOptions(['mode overwrite: messages can only be added; say .mode("append")'])
        self._options = options
        self._schema = schema
        # the process that runs this is not told whether case matters to the session
        self._names, order_by = frame_verbs.spelled(schema.names, options.order_by)
        columns = [
            (name, type_) for name, (_, type_) in zip(self._names, frame_verbs.columns_of(schema), strict=True)
        ]
        given = options.send_id, options.on_bad_row, options.bad_rows
        self._send = frame_verbs.plan_send(options.open_queue(), columns, order_by, *given)

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
        if None in messages:  # a task failed; else a commit has begun, and it may have reached a shard
            send = next((part.send for part in messages if part is not None), self._send)
            frame_verbs.discard_send(self._options.open_queue(), send)


class QueueWriter(_Writer, DataSourceArrowWriter):
    """Sends the rows of a DataFrame."""


class QueueStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends micro-batches; Spark makes one of these to write a batch, and another one to commit it.

    The stream is known by the id of its query, which only the tasks are told: their commit messages carry it.
    """

    def _send_of_task(self) -> PlannedSend:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise QueueClientError("this Spark does not tell its tasks the query that they belong to")
        return self._send.of_batch(query, int(batch))


def _batches(rows: Iterator[pa.RecordBatch], schema: StructType) -> Iterable[pa.RecordBatch]:
    """Record batches; some versions of Spark give a stream's rows one by one."""
    first = next(rows, None)
    if first is None:
        return ()
    if isinstance(first, pa.RecordBatch):
        return chain([first], rows)
    return _converted(chain([first], rows), schema)


def _converted(rows: Iterator[tuple[object, ...]], schema: StructType) -> Iterator[pa.RecordBatch]:
    arrow = arrow_schema(schema)
    while some := list(islice(rows, _ROWS)):
        columns = [
            pa.array([list(value.items()) if isinstance(value, dict) else value for value in values], field.type)
            for field, values in zip(arrow, zip(*some, strict=True), strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)
