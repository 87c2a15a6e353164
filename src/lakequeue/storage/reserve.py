"""Space on a local disk for what frees space: purges and compactions go on when bytes or inodes are out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from lakequeue.storage import layout, no_links
from lakequeue.storage.roots import local_path

RESERVED = 2 << 20
"""Bytes of the file: some hundred small commits."""
PLENTY = 2 * RESERVED
"""Free bytes of a disk from which they are taken."""
RESERVED_FILES = 64
"""Empty files beside it, each an inode: a pass over a queue of some shards needs a few at a time."""
PLENTY_FILES = 4 * RESERVED_FILES
"""Free inodes from which they are taken."""


class Space(NamedTuple):
    """The space of a file system."""

    size_bytes: int
    free_bytes: int
    free_files: int | None
    """Files that it has room for; None where it has no such limit."""


def space_of(path: str) -> Space | None:
    """The space of the file system of a path; None if it is not local, or not there."""
    local = local_path(path)
    if local is None or not os.path.isdir(local):
        return None
    status = os.statvfs(local)
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return Space(size, free, status.f_favail if status.f_files else None)


@contextmanager
def reserve(root: str) -> Iterator[None]:
    """Gives the reserved space of a root up if the disk has no more; takes it, again, when there is plenty."""
    local, space = local_path(root), space_of(root)
    if local is None or space is None:
        yield
        return
    if space.free_bytes < RESERVED:
        with suppress(OSError):
            os.unlink(os.path.join(local, layout.RESERVE))
    if space.free_files is not None and space.free_files < RESERVED_FILES:
        shutil.rmtree(os.path.join(local, layout.RESERVE_FILES), ignore_errors=True)
    yield
    take(local)


def take(local: str) -> None:
    """Takes the reserved space of a local root that is not taken, as far as there is plenty."""
    space = space_of(local)
    if space is None:
        return
    if space.free_bytes > PLENTY:
        with suppress(OSError), open(os.path.join(local, layout.RESERVE), "xb") as file:  # or the root is not ours
            file.write(bytes(RESERVED))
    folder = os.path.join(local, layout.RESERVE_FILES)
    if space.free_files is not None and space.free_files > PLENTY_FILES and not os.path.isdir(folder):
        with suppress(OSError):
            os.mkdir(folder)
            with no_links.above(local, f"{layout.RESERVE_FILES}/.") as (inside, _):
                for number in range(RESERVED_FILES):
                    os.close(os.open(str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=inside))


def missing(root: str) -> Iterator[str]:
    """What is not reserved in a local root, as sentences."""
    local, space = local_path(root), space_of(root)
    if local is None or space is None:
        return
    more = "when the disk is full, purges and compactions may not go on: make room, then run lakequeue compact"
    if not os.path.isfile(os.path.join(local, layout.RESERVE)):
        yield f"no bytes are reserved; {more}"
    if space.free_files is not None and not os.path.isdir(os.path.join(local, layout.RESERVE_FILES)):
        yield f"no inodes are reserved; {more}"
