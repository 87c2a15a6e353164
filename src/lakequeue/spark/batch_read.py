"""``spark.read.format("lakequeue")``: reads messages without receiving them. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Expression
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakequeue.operations.judge import JUDGED, TYPED_ATTRIBUTES
from lakequeue.operations.judged_log import names_are, surviving
from lakequeue.operations.ranges import Range, ranges_of, within
from lakequeue.operations.relations import judged
from lakequeue.spark import source_schema
from lakequeue.spark.options import Options
from lakequeue.spark.source_errors import one_line
from lakequeue.spark.tasks import packed
from lakequeue.storage import layout

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_JUDGED = {"offset": "log_offset", "message_attributes": TYPED_ATTRIBUTES}
"""The names of columns in `JUDGED`, where they differ."""


@attrs.define
class RangesTask(InputPartition):
    """What one task reads; pickled, so it holds values only."""

    ranges: dict[str, list[Range]]
    """By queue."""


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
        self._condition = condition(options)

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        if self._options.queue is not None:
            self._options.open_queue()  # it may have been deleted since the analysis
        root = self._options.open_root()._runtime
        with root.storage_errors():
            queues = [row for row in root.rows() if row.deleted_at is None]
            queues = [
                queues[index]
                for index in surviving([[names_are(row.name, row.region)] for row in queues], self._condition)
            ]
            found = [(row.name, *each) for row in queues for each in ranges_of(root, row)]
        known = [[names_are(name, self._options.region) & within([range_])] for name, range_, _ in found]
        chosen = (found[index] for index in surviving(known, self._condition))
        tasks = []
        for group in packed(((name, range_), size) for name, range_, size in chosen):
            ranges: dict[str, list[Range]] = {}
            for name, range_ in group:
                ranges.setdefault(name, []).append(range_)
            tasks.append(RangesTask(ranges))
        return tasks

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangesTask):  # Spark makes one of its own where there are none
            return
        schema = source_schema.arrow_schema(self._schema)
        shown = [_JUDGED.get(name, name) for name in schema.names]
        names = [name for name in JUDGED.names if name in shown] or ["log_offset"]
        messages = judged(self._options.open_root()._runtime)
        for queue, ranges in partition.ranges.items():
            wanted = self._condition & names_are(queue, self._options.region) & within(ranges)
            for batch in messages.to_batches(columns=names, filter=wanted):
                arrays = [
                    # these messages have no receipt handles
                    batch[name].cast(field.type) if name in names else pa.nulls(batch.num_rows, field.type)
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
