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
    InvalidParameterValue,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.storage import frames, layout, waiting
from lakequeue.storage.bulk_dedup import Duplicates, opened_at
from lakequeue.storage.commit import StaleAttributes, back_off, commit
from lakequeue.storage.engine import DataFile, Engine, Table
from lakequeue.storage.row_rules import Fifo, check_columns
from lakequeue.storage.waiting import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS = 60
PATIENCE = 4
"""Attempts after which files with new duplicates are written while small sends wait."""


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
    purged: Callable[[int], int]
    """Offset up to which a shard was purged, fresh; asked when messages of the log are in the way (DDP-13)."""


@attrs.frozen
class Name:
    """What a bulk send is recognised by when it is repeated, for good.

    It is committed once the application id has reached the version.
    """

    app_id: str
    version: int
    files: str
    """Name of the files that wait for the commit; message ids are derived from it."""
    of_stream: bool = False

    @classmethod
    def of_send(cls, send_id: str) -> Name:
        """A send that its caller has named."""
        return cls(layout.bulk_id(send_id), 1, send_id)

    @classmethod
    def of_batch(cls, stream: str, batch: int) -> Name:
        """A micro-batch of a stream, whose batches come in the order of their numbers, from 0 on."""
        return cls(layout.stream_id(stream), batch + 1, f"stream-{stream}-{batch}", of_stream=True)

    def committed(self, table: Table) -> bool:
        """Whether the loaded snapshot has this send, or a later batch of its stream."""
        return (table.transaction(self.app_id) or 0) >= self.version


def check(attributes: QueueAttributes, df: DataFrame, order_by: str | None) -> None:
    """Refuses columns that no message can be made of, whatever the rows are.

    Raises:
        InvalidParameterValue: names the column.
    """
    if order_by is not None and not attributes.fifo:
        raise InvalidParameterValue(
            f"Value {order_by} for parameter order_by is invalid. Reason: Standard queues keep no order."
        )
    check_columns(df, order_by)


def send(
    target: Target,
    spark: SparkSession,
    df: DataFrame,
    name: Name | None,
    now: Callable[[], int],
    order_by: str | None = None,
) -> int:
    """Sends the rows of ``df``; returns how many were added, 0 if ``name`` was sent before.

    Rows whose deduplication id is live on a FIFO queue are accepted but not added (DDP-1). ``now`` is asked anew
    for the commit, as writing may take minutes, and delays and deduplication count from the commit.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule, or ``order_by`` is not for this queue;
            nothing was sent.
        OverLimit: the queue has no room for all of them (QUE-21).
        StaleAttributes: nothing was sent; repeat with the newest attributes.
    """
    attributes = target.attributes
    check(attributes, df, order_by)
    table = target.engine.open(target.messages_path)
    id = uuid.uuid4().hex if name is None else name.files
    if name is not None and name.committed(table):
        return 0
    manifest = None if name is None else waiting.load_manifest(target.messages_path, id)
    if manifest is not None and manifest.too_old:
        if name is None or not name.of_stream:
            raise _too_old(id)
        waiting.forget(target.messages_path, id)  # a stream knows no other id; its source has the same rows still
        manifest = None
    if manifest is None:
        delay = attributes.limits("delay")
        manifest = frames.stage(
            spark,
            df,
            target.messages_path,
            id,
            max_bytes=attributes.maximum_message_size,
            default_delay=attributes.delay_micros / 1_000_000,
            max_delay=None if delay.high is None else float(delay.high),
            fifo=_fifo(attributes, order_by) if attributes.fifo else None,
            count_attributes=attributes.profile_rules.attributes_count_in_size,
        )
    if not manifest.rows:
        if name is not None and name.of_stream:
            waiting.discard(target.messages_path, id)
        return 0
    try:
        rows = _commit_all(target, table, manifest, name, now)
    except (StaleAttributes, QueueServiceError) as error:
        if name is None:
            waiting.discard(target.messages_path, id)
        elif isinstance(error, StaleAttributes):
            # judged by old rules, so they are written anew; the files stay, as another process may be
            # committing them, which the fence lets only one of us do
            waiting.forget(target.messages_path, id)
        raise
    if name is None and not rows:
        waiting.discard(target.messages_path, id)
    if name is not None and name.of_stream:  # its batches are many, and the compactor may be rare
        waiting.forget(target.messages_path, id)
    return rows


