"""Reading a Delta log: live files, application ids and tokens of commits.

delta-rs reads every entry since the last checkpoint whenever it lists the live files. Here each entry is read
once, so following a log costs one request if nothing is new.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import count
from typing import Any, NamedTuple

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.errors import DamagedTable
from lakequeue.storage.folder import Entry as File
from lakequeue.storage.folder import Folder
from lakequeue.storage.found_names import Misplaced, file_below

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
"""Names the newest checkpoint, for other readers; lists find it here."""
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")
_log = logging.getLogger("lakequeue")

_ONE_BY_ONE = 2
"""Entries that a snapshot on an object store follows one by one; further ones are listed and read together."""
_LEARNED = 100
"""Maximum number of entries that wait to be applied, and of tokens that are kept."""
ACTIONS = "numActions"
"""Metric of a commit in which this package writes the number of its lines."""
_CHECKPOINT_INTERVAL = "delta.checkpointInterval"
_READER, _WRITER = 1, 2
"""Highest versions of the protocol that ask nothing that this package does not do."""
_NAMED_FEATURES = (3, 7)
"""Versions of the protocol that name each feature."""
_FEATURES = {"appendOnly", "invariants"}
"""Features of version 2, which these tables do not use."""


class LogTrimmed(Exception):
    """Log entries that follow a snapshot were removed; load the newest snapshot."""


class LiveFile(NamedTuple):
    """A data file of a snapshot, as the log describes it."""

    path: str
    """As in the log, URL-encoded."""
    name: str
    """Path below the table's directory."""
    size: int
    rows: int
    partition: Mapping[str, Any]
    """Values of the partition columns: int, bool, str, or an aware instant."""
    minimum: Mapping[str, Any]
    maximum: Mapping[str, Any]
    nulls: Mapping[str, int]
    modified: int = 0
    """When it was added, in milliseconds since the epoch by the machine's clock."""
    statistics: str | None = None
    """All that the log says of its rows, as JSON; None: nothing."""


@attrs.define
class Entry:
    """The actions of one commit."""

    added: list[LiveFile] = attrs.field(factory=list)
    removed: list[str] = attrs.field(factory=list)
    """Paths, as in the log."""
    transactions: dict[str, int] = attrs.field(factory=dict)
    """Versions by application id."""
    token: str | None = None
    committed_at: int | None = None
    """Milliseconds since the epoch by the machine's clock."""
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None


def entry_name(version: int) -> str:
    """Path of a version's log entry, below the table's directory."""
    return f"{LOG}/{version:020}.json"


