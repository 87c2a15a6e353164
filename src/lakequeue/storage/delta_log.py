"""The content of a Delta log: entries, checkpoints, and the table's state."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import count
from typing import Any, NamedTuple

import attrs
import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage import layout
from lakequeue.storage.checked_names import Misplaced, file_below
from lakequeue.storage.folder import Folder, ListedFile, LocalFolder, Mark
from lakequeue.storage.parquet_files import reader

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
"""Path of the file in which other programs find the newest checkpoint. lakequeue lists the directory instead."""
LAST_VERSION = 2**63 - 1
"""Highest possible version. A file with a higher number in its name does not belong to a log."""
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")
ACTIONS = "numActions"
"""Commit metric with the number of lines of the log entry. If the number is wrong, the entry is torn."""
BASE, NEWEST = "base", "newest"
"""Two commit metrics, which show that the entry follows the previous entry: the token of the previous entry, and
the newest file of the previous version.
"""
ANSWERS = "answers"
"""Commit metric with JSON: the answers to each request that the commit applied, by the request's id."""
REPAIRED = "repair"
"""Token of a log entry that a repair wrote, because the original entry was unreadable."""
TOKEN = "lakequeue.token "
"""Prefix of an application id in a checkpoint. The token of the checkpoint's log entry follows the prefix."""
_CHECKSUM, _NO_CHECKSUM = b'"checksum": "', b"0" * 8
"""Text before the checksum of an entry, and placeholder for the checksum. The checksum is a hexadecimal CRC-32."""
_READER, _WRITER = 1, 2
_NAMED_FEATURES = (3, 7)
_FEATURES = {"appendOnly", "invariants"}
"""Features that writer version 2 includes. lakequeue's tables use none of these features."""
_TEXTS, _LIST = pa.map_(pa.string(), pa.string()), pa.list_(pa.string())
_ACTIONS: dict[str, dict[str, Any]] = {
    "protocol": {
        **{"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()},
        **{"readerFeatures": _LIST, "writerFeatures": _LIST},
    },
    "metaData": {
        **{"id": pa.string(), "name": pa.string(), "description": pa.string()},
        "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
        **{"schemaString": pa.string(), "partitionColumns": _LIST, "configuration": _TEXTS},
        "createdTime": pa.int64(),
    },
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "add": {
        **{"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "modificationTime": pa.int64()},
        **{"dataChange": pa.bool_(), "stats": pa.string()},
    },
    # Readers expect the column.
    "remove": {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()},
}
CHECKPOINT = pa.schema({name: pa.struct(fields) for name, fields in _ACTIONS.items()})
"""Columns of a checkpoint."""


class LiveFile(NamedTuple):
    """A data file of a snapshot, as described in the log."""

    path: str
    """Path of the file as in the log, URL-encoded."""
    name: str
    """Path of the file below the table's directory, not URL-encoded."""
    size: int
    rows: int
    partition: Mapping[str, Any]
    """Values of the partition columns: ints, bools, strs, or datetimes with a time zone."""
    minimum: Mapping[str, Any]
    maximum: Mapping[str, Any]
    nulls: Mapping[str, int]
    modified: int = 0
    """Time of the file's commit by the committing machine's clock, in milliseconds since 1970."""
    statistics: str | None = None
    """The file's statistics in the log, as JSON, or None without statistics."""


@attrs.define
class Entry:
    """The actions of one commit, from its log entry."""

    added: list[LiveFile] = attrs.field(factory=list)
    removed: list[str] = attrs.field(factory=list)
    """Paths of removed files, as in the log."""
    transactions: dict[str, int] = attrs.field(factory=dict)
    """Versions that the commit sets, by application id."""
    token: str | None = None
    program: str | None = None
    """Name and version of the program that wrote the entry. None if lakequeue wrote the entry, or if unknown."""
    committed_at: int | None = None
    """Time of the commit by the committing machine's clock, in milliseconds since 1970."""
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    mark: Mark = ()
    """Identity of the file from which the entry was read. See ``Mark``."""
    follows: Mark = ()
    """Identity of the previous entry's file. Set only if this process has committed this entry."""
    base: str | None = None
    """Token that the previous entry had when this entry was written. None if this entry names no token."""
    newest: str | None = None
    """File that this entry names as the newest file of the previous version. None if the entry names none."""
    answers: Mapping[str, Any] = attrs.field(factory=dict)
    """Answers to the requests that the commit applied, by request id. See ``storage.requests``."""


def entry_name(version: int) -> str:
    """Returns the path of a version's log entry, relative to the table."""
    return f"{LOG}/{version:020}.json"


def has_entry(folder: Folder, version: int) -> bool:
    """True if a log has an entry of this version. The entry may be unreadable."""
    return folder.exists(entry_name(version))


def checkpoint_name(version: int) -> str:
    """Returns the path of a version's checkpoint, relative to the table."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def is_table(folder: Folder) -> bool:
    return next(folder.files(LOG), None) is not None


@attrs.frozen
class Listing:
    """Entries and checkpoints of a log, by version. Omits multi-part checkpoints and UUID-named checkpoints."""

    entries: dict[int, ListedFile]
    checkpoints: dict[int, ListedFile]

    @property
    def readable_from(self) -> int:
        """Lowest version that can be loaded: 0, or a version that has a checkpoint and an entry."""
        return min({0, *self.checkpoints} & self.entries.keys())

    @property
    def gap(self) -> int:
        """First version without an entry, after the oldest entry. ``LAST_VERSION`` if the log is empty."""
        oldest = min(self.entries, default=LAST_VERSION)
        return next(version for version in count(oldest) if version not in self.entries)


def listed(folder: Folder, after: str | None = None) -> Listing:
    """Lists the entries and checkpoints of a log. With ``after``, lists only names that sort after it."""
    kinds: dict[str, dict[int, ListedFile]] = {"json": {}, "checkpoint.parquet": {}}
    for file in folder.files(LOG, after):
        match = _LOG_FILE.fullmatch(file.name.rpartition("/")[2])
        if match and int(match[1]) <= LAST_VERSION:
            kinds[match[2]][int(match[1])] = file
    return Listing(*(dict(sorted(found.items())) for found in kinds.values()))


def logged_versions(folder: LocalFolder) -> tuple[set[int], set[int]]:
    """Returns the versions that have an entry, and the versions that have a checkpoint. Opens no file."""
    found: dict[str, set[int]] = {".json": set(), ".checkpoint.parquet": set()}
    for name in folder.names(LOG):  # A pattern would take a twentieth of a send.
        versions = found.get(name[20:])
        if versions is not None and name[:20].isdecimal() and (version := int(name[:20])) <= LAST_VERSION:
            versions.add(version)
    return found[".json"], found[".checkpoint.parquet"]


def data_files(folder: Folder) -> list[ListedFile]:
    """Lists a table's Parquet files, committed or not, oldest first. Omits files that repairs moved aside."""
    found = (file for file in folder.files() if file.name.endswith(".parquet") and not file.name.startswith("_"))
    return sorted(found, key=lambda file: file.modified)


def live_file(add: Mapping[str, Any]) -> LiveFile:
    """Returns the file of an ``add`` action. Raises Misplaced if the file's path leaves the table (DUR-70)."""
    stats = json.loads(add.get("stats") or "{}")
    partition = {name: _value(name, text) for name, text in dict(add["partitionValues"]).items()}
    return LiveFile(
        add["path"],
        file_below(add["path"], encoded=True),
        whole(add["size"]),
        whole(stats.get("numRecords", 0)),
        partition,
        dict(stats.get("minValues", {})),
        dict(stats.get("maxValues", {})),
        dict(stats.get("nullCount", {})),
        whole(add.get("modificationTime") or 0),
        add.get("stats"),
    )


def whole(number: Any) -> int:
    """Returns a number from a log or a manifest. Raises ValueError unless it is an int from 0 to 2**63 - 1."""
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"has an invalid number: {str(number):.40}")
    return number


def parse(data: bytes) -> Entry:
    """Parses a log entry. Raises ValueError for an empty, torn or altered entry."""
    entry = entry_of([json.loads(line) for line in data.splitlines()])
    if signed(data) != data:  # Checked last, because other errors say more.
        raise ValueError("has another checksum than its content")
    return entry


def entry_of(actions: Sequence[Mapping[str, Any]]) -> Entry:
    """Builds an entry from the actions of a commit. Raises ValueError if an action is missing."""
    entry = Entry()
    for action in actions:
        if add := action.get("add"):
            entry.added.append(live_file(add))
        elif remove := action.get("remove"):
            file_below(remove["path"], encoded=True)
            entry.removed.append(remove["path"])
        elif transaction := action.get("txn"):
            entry.transactions[f"{transaction['appId']}"] = whole(transaction["version"])
        elif info := action.get("commitInfo"):
            entry.token, entry.committed_at = info.get("userMetadata"), whole(info.get("timestamp") or 0) or None
            if entry.token is None:
                entry.program = str(info.get("engineInfo") or "another program")
            metrics = info.get("operationMetrics", {})
            entry.base, newest = metrics.get(BASE), metrics.get(NEWEST)
            entry.newest = newest and file_below(newest, encoded=True)
            entry.answers = dict(json.loads(metrics.get(ANSWERS, "{}")))
            if str(metrics.get(ACTIONS, len(actions))) != str(len(actions)):
                raise ValueError(f"has {len(actions)} lines of {metrics[ACTIONS]}")
        elif metadata := action.get("metaData"):
            entry.metadata = metadata
        elif protocol := action.get("protocol"):
            entry.protocol = protocol
    if not actions:
        raise ValueError("is empty")
    return entry


def signed(data: bytes) -> bytes:
    """Sets the checksum in an entry. Returns ``data`` unchanged if the first line has no place for a checksum."""
    before, mark, rest = data.partition(_CHECKSUM)
    if not mark or b"\n" in before:
        return data
    rest = rest[len(_NO_CHECKSUM) :]
    crc = zlib.crc32(b"".join([before, mark, _NO_CHECKSUM, rest]))
    return b"".join([before, mark, b"%08x" % crc, rest])


def read_entry(folder: Folder, version: int) -> Entry:
    """Reads a log entry. Raises FileNotFoundError, or DamagedTable if ``parse`` refuses the content."""
    data, mark = folder.read_marked(entry_name(version))
    try:
        entry = attrs.evolve(parse(data), mark=mark)
        obstacles(entry)  # Raises an error if protocol or metadata are malformed.
        return entry
    except Misplaced as error:
        raise DamagedTable(folder.uri, entry_name(version), str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"is torn: {error}" if data else "is empty"
        raise DamagedTable(folder.uri, entry_name(version), reason) from error


@attrs.define
class TableState:
    """State of a table at one version, built from the log."""

    version: int = -1
    live: dict[str, LiveFile] = attrs.field(factory=dict)
    """Files of the version, by path. The file that was added last comes last."""
    transactions: dict[str, int] = attrs.field(factory=dict)
    """Versions by application id."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    protocol: Mapping[str, Any] = attrs.field(factory=dict)
    lost_files: bool = False
    """True if another program removed files without replacing them."""
    token: str | None = None
    """Token of the commit of this version. None if unknown."""

    def files(self) -> list[LiveFile]:
        return list(self.live.values())

    def apply(self, entry: Entry) -> None:
        """Applies the log entry of the next version."""
        self.lost_files |= bool(entry.removed) and not entry.added and entry.token is None
        for path in entry.removed:
            self.live.pop(path, None)
        for file in entry.added:
            self.live.pop(file.path, None)  # Moves the file to the end.
            self.live[file.path] = file
        self.transactions.update(entry.transactions)
        self.metadata = entry.metadata or self.metadata
        self.protocol = entry.protocol or self.protocol
        self.token = entry.token
        self.version += 1

    @property
    def newest(self) -> str | None:
        """Name of the file that was added last. None if the version has no files."""
        return next((file.name for file in reversed(self.live.values())), None)

    def leads_to(self, entry: Entry) -> bool:
        """True if ``entry`` may be the log entry of the next version. False if it was written to follow another
        entry than the entry of this version (DUR-86).
        """
        return None in (entry.base, self.token) or self.token in (entry.base, REPAIRED)


def is_left_over(folder: Folder, found: Entry | TableState) -> bool:
    """True if the newest file of the entry or state is gone: a restore left the entry or state behind (DUR-86)."""
    if folder.local is None or found.newest is None:
        return False
    try:
        folder.entry(found.newest)  # `exists` would also return False for a disk that cannot be read.
    except FileNotFoundError:
        return True
    return False


def read_checkpoint(folder: Folder, version: int) -> TableState:
    """Reads a checkpoint. Raises FileNotFoundError, or DamagedTable for an empty, torn or malformed file."""
    data = folder.read(checkpoint_name(version))
    try:
        with reader(pa.BufferReader(data), CHECKPOINT) as file:
            table = file.read(CHECKPOINT.names, use_threads=False)
        adds, transactions, [metadata], [protocol] = (
            table[name].drop_null().to_pylist() for name in ("add", "txn", "metaData", "protocol")
        )
        live = {add["path"]: live_file(add) for add in adds}
    except Misplaced as error:
        raise DamagedTable(folder.uri, checkpoint_name(version), str(error)) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"cannot be read: {str(error).splitlines()[0]}" if data else "is empty"
        raise DamagedTable(folder.uri, checkpoint_name(version), reason) from error
    ids = {each["appId"]: each["version"] for each in transactions}
    tokens = {name: ids.pop(name) for name in list(ids) if name.startswith(TOKEN)}
    # Checkpoints of another program keep the id, with an older version.
    token = next((name.removeprefix(TOKEN) for name, of in tokens.items() if of == version), None)
    return TableState(version, live, ids, metadata, protocol, token=token)


def obstacles(found: Entry | TableState) -> list[str]:
    """Returns the features and properties of the table that lakequeue does not know."""
    protocol = found.protocol or {}
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())} - _FEATURES
    unknown = sorted(f"the feature {name}" for name in named)
    for who, newest, by_name in ("Reader", _READER, _NAMED_FEATURES[0]), ("Writer", _WRITER, _NAMED_FEATURES[1]):
        version = protocol[f"min{who}Version"] if protocol else newest
        if version > newest and version != by_name:
            unknown.append(f"version {version} of {who.lower()}s")
    configuration = dict(found.metadata["configuration"]) if found.metadata else {}
    if found.metadata and found.metadata["partitionColumns"] not in layout.PARTITIONS:
        unknown.append("other partition columns")
    if configuration.get("delta.appendOnly", "false").lower() == "true":
        unknown.append("the property delta.appendOnly")
    return unknown


def _value(name: str, text: str | None) -> Any:
    # NULL is never the partition value of a row that this package wrote.
    if not text or not isinstance(text, str):
        raise ValueError(f"a file has no {name}")
    if name == "opened_at":
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    if name == "settled":
        return text == "true"
    return whole(int(text)) if name == "base_offset" else text
