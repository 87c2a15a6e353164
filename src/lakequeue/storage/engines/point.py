"""The point engine: commits to one Delta table in milliseconds, without a JVM.

It writes files through Arrow and its own entries of the log, see ``entries``; ``delta_log`` reads the log.
delta-rs makes checkpoints, and commits where `PointTable._writes_entries` is false.
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
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from lakequeue.storage.delta_log import Entry, LiveFile, LogTrimmed, Snapshot, entry_name, is_table, parse
from lakequeue.storage.engines import entries, process
from lakequeue.storage.engines.interface import DataFile, LostRace, StaleSnapshot, Table, partition_text
from lakequeue.storage.engines.merge_rows import rewrites
from lakequeue.storage.folder import Folder
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")
_WRITER = WriterProperties(compression="SNAPPY")
# the log is a part of the fence: only `log_trimming` removes its entries
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
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
        self._snapshot = self._newest() if version is None else Snapshot(self.folder, version)
        self._committed: tuple[int, Entry] | None = None  # the last entry written, and its version
        self._contents: dict[str, pa.Table] = {}  # by path
        self._table: DeltaTable | None = None  # opened by the first commit that delta-rs makes

    @property
    def version(self) -> int:
        return self._snapshot.version

    def refresh(self) -> None:
        asked_at = time.time()
        try:
            if self.folder.local is None and asked_at - self.loaded_at > FOLLOWED:
                raise LogTrimmed(f"{self.path} was last read {asked_at - self.loaded_at:.0f} s ago")
            self._snapshot.follow()
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

    def files(self) -> list[LiveFile]:
        return self._snapshot.files()

    @property
    def file_count(self) -> int:
        return self._snapshot.file_count

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        return self.folder.for_each(lambda file: self._read(file, columns), files)

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        with self.folder.parquet(file.name, file.size) as parquet:
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
        if self._writes_entries:
            self._create_entry("WRITE", [self._write_file(rows)], [], transactions, token)
            return
        with self._committing() as table:
            write_deltalake(
                table,
                rows,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=_properties(transactions, token),
                post_commithook_properties=_HOOKS,
            )

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        if self._writes_entries:
            self._create_entry("WRITE", files, [], transactions, token, rebased=True)
        else:
            self._write([_action(file) for file in files], "append", None, transactions, token)

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        if self._writes_entries:
            removed = [file for file in self.files() if _within(file, partition)]
            added = [self._write_file(each) for each in rows]
            self._create_entry("WRITE", added, removed, transactions, token, partition, rebased=True)
            return
        filters = [(name, "in", [partition_text(value) for value in values]) for name, values in partition.items()]
        actions = [_action(self._write_file(each)) for each in rows]
        self._write(actions, "overwrite", filters, transactions, token)

    def merge(
        self,
        source: pa.Table,
        on: Sequence[str],
        target_filter: str,
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        if self._writes_entries:
            self._merge(source, on, transactions, token)
            return
        updates = {f'"{name}"': f's."{name}"' for name in source.column_names if name != "op"}
        predicate = " AND ".join([*(f"t.{name} = s.{name}" for name in on), f"({target_filter})"])
        with self._committing() as table:
            (
                table.merge(
                    source,
                    predicate,
                    source_alias="s",
                    target_alias="t",
                    writer_properties=_WRITER,
                    # a source in memory is not a stream; with its statistics the join prunes files
                    streamed_exec=False,
                    commit_properties=_properties(transactions, token),
                    post_commithook_properties=_HOOKS,
                )
                .when_matched_delete("s.op = 'del'")
                .when_matched_update(updates)
                .when_not_matched_insert(updates, predicate="s.op = 'put'")
                .execute()
            )

    def _merge(self, source: pa.Table, on: Sequence[str], transactions: Mapping[str, int], token: str) -> None:
        partitions = self._snapshot.partitions
        [key] = [name for name in on if name not in partitions]
        live = self.files()
        self._contents = {file.path: rows for file in live if (rows := self._contents.get(file.path)) is not None}
        added, removed, contents = [], [], {}
        for rewrite in rewrites(source, key, partitions, live, self._content):
            removed += rewrite.removed
            if len(rewrite.rows):
                added.append(self._write_file(rewrite.rows))
                contents[added[-1].path] = rewrite.rows.drop_columns(partitions)
        self._create_entry("MERGE", added, removed, transactions, token)
        self._contents |= contents

    def _content(self, file: LiveFile) -> pa.Table:
        """Rows of a file; MERGE keeps them, as most change the same few files again."""
        rows = self._contents[file.path] = self._read(file, None)
        return rows

    def landed(self, token: str, since: int) -> bool | None:
        read = list(self._snapshot.tokens(since))
        return token in read or (False if 0 < len(read) == self.version - since else None)

    def checkpoint(self) -> None:
        _repeated(lambda: self._opened().create_checkpoint())

    def _newest(self) -> Snapshot:
        return _repeated(lambda: Snapshot(self.folder))

    def _read(self, file: LiveFile, columns: Sequence[str] | None) -> pa.Table:
        known = self._contents.get(file.path)
        if known is not None:
            return known if columns is None else known.select(columns)
        with self.folder.parquet(file.name, file.size) as parquet:
            return parquet.read(columns, use_threads=False)

    def _write(
        self,
        actions: list[AddAction],
        mode: str,
        filters: list[tuple[str, str, list[str]]] | None,
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        with self._committing() as table:
            table.create_write_transaction(
                actions,
                mode,
                table.schema(),
                table.metadata().partition_columns,
                partition_filters=filters,
                commit_properties=_properties(transactions, token),
                post_commithook_properties=_HOOKS,
            )
            table.update_incremental()  # the handle still has the version before its own commit

    def _write_file(self, rows: pa.Table) -> DataFile:
        """Writes rows of one partition as a file below the table, not yet committed."""
        return write_file(self.folder, rows, self._snapshot.partitions)

    @property
    def _writes_entries(self) -> bool:
        """Whether commits write their entries of the log without delta-rs."""
        return self._snapshot.plain and self.store.lock_provider is None

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
            self.checkpoint()
        else:  # delta-rs reads every entry twice for it: half a second at 20 ms a request
            threading.Thread(target=self._checkpoint_beside, name="lakequeue-checkpoint").start()

    def _checkpoint_beside(self) -> None:
        try:
            self.checkpoint()
        except Exception as error:  # the next one covers it
            _log.warning("a checkpoint of %s failed: %s", self.path, first_line(error))

    @contextmanager
    def _committing(self) -> Iterator[DeltaTable]:
        """A commit by delta-rs on the version of the snapshot, which then follows."""
        try:
            yield self._current()
        except CommitFailedError as error:
            raise LostRace(str(error)) from error
        except DeltaError as error:
            self._table = None
            if "not found" in str(error):  # delta-rs has no type of its own for this
                raise StaleSnapshot(str(error)) from error
            raise
        self.loaded_at = time.time()
        self._snapshot.follow()

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.path, storage_options=self.store.delta_options)

    def _current(self) -> DeltaTable:
        table = self._table
        if table is None:
            self._table = table = _repeated(self._opened)
        elif table.version() != self.version:
            try:
                table.update_incremental()
            except DeltaError:  # the log was trimmed below its version
                self._table = table = _repeated(self._opened)
        if table.version() != self.version:
            # on a newer version a stale commit would be accepted: two messages, one offset
            raise LostRace(f"{self.path} has moved on from version {self.version}")
        return table


class PointEngine:
    """Opens and creates tables without a JVM."""

    name = "point"
    commits_alone = False

    def __init__(self, store: Store) -> None:
        self.store = store

    def exists(self, path: str) -> bool:
        process.claim()
        return is_table(self.store.folder(path))

    def open(self, path: str) -> PointTable:
        process.claim()
        return PointTable(self.store, path)

    def create(
        self,
        path: str,
        schema: pa.Schema,
        partitions: Sequence[str],
        properties: Mapping[str, str],
        rows: pa.Table | None = None,
    ) -> None:
        process.claim()
        folder = self.store.folder(path)
        files = [write_file(folder, rows, partitions)] if rows is not None else []
        folder.create(entry_name(0), entries.first_entry(schema, partitions, properties, files))


_STATISTICS = {"position", "sent_at", "delay_seconds", "source_receive_count", "first_offset", "last_offset"}


def _within(file: LiveFile, partition: Mapping[str, Sequence[int | bool | str]]) -> bool:
    """Whether a file's partition values are among those given."""
    return all(file.partition[name] in values for name, values in partition.items())


