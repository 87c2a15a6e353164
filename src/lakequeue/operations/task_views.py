"""The views of SQL as Spark's tasks read them, through ``relations``, wherever the tasks have lakequeue.

Delta plans each table of each shard by a job of Spark before a query begins: messages by state over 16 shards took
6 to 8 s by ``sql_views`` and take 0.4 s here. Each query reads the newest state. A shard is read in ranges of
offsets that stay the same, so each message is shown once, whichever snapshots the tasks of a query open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from lakequeue.model.clock import SystemClock
from lakequeue.operations import relations
from lakequeue.operations.judge import names_are
from lakequeue.operations.ranges import ALL, Range, ranges_of, within
from lakequeue.runtime.root import Root
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.spark_session import quiet_about_pandas
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("lakequeue")
_OF_MESSAGES = ("messages", "history")
"""The relations with a row for each message."""


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
            ranges = [Range(**row) for row in batch.to_pylist()]
            if ranges:
                root = Root(Store(self.root, self.options), SystemClock(), self.region, 0, None, False)
                shown = relations.relations(root, self.now, None)[self.relation]
                condition = None if self.queue is None else names_are(self.queue, self.region)
                if condition is not None and self.relation in _OF_MESSAGES:
                    condition &= within(ranges)
                yield from shown.to_batches(filter=condition)


def create(root: Root, spark: SparkSession, now: datetime | None) -> bool:
    """Creates the temporary views (DLT-5); False if the session's tasks cannot read the root."""
    from pyspark.sql.functions import lit

    queues = relations.shown_queues(root, now, None)
    reason = _why_tasks_cannot_read(spark, root.engine.store)
    if reason:
        _log.info("the views read Delta's tables, since Spark's tasks cannot: %s", reason)
        return False

    def read(relation: str, queue: QueueRow | None, ranges: Sequence[Range]) -> DataFrame:
        name, region = (None, root.region) if queue is None else (queue.name, queue.region)
        reader = RelationReader(relation, root.path, root.engine.store.options, name, region, now)
        values = ", ".join(str(tuple(each)).replace("None", "NULL") for each in ranges)
        asked = spark.sql(
            "SELECT CAST(shard AS INT) AS shard, CAST(first AS BIGINT) AS first, CAST(last AS BIGINT) AS last "
            f"FROM VALUES {values} AS ranges(shard, first, last)"
        )
        rows = _mapped(asked, reader, relations.SCHEMAS[relation])
        # as literals, so that a filter on them leaves the other queues unread
        return rows if queue is None else rows.withColumns({"queue": lit(name), "region": lit(region)})

    with root.storage_errors():
        ranges = [[range_ for range_, _ in ranges_of(root, queue)] for queue in queues]
    for relation in relations.SCHEMAS:
        if relation == "stats":
            parts = [read(relation, None, [ALL])]
        else:
            wanted = ranges if relation in _OF_MESSAGES else [[ALL]] * len(queues)
            parts = [read(relation, *each) for each in zip(queues, wanted, strict=True)]
        united = _united(parts or [read(relation, None, [ALL]).limit(0)])
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
            [[reason]] = spark.range(1).mapInArrow(tried, "reason string").collect()
    except Exception as error:  # another Python, or none; a session that is at fault says so in what comes next
        return first_line(error)
    return None if reason is None else str(reason)


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
