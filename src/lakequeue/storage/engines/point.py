"""The point engine: commits to one Delta table in milliseconds, without a JVM.

It writes files through Arrow, and the log: see ``entries`` and ``checkpoints``. ``delta_log`` reads it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import (
    LOG,
    Entry,
    LiveFile,
    LogTrimmed,
    Snapshot,
    entry_name,
    is_table,
    parse,
)
from lakequeue.storage.engines import entries, process
from lakequeue.storage.engines.checkpoints import write_checkpoint
from lakequeue.storage.engines.interface import DataFile, LostRace, StaleSnapshot, Table, partition_text
from lakequeue.storage.engines.merge_rows import rewrites
from lakequeue.storage.folder import Folder
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")
_ROW_GROUP = 4 * 2**20
"""Bytes of a row group in memory, about."""
_LOADS = 3
"""Tries to load the newest snapshot while its log is being trimmed, before the last one."""
FOLLOWED = 12 * 3600.0
"""Seconds after which a snapshot of a remote table is loaded anew: what follows it in the log may be gone."""


class PointTable:
    """One handle on one Delta table; ``interface.Table`` documents the methods."""

    commits_alone = False

    def __init__(self, store: Store, path: str, version: int | None = None) -> None:
        """Opens a version, None for the newest; older ones are read-only."""
        self.path = path
        self.store = store
        self.folder = store.folder(path)
        self.loaded_at = time.time()
        self.lost_races = 0
        self._snapshot = self._newest() if version is None else Snapshot(self.folder, version)
        self._committed: tuple[int, Entry] | None = None  # the last entry written, and its version

    @property
    def version(self) -> int:
        return self._snapshot.version

    def refresh(self) -> None:
        asked_at = time.time()
        try:
            if self.folder.local is None and asked_at - self.loaded_at > FOLLOWED:
                raise LogTrimmed(f"{self.path} was last read {asked_at - self.loaded_at:.0f} s ago")
            if self._snapshot.follow():
                self.folder.sync([LOG])
        except LogTrimmed:
            self._snapshot = self._newest()
        self.loaded_at = asked_at

    def learn(self, other: Table) -> None:
        if isinstance(other, PointTable) and other._committed is not None:
            self._snapshot.learn(*other._committed)

    def advance(self) -> None:
        self._snapshot.advance()

    def transaction(self, app_id: str) -> int | None:
        return self._snapshot.transactions.get(app_id)

    @property
    def transactions(self) -> Mapping[str, int]:
        """Versions by application id in the loaded snapshot."""
        return self._snapshot.transactions

    def files(self) -> list[LiveFile]:
        return self._snapshot.files()

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        return self.folder.for_each(lambda file: self._read(file, columns), files)

    @contextmanager
    def _opened_file(self, file: LiveFile) -> Iterator[pq.ParquetFile]:
        """Opens a live file.

        Raises:
            StaleSnapshot: it is gone, and the newest snapshot does not have it.
            DamagedTable: it is gone, or not what was written.
        """
        try:
            with self.folder.parquet(file.name, file.size) as parquet:
                if parquet.metadata.num_rows != file.rows:
                    reason = f"has {parquet.metadata.num_rows} rows instead of {file.rows}"
                    raise DamagedTable(self.path, file.name, reason)
                yield parquet
        except FileNotFoundError as error:
            raise self.lost(file) from error

    def lost(self, file: LiveFile) -> StaleSnapshot | DamagedTable:
        """What it means that a file of the loaded snapshot is gone."""
        if any(file.path == live.path for live in self._newest().files()):
            return DamagedTable(self.path, file.name, "is missing")
        return StaleSnapshot(f"{file.name} of {self.path} was removed")

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        with self._opened_file(file) as parquet:
            begin, groups, skipped = 0, [], 0
            for index in range(parquet.num_row_groups):
                end = begin + parquet.metadata.row_group(index).num_rows
                if end <= first:
                    skipped = end
                elif begin <= last:
                    groups.append(index)
                begin = end
            table = parquet.read_row_groups(groups, columns=columns, use_threads=False)
        return table.slice(first - skipped, last - first + 1)

    def append(self, rows: pa.Table, transactions: Mapping[str, int], token: str) -> None:
        self._create_entry("WRITE", [self._write_file(rows)], [], transactions, token)

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        self.folder.sync(file.path for file in files)  # other processes wrote them, maybe without syncs
        self._create_entry("WRITE", files, [], transactions, token, rebased=True)

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        removed = [file for file in self.files() if _within(file, partition)]
        added = [self._write_file(each) for each in rows]
        self._create_entry("WRITE", added, removed, transactions, token, partition, rebased=True)

    def exchange(
        self, removed: Sequence[LiveFile], rows: Iterable[pa.Table], transactions: Mapping[str, int], token: str
    ) -> None:
        """Replaces files by others, a table of ``rows`` each; any other commit since the snapshot refuses it."""
        added = [self._write_file(each) for each in rows]
        self._create_entry("WRITE", added, removed, transactions, token)

    def merge(
        self,
        source: pa.Table,
        key: str,
        transactions: Mapping[str, int],
        token: str,
        known: dict[str, pa.Table] | None = None,
    ) -> None:
        partitions, live, known = self._snapshot.partitions, self.files(), {} if known is None else known
        for path in known.keys() - {file.path for file in live}:
            del known[path]

        def content(file: LiveFile) -> pa.Table:
            if file.path not in known:
                known[file.path] = self._read(file, None)
            return known[file.path]

        added, removed, contents = [], [], {}
        for rewrite in rewrites(source, key, partitions, live, content):
            removed += rewrite.removed
            if len(rewrite.rows):
                added.append(self._write_file(rewrite.rows))
                contents[added[-1].path] = rewrite.rows.drop_columns(partitions)
        self._create_entry("MERGE", added, removed, transactions, token)
        known |= contents

    def landed(self, token: str, since: int) -> bool | None:
        read = list(self._snapshot.tokens(since))
        return token in read or (False if 0 < len(read) == self.version - since else None)

    def checkpoint(self) -> None:
        # of what is stored: this handle may have committed at a place that others have trimmed
        write_checkpoint(self.folder, self._newest())

    def _newest(self) -> Snapshot:
        snapshot = self._repeated(lambda: Snapshot(self.folder))
        # here as in `refresh`: others may not have synced yet what is answered or built on now
        self.folder.sync([LOG])
        return snapshot

    def _repeated(self, read: Callable[[], _T]) -> _T:
        """Reads the newest version; starts again if its log is trimmed meanwhile."""
        for _ in range(_LOADS):
            try:
                return read()
            except LogTrimmed:
                pass
            except FileNotFoundError:  # all that was listed is gone, if there is a table
                if self.folder.local is None or not is_table(self.folder):
                    raise
        try:
            return read()
        except LogTrimmed as error:
            raise DamagedTable(self.path, None, f"its log has a gap, {error}") from error

    def _read(self, file: LiveFile, columns: Sequence[str] | None) -> pa.Table:
        with self._opened_file(file) as parquet:
            return parquet.read(columns, use_threads=False)

    def _write_file(self, rows: pa.Table) -> DataFile:
        """Writes rows of one partition as a file below the table, not yet committed."""
        return write_file(self.folder, rows, self._snapshot.partitions)

    def _create_entry(
        self,
        operation: str,
        added: Sequence[DataFile],
        removed: Sequence[LiveFile],
        transactions: Mapping[str, int],
        token: str,
        replaced: Mapping[str, Sequence[int | bool | str]] | None = None,
        *,
        rebased: bool = False,
    ) -> None:
        """Commits as the version after the snapshot.

        If there is such a version, the race is lost; with ``rebased`` only if it has one of the application ids,
        or changed what is ``removed`` or ``replaced``, and else the next version is tried. So a merge of segments,
        which takes long, lands beside a steady flow of sends.

        Raises:
            LostRace: another commit came first.
        """
        data = entries.entry(operation, added, removed, transactions, token)
        gone = {file.path for file in removed}
        # A root that went away since the check of the base, as a mount point does, must not be made again: the
        # commit would be acknowledged, and gone once the root is back.
        while not self.folder.create(entry_name(self.version + 1), data, new_folder=False):
            other = self._snapshot.next() if rebased else None
            if (
                other is None
                or other.metadata
                or other.protocol
                or not other.transactions.keys().isdisjoint(transactions)
                or not gone.isdisjoint(other.removed)
                or any(replaced and _within(file, replaced) for file in other.added)
            ):
                raise LostRace(f"{self.path} has moved on from version {self.version}")
            self._snapshot.apply(other)
        entry = parse(data)
        self._snapshot.apply(entry)
        self._committed = self.version, entry
        self.loaded_at = time.time()
        if self.version % self._snapshot.checkpoint_every:
            return
        if self.folder.local is not None:
            self._try_checkpoint()
        else:  # it reads the entries since the last one, in many requests
            threading.Thread(target=self._try_checkpoint, name="lakequeue-checkpoint").start()

    def _try_checkpoint(self) -> None:
        try:
            self.checkpoint()
        except Exception as error:  # the commit has landed, and the next checkpoint covers it
            _log.warning("a checkpoint of %s failed: %s", self.path, first_line(error))


class PointEngine:
    """Opens and creates tables without a JVM."""

    name = "point"
    commits_alone = False

    def __init__(self, store: Store) -> None:
        self.store = store

    def exists(self, path: str) -> bool:
        process.note_use()
        return is_table(self.store.folder(path))

    def open(self, path: str) -> PointTable:
        process.note_use()
        return PointTable(self.store, path)

    def create(
        self,
        path: str,
        schema: pa.Schema,
        partitions: Sequence[str],
        properties: Mapping[str, str],
        rows: pa.Table | None = None,
    ) -> None:
        process.note_use()
        folder = self.store.folder(path)
        files = [write_file(folder, rows, partitions, new_folder=True)] if rows is not None else []
        folder.create(entry_name(0), entries.first_entry(schema, partitions, properties, files))


_STATISTICS = {"first_offset", "last_offset"} | {
    *("position", "sent_at", "delay_seconds", "source_receive_count", "group_id"),
}


def _within(file: LiveFile, partition: Mapping[str, Sequence[int | bool | str]]) -> bool:
    """Whether a file's partition values are among those given."""
    return all(file.partition[name] in values for name, values in partition.items())


