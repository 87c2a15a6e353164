"""Waits for messages to claim, by receives and by consumers with something to settle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from lakequeue.model.arguments import SHORTEST_POLL
from lakequeue.model.clock import MICROS, Interrupt, from_micros
from lakequeue.runtime.log_watch import log_watch
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.waiters import Waiter
from lakequeue.storage.folder import Folder

LED_POLL_FACTOR = 10
"""Interval of polls while another process watches the queue, as a multiple of the longest one."""


@contextmanager
def waiting(queue: OpenQueue, wake: Callable[[], None], idle: bool | None = None) -> Iterator[Waiter]:
    """Joins the queue's waiters, which call ``wake`` when there may be messages to claim.

    ``idle``: whether a consumer has nothing else to do: then it looks before processes whose handlers run. None:
    the caller is no consumer.
    """
    waiters, folders = queue.shards[0].shared.waiters, queue.log_folders()
    watch = log_watch() if folders else None
    with waiters.waiter(wake) as waiter:
        if watch is None:
            yield waiter
            return
        table = queue.shards[0].tables.receipts
        with watch.waking(table, folders, waiters.wake, idle is not False, consumer=idle is not None) as place:
            waiter.watched, waiter.led_elsewhere = True, place.is_led_elsewhere
            yield waiter


def is_drained(queue: OpenQueue) -> bool:
    """Returns True if it takes no decision to see that no shard has messages to claim."""
    now = queue.now()
    with suppress(Exception):  # a claim reports what fails
        return all(_folder(queue).for_each(lambda shard: shard.ledger.is_drained(now), queue.shards))
    return False


def _folder(queue: OpenQueue) -> Folder:
    """A folder of the queue, which asks at once where that saves waiting."""
    tables = queue.shards[0].tables
    return tables.engine.store.folder(tables.receipts)


def in_vain(
    queue: OpenQueue,
    waiter: Waiter | None,
    clear: Callable[[], None],
    interrupt: Interrupt | None,
    deadline: int,
    pause: int,
) -> Iterator[datetime]:
    """Yields instants to wait for after a poll that found nothing, until another one may find something.

    Many changes are no messages, and while another process watches this one looks rarely.

    Args:
        queue: the queue.
        waiter: what is woken by changes; None: nothing is, and the wait is a single one.
        clear: called before each look whether there may be messages.
        interrupt: ends the wait.
        deadline: when the wait ends, in microseconds.
        pause: until the next poll, in microseconds.
    """
    interval = queue.root.poll_interval
    longest = queue.now() + LED_POLL_FACTOR * interval
    while True:
        now, led = queue.now(), waiter is not None and waiter.led_elsewhere(interval / MICROS)
        events = [] if led else [shard.ledger.next_event(now) for shard in queue.shards]
        known = [event for event in events if event is not None and event > now]
        yield from_micros(min([deadline, now + (interval if led else pause), *known]))
        if waiter is None:
            return
        clear()
        woken, waiter.woken = waiter.woken, False
        if (interrupt is not None and interrupt.is_set()) or queue.now() >= min(deadline, longest):
            return
        # the watcher may have left messages to others, so those look, too: at the names of the next entries
        if not (woken or (led and waiter.led_elsewhere(interval / MICROS))) or not is_drained(queue):
            return


def wait_for_more(queue: OpenQueue, until: datetime, interrupt: Interrupt, idle: bool) -> bool:
    """Waits until there may be messages to claim, or for an instant or an event; ``idle``: see ``waiting``.

    Returns:
        False if there may be some now, so that it did not wait.
    """
    wake, waited, pause = threading.Event(), False, SHORTEST_POLL
    with waiting(queue, wake.set, idle) as waiter, interrupt.waking(wake.set):
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
