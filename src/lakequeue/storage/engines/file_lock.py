"""Locks of the operating system on files of local disks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from io import FileIO

from lakequeue.storage.no_links import open_lock, open_lock_in


class FileLock:
    """A lock on a file, held by whoever has it open: not by a process, so threads exclude each other, too.

    A record lock of POSIX belongs to the process instead, and goes when it closes any descriptor of the file: when
    it copies the root, for example. Either goes when the process ends, and this one also when the object goes, as
    after an interrupt. Not thread-safe.
    """

    def __init__(self, path: str, folder: int | None = None) -> None:
        """``folder`` is a descriptor of the file's directory, and saves the way there."""
        self.path = path
        self._folder = folder
        self.exclusive: bool | None = None
        """How it is held; None: it is not."""
        self._file: FileIO | None = None

    def take(self, *, exclusive: bool) -> bool:
        """Takes the lock unless others hold it, without waiting; returns whether it did.

        Raises:
            OSError: the file cannot be opened; its directory is never made.
        """
        file = self._file
        if file is None:
            self._file = file = FileIO(self.path, "a+", opener=self._open)
            _open.add(self)
        if not _lock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH):
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                self.exclusive = exclusive
                return True
        self.release()  # the directory was moved or removed since: nobody else comes to this file
        self._folder = None
        return False

    def _open(self, path: str, flags: int) -> int:
        if self._folder is None:
            return open_lock(path, flags)
        return open_lock_in(self._folder, os.path.basename(path), flags)

    def stamp(self) -> None:
        """Notes the time, if the lock is held, for those that wait."""
        if self._file is not None and self.exclusive:
            os.utime(self._file.fileno())

    @property
    def stamped(self) -> float:
        """When the holder last noted the time, by the wall clock in seconds; for those that wait."""
        return 0.0 if self._file is None else os.fstat(self._file.fileno()).st_mtime

    def release(self) -> None:
        """Gives up the lock, if it is held."""
        file, self._file, self.exclusive = self._file, None, None
        if file is not None:
            # a child that is being forked has the same open file
            _lock(file, fcntl.LOCK_UN)
            file.close()
            _open.discard(self)


class Held(threading.local):
    """Locks that a thread holds, or goes on without, by ``table_id``."""

    def __init__(self) -> None:
        self.locks: weakref.WeakValueDictionary[tuple[int, int], FileLock] = weakref.WeakValueDictionary()


def table_id(folder: int) -> tuple[int, int]:
    """Returns the device and inode of an open directory. They do not depend on the path that led there."""
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _lock(file: FileIO, operation: int) -> bool:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_open: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_in_child() -> None:
    """Else a forked child would hold what its parent held, even after the parent has died."""
    for lock in list(_open):
        if lock._file is not None:
            lock._file.close()
            lock._file = lock.exclusive = None


os.register_at_fork(after_in_child=_close_in_child)
