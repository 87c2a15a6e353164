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
    """A lock on a file. Excludes other processes and other threads. A lock object is not thread-safe. The lock
    ends with the process or with this object. Closing another descriptor of the file does not end the lock.
    """

    def __init__(self, path: str, folder: int | None = None) -> None:
        """Prepares a lock, but opens no file. ``folder`` is an open descriptor of the file's directory."""
        self.path = path
        self.folder = folder
        self.exclusive: bool | None = None
        """True if this object holds the lock exclusively, False if it shares the lock, None if it has no lock."""
        self._file: FileIO | None = None

    def take(self, *, exclusive: bool) -> bool:
        """Tries once to take the lock. Returns False if another holder has it, or if its file was replaced.

        Creates the lock's file if needed, but no directory. Raises OSError if the file cannot be opened.
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
        self.folder = None
        return False

    def _open(self, path: str, flags: int) -> int:
        if self.folder is None:
            return open_lock(path, flags)
        return open_lock_in(self.folder, os.path.basename(path), flags)

    def stamp(self) -> None:
        """Sets the time of the lock's file to now. Does nothing unless this object holds the exclusive lock."""
        if self._file is not None and self.exclusive:
            os.utime(self._file.fileno())

    @property
    def stamped(self) -> float:
        """Time of the holder's last ``stamp``, in seconds since 1970. 0.0 if this object has opened no file."""
        return 0.0 if self._file is None else os.fstat(self._file.fileno()).st_mtime

    def release(self) -> None:
        file, self._file, self.exclusive = self._file, None, None
        if file is not None:
            # a child that is being forked has the same open file
            _lock(file, fcntl.LOCK_UN)
            file.close()
            _open.discard(self)


class Held(threading.local):
    """Locks of this thread, by ``table_id``. May include a lock for which the thread still waits."""

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
    """Closes the locks in a forked child, which would otherwise still hold them after its parent's death."""
    for lock in list(_open):
        if lock._file is not None:
            lock._file.close()
            lock._file = lock.exclusive = None


os.register_at_fork(after_in_child=_close_in_child)
