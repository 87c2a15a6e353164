"""The health of a root: problems found by ``check``, and warnings for operators."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

import attrs

from lakequeue.errors import DamagedTable, LakeQueueError
from lakequeue.model import redrive_policies
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS
from lakequeue.model.damage import Finding
from lakequeue.model.pauses import Pause
from lakequeue.operations.advice import Advice, Concern, Remedy, copying
from lakequeue.operations.check import check
from lakequeue.operations.concerns import (
    COMPACTION_CURE,
    COMPACTION_SECONDS,
    an_hour_ago,
    of_queue,
    sources_of,
)
from lakequeue.operations.consumers import (
    DamageReport,
    LongestHandler,
    StoreUse,
    damage_reports,
    running_consumers,
)
from lakequeue.operations.depth import by_shard
from lakequeue.operations.results import ShardCounts
from lakequeue.operations.schedules import OpenSchedules
from lakequeue.operations.shortage import Shortage, shortage
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import clock_guard, compaction_notes, layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.reserve import missing, space_of

CLOCK_SECONDS = 1.0
"""Seconds by which the newest commit may be ahead of this machine's clock without a warning."""
LARGE_LEDGER = 200_000
"""Number of runs in a ledger above which the shard gets a warning, because large ledgers are slow."""
LOST_SHARE = 0.5
"""Number of lost races per commit above which a shard gets a warning."""
LEAST_COMMITS = 20
"""Minimum number of commits for a warning about a shard's lost races."""


@attrs.frozen
class ShardHealth:
    queue: str
    region: str
    counts: ShardCounts
    ledger_runs: int
    ledger_files: int


