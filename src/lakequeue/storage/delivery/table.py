"""Reads and creates delivery tables, appends the rows of deliveries, and blocks deliveries (TAB-20)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from urllib.parse import unquote

import attrs
import pyarrow as pa

from lakequeue.errors import MissingPackage, QueueClientError, RowsRefused, TableUnavailable, UnsupportedTable
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity
from lakequeue.storage.delivery.rows import columns_of, refused_columns
from lakequeue.storage.delta_log import LOG, entry_name
from lakequeue.storage.folder import Folder, LocalFolder
from lakequeue.storage.roots import is_inside
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

try:
    from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError
    from deltalake.transaction import AddAction
except ImportError as missing:
    raise MissingPackage.of("delivering into a table", "delta", missing) from None

LEASE = "lakequeue lease "
"""Prefix of the userMetadata that a delivery's commit sets. The lease id follows the prefix."""
_WRITABLE = {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "deletionVectors"),
    *("v2Checkpoint", "timestampNtz"),
}
"""Table features with which ``deltalake`` appends correctly. Tables with other features are refused."""
_CATALOG = {"catalogManaged", "catalogOwned-preview"}
_RETENTION = "delta.setTransactionRetentionDuration"
_FORGETS = (
    f"has the property {_RETENTION}, so it forgets which deliveries arrived: decide undecided messages with "
    f"`lakequeue decide QUEUE`, then run ALTER TABLE … UNSET TBLPROPERTIES ('{_RETENTION}')"
)
_SEARCHED = 2_000
"""Maximum number of log entries that a search for a delivery reads. Older commits count as unknown."""
_KEPT = 16
"""Maximum number of snapshots that are kept for later deliveries. Each thread takes its own snapshot."""
_TRIES = 5
"""Maximum number of times that ``deltalake`` repeats a commit because another commit came first."""


def _properties(lease_id: str, *transactions: Transaction) -> CommitProperties:
    return CommitProperties(
        custom_metadata={"userMetadata": LEASE + lease_id},
        app_transactions=list(transactions),
        max_commit_retries=_TRIES,
    )


