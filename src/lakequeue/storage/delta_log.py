"""Reading a Delta log: live files, application ids and tokens of commits.

delta-rs reads every entry since the last checkpoint whenever it lists the live files. Here each entry is read
once, so following a log costs one request if nothing is new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import unquote

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.storage.folder import Folder

LOG = "_delta_log"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ENTRY = re.compile(r"(\d{20})\.json")


_ONE_BY_ONE = 2
"""Entries that a snapshot on an object store follows one by one; further ones are listed and read together."""
_LEARNED = 100
"""Maximum number of entries that wait to be applied, and of tokens that are kept."""
_CHECKPOINT_INTERVAL = "delta.checkpointInterval"
_PLAIN_WRITER = 2
"""Highest version of the protocol that asks nothing of writers that this package does not do."""


class LogTrimmed(Exception):
    """Log entries that follow a snapshot were removed; load the newest snapshot."""


class LiveFile(NamedTuple):
    """A data file of a snapshot, as the log describes it."""

    path: str
    """As in the log: relative to the table, URL-encoded."""
    size: int
    rows: int
    partition: Mapping[str, Any]
    """Values of the partition columns: int, bool, str, or an aware instant."""
    minimum: Mapping[str, Any]
    maximum: Mapping[str, Any]
    nulls: Mapping[str, int]

    @property
    def name(self) -> str:
        """Path below the table's directory."""
        return unquote(self.path)


@attrs.define
class Entry:
    """The actions of one commit."""

    added: list[LiveFile] = attrs.field(factory=list)
    removed: list[str] = attrs.field(factory=list)
    """Paths."""
    transactions: dict[str, int] = attrs.field(factory=dict)
    """Versions by application id."""
    token: str | None = None
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None


def entry_name(version: int) -> str:
    """Path of a version's log entry, below the table's directory."""
    return f"{LOG}/{version:020}.json"


def is_table(folder: Folder) -> bool:
    """Whether a directory has a log."""
    return next(folder.files(LOG), None) is not None


def live_file(add: Mapping[str, Any]) -> LiveFile:
    """A file from its ``add`` action."""
    stats = json.loads(add.get("stats") or "{}")
    partition = {name: _value(name, text) for name, text in dict(add["partitionValues"]).items()}
    return LiveFile(
        add["path"],
        add["size"],
        stats.get("numRecords", 0),
        partition,
        stats.get("minValues", {}),
        stats.get("maxValues", {}),
        stats.get("nullCount", {}),
    )


def parse(data: bytes) -> Entry:
    """Parses an entry of the log."""
    entry = Entry()
    for line in data.splitlines():
        action = json.loads(line)
        if add := action.get("add"):
            entry.added.append(live_file(add))
        elif remove := action.get("remove"):
            entry.removed.append(remove["path"])
        elif transaction := action.get("txn"):
            entry.transactions[transaction["appId"]] = transaction["version"]
        elif info := action.get("commitInfo"):
            entry.token = info.get("userMetadata")
        elif metadata := action.get("metaData"):
            entry.metadata = metadata
        elif protocol := action.get("protocol"):
            entry.protocol = protocol
    return entry


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
        self.partitions: list[str] = []
        """Names of the partition columns."""
        self.checkpoint_every = 100
        """Number of commits between two checkpoints."""
        self.plain = True
        """Whether the table uses only what every writer of Delta knows."""
        names = {entry.name.rpartition("/")[2] for entry in folder.files(LOG)}
        checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
        entries = sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))
        if version is not None:
            checkpoints = [number for number in checkpoints if number <= version]
            entries = [number for number in entries if number <= version]
        if not entries:
            raise FileNotFoundError(folder.uri)
        try:
            if checkpoints:
                self._read_checkpoint(max(checkpoints))
            self._apply_many([number for number in entries if number > self.version])
        except FileNotFoundError as error:
            raise LogTrimmed(str(error)) from error

    def follow(self) -> None:
        """Applies the commits made since.

        Raises:
            LogTrimmed: entries after this version were removed.
        """
        self.advance()
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

    def _catch_up(self) -> None:
        """Applies all commits made since, with one listing and concurrent reads."""
        names = (
            entry.name.rpartition("/")[2] for entry in self._folder.files(LOG, after=entry_name(self.version))
        )
        try:
            self._apply_many(sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))))
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

    def files(self) -> list[LiveFile]:
        """The live files."""
        return list(self._files.values())

    @property
    def file_count(self) -> int:
        """Number of live files."""
        return len(self._files)

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
        return parse(self._folder.read(entry_name(version)))

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
            self.partitions = metadata["partitionColumns"]
            self.checkpoint_every = int(dict(metadata["configuration"]).get(_CHECKPOINT_INTERVAL, 100))
        if protocol is not None:
            self.plain = protocol["minReaderVersion"] == 1 and protocol["minWriterVersion"] <= _PLAIN_WRITER

    def _change_files(self, entry: Entry) -> None:
        for path in entry.removed:
            self._files.pop(path, None)
        self._files.update((file.path, file) for file in entry.added)

    def _read_checkpoint(self, version: int) -> None:
        name = f"{LOG}/{version:020}.checkpoint.parquet"
        with pq.ParquetFile(pa.BufferReader(self._folder.read(name)), pre_buffer=False) as file:
            table = file.read(["add", "txn", "metaData", "protocol"], use_threads=False)
        adds, transactions, metadata, protocols = (
            table[name].drop_null().to_pylist() for name in ("add", "txn", "metaData", "protocol")
        )
        self._files = {add["path"]: live_file(add) for add in adds}
        self.transactions = {each["appId"]: each["version"] for each in transactions}
        self._describe(metadata[0], protocols[0])
        self.version = version


def _value(name: str, text: str | None) -> Any:
    if text is None or text == "":
        return None
    if name == "opened_at":
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    if name == "settled":
        return text == "true"
    return int(text) if name == "base_offset" else text
