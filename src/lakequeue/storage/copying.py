"""Copies tables. A copy has a snapshot's files, and a new Delta log with all application ids but no history."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence

import attrs

from lakequeue.errors import DamagedTable, QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile, entry_name
from lakequeue.storage.engines import entries
from lakequeue.storage.engines.data_files import DataFile, partition_text
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.stores import Store

_CHUNK = 8 * 2**20
_KINDS = {
    "messages": (layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES),
    "receipts": (layout.RECEIPTS, layout.RECEIPT_PARTITIONS, layout.RECEIPTS_PROPERTIES),
    "schedules": (layout.SCHEDULES, [], layout.SCHEDULES_PROPERTIES),
    "stats": (layout.STATS, layout.STATS_PARTITIONS, layout.STATS_PROPERTIES),
}


@attrs.frozen(eq=False)
class TableSnapshot:
    """A snapshot to copy. ``waiting`` has files of bulk sends that only other shards have committed so far."""

    table: Table
    path: str
    """Path of the table, relative to the root."""
    files: Sequence[LiveFile]
    transactions: Mapping[str, int]
    waiting: Sequence[LiveFile] = ()

    @classmethod
    def of(cls, table: Table) -> TableSnapshot:
        assert isinstance(table, Table)
        path = table.path.removeprefix(f"{table.store.root}/")
        return cls(table, path, table.files(), dict(table.state.transactions))

    @property
    def size(self) -> int:
        """Total bytes of the snapshot's files."""
        return sum(file.size for file in self.files)


class Copier:
    """Copies the files of tables, each file once. Calls ``report`` after each file."""

    def __init__(self, source: Store, target: Store, report: Callable[[], None]) -> None:
        self._source, self._target = source, target
        self._report = report
        self._copied: set[tuple[str, str]] = set()  # Pairs of table and path.
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """Number of files that were copied so far, even if a later snapshot no longer has them."""
        return len(self._copied)

    def missing(self, snapshot: TableSnapshot) -> int:
        """Returns the number of files of a snapshot that are not copied yet."""
        return len(self._missing(snapshot))

    def _missing(self, snapshot: TableSnapshot) -> list[LiveFile]:
        wanted = (*snapshot.files, *snapshot.waiting)
        return [file for file in wanted if (snapshot.path, file.path) not in self._copied]

    def copy(self, snapshot: TableSnapshot) -> None:
        """Copies missing files. Raises StaleSnapshot, DamagedTable or ReplacedLog if the source lacks a file."""
        source, target = snapshot.table.folder, self._folder(snapshot)

        def copy(file: LiveFile) -> None:
            try:
                _copy_file(source, target, file)
            except FileNotFoundError as error:
                raise snapshot.table.lost(file) from error
            with self._lock:
                self._copied.add((snapshot.path, file.path))
                self._report()

        (source if source.local is None else target).for_each(copy, self._missing(snapshot))

    def finish(self, snapshot: TableSnapshot, transactions: Mapping[str, int]) -> None:
        """Checks the copied files, and writes a Delta log with the application ids ``transactions``.

        Raises DamagedTable for a missing or wrong file, QueueClientError if the target has a log already.
        """
        folder = self._folder(snapshot)
        found = {entry.name: entry.size for entry in folder.files() if not entry.name.startswith("_")}
        for file in (*snapshot.files, *snapshot.waiting):
            size = found.pop(file.name, None)
            if size != file.size:
                raise DamagedTable(folder.uri, file.name, f"has {size or 0} bytes instead of {file.size}")
        folder.remove(found)  # Files that only earlier snapshots have.
        schema, partitions, properties = _KINDS[snapshot.path.rpartition("/")[2]]
        data = entries.first_entry(
            folder.uri, schema, partitions, properties, map(_data_file, snapshot.files), transactions
        )
        if not folder.create(entry_name(0), data):
            raise QueueClientError(f"{folder.uri} was written by another process meanwhile")

    def _folder(self, snapshot: TableSnapshot) -> Folder:
        return self._target.folder(f"{self._target.root}/{snapshot.path}")


def _copy_file(source: Folder, target: Folder, file: LiveFile) -> None:
    size = source.entry(file.name).size
    if size != file.size:
        raise DamagedTable(source.uri, file.name, f"has {size} bytes instead of {file.size}")
    with source.open(file.name, size) as data, target.writer(file.name) as copy:
        shutil.copyfileobj(data, copy, _CHUNK)


def _data_file(file: LiveFile) -> DataFile:
    partition = {name: partition_text(value) for name, value in file.partition.items()}
    return DataFile(file.name, file.size, file.rows, partition, file.minimum, file.maximum, file.nulls)