def _transaction(delivery: DeliveryIdentity, version: int) -> Transaction:
    # without an instant Spark would drop the id under a retention
    return Transaction(delivery.app_id, version, delivery.at // 1_000)


def _appending(delivery: DeliveryIdentity) -> CommitProperties:
    return _properties(delivery.lease_id, _transaction(delivery, delivery.version))


class WrittenRows(Protocol):
    """Rows that Spark's tasks have written to files, before the commit adds the files to the table."""

    def files(self, snapshot: DeltaDeliverySnapshot) -> Sequence[AddAction]: ...
    def new_columns(self, snapshot: DeltaDeliverySnapshot) -> list[Field]:
        """Returns those columns of the files that are missing in the table."""
        ...


class DeltaDeliveryTable:
    """A delivery table, given by its path or URI. It need not exist yet.

    Args:
        syncs: True to flush rows to disk before their messages are deleted (DUR-1).
        root: the queue's root. A delivery table inside the root is refused.
    """

    def __init__(self, uri: str, options: Mapping[str, str], root: str, syncs: bool = True) -> None:
        self.uri = uri
        self.store = Store(uri, options, "power" if syncs else "process")
        self._root = root
        self._synced = -1
        self._kept: deque[DeltaDeliverySnapshot] = deque(maxlen=_KEPT)

    @cached_property
    def _folder(self) -> Folder:
        return self.store.folder(self.uri)

    def read(self) -> DeltaDeliverySnapshot | None:
        """Reads the newest snapshot. Returns None without a table. Raises TableUnavailable, UnsupportedTable."""
        if is_inside(self.uri, self._root):
            raise UnsupportedTable(self.uri, "it is inside the root of the queue")
        with self._errors():
            try:
                table = DeltaTable(self.uri, storage_options=self.store.delta_options)
            except TableNotFoundError:
                return None
        return DeltaDeliverySnapshot(self, table, self._mark(table.version()))

    def latest(self) -> DeltaDeliverySnapshot | None:
        """Returns a snapshot that ``keep`` has kept, if its log entry was not replaced since. The snapshot may not
        be the newest. If there is no such snapshot, calls ``read``.
        """
        with suppress(IndexError):
            known = self._kept.pop()
            if known.mark is not None and self._mark(known.version) == known.mark:
                return known
        return self.read()

    def keep(self, snapshot: DeltaDeliverySnapshot) -> None:
        """Keeps a snapshot that was not used for a commit, for the next call of ``latest``."""
        self._kept.append(snapshot)

    def _mark(self, version: int) -> object:
        """Returns the identity of the file of a log entry, or None if there is no such entry."""
        with self._errors():
            try:
                return self._folder.entry(entry_name(version))[1:]
            except FileNotFoundError:
                return None

    def create(self, schema: pa.Schema) -> None:
        """Creates an empty table. Does nothing if the table exists, or if another process creates it first."""
        with self._errors(), TemporaryDirectory() as scratch:
            DeltaTable.create(scratch, schema)
            made = LocalFolder(scratch).read(entry_name(0))
            actions = [json.loads(line) for line in made.splitlines() if line]
            for action in actions:
                action.get("commitInfo", {}).get("operationParameters", {}).pop("location", None)
            text = "".join(f"{json.dumps(action)}\n" for action in actions)
            self._folder.create(entry_name(0), text.encode())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (CommitRefused, CommitFailedError, RowsRefused, QueueClientError):
            raise
        except Exception as error:
            text = first_line(error)
            if "catalog-managed" in text:
                raise UnsupportedTable(self.uri, _WHY_NOT_CATALOG) from None
            raise TableUnavailable(self.uri, f"cannot be used: {text}") from error

    # --- entries

    def entry(self, version: int) -> list[dict[str, Any]] | None:
        """Returns the actions of the log entry of a version. Returns None if there is no such entry."""
        try:
            text = self._folder.read(entry_name(version))
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in text.splitlines() if line]

    def has_files(self, names: Iterable[str]) -> bool:
        """True if the table's directory has all of these files. Raises TableUnavailable."""
        with self._errors():
            return all(map(self._folder.exists, names))

    def sync(self, version: int) -> None:
        """Flushes new log entries, up to ``version``, and the files that they add, to the local disk (TAB-24)."""
        folder = self._folder
        if folder.local is None or not self.store.syncs or version <= self._synced:
            return
        with self._errors():
            names: set[str] = set()
            for number in range(version, self._synced, -1):
                entry = self.entry(number)
                if entry is None:
                    break
                names.add(entry_name(number))
                names |= {unquote(action["add"]["path"]) for action in entry if "add" in action}
            found = sorted(name for name in names if "://" not in name and folder.exists(name))
            above = {name[:end] for name in found for end, letter in enumerate(name) if letter == "/"}
            folder.sync([*found, *above, LOG, "."], above=False)
            if self._synced < 0:
                place, _, name = folder.local.rpartition("/")
                LocalFolder(place).sync([name])
        self._synced = version


