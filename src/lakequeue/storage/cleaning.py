"""What lies around a Delta table: unused files, old log entries, empty directories.

Nothing here commits, and nothing but this removes log entries or files. On local disks it does so while nobody is
in a commit to the table, see `locks`; on object stores it removes only what is days old. Doing it twice, or at
the same time in two processes, or half, does no harm.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack

from lakequeue.storage import layout
from lakequeue.storage.delta_log import LOG
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.engines.locks import committing, local_path
from lakequeue.storage.folder import Entry, Folder, Freed

LOG_ENTRIES = 200
"""Entries that a log is cut to where it grows quickly: each local commit lists it, 5 ms for 1,000 more."""
READING = 15.0
"""Seconds that entries stay in any case, for a reader that has just listed them."""
PATIENCE = 5.0
"""Seconds that the compactor waits until nobody is in a commit."""
_BATCH = 500
"""Files that are removed while others must not commit."""
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|checkpoint(\..+)?\.parquet|crc)(\.crc)?$")


def vacuum(table: Table, kept: layout.Retention, waiting: Collection[str] = ()) -> Freed:
    """Removes data files that no version of the last ``kept.file_hours`` names.

    Those that were never committed go when they are as old, unless they are among the ``waiting`` ones.

    Raises:
        LockHeld: somebody is in a commit for long; what is left is removed the next time.
    """
    folder = Folder(table.path)
    hours = kept.file_hours if folder.local is not None else kept.remote_file_hours
    unused, freed = sorted(set(table.unused(hours)) - set(waiting)), Freed()
    for start in range(0, len(unused), _BATCH):
        # whoever wrote a file and did not commit it yet holds the lock, or has committed it by now
        with committing(table.path, exclusive=True, patience=PATIENCE):
            table.refresh()
            named = {file.name for file in table.files()}
            freed += folder.remove(name for name in unused[start : start + _BATCH] if name not in named)
    return freed


def trim(table: Table, kept: layout.Retention) -> Freed:
    """Removes log entries as ``trim_log`` does, after a checkpoint is made where one is wanted for that."""
    table.refresh()
    if _wants_checkpoint(table.path, table.version, _log_seconds(table.path, kept)):
        with committing(table.path, exclusive=table.commits_alone, patience=PATIENCE):
            table.checkpoint()
    return trim_log(table.path, kept, PATIENCE)


def _wants_checkpoint(table_path: str, version: int, kept_seconds: float) -> bool:
    """Whether the log cannot be trimmed in time unless a checkpoint is made now.

    One is due when the newest is older than half of what is kept; none if nothing was committed since.
    """
    checkpoints = [(number, entry.modified) for number, kind, entry in _log(table_path) if kind == "checkpoint"]
    if not checkpoints:
        return version > 0
    number, modified = max(checkpoints)
    return version > number and modified < time.time() - kept_seconds / 2


def trim_log(table_path: str, kept: layout.Retention, patience: float) -> Freed:
    """Removes log entries below the newest checkpoint that is old enough, oldest first.

    On local disks that is one of ``kept.log_minutes``, or the newest one with ``LOG_ENTRIES`` behind it. The
    checkpoint's own age counts, not that of its commit: who loaded a snapshot since then reads nothing below it,
    and who did before has had that long.

    Raises:
        LockHeld: somebody is in a commit for ``patience`` seconds; nothing was removed.
    """
    entries = list(_log(table_path))
    last = max((number for number, kind, _ in entries if kind == "json"), default=0)
    local, now = local_path(table_path) is not None, time.time()
    seconds = _log_seconds(table_path, kept)

    def old_enough(number: int, entry: Entry) -> bool:
        age = now - entry.modified
        return age >= seconds or (local and number <= last - LOG_ENTRIES and age >= READING)

    safe = [number for number, kind, entry in entries if kind == "checkpoint" and old_enough(number, entry)]
    # oldest first: while an entry is there, none that follows it was removed
    old = sorted((number, entry.name) for number, _, entry in entries if safe and number < max(safe))
    if not old:
        return Freed()
    with committing(table_path, exclusive=True, patience=patience):
        return Folder(table_path).remove(name for _, name in old)


def _log_seconds(table_path: str, kept: layout.Retention) -> float:
    return 60 * (kept.log_minutes if local_path(table_path) is not None else kept.remote_log_minutes)


def readable_from(table_path: str) -> int:
    """The lowest version that the log still tells as a whole: the first one, or that of a checkpoint."""
    # a commit is told by those before it, down to a checkpoint
    return min(number for number, kind, _ in _log(table_path) if kind == "checkpoint" or number == 0)


def remove_empty_folders(table_path: str, kept_seconds: float) -> None:
    """On local disks, removes directories that segments have left behind.

    Only those that nothing was put into or taken from for a while: a writer makes one right before it uses it.
    """
    local = local_path(table_path)
    if local is None:
        return
    horizon = time.time() - kept_seconds
    touched = {
        folder: os.stat(folder).st_mtime for folder, _, _ in os.walk(local)
    }  # before one goes out of another
    for folder in sorted(touched, reverse=True):  # what lies in a directory comes before it
        inside = os.path.relpath(folder, local)
        if inside != "." and not inside.startswith(("_", ".")) and touched[folder] < horizon:
            with contextlib.suppress(OSError):  # not empty, or gone
                os.rmdir(folder)


def remove_tables(root: str, key: str, kept_seconds: float = 0) -> Freed:
    """Removes the tables of a queue that the catalog does not name, unless something in them is younger.

    Raises:
        LockHeld: somebody is in a commit to one of them, and would make parts of it anew.
    """
    folder = Folder(layout.tables_path(root, key))
    with ExitStack() as alone:
        if folder.local is not None:
            for shard in filter(str.isdigit, folder.folders()):
                for table in folder.folders(shard):
                    path = f"{folder.uri}/{shard}/{table}"
                    alone.enter_context(committing(path, exclusive=True, patience=PATIENCE))
        files = list(folder.files())
        if time.time() - max((file.modified for file in files), default=0.0) < kept_seconds:
            return Freed()
        if folder.local is None:
            return folder.remove(file.name for file in files)
        shutil.rmtree(folder.local, ignore_errors=True)
    return Freed(len(files), sum(file.size for file in files))


def _log(table_path: str) -> Iterable[tuple[int, str, Entry]]:
    """Entries of the log: version, ``json``, ``crc`` or ``checkpoint``, and the file."""
    for entry in Folder(table_path).files(LOG):
        name = entry.name.rpartition("/")[2]
        match = _LOG_FILE.match(name)
        if match:
            kind = "crc" if name.startswith(".") else match[2].partition(".")[0]  # Hadoop's checksum
            yield int(match[1]), kind, entry
