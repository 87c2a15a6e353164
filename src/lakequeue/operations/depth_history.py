"""The depth of a queue over time: from the ``stats`` table, old versions of the ledgers, and the present."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise

from lakequeue.errors import QueueClientError
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.operations.depth import Depth, ShardDepth, depth
from lakequeue.operations.results import QueueCounts
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import past_versions, stats_rows
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import ShardLog
from lakequeue.storage.stats_rows import StatsRow
from lakequeue.storage.stores import Store

SPARSE = timedelta(seconds=150)
"""Maximum time between two points of a plot. If the time is longer, the depth in between is unknown."""
MOST = 50
"""Maximum number of versions to read per ledger. Depths are computed at about this many regular instants."""


def depth_history(queue: OpenQueue, since: datetime) -> list[Depth]:
    """Returns the depths of a queue from an instant on, oldest first. The last depth is the present depth."""
    with queue.service("depth_history"):
        present = depth(queue)
        begin = to_micros(since)
        recent = [point for point in _from_versions(queue, begin, present.at) if point.at < present.at]
        before = recent[0].at if recent else present.at
        rows = stats_rows.read(queue.root.engine, queue.root.path, queue.key, begin)
        return [*(_of_row(minute, row) for minute, row in rows if minute < before), *recent, present]


def unknown_spans(points: Sequence[Depth], begin: datetime) -> list[tuple[datetime, datetime]]:
    """Returns time spans since ``begin`` without a known depth. Omits spans below 1/25 of the plot's width."""
    at = [begin, *(from_micros(point.at) for point in points)]
    visible = (at[-1] - begin) / 25
    gaps = [(first, last) for first, last in pairwise(at) if last - first > max(visible, SPARSE)]
    return [(begin, at[1]), *gaps] if visible < at[1] - begin <= SPARSE else gaps


def _of_row(minute: int, row: StatsRow) -> Depth:
    counts = QueueCounts(row.visible, row.in_flight, row.delayed, row.rewindable, row.oldest_age, row.held)
    return Depth(minute, counts, row.sent)


def _from_versions(queue: OpenQueue, since: int, now: int) -> list[Depth]:
    """Returns depths from old versions of the ledgers, at the instants of commits and at regular instants."""
    shards = [_Past(queue, shard, since) for shard in queue.shards]
    begin = max([since, *(shard.begins[0] if shard.begins else now for shard in shards)])
    instants = {instant for shard in shards for instant in shard.begins if instant >= begin}
    instants.update(range(begin, now, max(1, (now - begin) // MOST)))
    found = []
    for instant in sorted(instants):
        depths = [shard.at(instant) for shard in shards]
        if None not in depths:
            found.append(Depth.of([each for each in depths if each is not None], instant))
    return found


class _Past:
    """The old versions of a shard's ledger that are still readable."""

    def __init__(self, queue: OpenQueue, shard: OpenShard, since: int) -> None:
        path, log = shard.tables.receipts, shard.ledger.log()
        store = queue.root.engine.store
        self._states: list[_PastLedger] = []
        for version in _some(past_versions.versions(store, path), since):
            # trimmed meanwhile; its files are gone and its log entry is not; or Spark has just created it empty
            with suppress(OSError, QueueClientError):
                state = _PastLedger(store, path, version.number, log)
                if state.known:
                    self._states.append(state)
        self.begins = [state.begin for state in self._states]

    def at(self, instant: int) -> ShardDepth | None:
        index = bisect_right(self.begins, instant) - 1
        if index < 0:
            return None
        state, later = self._states[index], self._states[index + 1 : index + 2]
        if state.begin != instant and later and later[0].number != state.number + 1:
            return None
        return state.at(instant)


def _some(versions: Sequence[past_versions.Version], since: int) -> list[past_versions.Version]:
    """Returns the versions of the ledger since an instant: at most ``MOST`` versions, evenly spaced in time."""
    at = [version.committed_at for version in versions]
    versions = versions[max(0, bisect_right(at, since) - 1) :]
    if len(versions) <= MOST:
        return list(versions)
    at = [version.committed_at for version in versions]
    begin, end = at[0], at[-1]
    chosen = {bisect_right(at, begin + (end - begin) * step // (MOST - 1)) - 1 for step in range(MOST)}
    return [versions[index] for index in sorted(chosen)]


class _PastLedger:
    def __init__(self, store: Store, path: str, number: int, log: ShardLog) -> None:
        self.number = number
        self._head, self._runs, self._history = Ledger(past_versions.opened(store, path, number)).load()
        self._log = log
        self.begin = self._head.committed_at

    @property
    def known(self) -> bool:
        return min([self._head.head_offset, *(run.first for run in self._runs)]) >= self._log.begin

    def at(self, instant: int) -> ShardDepth:
        log = self._log.until(instant, self._head.head_offset)
        return ShardDepth.of(ShardMachine(self._head, self._runs, log, self._history), instant)
