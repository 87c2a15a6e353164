"""The views of SQL as Spark's tasks read them, through ``relations``, wherever the tasks have lakequeue.

A view is one scan, whatever the number of queues: Python functions list the shards, cut them into pieces of their
logs and read these, each followed by ``inline``. Spark moves conditions on ``queue``, ``region`` and ``shard``,
and semi-joins by them, below the functions that do not make these columns: what they leave out is not opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import SystemClock
from lakequeue.operations import relations
from lakequeue.operations.ranges import pieces_of
from lakequeue.runtime.root import Root
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.spark_session import quiet_about_pandas
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_log = logging.getLogger("lakequeue")
_OF_MESSAGES = ("messages", "history")
"""The relations with a row for each message."""
_SHARDS = pa.schema([*(relations.SCHEMAS["messages"].field(name) for name in ("queue", "region", "shard"))])
_PIECES = pa.schema([("first", pa.int64()), ("last", pa.int64())])
_RANGES = pa.schema([("pieces", pa.list_(pa.struct(list(_PIECES))))])
_MAX_TASKS = 64

Place = tuple[Any, ...]
"""Queue, region and shard, and of a message's piece its first and last offset."""
_Read = Callable[[Iterable[Place]], Iterator[pa.Array]]


def found_by(relation: str) -> pa.Schema:
    """The columns that the functions read; the others are those of the place."""
    places = {"queue", "region"} if relation in ("queues", "groups") else set(_SHARDS.names)
    return pa.schema([field for field in relations.SCHEMAS[relation] if field.name not in places])


