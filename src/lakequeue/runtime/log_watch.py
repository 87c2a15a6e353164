"""Wakes waiting receives of this process when logs change on a local disk (inotify).

Of all processes that wait on a queue, one is the watcher. The watcher watches the logs, and holds a lock on a
file. To wake the other processes, the watcher closes the file. It does so in three cases: none of its own receives
waits; a woken receive does not poll; logs change while its handlers run. The watcher stamps the file as long as
its last poll has left no messages. Without a recent stamp, the other processes poll at intervals.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from math import inf

import attrs

from lakequeue.storage.engines.watch_lock import WatchLock

PAUSE = 0.02
"""Minimum seconds between two wake-ups of receives. Limits the cost of waiting when logs change often."""
GRACE = 0.05
"""Seconds that a process keeps watching after a wait: time for a commit or short handler before the next wait."""
STAY = 0.25
"""Seconds that a process keeps watching after a receive, if the consumer will soon receive again."""
RETRY = 0.005
"""Seconds for which a process with running handlers leaves a released lock free for idle processes."""
SIGN = 0.2
"""Seconds between two time stamps that the watching process writes to its lock file."""
SIGNS = 5
"""Number of ``SIGN`` intervals between two checks that the watching process's lock file still exists."""
BLOCKED = 0.4
"""Seconds within which a woken receive must poll. Otherwise, this process leaves the watch to another process."""
OVERFLOW = -1
"""Watch number of the inotify event which says that the system has dropped events."""
FORGOTTEN = 60.0
"""Seconds that a queue without waits stays in the watch. Then a wait on a new queue removes it from the watch."""


@attrs.define(eq=False)
class Wait:
    """A waiting receive.

    Attributes:
        wake: called when there may be messages to claim.
        idle: True if the receive's process has nothing else to do.
        woken_for: returns the seconds since the receive was woken, or 0.0 if the receive has polled since.
    """

    wake: Callable[[], None]
    idle: bool
    woken_for: Callable[[], float]


@attrs.define(eq=False)
class Place:
    """The logs of one queue that this process watches, or may watch later. Implements ``WatchedPlace``."""

    guard: threading.Lock
    lock: WatchLock
    folders: Sequence[str]
    sign: int | None = None
    leads: bool = False
    waits: list[Wait] = attrs.field(factory=list)
    watches: list[int] = attrs.field(factory=list)
    idle_at: float = 0.0
    """Monotonic time, in seconds, when a receive last waited while this process was idle."""
    left_at: float = 0.0
    """Monotonic time, in seconds, when a receive last stopped waiting."""
    stay: float = GRACE
    """Seconds for which this process goes on watching after ``left_at``."""
    due: float | None = None
    """Monotonic time, in seconds, of the next check of this place. None if no check is planned."""
    changes: int = 0
    known: int = -1
    """Value of ``changes`` before the last poll that left no messages for other processes."""
    until: float = 0.0
    """Monotonic time, in seconds, before which no message becomes visible unless the logs change."""
    shown_at: float = 0.0
    """Monotonic time, in seconds, when this process last stamped the lock's file."""

    @property
    def idle(self) -> bool:
        """True if a receive waits while this process is idle. Also True for ``GRACE`` seconds after the wait."""
        return any(wait.idle for wait in self.waits) or time.monotonic() - self.idle_at < GRACE

    @property
    def left(self) -> bool:
        """True if no receive waits, and no receive has waited in the last ``stay`` seconds."""
        return not self.waits and time.monotonic() - self.left_at >= self.stay

    def is_blocked(self) -> bool:
        """True if a receive was woken at least ``BLOCKED`` seconds ago and has not polled since."""
        return any(wait.woken_for() >= BLOCKED for wait in self.waits)

    def is_watched_here(self) -> bool:
        return self.leads and len(self.watches) == len(self.folders)

    def trusted_for(self, seconds: float) -> float:
        return 0.0 if self.leads else self.lock.trusted_for(seconds)

    def found_nothing(self, changes: int, seconds: float | None) -> None:
        with self.guard:
            self.known, self.until = changes, inf if seconds is None else time.monotonic() + seconds
            if time.monotonic() - self.shown_at >= SIGN:
                self.show()

    def show(self) -> None:
        """Stamps the lock's file if this process is the watcher, and its last poll left no messages."""
        if self.is_watched_here() and self.known == self.changes and time.monotonic() < self.until:
            self.shown_at = time.monotonic()
            self.lock.stamp()