@attrs.define
class RootHealth:
    """The results of ``doctor``."""

    findings: list[Finding]
    free_bytes: int | None
    """Free bytes on the file system of a local root; None on an object store."""
    free_files: int | None
    """Number of files that the file system can still hold. None if there is no limit, or on an object store."""
    compacted_seconds_ago: float | None
    """Seconds since a compactor's last pass over the whole root ended. None if there was no pass."""
    clock_behind: float
    """Seconds by which the newest commit is ahead of this machine's clock. 0 if the clock is right."""
    queues: int | None
    """Number of queues. None if the catalog is damaged, so that only ``findings`` describes the queues."""
    shards: list[ShardHealth] = attrs.field(factory=list)
    """Shards of all queues. The shard with the largest ledger comes first."""
    unreadable: list[str] = attrs.field(factory=list)
    """Texts about queues, statistics and schedules that cannot be read, unless ``findings`` has the damage."""
    letterless: list[str] = attrs.field(factory=list)
    """Names of queues whose dead-letter queue does not exist, or whose dead-letter queue is the queue itself."""

    paused: dict[str, str] = attrs.field(factory=dict)
    """Reasons why whole queues are paused, by name of the queue."""
    paused_groups: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """Reasons why message groups are paused, by name of the queue, then by group."""
    pauses: dict[str, list[Pause]] = attrs.field(factory=dict)
    """Pauses of queues and of message groups, by name of the queue."""
    concerns: list[Concern] = attrs.field(factory=list)
    """Concerns about queues and schedules, most urgent first."""
    shortage: Shortage | None = None
    """The shortage of space or files on the root's disk. None if the disk has enough."""
    unreserved: list[str] = attrs.field(factory=list)
    """What is missing from the reserve that a full disk needs (``storage.reserve``), as texts."""
    store_use: StoreUse | None = None
    """Requests of running consumers to the object store. None on a local disk, or if no consumer runs."""
    longest_handler: LongestHandler | None = None
    """Oldest handler call of the running consumers. None if no handler runs."""
    met: dict[str, DamageReport] = attrs.field(factory=dict)
    """The last consumer that met damaged messages of each queue, by name of the queue."""
    without_queues: bool = False
    oldest_queue_seconds_ago: float | None = None

    @property
    def warnings(self) -> list[str]:
        """Texts of all problems except notices, and except those in ``findings``, most urgent first."""
        return [str(each) for each in self.advice() if not each.notice]

    @property
    def notices(self) -> list[str]:
        """Texts of problems that may be intended, such as a pause that is younger than a day."""
        return [str(each) for each in self.advice() if each.notice]

    @property
    def copies(self) -> Remedy | None:
        """Command that copies the tables a repair may change. None without damage."""
        found = [each for each in self.findings if each.damage]
        return copying(
            os.path.dirname(os.path.dirname(each.table)) if each.queue else each.table for each in found
        )

    def advice(self) -> Iterator[Advice]:
        """Yields advice on all problems except those in ``findings``: urgent ones, then warnings, then notices."""
        return iter(sorted(self._advice(), key=lambda each: (not each.urgent, each.notice)))

    def _advice(self) -> Iterator[Advice]:
        short = self._short_of()
        yield from (each for each in short if each.urgent)
        if self.clock_behind > clock_guard.TOLERANCE:
            steps = (Remedy("lakequeue repair --all --clock", "sets it back"),)
            yield Advice(self._clock(), "synchronize clocks", steps, urgent=True, kind="clock")
        yield from (Advice(text, urgent=True) for text in self.unreadable)
        yield from (each.advice for each in self.concerns)
        for name in self.letterless:
            text = f"{name}: its dead-letter queue does not exist; what fails is delivered again and again"
            yield Advice(text, queue=name)
        yield from (each for each in short if not each.urgent)
        yield from self._upkeep()

    def found_in(self, table: str) -> list[Finding]:
        return [each for each in self.findings if each.table == table]

    def add_unreadable(self, what: str, error: LakeQueueError, findings: Iterable[Finding]) -> None:
        """Adds the error of reading ``what`` to ``unreadable``, unless damage in ``findings`` explains it."""
        if not any(each.damage for each in findings):
            self.unreadable.append(f"{what}: {error}")

    def _short_of(self) -> list[Advice]:
        return [] if self.shortage is None else [self.shortage.advice]

    def _clock(self) -> str:
        return f"the newest commit is {self.clock_behind:.1f} s ahead of this clock"

    def _upkeep(self) -> Iterator[Advice]:
        """Yields advice on problems of the root that are not urgent."""
        if self.without_queues:
            hint = "if it had queues, see whether this is its place, and whether its files were deleted"
            steps = (Remedy("lakequeue create QUEUE", "if it is new"),)
            yield Advice("the root has no queues: it is new, or it was emptied", hint, steps, kind="no queues")
        ago = self.compacted_seconds_ago
        if self.shortage is not None and self.shortage.urgent:
            pass  # its cure begins with a compaction
        elif self.queues and ago is None:
            yield Advice("the root was never compacted", steps=COMPACTION_CURE, kind="compaction")
        elif self.queues and ago is not None and ago > COMPACTION_SECONDS:
            text = f"the root was last compacted {ago / 3600:.0f} hours ago"
            yield Advice(text, "see whether the compactor still runs", COMPACTION_CURE, kind="compaction")
        if CLOCK_SECONDS < self.clock_behind <= clock_guard.TOLERANCE:
            yield Advice(self._clock(), "synchronize clocks", kind="clock")
        for each in self.shards:
            place, counts = f"{each.queue}, shard {each.counts.shard}", each.counts
            if each.ledger_runs > LARGE_LEDGER:
                text = f"{place}: its ledger has {each.ledger_runs:,} runs, above {LARGE_LEDGER:,} it is slow"
                yield Advice(text, queue=each.queue)
            if counts.commits >= LEAST_COMMITS and counts.lost_races > LOST_SHARE * counts.commits:
                text = f"{place}: {counts.lost_races} races lost at its last {counts.commits} commits"
                yield Advice(text, "use larger batches, fewer processes or more shards", queue=each.queue)
        yield from (Advice(text, kind="reserve") for text in self.unreserved)


