"""Lock of the process that watches a queue's logs, and wakes the other waiting processes of the machine.

The lock only saves work. If a waiting process finds no recent stamp of the lock, it checks the logs itself.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.roots import local_path

WATCH_LOCK = "_watch.lock"
"""File name of the lock, in the ledger of the first shard. When the file is closed, waiting processes wake."""


class WatchLock(FileLock):
    """A process's handle on the lock ``WATCH_LOCK``. Not thread-safe."""

    @classmethod
    def of(cls, table_path: str) -> WatchLock:
        return cls(os.path.join(local_path(table_path) or "", WATCH_LOCK))

    def is_in_place(self) -> bool:
        """False if the lock's file was removed or replaced, so that other processes use another file."""
        with suppress(OSError):
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path))
        return False

    def trusted_for(self, seconds: float) -> float:
        """Returns the seconds until the last stamp of the lock is ``seconds`` old. 0.0 for an older stamp."""
        with suppress(OSError):
            age = time.time() - os.stat(self.path).st_mtime
            return max(0.0, seconds - age) if age >= 0 else 0.0
        return 0.0
