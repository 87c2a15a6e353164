"""Reads the messages of a lease from their files. Returns Arrow batches or a Spark DataFrame."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.messages import Message
from lakequeue.model.names import sequence_number
from lakequeue.model.receipt_handles import BETWEEN, MAC_LENGTH, around
from lakequeue.model.thread_pools import ThreadPool
from lakequeue.storage import layout
from lakequeue.storage.engines.spark_access import READ
from lakequeue.storage.messages.append import attribute_cells
from lakequeue.storage.messages.read import check_order, is_foreign
from lakequeue.storage.parquet_files import row_groups, spans_of
from lakequeue.storage.remote_files import read_ahead
from lakequeue.storage.roots import spark_uri
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SEQUENCE_NUMBER = """
    CAST(10000000000000000000BD + ((`offset` * 1024 + shard) * 256 + `offset` * 37 % 256) AS STRING)
"""
"""SQL expression for ``sequence_numbers.sequence_number``, with columns ``shard`` and ``offset`` (SEQ-1)."""
MAX_PREDICATES = 64
"""Maximum number of ranges in a Spark filter, because more ranges would make Spark's planner slow."""
_BUCKET = 8
"""Spark joins messages with ranges of positions by a key: the position divided by 2 ** ``_BUCKET``."""
_COLUMNS = (
    *("position", "message_id", "body", "sent_at", "message_attributes", "group_id", "delay_seconds"),
    *("dedup_id", "first_sent_at"),
)


class LeasePlace(NamedTuple):
    """Consecutive messages of a lease in a file: from ``first_position`` to ``last_position``, both included."""

    path: str
    """URI or path of the file, not URL-encoded."""
    whole: bool
    """True if the lease has all messages of the file."""
    shard: int
    base_offset: int
    opened_at: int
    first_position: int
    last_position: int
    receive_count: int = 1
    size: int = 0
    """Size of the file in bytes, or 0 if unknown."""


@attrs.frozen
class LeaseColumns:
    """Values for receipt handles. ``lease_key`` is valid for one lease only, because Spark's plans may show it."""

    key: str
    lease_id: str
    lease_key: str = attrs.field(repr=False)
    fifo: bool = False


def lease_frame(spark: SparkSession, places: Sequence[LeasePlace], lease: LeaseColumns) -> DataFrame:
    """Returns the messages of a lease as a DataFrame. Spark reads the files directly, without the Delta log."""
    from pyspark.sql import functions as F

    whole, parts = [place for place in places if place.whole], [place for place in places if not place.whole]
    found = [_whole_files(spark, whole)] if whole else []
    if parts or not found:
        found.append(_parts_of_files(spark, parts))
    rows = found[0] if len(found) == 1 else found[0].unionByName(found[1])
    rows = rows.where(F.col("body") != "")  # an empty one marks a message that was erased after the claim
    rows = rows.withColumn("offset", F.col("base_offset") + F.col("position"))
    before, after = around(lease.key, lease.lease_id)
    plain = F.concat(
        F.lit(before), F.col("shard").cast("string"), F.lit(BETWEEN), F.col("offset").cast("string"), F.lit(after)
    )
    mac = F.substring(F.sha2(F.concat(F.lit(lease.lease_key), plain), 256), 1, 32)
    return rows.select(
        "message_id",
        "body",
        F.concat(plain, mac).alias("receipt_handle"),
        F.coalesce("first_sent_at", "sent_at", "opened_at").alias("sent_at"),
        "message_attributes",
        "group_id",
        "delay_seconds",
        "receive_count",
        "shard",
        "offset",
        "dedup_id",
        (F.expr(SEQUENCE_NUMBER) if lease.fifo else F.lit(None).cast("string")).alias("sequence_number"),
    )


