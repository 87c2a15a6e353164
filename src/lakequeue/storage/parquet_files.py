"""Opens and writes Parquet files with a checksum of each page. Reading verifies existing checksums (DUR-8)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.storage import layout

ANY = pa.schema([])
"""Argument for ``reader`` that requires no columns, so that any file is accepted."""


_TEXTS_AND_BYTES = [
    {pa.string(), pa.large_string(), pa.string_view()},
    {pa.binary(), pa.large_binary(), pa.binary_view()},
]


def reader(source: Any, columns: pa.Schema) -> pq.ParquetFile:
    """Opens a Parquet file that has ``columns``. Missing columns of ``layout.ADDED`` are read as NULL.

    Read the file with ``use_threads=False``; see ``Folder.parquet``. Arrow verifies checksums at 3.3 GB/s, which
    makes ``lease().arrow()`` 4 to 28 % slower, but not a receive.

    Raises ArrowException or OSError if the file is damaged, or lacks a column.
    """
    try:
        # instants of 96 bits, as Spark writes them, have years that nanoseconds cannot count
        file = pq.ParquetFile(
            source, pre_buffer=False, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        )
        found = file.schema_arrow
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"its columns have no readable names: {error}") from error
    lacking: list[pa.Field] = []
    if not found.equals(columns):
        known = dict(zip(found.names, found.types, strict=True))
        older = known.keys() <= set(columns.names)  # False if the name of an added column is damaged.
        for field in columns:
            if field.name in layout.ADDED and field.name not in known and older:
                lacking.append(field)
            elif field.name not in known or not _alike(known[field.name], field.type):
                raise pa.ArrowInvalid(f"its column {field.name} is missing, or is not of type {field.type}")
    rows = file.metadata.num_rows
    if rows != max((end for *_, end in row_groups(file)), default=0):
        raise pa.ArrowInvalid(f"its row groups do not have {rows} rows")
    return _Filled(file, lacking) if lacking else file


class _Filled:
    """A Parquet file that returns NULLs for the columns that it lacks."""

    def __init__(self, file: pq.ParquetFile, lacking: Sequence[pa.Field]) -> None:
        self._file, self._lacking = file, lacking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Filled:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        return self._filled(self._file.read(self._there(columns), **options), columns)

    def read_row_groups(self, groups: Any, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        return self._filled(self._file.read_row_groups(groups, self._there(columns), **options), columns)

    def read_row_group(self, group: int, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        return self.read_row_groups([group], columns, **options)

    def iter_batches(
        self, size: int, groups: Any = None, columns: Sequence[str] | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._file.iter_batches(size, groups, self._there(columns), **options):
            yield self._filled(batch, columns)

    def _there(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        lacking = {field.name for field in self._lacking}
        return columns and [name for name in columns if name not in lacking]

    def _filled(self, rows: Any, columns: Sequence[str] | None) -> Any:
        for field in self._lacking:
            if columns is None or field.name in columns:
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
        return rows


def row_groups(file: pq.ParquetFile) -> list[tuple[int, int, int]]:
    """Returns three numbers for each row group of a file: group number, first row, and row after the last row."""
    ends = list(accumulate(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)))
    return list(zip(range(len(ends)), [0, *ends], ends, strict=False))


def spans_of(file: pq.ParquetFile, group: int, columns: Collection[str]) -> list[tuple[int, int]]:
    """Returns where a file has the columns of a row group: pairs of the first byte and the byte after the last."""
    found, parts = file.metadata.row_group(group), []
    for number in range(found.num_columns):
        column = found.column(number)
        if column.path_in_schema.partition(".")[0] in columns:
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            parts.append((start, start + column.total_compressed_size))
    return parts


def write_table(rows: pa.Table, target: Any, **options: Any) -> None:
    """Writes rows to a Parquet file, with the options of ``pq.write_table``."""
    pq.write_table(rows, target, write_page_checksum=True, **options)


def writer(target: Any, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Returns a writer for a Parquet file, with the options of ``pq.ParquetWriter``."""
    return pq.ParquetWriter(target, schema, write_page_checksum=True, **options)


def _alike(found: Any, expected: Any) -> bool:
    """True if values of the type ``found``, as Spark or delta-rs may write, can be read as ``expected``."""
    if pa.types.is_struct(expected):
        return pa.types.is_struct(found) and all(
            found.get_field_index(field.name) >= 0 and _alike(found.field(field.name).type, field.type)
            for field in expected
        )
    if pa.types.is_map(expected):
        return pa.types.is_map(found) and all(
            _alike(*each) for each in ((found.key_type, expected.key_type), (found.item_type, expected.item_type))
        )
    if pa.types.is_list(expected):
        return pa.types.is_list(found) and _alike(found.value_type, expected.value_type)
    if pa.types.is_timestamp(expected):  # Spark may write them without a zone, 96 bits wide.
        return pa.types.is_timestamp(found) and found in (expected, pa.timestamp(expected.unit))
    kinds = [kind for kind in _TEXTS_AND_BYTES if expected in kind]
    return found in kinds[0] if kinds else found == expected