def write_file(table: Folder, rows: pa.Table, partitions: Sequence[str]) -> DataFile:
    """Writes rows of one partition as a file below a table, not yet committed."""
    partition = {name: partition_text(rows[name][0].as_py()) for name in partitions}
    data = rows.drop_columns(list(partitions))
    folder = "".join(f"{name}={value}/" for name, value in partition.items() if name != "opened_at")
    path = f"{folder}{uuid.uuid4()}.parquet"
    target = pa.BufferOutputStream()
    # a receive of ten messages reads a row group
    pq.write_table(data, target, row_group_size=max(1, min(4096, _ROW_GROUP * len(data) // max(1, data.nbytes))))
    content = target.getvalue()
    table.write(path, content)
    minimum, maximum, nulls = {}, {}, {}
    for name in _STATISTICS & set(data.column_names):
        column = data[name]
        nulls[name] = column.null_count
        if column.null_count < len(column) and not pa.types.is_timestamp(column.type):
            bounds = pa.compute.min_max(column).as_py()
            minimum[name], maximum[name] = bounds["min"], bounds["max"]
    return DataFile(path, content.size, len(data), partition, minimum, maximum, nulls)


def _repeated(read: Callable[[], _T]) -> _T:
    """Reads the newest version; starts again if its log is trimmed meanwhile."""
    for _ in range(_LOADS):
        try:
            return read()
        except LogTrimmed:
            pass
        except DeltaError as error:
            if "not found" not in str(error):
                raise
    return read()


def _properties(transactions: Mapping[str, int], token: str) -> CommitProperties:
    # Spark and delta-rs both read back only this key of a commit's metadata
    return CommitProperties(
        custom_metadata={"userMetadata": token},
        app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
    )


def _action(file: DataFile) -> AddAction:
    return AddAction(file.path, file.size, dict(file.partition), int(time.time() * 1000), True, file.statistics())
