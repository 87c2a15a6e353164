"""The compactor: frees storage, and keeps tables and logs short.

A pass changes no result of a verb. Each step may fail, be killed, or run twice at once. The next pass repeats
failed steps. After a pass with nothing to do, later passes may skip the queue (``storage.compaction_notes``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeAlias

import attrs

from lakequeue.errors import InvalidParameterValue, QueueClientError, QueueDoesNotExist
from lakequeue.model.arguments import check_type
from lakequeue.model.clock import MICROS, SystemClock
from lakequeue.operations import move, send_dataframe
from lakequeue.operations.depth import Depth, depth
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.root import Root, root_of_worker
from lakequeue.shard.commands import Expire
from lakequeue.storage import cleaning, compaction_notes, consumer_files, layout, stats
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.compaction_notes import CompactionNotes, Note
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.folder import Folder, Freed
from lakequeue.storage.messages.merge_segments import MergeCounts
from lakequeue.storage.reserve import is_low, reserve
from lakequeue.storage.roots import local_path
from lakequeue.storage.schedules import ScheduleTable
from lakequeue.storage.snapshot import ReplacedLog
from lakequeue.storage.stats_rows import StatsRow
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

DELETED_KEPT = 24 * 3600 * MICROS
"""Microseconds for which the messages of a deleted queue are kept, because leases may still read them."""
FOLDERS_KEPT = 3600
"""Seconds for which an empty directory is kept, because a process may be about to write into it."""
LONGEST_WITHIN = 24 * 3600
"""Maximum seconds for ``within`` of ``compact_root``. Without ``within``, pinned files are kept this long."""

Progress = Callable[[int, int, str], None]

_log = logging.getLogger("lakequeue")


@attrs.define
class CompactionSummary:
    """Results of one pass over a queue, or over the root's own tables.

    Attributes:
        queue: name of the queue; None for the root's own tables.
        region: region of the queue.
        bytes_freed: size of the removed files, in bytes.
    """

    queue: str | None
    region: str | None = None
    deleted: bool = False
    """True if the pass removed the data of a deleted queue."""
    expired: int = 0
    """Number of messages, also of the history, that the pass removed because their retention period ended."""
    segments_dropped: int = 0
    """Number of segments that were removed because no message was left in them."""
    segments_merged: int = 0
    """Number of segments that were merged or rewritten."""
    segments_cut: int = 0
    """Number of segments that were rewritten, because at least half of their rows or bodies were not needed."""
    ledgers_rewritten: int = 0
    """Number of shards whose ledger was rewritten into fewer files."""
    files_freed: int = 0
    """Number of removed files, including entries of Delta logs."""
    bytes_freed: int = 0
    failures: list[str] = attrs.field(factory=list)
    """One text for each failed step. The next pass repeats the failed steps."""

    @contextmanager
    def step(self, what: str, last: bool = False) -> Iterator[None]:
        """Turns an error of the block into an entry of ``failures``, except for two errors. Raises
        QueueDoesNotExist again, because nothing is left to compact. Raises ReplacedLog again, unless ``last``, so
        that the caller reads the restored root.
        """
        try:
            yield
        except QueueDoesNotExist:
            raise
        except Exception as error:
            if isinstance(error, ReplacedLog) and not last:
                raise  # all that the process knows of the root is to be dropped
            self.failures.append(f"{what}: {first_line(error)}")
            _log.warning("compaction of %s: %s failed: %s", self.queue or "the root", what, first_line(error))

    @property
    def idle(self) -> bool:
        """True if the pass found nothing to do."""
        return self == CompactionSummary(self.queue, self.region)

    def freed(self, freed: Freed) -> None:
        """Adds removed files to the summary."""
        self.files_freed += freed.files
        self.bytes_freed += freed.bytes

    def merged(self, merged: MergeCounts) -> None:
        """Adds changed segments to the summary."""
        self.segments_dropped += merged.dropped
        self.segments_merged += merged.merged
        self.segments_cut += merged.cut


Passed: TypeAlias = tuple[CompactionSummary, list[StatsRow], Note | None]
"""Results of a pass: summary, counts of the queue (maybe empty), and a note if the pass had nothing to do."""


@attrs.frozen
class QueuePass:
    """A pass over one queue, as a value that another process can run."""

    store: Store
    queue: str
    region: str
    key: str
    note: Note | None
    within: float | None = None
    """Seconds for which files are kept for readers; see ``compact_root``. None for the default."""

    def run(self, elsewhere: bool = False) -> Passed:
        """Makes the pass if the queue exists. Pass ``elsewhere`` on another machine to refuse network disks."""
        summary = CompactionSummary(self.queue, self.region)
        with summary.step("compaction", last=True):
            if elsewhere:
                self.store.check_mount()
            durability = "power" if self.store.syncs else "process"
            root = root_of_worker(self.store.root, tuple(self.store.options.items()), "", durability)
            with root.storage_errors():
                row = root.living(self.key)
            if row is not None:
                return compact_queue(OpenQueue(root, row), self.note, self.within)
        return summary, [], None

    def failed(self, error: BaseException) -> Passed:
        """Returns the results of a pass whose process has died: ``error`` is the only failure of the pass."""
        summary = CompactionSummary(self.queue, self.region)
        with summary.step("compaction"):
            raise QueueClientError(f"its process ended: {first_line(error)}")
        return summary, [], None


Deal = Callable[[Sequence[QueuePass]], Iterator[tuple[int, Passed]]]
"""Function that runs passes of queues in other processes. Yields the index and results of each finished pass."""


def in_processes(processes: int) -> Deal:

    def deal(queues: Sequence[QueuePass]) -> Iterator[tuple[int, Passed]]:
        workers = max(1, min(processes, len(queues)))
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent)
        try:
            running = {pool.submit(each.run): index for index, each in enumerate(queues)}
            for done in as_completed(running):
                index, error = running[done], done.exception()
                yield index, done.result() if error is None else queues[index].failed(error)
        finally:
            pool.shutdown(cancel_futures=True)

    return deal


def _end_with_parent() -> None:
    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def can_be_dealt(root: Root) -> bool:
    """True if other processes can compact a root: its clock is the system's, and commits do not use Spark."""
    return isinstance(root.clock, SystemClock) and isinstance(root.engine, Engine)


