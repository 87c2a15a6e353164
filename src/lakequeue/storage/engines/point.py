"""The point engine, which commits to one Delta table in milliseconds, without a JVM."""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage import layout
from lakequeue.storage.delta_log import (
    LAST_CHECKPOINT,
    LOG,
    Entry,
    LiveFile,
    checkpoint_name,
    entry_name,
    entry_of,
    is_table,
)
from lakequeue.storage.engines import entries, process
from lakequeue.storage.engines.commit_failures import LostRace, StaleSnapshot
from lakequeue.storage.engines.data_files import DataFile, Description, partition_text
from lakequeue.storage.engines.disk_turn import opened_folder
from lakequeue.storage.engines.log_trimming import write_checkpoint
from lakequeue.storage.engines.merge_rows import rewrites
from lakequeue.storage.folder import Folder, LocalFolder
from lakequeue.storage.parquet_files import write_table
from lakequeue.storage.snapshot import LogTrimmed, ReplacedLog, Snapshot
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store
from lakequeue.storage.table_version import TableVersion

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")
_ROW_GROUP = 4 * 2**20
"""Approximate size of a row group in memory, in bytes."""
_UNPACKED = 2**14
"""Bytes in memory below which a file is not compressed."""
_READS = 3
"""Maximum number of times that a failed read of the newest version is repeated."""
_AHEAD = 4
"""Maximum number of log entries that a commit to an object store reads concurrently."""
_PUT_BACK = "was replaced during a commit, whose outcome is unknown: a backup was restored, or a repair was made"


