"""The views of SQL for sessions whose tasks have lakequeue.

Spark's tasks read the views through ``relations``. A view is one scan for any number of queues. Python functions
list the shards, cut the shards into pieces, and read the pieces. Spark applies conditions on ``queue``, ``region``
and ``shard`` first. Excluded shards are therefore not opened. Bodies and attributes are read last, and only for
messages that meet the other conditions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.operations import relations, spark_tasks
from lakequeue.operations.message_states import SNAPSHOT, Integers, attribute_texts
from lakequeue.operations.spark_tasks import Place
from lakequeue.runtime.root import Root, root_of_worker
from lakequeue.storage import layout, past_versions
from lakequeue.storage.bulk.lease_batches import LeaseColumns, LeasePlace, files_of, read_places
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.spark_access import quiet_about_pandas
from lakequeue.storage.messages.read import LogReader, ShardLog
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_log = logging.getLogger("lakequeue")
_OF_MESSAGES = ("messages", "history")
_SHARDS = pa.schema([*(relations.SCHEMAS["messages"].field(name) for name in ("queue", "region", "shard"))])
_PIECES = pa.schema([("first", pa.int64()), ("last", pa.int64())])
_RANGES = pa.schema([("pieces", pa.list_(pa.struct(list(_PIECES))))])
_LATE = ("body", "message_attributes")
"""Columns that are read last, and only for messages that meet the other conditions."""
_NO_LEASE = LeaseColumns("", "", "", False)
_MAX_TASKS, _TASKS_PER_CORE = 64, 3
_QUEUES = 512

_Columns = Iterable[Sequence[pa.Array]]


def found_by(relation: str) -> pa.Schema:
    """Returns the columns that tasks of Spark read first: all except queue, region, shard and ``_LATE``."""
    places = {"queue", "region"} if relation in ("queues", "groups") else set(_SHARDS.names)
    if relation in _OF_MESSAGES:
        places |= set(_LATE)
    found = [field for field in relations.SCHEMAS[relation] if field.name not in places]
    return pa.schema(found + [(SNAPSHOT, pa.string())] * (relation in _OF_MESSAGES))


@lru_cache(maxsize=256)
def _log_at(store: Store, path: str, version: int) -> ShardLog:
    """Returns a shard's log at a version. If the version was trimmed, returns the newest log."""
    try:
        table: Table = past_versions.opened(store, path, version)
    except FileNotFoundError:  # trimmed since
        table = Table(store, path)
    return LogReader(table).log


_queues_at = lru_cache(maxsize=8)(relations.queues_at)
"""Returns the queues at an instant. Caches 8 results, because reading 10,000 rows takes half a second."""


