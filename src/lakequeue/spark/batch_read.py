"""``spark.read.format("lakequeue")``: reads messages without receiving them. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Expression
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakequeue.operations.judged_log import JUDGED, TYPED_ATTRIBUTES, JudgedShard, names_are
from lakequeue.operations.relations import judged_shards
from lakequeue.spark import source_schema
from lakequeue.spark.options import Options
from lakequeue.spark.source_errors import one_line
from lakequeue.spark.tasks import FILE_BYTES, cut, packed
from lakequeue.storage import layout
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_JUDGED = {"offset": "log_offset", "message_attributes": TYPED_ATTRIBUTES}
"""The names of columns in `JUDGED`, where they differ."""


@attrs.frozen
class JudgedPart:
    """Files of a shard, or a range of offsets of one file."""

    shard: JudgedShard
    first: int
    last: int


@attrs.define
class JudgedTask(InputPartition):
    """What one task reads; pickled, so it holds values only."""

    parts: list[JudgedPart]


class QueueReader(DataSourceReader):
    """Reads the messages of a queue, or of all queues of a region, as SQL's ``messages`` shows them.

    The driver reads the ledgers when a DataFrame is first used, tasks read files of messages and open no table.
    Filters are not handed over: Spark (4.1, 4.2) plans the tasks of a DataFrame once, by the filters of its latest
    query, and reads them in all others, so that ``df.where(a)`` and then ``df`` showed the messages of ``a`` only.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._schema = schema
        self._condition = condition(options)

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        if self._options.queue is not None:
            self._options.open_queue()  # it may have been deleted since the analysis
        root = self._options.open_root().runtime
        return tasks_of(judged_shards(root, self._condition), self._condition)

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, JudgedTask):  # Spark makes one of its own where there are none
            return
        store = Store(self._options.root, dict(self._options.storage) or None)
        schema = source_schema.arrow_schema(self._schema)
        shown = [_JUDGED.get(name, name) for name in schema.names]
        names = {name for name in JUDGED.names if name in shown or name in str(self._condition)}
        offset = pc.field("log_offset")
        for part in partition.parts:
            wanted = self._condition & (offset >= part.first) & (offset <= part.last)
            for batch in part.shard.batches(store, names | {"log_offset"}, wanted):
                batch = batch.filter(wanted)
                if batch.num_rows:
                    arrays = [
                        # these messages have no receipt handles
                        batch[name].cast(field.type)
                        if name in JUDGED.names
                        else pa.nulls(batch.num_rows, field.type)
                        for name, field in zip(shown, schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def condition(options: Options) -> Expression:
    """What the options say, over the columns of `JUDGED`."""
    chosen = pc.field("region") == options.region
    if options.queue is not None:
        chosen = names_are(options.queue, options.region)
    if options.states:
        chosen &= pc.field("state").isin(pa.array(options.states))
    offset, sent_at = pc.field("log_offset"), pc.field("sent_at")
    if options.from_offset is not None:
        chosen &= offset >= options.from_offset
    if options.before_offset is not None:
        chosen &= offset < options.before_offset
    if options.sent_from is not None:
        chosen &= sent_at >= pa.scalar(options.sent_from, layout.INSTANT)
    if options.sent_before is not None:
        chosen &= sent_at < pa.scalar(options.sent_before, layout.INSTANT)
    return chosen


def tasks_of(shards: Iterable[JudgedShard], condition: Expression) -> list[JudgedTask]:
    """The files of shards that may meet a condition, as tasks of about ``TASK_BYTES``.

    Small files of several shards are one task: each task costs 80 ms.
    """
    parts = (part for shard in shards for part in _parts_of(shard, condition))
    sizes = ((part, sum(file.size + FILE_BYTES for file in part.shard.files) - FILE_BYTES) for part in parts)
    return [JudgedTask(group) for group in packed(sizes)]


def _parts_of(shard: JudgedShard, condition: Expression) -> Iterator[JudgedPart]:
    for group in packed((index, shard.files[index].size) for index in shard.matching(condition)):
        part = shard.part(group)
        first, last = part.files[0].first, part.files[-1].last
        for range_ in cut(first, last, part.files[0].size) if len(group) == 1 else [(first, last)]:
            yield JudgedPart(part, *range_)
