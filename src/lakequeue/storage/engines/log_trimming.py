"""Keeping logs short: only this removes log entries; on local disks it holds the exclusive lock of the table."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import LOG, checkpoint_name, listed, read_checkpoint
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.folder import Entry, Folder, Freed
from lakequeue.storage.layout import Retention

LOG_ENTRIES = 200
"""Entries that a fast-growing log keeps: opening a table lists them all, 5 ms for 1,000 more."""
READING = 15.0
"""Seconds that entries stay in any case, for readers that have just listed them."""
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|checkpoint(\..+)?\.(parquet|json)|crc)(\.crc)?$")
"""What any writer of Delta leaves in a log for a version."""
_log = logging.getLogger("lakequeue")


def trim_log(table: Folder, retention: Retention, patience: float) -> Freed:
    """Removes log entries below the newest checkpoint that is old enough, oldest first.

    On local disks a checkpoint is old enough after ``retention.log_minutes``, or with ``LOG_ENTRIES`` entries
    behind it. Its own age counts, not that of its commit: snapshots loaded since then need nothing below it, and
    older ones have had that long. A checkpoint that is not on disk, or cannot be read, replaces nothing (DUR-3).

    Raises:
        LockHeld: another process held the lock for ``patience`` seconds; nothing was removed.
    """
    found = list(listed(table))
    last = max((number for number, is_checkpoint, _ in found if not is_checkpoint), default=0)
    local, now = table.local is not None, time.time()
    seconds = _kept_seconds(table, retention)

    def old_enough(number: int, entry: Entry) -> bool:
        age = now - entry.modified
        return age >= seconds or (local and number <= last - LOG_ENTRIES and age >= READING)

    safe = (number for number, is_checkpoint, file in found if is_checkpoint and old_enough(number, file))
    base = next((number for number in sorted(safe, reverse=True) if _holds(table, number)), None)
    if base is None:
        return Freed()
    # oldest first: while an entry is there, none that follows it was removed
    old = sorted((number, file.name) for file in table.files(LOG) if 0 <= (number := version_of(file.name)) < base)
    if not old:
        return Freed()
    with committing(table.uri, exclusive=True, patience=patience):
        return table.remove(name for _, name in old)


def version_of(name: str) -> int:
    """The version to which a file of a log belongs; -1 if to none."""
    match = _LOG_FILE.match(name.rpartition("/")[2])
    return int(match[1]) if match else -1


def _holds(table: Folder, version: int) -> bool:
    """Whether a checkpoint is on disk and can be read, so that it may replace what lies below."""
    try:
        table.sync([checkpoint_name(version)])
        read_checkpoint(table, version)
    except (DamagedTable, FileNotFoundError) as error:
        _log.warning("the log of %s is not trimmed below version %d: %s", table.uri, version, error)
        return False
    return True


def wants_checkpoint(table: Folder, version: int, retention: Retention) -> bool:
    """Whether a checkpoint is due, so that the log can be trimmed in time.

    It is when the newest is older than half the retention, unless nothing was committed since.
    """
    checkpoints = [(number, file.modified) for number, is_checkpoint, file in listed(table) if is_checkpoint]
    if not checkpoints:
        return version > 0
    number, modified = max(checkpoints)
    return version > number and modified < time.time() - _kept_seconds(table, retention) / 2


def _kept_seconds(table: Folder, retention: Retention) -> float:
    return 60 * (retention.log_minutes if table.local is not None else retention.remote_log_minutes)


def readable_from(found: Sequence[tuple[int, bool, Entry]]) -> int:
    """The lowest version of a listed log that can be loaded: the first one, or that of a checkpoint.

    A process that was stopped may write a checkpoint whose entry, and those that follow it, were trimmed since.
    """
    entries = {number for number, is_checkpoint, _ in found if not is_checkpoint}
    return min(
        number for number, is_checkpoint, _ in found if number in entries and (is_checkpoint or number == 0)
    )
