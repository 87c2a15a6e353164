"""Bulk sends that one process plans, and whose rows other processes write. Any process can complete a send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import pyarrow as pa

from lakequeue.errors import InvalidOptions, QueueClientError
from lakequeue.operations.send_dataframe import BulkSend, bad_rows_of, bulk_target, last_version, send_staged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import arrow_files, manifests
from lakequeue.storage.bulk.arrow_files import Written
from lakequeue.storage.bulk.bad_rows import OnBadRow
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.message_rules import RowRules, check_columns
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.bulk.write_files import TaskWriter
from lakequeue.storage.folder import Folder

Columns = Sequence[tuple[str, str]]
"""Names of the rows' columns, each with its type in Spark."""


@attrs.frozen
class PlannedSend:
    """A bulk send whose rows other processes write. After their writes, ``complete`` commits the send."""

    columns: Columns
    order_by: str | None
    """Column that orders the messages of each group on FIFO queues."""
    writer: TaskWriter
    """Writes rows in tasks. In a stream, each task sets the send's key, as only tasks know the batch number."""
    needed: bool = True
    """False if tasks have nothing to write: the send was made before, or all its files exist."""

    def of_batch(self, stream: str, number: int) -> PlannedSend:
        """Returns the send of one micro-batch of a stream. The result is equal in all tasks of the batch."""
        staging = self.writer.staging
        staging = staging.of_key(SendKey.of_batch(stream, number), staging.key.files[:8])
        return attrs.evolve(self, writer=attrs.evolve(self.writer, staging=staging))

    def write(self, rows: Iterable[pa.RecordBatch]) -> Written | None:
        """Writes the rows of a task, in the process of the task. Returns None if ``needed`` is False."""
        return self.writer.write(rows) if self.needed else None


def plan(
    queue: OpenQueue,
    columns: Columns,
    order_by: str | None,
    send_id: str | None = None,
    on_bad_row: OnBadRow = "fail",
    bad_rows: str | None = None,
) -> PlannedSend:
    """Plans a bulk send, or the sends of a stream. Raises InvalidParameterValue or InvalidOptions."""
    queue.reload()  # raises if the queue was deleted
    attributes, target = queue.attributes, bulk_target(queue)
    check_columns(attributes, columns, order_by)
    key, known = SendKey.new(), False
    if send_id is not None:
        key = SendKey.of_send(send_id)
        with queue.service("send_dataframe"):
            known = manifests.load_manifest(target.tables, key.files) is not None
            known = known or any(key.reached(target.open(shard)) for shard in target.shards)
    bad = bad_rows_of(queue, on_bad_row, bad_rows)
    staging = Staging.new(key, target.shards, RowRules.of_queue(attributes, order_by), bad)
    writer = TaskWriter(queue.root.engine.store, target.tables.uri, staging)
    return PlannedSend(columns, order_by, writer, not known)


def complete(queue: OpenQueue, send: PlannedSend, written: Sequence[Written]) -> int:
    """Commits the files of all partitions as one send, exactly once. ``written`` are the results of the
    partitions, in order. Returns the number of messages.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule; nothing was sent.
        InvalidOptions: the queue has later batches of the stream. It is unknown if this batch was sent.
        QueueClientError: storage failed, or the rules changed while tasks wrote.
    """
    staging, key = send.writer.staging, send.writer.staging.key
    if key.of_stream and last_version(queue, key.app_id) > key.version:
        discard(queue, send)
        raise InvalidOptions(
            [
                f"option checkpointLocation: queue {queue.name} has later batches than {key.version - 1} of this "
                "query, so its checkpoint was reset or copied; use a new one"
            ]
        )
    made: Manifest | None = None

    def stage(tables: Folder, wanted: Staging) -> Manifest:
        nonlocal made
        if not send.needed:  # the files that waited were written by other rules
            raise QueueClientError(
                "Nothing was sent: the queue's attributes changed since the rows were written; write them again"
            )
        if wanted.rules != staging.rules or (made is not None and key.anonymous):
            staging.discard(tables)
            raise QueueClientError(
                "Nothing was sent: the queue's attributes changed while the rows were written; write them again"
            )
        if made is None:
            made = arrow_files.gather(tables, staging, written)
            return made
        return manifests.write_manifest(tables, made)  # removed, as other attributes changed meanwhile

    rows = send_staged(queue, send.columns, BulkSend(key, send.order_by), stage)
    if made is None:  # sent before
        discard(queue, send)
    return rows


def discard(queue: OpenQueue, send: PlannedSend) -> None:
    """Removes the files of a send. Call this only if no process has begun to commit the send."""
    send.writer.staging.discard(bulk_target(queue).tables)
