"""What the system tells of logs that change on a disk of this machine (inotify), so that waiting receives look.

It only makes waits shorter: where there is no inotify, or other machines write, receives look at intervals.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

PAUSE = 0.02
"""Seconds without further wake-ups after one: a queue that others keep busy costs a process that waits little."""


class LogWatch:
    """The directories that receives of this process wait for. Thread-safe."""

    def __init__(self) -> None:
        from inotify_simple import INotify, flags

        self._lock = threading.Lock()
        self._system = INotify()
        self._kinds = flags.CREATE | flags.MOVED_TO
        self._wakes: dict[int, list[Callable[[], None]]] = {}
        threading.Thread(target=self._tell, name="lakequeue log watch", daemon=True).start()

    @contextmanager
    def waking(self, folders: Sequence[str], wake: Callable[[], None]) -> Iterator[None]:
        """Calls ``wake`` when files come into one of some directories, during the block."""
        watched: list[int] = []
        with self._lock, suppress(OSError):  # a directory is gone, or the system watches as many as it may
            for folder in folders:
                watch = self._system.add_watch(folder, self._kinds)
                self._wakes.setdefault(watch, []).append(wake)
                watched.append(watch)
        try:
            yield
        finally:
            with self._lock:
                for watch in watched:
                    self._wakes[watch].remove(wake)
                    if not self._wakes[watch]:
                        del self._wakes[watch]
                        with suppress(OSError):  # with its directory it went by itself
                            self._system.rm_watch(watch)

    def _tell(self) -> None:
        while True:
            changed = {event.wd for event in self._system.read()}
            with self._lock:
                woken = dict.fromkeys(wake for watch in changed for wake in self._wakes.get(watch, ()))
            for wake in woken:
                wake()
            if woken:
                time.sleep(PAUSE)


@cache
def log_watch() -> LogWatch | None:
    """That of this process; None where the system has none."""
    with suppress(ImportError, OSError):
        return LogWatch()
    return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=log_watch.cache_clear)
