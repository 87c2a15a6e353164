"""The depth of a queue: its number of messages by state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import attrs

from lakequeue.errors import LakeQueueError
from lakequeue.model.clock import MICROS
from lakequeue.operations.pool import concurrently
from lakequeue.operations.results import QueueCounts, ShardCounts
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.root import Root
from lakequeue.shard.commands import Claim, StateCounts
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import compaction_notes
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.stats_rows import StatsRow

NEWEST_COMMITS = 50
LEAST_COMMITS, MOST_ENTRIES = 5, 800
"""Lost races are counted in the newest entries of each log. The number of these entries is ``MOST_ENTRIES``
divided by the number of shards, but at least ``LEAST_COMMITS`` and at most ``NEWEST_COMMITS``.
"""

_NOTED = [field.name for field in attrs.fields(QueueCounts) if field.name in attrs.fields_dict(StatsRow)]
"""Names of the counts in the compactor's notes. The count of undecided messages is not in the notes."""
LEAST_NOTED = 32
"""Minimum number of queues for which depths come from the compactor's notes. With fewer, each queue is read."""

_T = TypeVar("_T")


class ShardDepth(NamedTuple):
    """The depth of a shard, from one snapshot."""

    counts: StateCounts
    oldest_age: int | None
    """Microseconds since the oldest stored message was sent; None if no message is stored."""
    sent: int
    """Number of messages that were ever sent to the shard."""
    receives: int
    """Number of receives in this queue of the message with the lowest offset; 0 if no message is stored."""

    @classmethod
    def of(cls, machine: ShardMachine, now: int) -> ShardDepth:
        counts = machine.counts(now)
        oldest = machine.oldest_sent_at(now)
        age = None if oldest is None else max(now, machine.head.committed_at) - oldest
        return cls(counts, age, machine.log.end, machine.receives_of_lowest(now))


@attrs.frozen
class Depth:
    """The depth of a queue at an instant."""

    at: int
    """Instant of the depth, in microseconds since the epoch."""
    counts: QueueCounts
    sent: int
    """Number of messages that were ever sent to the queue."""
    stored_by_shard: Sequence[int] = attrs.field(default=(), eq=False)
    """Number of stored messages by shard. Empty for a past depth, and for a depth from a compactor's note."""
    receives: int = attrs.field(default=0, eq=False)
    """Highest number of receives of each shard's oldest message, in this queue. 0 without ``stored_by_shard``."""

    @classmethod
    def of(cls, shards: Iterable[ShardDepth], at: int) -> Depth:
        parts = list(shards)
        ages = [part.oldest_age for part in parts if part.oldest_age is not None]
        counts = QueueCounts(
            sum(part.counts.visible for part in parts),
            sum(part.counts.in_flight for part in parts),
            sum(part.counts.delayed for part in parts),
            sum(part.counts.rewindable for part in parts),
            max(0, *ages) / MICROS if ages else None,
            sum(part.counts.held for part in parts),
            sum(part.counts.undecided for part in parts),
        )
        by_shard = [stored(part.counts) for part in parts]
        receives = max((part.receives for part in parts), default=0)
        return cls(at, counts, sum(part.sent for part in parts), by_shard, receives)

    @property
    def stored(self) -> int:
        return stored(self.counts)

    def rates_since(self, before: Depth) -> tuple[float | None, float | None]:
        """Returns messages sent and consumed per second since ``before``. (None, None) if no time has passed."""
        seconds = (self.at - before.at) / MICROS
        if seconds <= 0:
            return None, None
        sent = self.sent - before.sent
        return sent / seconds, (sent - (self.stored - before.stored)) / seconds

    def stay_since(self, before: Depth) -> float | None:
        """Returns the average seconds from when a message becomes visible until its deletion, by Little's law.
        Uses the rates from the earlier depth ``before`` to this depth. None if no message was deleted.
        """
        _, consumed = self.rates_since(before)
        waiting = sum(each.counts.visible + each.counts.in_flight for each in (before, self)) / 2
        return waiting / consumed if consumed is not None and consumed > 0 else None


