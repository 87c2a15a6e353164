"""Bulk sends: rows are written once, as files, which become segments by one commit per shard.

Offsets are fixed at commit: base and opening time of a file are partition values. So a lost race never writes a
file again, and no lock is held while writing. Each commit carries the send's application id, so any process can
complete an interrupted send from its manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Protocol

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
)
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS
from lakequeue.storage import layout
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.dedup import Duplicates, opened_at
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.message_rules import Fifo, RowRules, check_columns
from lakequeue.storage.bulk.staged_files import check_exist
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.engines.data_files import DataFile, placed
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import (
    Answer,
    Answered,
    Change,
    Committed,
    Decision,
    Ids,
    transact,
)
from lakequeue.storage.folder import Folder
from lakequeue.storage.store_failures import first_line

PATIENCE = 4
"""Number of attempts after which small sends wait for a bulk send."""

UNFINISHED = 60.0
"""Seconds after which other processes complete a bulk send."""


class BulkShards(Protocol):
    """The shards of a queue in this process, by number."""

    def now(self) -> int:
        """Returns the time in microseconds from which delays and deduplication of a commit count."""
        ...

    def room(self, shard: int) -> int | None:
        """Returns how many messages the cap of a shard still allows (QUE-21), or None."""
        ...

    def holding(self, shard: int) -> AbstractContextManager[None]:
        """Blocks this process's small sends to a shard during the commit."""
        ...

    def purged(self, shard: int) -> int:
        """Returns the purge mark of a shard, if the log has duplicates (DDP-13)."""
        ...

    def committed(self, shard: int, lost_races: int) -> None:
        """Counts a commit to a shard, and the lost races before it."""
        ...

    def settle_clock(self, shard: int, instant: int, last: int, table: Table) -> Mapping[str, int]:
        """Checks the clock before a commit; see ``ShardLedger.settle_clock``."""
        ...


@attrs.frozen
class SendTarget:
    """The queue that gets a bulk send."""

    engine: Engine
    root: str
    key: str
    shards: Sequence[int]
    """All shards, in the order in which they get files."""
    attributes: QueueAttributes
    attributes_version: int
    here: BulkShards
    priority: int = 0
    """Priority for rows that have none."""

    @property
    def tables(self) -> Folder:
        return self.engine.store.folder(layout.tables_path(self.root, self.key))

    def open(self, shard: int) -> Table:
        return self.engine.open(layout.messages_path(self.root, self.key, shard))


def abandoned(target: SendTarget) -> list[Manifest]:
    """Returns bulk sends that have reached only some shards for a minute."""
    found, opened = [], cache(target.open)
    for manifest in manifests.manifests(target.tables):
        if time.time() - manifest.written_at < UNFINISHED:
            continue
        reached = reached_shards(opened, manifest)
        if reached and len(reached) < len(manifest.shards):
            found.append(manifest)
    return found


def sweep_manifests(target: SendTarget) -> dict[int, list[str]]:
    """Removes complete or expired manifests. Returns the files of incomplete sends by shard."""
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
    """Commits the files for the remaining shards. Returns the number of messages.

    Raises:
        OverLimit, StaleAttributes, RequestThrottled: nothing was sent.
        QueueClientError: storage failed; ``outcome_unknown`` is set after a commit to another shard.
    """
    reached = set(reached_shards(target.open, manifest))
    if len(manifest.shards) > 1:  # all are checked before the first commit
        for shard in set(manifest.shards) - reached:
            _check_room(target, shard, manifest.of(shard))
    rows = 0
    for shard in manifest.shards:
        if shard in reached:
            continue
        try:
            rows += _ShardCommit(target, manifest, shard).commit(reached_another=bool(reached))
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


def _check_room(target: SendTarget, shard: int, files: Sequence[DataFile]) -> None:
    room, rows = target.here.room(shard), sum(file.rows for file in files)
    if room is not None and rows > max(0, room):
        where = "The queue" if len(target.shards) == 1 else f"Shard {shard} of the queue"
        raise OverLimit(f"{where} has room for {max(0, room)} messages, not for {rows}.")


