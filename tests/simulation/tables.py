"""Files of tables without Parquet's encoding, and checkpoints without delta-rs: what modules see as libraries.

To encode and decode rows of a few columns takes longer than all else that a verb does. The code under test writes
and reads its own files, so a file may as well be a name under which the rows stay in memory: with a part of it
missing it leads nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from lakequeue.storage import delta_log
from lakequeue.storage.delta_log import LAST_CHECKPOINT, checkpoint_name, entry_name, listed
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


class DeltaTable:
    """As `deltalake.DeltaTable`, for checkpoints; what it makes is written like any file that nobody syncs."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._version = folder, -1

    def version(self) -> int:
        return self._version

    def create_checkpoint(self) -> None:
        found = [(number, is_checkpoint) for number, is_checkpoint, _ in listed(self._folder)]
        base = max((number for number, is_checkpoint in found if is_checkpoint), default=-1)
        last = max((number for number, is_checkpoint in found if not is_checkpoint), default=base)
        actions: dict[str, dict[str, Any]] = {name: {} for name in ("add", "txn", "metaData", "protocol")}
        if base >= 0:
            rows = ROWS.get(self._folder.read(checkpoint_name(base)))
            if rows is None:
                raise DeltaError(f"the checkpoint of version {base} is torn")
            for name in actions:
                for each in rows[name].drop_null().to_pylist():
                    actions[name][_key(name, each)] = each
        for version in range(base + 1, last + 1):
            for line in self._folder.read(entry_name(version)).splitlines():
                for name, each in json.loads(line).items():
                    if name in actions:
                        actions[name][_key(name, each)] = each
                    elif name == "remove":
                        actions["add"].pop(each["path"], None)
        number = sum(map(len, actions.values()))
        columns, before = {}, 0
        for name, values in actions.items():
            rest = number - before - len(values)
            columns[name] = [*[None] * before, *values.values(), *[None] * rest]
            before += len(values)
        self._version = last
        self._write(checkpoint_name(last), written(pa.table(columns)))
        self._write(LAST_CHECKPOINT, json.dumps({"version": last, "size": number}).encode())

    def _write(self, name: str, data: bytes) -> None:
        folder = self._folder
        if folder.local is not None:  # as delta-rs does: a file of another name, renamed
            plain = Folder(folder.uri, syncs=False)
            draft = f"{name}.{next(_NUMBERS)}.tmp"
            plain.write(draft, data)
            plain.move(draft, name)
        else:
            folder.write(name, data)


def _key(name: str, action: dict[str, Any]) -> str:
    return str(action.get("path") or action.get("appId") or name)
