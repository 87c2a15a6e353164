"""Bulk sends of a DataFrame, an Arrow source or staged files. Completes interrupted bulk sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from lakequeue.errors import InvalidOptions, InvalidParameterValue, QueueClientError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.operations.json_rows import Bodies
from lakequeue.operations.results import SentRows
from lakequeue.operations.send import in_turn
from lakequeue.runtime import calls
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import arrow_files, bulk_send, write_files
from lakequeue.storage.bulk.arrow_files import check_order
from lakequeue.storage.bulk.arrow_rows import columns_of
from lakequeue.storage.bulk.bad_rows import BadRows, OnBadRow, option_problems
from lakequeue.storage.bulk.bulk_send import Stage, send_rows
from lakequeue.storage.bulk.manifests import Manifest, SendKey, forget, load_manifest
from lakequeue.storage.bulk.message_rules import check_columns
from lakequeue.storage.bulk.send_target import SendTarget
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.engines.commit_failures import StaleAttributes
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.roots import root_of
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _key(send_id: str | SendKey | None) -> SendKey:
    if isinstance(send_id, SendKey):
        return send_id
    return SendKey.new() if send_id is None else SendKey.of_send(send_id)


@attrs.frozen
class BulkSend:
    """Options of a bulk send; see ``Queue.send_arrow``."""

    key: SendKey = attrs.field(default=None, converter=_key)
    """Identifies the send, usually by the send id. All attempts of one call have the same key."""
    order_by: str | None = None
    on_bad_row: OnBadRow = "fail"
    bad_rows: str | None = None
    priority: int = 0
    turn: int | None = None
    """Number that selects the shards, so that all processes use the same shards. If None, this process chooses."""


def send_dataframe(queue: OpenQueue, df: DataFrame, send: BulkSend) -> SentRows:
    """Sends every row as a message. Returns the number of messages, or 0 for a repeated send id."""
    queue.root.require_spark("send_dataframe")
    df, order_by = write_files.respelled(df, send.order_by)
    bad, refused = bad_rows_of(queue, send.on_bad_row, send.bad_rows), 0

    def stage(tables: Folder, staging: Staging) -> Manifest:
        nonlocal refused
        staging = attrs.evolve(staging, bad_rows=bad)
        written = write_files.write(df, queue.root.engine.store, tables, staging)
        refused = sum(part.refused_rows for part in written)
        return arrow_files.gather(tables, staging, written, in_order=queue.fifo)

    send, columns = attrs.evolve(send, order_by=order_by), write_files.columns_of(df.schema)
    return SentRows(send_staged(queue, columns, send, stage), refused)


def bad_rows_of(
    queue: OpenQueue, on_bad_row: OnBadRow, table: str | None, verb: str = "send_dataframe"
) -> BadRows | None:
    """Returns how bad rows are dropped or diverted; None if a bad row ends the send. Raises InvalidOptions."""
    problems = option_problems(on_bad_row, table)
    if problems:
        raise InvalidOptions(problems)
    if on_bad_row == "fail":
        return None
    table = root_of(table) if table else None
    if table is not None and f"{table}/".startswith(f"{queue.root.path}/"):
        raise InvalidOptions([f"option badRows: {table} is in the root, where only lakequeue's tables are"])
    found = BadRows(queue.name, Store(table or "", queue.root.engine.store.options), table)
    with queue.service(verb):
        found.prepare()
    return found


def send_staged(
    queue: OpenQueue,
    columns: Sequence[tuple[str, str]],
    send: BulkSend,
    stage: Stage,
    verb: str = "send_dataframe",
) -> int:
    """Sends rows that ``stage`` writes. If attributes change, calls ``stage`` again. Returns how many rows."""
    with queue.service(verb) as call:
        while True:
            check_columns(queue.attributes, columns, send.order_by)
            try:
                target = bulk_target(queue, send.priority)
                if send.turn is not None:
                    target = attrs.evolve(target, shards=shards_of_turn(queue, send.turn))
                first = target.shards[0]
                rows = send_rows(target, send.key, stage, send.order_by)
            except StaleAttributes:
                queue.renew()
                continue
            for shard in queue.shards:
                shard.shared.waiters.wake()
            if rows and not queue.fifo and send.key.anonymous:
                queue.shards[0].shared.sends.leave(first)
            call.messages = rows
            return rows


def shards_of_turn(queue: OpenQueue, turn: int) -> list[int]:
    """Returns one shard per priority, chosen by ``turn``. Returns all shards if groups determine the shard."""
    shards, attributes = range(len(queue.shards)), queue.attributes
    if attributes.fifo or attributes.by_group:
        return [*shards]
    classes = attributes.priorities or 1
    turn %= max(1, len(shards) // classes)
    return [*shards[turn * classes : (turn + 1) * classes]]


def last_version(queue: OpenQueue, app_id: str) -> int:
    """Returns the largest version of an application id in the queue's logs, or 0 if no log has the id."""
    with queue.service("last_version"):
        queue.reload()  # raises if the queue was deleted
        target = bulk_target(queue)
        return max(target.open(shard).transaction(app_id) for shard in target.shards)


