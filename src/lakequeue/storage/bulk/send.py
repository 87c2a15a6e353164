"""Bulk sends: rows are written as files once, which are then committed to each shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakequeue.errors import InvalidParameterValue, QueueServiceError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS
from lakequeue.storage.bulk import commit_files, manifests
from lakequeue.storage.bulk.commit_files import Target
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.message_rules import Fifo, RowRules, check_columns
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.folder import Folder

Stage = Callable[[Folder, Staging], Manifest]
"""Checks and writes the rows of a send below the queue's directory; they may come from anywhere."""


def check_rows(attributes: QueueAttributes, columns: Sequence[tuple[str, str]], order_by: str | None) -> None:
    """Refuses columns that make no messages, whatever the rows are.

    Raises:
        InvalidParameterValue: names the column.
    """
    if order_by is not None and not attributes.fifo:
        raise InvalidParameterValue.of(order_by, "order_by", "Standard queues keep no order.")
    check_columns(columns, order_by)
    if attributes.fifo and "group_id" not in dict(columns):
        raise InvalidParameterValue("The column group_id is missing; every message of a FIFO queue has a group.")


def row_rules(attributes: QueueAttributes, order_by: str | None = None) -> RowRules:
    """What rows must obey that are sent to a queue."""
    delay = attributes.limits("delay")
    return RowRules(
        max_bytes=attributes.maximum_message_size,
        default_delay=attributes.delay_micros / MICROS,
        max_delay=None if delay.high is None else float(delay.high),
        fifo=_fifo(attributes, order_by) if attributes.fifo else None,
        count_attributes=attributes.profile_rules.attributes_count_in_size,
        by_group=attributes.by_group,
    )


def send_rows(
    target: Target, key: SendKey | None, now: Callable[[], int], stage: Stage, order_by: str | None = None
) -> int:
    """Sends the rows that ``stage`` writes; returns how many were added, 0 if ``key`` was sent before.

    Rows whose deduplication id is live on a FIFO queue are accepted but not added (DDP-1). ``now`` is called for
    each commit, as writing may take minutes, and delays and deduplication count from the commit. ``stage`` is not
    called if the files of an earlier attempt wait.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule; nothing was sent.
        OverLimit: the queue has no room for all of them (QUE-21).
        StaleAttributes: nothing was sent; repeat with the newest attributes.
        QueueClientError: storage failed; with ``outcome_unknown`` if a shard was reached before.
    """
    key = key or SendKey.new()
    manifest = None
    if not key.anonymous:
        manifest = manifests.load_manifest(target.tables, key.files)
        # a manifest is removed once every shard is reached, or none
        if manifest is None and any(key.reached(target.open(shard)) for shard in target.shards):
            return 0
        if manifest is not None and manifest.too_old and not commit_files.reached_shards(target.open, manifest):
            if not key.of_stream:
                raise commit_files.too_old_error(key.files)
            # a stream has no other key; its source still has the rows
            manifests.forget(target.tables, key.files)
            manifest = None
    if manifest is None:
        manifest = stage(target.tables, Staging.new(key, target.shards, row_rules(target.attributes, order_by)))
    if not manifest.rows:
        if key.of_stream or key.anonymous:
            manifests.discard(target.tables, key.files)
        return 0
    try:
        rows = commit_files.complete(target, manifest, now)
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


def _fifo(attributes: QueueAttributes, order_by: str | None) -> Fifo:
    return Fifo(
        shards=attributes.shards,
        content_based_deduplication=bool(attributes.content_based_deduplication),
        dedup_by_group=attributes.dedup_by_group,
        order_by=order_by,
    )
