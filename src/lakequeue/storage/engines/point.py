"""The point engine: one Delta table through delta-rs, in tens of milliseconds, without a JVM.

delta-rs makes the commits; the log is read by ``delta_log``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs
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

from lakequeue.storage.delta_log import LiveFile, LogTrimmed, Snapshot
from lakequeue.storage.engines import process
from lakequeue.storage.engines.interface import DataFile, LostRace, StaleSnapshot, partition_text
from lakequeue.storage.stores import Store

_T = TypeVar("_T")
_WRITER = WriterProperties(compression="SNAPPY")
# the log is a part of the fence: only `log_trimming` removes its entries
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_LOADS = 3
"""Tries to load the newest snapshot while its log is being trimmed, before the last one."""
FOLLOWED = 12 * 3600.0
"""Seconds after which a snapshot of a remote table is loaded anew: what follows it in the log may be gone."""


@attrs.define
class _Commit:
    """A commit under way."""

    table: DeltaTable
    grown: int | None = 0
    """Change in the number of live files; None if unknown."""


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
        self._table: DeltaTable | None = None  # opened by the first commit

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

    def transaction(self, app_id: str) -> int | None:
        return self._snapshot.transactions.get(app_id)

    def files(self) -> list[LiveFile]:
        try:
            return list(self._snapshot.files().values())
        except LogTrimmed as error:
            raise StaleSnapshot(str(error)) from error

    @property
    def file_count(self) -> int:
        return self._snapshot.file_count

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        return [self._read(file, columns) for file in files]

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
        with self._committing(transactions) as commit:
            write_deltalake(
                commit.table,
                rows,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=_properties(transactions, token),
                post_commithook_properties=_HOOKS,
            )
            commit.grown = 1

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        self._write([_action(file) for file in files], "append", None, transactions, token)

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
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
        updates = {f'"{name}"': f's."{name}"' for name in source.column_names if name != "op"}
        predicate = " AND ".join([*(f"t.{name} = s.{name}" for name in on), f"({target_filter})"])
        with self._committing(transactions) as commit:
            done = (
                commit.table.merge(
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
            commit.grown = done["num_target_files_added"] - done["num_target_files_removed"]

    def landed(self, token: str, since: int) -> bool:
        return token in self._snapshot.tokens(since)

    def unused(self, hours: float) -> list[str]:
        # a VACUUM of delta-rs makes two commits; a dry run only lists the files
        return _repeated(
            lambda: self._opened().vacuum(
                retention_hours=int(hours), dry_run=True, enforce_retention_duration=False, full=True
            )
        )

    def checkpoint(self) -> None:
        _repeated(lambda: self._opened().create_checkpoint())

    def _newest(self) -> Snapshot:
        return _repeated(lambda: Snapshot(self.folder))

    def _read(self, file: LiveFile, columns: Sequence[str] | None) -> pa.Table:
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
        with self._committing(transactions) as commit:
            table = commit.table
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
            commit.grown = None

    def _write_file(self, rows: pa.Table) -> DataFile:
        """Writes rows of one partition as a file below the table, not yet committed."""
        partitions = self._current().metadata().partition_columns
        partition = {name: partition_text(rows[name][0].as_py()) for name in partitions}
        data = rows.drop_columns(partitions)
        folder = "/".join(f"{name}={value}" for name, value in partition.items() if name != "opened_at")
        path = f"{folder}/{uuid.uuid4()}.parquet"
        target = pa.BufferOutputStream()
        # row groups of a few thousand rows let a receive of ten messages read little
        pq.write_table(data, target, row_group_size=4096)
        content = target.getvalue()
        self.folder.write(path, content)
        minimum, maximum, nulls = {}, {}, {}
        for name in _STATISTICS & set(data.column_names):
            column = data[name]
            nulls[name] = column.null_count
            if column.null_count < len(column) and not pa.types.is_timestamp(column.type):
                bounds = pa.compute.min_max(column).as_py()
                minimum[name], maximum[name] = bounds["min"], bounds["max"]
        return DataFile(path, content.size, len(data), partition, minimum, maximum, nulls)

    @contextmanager
    def _committing(self, transactions: Mapping[str, int]) -> Iterator[_Commit]:
        """A commit on the version of the snapshot, which then moves to the new version."""
        base = self.version
        try:
            commit = _Commit(self._current())
            yield commit
        except CommitFailedError as error:
            raise LostRace(str(error)) from error
        except DeltaError as error:
            self._table = None
            if "not found" in str(error):  # delta-rs has no type of its own for this
                raise StaleSnapshot(str(error)) from error
            raise
        self.loaded_at = time.time()
        if commit.grown is not None and commit.table.version() == base + 1:  # no other commit in between
            self._snapshot.adopt(transactions, commit.grown)
        else:
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
    """Opens and creates tables through delta-rs."""

    name = "point"
    commits_alone = False

    def __init__(self, store: Store) -> None:
        self.store = store

    def exists(self, path: str) -> bool:
        process.claim()
        return next(self.store.folder(path).files("_delta_log"), None) is not None

    def open(self, path: str) -> PointTable:
        process.claim()
        return PointTable(self.store, path)

    def create(
        self, path: str, schema: pa.Schema, partitions: Sequence[str], properties: Mapping[str, str]
    ) -> None:
        process.claim()
        try:
            DeltaTable.create(
                path,
                schema,
                mode="ignore",
                partition_by=list(partitions),
                configuration=dict(properties),
                storage_options=self.store.delta_options,
            )
        except DeltaError:  # another process has just created it
            if not self.exists(path):
                raise


_STATISTICS = {"position", "sent_at", "delay_seconds", "first_offset", "last_offset"}


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
