"""Sends many rows at once, of a DataFrame or staged elsewhere, and completes interrupted bulk sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakequeue.operations.send import in_turn
from lakequeue.runtime import calls
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import commit_files, write_files
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.send import Stage, check_rows, send_rows
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def send_dataframe(queue: OpenQueue, df: DataFrame, send_id: str | None, order_by: str | None) -> int:
    """Sends every row of a DataFrame as a message; returns how many, 0 if the id was sent before."""
    queue.root.require_spark("send_dataframe")

    def stage(tables: Folder, staging: Staging) -> Manifest:
        return write_files.stage(df, queue.root.engine.store, tables, staging)

    name = None if send_id is None else SendKey.of_send(send_id)
    return send_staged(queue, write_files.columns_of(df.schema), name, order_by, stage)


def send_staged(
    queue: OpenQueue,
    columns: Sequence[tuple[str, str]],
    name: SendKey | None,
    order_by: str | None,
    stage: Stage,
    verb: str = "send_dataframe",
) -> int:
    """Sends the rows that ``stage`` writes; it is called again if attributes change meanwhile.

    Args:
        queue: the queue.
        columns: names and types of the rows' columns.
        name: makes the send repeatable; None: it is not.
        order_by: column that orders the messages of each group, on FIFO queues.
        stage: checks and writes the rows below the queue's directory, in one process or many.
        verb: name of the operation in log and metrics.
    """
    with queue.service(verb) as call:
        while True:
            check_rows(queue.attributes, columns, order_by)
            try:
                target = bulk_target(queue)
                first = target.shards[0]
                rows = send_rows(target, name, queue.now, stage, order_by)
            except StaleAttributes:
                queue.renew()
                continue
            for shard in queue.shards:
                shard.wake()
            if rows and not queue.fifo:
                queue.shards[0].shared.sends.leave(first)
            call.messages = rows
            return rows


def last_version(queue: OpenQueue, app_id: str) -> int:
    """The largest version of an application id in the queue's shards, 0 if there is none."""
    with queue.service("last_version"):
        queue.reload()  # raises if the queue was deleted
        target = bulk_target(queue)
        return max(target.open(shard).transaction(app_id) or 0 for shard in target.shards)


def complete_bulk_sends(queue: OpenQueue) -> None:
    """Completes bulk sends that reached only some shards because their process was killed."""
    target = bulk_target(queue)
    for manifest in commit_files.abandoned(target):
        commit_files.complete(target, manifest, queue.now)
        for shard in manifest.shards:
            queue.shards[shard].wake()


def sweep_manifests(queue: OpenQueue) -> dict[int, list[str]]:
    """Removes manifests of complete or abandoned bulk sends; returns the files of the others by shard."""
    return commit_files.sweep_manifests(bulk_target(queue))


def bulk_target(queue: OpenQueue) -> commit_files.Target:
    """The queue as bulk sends see it, with its attributes as last read."""
    version, attributes = queue.row.attributes_version, queue.attributes  # in this order, see OpenQueue.adopt
    return commit_files.Target(
        queue.root.engine,
        queue.root.path,
        queue.key,
        [shard.shard for shard in in_turn(queue)],
        attributes,
        version,
        lambda shard: queue.shards[shard].room(attributes, queue.now()),
        lambda shard: queue.shards[shard].holding_sends(),
        lambda shard: queue.shards[shard].purged_offset(),
        calls.committed,
    )
