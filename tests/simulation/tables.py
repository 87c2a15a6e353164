"""Files of tables without Parquet's encoding: what modules see as libraries.

To encode and decode rows of a few columns takes longer than all else that a verb does. The code under test writes
and reads its own files, so a file may as well be a name under which the rows stay in memory: with a part of it
missing it leads nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.storage import delta_log
from lakequeue.storage.delta_log import checkpoint_name
from lakequeue.storage.folder import Folder

_MARK = b"rows in memory:"
_NUMBERS = count()

ENCODED: list[bool] = []
"""Not empty: rows are encoded as Parquet."""
ROWS: dict[bytes, pa.Table] = {}
"""Rows by content of their file."""
PARSED: dict[bytes, Any] = {}
"""What is in entries and checkpoints of logs, by their content: each is read by all processes, several times."""
_parse, _read_checkpoint = delta_log.parse, delta_log.read_checkpoint


def written(rows: pa.Table) -> bytes:
    """What a file has in it whose rows these are."""
    name = _MARK + b"%011d;" % next(_NUMBERS)
    ROWS[name] = rows
    return name


def write_table(rows: pa.Table, target: Any, **options: Any) -> None:
    """As `pq.write_table`."""
    if ENCODED:
        pq.write_table(rows, target, **options)
    else:
        target.write(written(rows))


def parse(data: bytes) -> delta_log.Entry:
    """As `delta_log.parse`."""
    entry: delta_log.Entry | None = PARSED.get(data)
    if entry is None:
        entry = PARSED[data] = _parse(data)
    return entry


def read_checkpoint(folder: Folder, version: int) -> delta_log.TableState:
    """As `delta_log.read_checkpoint`."""
    data = folder.read(checkpoint_name(version))
    found: delta_log.TableState | None = PARSED.get(data)
    if found is None:
        read: Any = SimpleNamespace(uri=folder.uri, read=lambda _: data)
        found = PARSED[data] = _read_checkpoint(read, version)
    return attrs.evolve(found, live=dict(found.live), transactions=dict(found.transactions))


def parquet_file(source: Any, **options: Any) -> Any:
    """As `pq.ParquetFile`."""
    data = source.read()
    return _Rows(ROWS[data]) if data in ROWS else pq.ParquetFile(pa.BufferReader(data), **options)


class _Rows:
    """Rows in memory, as a file with one row group."""

    num_row_groups = 1

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.metadata = SimpleNamespace(num_rows=len(rows), num_columns=0, row_group=lambda _: self.metadata)
        self.schema_arrow = rows.schema

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, columns: Any = None, **_: Any) -> pa.Table:
        return self.rows if columns is None else self.rows.select(columns)

    def read_row_groups(self, groups: Any, columns: Any = None, **_: Any) -> pa.Table:
        rows = self.read(columns)
        return rows if groups else rows.slice(0, 0)

    def read_row_group(self, group: int, columns: Any = None, **more: Any) -> pa.Table:
        return self.read_row_groups([group], columns, **more)

    def iter_batches(self, columns: Any = None, **_: Any) -> Iterator[Any]:
        yield from self.read(columns).to_batches()


class Arrow:
    """`pyarrow` with files of the simulated disk."""

    def __init__(self, opened: Callable[[Any, str], Any]) -> None:
        self._open = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(pa, name)

    def OSFile(self, path: str) -> Any:
        return pa.BufferReader(self._open(path, "rb").read())
