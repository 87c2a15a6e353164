"""Bulk sends: files that Spark wrote become segments, in one commit for each shard.

Offsets are fixed at commit: the files' positions start at 0, and their bases and opening times are
partition values. So a lost race costs another commit of a few milliseconds, never another write, and
a bulk send holds no lock while it writes.

Each commit is recognised by the name of the send, and the manifest says which shards there are. So whoever repeats
a send that was cut short, or comes upon it, commits what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.storage import layout
from lakequeue.storage.bulk import manifests, write_files
from lakequeue.storage.bulk.dedup import Duplicates, opened_at
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.row_rules import Fifo, check_columns
from lakequeue.storage.engines.commit import StaleAttributes, commit, first_line
from lakequeue.storage.engines.interface import DataFile, Engine, Table
from lakequeue.storage.engines.retry import Races

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS = 60
PATIENCE = 4
"""Attempts after which files with new duplicates are written while small sends wait."""

UNFINISHED = 60.0
"""Seconds that a bulk send has for its commits, of milliseconds each, before others complete it."""


@attrs.frozen
class Target:
    """Where a bulk send goes."""

    engine: Engine
    root: str
    key: str
    shards: Sequence[int]
    """In the order in which files take turns."""
    attributes: QueueAttributes
    attributes_version: int
    room: Callable[[int], int | None]
    """Messages that the cap on stored ones leaves in a shard, None without a cap (QUE-21)."""
    holding: Callable[[int], AbstractContextManager[None]]
    """Keeps this process's small sends to a shard waiting for the few milliseconds of the commit."""
    purged: Callable[[int], int]
    """Offset up to which a shard was purged, fresh; asked when messages of the log are in the way (DDP-13)."""
    committed: Callable[[int, int], None] = lambda shard, lost_races: None
    """Called after each commit to a shard, with the number of races that were lost before it."""

    @property
    def tables_path(self) -> str:
        return layout.tables_path(self.root, self.key)

    def messages(self, shard: int) -> str:
        return layout.messages_path(self.root, self.key, shard)

    def open(self, shard: int) -> Table:
        return self.engine.open(self.messages(shard))


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
    name: SendKey | None,
    now: Callable[[], int],
    order_by: str | None = None,
) -> int:
    """Sends the rows of ``df``; returns how many were added, 0 if ``name`` was sent before.

    Rows whose deduplication id is live on a FIFO queue are accepted but not added (DDP-1). ``now`` is asked anew
    for each commit, as writing may take minutes, and delays and deduplication count from the commit.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule, or ``order_by`` is not for this queue;
            nothing was sent.
        OverLimit: the queue has no room for all of them (QUE-21).
        StaleAttributes: nothing was sent; repeat with the newest attributes.
        QueueClientError: storage failed; with ``outcome_unknown`` if a shard was reached before.
    """
    check(target.attributes, df, order_by)
    name = name or SendKey.new()
    manifest = None
    if not name.anonymous:
        manifest = manifests.load_manifest(target.tables_path, name.files)
        # a manifest is removed when every shard was reached, or none
        if manifest is None and any(name.reached(target.open(shard)) for shard in target.shards):
            return 0
        if manifest is not None and manifest.too_old and not _reached(target.open, manifest):
            if not name.of_stream:
                raise _too_old(name.files)
            manifests.forget(
                target.tables_path, name.files
            )  # a stream knows no other name; its source has the rows
            manifest = None
    manifest = manifest or _stage(target, spark, df, name, order_by)
    if not manifest.rows:
        if name.of_stream or name.anonymous:
            manifests.discard(target.root, target.key, name.files)
        return 0
    try:
        rows = complete(target, manifest, now)
    except (StaleAttributes, QueueServiceError) as error:
        if name.anonymous:
            manifests.discard(target.root, target.key, name.files)
        elif isinstance(error, StaleAttributes):
            # judged by old rules, so they are written anew; the files stay, as another process may be
            # committing them, which the fence lets only one of us do
            manifests.forget(target.tables_path, name.files)
        raise
    if manifest.app_id is None and not rows:  # else the compactor may have committed them meanwhile
        manifests.discard(target.root, target.key, name.files)
    elif name.anonymous or name.of_stream:  # they are many, and the compactor may be rare
        manifests.forget(target.tables_path, name.files)
    return rows


def abandoned(target: Target) -> list[Manifest]:
    """Bulk sends that reached some shards a while ago, and not all: their process was killed or stopped."""
    found, opened = [], cache(target.open)
    for manifest in manifests.manifests(target.tables_path):
        if time.time() - manifest.written_at < UNFINISHED:
            continue
        reached = _reached(opened, manifest)
        if reached and len(reached) < len(manifest.shards):
            found.append(manifest)
    return found


def sweep_manifests(target: Target) -> dict[int, list[str]]:
    """Forgets sends that are complete, or too old to begin; by shard, the files of those that reached a part."""
    waiting_files: dict[int, list[str]] = {}
    opened = cache(target.open)
    for manifest in manifests.manifests(target.tables_path):
        reached, age = _reached(opened, manifest), time.time() - manifest.written_at
        if reached and len(reached) < len(manifest.shards):
            for shard in manifest.shards:
                waiting_files.setdefault(shard, []).extend(file.path for file in manifest.of(shard))
        elif age >= layout.MESSAGES_RETENTION.file_hours * 3600:
            manifests.forget(target.tables_path, manifest.send_id)
    return waiting_files