class Table(TableVersion):
    """A handle on one Delta table. Not thread-safe.

    All reads refer to the loaded snapshot. ``refresh`` and commits load a newer snapshot.

    A commit raises ``LostRace`` if another commit came first. After any other error, the commit may still have
    landed: ask ``landed``.
    """

    commits_alone = False
    """True if commits on local disks need the table's exclusive lock."""
    state: Snapshot

    def __init__(self, store: Store, path: str, version: int | None = None) -> None:
        """Opens the newest version of the table, or a given version, which is read-only."""
        self.store = store
        self.folder = self._writes = store.folder(path)
        folder = self.folder
        super().__init__(folder, self._newest(folder) if version is None else Snapshot(folder, version))
        self.lineage = object()
        """Identifies the log. Becomes a new object if the log may have been replaced, as by a restore."""
        self.lost_races = 0
        """Races that this handle has lost since its last commit. The next commit writes this number to the log."""
        self._unsynced = False
        self._last_written: tuple[int, Entry] | None = None  # the last entry written, and its version

    def refresh(self) -> None:
        """Loads the newest snapshot. Raises ReplacedLog if another log has replaced the table's log."""
        self.look()
        self.sync_entries()

    def look(self, most: float = math.inf, at_once: int = 1) -> None:
        """Loads the newest snapshot. A power cut may still undo its entries, until ``sync_entries`` is called.

        For the arguments, see ``Snapshot.follow``.
        """
        self._follow(partial(Snapshot.follow, most=most, at_once=at_once))

    def sync_entries(self) -> None:
        """Makes the entries that ``look`` has loaded survive a power cut. Each commit does this first."""
        if self._unsynced:
            self.folder.sync([LOG], above=False)
            self._unsynced = False

    def confirm(self, most: float = math.inf, at_once: int = 1) -> None:
        """Loads the newest snapshot like ``look``, but always checks first that the log was not replaced."""
        self._follow(partial(Snapshot.confirm, most=most, at_once=at_once))
        self.sync_entries()

    def _follow(self, follow: Callable[[Snapshot], bool]) -> None:
        try:
            self._unsynced |= follow(self.state)
        except LogTrimmed:
            newest = self._newest(self.folder)
            if newest.version < self.version:
                raise ReplacedLog(self.path, entry_name(self.version)) from None
            self.state, self.lineage = newest, object()
        self._note_copy()

    def _note_copy(self) -> bool:
        """If files of the log are copies, as after a restore, replaces ``lineage`` and returns True."""
        copied, self.state.was_copied = self.state.was_copied, False
        self.lineage = object() if copied else self.lineage
        return copied

    @contextmanager
    def pinned(self) -> Iterator[int | None]:
        """Opens the directory, so that commits in the block use it even if it is renamed.

        Yields the descriptor of a local directory, or None on an object store.
        """
        opened = None if self.folder.local is None else opened_folder(self.folder.local)
        with self.folder.pinned(opened) as self._writes:
            try:
                yield self._writes.descriptor
            finally:
                self._writes = self.folder

    def is_intact(self) -> bool:
        """True if a local log still has the entry of the loaded version, in the same file and not in a copy.

        Raises ReplacedLog if the log has another entry of this version.
        """
        return self.state.is_in_log(self._writes) and not self._note_copy()

    def set_aside(self) -> None:
        """Removes entries that a restore left over (DUR-86). The caller must lock a local table exclusively."""
        self.state.strays = []
        # anew if an entry goes between the listing and its read: the restore removes entries itself
        strays = self._load(lambda: Snapshot(self._writes, put_back=self.path in self.store.restored)).strays
        self.store.restored.discard(self.path)
        if not strays:
            return
        # the newest first: if this process is killed, the entries left still follow a gap, or another base
        self._writes.remove(map(entry_name, reversed(strays)))
        # lists find the newest checkpoint, if none is named
        self._writes.remove([*map(checkpoint_name, reversed(strays)), LAST_CHECKPOINT])
        self._writes.sync([LOG], above=False)
        text = "%s: removed entries and checkpoints of versions %d to %d, to which a restored backup does not lead"
        _log.warning(text, self.path, strays[0], strays[-1])

    def learn(self, other: Table) -> None:
        """Takes over the last commit of another handle of this process, to save reading it. Thread-safe."""
        if other._last_written is not None:
            self.state.learn(*other._last_written)

    def check_history(self) -> None:
        self.refresh()

    def lost(self, file: LiveFile) -> Exception:
        """Returns the error for a missing file: DamagedTable if the newest snapshot needs the file, ReplacedLog if
        the log went back to an earlier version, and StaleSnapshot in all other cases.
        """
        newest = self._newest(self.folder)
        if file.path in newest.live:
            return super().lost(file)
        if not self.is_intact() and newest.version < self.version:
            return ReplacedLog(self.path, entry_name(self.version))
        return StaleSnapshot(f"{file.name} of {self.path} was removed")

    def append(
        self,
        rows: pa.Table,
        transactions: Mapping[str, int],
        token: str,
        partition: Mapping[str, Any] | None = None,
    ) -> None:
        """Appends rows in one commit. ``rows`` has the table's schema, without the columns of ``partition``."""
        file = self.write_file(rows) if partition is None else write_rows(self._writes, rows, partition)
        self._create_entry("WRITE", [file], [], transactions, token)

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        """Commits files that are in the table's directory already. Without files, makes an empty commit."""
        self._writes.sync(file.path for file in files)  # other processes wrote them, maybe without syncs

        def fits(other: Entry) -> bool:
            return other.transactions.keys().isdisjoint(transactions)

        self._create_entry("WRITE", files, [], transactions, token, fits)

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
        answers: str | None = None,
    ) -> None:
        """Replaces all rows that have one of these partition values, by ``rows``, in one commit.

        Each table of ``rows`` becomes a file. A table must not be empty, and must not have rows of two partitions.
        """
        removed = [file for file in self.files() if _within(file, partition)]
        added = [self.write_file(each) for each in rows]
        gone = {file.path for file in removed}

        def fits(other: Entry) -> bool:
            apart = other.transactions.keys().isdisjoint(transactions) and gone.isdisjoint(other.removed)
            return apart and not any(_within(file, partition) for file in other.added)

        self._create_entry("WRITE", added, removed, transactions, token, fits, answers)

    def exchange(
        self, removed: Sequence[LiveFile], rows: Iterable[pa.Table], transactions: Mapping[str, int], token: str
    ) -> None:
        """Replaces files by new files, one for each table of ``rows``. Raises LostRace if a commit came first."""
        added = [self.write_file(each) for each in rows]
        self._create_entry("WRITE", added, removed, transactions, token)

    def merge(
        self,
        source: pa.Table,
        key: str,
        transactions: Mapping[str, int],
        token: str,
        answers: str | None = None,
    ) -> None:
        """Inserts, replaces or deletes rows by ``key``. The column ``op`` of ``source`` has ``put`` or ``del``.

        Rows match if ``key`` and the partition columns are equal. The new files' rows stay in memory.
        """
        partitions = self.state.partitions
        added, removed, contents = [], [], {}
        for rewrite in rewrites(source, key, partitions, self.files(), lambda file: self.rows([file])[0]):
            removed += rewrite.removed
            if len(rewrite.rows):
                added.append(write_rows(self._writes, rewrite.rows, rewrite.partition))
                contents[added[-1].path] = rewrite.rows
        self._create_entry("MERGE", added, removed, transactions, token, answers=answers)
        self._rows |= contents

    def landed(self, token: str, since: int) -> bool:
        """True if a readable commit after version ``since`` has ``token``. Call ``refresh`` before."""
        return token in self.state.tokens(since)

    def has_read_since(self, since: int) -> bool:
        """True if there are versions after ``since``, and the log entries of all of them could be read."""
        return 0 < len(list(self.state.tokens(since))) == self.version - since

    def checkpoint(self) -> None:
        # from storage, not from memory: this handle may have committed at a version that others have trimmed
        with self.folder.pinned() as folder:
            write_checkpoint(folder, self._newest(folder))

    def _newest(self, folder: Folder) -> Snapshot:
        snapshot = self._load(lambda: Snapshot(folder, put_back=self.path in self.store.restored))
        # As in `sync_entries`, because the writers may not have synced what this process answers or builds on. The
        # directory above is synced only here: with the drafts of eight senders in it, that takes milliseconds.
        folder.sync([LOG])
        return snapshot

    def _load(self, load: Callable[[], Snapshot]) -> Snapshot:
        """Calls ``load`` to load the newest version. Calls it again if another process trims the log meanwhile."""

        def renew(error: Exception) -> None:
            lists = self.folder.local is not None and is_table(self.folder)
            if isinstance(error, FileNotFoundError) and not lists:
                raise error  # no table is there; else all that was listed is gone

        try:
            return _again(load, renew, (LogTrimmed, FileNotFoundError))
        except LogTrimmed as error:
            raise DamagedTable(self.path, None, f"its log has a gap, {error}") from error

    def repeated(self, read: Callable[[], _T]) -> _T:
        """Calls ``read`` and returns its result. If a file is missing, refreshes the table and calls it again."""
        return _again(read, lambda _: self.refresh(), OSError)

    def write_file(self, rows: pa.Table) -> DataFile:
        """Writes rows of one partition as a file below the table. Commits nothing."""
        return write_file(self._writes, rows, self.state.partitions)

    def _create_entry(
        self,
        operation: str,
        added: Sequence[DataFile],
        removed: Sequence[LiveFile],
        transactions: Mapping[str, int],
        token: str,
        fits: Callable[[Entry], bool] | None = None,
        answers: str | None = None,
    ) -> None:
        """Creates the entry of the next version, or of a later one if ``fits`` accepts the entries between.

        Raises:
            LostRace: another commit came first.
            ReplacedLog: a backup was restored meanwhile; ``outcome_unknown`` is set.
        """
        self.sync_entries()
        before = self.version

        def entry() -> list[Mapping[str, Any]]:
            return entries.entry(operation, added, removed, transactions, token, base=self.state, answers=answers)

        # A root that went away since the check of the base, as a mount point does, must not be made again: the
        # commit would be acknowledged, and gone once the root is back.
        tries = 0
        while (
            mark := self._writes.create(
                entry_name(self.version + 1), entries.encoded(written := entry()), new_folder=False
            )
        ) is None:
            tries += 1
            if fits is None or not self._moves_on(fits, tries):
                raise LostRace(f"{self.path} has moved on from version {before}")
        based = self._is_still_based()
        lost = self._lost_entries() if based else 0
        if not based or lost:
            error = ReplacedLog(self.path, None, _PUT_BACK, outcome_unknown=True)
            # one lost entry may be damage, and what follows it stays
            error.in_place = (not based or lost > 1) and self._writes.is_at_path()
            if error.in_place:
                self.store.restored.add(self.path)
            raise error
        own = entry_of(written)
        own.mark, own.follows = mark, self.state.mark
        self.state.apply(own)
        self._last_written = self.version, own
        if self.version % self.state.checkpoint_every:
            return
        if self.folder.local is not None:  # this version is in the log: see `_is_still_based`
            self._try(lambda: write_checkpoint(self._writes, self.state))
        else:  # it reads the entries since the last one, in many requests
            threading.Thread(target=self._try, args=[self.checkpoint], name="lakequeue-checkpoint").start()

    def _moves_on(self, fits: Callable[[Entry], bool], tries: int) -> bool:
        """Returns True if ``fits`` accepts the entries that other processes have committed meanwhile.

        Loads accepted entries. On object stores, loads a refused entry, too.
        """
        fitting, remote = False, self.folder.local is None
        for other in self.state.upcoming(min(tries, _AHEAD) if remote else 1):  # none if a restore left it over
            fitting = not (other.metadata or other.protocol) and fits(other)
            if fitting:
                # as in `refresh`: else a power cut could keep the commit that is built on it, but not the entry
                self._writes.sync([LOG], above=False)
            if fitting or remote:  # on a disk, `refresh` loads and syncs it
                self.state.apply(other)
            if not fitting:
                break
        return fitting

    def _is_still_based(self) -> bool:
        """True if a local log still has the entry before the new entry (DUR-85). Always True on object stores."""
        if not isinstance(self._writes, LocalFolder):
            return True  # a look costs a request
        try:
            based = self._writes.is_at_path() and self.state.is_in_log(self._writes)
            return based and self.state.is_anchored(self._writes)
        except ReplacedLog:
            return False

    def _lost_entries(self) -> int:
        return self.state.lost_entries(self._writes) if isinstance(self._writes, LocalFolder) else 0

    def _try(self, checkpoint: Callable[[], None]) -> None:
        try:
            checkpoint()
        except Exception as error:  # the commit has landed, and the next checkpoint covers it
            _log.warning("a checkpoint of %s failed: %s", self.path, first_line(error))