def checkpoint_name(version: int) -> str:
    """Path of a version's checkpoint, below the table's directory."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def is_table(folder: Folder) -> bool:
    """Whether a directory has a log."""
    return next(folder.files(LOG), None) is not None


def listed(folder: Folder, after: str | None = None) -> Iterator[tuple[int, bool, File]]:
    """Entries and checkpoints of a log: version, whether it is a checkpoint, and the file.

    A checkpoint of several parts, or with a unique name, is none here: nothing in this package can read it.
    """
    for file in folder.files(LOG, after):
        match = _LOG_FILE.fullmatch(file.name.rpartition("/")[2])
        if match:
            yield int(match[1]), match[2] != "json", file


def live_file(add: Mapping[str, Any]) -> LiveFile:
    """A file from its ``add`` action; Misplaced if that names none below the table (DUR-70)."""
    stats = json.loads(add.get("stats") or "{}")
    partition = {name: _value(name, text) for name, text in dict(add["partitionValues"]).items()}
    return LiveFile(
        add["path"],
        file_below(add["path"], encoded=True),
        add["size"],
        stats.get("numRecords", 0),
        partition,
        stats.get("minValues", {}),
        stats.get("maxValues", {}),
        stats.get("nullCount", {}),
        add.get("modificationTime") or 0,
        add.get("stats"),
    )


def parse(data: bytes) -> Entry:
    """Parses an entry of the log.

    Raises:
        ValueError: it is empty or torn.
    """
    entry, lines = Entry(), data.splitlines()
    for line in lines:
        action = json.loads(line)
        if add := action.get("add"):
            entry.added.append(live_file(add))
        elif remove := action.get("remove"):
            file_below(remove["path"], encoded=True)
            entry.removed.append(remove["path"])
        elif transaction := action.get("txn"):
            entry.transactions[transaction["appId"]] = transaction["version"]
        elif info := action.get("commitInfo"):
            entry.token, entry.committed_at = info.get("userMetadata"), info.get("timestamp")
            if int(info.get("operationMetrics", {}).get(ACTIONS, len(lines))) != len(lines):
                raise ValueError(f"has {len(lines)} lines of {info['operationMetrics'][ACTIONS]}")
        elif metadata := action.get("metaData"):
            entry.metadata = metadata
        elif protocol := action.get("protocol"):
            entry.protocol = protocol
    if not lines:
        raise ValueError("is empty")
    return entry


def read_entry(folder: Folder, version: int) -> Entry:
    """Reads an entry of a table's log.

    Raises:
        FileNotFoundError: there is none.
        DamagedTable: it is empty or torn.
    """
    data = folder.read(entry_name(version))
    try:
        return parse(data)
    except Misplaced as error:
        raise DamagedTable(folder.uri, entry_name(version), str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"is torn: {error}" if data else "is empty"
        raise DamagedTable(folder.uri, entry_name(version), reason) from error


class Checkpoint(NamedTuple):
    """What a checkpoint says of a version."""

    files: dict[str, LiveFile]
    """By path."""
    transactions: dict[str, int]
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]


def read_checkpoint(folder: Folder, version: int) -> Checkpoint:
    """Reads a checkpoint of a table's log.

    Raises:
        FileNotFoundError: there is none.
        DamagedTable: it is empty or torn.
    """
    data = folder.read(checkpoint_name(version))
    try:
        with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
            table = file.read(["add", "txn", "metaData", "protocol"], use_threads=False)
        adds, transactions, [metadata], [protocol] = (
            table[name].drop_null().to_pylist() for name in ("add", "txn", "metaData", "protocol")
        )
        files = {add["path"]: live_file(add) for add in adds}
    except Misplaced as error:
        raise DamagedTable(folder.uri, checkpoint_name(version), str(error)) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"cannot be read: {str(error).splitlines()[0]}" if data else "is empty"
        raise DamagedTable(folder.uri, checkpoint_name(version), reason) from error
    return Checkpoint(files, {each["appId"]: each["version"] for each in transactions}, metadata, protocol)


class Snapshot:
    """A version of a table, read from its log; ``follow`` brings it up to date."""

    def __init__(self, folder: Folder, version: int | None = None) -> None:
        """Loads a version, None for the newest.

        Raises:
            FileNotFoundError: there is no table.
            LogTrimmed: entries were removed while it was loaded; try again.
        """
        self.version = -1
        self.transactions: dict[str, int] = {}
        self._folder = folder
        self._files: dict[str, LiveFile] = {}
        self._learned: dict[int, Entry] = {}
        self._tokens: dict[int, str | None] = {}  # of the latest versions
        self.metadata: Mapping[str, Any] = {}
        self.protocol: Mapping[str, Any] = {}
        self.checkpoint_every = 100
        """Number of commits between two checkpoints."""
        found = [(number, is_checkpoint) for number, is_checkpoint, _ in listed(folder)]
        if version is not None:
            found = [each for each in found if each[0] <= version]
        entries = sorted(number for number, is_checkpoint in found if not is_checkpoint)
        if not entries:
            raise FileNotFoundError(f"{folder.uri} has no log")
        unreadable = None
        try:
            for number in sorted((number for number, is_checkpoint in found if is_checkpoint), reverse=True):
                try:
                    checkpoint = read_checkpoint(folder, number)
                except DamagedTable as error:  # an older one, or the entries, may lead to the same snapshot
                    unreadable = unreadable or error
                    _log.warning("%s", error)
                    continue
                self._files, self.transactions = checkpoint.files, checkpoint.transactions
                self._describe(checkpoint.metadata, checkpoint.protocol)
                self.version = number
                break
            self._apply_many([number for number in entries if number > self.version])
        except FileNotFoundError as error:
            raise unreadable or LogTrimmed(str(error)) from error

    def follow(self) -> bool:
        """Applies the commits made since; returns whether there were any that were not learned.

        Raises:
            LogTrimmed: entries after this version were removed.
        """
        self.advance()
        before = self.version
        for followed in count():
            if followed == _ONE_BY_ONE and self._folder.local is None:
                self._catch_up()
                break
            try:
                self.apply(self.next())
            except FileNotFoundError:
                break
        # Entries are removed oldest first: if that of this version exists, the next was not removed but never
        # made. Object stores keep entries for a week and a deleted queue for a day: no snapshot is followed that
        # long.
        if self._folder.local is not None and not self._folder.exists(entry_name(self.version)):
            raise LogTrimmed(f"{self._folder.uri} has no entry {self.version}")
        return self.version > before

    def _catch_up(self) -> None:
        """Applies all commits made since, with one listing and concurrent reads."""
        found = listed(self._folder, entry_name(self.version))
        try:
            self._apply_many(sorted(number for number, is_checkpoint, _ in found if not is_checkpoint))
        except FileNotFoundError as error:
            raise LogTrimmed(str(error)) from error

    def learn(self, version: int, entry: Entry) -> None:
        """Takes note of an entry that this process committed elsewhere, so as not to read it. Thread-safe."""
        if len(self._learned) < _LEARNED:
            self._learned[version] = entry

    def advance(self) -> None:
        """Applies entries that were learned and follow this version; asks storage for nothing."""
        while (entry := self._learned.pop(self.version + 1, None)) is not None:
            self.apply(entry)
        if self._learned:
            for version in [version for version in list(self._learned) if version <= self.version]:
                self._learned.pop(version, None)

    @property
    def partitions(self) -> list[str]:
        """Names of the partition columns."""
        return list(self.metadata["partitionColumns"])

    def files(self) -> list[LiveFile]:
        """The live files."""
        return list(self._files.values())

    def next(self) -> Entry:
        """The entry after this version; FileNotFoundError if there is none."""
        return self._entry(self.version + 1)

    def tokens(self, since: int) -> Iterator[str | None]:
        """Tokens of the commits after a version, up to the first whose entry is missing."""
        for version in range(since + 1, self.version + 1):
            if version in self._tokens:
                yield self._tokens[version]
                continue
            try:
                yield self._entry(version).token
            except FileNotFoundError:
                return

    def _entry(self, version: int) -> Entry:
        return read_entry(self._folder, version)

    def _apply_many(self, versions: Sequence[int]) -> None:
        for number, entry in zip(versions, self._folder.for_each(self._entry, versions), strict=True):
            if number != self.version + 1:
                raise FileNotFoundError(entry_name(self.version + 1))
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        """Moves to the next version, whose entry is given."""
        self._change_files(entry)
        self._tokens[self.version + 1] = entry.token
        self._tokens.pop(self.version - _LEARNED, None)
        self.transactions.update(entry.transactions)
        self._describe(entry.metadata, entry.protocol)
        self.version += 1

    def _describe(self, metadata: Mapping[str, Any] | None, protocol: Mapping[str, Any] | None) -> None:
        if metadata is not None:
            self.metadata = metadata
            configuration = dict(metadata["configuration"])
            try:
                self.checkpoint_every = max(1, int(configuration.get(_CHECKPOINT_INTERVAL, 100)))
            except ValueError as error:
                raise DamagedTable(self._folder.uri, None, f"{_CHECKPOINT_INTERVAL}: {error}") from None
            if configuration.get("delta.appendOnly", "false").lower() == "true":
                raise DamagedTable(self._folder.uri, None, "another program set delta.appendOnly")
        if protocol is not None:
            self.protocol = protocol
            if unknown := unknown_in(protocol):
                reason = f"another program gave it {', '.join(unknown)}, which lakequeue does not know"
                raise DamagedTable(self._folder.uri, None, reason)

    def _change_files(self, entry: Entry) -> None:
        for path in entry.removed:
            self._files.pop(path, None)
        self._files.update((file.path, file) for file in entry.added)


def unknown_in(protocol: Mapping[str, Any]) -> list[str]:
    """What a protocol asks of readers and writers that this package does not do."""
    reader, writer = protocol["minReaderVersion"], protocol["minWriterVersion"]
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())} - _FEATURES
    unknown = sorted(f"the feature {name}" for name in named)
    if reader > _READER and reader != _NAMED_FEATURES[0]:
        unknown.append(f"version {reader} of readers")
    if writer > _WRITER and writer != _NAMED_FEATURES[1]:
        unknown.append(f"version {writer} of writers")
    return unknown


def _value(name: str, text: str | None) -> Any:
    if text is None or text == "":
        return None
    if name == "opened_at":
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    if name == "settled":
        return text == "true"
    return int(text) if name == "base_offset" else text
