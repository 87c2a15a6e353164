"""The point engine: one Delta table through delta-rs, in tens of milliseconds, without a JVM."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from lakequeue.storage import process
from lakequeue.storage.engine import DataFile, LostRace, StaleSnapshot
from lakequeue.storage.locks import local_path

_T = TypeVar("_T")
_WRITER = WriterProperties(compression="SNAPPY")
# the log is a part of the fence: only `sweep` removes entries of it
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_LOADS = 3
"""Tries to load the newest snapshot that may meet a trimmed log, before the last one."""
_LOST = ("oncurrent", "conflict", "deleted data", "Invalid table version", "already exists")


class PointTable:
    """One handle of one Delta table. ``engine.Table`` says what each method promises."""

    commits_alone = False

    def __init__(self, path: str, version: int | None = None) -> None:
        self.path = path
        self.loaded_at = time.time()
        self._table = DeltaTable(path, version) if version is not None else _newest(path)
        self._partitions: list[str] = self._table.metadata().partition_columns
        self._schema = pa.schema(self._table.schema())
        self._fields = [f for f in self._schema if f.name not in self._partitions]
        self._filesystem = _filesystem(self._table, path)
        self._known: dict[str, int | None] = {}
        self._known_at = self.version
        self._broken = False

    @property
    def version(self) -> int:
        return self._table.version()

    def refresh(self) -> None:
        asked_at = time.time()
        try:
            if self._broken:
                raise DeltaError("reload")
            self._table.update_incremental()
        except DeltaError:  # the log may have been trimmed below the loaded version: load it anew
            self._table = _newest(self.path)
            self._broken = False
        self.loaded_at = asked_at

    def transaction(self, app_id: str) -> int | None:
        # asking delta-rs takes 1-2 ms, so what is known of the loaded version is kept
        if self._known_at != self.version:
            self._known, self._known_at = {}, self.version
        if app_id not in self._known:
            self._known[app_id] = self._loaded(lambda table: table.transaction_version(app_id))
        return self._known[app_id]

    def files(self) -> pa.Table:
        actions = pa.table(self._loaded(lambda table: table.get_add_actions(flatten=True)))
        return actions.rename_columns(
            [{"size_bytes": "size", "num_records": "rows"}.get(n, n) for n in actions.column_names]
        )

    def read(self, paths: Sequence[str], columns: Sequence[str] | None = None) -> list[pa.Table]:
        # partitioning=None: the directories are named by partition values, which Delta's log holds anyway
        return [
            pq.read_table(self._location(path), columns=columns, filesystem=self._filesystem, partitioning=None)
            for path in paths
        ]

    def read_rows(self, path: str, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        with pq.ParquetFile(self._location(path), filesystem=self._filesystem) as file:
            begin, groups, skipped = 0, [], 0
            for index in range(file.num_row_groups):
                end = begin + file.metadata.row_group(index).num_rows
                if end <= first:
                    skipped = end
                elif begin <= last:
                    groups.append(index)
                begin = end
            table = file.read_row_groups(groups, columns=columns)
        return table.slice(first - skipped, last - first + 1)

    def append(self, rows: pa.Table, transactions: Mapping[str, int], token: str) -> None:
        with self._committing(transactions):
            write_deltalake(
                self._table,
                rows,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=_properties(transactions, token),
                post_commithook_properties=_HOOKS,
            )

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        self._write([_action(file) for file in files], "append", None, transactions, token)

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        filters = [
            (name, "in", [_partition_text(value) for value in values]) for name, values in partition.items()
        ]
        actions = [_action(self._write_file(table)) for table in rows]
        self._write(actions, "overwrite", filters, transactions, token)

    def merge(
        self,
        source: pa.Table,
        on: Sequence[str],
        target_filter: str,
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        updates = {f'"{name}"': f's."{name}"' for name in self._schema.names}
        predicate = " AND ".join([*(f"t.{name} = s.{name}" for name in on), f"({target_filter})"])
        with self._committing(transactions):
            (
                self._table.merge(
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

    def landed(self, token: str, since: int) -> bool:
        behind = self._table.version() - since
        return behind > 0 and any(entry.get("userMetadata") == token for entry in self._table.history(behind))

    def unused(self, hours: float) -> list[str]:
        self.refresh()
        # delta-rs would make two commits of a VACUUM; here it only names the files
        return self._table.vacuum(
            retention_hours=int(hours), dry_run=True, enforce_retention_duration=False, full=True
        )

    def checkpoint(self) -> None:
        self.refresh()
        self._table.create_checkpoint()

    def _loaded(self, question: Callable[[DeltaTable], _T]) -> _T:
        """Asks the loaded snapshot, of which delta-rs reads parts of the log only when it is asked."""
        try:
            return question(self._table)
        except DeltaError as error:
            newest = _newest(self.path)
            if newest.version() != self.version:
                self._broken = True
                raise StaleSnapshot(str(error)) from error
            self._table = newest  # the same snapshot, by a checkpoint that was made since
            return question(newest)

    def _write(
        self,
        actions: list[AddAction],
        mode: str,
        filters: list[tuple[str, str, list[str]]] | None,
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        with self._committing(transactions):
            self._table.create_write_transaction(
                actions,
                mode,
                self._table.schema(),
                self._partitions,
                partition_filters=filters,
                commit_properties=_properties(transactions, token),
                post_commithook_properties=_HOOKS,
            )
            self.refresh()  # this call leaves the handle on the version before its own commit

    def _write_file(self, rows: pa.Table) -> DataFile:
        """Writes rows of one partition as a file below the table, not yet part of it."""
        partition = {name: _partition_text(rows[name][0].as_py()) for name in self._partitions}
        data = rows.select([f.name for f in self._fields])
        folder = "/".join(f"{name}={value}" for name, value in partition.items() if name != "opened_at")
        path = f"{folder}/{uuid.uuid4()}.parquet"
        target = self._location(path)
        if isinstance(self._filesystem, pa_fs.LocalFileSystem):
            self._filesystem.create_dir(target.rpartition("/")[0])
        # row groups of a few thousand rows let a receive of ten messages read little
        pq.write_table(data, target, filesystem=self._filesystem, row_group_size=4096)
        minimum, maximum, nulls = {}, {}, {}
        for name in _STATISTICS & set(data.column_names):
            column = data[name]
            nulls[name] = column.null_count
            if column.null_count < len(column) and not pa.types.is_timestamp(column.type):
                bounds = pa.compute.min_max(column).as_py()
                minimum[name], maximum[name] = bounds["min"], bounds["max"]
        size = self._filesystem.get_file_info(target).size
        return DataFile(path, size, len(data), partition, minimum, maximum, nulls)

    def _location(self, path: str) -> str:
        # Delta's log holds URL-encoded paths; get_add_actions answers with them as they are
        path = unquote(path)
        local = local_path(self.path)
        return f"{local}/{path}" if local is not None else path

    @contextmanager
    def _committing(self, transactions: Mapping[str, int]) -> Iterator[None]:
        base = self.version
        try:
            yield
        except CommitFailedError as error:
            raise LostRace(str(error)) from error
        except DeltaError as error:
            if any(word in str(error) for word in _LOST):
                raise LostRace(str(error)) from error
            if "not found" in str(error):
                self._broken = True
                raise StaleSnapshot(str(error)) from error
            raise
        self.loaded_at = time.time()
        if self._known_at == base and self.version == base + 1:  # nobody else in between
            self._known.update(transactions)
            self._known_at = self.version


class PointEngine:
    """Opens and creates tables through delta-rs."""

    name = "point"

    commits_alone = False

    def exists(self, path: str) -> bool:
        process.claim()
        return DeltaTable.is_deltatable(path)

    def open(self, path: str) -> PointTable:
        process.claim()
        try:
            return PointTable(path)
        except TableNotFoundError as error:
            raise FileNotFoundError(path) from error

    def create(
        self, path: str, schema: pa.Schema, partitions: Sequence[str], properties: Mapping[str, str]
    ) -> None:
        process.claim()
        try:
            DeltaTable.create(
                path, schema, mode="ignore", partition_by=list(partitions), configuration=dict(properties)
            )
        except DeltaError:  # somebody else has just created it
            if not DeltaTable.is_deltatable(path):
                raise


_STATISTICS = {"position", "sent_at", "delay_seconds", "first_offset", "last_offset"}


def _newest(path: str) -> DeltaTable:
    for _ in range(_LOADS):
        try:
            return DeltaTable(path)
        except TableNotFoundError:
            raise
        except DeltaError:  # stopped between listing the log and reading it, which was trimmed meanwhile
            pass
    return DeltaTable(path)


def _properties(transactions: Mapping[str, int], token: str) -> CommitProperties:
    # Spark and delta-rs both read back only this key of a commit's metadata
    return CommitProperties(
        custom_metadata={"userMetadata": token},
        app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
    )


def _action(file: DataFile) -> AddAction:
    return AddAction(file.path, file.size, dict(file.partition), int(time.time() * 1000), True, file.statistics())


def _partition_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "strftime"):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def _filesystem(table: DeltaTable, path: str) -> pa_fs.FileSystem:
    if local_path(path) is not None:
        return pa_fs.LocalFileSystem()
    return pa_fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
