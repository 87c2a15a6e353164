"""The lock of the process that watches the logs of a queue for all that wait on it on this machine.

It is only for speed: whoever gets no sign of the one that has it looks for itself.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.roots import local_path

WATCH_LOCK = "_watch.lock"
"""File in the ledger of a queue's first shard. Closing it gives the lock up, and the system tells others so."""


class WatchLock(FileLock):
    """One process's handle on it; not thread-safe, its owner locks."""

    @classmethod
    def of(cls, table_path: str) -> WatchLock:
        """Returns that of a local table."""
        return cls(os.path.join(local_path(table_path) or "", WATCH_LOCK))

    def still_leads(self) -> bool:
        """Shows others that the holder is not stopped; returns False if the directory is another one by now."""
        with suppress(OSError):
            if self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path)):
                self.stamp()
                return True
        return False

    def is_led(self, seconds: float) -> bool:
        """Returns True if the holder has shown itself within so many seconds."""
        with suppress(OSError):
            return 0 <= time.time() - os.stat(self.path).st_mtime < seconds
        return False