def complete(target: Target, manifest: Manifest, now: Callable[[], int]) -> int:
    """Commits what waits for the shards that were not reached yet; returns the number of messages.

    Raises:
        OverLimit, StaleAttributes, RequestThrottled: nothing was sent.
        QueueClientError: storage failed; with ``outcome_unknown`` if a shard was reached before.
    """
    reached = set(_reached(target.open, manifest))
    if len(manifest.shards) > 1:  # before any of them takes its part
        for shard in set(manifest.shards) - reached:
            _check_room(target, shard, manifest.of(shard))
    rows = 0
    for shard in manifest.shards:
        if shard in reached:
            continue
        try:
            rows += _Part(target, manifest, shard, now).commit(judged=bool(reached))
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


def _reached(open_log: Callable[[int], Table], manifest: Manifest) -> list[int]:
    if manifest.app_id is None:
        return []
    return [shard for shard in manifest.shards if manifest.reached(open_log(shard))]


def _stage(target: Target, spark: SparkSession, df: DataFrame, name: SendKey, order_by: str | None) -> Manifest:
    attributes = target.attributes
    delay = attributes.limits("delay")
    return write_files.stage(
        spark,
        df,
        target.root,
        target.key,
        target.shards,
        name,
        max_bytes=attributes.maximum_message_size,
        default_delay=attributes.delay_micros / 1_000_000,
        max_delay=None if delay.high is None else float(delay.high),
        fifo=_fifo(attributes, order_by) if attributes.fifo else None,
        count_attributes=attributes.profile_rules.attributes_count_in_size,
    )


def _fifo(attributes: QueueAttributes, order_by: str | None) -> Fifo:
    return Fifo(
        shards=attributes.shards,
        content_based_deduplication=bool(attributes.content_based_deduplication),
        dedup_by_group=attributes.dedup_by_group,
        order_by=order_by,
    )


def _check_room(target: Target, shard: int, files: Sequence[DataFile]) -> None:
    room, rows = target.room(shard), sum(file.rows for file in files)
    if room is not None and rows > max(0, room):
        where = "The queue" if len(target.shards) == 1 else f"Shard {shard} of the queue"
        raise OverLimit(f"{where} has room for {max(0, room)} messages, not for {rows}.")


class _Part:
    """What a bulk send adds to one shard."""

    def __init__(self, target: Target, manifest: Manifest, shard: int, now: Callable[[], int]) -> None:
        self._target = target
        self._manifest = manifest
        self._shard = shard
        self._now = now
        self._table = target.open(shard)
        self._staged = manifest.of(shard)
        self._duplicates: Duplicates | None = None
        if target.attributes.fifo:
            by_group, purged = target.attributes.dedup_by_group, lambda: target.purged(shard)
            self._duplicates = Duplicates(target.messages(shard), self._staged, by_group, purged)

    def commit(self, judged: bool) -> int:
        """Adds the files; returns the number of messages, 0 if that was done before.

        Args:
            judged: another shard was reached, so newer attributes do not matter any more.
        """
        manifest, table, files = self._manifest, self._table, self._staged
        races = Races(ATTEMPTS)
        for attempt in races:
            if self._duplicates is not None:  # here, as reading the log and writing files may take seconds
                table.refresh()
                self._duplicates.look(table, self._now())
                files = self._duplicates.files()
            with self._target.holding(self._shard):
                table.refresh()
                instant = self._now()
                if manifest.reached(table):
                    return 0  # another process committed the same files meanwhile
                if self._duplicates is not None and not self._duplicates.look(table, instant):
                    if attempt < PATIENCE:
                        continue
                    files = self._duplicates.files()
                if manifest.too_old and not judged:
                    raise _too_old(manifest.send_id)
                if self._add(files, instant, judged):
                    self._target.committed(self._shard, races.lost)
                    return sum(file.rows for file in files)
            races.lose()
        raise RequestThrottled("too many lost races; nothing was sent")

    def _add(self, files: Sequence[DataFile], now: int, judged: bool) -> bool:
        table, manifest = self._table, self._manifest
        attributes_version = table.transaction(layout.ATTRIBUTES_ID) or 0
        if not judged and attributes_version != self._target.attributes_version:
            raise StaleAttributes()
        version = table.transaction(layout.SEND_ID) or 0
        if version >= layout.CLOSED:
            raise QueueDoesNotExist()
        _check_room(self._target, self._shard, files)
        end, instant = version, opened_at(table, now)
        opened = from_micros(instant).strftime("%Y-%m-%d %H:%M:%S.%f")
        added: list[DataFile] = []
        for file in files:
            added.append(attrs.evolve(file, partition={"base_offset": str(end), "opened_at": opened}))
            end += file.rows
        fence = {layout.ATTRIBUTES_ID: attributes_version, layout.SEND_ID: version}
        ids = {layout.SEND_ID: end, layout.CLOCK_ID: instant} if added else {}
        if manifest.app_id is not None:
            fence[manifest.app_id] = table.transaction(manifest.app_id) or 0
            ids[manifest.app_id] = manifest.version
        if not ids:
            return True  # nothing is left of a send that nobody will repeat

        def add(token: str) -> None:
            manifests.check_there(table.path, added)  # in here, as the process may have been stopped before
            table.add(added, ids, token)

        return commit(table, fence, add)


def _too_old(send_id: str) -> QueueClientError:
    return QueueClientError(
        f"the files of bulk send {send_id} were written more than 12 h ago; send them under a new id"
    )