@attrs.define(slots=False)
class TaskReader:
    """Reads in a task; pickled, so it holds values only."""

    root: str
    options: Mapping[str, str] = attrs.field(repr=False)
    region: str
    now: datetime | None
    """The instant of the states; None is the time at which a task reads, so that no message is from the future."""

    def __getstate__(self) -> dict[str, Any]:
        return attrs.asdict(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @cached_property
    def _opened(self) -> Root:
        return Root(Store(self.root, self.options), SystemClock(), self.region, 0, None, False)

    @cached_property
    def _queues(self) -> dict[tuple[str, str], QueueRow]:
        return {(row.name, row.region): row for row in self._opened.rows() if row.deleted_at is None}

    def shards(self, asked: Iterable[Place]) -> Iterator[pa.Array]:
        """All shards of all queues."""
        rows = [
            {"queue": row.name, "region": row.region, "shard": shard}
            for row in self._queues.values()
            for shard in range(row.shards)
        ]
        for _ in asked:
            yield _list_of(pa.Table.from_pylist(rows, _SHARDS))

    def ranges(self, asked: Iterable[Place]) -> Iterator[pa.Array]:
        """The ranges of shards, each as its pieces."""
        for queue, region, shard in asked:
            row = self._queues.get((queue, region))
            found = [] if row is None else pieces_of(self._opened, row, shard)
            pieces = [[dict(zip(_PIECES.names, piece, strict=True)) for piece in range_] for range_ in found]
            yield _list_of(pa.table([pa.array(pieces, _RANGES.types[0])], schema=_RANGES))

    def read(self, relation: str, asked: Iterable[Place]) -> Iterator[pa.Array]:
        """The rows of a relation at places."""
        shown = found_by(relation)
        for (queue, region, shard), pieces in _joined(asked):
            row = self._queues.get((queue, region))
            batches: Iterator[pa.RecordBatch] = iter(())
            if row is not None:
                condition = None if relation in ("queues", "groups") else _in(shard, pieces)
                source = relations.of_queue(self._opened, row, self.now)[relation]
                batches = source.to_batches(columns=shown.names, filter=condition)
            with self._opened.storage_errors():
                yield from _cut(batches, shown, [last for _, last in pieces])

    def stats(self, asked: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The relation ``stats``, for each row asked for."""
        for batch in asked:
            for _ in range(len(batch)):
                yield from relations.relations(self._opened, self.now, None)["stats"].to_batches()


def _in(shard: int, pieces: Sequence[tuple[Any, Any]]) -> pc.Expression:
    found = pc.field("shard") == pa.scalar(shard, pa.int32())
    (first, _), (_, last) = pieces[0], pieces[-1]
    if first is None:
        return found
    return found & (pc.field("log_offset") >= first) & (pc.field("log_offset") <= last)


def _joined(asked: Iterable[Place]) -> Iterator[tuple[Place, list[tuple[Any, Any]]]]:
    """Places with the pieces that follow one another in their shards."""
    place: Place | None = None
    pieces: list[tuple[Any, Any]] = []
    for queue, region, shard, *piece in asked:
        first, last = piece or (None, None)
        if place is not None and (place != (queue, region, shard) or first is None or first != pieces[-1][1] + 1):
            yield place, pieces
            pieces = []
        place = queue, region, shard
        pieces.append((first, last))
    if place is not None:
        yield place, pieces


def _cut(batches: Iterator[pa.RecordBatch], schema: pa.Schema, lasts: Sequence[int | None]) -> Iterator[pa.Array]:
    """Rows, in order of their offsets, as one value for each piece, given the pieces' last offsets."""
    left: pa.RecordBatch | None = None
    for last in lasts:
        rows: list[pa.RecordBatch] = []
        while left is not None or (left := next(batches, None)) is not None:
            within = len(left) if last is None else pc.sum(pc.less_equal(left["log_offset"], last)).as_py() or 0
            rows.append(left.slice(0, within))
            if within < len(left):
                left = left.slice(within)
                break
            left = None
        yield _list_of(pa.Table.from_batches(rows, schema))


def _list_of(rows: pa.Table) -> pa.Array:
    """An array of one value, the list of the rows."""
    [whole] = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return pa.ListArray.from_arrays(pa.array([0, len(whole)], pa.int32()), whole.to_struct_array())


def create(root: Root, spark: SparkSession, now: datetime | None) -> bool:
    """Creates the temporary views (DLT-5); False if the session's tasks cannot read the root."""
    relations.shown_queues(root, now, None)  # reports a wrong instant or root
    reason = _why_tasks_cannot_read(spark, root.engine.store)
    if reason:
        _log.info("the views read Delta's tables, since Spark's tasks cannot: %s", reason)
        return False
    reader = TaskReader(root.path, root.engine.store.options, root.region, now)
    tasks = min(_MAX_TASKS, int(spark.conf.get("spark.sql.shuffle.partitions") or _MAX_TASKS))

    def scanned(frame: DataFrame, read: _Read, schema: pa.Schema) -> Column:
        from pyspark.sql.functions import inline

        return inline(_function(read, schema)(*frame.columns))

    start = spark.range(0, 1, 1, 1)
    shards = start.select(scanned(start, reader.shards, _SHARDS)).repartition(tasks)
    ranges = shards.select("*", scanned(shards, reader.ranges, _RANGES)).repartition(tasks)
    pieces = ranges.selectExpr(*_SHARDS.names, "inline(pieces)")
    for relation, schema in relations.SCHEMAS.items():
        if relation == "stats":
            found = _mapped(start, reader.stats, schema)
        else:
            places = pieces if relation in _OF_MESSAGES else shards
            if relation in ("queues", "groups"):
                places = places.where("shard = 0")

            def read(asked: Iterable[Place], relation: str = relation) -> Iterator[pa.Array]:
                return reader.read(relation, asked)

            of_place = [name for name in _SHARDS.names if name not in found_by(relation).names]
            found = places.select(*of_place, scanned(places, read, found_by(relation))).select(*schema.names)
        found.createOrReplaceTempView(relation)
    return True


def _function(read: _Read, schema: pa.Schema) -> Callable[..., Column]:
    """A function of Spark whose values are lists of rows."""
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import ArrayType

    def values(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        # Spark counts values of all batches together: each value is a batch of its own, so memory is bounded
        columns = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
        return read(row for each in columns for row in zip(*(one.to_pylist() for one in each), strict=True))

    with quiet_about_pandas():
        function = arrow_udf(values, ArrayType(from_arrow_schema(schema)))
    return function  # type: ignore[no-any-return]


def _why_tasks_cannot_read(spark: SparkSession, store: Store) -> str | None:
    """Why the session's tasks cannot read a root, or None."""
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 1):
        return f"Spark {spark.version} has no functions over Arrow"
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


def _mapped(asked: DataFrame, read: Callable[..., Any], schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    with quiet_about_pandas():
        return asked.mapInArrow(read, from_arrow_schema(schema))