@attrs.frozen
class DeltaDeliverySnapshot:
    """One version of a delivery table. A commit fails if the delivery was committed or blocked since."""

    target: DeltaDeliveryTable
    handle: DeltaTable
    mark: object = None
    """Identity of the log entry's file. If the identity changes, the entry was replaced."""
    _versions: dict[str, int] = attrs.field(factory=dict, init=False)
    """Versions of application ids that were looked up before. A lookup takes milliseconds."""

    @property
    def table_id(self) -> str:
        return str(self.handle.metadata().id)

    @property
    def version(self) -> int:
        return int(self.handle.version())

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema(self.handle.schema().to_arrow())

    def problem(self) -> str | None:
        """Returns why rows cannot be delivered into the table. Returns None if rows can be delivered."""
        configuration, protocol = self.handle.metadata().configuration, self.handle.protocol()
        features = set(protocol.writer_features or ())
        if features & _CATALOG:
            return _WHY_NOT_CATALOG
        if configuration.get(_RETENTION):
            return _FORGETS
        if configuration.get("delta.columnMapping.mode", "none") != "none":
            features.add("columnMapping")
        if protocol.min_writer_version == 6:
            features.add("identityColumns")
        unknown = sorted(features - _WRITABLE)
        return f"has features {', '.join(unknown)}, which cannot be written without Spark" if unknown else None

    def check(self) -> None:
        """Raises UnsupportedTable if rows cannot be delivered into the table."""
        problem = self.problem()
        if problem is not None:
            raise UnsupportedTable(self.target.uri, problem)

    def delivered(self, app_id: str) -> int:
        """Returns the newest version of an application id, or -1 if the table lacks the id."""
        if app_id not in self._versions:
            found = self.handle.transaction_version(app_id)
            self._versions[app_id] = -1 if found is None else int(found)
        return self._versions[app_id]

    def search(self, delivery: DeliveryIdentity) -> tuple[int, str | None] | None:
        """Searches the log for the commit that made a delivery, or for the commit that blocks it.

        Returns the version and the lease id of the commit found. The lease id is None if a user made the commit.
        Returns ``(-1, None)`` if there is no such commit, or None if older entries were not searched.
        """
        newest = self.version
        for number in range(newest, max(-1, newest - _SEARCHED), -1):
            entry = self.target.entry(number)
            if entry is None:
                return None
            ids = {(each["txn"]["appId"], each["txn"]["version"]) for each in entry if "txn" in each}
            for version in (delivery.version, delivery.block):
                if (delivery.app_id, version) in ids:
                    [text] = [
                        str(each["commitInfo"].get("userMetadata")) for each in entry if "commitInfo" in each
                    ][:1] or [""]
                    return version, text[len(LEASE) :] if text.startswith(LEASE) else None
        return None if newest >= _SEARCHED else (-1, None)

    def append(self, delivery: DeliveryIdentity, rows: pa.Table | WrittenRows, merge_schema: bool = False) -> None:
        """Appends the rows of a delivery. Raises RowsRefused, or CommitRefused if the commit may have failed."""
        if not isinstance(rows, pa.Table):
            return self._add(delivery, rows)
        fitting = columns_of(rows, self.schema, merge_schema)
        with self._commit():
            try:
                write_deltalake(
                    self.handle,
                    fitting,
                    mode="append",
                    # only for new columns, because it changes the metadata each time, which refuses other writers
                    schema_mode="merge" if fitting.schema.names != self.schema.names else None,
                    commit_properties=_appending(delivery),
                )
            except SchemaMismatchError as error:
                raise RowsRefused(first_line(error)) from error
            except Exception as error:
                if "Invalid data found" in str(error):
                    raise refused_columns(fitting, self.handle.metadata().configuration, str(error)) from error
                raise

    def _add(self, delivery: DeliveryIdentity, rows: WrittenRows) -> None:
        files = list(rows.files(self))
        with self._commit():
            new = rows.new_columns(self)
            if new:  # in a commit of their own, because a commit of files changes no columns
                try:
                    self.handle.alter.add_columns(new)
                except SchemaMismatchError as error:
                    raise RowsRefused(first_line(error)) from error
                raise CommitRefused("its columns were added first")
            self.handle.create_write_transaction(
                files,
                "append",
                self.handle.schema(),
                self.handle.metadata().partition_columns,
                commit_properties=_appending(delivery),
            )

    def block(self, *deliveries: DeliveryIdentity) -> None:
        """Commits an entry that makes later commits of these deliveries fail. Raises the errors of ``append``."""
        blocks = [_transaction(each, each.block) for each in deliveries]
        properties = _properties(deliveries[0].lease_id, *blocks)
        with self._commit():
            self.handle.create_write_transaction([], "append", self.handle.schema(), commit_properties=properties)

    @contextmanager
    def _commit(self) -> Iterator[None]:
        with self.target._errors():
            try:
                yield
            except CommitFailedError as error:
                text = first_line(error)
                if "Unsupported table features" in text:
                    raise UnsupportedTable(self.target.uri, text) from error
                raise CommitRefused(text) from error
            except (DeltaError, OSError) as error:
                raise CommitRefused(first_line(error)) from error


_WHY_NOT_CATALOG = "has commits that a catalog decides, so its own log does not say what arrived"
