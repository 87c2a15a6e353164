"""Files of tables without Parquet's encoding, and checkpoints by delta-rs: what modules see as their libraries.

To encode and decode rows of a few columns takes longer than all else that a verb does. The code under test writes
and reads its own files, so a file may as well be a name under which the rows stay in memory: with a part of it
missing it leads nowhere. Checkpoints are real: delta-rs makes them of the log, copied to the machine's memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.storage.delta_log import LOG
from lakequeue.storage.folder import Folder

_MARK = b"rows in memory:"
_NUMBERS = count()

ROWS: dict[bytes, pa.Table] = {}
"""Rows by content of their file."""


def write_table(rows: pa.Table, target: Any, **_: Any) -> None:
    """As `pq.write_table`."""
    name = _MARK + b"%011d;" % next(_NUMBERS)
    ROWS[name] = rows
    target.write(name)


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
        self.metadata = SimpleNamespace(num_rows=len(self.rows), row_group=lambda _: self.metadata)
        self.num_row_groups = 1
        self.schema_arrow = self.rows.schema

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, columns: Any = None, **_: Any) -> pa.Table:
        return self.rows if columns is None else self.rows.select(columns)

    def read_row_groups(self, groups: Any, columns: Any = None, **_: Any) -> pa.Table:
        rows = self.read(columns)
        return rows if groups else rows.slice(0, 0)

    def read_row_group(self, group: int, columns: Any = None, **_: Any) -> pa.Table:
        return self.read(columns)

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


class DeltaTable:
    """As `deltalake.DeltaTable`, for checkpoints: delta-rs reads the log as it is now.

    What it makes is written like any file that nobody syncs.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder, self._version = folder, -1

    def version(self) -> int:
        return self._version

    @contextmanager
    def _materialised(self) -> Iterator[tuple[Path, Any]]:
        place = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        try:
            (place / LOG).mkdir()
            for file in list(self._folder.files(LOG)):
                if not file.name.endswith(".draft"):
                    (place / file.name).write_bytes(self._folder.read(file.name))
            yield place, deltalake.DeltaTable(str(place))
        finally:
            shutil.rmtree(place)

    def create_checkpoint(self) -> None:
        with self._materialised() as (place, table):
            self._version = table.version()
            before = {path.name for path in (place / LOG).iterdir()}
            table.create_checkpoint()
            made = [path for path in (place / LOG).iterdir() if path.name not in before]
            hint = place / LOG / "_last_checkpoint"
            for path in [*(each for each in made if each != hint), *[each for each in [hint] if each.exists()]]:
                self._write(f"{LOG}/{path.name}", path.read_bytes())

    def _write(self, name: str, data: bytes) -> None:
        folder = self._folder
        if folder.local is not None:  # as delta-rs does: a file of another name, renamed
            plain = Folder(folder.uri, syncs=False)
            draft = f"{name}.{next(_NUMBERS)}.tmp"
            plain.write(draft, data)
            plain.move(draft, name)
        else:
            folder.write(name, data)