class LogWatch:
    """Watches the logs of all queues for which receives of this process wait. Thread-safe."""

    def __init__(self) -> None:
        from inotify_simple import INotify, flags

        self._lock = threading.Lock()
        self._system = INotify()
        self._kinds, self._closed = flags.CREATE | flags.MOVED_TO, flags.CLOSE_WRITE
        self._places: dict[str, Place] = {}
        self._watched: dict[int, list[Place]] = {}
        self._shown = 0
        self._stirred = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for descriptor in (self._system.fileno(), self._stirred):
            self._poll.register(descriptor, select.POLLIN)
        threading.Thread(target=self._tell, name="lakequeue log watch", daemon=True).start()

    @contextmanager
    def waking(
        self,
        table: str,
        folders: Sequence[str],
        wake: Callable[[], None],
        idle: bool = True,
        *,
        comes_back: Callable[[], bool] = lambda: False,
        woken_for: Callable[[], float] = lambda: 0.0,
    ) -> Iterator[Place]:
        """During the block, calls ``wake`` whenever there may be messages to claim.

        Args:
            table: path of the table whose lock the watching process holds.
            folders: directories of the logs.
            idle: True if this process has nothing else to do.
            comes_back: called at the end of the block. Returns True if the caller will soon wait again.
            woken_for: see ``Wait``.
        """
        wait = Wait(wake, idle, woken_for)
        with self._lock:
            place = self._places.get(table)
            if place is None or place.folders != folders:
                place = self._places[table] = self._placed(table, folders)
            place.waits.append(wait)
            if not place.leads and self._lead(place):
                os.eventfd_write(self._stirred, 1)  # the thread shows signs of it from now on
        try:
            yield place
        finally:
            with self._lock:
                place.waits.remove(wait)
                place.left_at, place.stay = time.monotonic(), STAY if comes_back() else GRACE
                place.idle_at = place.left_at if wait.idle else place.idle_at

    def _placed(self, table: str, folders: Sequence[str]) -> Place:
        """Makes the ``Place`` of a table. Drops the table's former place, and all places long unused."""
        long_ago = time.monotonic() - FORGOTTEN
        for other, known in list(self._places.items()):
            if other == table or (not known.waits and known.left_at < long_ago):
                del self._places[other]
                self._pass_on(known)
                self._forget(known, [] if known.sign is None else [known.sign])
        place = Place(self._lock, WatchLock.of(table), folders)
        with suppress(OSError):
            if sum(other.sign is not None for other in self._places.values()) < most_locks():
                place.lock.take(exclusive=True)  # makes the file
                place.sign = self._watch(place, place.lock.path, self._closed)
        if place.sign is None:  # the system watches as many as it may: nobody would see that this process has it
            place.lock.release()
        return place

    def _watch(self, place: Place, path: str, kinds: int) -> int:
        watch: int = self._system.add_watch(path, kinds)
        self._watched.setdefault(watch, []).append(place)
        return watch

    def _lead(self, place: Place) -> bool:
        """Watches the logs unless another process does. Returns True if this process is the watcher."""
        if place.sign is not None and place.lock.exclusive is None:
            with suppress(OSError):
                place.lock.take(exclusive=True)
        place.leads = place.sign is None or place.lock.exclusive is not None
        if place.leads:
            with suppress(OSError):  # a directory is gone, or the system watches as many as it may
                for folder in place.folders:
                    place.watches.append(self._watch(place, folder, self._kinds))
            place.changes += 1  # earlier ones were not seen
        return place.leads

    def _pass_on(self, place: Place) -> None:
        place.leads, place.due = False, None
        watches, place.watches = place.watches, []
        self._forget(place, watches)
        place.lock.release()

    def _forget(self, place: Place, watches: Iterable[int]) -> None:
        for watch in watches:
            places = self._watched.get(watch, [])
            if place in places:
                places.remove(place)
            if not places:
                self._watched.pop(watch, None)
                with suppress(OSError):  # with its directory it went by itself
                    self._system.rm_watch(watch)

    # --- the thread

    def _tell(self) -> None:
        shown = time.monotonic()
        while True:
            with self._lock:
                timeout = self._timeout(shown)
            self._poll.poll(timeout)
            changed = {event.wd for event in self._system.read(timeout=0)}
            with self._lock, suppress(BlockingIOError):
                os.eventfd_read(self._stirred)
            with self._lock:
                woken = dict.fromkeys(wait.wake for place in self._changed(changed) for wait in place.waits)
                if time.monotonic() - shown >= SIGN:
                    shown = time.monotonic()
                    self._show()
            for wake in woken:
                wake()
            if woken:
                time.sleep(PAUSE)

    def _timeout(self, shown: float) -> int | None:
        instants = [place.due for place in self._places.values() if place.due is not None]
        if any(place.leads for place in self._places.values()):
            instants.append(shown + SIGN)
        return max(0, int(1000 * (min(instants) - time.monotonic())) + 1) if instants else None

    def _show(self) -> None:
        self._shown += 1
        for place in self._places.values():
            if place.leads and place.sign is not None:
                if place.left or (self._shown % SIGNS == 0 and not place.lock.is_in_place()):
                    self._pass_on(place)
                elif place.is_blocked():
                    self._pass_on(place)
                    place.due = time.monotonic() + SIGN
                else:
                    place.show()

    def _changed(self, watches: Collection[int]) -> list[Place]:
        """Handles changes of watched files and logs. Returns the places whose receives must poll."""
        looking: list[Place] = []
        if OVERFLOW in watches:
            watches = list(self._watched)
        for place, watch in [(place, each) for each in watches for place in self._watched.get(each, ())]:
            if watch in place.watches:
                place.changes += 1
                looking += self._log_changed(place)
            elif watch == place.sign and not place.leads and place.waits:
                place.due = time.monotonic() + RETRY
                looking += self._tried(place) if place.idle else []
        for place in list(self._places.values()):
            if place.due is not None and place.due <= time.monotonic():
                place.due = None
                looking += self._log_changed(place) if place.leads else self._tried(place)
        return looking

    def _log_changed(self, place: Place) -> list[Place]:
        """Handles a changed log. Returns ``[place]`` if its receives must poll, else ``[]``. May free the lock."""
        if place.waits and (place.idle or place.sign is None):
            return [place]
        if not place.waits and not place.left:  # it will look before it waits again
            place.due = place.left_at + place.stay
        elif place.sign is not None:
            self._pass_on(place)
            if place.waits:
                place.due = time.monotonic() + RETRY
        return []

    def _tried(self, place: Place) -> list[Place]:
        """Tries to become the watcher of ``place``. Returns ``[place]`` if its receives must poll, else ``[]``."""
        if place.is_blocked():
            place.due = time.monotonic() + SIGN
            return []
        if not place.waits or not self._lead(place):
            return []
        place.due = None
        return [place]


def most_locks() -> int:
    """Returns the maximum number of locks. Each lock needs an open file. Further queues get no lock."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4


_first = threading.Lock()


def log_watch() -> LogWatch | None:
    """Returns the log watch of this process; None if the system has no inotify."""
    with _first:  # or threads that wait for the first time would make one each
        return _log_watch()


@cache
def _log_watch() -> LogWatch | None:
    with suppress(ImportError, OSError):
        return LogWatch()
    return None


def _begin_anew() -> None:
    global _first
    _first = threading.Lock()
    _log_watch.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