def _whole_files(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    from pyspark.sql import functions as F

    files = _table(spark, places).select("s_file", "shard", "base_offset", "opened_at", "receive_count")
    rows = _read(spark, places)
    return rows.join(F.broadcast(files), rows["file"] == files["s_file"]).drop("file", "s_file")


def _parts_of_files(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    from pyspark.sql import functions as F

    ordered = sorted(places, key=lambda place: (place.path, place.first_position))
    rows = _read(spark, ordered)
    if len(ordered) <= MAX_PREDICATES:  # lets the reader skip row groups
        rows = rows.where(_any([F.col("position").between(p.first_position, p.last_position) for p in ordered]))
    block = F.explode(F.sequence(F.shiftright("s_first", _BUCKET), F.shiftright("s_last", _BUCKET)))
    ranges = F.broadcast(_table(spark, ordered).withColumn("s_block", block))
    here = (
        (F.col("file") == F.col("s_file"))
        & (F.shiftright("position", _BUCKET) == F.col("s_block"))
        & F.col("position").between(F.col("s_first"), F.col("s_last"))
    )
    return rows.join(ranges, here).drop("file", "s_file", "s_first", "s_last", "s_block")


def _read(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(pa.schema([layout.MESSAGES.field(name) for name in _COLUMNS]))
    if not places:
        return spark.createDataFrame([], schema).withColumn("file", F.lit(""))
    reader = spark.read.schema(schema).options(**READ)
    rows = reader.parquet(*(spark_uri(path) for path in sorted({place.path for place in places})))
    return rows.withColumn("file", F.col("_metadata.file_name"))


def _table(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    """Returns a DataFrame with a row for each LeasePlace. The column ``s_file`` has file names without folder."""
    from pyspark.sql import functions as F

    schema = (
        "s_file string, shard int, base_offset bigint, opened_micros bigint, s_first bigint, s_last bigint, "
        "receive_count int"
    )
    values = [
        (p.path.rpartition("/")[2], p.shard, p.base_offset, p.opened_at, p.first_position, p.last_position,
         p.receive_count)
        for p in places
    ]  # fmt: skip
    rows = spark.createDataFrame(values, schema)
    return rows.withColumn("opened_at", F.timestamp_micros("opened_micros")).drop("opened_micros")


def _any(conditions: Sequence[Column]) -> Column:
    from pyspark.sql import functions as F

    if len(conditions) < 2:
        return conditions[0] if conditions else F.lit(False)
    half = len(conditions) // 2  # a chain of 64 is too deep for the planner
    return _any(conditions[:half]) | _any(conditions[half:])


SCHEMA = pa.schema(
    [
        layout.MESSAGES.field("message_id"),
        layout.MESSAGES.field("body"),
        ("receipt_handle", pa.string()),
        ("sent_at", layout.INSTANT),
        layout.MESSAGES.field("message_attributes"),
        layout.MESSAGES.field("group_id"),
        layout.MESSAGES.field("delay_seconds"),
        ("receive_count", pa.int32()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        layout.MESSAGES.field("dedup_id"),
        ("sequence_number", pa.string()),
    ]
)
"""Columns of ``Lease.messages``, with their Arrow types."""

MESSAGE_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in ("delay_seconds", "shard", "offset")])
"""The columns of ``SCHEMA`` that a received message has."""

_STORED = ("message_id", "body", "message_attributes", "group_id", "delay_seconds", "dedup_id")
_SENT_AT = ("first_sent_at", "sent_at")


def message_table(messages: Sequence[Message]) -> pa.Table:
    """Converts received messages to a table with the schema ``MESSAGE_SCHEMA``, in the same order."""
    names = MESSAGE_SCHEMA.names
    columns: dict[str, Any] = {name: [getattr(message, name) for message in messages] for name in names}
    columns["message_attributes"] = list(map(attribute_cells, columns["message_attributes"]))
    return pa.Table.from_pydict(columns, schema=MESSAGE_SCHEMA)


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Returns the schema of these columns of a lease, or of all columns if None. Raises InvalidParameterValue."""
    if columns is None:
        return SCHEMA
    names = [columns] if isinstance(columns, str) else columns
    unknown = sorted(set(names) - set(SCHEMA.names))
    if unknown:
        raise InvalidParameterValue(
            f"columns {', '.join(unknown)} are not known; a lease has {', '.join(SCHEMA.names)}."
        )
    return pa.schema([SCHEMA.field(name) for name in names])


def files_of(places: Iterable[LeasePlace]) -> list[list[LeasePlace]]:
    """Groups places by file. Sorts the places of each file by position."""
    found: dict[str, list[LeasePlace]] = {}
    for place in places:
        found.setdefault(place.path, []).append(place)
    return [sorted(of_file, key=lambda place: place.first_position) for of_file in found.values()]


def read_places(
    store: Store, files: Sequence[Sequence[LeasePlace]], lease: LeaseColumns, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the messages at the places of each file, by row group. Omits erased messages if ``body`` is read.

    Memory holds two row groups, and on an object store twice ``AHEAD`` bytes of files that were read ahead.
    """
    schema = schema_of(columns)
    wanted = [name for name in _STORED if name in schema.names]
    if "sent_at" in schema.names:
        wanted += _SENT_AT

    def read() -> Iterator[_Rows]:
        folder = store.folder(files[0][0].path.rpartition("/")[0])
        for opened in folder.in_order(lambda places: _OpenFile(store, places, ["position", *wanted]), files):
            for rows, begin, parts in opened.rows():
                check_order(rows["position"], begin, opened.folder.uri, opened.name)
                if len(parts) == 1:
                    rows = rows.slice(parts[0].start, parts[0].rows)
                else:
                    rows = rows.take(np.concatenate([np.arange(part.start, part.stop) for part in parts]))
                counts = np.repeat([part.place.receive_count for part in parts], [part.rows for part in parts])
                rows = rows.append_column("receive_count", pa.array(counts))
                if "body" in wanted:
                    # an empty one marks an erased message, NULL one that others deleted
                    full = pc.not_equal(rows["body"].cast(pa.string()), "")
                    rows = rows if pc.all(full, skip_nulls=False).as_py() else rows.filter(full)
                yield _Rows(rows.combine_chunks(), opened.places[0], lease)

    for found in _ahead(read()) if files else ():
        yield pa.record_batch([found.column(field) for field in schema], schema=schema)


@attrs.frozen
class LeaseTask:
    """A part of a lease's messages, which a task can read in any process."""

    store: Store
    places: Sequence[Sequence[LeasePlace]]
    """For each file, the places of its messages."""
    lease: LeaseColumns
    columns = SCHEMA.names

    def read(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yields the messages. Reads only the given columns, and does not open the root."""
        return read_places(self.store, self.places, self.lease, columns)


def _ahead(items: Iterator[_Rows]) -> Iterator[_Rows]:
    with ThreadPool(1) as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


class _PlacedRows(NamedTuple):
    """The rows of a row group from ``start`` up to, but without, ``stop``. They hold messages of ``place``."""

    start: int
    stop: int
    place: LeasePlace

    @property
    def rows(self) -> int:
        return self.stop - self.start


class _OpenFile:
    """A file of messages, opened, with the places that are read from it."""

    def __init__(self, store: Store, places: Sequence[LeasePlace], columns: Sequence[str]) -> None:
        directory, _, self.name = places[0].path.rpartition("/")
        self.folder, self.places, self._columns = store.folder(directory), places, columns
        size = places[0].size or self.folder.entry(self.name).size
        self._source, self._opened = self.folder.source(self.name, size), ExitStack()
        parquet = self.folder.parquet(self.name, size, layout.FILES["messages"], self._source)
        self._file = self._opened.enter_context(parquet)

    def rows(self) -> Iterator[tuple[pa.Table, int, list[_PlacedRows]]]:
        """Yields the rows of each row group, the position of the first row, and the places in these rows."""
        with self._opened:
            if is_foreign(self.places[0].path.rpartition("/messages/")[2]):
                rows = self._file.read(self._columns, use_threads=False).sort_by("position")
                begin = rows["position"][0].as_py()
                parts = [
                    _PlacedRows(each.first_position - begin, each.last_position + 1 - begin, each)
                    for each in self.places
                ]
                yield rows, begin, parts
                return
            groups = list(_row_groups(self._file, self.places))
            read_ahead(self._source, [spans_of(self._file, group, self._columns) for group, *_ in groups])
            for group, begin, parts in groups:
                yield self._file.read_row_group(group, self._columns, use_threads=False), begin, parts


def _row_groups(
    file: pq.ParquetFile, places: Sequence[LeasePlace]
) -> Iterator[tuple[int, int, list[_PlacedRows]]]:
    """Yields each row group that the lease needs: its number, its first row's position, the lease's rows in it."""
    positions = file.read_row_group(0, columns=["position"], use_threads=False)["position"]
    base: int = positions[0].as_py()
    first = 0  # of the places that do not end before the row group
    for group, *bounds in row_groups(file):
        begin, end = (base + row for row in bounds)
        while first < len(places) and places[first].last_position < begin:
            first += 1
        parts = []
        for place in places[first:]:
            if place.first_position >= end:
                break
            start, stop = max(place.first_position, begin), min(place.last_position + 1, end)
            parts.append(_PlacedRows(start - begin, stop - begin, place))
        if parts:
            yield group, begin, parts


class _Rows:
    """Rows of one row group. Also computes the columns that only a lease has, such as receipt handles."""

    def __init__(self, rows: pa.Table, place: LeasePlace, lease: LeaseColumns) -> None:
        self._rows = rows
        self._place = place
        self._lease = lease

    def column(self, field: pa.Field) -> pa.Array:
        if field.name in (*_STORED, "receive_count"):
            return self._stored(field.name, field.type)
        if field.name == "shard":
            return pa.repeat(pa.scalar(self._place.shard, field.type), len(self._rows))
        if field.name == "sent_at":
            opened_at = pa.scalar(self._place.opened_at, pa.int64()).cast(field.type)
            return pc.coalesce(*(self._stored(name, field.type) for name in _SENT_AT), opened_at)
        offsets = self._stored("position", pa.int64()).to_numpy() + self._place.base_offset
        if field.name == "offset":
            return pa.array(offsets, field.type)
        if field.name == "receipt_handle":
            return _receipt_handles(offsets, self._place.shard, self._lease)
        if not self._lease.fifo:
            return pa.nulls(len(self._rows), field.type)
        return pa.array([sequence_number(self._place.shard, offset) for offset in offsets.tolist()], field.type)

    def _stored(self, name: str, type_: pa.DataType) -> pa.Array:
        column = self._rows[name]
        return (column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()).cast(type_)


def _receipt_handles(offsets: npt.NDArray[np.int64], shard: int, lease: LeaseColumns) -> pa.Array:
    before, after = around(lease.key, lease.lease_id)
    before = f"{before}{shard}{BETWEEN}"
    begun, ending = hashlib.sha256((lease.lease_key + before).encode()), after.encode()
    digests = []
    for offset in offsets.tolist():
        digest = begun.copy()
        digest.update(b"%d%b" % (offset, ending))
        digests.append(digest.digest()[: MAC_LENGTH // 2])
    macs = pa.py_buffer(binascii.hexlify(b"".join(digests)))
    ends = pa.py_buffer(np.arange(0, len(macs) + 1, MAC_LENGTH, dtype=np.int32))
    signed = pa.StringArray.from_buffers(len(offsets), ends, macs)
    return pc.binary_join_element_wise(before, pa.array(offsets).cast(pa.string()), after, signed, "")