@attrs.define(slots=False)
class TaskReader:
    """Reads the views in a task of Spark. Has no open tables, because Spark pickles the reader."""

    root: str
    options: Mapping[str, str] = attrs.field(repr=False)
    region: str
    now: datetime | None
    """Instant at which states are computed; None for the time of the task's read."""
    as_of: datetime | None = None
    """Instant of the table versions to read; None for the newest versions."""

    @property
    def _opened(self) -> Root:
        # Nothing is built on what a view shows, so reading 300 queues need not sync 900 directories.
        return root_of_worker(self.root, tuple(self.options.items()), self.region, "process")

    def _queues(self) -> dict[tuple[str, str], QueueRow]:
        root = self._opened
        rows = root.rows() if self.as_of is None else _queues_at(root, self.as_of)
        return {(row.name, row.region): row for row in rows if row.deleted_at is None}

    def _tables(self, rows: Sequence[QueueRow]) -> Mapping[str, relations.Relation]:
        return relations.of_queues(self._opened, rows, self.now, self.as_of)

    def shards(self, asked: Iterable[Place]) -> Iterator[pa.Array]:
        rows = [
            {"queue": row.name, "region": row.region, "shard": shard}
            for row in self._queues().values()
            for shard in range(row.shards)
        ]
        for _ in asked:
            yield _list_of(pa.Table.from_pylist(rows, _SHARDS))

    def ranges(self, asked: Iterable[Place]) -> Iterator[pa.Array]:
        """Yields a list of ranges for each shard. A range is a list of pieces."""
        queues = self._queues()
        for queue, region, shard in asked:
            row = queues.get((queue, region))
            found: list[tuple[tuple[int, int], int]] = []
            if row is not None:
                messages = layout.messages_path(self.root, row.key, shard)
                with self._opened.storage_errors():
                    found = spark_tasks.pieces_of(relations.opened(self._opened, messages, self.as_of))
            ranges = spark_tasks.packed(found, spark_tasks.RANGE_BYTES)
            pieces = [[dict(zip(_PIECES.names, piece, strict=True)) for piece in range_] for range_ in ranges]
            yield _list_of(pa.table([pa.array(pieces, _RANGES.types[0])], schema=_RANGES))

    def read(self, relation: str, asked: Iterable[Place]) -> Iterator[pa.Array]:
        """Yields an array for each place in ``asked``, with the rows that a relation has there."""
        if relation == "queues":
            yield from self._depths(asked)
            return
        shown, queues = found_by(relation), self._queues()
        for place, pieces in spark_tasks.joined(asked):
            row = queues.get(place[:2])
            batches: Iterator[pa.RecordBatch] = iter(())
            if row is not None:
                condition = None if relation == "groups" else spark_tasks.within(place, pieces)
                source = self._tables([row])[relation]
                batches = source.to_batches(columns=shown.names, filter=condition)
            with self._opened.storage_errors():
                yield from _cut(batches, shown, [last for _, last in pieces])

    def _depths(self, asked: Iterable[Place]) -> Iterator[pa.Array]:
        """Yields the rows of the relation ``queues``. For many queues, uses counts of the compactor."""
        shown, left = found_by("queues"), iter(asked)
        while places := list(islice(left, _QUEUES)):
            living = self._queues()
            rows = [living.get((place[0], place[1])) for place in places]
            source = self._tables([row for row in rows if row])["queues"]
            with self._opened.storage_errors():
                found, taken = source.to_table(columns=shown.names), count()
            for row in rows:
                yield _list_of(found.slice(next(taken), 1) if row else shown.empty_table())

    def late(self, name: str, asked: _Columns) -> Iterator[pa.Array]:
        """Yields the values of column ``name`` for the messages in ``asked``. A deleted message has NULL or ""."""
        keys, store = {row.key for row in self._queues().values()}, self._opened.engine.store
        type_ = relations.SCHEMAS["messages"].field(name).type
        for snapshot, offsets in _ascending(asked):
            key, shard, version = snapshot.split("/")
            places: list[LeasePlace] = []
            if key in keys:
                path = layout.messages_path(self.root, key, int(shard))
                with self._opened.storage_errors():
                    places = list(_places(_log_at(store, path, int(version)), path, int(shard), offsets))
            with self._opened.storage_errors():
                for batch in read_places(store, files_of(places), _NO_LEASE, ["offset", name]):
                    end = int(np.searchsorted(offsets, batch["offset"][-1].as_py(), side="right"))
                    yield _at(offsets[:end], batch, name, type_)
                    offsets = offsets[end:]
            if len(offsets):
                yield _filled(pa.nulls(len(offsets), type_))

    def stats(self, asked: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields all rows of the relation ``stats``, once for each input row. The view passes one input row."""
        for batch in asked:
            for _ in range(len(batch)):
                yield from relations.relations(self._opened, self.now, None)["stats"].to_batches()


def _ascending(asked: _Columns) -> Iterator[tuple[str, Integers]]:
    """Divides ``asked`` into parts. Yields snapshot and offsets of each part, in which offsets ascend."""
    for of, last in asked:
        offsets = last.to_numpy()
        new = (np.diff(offsets) <= 0) | pc.not_equal(of[1:], of[:-1]).to_numpy(zero_copy_only=False)
        for start, end in pairwise([0, *(np.flatnonzero(new) + 1).tolist(), len(offsets)]):
            if start < end:
                yield of[start].as_py(), offsets[start:end]


def _places(log: ShardLog, path: str, shard: int, offsets: Integers) -> Iterator[LeasePlace]:
    ends = np.flatnonzero(np.diff(offsets) != 1)
    firsts, lasts = offsets[[0, *(ends + 1)]].tolist(), offsets[[*ends, -1]].tolist()
    for first, last in zip(firsts, lasts, strict=True):
        for file in log.overlapping(first, last):
            begin, end = max(first, file.first) - file.base, min(last, file.last) - file.base
            place = (f"{path}/{file.file.name}", False, shard, file.base, file.opened_at, begin, end, 0, file.size)
            yield LeasePlace(*place)


def _at(wanted: Integers, rows: pa.RecordBatch, name: str, type_: pa.DataType) -> pa.Array:
    """Returns a column for the offsets ``wanted``. For offsets that ``rows`` lacks, the value is NULL or ""."""
    values = (rows[name] if name == "body" else attribute_texts(rows[name])).cast(type_)
    found = rows["offset"].to_numpy()
    missing = ~np.isin(wanted, found)
    place = pa.array(np.searchsorted(found, wanted), mask=missing)
    return _filled(values.take(place)) if missing.any() else values


def _filled(values: pa.Array) -> pa.Array:
    return pc.fill_null(values, "") if pa.types.is_string(values.type) else values


def _cut(batches: Iterator[pa.RecordBatch], schema: pa.Schema, lasts: Sequence[int | None]) -> Iterator[pa.Array]:
    """Divides rows into pieces, which end at the offsets ``lasts``. Yields the rows of each piece as one value."""
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
    [whole] = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return pa.ListArray.from_arrays(pa.array([0, len(whole)], pa.int32()), whole.to_struct_array())


def create(root: Root, spark: SparkSession, now: datetime | None, as_of: datetime | None) -> bool:
    """Creates the temporary views (DLT-5). Returns False if the session's tasks cannot read the root."""
    # reports a wrong instant or root
    known = relations.shown_queues(root, now, None) if as_of is None else relations.queues_at(root, as_of, now)
    old = tuple(map(int, spark.version.split(".")[:2])) < (4, 1)
    reason = "it has no functions over Arrow" if old else spark_tasks.why_tasks_cannot_read(root, spark)
    if reason:
        _log.info("the views read Delta's tables, since tasks of Spark %s cannot: %s", spark.version, reason)
        return False
    reader = TaskReader(root.path, root.engine.store.options, root.region, now, as_of)
    many = min(_tasks(spark), int(spark.conf.get("spark.sql.shuffle.partitions") or _MAX_TASKS))
    few = min(many, max(1, sum(row.shards for row in known)))  # a task for each shard, of one queue a single one

    from pyspark.sql.functions import inline
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import ArrayType

    def scanned(
        frame: DataFrame, read: Callable[[Iterable[Place]], Iterator[pa.Array]], schema: pa.Schema
    ) -> Column:
        # Spark counts values of all batches together: each value is a batch of its own, so memory is bounded
        def values(batches: _Columns) -> Iterator[pa.Array]:
            return read(row for each in batches for row in zip(*(one.to_pylist() for one in each), strict=True))

        return inline(_function(values, ArrayType(from_arrow_schema(schema)))(*frame.columns))

    start = spark.range(0, 1, 1, 1)
    shards = start.select(scanned(start, reader.shards, _SHARDS)).repartition(few)
    ranges = shards.select("*", scanned(shards, reader.ranges, _RANGES)).repartition(many)
    pieces = ranges.selectExpr(*_SHARDS.names, "inline(pieces)")
    for relation, schema in relations.SCHEMAS.items():
        if relation == "stats":
            with quiet_about_pandas():
                found = start.mapInArrow(reader.stats, from_arrow_schema(schema))
        else:
            places = pieces if relation in _OF_MESSAGES else shards
            if relation in ("queues", "groups"):
                places = places.where("shard = 0")
            of_place = [name for name in _SHARDS.names if name not in found_by(relation).names]
            found = places.select(*of_place, scanned(places, partial(reader.read, relation), found_by(relation)))
            for name in _LATE if relation in _OF_MESSAGES else ():
                type_ = from_arrow_schema(pa.schema([schema.field(name)]))[0].dataType
                read = _function(partial(reader.late, name), type_)
                found = found.withColumn(name, read(SNAPSHOT, "log_offset"))
            found = found.select(*schema.names)
        found.createOrReplaceTempView(relation)
    return True


def _tasks(spark: SparkSession) -> int:
    """Number of tasks of a scan. Few are faster: 300 queues on 2 cores took 5.5 s with 6 tasks, 6.6 s with 64."""
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return _MAX_TASKS  # executors come with the tasks
    # Connect has no other way to ask for the number of cores
    numbers = spark.range(0, 1 << 12).selectExpr("spark_partition_id() AS number")
    [[last]] = numbers.groupBy().max("number").collect()
    return min(_MAX_TASKS, _TASKS_PER_CORE * (int(last) + 1))


def _function(read: Callable[[_Columns], Iterator[pa.Array]], type_: DataType) -> Callable[..., Column]:
    from pyspark.sql.functions import arrow_udf

    def values(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return read(batch if isinstance(batch, tuple) else (batch,) for batch in batches)

    with quiet_about_pandas():
        function = arrow_udf(values, type_)
    return function  # type: ignore[no-any-return]
