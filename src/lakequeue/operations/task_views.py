"""The views of SQL as Spark's tasks read them, through ``relations``, wherever the tasks have lakequeue.

Delta plans each table of each shard by a job of Spark before a query begins: messages by state over 16 shards took
6 to 8 s by ``sql_views`` and take 0.4 s here. Each query reads the newest state. A shard is read in ranges of
offsets that stay the same, so each message is shown once, whichever snapshots the tasks of a query open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from importlib.metadata import version
from operator import or_
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import SystemClock
from lakequeue.operations import pool, relations, sql_views
from lakequeue.operations.judged_log import names_are
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.spark_session import quiet_about_pandas
from lakequeue.storage.messages.read import LogFile, LogReader
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Range = tuple[int | None, int | None, int | None]
"""Shard, first and last offset."""
RANGE_BYTES = 16 << 20
"""Size of files at which a range of offsets ends. Spark deals the ranges of a query out to its cores."""

_log = logging.getLogger("lakequeue")
_OF_MESSAGES = ("messages", "history")
"""The relations with a row for each message."""
_ALL: Range = (None, None, None)
_NO_OFFSET = (1 << 63) - 1


@attrs.frozen
class RelationReader:
    """Reads a relation in a task, of one queue or whole; pickled, so it holds values only."""

    relation: str
    root: str
    options: Mapping[str, str] = attrs.field(repr=False)
    queue: str | None
    region: str
    now: datetime | None
    """The instant of the states; None is the time at which a task reads, so that no message is from the future."""

    def rows(self, asked: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges of offsets in the batches."""
        for batch in asked:
            ranges = batch.to_pylist()
            if ranges:
                root = Root(Store(self.root, self.options), SystemClock(), self.region, 0, None, False)
                shown = relations.relations(root, self.now, None)[self.relation]
                condition = None if self.queue is None else names_are(self.queue, self.region)
                if condition is not None and self.relation in _OF_MESSAGES:
                    condition &= reduce(or_, map(_within, _joined(ranges)))
                yield from shown.to_batches(filter=condition)


def create(root: Root, spark: SparkSession, now: datetime | None) -> bool:
    """Creates the temporary views (DLT-5); False if the session's tasks cannot read the root."""
    from pyspark.sql.functions import lit

    queues = sql_views.shown_queues(root, now, None)
    reason = _why_tasks_cannot_read(spark, root.engine.store)
    if reason:
        _log.info("the views read Delta's tables, since Spark's tasks cannot: %s", reason)
        return False

    def read(relation: str, queue: QueueRow | None, ranges: Sequence[Range]) -> DataFrame:
        name, region = (None, root.region) if queue is None else (queue.name, queue.region)
        reader = RelationReader(relation, root.path, root.engine.store.options, name, region, now)
        values = ", ".join(str(each).replace("None", "NULL") for each in ranges)
        asked = spark.sql(
            "SELECT CAST(shard AS INT) AS shard, CAST(first AS BIGINT) AS first, CAST(last AS BIGINT) AS last "
            f"FROM VALUES {values} AS ranges(shard, first, last)"
        )
        rows = _mapped(asked, reader, relations.SCHEMAS[relation])
        # as literals, so that a filter on them leaves the other queues unread
        return rows if queue is None else rows.withColumns({"queue": lit(name), "region": lit(region)})

    with root.storage_errors():
        ranges = [_ranges(root, queue) for queue in queues]
    for relation in relations.SCHEMAS:
        if relation == "stats":
            parts = [read(relation, None, [_ALL])]
        else:
            wanted = ranges if relation in _OF_MESSAGES else [[_ALL]] * len(queues)
            parts = [read(relation, *each) for each in zip(queues, wanted, strict=True)]
        united = _united(parts or [read(relation, None, [_ALL]).limit(0)])
        # columns of their own: Spark cannot plan a subquery in a SELECT list that refers to those of a union
        united.select([united[name].alias(name) for name in united.columns]).createOrReplaceTempView(relation)
    return True


def _why_tasks_cannot_read(spark: SparkSession, store: Store) -> str | None:
    """Why the session's tasks cannot read a root, or None."""
    path, options, wanted = store.root, store.options, version("lakequeue")

    def tried(batches: Iterator[Any]) -> Iterator[Any]:  # pickled with its code, as the task may have no lakequeue
        from importlib.metadata import version

        import pyarrow

        for batch in batches:
            try:
                found = version("lakequeue")
                reason = None if found == wanted else f"they have lakequeue {found}"
                from lakequeue.model.clock import SystemClock
                from lakequeue.runtime.root import Root
                from lakequeue.storage.stores import Store

                Root(Store(path, options), SystemClock(), "", 0, None, False).rows()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            yield pyarrow.record_batch({"reason": pyarrow.array([reason] * len(batch), pyarrow.string())})

    try:
        with quiet_about_pandas():
            [[told]] = spark.range(1).mapInArrow(tried, "reason string").collect()
    except Exception as error:  # another Python, or none; a session that is at fault says so in what comes next
        return first_line(error)
    return None if told is None else str(told)


def _mapped(asked: DataFrame, reader: RelationReader, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    with quiet_about_pandas():
        return asked.mapInArrow(reader.rows, from_arrow_schema(schema))


def _united(parts: Sequence[DataFrame]) -> DataFrame:
    """The union of all, as a tree that is not deep: Spark walks it by recursion."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return _united(parts[:half]).unionAll(_united(parts[half:]))


def _ranges(root: Root, queue: QueueRow) -> list[Range]:
    """Ranges of offsets that hold all messages of a queue.

    The last one has no end: a queue that is created anew under the name may have more shards.
    """

    def of_shard(shard: int) -> list[Range]:
        log = LogReader(root.engine.open(layout.messages_path(root.path, queue.key, shard))).log
        starts = _starts(log.files)
        ends = [*(start - 1 for start in starts[1:]), None if shard == queue.shards - 1 else _NO_OFFSET]
        return [(shard, start, end) for start, end in zip(starts, ends, strict=True)]

    found = pool.each(of_shard, range(queue.shards))
    return [each for ranges in found for each in ranges]


def _starts(files: Sequence[LogFile]) -> list[int]:
    starts, size = [0], 0
    for file in files:
        if size >= RANGE_BYTES:
            starts.append(file.first)
            size = 0
        size += file.size
    return starts


def _joined(ranges: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ranges in order, neighbours as one: each stands in the condition of every batch."""
    joined: list[dict[str, Any]] = []
    for each in ranges:
        if joined and joined[-1]["shard"] == each["shard"] and joined[-1]["last"] == each["first"] - 1:
            joined[-1]["last"] = each["last"]
        else:
            joined.append(dict(each))
    return joined


def _within(asked: Mapping[str, Any]) -> pc.Expression:
    place, offset = pc.field("shard"), pc.field("log_offset")
    shard = pa.scalar(asked["shard"], pa.int32())
    if asked["last"] is None:
        return ((place == shard) & (offset >= asked["first"])) | (place > shard)
    return (place == shard) & (offset >= asked["first"]) & (offset <= asked["last"])
