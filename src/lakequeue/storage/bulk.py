"""Bulk sends: files that Spark wrote become segments in one commit.

Offsets are fixed at commit: the files' positions start at 0, and their bases and opening times are
partition values. So a lost race costs another commit of a few milliseconds, never another write, and
a bulk send holds no lock while it writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import attrs

from lakequeue.attributes import QueueAttributes
from lakequeue.clock import from_micros
from lakequeue.errors import (
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.storage import frames, layout
from lakequeue.storage.commit import StaleAttributes, back_off, commit
from lakequeue.storage.engine import DataFile, Engine, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS = 60
OLDEST_MANIFEST = 12 * 3600 * 1_000_000
"""Waiting files older than half of what VACUUM keeps may be gone before they are committed."""


@attrs.frozen
class Target:
    """Where a bulk send goes."""

    engine: Engine
    messages_path: str
    shards: Sequence[int]
    """In the order in which files take turns."""
    attributes: QueueAttributes
    attributes_version: int
    room: Callable[[], int | None]
    """Messages that the cap on stored ones leaves, None without a cap (QUE-21)."""
    holding: Callable[[], AbstractContextManager[None]]
    """Keeps this process's small sends waiting for the few milliseconds of the commit."""


def send(target: Target, spark: SparkSession, df: DataFrame, send_id: str | None, now: int) -> int:
    """Sends the rows of ``df``; returns how many, 0 if ``send_id`` was sent before.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule; nothing was sent.
        OverLimit: the queue has no room for all of them (QUE-21).
        StaleAttributes: nothing was sent; repeat with the newest attributes.
    """
    table = target.engine.open(target.messages_path)
    id = send_id or uuid.uuid4().hex
    if send_id is not None and table.transaction(layout.bulk_id(id)):
        return 0
    manifest = frames.load_manifest(target.messages_path, id) if send_id is not None else None
    if manifest is None:
        delay = target.attributes.limits("delay")
        manifest = frames.stage(
            spark,
            df,
            target.messages_path,
            id,
            max_bytes=target.attributes.maximum_message_size,
            default_delay=target.attributes.delay_micros / 1_000_000,
            max_delay=None if delay.high is None else float(delay.high),
            count_attributes=target.attributes.profile_rules.attributes_count_in_size,
            now=now,
        )
    elif now - manifest.created_at > OLDEST_MANIFEST:
        raise QueueClientError(
            f"the files of bulk send {id} were written more than 12 h ago; send them under a new id"
        )
    rows = manifest.rows
    if not rows:
        return 0
    try:
        for attempt in range(ATTEMPTS):
            with target.holding():
                table.refresh()
                if send_id is not None and table.transaction(layout.bulk_id(id)):
                    return 0  # another process committed the same files meanwhile
                if _commit(target, table, manifest.files, id if send_id is not None else None, rows, now):
                    return rows
            back_off(attempt)
        raise RequestThrottled("too many lost races; nothing was sent")
    except (StaleAttributes, QueueServiceError):
        if send_id is None:  # under an id of the caller's, another process may be committing these files
            frames.discard(target.messages_path, id)
        raise


def _commit(
    target: Target, table: Table, files: Sequence[DataFile], send_id: str | None, rows: int, now: int
) -> bool:
    if any(
        (table.transaction(layout.attributes_id(shard)) or 0) != target.attributes_version
        for shard in target.shards
    ):
        raise StaleAttributes()
    room = target.room()
    if room is not None and rows > room:
        raise OverLimit(f"The queue has room for {max(0, room)} messages, not for {rows}.")
    fence = {layout.attributes_id(shard): target.attributes_version for shard in target.shards}
    ids: dict[str, int] = {}
    added: list[DataFile] = []
    for turn, shard in enumerate(target.shards):
        version = table.transaction(layout.send_id(shard)) or 0
        if version >= layout.CLOSED:
            raise QueueDoesNotExist("The specified queue does not exist.")
        end, opened_at = version, max(now, table.transaction(layout.clock_id(shard)) or 0)
        for file in files[turn :: len(target.shards)]:
            partition = {
                "shard": str(shard),
                "base_offset": str(end),
                "opened_at": from_micros(opened_at).strftime("%Y-%m-%d %H:%M:%S.%f"),
            }
            added.append(attrs.evolve(file, partition=partition))
            end += file.rows
        if end != version:
            fence[layout.send_id(shard)] = version
            ids[layout.send_id(shard)] = end
            ids[layout.clock_id(shard)] = opened_at
    if send_id is not None:
        fence[layout.bulk_id(send_id)] = 0
        ids[layout.bulk_id(send_id)] = 1
    return commit(table, fence, lambda token: table.add(added, ids, token))
