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
    """A file lock of one open descriptor, which also excludes other threads. Not thread-safe.

    The lock ends with the process or this object. Closing another descriptor does not release the lock.
    """

    def __init__(self, path: str, folder: int | None = None) -> None:
        """Does not open the lock's file at ``path``. ``folder``: descriptor of the opened directory."""
        self.path = path
        self._folder = folder
        self.exclusive: bool | None = None
        """True if the lock is held exclusively, False if shared, None if not held."""
        self._file: FileIO | None = None

    def take(self, *, exclusive: bool) -> bool:
        """Takes the lock without waiting. Returns False if the lock is held, or if its file was replaced.

        Raises OSError if the file cannot be opened. The directory is never created.
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
        """Records the time in the lock's file, for waiting processes. Does nothing without the exclusive lock."""
        if self._file is not None and self.exclusive:
            os.utime(self._file.fileno())

    @property
    def stamped(self) -> float:
        """Time of the last ``stamp`` of the lock's holder, in seconds by the wall clock."""
        return 0.0 if self._file is None else os.fstat(self._file.fileno()).st_mtime

    def release(self) -> None:
        """Releases the lock, if held."""
        file, self._file, self.exclusive = self._file, None, None
        if file is not None:
            # a child that is being forked has the same open file
            _lock(file, fcntl.LOCK_UN)
            file.close()
            _open.discard(self)


class Held(threading.local):
    """Locks of this thread, by ``table_id``. A lock for which the thread stopped waiting may be included."""

    def __init__(self) -> None:
        self.locks: weakref.WeakValueDictionary[tuple[int, int], FileLock] = weakref.WeakValueDictionary()


def table_id(folder: int) -> tuple[int, int]:
    """Returns the device and inode of an opened directory. Renaming the directory changes neither value."""
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
    """Closes the locks in a forked child. Otherwise, the child would hold the locks after its parent's death."""
    for lock in list(_open):
        if lock._file is not None:
            lock._file.close()
            lock._file = lock.exclusive = None


os.register_at_fork(after_in_child=_close_in_child)
