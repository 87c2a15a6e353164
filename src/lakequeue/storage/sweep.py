"""What lies around a Delta table: unused files, old log entries, empty directories.

Nothing here commits, and nothing but this removes log entries or files. On local disks it does so while nobody is
in a commit to the table, see `locks`; on object stores it removes only what is days old. Doing it twice, or at
the same time in two processes, or half, does no harm.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from lakequeue.storage import layout
from lakequeue.storage.engine import Freed, Table
from lakequeue.storage.locks import committing, local_path

LOG_ENTRIES = 200
"""Entries that a log is cut to where it grows quickly: each local commit lists it, 5 ms for 1,000 more."""
READING = 15.0
"""Seconds that entries stay in any case, for a reader that has just listed them."""
PATIENCE = 5.0
"""Seconds that the compactor waits until nobody is in a commit."""
_BATCH = 500
"""Files that are removed while others must not commit."""
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|checkpoint(\..+)?\.parquet|crc)(\.crc)?$")


def remove(table_path: str, files: Iterable[str]) -> Freed:
    """Removes files, named by their paths below the table; those that are gone already count as nothing."""
    filesystem, base = filesystem_of(table_path)
    freed = Freed()
    for info in filesystem.get_file_info([f"{base}{file}" for file in files]):
        if info.type == pa_fs.FileType.File:
            with contextlib.suppress(FileNotFoundError):
                filesystem.delete_file(info.path)
                freed += Freed(1, info.size or 0)
    return freed


def vacuum(table: Table, kept: layout.Kept, waiting: Collection[str] = ()) -> Freed:
    """Removes data files that no version of the last ``kept.file_hours`` names.

    Those that were never committed go when they are as old, unless they are among the ``waiting`` ones.

    Raises:
        LockHeld: somebody is in a commit for long; what is left is removed the next time.
    """
    hours = kept.file_hours if local_path(table.path) is not None else kept.remote_file_hours
    unused, freed = sorted(set(table.unused(hours)) - set(waiting)), Freed()
    for start in range(0, len(unused), _BATCH):
        # whoever wrote a file and did not commit it yet holds the lock, or has committed it by now
        with committing(table.path, exclusive=True, patience=PATIENCE):
            table.refresh()
            named = set(map(unquote, table.files()["path"].to_pylist()))
            freed += remove(table.path, [file for file in unused[start : start + _BATCH] if file not in named])
    return freed


def trim(table: Table, kept: layout.Kept) -> Freed:
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
    checkpoints = [(number, info) for number, kind, info in _log(table_path) if kind == "checkpoint"]
    if not checkpoints:
        return version > 0
    number, info = max(checkpoints, key=lambda each: each[0])
    return version > number and info.mtime.timestamp() < time.time() - kept_seconds / 2


def trim_log(table_path: str, kept: layout.Kept, patience: float) -> Freed:
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

    def old_enough(number: int, info: pa_fs.FileInfo) -> bool:
        age = now - info.mtime.timestamp()
        return age >= seconds or (local and number <= last - LOG_ENTRIES and age >= READING)

    safe = [number for number, kind, info in entries if kind == "checkpoint" and old_enough(number, info)]
    if not safe:
        return Freed()
    # oldest first: while an entry is there, none that follows it was removed
    old = sorted((number, info.base_name) for number, _, info in entries if number < max(safe))
    if not old:
        return Freed()
    with committing(table_path, exclusive=True, patience=patience):
        return remove(table_path, [f"_delta_log/{name}" for _, name in old])


def _log_seconds(table_path: str, kept: layout.Kept) -> float:
    return 60 * (kept.log_minutes if local_path(table_path) is not None else kept.remote_log_minutes)


def exists(table_path: str, file: str) -> bool:
    """Whether there is a file or folder of this name below a table."""
    filesystem, base = filesystem_of(table_path)
    return filesystem.get_file_info(f"{base}{file}").type != pa_fs.FileType.NotFound


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


def folders(path: str) -> list[str]:
    """Names of what is in a folder."""
    filesystem, base = filesystem_of(path)
    return [info.base_name for info in filesystem.get_file_info(pa_fs.FileSelector(base, allow_not_found=True))]


def remove_tables(root: str, key: str, kept_seconds: float = 0) -> Freed:
    """Removes the tables of a queue that the catalog does not name, unless something in them is younger.

    Raises:
        LockHeld: somebody is in a commit to one of them, and would make parts of it anew.
    """
    path = layout.tables_path(root, key)
    with ExitStack() as alone:
        for shard in filter(str.isdigit, folders(path)):
            for table in (f"{path}/{shard}/{name}" for name in folders(f"{path}/{shard}")):
                alone.enter_context(committing(table, exclusive=True, patience=PATIENCE))
        filesystem, base = filesystem_of(path)
        infos = filesystem.get_file_info(pa_fs.FileSelector(base, recursive=True, allow_not_found=True))
        files = [info for info in infos if info.type == pa_fs.FileType.File]
        newest = max((info.mtime.timestamp() for info in files if info.mtime is not None), default=0.0)
        if time.time() - newest < kept_seconds:
            return Freed()
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete_dir(base)
    return Freed(len(files), sum(info.size or 0 for info in files))


def _log(table_path: str) -> Iterable[tuple[int, str, pa_fs.FileInfo]]:
    """Entries of the log: version, ``json``, ``crc`` or ``checkpoint``, and the file."""
    filesystem, base = filesystem_of(table_path)
    for info in filesystem.get_file_info(pa_fs.FileSelector(f"{base}_delta_log", allow_not_found=True)):
        match = _LOG_FILE.match(info.base_name)
        if match:
            kind = "crc" if info.base_name.startswith(".") else match[2].partition(".")[0]  # Hadoop's checksum
            yield int(match[1]), kind, info


def filesystem_of(path: str) -> tuple[pa_fs.FileSystem, str]:
    """The file system of a table and the prefix of its paths there."""
    local = local_path(path)
    if local is not None:
        return pa_fs.LocalFileSystem(), f"{os.path.abspath(local)}/"
    from deltalake.fs import DeltaStorageHandler

    return pa_fs.PyFileSystem(DeltaStorageHandler(path)), ""
