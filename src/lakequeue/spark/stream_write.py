"""``df.writeStream.format("lakequeue")``: each micro-batch is sent exactly once. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakequeue.errors import QueueClientError
from lakequeue.operations import send_written
from lakequeue.spark.options import Options
from lakequeue.spark.source_errors import one_line
from lakequeue.spark.write import WrittenPart, check_mode, write_part
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.bulk.write_files import columns_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 gives rows instead of record batches
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

_QUERY = "sql.streaming.queryId"
"""Property of a task: the id of its query, which Spark keeps in the checkpoint."""
_BATCH = "streaming.sql.batchId"


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Sends micro-batches; Spark makes one of these to write a batch, and another one to commit it.

    The stream is known by the id of its query, which only the tasks are told: their commit messages carry it.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_mode(overwrite)
        self._options = options
        self._schema = schema
        self._attempt = uuid.uuid4().hex[:8]
        queue = options.open_queue()._runtime
        self._queue_key = queue.key
        self._rules, self._shards = send_written.rules_of(queue, columns_of(schema), options.order_by)

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise QueueClientError("this Spark does not tell its tasks the query that they belong to")
        key = SendKey.of_batch(query, int(batch))
        staging = Staging.new(key, self._shards, self._rules, self._attempt)
        return write_part(self._options, self._queue_key, self._schema, staging, iterator)

    @one_line
    def commit(self, messages: Sequence[WrittenPart | None], batchId: int) -> None:
        parts = [part for part in messages if part is not None and part.staging is not None]
        if not parts:
            return
        staging = parts[0].staging
        assert staging is not None
        send_written.complete_batch(
            self._options.open_queue()._runtime,
            batchId,
            columns_of(self._schema),
            self._options.order_by,
            staging,
            [part.written for part in parts if part.written is not None],
        )

    @one_line
    def abort(self, messages: Sequence[WrittenPart | None], batchId: int) -> None:
        staging = next((part.staging for part in messages if part is not None), None)
        if None in messages and staging is not None:  # else a commit has begun, and it may have reached a shard
            send_written.discard(self._options.open_queue()._runtime, staging)
