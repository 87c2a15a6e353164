"""The OS lock that keeps Spark's log store honest on local disks.

Spark's log store on ``file://`` looks whether a commit file is there and then renames its own over
it, so a commit of another process in between is lost. delta-rs creates the file atomically. Hence
whoever commits through Spark on a local root holds this lock exclusively, all others share it.

The system's lock belongs to a process: a second thread would get it too, and end it for both by closing
the file. So the threads of a process settle among themselves first, and their readers hold it together.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from urllib.parse import urlparse

import fasteners


def local_path(uri: str) -> str | None:
    """The path that a local URI or path names, None for remote storage."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return parsed.path
    return uri if parsed.scheme == "" or len(parsed.scheme) == 1 else None


class _TableLock:
    """The commit lock of one table, as the threads of this process share it."""

    def __init__(self, file: str) -> None:
        self._threads = fasteners.ReaderWriterLock()
        self._processes = fasteners.InterProcessReaderWriterLock(file)
        self._mutex = threading.Lock()
        self._readers = 0
        self._owner: int | None = None  # the thread that has it alone, and may take it again

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            yield
            return
        with self._threads.read_lock():
            with self._mutex:
                if self._readers == 0:
                    self._processes.acquire_read_lock()
                self._readers += 1
            try:
                yield
            finally:
                with self._mutex:
                    self._readers -= 1
                    if self._readers == 0:
                        self._processes.release_read_lock()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            yield
            return
        with self._threads.write_lock(), self._processes.write_lock():
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None


_locks: weakref.WeakValueDictionary[str, _TableLock] = weakref.WeakValueDictionary()
_locks_mutex = threading.Lock()


@contextlib.contextmanager
def committing(table_path: str, *, exclusive: bool) -> Iterator[None]:
    """Holds the table's commit lock; nothing to do on remote storage, whose stores arbitrate.

    A thread that has it alone may take it again inside: so a writer that keeps losing its races decides and
    commits with everybody else kept out.
    """
    local = local_path(table_path)
    if local is None:
        yield
        return
    file = os.path.join(os.path.realpath(local), "_commit.lock")
    with _locks_mutex:
        lock = _locks.get(file)
        if lock is None:
            lock = _locks[file] = _TableLock(file)
    with lock.exclusive() if exclusive else lock.shared():
        yield
