"""The lock of the process that watches a queue's logs for all waiting processes of this machine.

The lock only saves work. A process that sees no sign of the lock's holder checks the logs itself.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.roots import local_path

WATCH_LOCK = "_watch.lock"
"""File in the ledger of a queue's first shard. Closing it releases the lock, and wakes other processes."""


class WatchLock(FileLock):
    """One process's handle on the lock. Not thread-safe; its owner locks."""

    @classmethod
    def of(cls, table_path: str) -> WatchLock:
        return cls(os.path.join(local_path(table_path) or "", WATCH_LOCK))

    def still_leads(self) -> bool:
        """Shows other processes that the holder is not stopped. Returns False if the directory was replaced."""
        with suppress(OSError):
            if self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path)):
                self.stamp()
                return True
        return False

    def is_led(self, seconds: float) -> bool:
        """True if the holder has shown a sign of life in the last ``seconds``."""
        with suppress(OSError):
            return 0 <= time.time() - os.stat(self.path).st_mtime < seconds
        return False