def write_file(table: Folder, rows: pa.Table, partitions: Sequence[str], *, new_folder: bool = False) -> DataFile:
    """Writes rows of one partition as a file below a table, not yet committed."""
    partition = {name: partition_text(rows[name][0].as_py()) for name in partitions}
    data = rows.drop_columns(list(partitions))
    # not in a directory for each partition, as Delta does not ask for it: making one costs two more syncs
    path = f"{uuid.uuid4()}.parquet"
    target = pa.BufferOutputStream()
    # a receive of ten messages reads a row group
    group = max(1, min(4096, _ROW_GROUP * len(data) // max(1, data.nbytes)))
    # Of a file of a few rows, most would be the description of its columns: the log has the statistics that skip
    # it, and readers know the schema.
    many = len(data) > group
    pq.write_table(
        data, target, row_group_size=group, store_schema=False, write_statistics=many, use_dictionary=many
    )
    content = target.getvalue()
    table.write(path, content, new_folder=new_folder)
    minimum, maximum, nulls = {}, {}, {}
    for name in _STATISTICS & set(data.column_names):
        column = data[name]
        nulls[name] = column.null_count
        if column.null_count < len(column) and not pa.types.is_timestamp(column.type):
            bounds = pa.compute.min_max(column).as_py()
            if bounds["min"] == bounds["max"] or not pa.types.is_string(column.type):
                minimum[name], maximum[name] = bounds["min"], bounds["max"]
    return DataFile(path, content.size, len(data), partition, minimum, maximum, nulls)