def why_only_here(root: Root) -> str | None:
    """Returns why only this machine may compact a root. Returns None if other machines may compact it, too."""
    try:
        root.engine.store.check_mount()
    except QueueClientError as error:
        return first_line(error)
    return None


def compact_root(
    root: Root, progress: Progress | None = None, deal: Deal | None = None, within: float | None = None
) -> list[CompactionSummary]:
    """Compacts every queue of all regions once, and the root's own tables; see ``LakeQueue.compact``. If ``deal``
    is given, the queues are distributed to other processes, which compact them. If ``within`` is given, no queue
    is skipped, and files are kept for readers of the last ``within`` seconds (DUR-65).
    """
    _check_within(root, within)
    if deal and not can_be_dealt(root):
        raise QueueClientError("other processes compact by the system's clock and without Spark's engine")
    with root.storage_errors(), reserve(root.path):
        rows = sorted(root.rows(), key=lambda row: (row.region, row.name, row.created_at))
        if not rows:
            raise QueueClientError(f"{root.path} holds no queues; there is nothing to compact")
        progress, steps = progress or (lambda done, total, name: None), count()

        def begin(row: QueueRow) -> None:
            progress(next(steps), len(rows), row.name)

        store = root.engine.store
        before, done = compaction_notes.load(store, root.path), CompactionNotes()
        summaries: dict[str, CompactionSummary] = {}
        depths: list[StatsRow] = []
        busy: list[QueueRow] = []
        kept = DELETED_KEPT if within is None else within * MICROS
        for row in rows:
            if row.deleted_at is None:
                note = before.notes.get(row.key) if within is None else None
                resting, rests = CompactionSummary(row.name, row.region), False
                with resting.step("the look for changes"):
                    if note and note.rests(root.now()):
                        rests = compaction_notes.is_unchanged(store, root.path, row, note)
                if note and rests:
                    begin(row)
                    summaries[row.key] = resting
                    depths.append(note.row(root.now()))
                    done.notes[row.key] = note
                else:
                    busy.append(row)
            else:
                begin(row)
                if root.now() - row.deleted_at > kept:
                    summaries[row.key] = _remove(root, row)
        passes = [
            QueuePass(store, row.name, row.region, row.key, before.notes.get(row.key), within) for row in busy
        ]
        for index, (summary, counted, note) in deal(passes) if deal else _in_turn(root, busy, passes, begin):
            row = busy[index]
            if deal:
                begin(row)
            summaries[row.key] = summary
            depths += counted
            if note:
                done.notes[row.key] = note
        progress(len(rows), len(rows), "")
        done.ended_at = root.now()
        in_order = [summaries[row.key] for row in rows if row.key in summaries]
        passed = [*in_order, _compact_own_tables(root, depths, done)]
        if any(summary.failures for summary in passed):  # a restore may be why; then the next call would fail, too
            root.release()
        return passed