def doctor(root: Root) -> RootHealth:
    """Checks the health of a root. Reads every file, and changes nothing."""
    short, space = shortage(root), space_of(root.path)
    findings = check(root, space=short is None)
    rows = _rows(root, findings)
    living = [row for row in rows or () if row.deleted_at is None]
    queues = None if rows is None else len(living)
    health = RootHealth(findings, space and space.free_bytes, space and space.free_files, None, 0.0, queues)
    _add_age(root, health, rows)
    newest, sources, earlier = 0, sources_of(living), _an_hour_ago(root, health)
    running = running_consumers(root)
    health.store_use = StoreUse.of(running)
    health.longest_handler = LongestHandler.of(running, {row.key: row.name for row in living})
    met = damage_reports(running, root.now())
    health.met = {row.name: met[row.key] for row in living if row.key in met}
    consumed = {
        row.name
        for row in living
        if not QueueAttributes.from_wire(row.attributes).paused
        and any(not file.silent for file in running.get(row.key, ()))
    }
    for row in living:
        queue = OpenQueue(root, row)
        try:
            if (policy := queue.attributes.redrive) is not None:
                place = redrive_policies.parse_arn(policy.dead_letter_queue)
                target = None if place is None else root.living_at(place)
                if target is None or target.key == row.key:
                    health.letterless.append(row.name)
            if queue.attributes.paused:
                health.paused[row.name] = queue.attributes.paused
            if queue.attributes.reasons:
                health.paused_groups[row.name] = queue.attributes.reasons
            if queue.attributes.pauses:
                health.pauses[row.name] = queue.attributes.pauses
            health.concerns += of_queue(queue, sources.get(row.place, ()), earlier.get(row.key), running, consumed)
            for counts in by_shard(queue):
                runs, files, committed_at = queue.shards[counts.shard].ledger.size()
                newest = max(newest, committed_at)
                health.shards.append(ShardHealth(row.name, row.region, counts, runs, files))
        except LakeQueueError as error:
            named = [each for each in findings if (each.region, each.queue) == (row.region, row.name)]
            health.add_unreadable(row.name, error, named)
        finally:
            queue.release()
    now, ended = root.now(), compaction_notes.load(root.engine.store, root.path).ended_at
    health.compacted_seconds_ago = None if ended is None else (now - ended) / MICROS
    health.clock_behind = max(0, newest - now) / MICROS
    health.shards.sort(key=lambda each: -each.ledger_runs)
    health.concerns += _schedules(root, health)
    health.concerns.sort(key=lambda each: each.order)
    health.shortage, health.unreserved = short, [*missing(root.path)]
    return health


def _add_age(root: Root, health: RootHealth, rows: list[QueueRow] | None) -> None:
    health.without_queues = rows == []
    if rows:
        health.oldest_queue_seconds_ago = (root.now() - min(row.created_at for row in rows)) / MICROS


def _rows(root: Root, findings: Iterable[Finding]) -> list[QueueRow] | None:
    """Returns the rows of the catalog by region and name. None if ``findings`` has damage of the catalog."""
    try:
        with root.storage_errors():
            return sorted(root.rows(), key=lambda row: (row.region, row.name))
    except DamagedTable as error:
        if not any(each.damage and each.table == error.table for each in findings):
            raise
        return None


def _an_hour_ago(root: Root, health: RootHealth) -> Mapping[str, int]:
    try:
        return an_hour_ago(root)
    except LakeQueueError as error:
        health.add_unreadable(
            "the statistics cannot be read", error, health.found_in(layout.stats_path(root.path))
        )
        return {}


def _schedules(root: Root, health: RootHealth) -> list[Concern]:
    try:
        return [*OpenSchedules(root).concerns(thorough=True)]
    except LakeQueueError as error:
        table = layout.schedules_path(root.path)
        health.add_unreadable("the schedules cannot be read", error, health.found_in(table))
        return []