class Engine:
    """Opens and creates tables without a JVM."""

    name = "point"
    commits_alone = False

    def __init__(self, store: Store) -> None:
        self.store = store

    def exists(self, path: str) -> bool:
        process.note_use()
        return is_table(self.store.folder(path))

    def open(self, path: str) -> Table:
        process.note_use()
        return Table(self.store, path)

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
        folder.create(entry_name(0), entries.first_entry(path, schema, partitions, properties, files))


def _again(
    read: Callable[[], _T], renew: Callable[[Exception], None], gone: type[Exception] | tuple[type[Exception], ...]
) -> _T:
    """Calls ``read``. After an error of class ``gone``, calls ``renew`` and repeats, up to ``_READS`` times."""
    for _ in range(_READS):
        try:
            return read()
        except gone as error:
            renew(error)
    return read()


def _within(file: LiveFile, partition: Mapping[str, Sequence[int | bool | str]]) -> bool:
    return all(file.partition[name] in values for name, values in partition.items())


def write_file(
    table: Folder,
    rows: pa.Table,
    partitions: Sequence[str],
    *,
    name: str | None = None,
    new_folder: bool = False,
) -> DataFile:
    """Writes rows of one partition to a file, without a commit. The rows include the partition columns."""
    partition = {name: rows[name][0].as_py() for name in partitions}
    # By place, because names are looked up more slowly.
    data = rows.select([place for place, each in enumerate(rows.schema.names) if each not in partition])
    return write_rows(table, data, partition, name=name, new_folder=new_folder)


