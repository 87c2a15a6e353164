"""``df.write.format("lakequeue")``: tasks write files, the driver commits them. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lakequeue.errors import InvalidOptions
from lakequeue.operations import send_written
from lakequeue.spark.options import Options
from lakequeue.spark.source_errors import one_line
from lakequeue.spark.source_schema import arrow_schema
from lakequeue.storage import layout
from lakequeue.storage.bulk.arrow_files import Written
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.bulk.write_files import TaskWriter, columns_of
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ROWS = 1_000


@attrs.define
class WrittenPart(WriterCommitMessage):
    """What a task wrote; None if its rows were not needed."""

    staging: Staging | None
    written: Written | None


class QueueWriter(DataSourceArrowWriter):
    """Sends the rows of a DataFrame, in one commit a shard; a copy of it writes in the executors."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_mode(overwrite)
        self._options = options
        self._schema = schema
        queue = options.open_queue()._runtime
        key = SendKey.new() if options.send_id is None else SendKey.of_send(options.send_id)
        rules, shards = send_written.rules_of(queue, columns_of(schema), options.order_by)
        self._queue_key = queue.key
        self._staging = Staging.new(key, shards, rules)
        self._needed = not send_written.is_known(queue, key)

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        if not self._needed:
            return WrittenPart(None, None)
        return write_part(self._options, self._queue_key, self._schema, self._staging, iterator)

    @one_line
    def commit(self, messages: Sequence[WrittenPart | None]) -> None:
        queue = self._options.open_queue()._runtime
        written = [part.written for part in messages if part is not None and part.written is not None]
        send_written.complete(
            queue,
            columns_of(self._schema),
            self._options.order_by,
            self._staging,
            written if self._needed else None,
        )

    @one_line
    def abort(self, messages: Sequence[WrittenPart | None]) -> None:
        if None in messages:  # a task failed; else a commit has begun, and it may have reached a shard
            send_written.discard(self._options.open_queue()._runtime, self._staging)


def check_mode(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOptions(['mode overwrite: messages can only be added; say .mode("append")'])


def write_part(
    options: Options, queue_key: str, schema: StructType, staging: Staging, rows: Iterator[pa.RecordBatch]
) -> WrittenPart:
    """Writes the rows of a task."""
    store = Store(options.root, dict(options.storage) or None)
    writer = TaskWriter(store, layout.tables_path(options.root, queue_key), staging)
    return WrittenPart(staging, writer.write(_batches(rows, schema)))


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
