"""Reserves bytes and inodes of a local disk. On a full disk, purges and compactions use the reserve."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from lakequeue.storage import layout, no_links
from lakequeue.storage.roots import local_path

RESERVED = 2 << 20
"""Size of the reserve file in bytes. This size is enough for some hundred small commits."""
PLENTY = 2 * RESERVED
"""Minimum free bytes for creating a missing reserve file."""
RESERVED_FILES = 64
"""Number of empty files, which reserve an inode each. The compactor needs a few inodes at a time."""
PLENTY_FILES = 4 * RESERVED_FILES
"""Minimum free inodes for creating missing reserve files."""


LEAST_FREE = 0.2
"""If this share of the disk is free, the space counts as sufficient, even on a small file system."""


class Space(NamedTuple):
    size_bytes: int
    free_bytes: int
    free_files: int | None
    """Number of files that the file system can still create. None if there is no limit."""
    size_files: int = 0
    """Maximum number of files that the file system can hold."""

    def lacks_bytes(self, least: int) -> bool:
        """True if the free bytes are below ``least``, and also below the share ``LEAST_FREE`` of all bytes."""
        return self.free_bytes < min(least, LEAST_FREE * self.size_bytes)

    def lacks_files(self, least: int) -> bool:
        """True if fewer than ``least`` inodes, and less than the share ``LEAST_FREE`` of all inodes, are free."""
        return self.free_files is not None and self.free_files < min(least, LEAST_FREE * self.size_files)


def space_of(path: str) -> Space | None:
    """Returns the total and free space of a path's file system, or None for a remote or missing path."""
    local = local_path(path)
    if local is None or not os.path.isdir(local):
        return None
    status = os.statvfs(local)
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return Space(size, free, status.f_favail if status.f_files else None, status.f_files)


@contextmanager
def reserve(root: str) -> Iterator[None]:
    """On a full disk, removes the reserve before the block. Tries to create the reserve again afterwards.

    If the block raises, creates only what was removed, because the directory may belong to another program.
    """
    local, space = local_path(root), space_of(root)
    if local is None or space is None:
        yield
        return
    had_one = _has_bytes(local) or os.path.isdir(os.path.join(local, layout.RESERVE_FILES))
    if space.free_bytes < RESERVED:
        with suppress(OSError):
            os.unlink(os.path.join(local, layout.RESERVE))
    if space.free_files is not None and space.free_files < RESERVED_FILES:
        shutil.rmtree(os.path.join(local, layout.RESERVE_FILES), ignore_errors=True)
    try:
        yield
    except BaseException:
        if had_one:
            take(local)
        raise
    take(local)


def take(local: str) -> None:
    """Creates the missing reserve files of a local root, if enough space is free."""
    space = space_of(local)
    if space is None:
        return
    if space.free_bytes > PLENTY and not _has_bytes(local):
        # This user may not write the root, or another process is faster.
        with suppress(OSError), no_links.above(local, layout.RESERVE) as (inside, name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=inside)  # a part, which a killed process left
            with open(name, "xb", opener=no_links.Opener(inside).open) as file, no_links.whole(inside, name):
                file.write(bytes(RESERVED))
                file.flush()
    folder = os.path.join(local, layout.RESERVE_FILES)
    if space.free_files is not None and space.free_files > PLENTY_FILES and not os.path.isdir(folder):
        with suppress(OSError):
            os.mkdir(folder)
            with no_links.above(local, f"{layout.RESERVE_FILES}/.") as (inside, _):
                for number in range(RESERVED_FILES):
                    os.close(os.open(str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=inside))


def _has_bytes(local: str) -> bool:
    path = os.path.join(local, layout.RESERVE)
    return os.path.isfile(path) and os.path.getsize(path) >= RESERVED


def is_low(root: str) -> bool:
    """True if a local disk lacks space for a reserve. Compactions then remove files before they write new ones."""
    space = space_of(root)
    return space is not None and (
        space.free_bytes < PLENTY or (space.free_files is not None and space.free_files < PLENTY_FILES)
    )


def is_used_up(root: str) -> bool:
    """True if purges and compactions may fail, because the disk is full and has no reserve."""
    local, space = local_path(root), space_of(root)
    if local is None or space is None:
        return False
    if space.free_bytes < RESERVED and not _has_bytes(local):
        return True
    few = space.free_files is not None and space.free_files < RESERVED_FILES
    return few and not os.path.isdir(os.path.join(local, layout.RESERVE_FILES))


def missing(root: str) -> Iterator[str]:
    """Yields a warning if a local root has no reserved bytes, and a warning if it has no reserved inodes."""
    local, space = local_path(root), space_of(root)
    if local is None or space is None:
        return
    more = "when the disk is full, purges and compactions may not go on: make room, then run lakequeue compact"
    if not _has_bytes(local):
        yield f"no bytes are reserved; {more}"
    if space.free_files is not None and not os.path.isdir(os.path.join(local, layout.RESERVE_FILES)):
        yield f"no inodes are reserved; {more}"
