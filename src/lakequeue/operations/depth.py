"""The depth of a queue: its number of messages by state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from lakequeue.errors import LakeQueueError
from lakequeue.operations.results import QueueCounts
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.shard_ledger import ShardDepth

CONCURRENT = 8
"""Maximum number of shards, or queues, that are counted at once."""


@attrs.frozen
class Depth:
    """The depth of a queue at an instant."""

    at: int
    """Microseconds since the epoch."""
    counts: QueueCounts
    sent: int
    """Number of messages ever sent."""

    @classmethod
    def of(cls, shards: Iterable[ShardDepth], at: int) -> Depth:
        """The sum of the depths of its shards."""
        parts = list(shards)
        oldest = min((part.oldest_sent_at for part in parts if part.oldest_sent_at is not None), default=None)
        counts = QueueCounts(
            sum(part.counts.visible for part in parts),
            sum(part.counts.in_flight for part in parts),
            sum(part.counts.delayed for part in parts),
            sum(part.counts.rewindable for part in parts),
            None if oldest is None else max(0, at - oldest) / 1_000_000,
            sum(part.counts.held for part in parts),
        )
        return cls(at, counts, sum(part.sent for part in parts))

    @property
    def stored(self) -> int:
        return self.counts.visible + self.counts.in_flight + self.counts.delayed + self.counts.held

    def rates_since(self, before: Depth) -> tuple[float | None, float | None]:
        """Messages sent and consumed per second since an earlier depth; None if no time has passed.

        Consumed messages are those no longer stored: deleted, expired or purged. A rewind adds stored messages, so
        the rate may be negative.
        """
        seconds = (self.at - before.at) / 1_000_000
        if seconds <= 0:
            return None, None
        sent = self.sent - before.sent
        return sent / seconds, (sent - (self.stored - before.stored)) / seconds


def depth(queue: OpenQueue) -> Depth:
    """The current depth of a queue, exact at one snapshot per shard."""
    with queue.service("counts"):
        now = queue.now()
        first = queue.shards[0].depth(now)  # it knows of shards that were added
        if len(queue.shards) == 1:
            return Depth.of([first], now)
        with ThreadPoolExecutor(min(len(queue.shards), CONCURRENT)) as pool:
            return Depth.of([first, *pool.map(lambda shard: shard.depth(now), queue.shards[1:])], now)


def depths(queues: Sequence[OpenQueue]) -> Iterator[Depth | LakeQueueError]:
    """The depth of each queue, several at a time, in the order given; or the error that counting it raised."""

    def counted(queue: OpenQueue) -> Depth | LakeQueueError:
        try:
            return depth(queue)
        except LakeQueueError as error:
            return error

    with ThreadPoolExecutor(CONCURRENT) as pool:
        yield from pool.map(counted, queues)
