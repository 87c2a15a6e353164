"""Sends the rows of a DataFrame, and completes interrupted bulk sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakequeue.operations.send import in_turn
from lakequeue.runtime import calls
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import commit_files
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.bulk.send import send_frame
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.layout import stream_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def send_dataframe(queue: OpenQueue, df: DataFrame, send_id: str | None, order_by: str | None) -> int:
    """Sends every row of a DataFrame as a message; returns how many."""
    spark = queue.root.require_spark("send_dataframe")
    return bulk_send(queue, spark, df, None if send_id is None else SendKey.of_send(send_id), order_by)


def bulk_send(
    queue: OpenQueue, spark: SparkSession, df: DataFrame, name: SendKey | None, order_by: str | None
) -> int:
    """Sends the rows of a DataFrame under a name; returns how many, 0 if the name was sent before."""
    with queue.service("send_dataframe") as call:
        while True:
            try:
                rows = send_frame(_target(queue), spark, df, name, queue.now, order_by)
            except StaleAttributes:
                queue.renew()
                continue
            for shard in queue.shards:
                shard.wake()
            call.messages = rows
            return rows


def batches_of(queue: OpenQueue, stream: str) -> int:
    """Number of micro-batches of a stream in the queue, without empty ones at the end."""
    with queue.service("batches_of"):
        queue.reload()  # raises if the queue was deleted
        target = _target(queue)
        return max(target.open(shard).transaction(stream_id(stream)) or 0 for shard in target.shards)


def complete_bulk_sends(queue: OpenQueue) -> None:
    """Completes bulk sends that reached only some shards because their process was killed."""
    target = _target(queue)
    for manifest in commit_files.abandoned(target):
        commit_files.complete(target, manifest, queue.now)
        for shard in manifest.shards:
            queue.shards[shard].wake()


def sweep_manifests(queue: OpenQueue) -> dict[int, list[str]]:
    """Removes manifests of complete or abandoned bulk sends; returns the files of the others by shard."""
    return commit_files.sweep_manifests(_target(queue))


def _target(queue: OpenQueue) -> commit_files.Target:
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
