"""The catalog of a root: the table ``queues``. Each row describes a queue, or a deleted queue."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import attrs
import pyarrow as pa

from lakequeue.errors import DamagedTable, LakeQueueError, QueueClientError, RootDoesNotExist
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.names import is_name, name_hash
from lakequeue.model.redrive_policies import QueueLocation, RedrivePolicy
from lakequeue.storage import cleaning, layout
from lakequeue.storage.checked_names import Misplaced, queue_folder, shard_count, shard_folders, shown
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.delta_log import listed
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, Decision, Ids, transact
from lakequeue.storage.folder import Folder, Freed
from lakequeue.storage.reserve import take
from lakequeue.storage.roots import local_path, make_directory, obstacle, unsafe_owner
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import CHECKS
from lakequeue.storage.table_version import TableVersion

CREATION = 3600.0
"""Maximum seconds for creating a queue on an object store. A slower creation adds no row to the catalog."""
ORPHAN_SECONDS = 48 * 3600.0
"""Seconds for which an object store keeps the tables of a queue that has neither a row nor messages."""

NO_DIRECTORY = "does not exist (is its volume mounted, is the path right?)"

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")


@attrs.frozen
class QueueRow:
    """A row of the catalog, which describes one incarnation of a queue: a queue that was deleted and created again
    has two rows. Instants are in microseconds. Attributes have their wire names.
    """

    name: str
    region: str
    key: str
    created_at: int
    modified_at: int
    attributes: Mapping[str, str]
    shards: int
    handle_key: bytes = attrs.field(repr=False)
    attributes_version: int = 1
    tags: Mapping[str, str] = attrs.field(factory=dict)
    move_tasks: str | None = None
    """Redrives that were requested over HTTP, stored as JSON for the server."""
    deleted_at: int | None = None
    layout_version: int = layout.LAYOUT_VERSION

    @property
    def place(self) -> QueueLocation:
        return QueueLocation(self.region, self.name)

    @property
    def redrive(self) -> RedrivePolicy | None:
        """The redrive policy of the queue, or None without a policy."""
        wanted = "RedrivePolicy" in self.attributes  # Parsing all attributes takes longer.
        return QueueAttributes.from_wire(self.attributes).redrive if wanted else None


class Catalog:
    """The ``queues`` table of a root. Not thread-safe."""

    def __init__(self, engine: Engine, root: str) -> None:
        self._engine = engine
        self.root = root
        self._table: Table | None = None
        self._loaded: tuple[int, object] = -1, None
        self._rows: list[QueueRow] = []
        self._by_key: dict[str, QueueRow] = {}
        self._living: dict[tuple[str, str], QueueRow] = {}  # By region and name.
        self._known: dict[str, list[QueueRow]] = {}  # By file.

    def rows(self) -> list[QueueRow]:
        """Returns all rows, also of deleted queues. Raises QueueClientError if the table cannot be read."""
        opened = self._table is not None
        table = self._open()
        if opened:
            table.refresh()
        newest = table.version, table.lineage
        if newest != self._loaded:
            files = table.files()
            # Creating a queue adds a file of one row. Reading the rows of 3,000 queues again would take 60 ms.
            new = [file for file in files if file.path not in self._known]
            rows = rows_by_file(table.rows(new), self.root)
            known = self._known | dict(zip((file.path for file in new), rows, strict=True))
            gone = [self._known[path] for path in self._known.keys() - {file.path for file in files}]
            self._known = {file.path: known[file.path] for file in files}
            self._rows = list(chain.from_iterable(self._known.values()))
            for row in chain.from_iterable(gone):
                if self._by_key.get(row.key) is row:
                    del self._by_key[row.key]
                if self._living.get((row.region, row.name)) is row:
                    del self._living[row.region, row.name]
            for row in chain.from_iterable(rows):
                self._by_key[row.key] = row
                if row.deleted_at is None:
                    self._living[row.region, row.name] = row
            self._loaded = newest
        return self._rows

    def release(self) -> None:
        """Closes the handle on the table. The next call opens a new handle."""
        self._table = None

    def live(self, region: str, name: str) -> QueueRow | None:
        """Returns the queue with this name that is not deleted. Returns None if there is no such queue."""
        self.rows()
        return self._living.get((region, name))

    def incarnation(self, key: str) -> QueueRow | None:
        """Returns the row with this queue key, even if the queue was deleted. None if there is no such row."""
        self.rows()
        return self._by_key.get(key)

    def hidden(self, region: str, name: str) -> list[str]:
        """Returns keys of queues with this name that have messages, but no row in the catalog (DUR-7)."""
        queues, prefix = self._engine.store.folder(f"{self.root}/q"), f"{name_hash(region, name)}-"
        unknown = [key for key in queues.folders(beginning=prefix) if key not in self._by_key]
        found = [key for key in unknown if holds_messages(self._engine, queues / key)]
        if found:
            self.rows()  # Another process may have created the row meanwhile.
        return [key for key in found if key not in self._by_key]

    def transact(self, decide: Callable[[], Decision[_T]], busy: str) -> _T:
        """Loads the newest rows, commits the change that ``decide`` returns, and returns the change's value."""
        return transact(self._open(), lambda _: decide(), busy=busy).value

    def put(self, rows: Sequence[QueueRow], fence: Ids, value: _T) -> Change[_T]:
        """Returns a change that writes ``rows`` and results in ``value``. ``fence``: from the method ``fence``."""
        return self._merge(rows, fence, "put", value)

    def remove(self, row: QueueRow) -> Change[None]:
        """Returns the change that removes ``row`` from the catalog."""
        return self._merge([row], self.fence(row.place), "del", None)

    def _merge(self, rows: Sequence[QueueRow], fence: Ids, op: str, value: _T) -> Change[_T]:
        source = table_of(rows).append_column("op", pa.repeat(op, len(rows)))
        ids = {name: changes + 1 for name, changes in fence.items()}
        return Change(fence, ids, partial(self._open().merge, source, "key"), value)

    def fence(self, *places: QueueLocation) -> Ids:
        """Returns each name's application id and version. A commit with this fence fails if a version changed."""
        names = (f"queue-{name_hash(place.region, place.name)}" for place in places)
        return {name: self._open().transaction(name) for name in names}

    def sweep(self) -> Freed:
        """Removes unneeded files and log entries of ``queues``, and tables of queues without a row."""
        table = self._engine.open(layout.queues_path(self.root))
        return self._remove_orphans() + cleaning.sweep(table, layout.QUEUES_RETENTION)

    @contextmanager
    def creating(self, longest: float = CREATION) -> Iterator[Callable[[], bool]]:
        """Protects the tables of new queues from removal during the block.

        Yields a function that returns True while the tables are protected. On object stores, the protection ends
        after ``longest`` seconds.
        """
        path, began = layout.queues_path(self.root), time.time()
        with committing(path, exclusive=self._engine.commits_alone):
            yield lambda: local_path(path) is not None or time.time() - began < longest

    @contextmanager
    def copying(self) -> Iterator[Callable[[], bool]]:
        """Protects the tables of queues that the block copies into this root, in the same way as ``creating``.

        On object stores, the protection ends after a day.

        Raises:
            QueueClientError: another copy into this root is running. Only local disks detect another copy.
        """
        queues = f"{self.root}/q"
        self._engine.store.folder(queues).make()
        with ExitStack() as alone:
            try:
                alone.enter_context(committing(queues, exclusive=True, patience=1))
            except LockHeld as error:
                raise QueueClientError(f"another copy into {self.root} is under way") from error
            yield alone.enter_context(self.creating(ORPHAN_SECONDS / 2))

    def _remove_orphans(self) -> Freed:
        """Removes the tables of deleted queues and of failed creations. Keeps tables that hold messages."""
        freed = Freed()
        with committing(layout.queues_path(self.root), exclusive=True, patience=cleaning.PATIENCE):
            known = {row.key for row in self.rows()}
            until = math.inf
            if local_path(self.root) is None:
                until = storage_now(self._engine.store.folder(layout.queues_path(self.root))) - ORPHAN_SECONDS
            queues = self._engine.store.folder(f"{self.root}/q")
            for name in queues.folders():
                if name in known:
                    continue
                if holds_messages(self._engine, queues / name):
                    _log.warning("%s/q/%s has messages, and no row in the catalog: it is kept", self.root, name)
                    continue
                with (queues / name).pinned() as folder:
                    # In a root that was put back, the name may be there again.
                    if name not in {row.key for row in self.rows()}:
                        freed += cleaning.remove_tables(folder, until)
        return freed

    def prepare(self, mode: int = 0o700) -> None:
        """Creates the root and its ``queues`` table, unless they exist.

        The permission bits ``mode`` are set on a new local directory, whatever the umask is.

        Raises:
            QueueClientError: the root holds other files, or cannot be written.
        """
        if self._table is not None:
            return
        path, local = layout.queues_path(self.root), local_path(self.root)
        with self._or_it_cannot_be("written"):
            self._check_place(local)
            if local is not None and not os.path.isdir(f"{local}/queues"):
                make_directory(local, mode)
            self._table = self._found(path)
            if self._table is not None:
                return
            if self._holds_others():
                raise QueueClientError(f"{self.root} holds something else; a root is an empty or new directory")
            if local is not None:
                with suppress(PermissionError):  # Another user owns it and has set the mode.
                    os.chmod(local, mode)
            self._engine.store.check_creates()
            self._engine.create(path, layout.QUEUES, [], layout.QUEUES_PROPERTIES)
            if local is not None:
                take(local)

    @contextmanager
    def _or_it_cannot_be(self, done: str) -> Iterator[None]:
        try:
            yield
        except QueueClientError:
            raise
        except Exception as error:
            raise QueueClientError(f"{self.root} cannot be {done}: {first_line(error)}") from error

    def _found(self, path: str) -> Table | None:
        try:
            return self._engine.open(path)
        except QueueClientError:
            raise
        except Exception as error:
            if not self._engine.exists(path):
                return None
            if isinstance(error, FileNotFoundError):  # Another process has created it since.
                return self._engine.open(path)
            raise

    def _holds_others(self) -> bool:
        """True if the root has files of other programs. Files of a half-created root do not count."""
        local = local_path(self.root)
        if local is not None:
            return bool(set(os.listdir(local)) - layout.ROOT_FOLDERS)
        names = (entry.name.partition("/")[0] for entry in self._engine.store.folder(self.root).files())
        allowed = layout.ROOT_FOLDERS | {CHECKS, ""}  # Consoles create directories as objects without a name.
        return any(name not in allowed for name in names)

    def _open(self) -> Table:
        if self._table is None:
            local = local_path(self.root)
            self._check_place(local)
            if local is not None and not os.path.isdir(local):
                raise RootDoesNotExist(f"{self.root} {NO_DIRECTORY}; creating a queue makes it")
            with self._or_it_cannot_be("read"):
                self._table = self._found(layout.queues_path(self.root))
            if self._table is None:
                if self._holds_others():
                    raise QueueClientError(f"{self.root} holds something else, and no queues")
                raise RootDoesNotExist(f"{self.root} holds no queues; creating a queue makes it a root")
        return self._table

    def _check_place(self, local: str | None) -> None:
        reason = None if local is None else obstacle(local) or unsafe_owner(local, layout.ROOT_FOLDERS)
        if reason is not None:
            raise QueueClientError(reason)


