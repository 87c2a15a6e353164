"""``spark.read.format("lakequeue")``: a look at messages without receiving them. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
from lakequeue.spark.stream_read import FILE_BYTES, TASK_BYTES
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

_JUDGED = {"offset": "log_offset", "message_attributes": TYPED_ATTRIBUTES}
"""The names of columns in `JUDGED`, where they differ."""
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""The worker of Spark (4.1 on) that hands filters to a reader."""

_Field = Any
_TESTS: dict[str, Callable[[_Field, Any], Expression]] = {
    "EqualTo": lambda field, value: field == value,
    "GreaterThan": lambda field, value: field > value,
    "GreaterThanOrEqual": lambda field, value: field >= value,
    "LessThan": lambda field, value: field < value,
    "LessThanOrEqual": lambda field, value: field <= value,
    "StringStartsWith": lambda field, value: pc.starts_with(field, value.as_py()),
    "StringEndsWith": lambda field, value: pc.ends_with(field, value.as_py()),
    "StringContains": lambda field, value: pc.match_substring(field, value.as_py()),
}
"""Filters of Spark with one value, by class."""


@attrs.define
class JudgedPart(InputPartition):
    """Files of a shard, or a range of offsets of one, that a task reads; pickled, so it holds values only."""

    shard: JudgedShard
    first: int
    last: int


class QueueReader(DataSourceReader):
    """Reads the messages of a queue, or of all queues of a region, as SQL's ``messages`` shows them.

    The driver reads the ledgers, once a query; tasks read files of messages and open no table.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._schema = schema
        self._condition = pc.field("region") == options.region
        if options.queue is not None:
            self._condition = names_are(options.queue, options.region)

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        if self._options.queue is not None:
            self._options.open_queue()  # it may have been deleted since the analysis
        root = self._options.open_root().runtime
        return [
            part for shard in judged_shards(root, self._condition) for part in parts_of(shard, self._condition)
        ]

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, JudgedPart):  # Spark makes one of its own where there are none
            return
        store = Store(self._options.root, dict(self._options.storage) or None)
        schema = source_schema.arrow_schema(self._schema)
        shown = [_JUDGED.get(name, name) for name in schema.names]
        names = [name for name in JUDGED.names if name in shown or name in str(self._condition)]
        offset = pc.field("log_offset")
        wanted = self._condition & (offset >= partition.first) & (offset <= partition.last)
        for batch in partition.shard.batches(store, {*names, "log_offset", "queue", "region"}, wanted):
            batch = batch.filter(wanted)
            if batch.num_rows:
                arrays = [
                    # a look has no receipt handles
                    batch[name].cast(field.type) if name in JUDGED.names else pa.nulls(batch.num_rows, field.type)
                    for name, field in zip(shown, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class FilteringReader(QueueReader):
    """Takes filters before it plans; all but those on attributes and receipt handles."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            condition = expression(each)
            if condition is None:
                yield each
            else:
                self._condition &= condition


def reader(options: Options, schema: StructType) -> QueueReader:
    """The reader for Spark.

    Where ``spark.sql.python.filterPushdown.enabled`` is off, Spark refuses a reader that takes filters; only where
    it is on, the worker that hands them over runs.
    """
    return (FilteringReader if _PUSHING in sys.modules else QueueReader)(options, schema)


def expression(filter: Filter) -> Expression | None:
    """A filter of Spark's as one of Arrow's over `JUDGED`; None for one that Spark has to apply."""
    kind = type(filter).__name__
    if kind == "Not":
        negated = expression(filter.child)
        return None if negated is None else ~negated
    [name, *inner] = filter.attribute
    name = _JUDGED.get(name, name)
    if inner or name not in JUDGED.names or pa.types.is_nested(JUDGED.field(name).type):
        return None
    field, type_ = pc.field(name), JUDGED.field(name).type
    if kind in ("IsNull", "IsNotNull"):
        return field.is_null() if kind == "IsNull" else field.is_valid()
    try:
        if kind == "In":
            return field.isin(pa.array([value for value in filter.value if value is not None], type_))
        return _TESTS[kind](field, pa.scalar(filter.value, type_))
    except (KeyError, pa.ArrowException, TypeError):  # a filter that is new, or a value of another type
        return None


def parts_of(shard: JudgedShard, condition: Expression) -> list[JudgedPart]:
    """The files of a shard that may meet a condition, in parts of about ``TASK_BYTES``."""
    groups: list[list[int]] = []
    left = 0
    for index in shard.matching(condition):
        size = shard.files[index].size
        if size > left:
            groups.append([])
            left = TASK_BYTES
        groups[-1].append(index)
        left -= size + FILE_BYTES
    return [part for group in groups for part in _pieces(shard.part(group))]


def _pieces(shard: JudgedShard) -> Iterator[JudgedPart]:
    """A part as it is, or one large file cut into ranges of offsets."""
    first, last = shard.files[0].first, shard.files[-1].last
    count = -(-shard.files[0].size // TASK_BYTES) if len(shard.files) == 1 else 1
    step = -(-(last - first + 1) // count)
    for start in range(first, last + 1, step):
        yield JudgedPart(shard, start, min(start + step - 1, last))
