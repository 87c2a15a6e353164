"""Depths of queues over the last hours, from the compactor's statistics and from this server's records."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from lakequeue import Queue
from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import Depth, an_hour_before, compacted_depths, depth, tally
from lakequeue.errors import LakeQueueError
from lakequeue.model.clock import MICROS, from_micros, to_micros

SPAN = timedelta(hours=3)
BUCKETS = 60
"""Number of values in a sparkline, a small chart of a queue's depth."""
_log = logging.getLogger("lakequeue.serve")
_MINUTE = 60 * MICROS
RANK_AGE = 2 * _MINUTE
"""Maximum age in microseconds of the depths by which queues are sorted."""
FEW = 10
"""Fewest deleted messages from which an average of a stay is shown."""
_RATES = 5
_SPAN = SPAN // timedelta(microseconds=1)


class DepthHistory:
    """Keeps one depth per minute of each queue, for ``SPAN``. Thread-safe."""

    def __init__(self, lake: LakeQueue) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._recorded: dict[str, deque[Depth]] = {}
        self._received: dict[str, deque[tuple[int, int]]] = {}
        self._stored: dict[str, list[tuple[int, int]]] = {}
        self._read_at = 0

    def queues(self) -> list[Queue]:
        """Returns all queues of the root. Drops the history of deleted queues."""
        queues = self._lake.list_queues()
        keys = {queue.key for queue in queues}
        with self._lock:
            self._recorded = {key: depths for key, depths in self._recorded.items() if key in keys}
            self._received = {key: totals for key, totals in self._received.items() if key in keys}
        return queues

    def read(self, queue: Queue) -> None:
        """Reads and records the current depth of a queue. Skips a queue that cannot be read."""
        with suppress(LakeQueueError):
            self.record(queue, depth(queue))

    def record(self, queue: Queue, depth: Depth) -> None:
        """Records a depth of a queue. Replaces an earlier depth of the same minute."""
        with self._lock:
            recorded = self._recorded.setdefault(queue.key, deque(maxlen=_SPAN // _MINUTE))
            if recorded and recorded[-1].at // _MINUTE == depth.at // _MINUTE:
                recorded.pop()
            recorded.append(depth)
            received = self._received.setdefault(queue.key, deque(maxlen=_RATES))
            if not received or received[-1][0] // _MINUTE != depth.at // _MINUTE:
                received.append((depth.at, tally(queue)["received"]))

    def rates(self, queue: Queue, now: Depth) -> dict[str, float | None] | None:
        """Returns the messages sent, received and deleted per minute; None until the records cover a minute."""
        with self._lock:
            depths = [
                depth for depth in self._recorded.get(queue.key, ()) if now.at - depth.at <= _RATES * _MINUTE
            ]
            totals = [each for each in self._received.get(queue.key, ()) if now.at - each[0] <= _RATES * _MINUTE]
        if not depths or not totals or now.at - depths[0].at < _MINUTE or now.at - totals[0][0] < _MINUTE:
            return None
        sent, deleted = now.rates_since(depths[0])
        at, before = totals[0]
        received = tally(queue)["received"] - before
        enough = (deleted or 0) * (now.at - depths[0].at) / MICROS >= FEW
        return {
            "minutes": (now.at - depths[0].at) / _MINUTE,
            "sent": 60 * (sent or 0),
            "received": received * _MINUTE / (now.at - at),
            "deleted": max(0, 60 * (deleted or 0)),
            "stay": now.stay_since(depths[0]) if enough else None,
        }

    def latest(self, queue: Queue) -> Depth | None:
        """Returns the newest recorded depth of a queue. Returns None if that depth is older than ``RANK_AGE``."""
        newest = self.recorded(queue)[-1:]
        oldest = to_micros(self._lake.clock.now()) - RANK_AGE
        return newest[0] if newest and newest[0].at >= oldest else None

    def recorded(self, queue: Queue) -> list[Depth]:
        with self._lock:
            return list(self._recorded.get(queue.key, ()))

    def sparklines(self, queues: Sequence[Queue]) -> list[list[int | None]]:
        """Returns the largest number of visible messages for each queue and bucket of time; None if unknown."""
        now = to_micros(self._lake.clock.now())
        return [_sparkline(points, now) for points in self._points(queues, now)]

    def an_hour_ago(self, queues: Sequence[Queue]) -> dict[str, int]:
        """Returns the known numbers of visible messages an hour ago, by queue key."""
        now = to_micros(self._lake.clock.now())
        keys = [queue.key for queue in queues]
        return an_hour_before(dict(zip(keys, map(sorted, self._points(queues, now)), strict=True)), now)

    def _points(self, queues: Sequence[Queue], now: int) -> list[list[tuple[int, int]]]:
        """Returns the known depths of each queue, as pairs of instant and number of visible messages."""
        stored = self._stored_by_compactor(now)
        return [
            [*stored.get(queue.key, ()), *((depth.at, depth.counts.visible) for depth in self.recorded(queue))]
            for queue in queues
        ]

    def _stored_by_compactor(self, now: int) -> dict[str, list[tuple[int, int]]]:
        with self._lock:
            if now - self._read_at < _MINUTE:
                return self._stored
            self._read_at = now  # other threads use the old values meanwhile
        try:
            stored = compacted_depths(self._lake, from_micros(now - _SPAN))
        except LakeQueueError as error:  # the list of queues works without it
            _log.warning("cannot read the depths that the compactor stored: %s", error)
            return self._stored
        with self._lock:
            self._stored = stored
        return stored


def _sparkline(points: Sequence[tuple[int, int]], now: int) -> list[int | None]:
    found: list[int | None] = [None] * BUCKETS
    for at, visible in points:
        bucket = BUCKETS - 1 - max(0, now - at) * BUCKETS // _SPAN
        if bucket >= 0:
            found[bucket] = max(visible, found[bucket] or 0)
    return found


def throughput(points: Sequence[Depth]) -> list[dict[str, float | None]]:
    """Returns three figures for each point: messages sent per minute, messages deleted per minute, and the average
    time that a message stays in the queue. A figure is None if it is unknown.
    """
    found = list[dict[str, float | None]]()
    first = 0
    for point in points:
        while first + 1 < len(points) and points[first + 1].at <= point.at - _MINUTE:
            first += 1
        before = points[first]
        sent, deleted = point.rates_since(before) if before.at <= point.at - _MINUTE else (None, None)
        found.append(
            {
                "sent": None if sent is None else 60 * sent,
                "deleted": None if deleted is None else max(0, 60 * deleted),
                "stay": None if deleted is None else point.stay_since(before),
            }
        )
    return found
