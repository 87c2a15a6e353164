"""A user's Delta table as a source: its versions, and the files with the rows that each version adds."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakequeue.errors import InvalidOptions, QueueClientError
from lakequeue.storage.delta_log import entry_name, has_entry, listed
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

Changes = Literal["appends", "feed"]
Positions = npt.NDArray[np.int64]
_NONE: Positions = np.array([], np.int64)
INSERT, DELETE, BEFORE = "insert", "delete", "update_preimage"
"""Values that the column ``_change_type`` may have in a change feed."""
_FEATURES = {
    *("appendOnly", "invariants", "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"),
    *("vacuumProtocolCheck", "typeWidening", "typeWidening-preview"),
}
"""Reader features of source tables that a relay supports, or that make no difference to a relay."""
_FEED, _IN_COMMIT_TIMES = "delta.enableChangeDataFeed", "delta.enableInCommitTimestamps"


@attrs.frozen
class SourceVersion:
    """Metadata of a table's version: the table's id, its schema as Delta's JSON, and its properties."""

    version: int
    id: str
    schema: str
    configuration: Mapping[str, str]

    def has(self, property: str) -> bool:
        """True if the table property ``property`` is on."""
        return self.configuration.get(property, "false").lower() == "true"


@attrs.frozen
class SourceFile:
    """A data file with rows that a version adds, changes or removes.

    Attributes:
        change: the ``_change_type`` of all rows. None if the file has a column for it.
        partition: partition values as texts, by physical column name.
        only: positions of the changed rows. None if all rows are changed except those in ``without``.
        without: positions of rows that the version does not change.
    """

    name: str
    size: int
    partition: Mapping[str, str | None]
    change: str | None = INSERT
    only: Positions | None = attrs.field(default=None, eq=False)
    without: Positions = attrs.field(factory=lambda: _NONE, eq=False)

    def count(self, rows: int) -> int:
        """Returns the number of changed rows in a file that has ``rows`` rows."""
        return rows - len(self.without) if self.only is None else len(self.only)

    def chosen(self, first: int, rows: int) -> Positions | None:
        """Returns the indexes of changed rows in a batch that begins at row ``first``. None if all are changed."""
        if self.only is None and not len(self.without):
            return None
        given = self.without if self.only is None else self.only
        begin, end = np.searchsorted(given, [first, first + rows])
        places = given[begin:end] - first
        return np.delete(np.arange(rows), places) if self.only is None else places


@attrs.frozen
class SourceChange:
    """The rows that a version adds. The files are in the order of the version's log entry."""

    state: SourceVersion
    files: Sequence[SourceFile]
    committed_at: int
    """Time of the commit in milliseconds since 1970, as the writer recorded it."""

    @property
    def version(self) -> int:
        """Version of the table."""
        return self.state.version