def rows_of(table: TableVersion, root: str) -> list[QueueRow]:
    """Returns the rows of one version of the catalog. Raises the errors of ``rows_by_file``."""
    return [row for rows in rows_by_file(table.read(table.files()), root) for row in rows]


def rows_by_file(parts: Sequence[pa.Table], root: str) -> list[list[QueueRow]]:
    """Returns each file's rows. Raises DamagedTable, or QueueClientError for rows of another layout version."""
    # Checked before the rest is read, because another layout may lack columns.
    versions = {version for part in parts for version in part["layout_version"].to_pylist()}
    for version in versions - {layout.LAYOUT_VERSION}:
        known = f"this lakequeue knows {layout.LAYOUT_VERSION}"
        raise QueueClientError(f"{root} has layout version {version}, {known}: {_advice(version)}")
    try:
        return [[_row(row) for row in _plain(part)] for part in parts]
    except (pa.ArrowException, KeyError, TypeError, ValueError, LakeQueueError) as error:
        reason = f"its rows cannot be read: {first_line(error)}"
        raise DamagedTable(layout.queues_path(root), None, reason) from error


def _advice(version: int) -> str:
    if version > layout.LAYOUT_VERSION:
        return "install a newer one"
    if version == layout.LAYOUT_VERSION - 1:
        return "end all processes that use it, and run `lakequeue upgrade`"
    return f"the last lakequeue that can read it is {'0.2' if version == 4 else '0.1'}"


