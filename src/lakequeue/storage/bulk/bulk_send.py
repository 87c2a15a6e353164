"""Sends many rows at once. The rows are written to files, and then each shard commits its files. Each commit sets
the application id of the send. If a send is interrupted, another process can commit the rest of its files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.storage import layout
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.commit_files import ShardCommit
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.message_rules import RowRules
from lakequeue.storage.bulk.send_target import SendTarget
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.engines.commit_failures import StaleAttributes
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.store_failures import first_line

UNFINISHED = 60.0
"""Seconds after which other processes may complete an interrupted bulk send."""

Stage = Callable[[Folder, Staging], Manifest]
"""Function that checks the rows of a send, writes them to files, and returns the manifest. Runs in any process."""


def send_rows(target: SendTarget, key: SendKey, stage: Stage, order_by: str | None = None) -> int:
    """Sends the rows that ``stage`` writes. Returns the number of added rows, or 0 if ``key`` was sent before.

    On FIFO queues, skips messages with a repeated deduplication id (DDP-1). If an earlier attempt left files,
    commits those files without calling ``stage``.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule; nothing was sent.
        OverLimit: the rows exceed the cap on stored messages (QUE-21).
        StaleAttributes: nothing was sent; repeat with the newest attributes.
        QueueClientError: storage failed. ``outcome_unknown`` is set if another shard already has its rows.
    """
    manifest = None
    if not key.anonymous:
        manifest = manifests.load_manifest(target.tables, key.files)
        # a manifest is removed once every shard is reached, or none
        if manifest is None and any(key.reached(target.open(shard)) for shard in target.shards):
            return 0
        if manifest is not None and manifest.too_old and not reached_shards(target.open, manifest):
            if not key.of_stream:
                raise manifests.too_old_error(target.open(target.shards[0]).folder, key.files)
            # a stream has no other key; its source still has the rows
            manifests.forget(target.tables, key.files)
            manifest = None
    if manifest is None:
        rules = RowRules.of_queue(target.attributes, order_by, target.priority)
        manifest = stage(target.tables, Staging.new(key, target.shards, rules))
    if not manifest.rows:
        if key.of_stream or key.anonymous:
            manifests.discard(target.tables, key.files)
        return 0
    try:
        rows = complete(target, manifest)
    except (StaleAttributes, QueueServiceError) as error:
        if key.anonymous:
            manifests.discard(target.tables, key.files)
        elif isinstance(error, StaleAttributes):
            # written by old rules, so they are written again; the files stay, as another process may be committing
            # them, and the fence lets only one of the two do so
            manifests.forget(target.tables, key.files)
        raise
    if manifest.app_id is None and not rows:  # else the compactor may have committed the files
        manifests.discard(target.tables, key.files)
    elif key.anonymous or key.of_stream:  # there are many of them, and the compactor may run rarely
        manifests.forget(target.tables, key.files)
    return rows


def abandoned(target: SendTarget) -> list[Manifest]:
    """Returns the sends that were committed to some of their shards only, and are at least a minute old."""
    found, opened = [], cache(target.open)
    for manifest in manifests.manifests(target.tables):
        if time.time() - manifest.written_at < UNFINISHED:
            continue
        reached = reached_shards(opened, manifest)
        if reached and len(reached) < len(manifest.shards):
            found.append(manifest)
    return found


def sweep_manifests(target: SendTarget) -> dict[int, list[str]]:
    """Removes old manifests, except of sends that only some shards have. Returns those sends' files by shard."""
    waiting_files: dict[int, list[str]] = {}
    opened = cache(target.open)
    for manifest in manifests.manifests(target.tables):
        reached, age = reached_shards(opened, manifest), time.time() - manifest.written_at
        if reached and len(reached) < len(manifest.shards):
            for shard in manifest.shards:
                waiting_files.setdefault(shard, []).extend(file.path for file in manifest.of(shard))
        elif age >= layout.PINNED_HOURS * 3600:
            manifests.forget(target.tables, manifest.send_id)
    return waiting_files


def complete(target: SendTarget, manifest: Manifest) -> int:
    """Commits the files of a bulk send to the shards that lack the send. Returns the number of new messages.

    Raises:
        OverLimit, StaleAttributes, RequestThrottled: nothing was sent.
        QueueClientError: storage failed. ``outcome_unknown`` is set if another shard already has its rows.
    """
    reached = set(reached_shards(target.open, manifest))
    if len(manifest.shards) > 1:  # all are checked before the first commit
        for shard in set(manifest.shards) - reached:
            target.check_room(shard, manifest.of(shard))
    rows = 0
    for shard in manifest.shards:
        if shard in reached:
            continue
        try:
            rows += ShardCommit(target, manifest, shard).commit(reached_another=bool(reached))
        except Exception as error:
            if not reached:
                raise
            raise QueueClientError(
                f"bulk send {manifest.send_id} reached shards {sorted(reached)} of {sorted(manifest.shards)}, "
                f"then it failed: {first_line(error)}. Repeating it with send_id={manifest.send_id!r} is safe",
                outcome_unknown=True,
            ) from error
        reached.add(shard)
    return rows


def reached_shards(open_log: Callable[[int], Table], manifest: Manifest) -> list[int]:
    if manifest.app_id is None:
        return []
    return [shard for shard in manifest.shards if manifest.reached(open_log(shard))]
