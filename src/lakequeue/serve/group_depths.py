"""What message groups have, read so rarely that a server spends a small part of its time on it.

A sum reads the groups of all stored messages of a queue, so it is not made for each scrape or each tick of a page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from time import monotonic

import attrs
import pyarrow.compute as pc

from lakequeue import GroupCounts, Queue
from lakequeue.entry_verbs import group_sums, largest_groups, settings

SHARE = 0.05
"""Part of its time that a server spends on sums, after a first second."""
INTERVAL = 10.0
"""Seconds for which a sum is kept at least."""
TOP = 20
"""Groups that are named."""


@attrs.frozen
class GroupFigures:
    """The message groups of a queue in figures of bounded number."""

    noisy: int
    quiet_visible: int
    """Visible messages of the groups that are not noisy."""
    quiet_oldest_age: float
    """Seconds since the oldest of these was sent; 0 without any."""
    groups: int
    """All groups that have messages visible or in flight; 0 if no message has a group."""
    top: list[GroupCounts]
    read_at: float
    """Monotonic seconds."""


class GroupDepths:
    """The figures of queues whose groups are tenants. Thread-safe.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[str, GroupFigures] = {}
        self._begun = now()
        self._spent = 0.0

    def stalest(self, queues: Collection[Queue]) -> list[Queue]:
        """The queues with groups to report, those read longest ago first; the others are forgotten."""
        shared = [queue for queue in queues if settings(queue).groups_are_tenants]
        with self._lock:
            self._known = {queue.key: self._known[queue.key] for queue in shared if queue.key in self._known}
            return sorted(shared, key=lambda queue: self._read_at(queue.key))

    def of(self, queue: Queue, read: bool = True) -> GroupFigures | None:
        """The figures of a queue, read now or kept; None if its groups are no tenants, or it was not read yet."""
        if not settings(queue).groups_are_tenants:
            return None
        with self._lock:
            now = self._now()
            rested = read and self._spent <= 1 + SHARE * (now - self._begun)
            if rested and now - self._read_at(queue.key) >= INTERVAL:
                self._known[queue.key] = _read(queue, now)
                self._spent += self._now() - now
            return self._known.get(queue.key)

    def age(self, figures: GroupFigures) -> float:
        """Seconds since figures were read."""
        return self._now() - figures.read_at

    def _read_at(self, key: str) -> float:
        return self._known[key].read_at if key in self._known else float("-inf")


def _read(queue: Queue, now: float) -> GroupFigures:
    sums = group_sums(queue)
    named = sums["group_id"].null_count < len(sums)
    quiet = sums.filter(pc.invert(sums["noisy"]))
    return GroupFigures(
        len(sums) - len(quiet),
        pc.sum(quiet["visible"]).as_py() or 0,
        pc.max(quiet["oldest_age"]).as_py() or 0,
        len(sums) if named else 0,
        largest_groups(sums, TOP),
        now,
    )
