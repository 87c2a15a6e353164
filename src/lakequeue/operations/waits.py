"""Waits for messages to claim, by receives and by consumers with something to settle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta

from lakequeue.model.arguments import SHORTEST_POLL
from lakequeue.model.clock import Interrupt
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.waiters import Waiter, log_watch


@contextmanager
def waiting(queue: OpenQueue, wake: Callable[[], None]) -> Iterator[Waiter]:
    """Joins the queue's waiters, which call ``wake`` when there may be messages to claim."""
    waiters, folders = queue.shards[0].shared.waiters, queue.log_folders()
    watch = log_watch() if folders else None
    with waiters.waiter(wake) as waiter, watch.waking(folders, waiters.wake) if watch else nullcontext():
        yield waiter


def is_drained(queue: OpenQueue) -> bool:
    """Returns True if it takes no decision to see that no shard has messages to claim; reads nothing."""
    now = queue.now()
    with suppress(Exception):  # a claim reports what fails
        return all(shard.ledger.is_drained(now) for shard in queue.shards)
    return False


def wait_for_more(queue: OpenQueue, until: datetime, interrupt: Interrupt) -> bool:
    """Waits until there may be messages to claim, or for an instant or an event.

    Returns:
        False if there may be some now, so that it did not wait.
    """
    wake, waited, pause = threading.Event(), False, SHORTEST_POLL
    with waiting(queue, wake.set) as waiter, interrupt.waking(wake.set):
        while True:
            wake.clear()
            waiter.woken = False
            now = queue.root.clock.now()
            if interrupt.is_set() or now >= until:
                return True
            if not is_drained(queue):
                return waited
            waited = True
            queue.root.clock.wait(min(until, now + timedelta(microseconds=pause)), wake)
            pause = min(2 * pause, queue.root.poll_interval)