def _in_turn(
    root: Root, rows: Sequence[QueueRow], asked: Sequence[QueuePass], begin: Callable[[QueueRow], None]
) -> Iterator[tuple[int, Passed]]:
    for index, (row, each) in enumerate(zip(rows, asked, strict=True)):
        begin(row)
        yield index, compact_queue(OpenQueue(root, row), each.note, each.within)


def compact(queue: OpenQueue, within: float | None = None) -> CompactionSummary:
    """Makes one pass over a queue, and returns the summary. Raises QueueDoesNotExist if the queue was deleted."""
    _check_within(queue.root, within)
    with queue.service("compact"), reserve(queue.root.path):
        queue.reload()
        return compact_queue(queue, within=within)[0]


def _check_within(root: Root, within: float | None) -> None:
    if within is None:
        return
    check_type("now", within, (int, float), "a number of seconds")
    if not 0 <= within <= LONGEST_WITHIN:
        raise InvalidParameterValue.of(within, "now", f"Must be >= 0 and <= {LONGEST_WITHIN} seconds.")
    if local_path(root.path) is None:
        raise QueueClientError(
            f"{root.path} is on an object store, which has no locks: there only age makes removals safe"
        )


def compact_queue(queue: OpenQueue, before: Note | None = None, within: float | None = None) -> Passed:
    """Makes one pass over a queue. Returns the results as ``Passed``."""
    summary, note = CompactionSummary(queue.name, queue.region), None
    depths: list[StatsRow] = []
    try:
        with summary.step("compaction", last=True), queue.service("compact"):
            attributes_version, versions = queue.row.attributes_version, []
            with summary.step("reading the newest versions"):
                versions = [shard.ledger.activity() for shard in queue.shards]
            with summary.step("finishing a change of attributes"):
                queue.announce_attributes()
            with summary.step("finishing a move"):
                move.finish_all(queue)
            with summary.step("completing bulk sends"):
                send_dataframe.complete_bulk_sends(queue)
            if is_low(queue.root.path):  # the next steps write files
                _sweep(queue, summary, within)
            for shard in queue.shards:
                _compact_shard(queue, shard, summary)
            _sweep(queue, summary, within)
            with summary.step("counting"):
                counted = depth(queue)
                depths, now = [_statistics(queue, counted)], counted.at
                if summary.idle:
                    since = before.since if before and before.versions == versions else now
                    changes = [
                        shard.ledger.query(lambda machine: machine.next_change(now)) for shard in queue.shards
                    ]
                    until = min((each for each in changes if each is not None), default=None)
                    note = Note(versions, attributes_version, since, now, until, attrs.asdict(depths[0]))
    except QueueDoesNotExist:  # deleted meanwhile, or partly before: ``service`` has completed that
        pass
    return summary, depths, note