def complete_bulk_sends(queue: OpenQueue) -> None:
    """Completes bulk sends that reached only some shards, because the sending process was killed."""
    target = bulk_target(queue)
    for manifest in bulk_send.abandoned(target):
        bulk_send.complete(target, manifest)
        for shard in manifest.shards:
            queue.shards[shard].shared.waiters.wake()


def complete_batch(queue: OpenQueue, key: SendKey) -> None:
    """Completes a batch of a stream if it has reached only some shards."""
    target = bulk_target(queue)
    manifest = load_manifest(target.tables, key.files)
    if manifest is not None and bulk_send.reached_shards(target.open, manifest):
        bulk_send.complete(target, manifest)
        forget(target.tables, key.files)


def sweep_manifests(queue: OpenQueue) -> dict[int, list[str]]:
    """Removes manifests that no bulk send needs any more. Returns the files of incomplete bulk sends, by shard."""
    return bulk_send.sweep_manifests(bulk_target(queue))


def bulk_target(queue: OpenQueue, priority: int = 0) -> SendTarget:
    """Returns the queue as target of bulk sends, with its known attributes. ``priority``: default for rows."""
    shards = [shard.number for shard in in_turn(queue)]
    version, attributes = queue.row.attributes_version, queue.attributes  # in this order, see OpenQueue.adopt
    engine, path = queue.root.engine, queue.root.path
    here = _QueueShards(queue, attributes)
    return SendTarget(engine, path, queue.key, shards, attributes, version, here, priority)


@attrs.frozen
class _QueueShards:
    """Implements ``BulkShards`` for a queue that is open in this process."""

    _queue: OpenQueue
    _attributes: QueueAttributes

    def now(self) -> int:
        return self._queue.now()

    def room(self, shard: int) -> int | None:
        return self._queue.shards[shard].sender.room(self._attributes, self.now())

    def holding(self, shard: int) -> AbstractContextManager[None]:
        return self._queue.shards[shard].sender.paused()

    def purged(self, shard: int) -> int:
        return self._queue.shards[shard].ledger.purged_offset()

    def committed(self, shard: int, lost_races: int) -> None:
        calls.committed(shard, lost_races)

    def check_clock(self, shard: int, instant: int, last: int, table: Table) -> Mapping[str, int]:
        return self._queue.shards[shard].ledger.check_clock(instant, last, table)


def send_arrow(queue: OpenQueue, data: Any, send: BulkSend, body: str = "body") -> SentRows:
    """Sends every row of ``data`` as a message. Returns the number of messages."""
    verb, refused, order_by = "send_arrow", 0, send.order_by
    bad = bad_rows_of(queue, send.on_bad_row, send.bad_rows, verb)
    source = _Source(data)
    schema, batches = source.schema, source.batches
    if body != "body":
        bodies = Bodies(source.schema, body, order_by, queue.attributes.priorities is not None)
        schema, batches = bodies.schema, lambda: bodies.of(source.batches())

    def stage(tables: Folder, staging: Staging) -> Manifest:
        nonlocal refused
        check_order(schema, order_by)
        manifest, refused = arrow_files.stage(tables, attrs.evolve(staging, bad_rows=bad), batches())
        return manifest

    return SentRows(send_staged(queue, columns_of(schema), send, stage, verb), refused)


class _Source:
    """The rows to send. Can be read more than once, as the queue's attributes may change during a send."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._reader: pa.RecordBatchReader | None = self._open()
        self._rows: int | None = None  # that the first reading found
        self.schema = self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        reader, self._reader = self._reader or self._open(), None
        rows = 0
        try:
            for batch in reader:
                rows += len(batch)
                yield batch
        except (OSError, pa.ArrowException) as error:
            raise QueueClientError(f"Nothing was sent: reading the rows failed: {first_line(error)}") from error
        if self._rows not in (None, rows):  # a reader gives its rows only once
            raise QueueClientError(
                "Nothing was sent: the queue's attributes changed meanwhile, and the rows cannot be read again; "
                "repeat the call"
            )
        self._rows = rows

    def _open(self) -> pa.RecordBatchReader:
        if isinstance(self._data, pa.RecordBatchReader):
            return self._data
        try:
            return pa.RecordBatchReader.from_stream(self._data)
        except (TypeError, pa.ArrowException) as error:
            raise InvalidParameterValue.of(
                type(self._data).__name__,
                "data",
                "Must be a pyarrow Table, RecordBatch or RecordBatchReader, or have columns and "
                f"__arrow_c_stream__ ({first_line(error)}).",
            ) from None
