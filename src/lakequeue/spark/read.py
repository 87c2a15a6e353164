"""``read`` and ``readStream`` of ``format("lakequeue")``: the readers that Spark drives. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from lakequeue import frame_verbs
from lakequeue.model.states import MessageState
from lakequeue.spark import source_schema
from lakequeue.spark.leased_batches import START, LeasedBatches, Offset
from lakequeue.spark.options import Options
from lakequeue.spark.source_schema import one_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which runs one batch then

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


@attrs.define
class Task(InputPartition):
    """What one task reads; pickled, so it holds values only."""

    part: Any


class QueueReader(DataSourceReader):
    """Reads the messages of a queue, or of all queues of a region, as SQL's ``messages`` shows them.

    Tasks read the ledgers, so each query of a DataFrame shows the newest states. Filters are not handed over:
    Spark (4.1, 4.2) plans the tasks of a DataFrame once, by the filters of its latest query, and reads them in all
    others, so that ``df.where(a)`` and then ``df`` showed the messages of ``a`` only.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._schema = schema
        self._condition = frame_verbs.chosen(
            options.region,
            options.queue,
            options.states,
            (options.from_offset, options.before_offset),
            (options.sent_from, options.sent_before),
        )

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        if self._options.queue is not None:
            self._options.open_queue()  # it may have been deleted since the analysis
        return [Task(part) for part in frame_verbs.message_tasks(self._options.open_root(), self._condition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # Spark makes one of its own where there are none
            return
        lake, schema = self._options.open_root(), source_schema.arrow_schema(self._schema)
        names = [name for name in schema.names if name != "receipt_handle"] or ["shard"]
        yield from _shaped(frame_verbs.read_messages(lake, self._condition, partition.part, names), schema, {})


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Receives from a queue: a micro-batch is a lease.

    It lives in a Python process beside the driver for as long as the query runs, and extends leases from there;
    a copy of it reads in the executors, without opening the queue.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._schema = schema
        self._batches: LeasedBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_batches": None}

    @property
    def batches(self) -> LeasedBatches:
        if self._batches is None:
            self._batches = LeasedBatches(self._options.open_queue(), self._options)
        return self._batches

    def initialOffset(self) -> Offset:
        return dict(START)

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:
        self.batches.stop_at_present()

    @one_line
    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:
        # Spark before 4.2 gives no start
        return self.batches.next(self.batches.reached if start is None else start)

    @one_line
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        lease = self.batches.plan(start, end)
        return [] if lease is None else [Task(part) for part in frame_verbs.lease_tasks(lease)]

    @one_line
    def commit(self, end: Offset) -> None:
        self.batches.finish(end)

    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:
        options, schema = self._options, source_schema.arrow_schema(self._schema)
        names = [name for name in schema.names if name in frame_verbs.LEASE_COLUMNS.names] or ["shard"]
        constants = {"queue": options.queue, "region": options.region, "state": MessageState.IN_FLIGHT.value}
        yield from _shaped(partition.part.read(names), schema, constants)


def _shaped(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, constants: Mapping[str, str | None]
) -> Iterator[pa.RecordBatch]:
    """Batches with the columns of a schema; one that they lack is constant, or NULL."""
    for batch in batches:
        arrays = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.repeat(pa.scalar(constants.get(field.name), field.type), batch.num_rows)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