def _fifo(attributes: QueueAttributes, order_by: str | None) -> Fifo:
    return Fifo(
        shards=attributes.shards,
        content_based_deduplication=bool(attributes.content_based_deduplication),
        dedup_by_group=attributes.dedup_by_group,
        order_by=order_by,
    )


def _commit_all(
    target: Target, table: Table, manifest: Manifest, name: Name | None, now: Callable[[], int]
) -> int:
    """Commits what waits; returns the number of messages."""
    files, duplicates = manifest.files, None
    if target.attributes.fifo:
        by_group = target.attributes.dedup_by_group
        duplicates = Duplicates(target.messages_path, files, by_group, target.purged)
    for attempt in range(ATTEMPTS):
        if duplicates is not None:  # here, as reading the log and writing files may take seconds
            table.refresh()
            duplicates.look(table, now())
            files = duplicates.files()
        with target.holding():
            table.refresh()
            instant = now()
            if name is not None and name.committed(table):
                return 0  # another process committed the same files meanwhile
            if duplicates is not None and not duplicates.look(table, instant):
                if attempt < PATIENCE:
                    continue
                files = duplicates.files()
            if manifest.too_old:
                raise _too_old(manifest.send_id)
            rows = sum(file.rows for file in files)
            if _commit(target, table, files, name, rows, instant):
                return rows
        back_off(attempt)
    raise RequestThrottled("too many lost races; nothing was sent")


def _commit(
    target: Target, table: Table, files: Sequence[DataFile], name: Name | None, rows: int, now: int
) -> bool:
    if any(
        (table.transaction(layout.attributes_id(shard)) or 0) != target.attributes_version
        for shard in target.shards
    ):
        raise StaleAttributes()
    room = target.room()
    if room is not None and rows > max(0, room):
        raise OverLimit(f"The queue has room for {max(0, room)} messages, not for {rows}.")
    fence = {layout.attributes_id(shard): target.attributes_version for shard in target.shards}
    ids: dict[str, int] = {}
    added: list[DataFile] = []
    for turn, shard in enumerate(target.shards):
        version = table.transaction(layout.send_id(shard)) or 0
        if version >= layout.CLOSED:
            raise QueueDoesNotExist("The specified queue does not exist.")
        end, instant = version, opened_at(table, shard, now)
        for file in _dealt(target, files, turn):
            partition = {
                "shard": str(shard),
                "base_offset": str(end),
                "opened_at": from_micros(instant).strftime("%Y-%m-%d %H:%M:%S.%f"),
            }
            added.append(attrs.evolve(file, partition=partition))
            end += file.rows
        if end != version:
            fence[layout.send_id(shard)] = version
            ids[layout.send_id(shard)] = end
            ids[layout.clock_id(shard)] = instant
    if name is not None:
        fence[name.app_id] = table.transaction(name.app_id) or 0
        ids[name.app_id] = name.version
    if not ids:
        return True  # nothing is left of a send that nobody will repeat

    def add(token: str) -> None:
        waiting.check_there(target.messages_path, added)  # in here, as the process may have been stopped before
        table.add(added, ids, token)

    return commit(table, fence, add)


def _too_old(send_id: str) -> QueueClientError:
    return QueueClientError(
        f"the files of bulk send {send_id} were written more than 12 h ago; send them under a new id"
    )


def _dealt(target: Target, files: Sequence[DataFile], turn: int) -> Sequence[DataFile]:
    """The files of a shard: those of its groups, or any in turn."""
    if target.attributes.fifo:
        return [file for file in files if file.partition["shard"] == str(target.shards[turn])]
    return files[turn :: len(target.shards)]
