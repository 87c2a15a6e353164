"""How deep queues were over the last hours: as the compactor wrote it down, and as this server saw it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from lakequeue import Queue
from lakequeue.client import LakeQueue
from lakequeue.errors import LakeQueueError
from lakequeue.model.clock import to_micros
from lakequeue.operations.depth import Depth, depth
from lakequeue.storage import stats

SPAN = timedelta(hours=3)
BUCKETS = 60
"""Values of a sparkline."""
_log = logging.getLogger("lakequeue.serve")
_MINUTE = stats.MINUTE
_SPAN = SPAN // timedelta(microseconds=1)


class Depths:
    """Remembers a look a minute at every queue, for `SPAN`. Thread-safe."""

    def __init__(self, lake: LakeQueue) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._seen: dict[str, deque[Depth]] = {}
        self._written: dict[str, list[tuple[int, int]]] = {}
        self._read_at = 0

    def queues(self) -> list[Queue]:
        """The queues to look at; forgets those that are gone."""
        queues = self._lake.all_queues()
        keys = {queue.key for queue in queues}
        with self._lock:
            self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
        return queues

    def look(self, queue: Queue) -> None:
        """Remembers how a queue stands; one that cannot be looked at is passed over."""
        with suppress(LakeQueueError):
            self.saw(queue, depth(queue.runtime))

    def saw(self, queue: Queue, stands: Depth) -> None:
        """Remembers how a queue stood, in the place of what was seen in the same minute."""
        with self._lock:
            seen = self._seen.setdefault(queue.key, deque(maxlen=_SPAN // _MINUTE))
            if seen and seen[-1].at // _MINUTE == stands.at // _MINUTE:
                seen.pop()
            seen.append(stands)

    def seen(self, queue: Queue) -> list[Depth]:
        """What was seen of a queue, oldest first."""
        with self._lock:
            return list(self._seen.get(queue.key, ()))

    def sparklines(self, queues: Sequence[Queue]) -> list[list[int | None]]:
        """For each queue the most visible messages in each part of the span; None where nobody looked."""
        now = to_micros(self._lake.clock.now())
        written = self._known_to_compactor(now)
        return [
            _sparkline(
                [*written.get(queue.key, ()), *((seen.at, seen.counts.visible) for seen in self.seen(queue))], now
            )
            for queue in queues
        ]

    def _known_to_compactor(self, now: int) -> dict[str, list[tuple[int, int]]]:
        with self._lock:
            if now - self._read_at < _MINUTE:
                return self._written
            self._read_at = now  # others go on with what there is meanwhile
        try:
            with self._lake.runtime.storage_errors():
                written = stats.depths(self._lake.runtime.engine, self._lake.root, now - _SPAN)
        except LakeQueueError as error:  # no reason to show no list
            _log.warning("sparklines know nothing of the compactor: %s", error)
            return self._written
        with self._lock:
            self._written = written
        return written


def _sparkline(points: Sequence[tuple[int, int]], now: int) -> list[int | None]:
    found: list[int | None] = [None] * BUCKETS
    for at, visible in points:
        bucket = BUCKETS - 1 - max(0, now - at) * BUCKETS // _SPAN
        if bucket >= 0:
            found[bucket] = max(visible, found[bucket] or 0)
    return found
