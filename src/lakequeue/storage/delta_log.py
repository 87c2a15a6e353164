"""What is in a Delta log: entries, checkpoints, and the state of a table that they lead to."""

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
from lakequeue.storage.folder import Entry as File
from lakequeue.storage.folder import Folder, Mark
from lakequeue.storage.found_names import Misplaced, file_below
from lakequeue.storage.parquet_files import reader

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
"""Names the newest checkpoint, for other readers; lists find it here."""
LAST_VERSION = 2**63 - 1
"""Delta counts versions in 64 bits. A file with a higher number in its name does not belong to a log."""
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")
ACTIONS = "numActions"
"""Metric of a commit in which this package writes the number of its lines."""
BASE, NEWEST = "base", "newest"
"""Metrics of a commit with the token of the entry before, and the file that the version before added last."""
REPAIRED = "repair"
"""Token of entries that replace unreadable ones."""
TOKEN = "lakequeue.token "
"""Begins an application id of a checkpoint, before the token of its version: pages have checksums, footers not."""
_CHECKSUM, _NO_CHECKSUM = b'"checksum": "', b"0" * 8
"""Before and in place of another metric: CRC-32 of the entry with that place, in hexadecimal."""
_READER, _WRITER = 1, 2
"""Highest versions of the protocol that ask nothing that this package does not do."""
_NAMED_FEATURES = (3, 7)
"""Versions of the protocol that name each feature."""
_FEATURES = {"appendOnly", "invariants"}
"""Features of version 2, which these tables do not use."""
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
    # readers expect the column
    "remove": {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()},
}
CHECKPOINT = pa.schema({name: pa.struct(fields) for name, fields in _ACTIONS.items()})
"""Columns of a checkpoint."""


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
    program: str | None = None
    """Name and version of a program that is not lakequeue; None if that is not known, too."""
    committed_at: int | None = None
    """Milliseconds since the epoch by the machine's clock."""
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    mark: Mark = ()
    """Of its file."""
    follows: Mark = ()
    """Mark of the entry before, if this process committed it."""
    base: str | None = None
    """Token of the entry before, as the writer knew it; None if the entry does not name a token."""
    newest: str | None = None
    """File that the version before added last, as the writer knew it; None if the entry does not name a file."""


def entry_name(version: int) -> str:
    """Path of a version's log entry, below the table's directory."""
    return f"{LOG}/{version:020}.json"


