"""Keeps logs short: writes checkpoints, and removes log entries that a checkpoint replaces.

A checkpoint is a Parquet file with the state of a table. ``cleaning`` removes data files later.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.delta_log import (
    CHECKPOINT,
    LAST_CHECKPOINT,
    LOG,
    TOKEN,
    LiveFile,
    TableState,
    checkpoint_name,
    listed,
    logged_versions,
    read_checkpoint,
    read_entry,
)
from lakequeue.storage.engines.data_files import partition_text
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.folder import Folder, Freed, ListedFile, LocalFolder
from lakequeue.storage.layout import Retention
from lakequeue.storage.parquet_files import write_table


def write_checkpoint(folder: Folder, snapshot: TableState) -> None:
    """Writes the checkpoint of a snapshot, and names it as the newest checkpoint."""
    actions: dict[str, list[Mapping[str, Any]]] = {
        "protocol": [snapshot.protocol],
        "metaData": [snapshot.metadata],
        "txn": [{"appId": app_id, "version": version} for app_id, version in _transactions(snapshot)],
        "add": list(map(_add, snapshot.files())),
        "remove": [],
    }
    number, before, columns = sum(map(len, actions.values())), 0, {}
    for name, found in actions.items():
        type_ = CHECKPOINT.field(name).type
        rest = pa.nulls(number - before - len(found), type_)
        columns[name] = pa.concat_arrays([pa.nulls(before, type_), pa.array(found, type_), rest])
        before += len(found)
    target = pa.BufferOutputStream()
    write_table(pa.table(columns), target, store_schema=False)
    content = target.getvalue().to_pybytes()
    folder.replace(checkpoint_name(snapshot.version), content)
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        if json.loads(folder.read(LAST_CHECKPOINT))["version"] > snapshot.version:
            return  # this process was stopped meanwhile
    newest = {"version": snapshot.version, "size": number, "sizeInBytes": len(content)}
    folder.replace(LAST_CHECKPOINT, json.dumps(newest | {"numOfAddFiles": len(actions["add"])}).encode())


def _transactions(snapshot: TableState) -> Iterator[tuple[str, int]]:
    yield from snapshot.transactions.items()
    if snapshot.token is not None:
        yield TOKEN + snapshot.token, snapshot.version


def _add(file: LiveFile) -> dict[str, Any]:
    return {
        "path": file.path,  # as it was written: a removal must name the same
        "partitionValues": {name: partition_text(value) for name, value in file.partition.items()},
        "size": file.size,
        "modificationTime": file.modified,
        "dataChange": False,
        "stats": file.statistics,
    }


LOG_ENTRIES = 200
"""Number of entries to which a fast-growing log is cut, because opening a table lists all entries."""
READING = 15.0
"""Minimum seconds for which a log entry is kept, because a reader may just have listed the entry."""
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|checkpoint(\..+)?\.(parquet|json)|crc)(\.crc)?$")
"""Pattern for the names of the files that a Delta writer may leave in a log for a version."""
_log = logging.getLogger("lakequeue")


def trim_log(table: Folder, retention: Retention, patience: float) -> Freed:
    """Removes the log entries before an old checkpoint. Returns the number and size of the removed files.

    Uses the newest checkpoint that is old enough. On local disks, it must be ``retention.log_minutes`` old, or
    ``LOG_ENTRIES`` entries must follow it. On object stores, the checkpoint and its commit must be
    ``retention.remote_log_minutes`` old. Missing and unreadable checkpoints are ignored (DUR-3).

    Raises:
        LockHeld: another process held the lock for ``patience`` seconds; nothing was removed.
        QueueClientError: this machine's clock differs from the storage's (DUR-84).
    """
    with table.pinned() as pinned:
        return _trim_log(pinned, retention, patience)


def _trim_log(table: Folder, retention: Retention, patience: float) -> Freed:
    entries, checkpoints = _found(table)
    last = max(entries, default=0)
    local, now = table.local is not None, storage_now(table)
    seconds = _kept_seconds(table, retention)

    def old_enough(number: int, entry: ListedFile) -> bool:
        age = now - entry.modified
        return age >= seconds or (local and number <= last - LOG_ENTRIES and age >= READING)

    def may_begin(number: int) -> bool:
        # no lock on a store keeps a snapshot that a process uses: the version is as old by its committer's clock
        committed = 0 if local else read_entry(table, number).committed_at or 0
        return now - committed / 1000 >= seconds and _holds(table, number)

    safe = [number for number, file in checkpoints.items() if old_enough(number, file)]
    base = next(filter(may_begin, reversed(safe)), None)
    if base is None or min({*entries, *checkpoints}) == base:
        return Freed()
    with committing(table.uri, exclusive=True, patience=patience), suppress(FileNotFoundError):
        # a backup without this checkpoint may have been restored since the listing
        if table.entry(checkpoint_name(base)).mark == checkpoints[base].mark:
            return table.remove(_below(table, base))
    return Freed()


def _found(table: Folder) -> tuple[Collection[int], dict[int, ListedFile]]:
    """Returns the versions that have a log entry, and the checkpoints by version."""
    if not isinstance(table, LocalFolder):
        found = listed(table)
        return found.entries, found.checkpoints
    entries, numbers = logged_versions(table)
    checkpoints = {}
    for number in sorted(numbers):
        with suppress(FileNotFoundError):  # another process trims the log meanwhile
            checkpoints[number] = table.entry(checkpoint_name(number))
    return entries, checkpoints


def trim_below(table: Folder, version: int) -> Freed:
    """Removes the log files below ``version`` from a local log. Returns the number and size of the removed files.

    Removes nothing without a checkpoint of this or a later version. The caller must hold the exclusive lock.
    """
    above = (number for number in listed(table).checkpoints if number >= version)
    return table.remove(_below(table, version)) if any(map(partial(_holds, table), above)) else Freed()


def _below(table: Folder, version: int) -> list[str]:
    """Returns the log files of lower versions, oldest first. Remove them in this order."""
    found = ((version_of(file.name), file.name) for file in table.files(LOG))
    return [name for number, name in sorted(found) if 0 <= number < version]


def version_of(name: str) -> int:
    """Returns the version of a log file. Returns -1 for any other file."""
    match = _LOG_FILE.match(name.rpartition("/")[2])
    return int(match[1]) if match else -1


def _holds(table: Folder, version: int) -> bool:
    """Syncs a version's checkpoint to the disk. Returns True if the checkpoint can be read."""
    try:
        table.sync([checkpoint_name(version)])
        read_checkpoint(table, version)
    except (DamagedTable, FileNotFoundError) as error:
        _log.warning("the log of %s is not trimmed below version %d: %s", table.uri, version, error)
        return False
    return True


def wants_checkpoint(table: Folder, version: int, retention: Retention) -> bool:
    """True if the newest checkpoint is older than half the retention time, and commits have followed it."""
    checkpoints = listed(table).checkpoints
    if not checkpoints:
        return version > 0
    number, file = max(checkpoints.items())
    return version > number and file.modified < storage_now(table) - _kept_seconds(table, retention) / 2


def _kept_seconds(table: Folder, retention: Retention) -> float:
    return 60 * (retention.log_minutes if table.local is not None else retention.remote_log_minutes)
