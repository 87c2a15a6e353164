"""What lies around a Delta table: removed files, old log entries, manifests of bulk sends, empty directories.

Nothing here commits. What is removed here is what no reader asks for any more, so doing it twice, or at the
same time in two processes, or half, does no harm.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable

import attrs
import pyarrow.fs as pa_fs

from lakequeue.storage.locks import local_path

_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|checkpoint(\..+)?\.parquet|crc)(\.crc)?$")


@attrs.frozen
class Freed:
    """What was removed from storage."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Freed) -> Freed:
        return Freed(self.files + other.files, self.bytes + other.bytes)


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


def wants_checkpoint(table_path: str, version: int, kept_seconds: float) -> bool:
    """Whether the log cannot be trimmed in time unless a checkpoint is made now.

    One is due when the newest is older than half of what is kept; none if nothing was committed since.
    """
    checkpoints = [(number, info) for number, kind, info in _log(table_path) if kind == "checkpoint"]
    if not checkpoints:
        return version > 0
    number, info = max(checkpoints, key=lambda each: each[0])
    return version > number and info.mtime.timestamp() < time.time() - kept_seconds / 2


def trim_log(table_path: str, kept_seconds: float) -> Freed:
    """Removes log entries below the newest checkpoint that is at least ``kept_seconds`` old.

    The checkpoint's own age counts, not that of its commit: who loaded a snapshot since then reads nothing
    below it, and who did before has had that long. So a snapshot may be read, and asked for by its version,
    for ``kept_seconds`` after it was the newest. delta-rs's own cleanup goes by the age of the commits, and
    takes from a quiet table the log under a reader that has just come.
    """
    entries = list(_log(table_path))
    horizon = time.time() - kept_seconds
    safe = [number for number, kind, info in entries if kind == "checkpoint" and info.mtime.timestamp() <= horizon]
    if not safe:
        return Freed()
    oldest = max(safe)
    return remove(table_path, [f"_delta_log/{info.base_name}" for number, _, info in entries if number < oldest])


def readable_from(table_path: str) -> int:
    """The lowest version that the log still tells as a whole: the first one, or that of a checkpoint."""
    # a commit is told by those before it, down to a checkpoint
    return min(number for number, kind, _ in _log(table_path) if kind == "checkpoint" or number == 0)


def forget_manifests(messages_path: str, before: int) -> Freed:
    """Removes manifests of bulk sends that were written before an instant.

    Of a committed send nobody needs it; files of another are too old to be committed, and VACUUM takes them.
    """
    filesystem, base = filesystem_of(messages_path)
    old = []
    for info in filesystem.get_file_info(pa_fs.FileSelector(f"{base}_manifests", allow_not_found=True)):
        if info.base_name.endswith(".json"):
            with contextlib.suppress(FileNotFoundError), filesystem.open_input_stream(info.path) as stream:
                if json.loads(stream.read())["created_at"] < before:
                    old.append(f"_manifests/{info.base_name}")
    return remove(messages_path, old)


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