def stored(counts: QueueCounts | StateCounts) -> int:
    """Returns the number of messages in any state, without the history."""
    return counts.visible + counts.in_flight + counts.delayed + counts.held + counts.undecided


def depth(queue: OpenQueue) -> Depth:
    """Returns the current depth of a queue. The depth of each shard comes from one snapshot, and is exact."""
    now, parts = _depths(queue)
    return Depth.of(parts, now)


def by_priority(queue: OpenQueue) -> list[QueueCounts]:
    """Returns the current depth of each priority, beginning with priority 0 (JOB-5)."""
    now, parts = _depths(queue)
    classes = queue.attributes.classes
    return [Depth.of(parts[priority::classes], now).counts for priority in range(classes)]


def is_held_back(queue: OpenQueue) -> bool:
    """True if the queue has a rate limit, and a receive without the limit would get messages (JOB-11)."""
    if queue.attributes.pace is None:
        return False
    with queue.service("counts"):
        now = queue.now()
        # the first one that is asked learns of shards that were added, and the list grows
        return any(
            shard.ledger.query(lambda machine: machine.quote(Claim(1, None, ""), now)) for shard in queue.shards
        )


def _depths(queue: OpenQueue) -> tuple[int, list[ShardDepth]]:
    with queue.service("counts"):
        now = queue.now()
        return now, of_each_shard(queue, lambda shard: _depth(shard, now))


def _depth(shard: OpenShard, now: int) -> ShardDepth:
    return shard.ledger.query(lambda machine: ShardDepth.of(machine, now))


def of_each_shard(queue: OpenQueue, call: Callable[[OpenShard], _T]) -> list[_T]:
    """Returns the results of the function ``call`` for all shards. Makes several calls concurrently."""
    first = call(queue.shards[0])  # it learns of shards that were added
    return [first, *concurrently(call, queue.shards[1:])]


def by_shard(queue: OpenQueue) -> list[ShardCounts]:
    """Returns the depth and the lost races of each shard."""

    def counted(shard: OpenShard) -> ShardCounts:
        counts = _depth(shard, now).counts
        return ShardCounts(
            *(shard.number, counts.visible, counts.in_flight, counts.delayed, counts.held),
            *shard.ledger.newest_races(min(NEWEST_COMMITS, max(LEAST_COMMITS, MOST_ENTRIES // len(queue.shards)))),
            undecided=counts.undecided,
        )

    with queue.service("shard_counts"):
        now = queue.now()
        return of_each_shard(queue, counted)


def depths(queues: Sequence[OpenQueue]) -> Iterator[Depth | LakeQueueError]:
    """Yields the depth of each queue, or the error of the read. Reads several queues concurrently."""
    now = queues[0].now() if queues else 0
    known = noted(queues[0].root, [queue.row for queue in queues], now) if queues else {}

    yield from or_errors(lambda queue: known.get(queue.key) or depth(queue), queues)


def or_errors(read: Callable[[OpenQueue], _T], queues: Sequence[OpenQueue]) -> Iterator[_T | LakeQueueError]:
    """Yields for each queue, in order, the result of ``read`` or its error. Runs several calls concurrently."""

    def answered(queue: OpenQueue) -> _T | LakeQueueError:
        try:
            return read(queue)
        except LakeQueueError as error:
            return error

    yield from concurrently(answered, queues)


def noted(root: Root, rows: Sequence[QueueRow], now: int) -> dict[str, Depth]:
    """Returns the depths of those queues for which the compactor has a valid note, by queue key. Reading a note is
    ten times faster than opening a queue.
    """
    if len(rows) < LEAST_NOTED:
        return {}
    notes, store = root.notes.newest(), root.engine.store

    def counted(row: QueueRow) -> Depth | None:
        note = notes.get(row.key)
        try:
            if (
                note is None
                or not note.stands(now)
                or not compaction_notes.is_unchanged(store, root.path, row, note)
            ):
                return None
        except Exception:  # opening the queue reports it
            return None
        found = note.row(now)
        return Depth(now, QueueCounts(**{name: getattr(found, name) for name in _NOTED}), found.sent)

    found = zip(rows, concurrently(counted, rows), strict=True)
    return {row.key: depth for row, depth in found if depth is not None}