def write_rows(
    table: Folder,
    data: pa.Table,
    partition: Mapping[str, Any],
    *,
    name: str | None = None,
    new_folder: bool = False,
) -> DataFile:
    """Writes rows of one partition to a file, without a commit. The rows have no partition columns.

    If ``name`` is given, the file is not synced. ``Table.add`` syncs the file before the commit.
    """
    # not in a directory for each partition, as Delta does not ask for it: making one costs two more syncs
    path = name or f"{uuid.uuid4()}.parquet"
    target = pa.BufferOutputStream()
    # a receive of ten messages reads a row group
    size = layout.buffer_bytes(data)
    if size > _ROW_GROUP:  # for slices, that counts the whole arrays
        size = data.nbytes
    group = max(1, min(4096, _ROW_GROUP * len(data) // max(1, size)))
    # Of a file of a few rows, most would be the description of its columns: the log has the statistics that skip
    # it, and readers know the schema.
    many = len(data) > group
    options = {"compression": "none" if size < _UNPACKED else "snappy", "store_schema": False}
    write_table(data, target, row_group_size=group, write_statistics=many, use_dictionary=many, **options)
    content = target.getvalue()
    if name is None:
        table.write(path, content, new_folder=new_folder)
    else:
        table.offer(path, content)
    described = Description()
    described.add(data)
    return described.file(path, content.size, {name: partition_text(value) for name, value in partition.items()})
