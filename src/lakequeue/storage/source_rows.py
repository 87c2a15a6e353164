"""Reads a version of a user's Delta table in pieces. The rows have the columns and types of the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakequeue.errors import DamagedTable, QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.parquet_files import ANY
from lakequeue.storage.source_table import BEFORE, SourceChange, SourceFile, SourceTable
from lakequeue.storage.store_failures import first_line

CHANGE_TYPE = "_change_type"
_FEED_COLUMNS = [
    (CHANGE_TYPE, pa.string()),
    ("_commit_version", pa.int64()),
    ("_commit_timestamp", layout.INSTANT),
]
PIECE_ROWS, PIECE_BYTES = 100_000, 64 * 2**20
"""Maximum number of rows in a piece, and approximate number of bytes in a piece before compression."""
MOST_PIECES = 2**20 - 1
_BATCH = 8_192
_PHYSICAL, _ID, _MODE = "delta.columnMapping.physicalName", "delta.columnMapping.id", "delta.columnMapping.mode"


class VersionRows:
    """The rows that a version of a table adds. Every process divides the rows into the same pieces.

    The attribute ``schema`` includes the columns of a change feed, and ``pieces`` is the number of pieces.
    """

    def __init__(self, table: SourceTable, change: SourceChange, feed: bool) -> None:
        self._table, self._change, self._feed = table, change, feed
        self._columns = _Columns(change)
        self.schema = pa.schema([*self._columns.schema, *(_FEED_COLUMNS if feed else [])])
        self._rows, size = [], 0
        for file in change.files:
            with self._opened(file) as found:
                self._rows.append(file.count(found.metadata.num_rows))
                groups = range(found.metadata.num_row_groups)
                size += sum(found.metadata.row_group(group).total_byte_size for group in groups)
        rows = sum(self._rows)
        least = -(-rows // MOST_PIECES)
        self._piece = max(1, least, min(PIECE_ROWS, PIECE_BYTES * rows // max(1, size)))
        self.pieces = -(-rows // self._piece)
        self._next = 0
        self._reading: Iterator[pa.RecordBatch] = iter(())

    def piece(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the piece ``number``, counted from 0. Each row is in exactly one piece."""
        first = number * self._piece
        if first != self._next or not first:
            self._reading = self._read(first)
        self._next = first
        left = self._piece
        for batch in self._reading:
            taken = batch.slice(0, left)
            self._next += len(taken)
            left -= len(taken)
            if not left:
                rest, reading = batch.slice(len(taken)), self._reading
                self._reading = (each for part in ((rest,), reading) for each in part if len(each))
            yield self._sent(taken)
            if not left:
                return

    def _sent(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._feed:
            return batch
        return batch.filter(pc.not_equal(batch[CHANGE_TYPE], BEFORE))

    def _read(self, first: int) -> Iterator[pa.RecordBatch]:
        for file, end, rows in zip(self._change.files, accumulate(self._rows), self._rows, strict=True):
            if end > first:
                yield from self._read_file(file, max(0, first - (end - rows)))

    def _read_file(self, file: SourceFile, skip: int) -> Iterator[pa.RecordBatch]:
        with self._opened(file) as found:
            places = self._columns.places(found.schema_arrow)
            first = 0
            for batch in found.iter_batches(_BATCH, use_threads=False):
                chosen, first = file.chosen(first, len(batch)), first + len(batch)
                if chosen is not None:
                    batch = batch.take(pa.array(chosen))
                left = batch.slice(skip)
                skip = max(0, skip - len(batch))
                if len(left):
                    columns = self._columns.of(left, places, file)
                    yield pa.RecordBatch.from_arrays(
                        [*columns, *self._feed_columns(left, file)], schema=self.schema
                    )

    def _feed_columns(self, batch: pa.RecordBatch, file: SourceFile) -> Iterator[pa.Array]:
        if self._feed:
            kind = pa.scalar(file.change, pa.string())
            yield pa.repeat(kind, len(batch)) if file.change else batch[CHANGE_TYPE].cast(pa.string())
            yield pa.repeat(pa.scalar(self._change.version, pa.int64()), len(batch))
            yield pa.repeat(pa.scalar(self._change.committed_at * 1000, layout.INSTANT), len(batch))

    def _opened(self, file: SourceFile) -> _OpenSourceFile:
        return _OpenSourceFile(self._table, file, self._change.version)


class _OpenSourceFile:
    """Opens a data file in a ``with`` block. Errors in the block name the version of the table."""

    def __init__(self, table: SourceTable, file: SourceFile, version: int) -> None:
        self._table, self._file, self._version = table, file, version
        self._context = table.folder.parquet(file.name, file.size, ANY)

    def __enter__(self) -> pq.ParquetFile:
        try:
            return self._context.__enter__()
        except BaseException as error:
            self._explain(error)
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._context.__exit__(kind, error, trace)
        except BaseException as raised:
            self._explain(raised)
            raise

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            raise self._table.lost_file(self._file.name, self._version) from error
        if isinstance(error, DamagedTable):
            where = f"{self._file.name} of {self._table.path}, of version {self._version}"
            raise QueueClientError(f"{where}, {error.reason}") from error


class _Columns:
    """The columns of a version with their types. Raises QueueClientError for an unknown type."""

    def __init__(self, change: SourceChange) -> None:
        from deltalake import Schema

        state = change.state
        self._by_id = state.configuration.get(_MODE) == "id"
        try:
            self.schema = pa.schema(Schema.from_json(state.schema).to_arrow())
        except Exception as error:
            reason = first_line(error)
            raise QueueClientError(f"version {state.version} has columns that cannot be read: {reason}") from error
        self._fields: list[dict[str, Any]] = json.loads(state.schema)["fields"]

    def places(self, found: pa.Schema) -> list[int]:
        """Returns the index of each column in a file, or -1 for a column that the file lacks."""
        return [_place(field, found, self._by_id) for field in self._fields]

    def of(self, rows: pa.RecordBatch, places: Sequence[int], file: SourceFile) -> Iterator[pa.Array]:
        """Yields an array for each column of the version. ``places`` has the index of each column in ``rows``."""
        for field, place, target in zip(self._fields, places, self.schema, strict=True):
            name = _physical(field)
            try:
                if name in file.partition and place < 0:
                    yield pa.repeat(_partition_value(file.partition[name], target.type), len(rows))
                elif place < 0:
                    yield pa.nulls(len(rows), target.type)
                else:
                    yield self._array(rows.column(place), field["type"], target.type)
            except (pa.ArrowException, ValueError) as error:
                raise QueueClientError(
                    f"column {field['name']} of {file.name} cannot be read as {target.type}: {first_line(error)}"
                ) from error

    def _array(self, found: pa.Array, type_: Any, target: pa.DataType) -> pa.Array:
        """Casts an array of a file to the names and types of the schema. Nested types are also cast."""
        if pa.types.is_dictionary(found.type):
            found = found.dictionary_decode()
        if found.type == target:
            return found
        if not isinstance(type_, dict):
            # instants of 96 bits and with nanoseconds become those of Delta
            return found.cast(target, safe=not pa.types.is_timestamp(target))
        null = found.is_null()
        if type_["type"] == "struct":
            inner = pa.schema(found.type)
            parts = []
            for field, wanted in zip(type_["fields"], target, strict=True):
                place = _place(field, inner, self._by_id)
                if place < 0:
                    parts.append(pa.nulls(len(found), wanted.type))
                else:
                    parts.append(self._array(pc.struct_field(found, place), field["type"], wanted.type))
            return pa.StructArray.from_arrays(parts, fields=list(target), mask=null)
        bounds = found.offsets.to_numpy()
        offsets, below = pa.array(bounds - bounds[0], pa.int32()), slice(bounds[0], bounds[-1])
        if type_["type"] == "array":
            values = self._array(found.values[below], type_["elementType"], target.value_type)
            return pa.ListArray.from_arrays(offsets, values, type=target, mask=null)
        keys = self._array(found.keys[below], type_["keyType"], target.key_type)
        items = self._array(found.items[below], type_["valueType"], target.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=null)


def _physical(field: Mapping[str, Any]) -> str:
    return str(field.get("metadata", {}).get(_PHYSICAL, field["name"]))


def _place(field: Mapping[str, Any], found: Any, by_id: bool) -> int:
    if by_id:
        wanted = str(field["metadata"].get(_ID))
        for place, each in enumerate(found):
            if (each.metadata or {}).get(b"PARQUET:field_id", b"").decode() == wanted:
                return place
    return int(found.get_field_index(_physical(field)))


def _partition_value(text: str | None, type_: pa.DataType) -> pa.Scalar:
    if not text:  # Delta has no other word for NULL
        return pa.scalar(None, type_)
    if pa.types.is_timestamp(type_):
        instant = datetime.fromisoformat(text.replace("Z", "+00:00").strip())
        if type_.tz is not None and instant.tzinfo is None:
            instant = instant.replace(tzinfo=timezone.utc)
        return pa.scalar(instant, type_)
    if pa.types.is_binary(type_):
        return pa.scalar(text.encode(), type_)
    return pa.scalar(text, pa.string()).cast(type_)