def _row(found: Mapping[str, Any]) -> QueueRow:
    """Builds a row from stored values. Raises ValueError if lakequeue cannot have written the values (DUR-71)."""
    row = QueueRow(**found)
    queue_folder(row.key, row.region, row.name)
    shard_count(row.shards)
    if not is_name(row.name):
        raise Misplaced(f"has a queue with the name {shown(row.name)}")
    if len(row.handle_key) != layout.HANDLE_KEY_BYTES:
        raise Misplaced(f"has a queue {row.name} with a key of {len(row.handle_key)} bytes")
    if row.attributes:  # A queue that was listed again may have no known attributes.
        QueueAttributes.check_stored(row.attributes)
    return row


def table_of(rows: Sequence[QueueRow]) -> pa.Table:
    """Converts rows to an Arrow table with the catalog's schema."""
    cells = [{name: _cell(value) for name, value in attrs.asdict(row).items()} for row in rows]
    return pa.Table.from_pylist(cells, schema=layout.QUEUES)


def lost_row(root: str, key: str, name: str) -> DamagedTable:
    """Returns the error for a queue that has messages, but no row in the catalog (DUR-7)."""
    reason = f"has messages, and no row in the catalog; `lakequeue repair {name}` lists it again"
    return DamagedTable(layout.tables_path(root, key), None, reason)


