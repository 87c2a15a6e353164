"""Bulk sends whose rows are written by other processes: begun in one, completed in another."""

from __future__ import annotations

from collections.abc import Sequence

from lakequeue.errors import InvalidOptions, QueueClientError
from lakequeue.operations.send_dataframe import bulk_target, last_version, send_staged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import arrow_files, manifests
from lakequeue.storage.bulk.arrow_files import Written
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.message_rules import RowRules
from lakequeue.storage.bulk.send import check_rows, row_rules
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.folder import Folder

Columns = Sequence[tuple[str, str]]
"""Names and types of the rows' columns; the types are called as in Spark."""


def rules_of(queue: OpenQueue, columns: Columns, order_by: str | None) -> tuple[RowRules, list[int]]:
    """What the rows must obey, and the shards that get them in turn.

    Raises:
        InvalidParameterValue: a column is missing, unknown, or of a wrong type.
    """
    queue.reload()  # raises if the queue was deleted
    attributes = queue.attributes
    check_rows(attributes, columns, order_by)
    return row_rules(attributes, order_by), list(bulk_target(queue).shards)


def is_known(queue: OpenQueue, key: SendKey) -> bool:
    """Whether a send was made before, or its files wait, so that its rows are not needed again."""
    if key.anonymous:
        return False
    with queue.service("send_dataframe"):
        target = bulk_target(queue)
        if manifests.load_manifest(target.tables, key.files) is not None:
            return True
        return any(key.reached(target.open(shard)) for shard in target.shards)


def complete(
    queue: OpenQueue, columns: Columns, order_by: str | None, staging: Staging, written: Sequence[Written] | None
) -> int:
    """Makes the files of all partitions one send, and commits them; returns the number of messages.

    Args:
        queue: the queue.
        columns: of the rows.
        order_by: column that orders the messages of each group, on FIFO queues.
        staging: what the files were written for.
        written: what became of each partition, in their order; None if the send was known.

    Raises:
        InvalidParameterValue, InvalidMessageContents: rows break a rule; nothing was sent.
        QueueClientError: storage failed, or the rules changed while the rows were written.
    """
    made: Manifest | None = None

    def stage(tables: Folder, wanted: Staging) -> Manifest:
        nonlocal made
        if written is None:  # the files that waited were written by other rules
            raise QueueClientError(
                "Nothing was sent: the queue's attributes changed since the rows were written; write them again"
            )
        if wanted.rules != staging.rules or (made is not None and staging.key.anonymous):
            staging.discard(tables)
            raise QueueClientError(
                "Nothing was sent: the queue's attributes changed while the rows were written; write them again"
            )
        if made is None:
            made = arrow_files.gather(tables, staging, written)
            return made
        return manifests.write_manifest(tables, made)  # removed, as other attributes changed meanwhile

    rows = send_staged(queue, columns, staging.key, order_by, stage)
    if made is None:  # sent before
        staging.discard(bulk_target(queue).tables)
    return rows


def complete_batch(
    queue: OpenQueue,
    batch: int,
    columns: Columns,
    order_by: str | None,
    staging: Staging,
    written: Sequence[Written],
) -> int:
    """As ``complete``, for a micro-batch of a stream; one that was sent before adds nothing.

    Raises:
        InvalidOptions: the queue has later batches of the stream, so its numbers no longer show what was sent.
    """
    if last_version(queue, staging.key.app_id) > staging.key.version:
        staging.discard(bulk_target(queue).tables)
        raise InvalidOptions(
            [
                f"option checkpointLocation: queue {queue.name} has later batches than {batch} of this query, "
                "so its checkpoint was reset or copied; use a new one"
            ]
        )
    return complete(queue, columns, order_by, staging, written)


def discard(queue: OpenQueue, staging: Staging) -> None:
    """Removes the files of a send that nobody has begun to commit."""
    staging.discard(bulk_target(queue).tables)