def _compact_shard(queue: OpenQueue, shard: OpenShard, summary: CompactionSummary) -> None:
    with summary.step(f"expiry of shard {shard.number}"):
        summary.expired += queue.command(shard, Expire())
    with summary.step(f"the log of shard {shard.number}"):
        summary.merged(shard.compact(queue.now(), queue.attributes.dedup_micros))
    with summary.step(f"the ledger of shard {shard.number}"):
        summary.ledgers_rewritten += shard.ledger.rewrite(queue.now)


def _sweep(queue: OpenQueue, summary: CompactionSummary, within: float | None) -> None:
    waiting = None
    with summary.step("the marker of a copy"):  # one that ended between its last two steps
        queue.root.engine.store.folder(layout.tables_path(queue.root.path, queue.key)).remove([layout.COPYING])
    with summary.step("manifests of bulk sends"):
        waiting = send_dataframe.sweep_manifests(queue)
    for shard in queue.shards:
        messages, receipts = map(queue.root.engine.open, (shard.tables.messages, shard.tables.receipts))
        with summary.step(f"trimming the logs of shard {shard.number}"):
            summary.freed(
                cleaning.trim(messages, layout.MESSAGES_RETENTION)
                + cleaning.trim(receipts, layout.RECEIPTS_RETENTION)
            )
        with summary.step(f"removing files of shard {shard.number}"):
            if waiting is not None:  # else it is unknown which files a bulk send still needs
                summary.freed(cleaning.vacuum(messages, layout.MESSAGES_RETENTION, waiting.get(shard.number, ())))
            summary.freed(cleaning.vacuum(receipts, layout.RECEIPTS_RETENTION))
        if within is not None:
            with summary.step(f"freeing shard {shard.number}"):
                summary.freed(cleaning.free(messages, within) + cleaning.free(receipts, within))
        with summary.step("removing empty directories"):
            cleaning.remove_empty_folders(messages.folder, FOLDERS_KEPT if within is None else within)


def _statistics(queue: OpenQueue, counted: Depth) -> StatsRow:
    counts = attrs.asdict(counted.counts)
    counts["in_flight"] += counts.pop("undecided")
    return StatsRow(queue=queue.name, region=queue.region, key=queue.key, sent=counted.sent, **counts)


def _remove(root: Root, row: QueueRow) -> CompactionSummary:
    """Removes the row of a deleted queue, then its tables. A later pass completes an interrupted removal."""
    summary = CompactionSummary(row.name, row.region, deleted=True)
    with summary.step("removing a deleted queue"):
        # by a wrong clock it would be too early
        storage_now(root.engine.store.folder(layout.queues_path(root.path)))
        tables = root.engine.store.folder(layout.tables_path(root.path, row.key))
        with ExitStack() as held:
            pinned: AbstractContextManager[Folder] = tables.pinned()
            with suppress(FileNotFoundError):  # a pass that was interrupted has removed it
                tables = held.enter_context(pinned)
            root.remove(row)
            summary.freed(cleaning.remove_tables(tables))
    return summary


def _compact_own_tables(root: Root, depths: list[StatsRow], done: CompactionNotes) -> CompactionSummary:
    summary = CompactionSummary(None)
    with summary.step("the table of statistics"):
        root.check_clock("the statistics")
        stats.record(root.engine, root.path, depths, root.now())
        compaction_notes.save(root.engine.store, root.path, done)
        summary.freed(stats.sweep(root.engine, root.path))
    with summary.step("the table of queues"), root.lock:
        summary.freed(root.catalog.sweep())
    with summary.step("the table of schedules"):
        summary.freed(ScheduleTable(root.engine, root.path).sweep())
    with summary.step("the files of consumers"):
        summary.freed(consumer_files.remove_old(root.engine.store, root.path, root.now()))
    return summary