def checkpoint_name(version: int) -> str:
    """Path of a version's checkpoint, below the table's directory."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def is_table(folder: Folder) -> bool:
    """Whether a directory has a log."""
    return next(folder.files(LOG), None) is not None


@attrs.frozen
class Listing:
    """Entries and checkpoints of a log by version, in order.

    A checkpoint of several parts, or with a unique name, is none here: nothing in this package can read it.
    """

    entries: dict[int, File]
    checkpoints: dict[int, File]

    @property
    def readable_from(self) -> int:
        """The lowest version that can be loaded: the first one, or that of a checkpoint.

        Not any checkpoint: a process that was stopped may write one whose entry, and those that follow it, were
        trimmed since.
        """
        return min({0, *self.checkpoints} & self.entries.keys())

    @property
    def gap(self) -> int:
        """The first version without an entry, after the oldest entry; ``LAST_VERSION`` without entries."""
        oldest = min(self.entries, default=LAST_VERSION)
        return next(version for version in count(oldest) if version not in self.entries)


def listed(folder: Folder, after: str | None = None) -> Listing:
    """Lists a log, or what of it sorts after a name."""
    kinds: dict[str, dict[int, File]] = {"json": {}, "checkpoint.parquet": {}}
    for file in folder.files(LOG, after):
        match = _LOG_FILE.fullmatch(file.name.rpartition("/")[2])
        if match and int(match[1]) <= LAST_VERSION:
            kinds[match[2]][int(match[1])] = file
    return Listing(*(dict(sorted(found.items())) for found in kinds.values()))


def data_files(folder: Folder) -> list[File]:
    """Parquet files below a table, named by its log or not, the oldest first; none that was set aside."""
    found = (file for file in folder.files() if file.name.endswith(".parquet") and not file.name.startswith("_"))
    return sorted(found, key=lambda file: file.modified)


def live_file(add: Mapping[str, Any]) -> LiveFile:
    """A file from its ``add`` action; Misplaced if that names none below the table (DUR-70)."""
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
    """A number of an action or a manifest; ValueError for what no checkpoint can hold, and nothing of ours is."""
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"has a number that is none: {str(number):.40}")
    return number


def parse(data: bytes) -> Entry:
    """Parses an entry of the log.

    Raises:
        ValueError: it is empty or torn.
    """
    entry = entry_of([json.loads(line) for line in data.splitlines()])
    if signed(data) != data:  # last: what else is wrong says more
        raise ValueError("has another checksum than its content")
    return entry


def entry_of(actions: Sequence[Mapping[str, Any]]) -> Entry:
    """Makes an entry of the actions that the log has.

    Raises:
        ValueError: the list is empty, or the commit has written more actions.
    """
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
    """An entry with the right checksum in its first line, if it has a place for one."""
    before, mark, rest = data.partition(_CHECKSUM)
    if not mark or b"\n" in before:
        return data
    rest = rest[len(_NO_CHECKSUM) :]
    crc = zlib.crc32(b"".join([before, mark, _NO_CHECKSUM, rest]))
    return b"".join([before, mark, b"%08x" % crc, rest])


def read_entry(folder: Folder, version: int) -> Entry:
    """Reads an entry of a table's log.

    Raises:
        FileNotFoundError: there is none.
        DamagedTable: it is empty or torn.
    """
    data, mark = folder.read_marked(entry_name(version))
    try:
        entry = attrs.evolve(parse(data), mark=mark)
        obstacles(entry)  # an error if it says of its table what is none
        return entry
    except Misplaced as error:
        raise DamagedTable(folder.uri, entry_name(version), str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"is torn: {error}" if data else "is empty"
        raise DamagedTable(folder.uri, entry_name(version), reason) from error


@attrs.define
class State:
    """A version of a table, as its log says."""

    version: int = -1
    live: dict[str, LiveFile] = attrs.field(factory=dict)
    """Its files by path, those added last at the end."""
    transactions: dict[str, int] = attrs.field(factory=dict)
    """Versions by application id."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    protocol: Mapping[str, Any] = attrs.field(factory=dict)
    lost_files: bool = False
    """Whether another program has removed files since the checkpoint and put none in their place, as delta-rs's
    ``repair`` does with those that are missing."""
    token: str | None = None
    """Token of the entry of this version; None if the entry has no token, or the token is not known."""

    def files(self) -> list[LiveFile]:
        """The live files."""
        return list(self.live.values())

    def apply(self, entry: Entry) -> None:
        """Moves to the next version, whose entry is given."""
        self.lost_files |= bool(entry.removed) and not entry.added and entry.token is None
        for path in entry.removed:
            self.live.pop(path, None)
        for file in entry.added:
            self.live.pop(file.path, None)  # to the end
            self.live[file.path] = file
        self.transactions.update(entry.transactions)
        self.metadata = entry.metadata or self.metadata
        self.protocol = entry.protocol or self.protocol
        self.token = entry.token
        self.version += 1

    @property
    def newest(self) -> str | None:
        """Name of the file that was added last; None if there are no files."""
        return next((file.name for file in reversed(self.live.values())), None)

    def leads_to(self, entry: Entry) -> bool:
        """Returns False if the next entry names another base than the entry of this version (DUR-86)."""
        return None in (entry.base, self.token) or self.token in (entry.base, REPAIRED)


def is_left_over(folder: Folder, found: Entry | State) -> bool:
    """Returns True if a restore left an entry or a checkpoint behind a gap of the log over (DUR-86).

    On a disk, a file stays as long as an entry of the log names it. So a lost entry leaves its file, and a restore
    removes both.
    """
    if folder.local is None or found.newest is None:
        return False
    try:
        folder.entry(found.newest)  # `exists` would also return False for a disk that cannot be read
    except FileNotFoundError:
        return True
    return False


def read_checkpoint(folder: Folder, version: int) -> State:
    """Reads a checkpoint of a table's log.

    Raises:
        FileNotFoundError: there is none.
        DamagedTable: it is empty or torn.
    """
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
    # another program keeps the id, of an older version then, in its own checkpoints
    token = next((name.removeprefix(TOKEN) for name, of in tokens.items() if of == version), None)
    return State(version, live, ids, metadata, protocol, token=token)


def obstacles(found: Entry | State) -> list[str]:
    """What another program gave a table that lakequeue does not know."""
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
    if not text or not isinstance(text, str):  # NULL, which no row of ours has in a partition column
        raise ValueError(f"a file has no {name}")
    if name == "opened_at":
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    if name == "settled":
        return text == "true"
    return whole(int(text)) if name == "base_offset" else text
