"""The compactor: frees what retention, deletions and merges have left, and keeps tables and logs short.

It changes no answer and commits under the same fences as every other operation. Each of its steps may fail, be
killed or run twice at once; a failed step is logged, named in the summary, and tried again by the next pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from lakequeue.errors import QueueClientError, QueueDoesNotExist
from lakequeue.operations import move, send_dataframe
from lakequeue.operations.depth import depth
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard.commands import Expire
from lakequeue.storage import cleaning, layout, stats
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.commit import first_line
from lakequeue.storage.folder import Freed
from lakequeue.storage.messages.merge_segments import MergeCounts

DELETED_KEPT = 24 * 3600 * 1_000_000
"""Microseconds that the messages of a deleted queue stay: a lease may still read them."""
FOLDERS_KEPT = 3600
"""Seconds that an empty directory stays: a writer makes one right before it uses it."""

Progress = Callable[[int, int, str], None]

_log = logging.getLogger("lakequeue")


@attrs.define
class CompactionSummary:
    """What one pass did with a queue, or with the root's own tables (``queue`` None)."""

    queue: str | None
    region: str | None = None
    deleted: bool = False
    """The queue was deleted, and its data are removed now."""
    expired: int = 0
    """Messages that retention removed, from the history too."""
    segments_dropped: int = 0
    """Parts of the log of which no message is left."""
    segments_merged: int = 0
    """Parts of the log that were joined with others, or into one file."""
    segments_cut: int = 0
    """Parts of the log of which at least half was gone, and was dropped."""
    ledgers_rewritten: int = 0
    """Shards whose ledger was in more files than it needs."""
    files_freed: int = 0
    """Files that were removed from storage, those of the logs too."""
    bytes_freed: int = 0
    failures: list[str] = attrs.field(factory=list)
    """Steps that failed, for people; the next pass tries them again."""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Lets a failure end this step only."""
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
    with root.storage_errors():
        rows = sorted(root.rows(), key=lambda row: (row.region, row.name, row.created_at))
        if not rows:
            raise QueueClientError(f"{root.path} holds no queues; there is nothing to compact")
        tell = progress or (lambda done, total, name: None)
        summaries, counted = [], []
        for number, row in enumerate(rows):
            tell(number, len(rows), row.name)
            if row.deleted_at is None:
                summary, counted_now = compact_queue(OpenQueue(root, row))
                summaries.append(summary)
                counted += counted_now
            elif root.now() - row.deleted_at > DELETED_KEPT:
                summaries.append(_remove(root, row))
        tell(len(rows), len(rows), "")
        summaries.append(_compact_own_tables(root, counted))
        return summaries


def compact(queue: OpenQueue) -> CompactionSummary:
    """One pass over a queue; raises QueueDoesNotExist if it was deleted."""
    with queue.service("compact"):
        queue.reload()
        return compact_queue(queue)[0]


def compact_queue(queue: OpenQueue) -> tuple[CompactionSummary, list[stats.StatsRow]]:
    """One pass over a queue; with its depth afterwards, unless that cannot be read."""
    summary = CompactionSummary(queue.name, queue.region)
    counted: list[stats.StatsRow] = []
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
                counted = [_statistics(queue)]
    except QueueDoesNotExist:  # deleted meanwhile, or before but not to the end; that is done now
        pass
    return summary, counted


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
        with summary.step(f"removing files of shard {shard.shard}"):
            if waiting is not None:  # else it is unknown which files a bulk send still needs
                summary.freed(cleaning.vacuum(messages, layout.MESSAGES_RETENTION, waiting.get(shard.shard, ())))
            summary.freed(cleaning.vacuum(receipts, layout.RECEIPTS_RETENTION))
        with summary.step(f"trimming the logs of shard {shard.shard}"):
            summary.freed(
                cleaning.trim(messages, layout.MESSAGES_RETENTION)
                + cleaning.trim(receipts, layout.RECEIPTS_RETENTION)
            )
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
    """Removes the row of a deleted queue, then its tables; those of a pass that is cut short are orphans then."""
    summary = CompactionSummary(row.name, row.region, deleted=True)
    with summary.step("removing a deleted queue"):
        root.remove(row)
        summary.freed(cleaning.remove_tables(root.path, row.key))
    return summary


def _compact_own_tables(root: Root, counted: list[stats.StatsRow]) -> CompactionSummary:
    summary = CompactionSummary(None)
    with summary.step("the table of statistics"):
        stats.record(root.engine, root.path, counted, root.now())
        summary.freed(stats.sweep(root.engine, root.path))
    with summary.step("the table of queues"):
        summary.freed(root.sweep_catalog())
    return summary
