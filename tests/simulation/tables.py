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

import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.storage import delta_log
from lakequeue.storage.delta_log import checkpoint_name
from lakequeue.storage.folder import Folder

_MARK = b"rows in memory:"
_NUMBERS = count()

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


def write_table(rows: pa.Table, target: Any, **_: Any) -> None:
    """As `pq.write_table`."""
    target.write(written(rows))


def parse(data: bytes) -> delta_log.Entry:
    """As `delta_log.parse`."""
    entry: delta_log.Entry | None = PARSED.get(data)
    if entry is None:
        entry = PARSED[data] = _parse(data)
    return entry


def read_checkpoint(folder: Folder, version: int) -> delta_log.Checkpoint:
    """As `delta_log.read_checkpoint`."""
    data = folder.read(checkpoint_name(version))
    found: delta_log.Checkpoint | None = PARSED.get(data)
    if found is None:
        read: Any = SimpleNamespace(uri=folder.uri, read=lambda _: data)
        found = PARSED[data] = _read_checkpoint(read, version)
    return found._replace(files=dict(found.files), transactions=dict(found.transactions))


class ParquetFile:
    """As `pq.ParquetFile`, with one row group."""

    def __init__(self, source: Any, **more: Any) -> None:
        self.real: Any = None
        data = source.read() if not isinstance(source, pa.BufferReader) else source.read()
        if data in ROWS:
            self.rows = ROWS[data]
        else:
            self.real = pq.ParquetFile(pa.BufferReader(data), **more)  # ArrowInvalid for a torn name
            self.rows = self.real.read(use_threads=False)
            self.metadata = self.real.metadata
            self.num_row_groups = self.real.num_row_groups
            self.schema_arrow = self.real.schema_arrow
            return
        self.metadata = SimpleNamespace(num_rows=len(self.rows), row_group=lambda _: self.metadata)
        self.num_row_groups = 1
        self.schema_arrow = self.rows.schema

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # a file of a bulk send

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, columns: Any = None, **_: Any) -> pa.Table:
        return self.rows if columns is None else self.rows.select(columns)

    def read_row_groups(self, groups: Any, columns: Any = None, **more: Any) -> pa.Table:
        if self.real is not None:
            return self.real.read_row_groups(groups, columns=columns, **more)
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
