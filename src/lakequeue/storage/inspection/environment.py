"""Checks the surroundings of a local root: locks that other processes hold, and free space."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lakequeue.storage.engines.locks import LOCKS, LockHeld, committing
from lakequeue.storage.reserve import space_of
from lakequeue.storage.roots import EFFECTIVE, local_path

LOCK_PATIENCE = 1.0
"""Seconds for which a check waits for a lock."""
FREE_BYTES, FREE_FILES = 256 * 2**20, 10_000
"""A check warns if fewer bytes than ``FREE_BYTES``, or fewer inodes than ``FREE_FILES``, are free."""


def lock_problem(table: str) -> tuple[str, str] | None:
    """Returns why a local table cannot be locked, and how this affects a repair. None if the lock is free."""
    local = local_path(table)
    if local is None or not os.path.isdir(local):
        return None
    try:
        if all(os.path.lexists(os.path.join(local, name)) for name in LOCKS):
            with committing(table, exclusive=True, patience=LOCK_PATIENCE):
                return None
        if not os.access(local, os.W_OK, effective_ids=EFFECTIVE):
            raise PermissionError
        return None  # A lock file that does not exist has no holder, and a check creates no files.
    except LockHeld:
        holders = " and ".join(_holders(os.path.join(local, LOCKS[0])))
        problem = f"is locked for more than {LOCK_PATIENCE:g} s{f' by {holders}' if holders else ''}"
        return problem, "waits for the lock; continue that process, or end it"
    except PermissionError:
        problem = f"user {os.geteuid()} has no right to write there"
        return problem, f"needs that right; run it as user {os.stat(local).st_uid}, who owns the table"
    except OSError as error:
        return f"cannot be locked: {error}", "cannot be done before that is fixed"


def space_problems(path: str) -> Iterator[str]:
    """Yields a text if the file system has too few free bytes, and a text if it has too few free inodes."""
    space = space_of(path)
    if space is None:
        return
    if space.lacks_bytes(FREE_BYTES):
        yield f"only {space.free_bytes // 2**20} MiB are free on its file system"
    if space.lacks_files(FREE_FILES):
        yield f"its file system has room for only {space.free_files:,} more files"


def _holders(path: str) -> list[str]:
    """Returns a text for each process that has a lock on a file. Returns no texts if the system hides locks."""
    try:
        inode = str(os.stat(path).st_ino)
        with open("/proc/locks", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    # "1: POSIX ADVISORY WRITE 4711 08:01:123456 0 EOF". For a waiting process, the second word is "->".
    found = {line[4] for line in lines if line[1] != "->" and line[5].endswith(f":{inode}") and line[4] != "-1"}
    return [f"process {pid}{_stopped(pid)}" for pid in sorted(found)]


def _stopped(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return ", which is stopped" if state in "Tt" else ""
