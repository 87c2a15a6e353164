"""Keeping logs short: only this removes log entries; on local disks it holds the exclusive lock of the table."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from lakequeue.storage.delta_log import LOG
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.folder import Entry, Folder, Freed
from lakequeue.storage.layout import Retention

LOG_ENTRIES = 200
"""Entries that a fast-growing log keeps: each local commit lists them all, 5 ms for 1,000 more."""
READING = 15.0
"""Seconds that entries stay in any case, for readers that have just listed them."""
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|checkpoint(\..+)?\.parquet|crc)(\.crc)?$")


def trim_log(table: Folder, retention: Retention, patience: float) -> Freed:
    """Removes log entries below the newest checkpoint that is old enough, oldest first.

    On local disks a checkpoint is old enough after ``retention.log_minutes``, or with ``LOG_ENTRIES`` entries
    behind it. Its own age counts, not that of its commit: snapshots loaded since then need nothing below it, and
    older ones have had that long.

    Raises:
        LockHeld: another process held the lock for ``patience`` seconds; nothing was removed.
    """
    entries = list(_log(table))
    last = max((number for number, kind, _ in entries if kind == "json"), default=0)
    local, now = table.local is not None, time.time()
    seconds = _kept_seconds(table, retention)

    def old_enough(number: int, entry: Entry) -> bool:
        age = now - entry.modified
        return age >= seconds or (local and number <= last - LOG_ENTRIES and age >= READING)

    safe = [number for number, kind, entry in entries if kind == "checkpoint" and old_enough(number, entry)]
    # oldest first: while an entry is there, none that follows it was removed
    old = sorted((number, entry.name) for number, _, entry in entries if safe and number < max(safe))
    if not old:
        return Freed()
    with committing(table.uri, exclusive=True, patience=patience):
        return table.remove(name for _, name in old)


def wants_checkpoint(table: Folder, version: int, retention: Retention) -> bool:
    """Whether a checkpoint is due, so that the log can be trimmed in time.

    It is when the newest is older than half the retention, unless nothing was committed since.
    """
    checkpoints = [(number, entry.modified) for number, kind, entry in _log(table) if kind == "checkpoint"]
    if not checkpoints:
        return version > 0
    number, modified = max(checkpoints)
    return version > number and modified < time.time() - _kept_seconds(table, retention) / 2


def _kept_seconds(table: Folder, retention: Retention) -> float:
    return 60 * (retention.log_minutes if table.local is not None else retention.remote_log_minutes)


def readable_from(table: Folder) -> int:
    """The lowest version that can still be loaded: the first one, or that of a checkpoint."""
    return min(number for number, kind, _ in _log(table) if kind == "checkpoint" or number == 0)


def _log(table: Folder) -> Iterable[tuple[int, str, Entry]]:
    """Files of the log: version, kind (``json``, ``crc`` or ``checkpoint``), and the file."""
    for entry in table.files(LOG):
        name = entry.name.rpartition("/")[2]
        match = _LOG_FILE.match(name)
        if match:
            kind = "crc" if name.startswith(".") else match[2].partition(".")[0]  # Hadoop's checksum
            yield int(match[1]), kind, entry
