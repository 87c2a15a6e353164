"""The OS lock that keeps Spark's log store honest on local disks.

Spark's log store on ``file://`` looks whether a commit file is there and then renames its own over
it, so a commit of another process in between is lost. delta-rs creates the file atomically. Hence
whoever commits through Spark on a local root holds this lock exclusively, all others share it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import urlparse

import fasteners


def local_path(uri: str) -> str | None:
    """The path that a local URI or path names, None for remote storage."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return parsed.path
    return uri if parsed.scheme == "" or len(parsed.scheme) == 1 else None


@contextlib.contextmanager
def committing(table_path: str, *, exclusive: bool) -> Iterator[None]:
    """Holds the table's commit lock; nothing to do on remote storage, whose stores arbitrate."""
    local = local_path(table_path)
    if local is None:
        yield
        return
    lock = fasteners.InterProcessReaderWriterLock(os.path.join(local, "_commit.lock"))
    with lock.write_lock() if exclusive else lock.read_lock():
        yield
