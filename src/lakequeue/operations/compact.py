"""The compactor: frees storage after expiry, deletions and merges, and keeps tables and logs short.

It changes no answer and commits under the same fences as every other operation. Each step may fail, be killed or
run twice at once; a failed step is logged, named in the summary, and repeated by the next pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from lakequeue.errors import QueueClientError, QueueDoesNotExist
from lakequeue.model.clock import MICROS
from lakequeue.operations import move, send_dataframe
from lakequeue.operations.depth import depth
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard.commands import Expire
from lakequeue.storage import cleaning, layout, stats
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.folder import Freed
from lakequeue.storage.messages.merge_segments import MergeCounts
from lakequeue.storage.reserve import reserve
from lakequeue.storage.store_failures import first_line

DELETED_KEPT = 24 * 3600 * MICROS
"""Microseconds for which the messages of a deleted queue stay: a lease may still read them."""
FOLDERS_KEPT = 3600
"""Seconds for which an empty directory stays: a writer may be about to use it."""

Progress = Callable[[int, int, str], None]

_log = logging.getLogger("lakequeue")


@attrs.define
class CompactionSummary:
    """What one pass did for a queue, or for the root's own tables (``queue`` None)."""

    queue: str | None
    region: str | None = None
    deleted: bool = False
    """The queue was deleted earlier; this pass removed its data."""
    expired: int = 0
    """Messages removed by retention, including those of the history."""
    segments_dropped: int = 0
    """Parts of the log that were removed because no message was left."""
    segments_merged: int = 0
    """Parts of the log that were merged with others or into one file."""
    segments_cut: int = 0
    """Parts of the log that were cut because at least half of them was no longer needed."""
    ledgers_rewritten: int = 0
    """Shards whose ledger had more files than it needs."""
    files_freed: int = 0
    """Files removed from storage, including log entries."""
    bytes_freed: int = 0
    failures: list[str] = attrs.field(factory=list)
    """Descriptions of failed steps; the next pass repeats them."""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Catches and records a failure, so that it ends this step only."""
        try:
            yield
        except QueueDoesNotExist:
            raise
        except Exception as error:
            self.failures.append(f"{what}: {first_line(error)}")
            _log.warning("compaction of %s: %s failed: %s", self.queue or "the root", what, first_line(error))

    def freed(self, freed: Freed) -> None:
        self.files_freed += freed.files
        self.bytes_freed += freed.bytes

    def merged(self, merged: MergeCounts) -> None:
        self.segments_dropped += merged.dropped
        self.segments_merged += merged.merged
        self.segments_cut += merged.cut


def compact_root(root: Root, progress: Progress | None = None) -> list[CompactionSummary]:
    """One pass over every queue of a root, whatever its region; see ``LakeQueue.compact``."""
    with root.storage_errors(), reserve(root.path):
        rows = sorted(root.rows(), key=lambda row: (row.region, row.name, row.created_at))
        if not rows:
            raise QueueClientError(f"{root.path} holds no queues; there is nothing to compact")
        progress = progress or (lambda done, total, name: None)
        summaries, depths = [], []
        for number, row in enumerate(rows):
            progress(number, len(rows), row.name)
            if row.deleted_at is None:
                summary, depth_rows = compact_queue(OpenQueue(root, row))
                summaries.append(summary)
                depths += depth_rows
            elif root.now() - row.deleted_at > DELETED_KEPT:
                summaries.append(_remove(root, row))
        progress(len(rows), len(rows), "")
        summaries.append(_compact_own_tables(root, depths))
        return summaries


def compact(queue: OpenQueue) -> CompactionSummary:
    """One pass over a queue; raises QueueDoesNotExist if it was deleted."""
    with queue.service("compact"), reserve(queue.root.path):
        queue.reload()
        return compact_queue(queue)[0]


def compact_queue(queue: OpenQueue) -> tuple[CompactionSummary, list[stats.StatsRow]]:
    """One pass over a queue; also returns its depth afterwards, unless that cannot be read."""
    summary = CompactionSummary(queue.name, queue.region)
    depths: list[stats.StatsRow] = []
    try:
        with summary.step("compaction"), queue.service("compact"):
            with summary.step("finishing a change of attributes"):
                queue.announce_attributes()
            with summary.step("finishing a move"):
                move.finish_all(queue)
            with summary.step("completing bulk sends"):
                send_dataframe.complete_bulk_sends(queue)
            for shard in queue.shards:
                _compact_shard(queue, shard, summary)
            _sweep(queue, summary)
            with summary.step("counting"):
                depths = [_statistics(queue)]
    except QueueDoesNotExist:  # deleted meanwhile, or partly before: ``service`` has completed that
        pass
    return summary, depths


def _compact_shard(queue: OpenQueue, shard: ShardService, summary: CompactionSummary) -> None:
    with summary.step(f"expiry of shard {shard.shard}"):
        summary.expired += queue.command(shard, Expire())
    with summary.step(f"the log of shard {shard.shard}"):
        summary.merged(shard.compact(queue.now(), queue.fifo))
    with summary.step(f"the ledger of shard {shard.shard}"):
        summary.ledgers_rewritten += shard.rewrite_ledger(queue.now)


def _sweep(queue: OpenQueue, summary: CompactionSummary) -> None:
    waiting = None
    with summary.step("manifests of bulk sends"):
        waiting = send_dataframe.sweep_manifests(queue)
    for shard in queue.shards:
        messages, receipts = (
            queue.root.engine.open(path(queue.root.path, queue.key, shard.shard))
            for path in (layout.messages_path, layout.receipts_path)
        )
        with summary.step(f"trimming the logs of shard {shard.shard}"):
            summary.freed(
                cleaning.trim(messages, layout.MESSAGES_RETENTION)
                + cleaning.trim(receipts, layout.RECEIPTS_RETENTION)
            )
        with summary.step(f"removing files of shard {shard.shard}"):
            if waiting is not None:  # else it is unknown which files a bulk send still needs
                summary.freed(cleaning.vacuum(messages, layout.MESSAGES_RETENTION, waiting.get(shard.shard, ())))
            summary.freed(cleaning.vacuum(receipts, layout.RECEIPTS_RETENTION))
        with summary.step("removing empty directories"):
            cleaning.remove_empty_folders(messages.path, FOLDERS_KEPT)


def _statistics(queue: OpenQueue) -> stats.StatsRow:
    now = depth(queue)
    return stats.StatsRow(
        queue=queue.name,
        region=queue.region,
        key=queue.key,
        sent=now.sent,
        **attrs.asdict(now.counts),
    )


def _remove(root: Root, row: QueueRow) -> CompactionSummary:
    """Removes the row of a deleted queue, then its tables; an interrupted pass leaves them as orphans."""
    summary = CompactionSummary(row.name, row.region, deleted=True)
    with summary.step("removing a deleted queue"):
        root.remove(row)
        summary.freed(cleaning.remove_tables(root.engine.store.folder(layout.tables_path(root.path, row.key))))
    return summary


def _compact_own_tables(root: Root, depths: list[stats.StatsRow]) -> CompactionSummary:
    summary = CompactionSummary(None)
    with summary.step("the table of statistics"):
        stats.record(root.engine, root.path, depths, root.now())
        summary.freed(stats.sweep(root.engine, root.path))
    with summary.step("the table of queues"):
        summary.freed(root.sweep_catalog())
    return summary
