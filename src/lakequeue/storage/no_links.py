"""Opens and changes local files below a root. Follows no symbolic links of other users (DUR-72)."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

_SHARD = re.compile(r"(.*)/(q/[^/]+/[0-9]+/[^/]+)", re.DOTALL)
"""Pattern for the path of a shard's table. The first group is the root, the second is the path below it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


def crooked(
    root: str, name: str, is_kind: Callable[[int], bool] = stat.S_ISREG, descriptor: int | None = None
) -> str | None:
    """Returns the part of a path that is a link, or the whole path if ``is_kind`` refuses its file, or None."""
    path, parts = root, name.split("/")
    for place, part in enumerate(parts, 1):
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path, dir_fd=descriptor).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(mode) or (place == len(parts) and not is_kind(mode)):
            return path
    return None


def open_table(local: str) -> int:
    return open_folder(*_split(local))


def _split(table: str) -> tuple[str, str]:
    shard = _SHARD.fullmatch(table)
    return (shard[1], shard[2]) if shard else table.rpartition("/")[::2]


def open_folder(root: str, name: str) -> int:
    """Opens a directory below a root. Returns its descriptor. Raises FileNotFoundError if the path has a link."""
    try:
        return _opened(root, name)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise FileNotFoundError(errno.ENOENT, "a symbolic link leads there", f"{root}/{name}") from error


class Opener(NamedTuple):
    """Opens files in the directory of ``descriptor`` for writing. Refuses to follow a link."""

    descriptor: int

    def open(self, path: str, flags: int) -> int:
        """Opens a file. Pass this method as ``opener`` to Python's ``open``."""
        return os.open(path, flags | os.O_NOFOLLOW, 0o666, dir_fd=self.descriptor)


def folders(path: str, beginning: str, descriptor: int | None = None) -> list[str]:
    """Returns the sorted names of subdirectories that start with ``beginning``. Empty if unreadable."""
    with suppress(OSError), _folder(path, descriptor) as folder, os.scandir(folder) as entries:
        return sorted(each.name for each in entries if each.name.startswith(beginning) and each.is_dir())
    return []


def names(path: str, descriptor: int | None = None) -> list[str]:
    """Returns the names of files and subdirectories in a directory, in any order. Empty if unreadable."""
    with suppress(OSError), _folder(path, descriptor) as folder:
        return os.listdir(folder)
    return []


@contextmanager
def _folder(path: str, descriptor: int | None) -> Iterator[int]:
    opened = os.open(path, _FOLDER, dir_fd=descriptor)
    try:
        yield opened
    finally:
        os.close(opened)


def touch(folder: str, name: str) -> None:
    """Sets a file's time to now, or creates the file. As superuser, skips other users' directories."""
    if os.geteuid() == 0 != os.stat(folder).st_uid:
        return
    stamp(f"{folder}/{name}", create=True)


def stamp(path: str, *, create: bool) -> float:
    """Sets a file's time to now. Returns the time in seconds. Creates the file only if ``create`` is True."""
    descriptor = open_lock(path, os.O_WRONLY | (os.O_CREAT if create else 0))
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def open_lock(path: str, flags: int) -> int:
    """Opens a file that all users write. If the superuser creates the file, the directory's owner gets it."""
    folder, leaf = os.path.split(path)
    root, below = _split(folder)
    with above(root, f"{below}/{leaf}".lstrip("/")) as (inside, _):
        return open_lock_in(inside, leaf, flags)


@contextmanager
def whole(folder: int, name: str) -> Iterator[None]:
    """Removes a file if the block fails, so that a part of a file does not take the space of a full disk."""
    try:
        yield
    except Exception:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def open_lock_in(folder: int, name: str, flags: int) -> int:
    """Opens a file that all users write, like ``open_lock``. ``folder`` is a descriptor of its directory."""
    owner = os.fstat(folder)
    if os.geteuid() == 0 != owner.st_uid and flags & os.O_CREAT:
        with suppress(FileExistsError):  # An existing file may belong to any user.
            descriptor = os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
            return descriptor
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)


def unlink(root: str, name: str, descriptor: int | None = None) -> int:
    """Removes a file. Returns its size in bytes. Raises FileNotFoundError, or NotADirectoryError for a link."""
    with above(root, name, descriptor) as (folder, leaf):
        size = os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_size
        os.unlink(leaf, dir_fd=folder)
    return size


def mkdir(root: str, path: str, descriptor: int | None) -> None:
    """Creates a directory. ``path`` is relative to ``descriptor``, or absolute if ``descriptor`` is None."""
    below = path if descriptor is not None else path.removeprefix(f"{root}/")
    if below.startswith("/"):  # The path is the root, or above it.
        root, _, below = path.rpartition("/")
    with above(root, below, descriptor) as (folder, leaf):
        os.mkdir(leaf, dir_fd=folder)


def move(root: str, source: str, target: str) -> None:
    """Renames a file. Raises OSError if a link is on the way to either name."""
    with above(root, source) as (before, old), above(root, target) as (after, new):
        os.rename(old, new, src_dir_fd=before, dst_dir_fd=after)


def rmdir(root: str, name: str) -> None:
    """Removes an empty directory. Raises OSError if the directory is not empty, or behind a link."""
    with above(root, name) as (folder, leaf):
        os.rmdir(leaf, dir_fd=folder)


def rmtree(root: str, name: str, descriptor: int | None = None) -> None:
    """Removes a directory and its content. Skips files that cannot be removed."""
    with suppress(OSError), above(root, name, descriptor) as (folder, leaf):
        for _, folders, files, inside in os.fwalk(leaf, topdown=False, dir_fd=folder):
            for each in files + folders:  # ``folders`` includes links to directories.
                with suppress(OSError):
                    os.unlink(each, dir_fd=inside)
            for each in folders:
                with suppress(OSError):
                    os.rmdir(each, dir_fd=inside)
        os.rmdir(leaf, dir_fd=folder)


@contextmanager
def above(root: str, name: str, below: int | None = None) -> Iterator[tuple[int, str]]:
    """Opens the directory of a file without following links. Yields the descriptor and the file's name.

    The argument ``below`` is a descriptor of the root. Raises FileNotFoundError, or OSError for a link.
    """
    folders, _, leaf = name.rpartition("/")
    if below is not None and not folders:
        yield below, leaf
        return
    descriptor = _opened(root, folders, below)
    try:
        yield descriptor, leaf
    finally:
        os.close(descriptor)


def _opened(root: str, name: str, below: int | None = None) -> int:
    descriptor = os.open(root or "/", _FOLDER) if below is None else below
    try:
        for part in name.split("/") if name else ():
            descriptor, before = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor), descriptor
            if before != below:
                os.close(before)
        return descriptor
    except BaseException:
        if descriptor != below:
            os.close(descriptor)
        raise
