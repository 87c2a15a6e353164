"""Figures of message groups. The server sums them rarely, because for a sum it must read all messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from time import monotonic

import attrs
import pyarrow.compute as pc

from lakequeue import GroupCounts, Queue
from lakequeue.entry_verbs import group_sums, largest_groups, settings

SHARE = 0.05
"""Maximum share of the server's time for summing groups. The first second of summing does not count."""
INTERVAL = 10.0
"""Minimum number of seconds before the groups of a queue are summed again."""
TOP = 20
"""Maximum number of message groups that are listed by name."""


@attrs.frozen
class GroupFigures:
    """Sums over all message groups of a queue."""

    noisy: int
    quiet_visible: int
    """Number of visible messages in groups that are not noisy."""
    quiet_oldest_age: float
    """Age in seconds of the oldest of the ``quiet_visible`` messages; 0 without such messages."""
    groups: int
    """Number of groups that have visible messages or messages in flight; 0 if no message has a group."""
    top: list[GroupCounts]
    read_at: float
    """Time at which the groups were summed, in monotonic seconds."""


class GroupDepths:
    """Caches figures of queues whose message groups are tenants. ``now`` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[str, GroupFigures] = {}
        self._begun = now()
        self._spent = 0.0

    def stalest(self, queues: Collection[Queue]) -> list[Queue]:
        """Returns the queues whose groups are tenants, oldest figures first. Forgets all other queues."""
        shared = [queue for queue in queues if settings(queue).groups_are_tenants]
        with self._lock:
            self._known = {queue.key: self._known[queue.key] for queue in shared if queue.key in self._known}
            return sorted(shared, key=lambda queue: self._read_at(queue.key))

    def of(self, queue: Queue, read: bool = True) -> GroupFigures | None:
        """Returns the figures of a queue. None if its groups were never summed, or do not stand for tenants. With
        ``read``, first sums the groups again if the last sum is at least ``INTERVAL`` old and ``SHARE`` allows it.
        """
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