class _ShardCommit:
    """The commit of a bulk send to one shard."""

    def __init__(self, target: SendTarget, manifest: Manifest, shard: int) -> None:
        self._target = target
        self._manifest = manifest
        self._shard = shard
        self._table = target.open(shard)
        self._staged = manifest.of(shard)
        self._duplicates: Duplicates | None = None
        if target.attributes.fifo:
            by_group, purged = target.attributes.dedup_by_group, partial(target.here.purged, shard)
            self._duplicates = Duplicates(self._table.folder, self._staged, by_group, purged)

    def commit(self, reached_another: bool) -> int:
        """Adds the files. Returns the number of new messages. ``reached_another``: ignores newer attributes."""
        table = self._table
        for patient in [*[True] * PATIENCE, False]:
            if self._duplicates is not None:
                # before the lock, as reading the log and writing files may take seconds
                table.repeated(self._find_duplicates)
            with self._target.here.holding(self._shard):
                table.refresh()
                decide = partial(self._decide, patient, reached_another)
                sent = transact(table, decide, busy="too many lost races; nothing was sent")
            match sent:
                case Committed(int(rows), lost):
                    self._target.here.committed(self._shard, lost)
                    return rows
                case Answered(int(rows)):
                    return rows
        raise AssertionError("the last decision waits for nothing")

    def _find_duplicates(self) -> None:
        assert self._duplicates is not None
        self._table.refresh()
        self._duplicates.check(self._table, self._target.here.now())
        self._duplicates.files()

    def _decide(self, patient: bool, reached_another: bool, _: int) -> Decision[int | None]:
        """Decides how many messages to add. None if files with new duplicates must be rewritten first."""
        table, manifest, files, here = self._table, self._manifest, self._staged, self._target.here
        instant = here.now()
        if manifest.reached(table):
            return Answer(0)  # another process committed the same files meanwhile
        if self._duplicates is not None:
            if not self._duplicates.check(table, instant) and patient:
                return Answer(None)
            files = self._duplicates.files()
        if manifest.too_old and not reached_another:
            raise too_old_error(table.folder, manifest.send_id)
        attributes_version = table.transaction(layout.ATTRIBUTES_ID)
        if not reached_another and attributes_version != self._target.attributes_version:
            raise StaleAttributes()
        version = table.transaction(layout.SEND_ID)
        if version >= layout.CLOSED:
            raise QueueDoesNotExist()
        _check_room(self._target, self._shard, files)
        opened = opened_at(table, instant)
        added = placed(files, version, opened)
        rows = sum(file.rows for file in added)
        fence = {layout.ATTRIBUTES_ID: attributes_version, layout.SEND_ID: version}
        ids = {layout.SEND_ID: version + rows, layout.CLOCK_ID: opened} if added else {}
        if manifest.app_id is not None:
            fence[manifest.app_id] = table.transaction(manifest.app_id)
            ids[manifest.app_id] = manifest.version
        if added:
            last = table.transaction(layout.CLOCK_ID)
            ids |= here.settle_clock(self._shard, instant, last, table)
        if not ids:
            return Answer(0)  # all rows are duplicates, and nobody repeats this send
        return Change(fence, ids, partial(self._add, added), rows, counts={"send": rows})

    def _add(self, files: Sequence[DataFile], ids: Ids, token: str) -> None:
        check_exist(self._table.folder, files)  # under the lock: the process may have been stopped before
        self._table.add(files, ids, token)


def too_old_error(table: Folder, send_id: str) -> QueueClientError:
    """Returns the error for a bulk send that waited too long, or raises it for a wrong clock."""
    storage_now(table)
    return QueueClientError(
        f"the files of bulk send {send_id} were written more than 12 h ago; send them under a new id"
    )


Stage = Callable[[Folder, Staging], Manifest]
"""Checks and writes the rows of a send below the queue's directory, in any process."""


def check_rows(attributes: QueueAttributes, columns: Sequence[tuple[str, str]], order_by: str | None) -> None:
    """Raises InvalidParameterValue for a column that no message can have."""
    if order_by is not None and not attributes.fifo:
        raise InvalidParameterValue.of(order_by, "order_by", "Standard queues keep no order.")
    check_columns(columns, order_by, attributes.priorities is not None)
    if attributes.fifo and "group_id" not in dict(columns):
        raise InvalidParameterValue("The column group_id is missing; every message of a FIFO queue has a group.")


def row_rules(attributes: QueueAttributes, order_by: str | None = None, priority: int = 0) -> RowRules:
    """Returns the rules for rows sent to a queue."""
    delay, fifo = attributes.limits("delay"), None
    if attributes.fifo:
        by_content = bool(attributes.content_based_deduplication)
        fifo = Fifo(attributes.shards, by_content, attributes.dedup_by_group, order_by)
    return RowRules(
        max_bytes=attributes.maximum_message_size,
        default_delay=attributes.delay_micros / MICROS,
        max_delay=None if delay.high is None else float(delay.high),
        fifo=fifo,
        count_attributes=attributes.profile_rules.attributes_count_in_size,
        by_group=attributes.by_group,
        priorities=attributes.priorities,
        default_priority=priority,
    )


def send_rows(target: SendTarget, key: SendKey, stage: Stage, order_by: str | None = None) -> int:
    """Sends the rows that ``stage`` writes. Returns the number of added rows; 0 if ``key`` was sent before.

    Rows with a repeated deduplication id are accepted but not added on FIFO queues (DDP-1). Existing files of an
    earlier attempt are committed instead.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule; nothing was sent.
        OverLimit: the cap on stored messages allows only some of them (QUE-21).
        StaleAttributes: nothing was sent; repeat with the newest attributes.
        QueueClientError: storage failed; ``outcome_unknown`` is set after a commit to another shard.
    """
    manifest = None
    if not key.anonymous:
        manifest = manifests.load_manifest(target.tables, key.files)
        # a manifest is removed once every shard is reached, or none
        if manifest is None and any(key.reached(target.open(shard)) for shard in target.shards):
            return 0
        if manifest is not None and manifest.too_old and not reached_shards(target.open, manifest):
            if not key.of_stream:
                raise too_old_error(target.open(target.shards[0]).folder, key.files)
            # a stream has no other key; its source still has the rows
            manifests.forget(target.tables, key.files)
            manifest = None
    if manifest is None:
        rules = row_rules(target.attributes, order_by, target.priority)
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