def holds_messages(engine: Engine, queue: Folder) -> bool:
    """True if a queue has had messages and was not deleted. Also True if the queue's log is damaged (DUR-7)."""
    shards = shard_folders(queue.folders())
    if queue.exists(layout.COPYING):
        logs = (listed(queue / f"{shard}/{table}") for shard in shards for table in ("messages", "receipts"))
        if not any({*log.entries, *log.checkpoints} - {0} for log in logs):
            return False
    for shard in shards:
        try:
            log = engine.open(f"{queue.uri}/{shard}/messages")
        except FileNotFoundError:
            continue
        except DamagedTable:
            return True
        if 0 < log.transaction(layout.SEND_ID) < layout.CLOSED:
            return True
    return False


def _plain(part: pa.Table) -> list[dict[str, Any]]:
    part = part.select(layout.QUEUES.names).cast(layout.QUEUES)
    for index, field in enumerate(part.schema):
        if field.type == layout.INSTANT:
            part = part.set_column(index, field.name, part[field.name].cast(pa.int64()))
    rows: list[dict[str, Any]] = part.to_pylist()
    for row in rows:
        row["attributes"], row["tags"] = dict(row["attributes"] or []), dict(row["tags"] or [])
    return rows


def _cell(value: object) -> object:
    return list(value.items()) if isinstance(value, Mapping) else value