class SourceTable:
    """A Delta table at the root of ``store``. lakequeue only reads the table."""

    def __init__(self, store: Store) -> None:
        self.path = store.root
        self.folder = store.folder(store.root)
        self._options = store.delta_options

    def state(self, version: int | None = None) -> SourceVersion:
        """Returns a version's metadata, by default the newest. Raises QueueClientError if unreadable."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            found = DeltaTable(self.path, version=version, storage_options=self._options)
            metadata, protocol, schema = found.metadata(), found.protocol(), found.schema().to_json()
        except TableNotFoundError:
            raise QueueClientError(f"{self.path} is no Delta table that can be reached") from None
        except Exception as error:
            raise QueueClientError(f"{self.path} cannot be read: {first_line(error)}") from error
        self._check_features(protocol.reader_features)
        return SourceVersion(found.version(), metadata.id, schema, metadata.configuration)

    def versions(self, first: int) -> range:
        """Returns the versions from ``first`` on. The range is empty if ``first`` does not exist yet.

        Raises QueueClientError if ``first`` was removed, or the version before ``first`` does not exist.
        """
        found = [version for version in listed(self.folder, entry_name(first - 1)).entries if version >= first]
        if not found:
            if first > 0 and not has_entry(self.folder, first - 1):
                raise QueueClientError(
                    f"{self.path} has no version {first - 1}, which was relayed: the table was restored from "
                    "an older copy. Rows that it gains now cannot be told from rows that were sent"
                )
            return range(first, first)
        if found[0] != first:
            raise self._lost(first, f"the cleanup of its log removed it; the oldest entry is {found[0]}", found[0])
        # entries behind a gap are of a writer whose entry before is not yet to be seen
        length = next((place for place, version in enumerate(found) if version != first + place), len(found))
        return range(first, first + length)

    def version_at(self, instant: datetime, newest: SourceVersion) -> int:
        """Returns the first version committed at ``instant`` or later. If no version is that late, returns the
        newest version plus 1. Raises QueueClientError if the log begins after ``instant``.
        """
        entries = listed(self.folder).entries
        versions, wanted = list(entries), instant.timestamp()

        def committed(version: int) -> float:
            if newest.has(_IN_COMMIT_TIMES):
                return _committed_at(self._actions(version)) / 1000
            return entries[version].modified

        found = bisect_left(versions, wanted, key=committed)
        if not found and versions[0]:
            at = datetime.fromtimestamp(committed(versions[0]), timezone.utc)
            raise QueueClientError(
                f"{self.path} does not reach back to {instant.isoformat()}: its oldest version is "
                f"{versions[0]}, of {at.isoformat(timespec='seconds')}; start there, or later"
            )
        return versions[found] if found < len(versions) else versions[-1] + 1

    def change(self, version: int, before: SourceVersion, changes: Changes, skip: bool) -> SourceChange:
        """Reads the log entry of a version.

        Args:
            before: metadata of this version or of the version before.
            changes: ``appends``, or ``feed`` for the rows of the change feed.
            skip: True to return no rows of a version that does more than append.

        Raises:
            InvalidOptions: rows were removed or rewritten, and ``changes`` is ``appends`` or the feed was off.
            QueueClientError: the version has something that a relay cannot read.
        """
        try:
            actions = self._actions(version)
        except FileNotFoundError:
            raise self._lost(version, "the cleanup of its log removed it", version + 1) from None
        found: dict[str, list[dict[str, Any]]] = {}
        for action in actions:
            for name, value in action.items():
                found.setdefault(name, []).append(value)
        state = attrs.evolve(before, version=version)
        for metadata in found.get("metaData", ()):
            if metadata["id"] != before.id:
                raise QueueClientError(
                    f"version {version} of {self.path} made it another table; start a relay of it at {version}"
                )
            configuration = dict(metadata.get("configuration") or {})
            state = attrs.evolve(state, schema=metadata["schemaString"], configuration=configuration)
        for protocol in found.get("protocol", ()):
            self._check_features(protocol.get("readerFeatures"))
        files = self._files(version, state, found, changes, skip)
        return SourceChange(state, files, _committed_at(actions))

    def _files(
        self, version: int, state: SourceVersion, found: Mapping[str, Sequence[Any]], changes: Changes, skip: bool
    ) -> list[SourceFile]:
        added, removed = (
            [each for each in found.get(name, ()) if each.get("dataChange", True)] for name in ("add", "remove")
        )
        operation = next((str(info.get("operation")) for info in found.get("commitInfo", ())), "a commit")
        if changes == "feed":
            if not state.has(_FEED) and (added or removed):
                if skip:
                    return []
                raise InvalidOptions([self._no_feed(version, operation)])
            if found.get("cdc"):
                return [self._file(each, None, version) for each in found["cdc"]]
            return self._without_feed_files(version, added, removed)
        if added and operation == "RESTORE" or removed:
            if skip:
                return []
            raise InvalidOptions([self._no_append(version, operation, state)])
        return self._without_feed_files(version, added, [])

    def _without_feed_files(
        self, version: int, added: Sequence[Mapping[str, Any]], removed: Sequence[Mapping[str, Any]]
    ) -> list[SourceFile]:
        named: dict[str, set[str]] = {"old": set(), "new": set()}
        for which, actions in (("old", removed), ("new", added)):
            named[which] = {unquote(each["path"]) for each in actions if each.get("deletionVector")}
        old = self._deleted(version - 1, named["old"])
        new = self._deleted(version, named["new"])
        both = {each["path"] for each in added} & {each["path"] for each in removed}
        files: list[SourceFile] = []
        for actions, change, mine, other in ((removed, DELETE, old, new), (added, INSERT, new, old)):
            for each in actions:
                file = self._file(each, change, version)
                less = mine.get(file.name, _NONE)
                if each["path"] in both:  # The version changes only the rows that one of the vectors deletes.
                    file = attrs.evolve(file, only=np.setdiff1d(other.get(file.name, _NONE), less))
                files.append(attrs.evolve(file, without=less))
        return files

    def _deleted(self, version: int, names: Collection[str]) -> dict[str, Positions]:
        """Returns the positions of rows that deletion vectors delete, by file name. Raises QueueClientError."""
        if not names:
            return {}
        from deltalake import DeltaTable

        found: dict[str, Positions] = {}
        try:
            table = DeltaTable(self.path, version=version, storage_options=self._options)
            for batch in table.deletion_vectors():
                for path, kept in zip(*(pa.array(batch.column(place)) for place in (0, 1)), strict=True):
                    name = next((each for each in names if unquote(path.as_py()).endswith(f"/{each}")), None)
                    if name is not None:
                        found[name] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
        except Exception as error:
            raise QueueClientError(
                f"deletion vectors of version {version} of {self.path} cannot be read: {first_line(error)}"
            ) from error
        if missing := sorted({*names} - {*found}):
            raise QueueClientError(f"version {version} of {self.path} has no deletion vector for {missing[0]}")
        return found

    def _no_feed(self, version: int, operation: str) -> str:
        return (
            f"version {version} of {self.path} ({operation}) was written without a change feed; start after it, "
            "or leave such versions out with skip_changes. The table property "
            f"{_FEED} = true begins a feed"
        )

    def _no_append(self, version: int, operation: str, state: SourceVersion) -> str:
        feed = 'read its change feed with changes="feed", or' if state.has(_FEED) else "it has no change feed, so"
        return (
            f"version {version} of {self.path} is no append: {operation} removed or rewrote rows; {feed} "
            "leave such versions out with skip_changes"
        )

    def _file(self, action: Mapping[str, Any], change: str | None, version: int) -> SourceFile:
        name = unquote(action["path"])
        if urlsplit(action["path"]).scheme or name.startswith("/"):
            raise QueueClientError(
                f"version {version} of {self.path} names {name}, which is no file below the table: a shallow "
                "clone cannot be relayed; relay its source"
            )
        size = action.get("size")
        size = self.file_size(name, version) if size is None else int(size)
        return SourceFile(name, size, dict(action.get("partitionValues") or {}), change)

    def file_size(self, name: str, version: int) -> int:
        """Returns the size of a data file in bytes. Raises the error of ``lost_file`` if the file is missing."""
        try:
            return self.folder.entry(name).size
        except FileNotFoundError:
            raise self.lost_file(name, version) from None

    def lost_file(self, name: str, version: int) -> QueueClientError:
        """Returns the error for a data file that is missing."""
        return self._lost(version, f"VACUUM removed its file {name}", version + 1)

    def _lost(self, version: int, why: str, following: int) -> QueueClientError:
        return QueueClientError(
            f"version {version} of {self.path} was not relayed, and cannot be any more: {why}. Its rows are "
            f"not sent if you go on with start={following}"
        )

    def _actions(self, version: int) -> list[dict[str, Any]]:
        data = self.folder.read(entry_name(version))
        try:
            return [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise QueueClientError(
                f"version {version} of {self.path} cannot be read: {first_line(error)}"
            ) from error

    def _check_features(self, named: Sequence[str] | None) -> None:
        unknown = sorted({*(named or ())} - _FEATURES)
        if unknown:
            raise QueueClientError(
                f"{self.path} cannot be relayed: its readers must know {', '.join(unknown)}, a relay does not"
            )


def _committed_at(actions: Sequence[Mapping[str, Any]]) -> int:
    info: Mapping[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
    return int(info.get("inCommitTimestamp") or info.get("timestamp") or 0)
