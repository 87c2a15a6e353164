"""Checks a root: reads every file that the root's tables name, and changes nothing (DUR-30)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import attrs

from lakequeue.model.damage import Finding
from lakequeue.model.names import name_hash
from lakequeue.operations.queues import missing
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.inspection.catalog_rows import find_catalog
from lakequeue.storage.inspection.environment import lock_problem, space_problems
from lakequeue.storage.inspection.found_log import read_log
from lakequeue.storage.inspection.shards import RESTORE, find_shard, log_findings, shard_findings
from lakequeue.storage.messages.read import LogFile
from lakequeue.storage.schedules import unreadable
from lakequeue.storage.stores import Store

READS = 3
"""Maximum number of reads of a table with problems. Only problems that every read finds are reported."""


def check(root: Root, name: str | None = None, space: bool = True) -> list[Finding]:
    """Returns all damage of a root or queue; see ``LakeQueue.check``. If ``space``, also reports a full disk."""
    with root.storage_errors():
        store, shards = root.engine.store, shards_of(root, name)
        found = _agreed(lambda: _catalog_findings(store, root, name))
        for row, shard in shards:
            found += _shard_findings(store, root, row, shard)
        found += [
            Finding(None, None, root.path, None, problem, "purge what nobody needs, then compact", damage=False)
            for problem in (space_problems(root.path) if space else ())
        ]
        return found


def repaired(queue: OpenQueue) -> list[tuple[str, str | None]]:
    """Returns the damaged files that receives met, and that can be read now or are in no log any more."""
    found: list[tuple[str, str | None]] = []
    for table, file in queue.damage.files:
        with suppress(Exception):
            log = read_log(queue.root.engine.store.folder(table))
            if file is None or file in log.problems or (newest := log.newest()) is None:
                if any(each.damage for each in check(queue.root, queue.name, space=False)):
                    continue
            elif log.newest_sound != log.last:
                continue
            else:
                for live in newest.state.live.values():
                    if live.name == file:
                        LogFile.of(live).rows_of(newest, layout.FILES["messages"].names)
            found.append((table, file))
    return found


def shards_of(root: Root, name: str | None) -> list[tuple[QueueRow, int]]:
    """Returns each shard of one queue or all queues, as catalog row and number. Raises QueueDoesNotExist."""
    catalog = find_catalog(root.engine.store, root.path)
    rows = [row for row in catalog.rows if row.deleted_at is None]
    if name is not None:
        rows = [row for row in rows if (row.region, row.name) == (root.region, name)]
        hashed = name_hash(root.region, name)
        if not rows and not catalog.problem and not any(key.startswith(hashed) for key in catalog.unlisted):
            raise missing(root, name)
    rows.sort(key=lambda row: (row.region, row.name))
    return [(row, shard) for row in rows for shard in range(row.shards)]


def _shard_findings(store: Store, root: Root, row: QueueRow, shard: int) -> Iterator[Finding]:
    yield from _agreed(
        lambda: shard_findings(find_shard(store, root.path, row.key, shard), row.name, row.region, root.now())
    )
    for path in (layout.messages_path, layout.receipts_path):
        table = path(root.path, row.key, shard)
        if (found := lock_problem(table)) is not None:
            yield Finding(row.name, row.region, table, None, *found, damage=False)


def _catalog_findings(store: Store, root: Root, name: str | None) -> Iterator[Finding]:
    catalog = find_catalog(store, root.path)
    if catalog.problem is not None:
        yield Finding(None, None, catalog.path, None, catalog.problem, "goes back to its newest readable version")
    tables = {catalog.path: RESTORE}
    if name is None:
        tables[layout.stats_path(root.path)] = "nothing; remove it, it is made anew"
        tables[layout.schedules_path(root.path)] = "nothing; remove it and add its schedules anew"
    for path, lost in tables.items():
        try:
            log = read_log(store.folder(path))
        except FileNotFoundError:
            continue  # statistics come with the first compaction, schedules with the first of them
        found = [Finding(None, None, path, *each) for each in log_findings(log, lost)]
        newest = log.newest()
        for error in newest.broken() if newest is not None and path != catalog.path else ():
            found.append(Finding(None, None, path, error.file, error.reason, "is left out of the table"))
        rows = path == layout.schedules_path(root.path) and not found
        if rows and (why := unreadable(Engine(store), root.path)) is not None:
            found.append(Finding(None, None, path, None, why, lost))
        yield from found
    for key in catalog.unlisted:
        if name is None or key.startswith(name_hash(root.region, name)):
            repair = "is listed again if an older file has its row, else by lakequeue repair NAME, with its name"
            path = layout.tables_path(root.path, key)
            yield Finding(None, None, path, None, "has messages, and no row in the catalog", repair)


def _agreed(read: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Reads ``READS`` times. Returns problems that all reads find: one read may find a concurrent removal."""
    found = list(read())
    for _ in range(READS - 1):
        if not found:
            break
        again = {attrs.astuple(each) for each in read()}
        found = [each for each in found if attrs.astuple(each) in again]
    return found
