"""Waits of receives and consumers for messages that they can claim."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

import attrs

from lakequeue.model.arguments import SHORTEST_POLL
from lakequeue.model.clock import MICROS, Interrupt, from_micros
from lakequeue.model.waiting_work import Waits
from lakequeue.runtime.log_watch import log_watch
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.waiters import Waiter
from lakequeue.storage.folder import Folder

WATCHED_POLL_FACTOR = 10
"""Number of poll intervals between polls of a process that watches the logs, while no message comes."""
WATCHED_CLAIM_FACTOR = 60
"""Number of poll intervals after which a waiting receive claims, even if a process watches the logs."""


@contextmanager
def waiting(queue: OpenQueue, wake: Callable[[], None], idle: bool | None = None) -> Iterator[Waiter]:
    """Adds a waiter for the block. Calls ``wake`` to make it poll. For ``idle``, see ``Request.idle``."""
    waiters, folders = queue.shards[0].shared.waiters, queue.log_folders()
    watch = log_watch() if folders else None
    with waiters.waiter(wake) as waiter:
        if watch is None:
            yield waiter
            return
        table = queue.shards[0].tables.receipts
        with watch.waking(
            *(table, folders, waiters.wake, idle is not False),
            comes_back=lambda: idle is not None and not waiter.full,
            woken_for=waiters.woken_for,
        ) as place:
            waiter.place = place
            yield waiter


def is_drained(queue: OpenQueue) -> bool:
    """True if the state in memory shows that a claim would find nothing. If False, a claim may find messages."""
    now = queue.now()
    with suppress(Exception):  # a claim reports what fails
        return all(_folder(queue).for_each(lambda shard: shard.ledger.is_drained(now), queue.shards))
    return False


def is_left_empty(queue: OpenQueue) -> bool:
    """True if recent reads found all shards empty, and no message was sent since. Costs one request per shard."""
    now = queue.now()
    with suppress(Exception):  # a claim reports the error
        return all(_folder(queue).for_each(lambda shard: shard.ledger.is_left_empty(now), queue.shards))
    return False


def _folder(queue: OpenQueue) -> Folder:
    tables = queue.shards[0].tables
    return tables.engine.store.folder(tables.receipts)


@attrs.define
class VainWait:
    """The wait between a poll that found no messages and the next poll. A change of the logs that brings no
    message does not end the wait. If another process watches the queue and its recent polls took all messages,
    this process reads no logs until that process wakes it.
    """

    _queue: OpenQueue
    _waiter: Waiter | None
    """Waiter that is woken by a change of the logs. None if changes wake no waiter."""
    _clear: Callable[[], None]
    """Forgets earlier wake-ups. Called before each check, so that a later change wakes the waiter again."""
    _interrupt: Interrupt | None
    _deadline: int
    _pause: int
    """Microseconds until the next poll."""
    _known: int | None
    """Value of ``changes`` before the last poll. None if that poll left messages for other processes."""
    _watched: bool = False
    _left: bool = False
    """True if the last check trusted the watching process. If the trust ends, this process polls at once."""
    _longest: int = attrs.field(init=False)

    @_longest.default
    def _longest_wait(self) -> int:
        return self._queue.now() + WATCHED_CLAIM_FACTOR * self._queue.root.poll_interval

    def next(self) -> datetime:
        """Returns the instant until which the caller must wait."""
        now, interval = self._queue.now(), self._queue.root.poll_interval
        place = None if self._waiter is None else self._waiter.place
        trusted = 0 if place is None else int(place.trusted_for(interval / MICROS) * MICROS)
        watches = place is not None and place.is_watched_here()
        left, self._left = self._left, False
        pause = WATCHED_POLL_FACTOR * interval if watches else trusted or (0 if left else self._pause)
        self._watched = watches or left or trusted > 0
        events = [] if trusted else [shard.ledger.next_event(now) for shard in self._queue.shards]
        known = [event for event in events if event is not None and event > now]
        if place is not None and self._known is not None:
            place.found_nothing(self._known, (min(known) - now) / MICROS if known else None)
            self._known = None
        return from_micros(min([self._deadline, now + pause, *known]))

    def is_over(self) -> bool:
        """True if it is time to poll. Call this function when the wait that ``next`` returned has ended."""
        if self._waiter is None:
            return True
        self._clear()
        woken, self._waiter.woken = self._waiter.woken, False
        if (self._interrupt is not None and self._interrupt.is_set()) or self._queue.now() >= min(
            self._deadline, self._longest
        ):
            return True
        place = self._waiter.place
        if not woken and place is not None and place.trusted_for(self._queue.root.poll_interval / MICROS):
            self._left = True
            return False
        known = None if place is None else place.changes
        if not (woken or self._watched) or not is_drained(self._queue):
            return True
        self._known = known
        return False


def wait_for_more(
    queue: OpenQueue, until: datetime, interrupt: Interrupt, wake: threading.Event, idle: bool
) -> Waits[bool]:
    """Waits until there may be messages to claim, until ``until``, or until ``interrupt`` is set. Returns False,
    without a wait, if there may be messages already. Otherwise returns True. The event ``wake`` is set when there
    may be messages, and when ``interrupt`` is set. For ``idle``, see ``waiting``.
    """
    waited, pause = False, SHORTEST_POLL
    with waiting(queue, wake.set, idle) as waiter:
        while True:
            wake.clear()
            waiter.woken = False
            now = queue.root.clock.now()
            if interrupt.is_set() or now >= until:
                return True
            if not is_drained(queue):
                return waited
            waited = True
            yield min(until, now + timedelta(microseconds=pause))
            pause = min(2 * pause, queue.root.poll_interval)
