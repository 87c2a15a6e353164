"""Structured Streaming queries that send to a queue, exactly once, and that receive from one, at least once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from lakequeue.errors import InvalidOptions, InvalidParameterValue, LakeQueueError, QueueServiceError
from lakequeue.model.attributes import check_visibility_timeout
from lakequeue.model.clock import Duration
from lakequeue.operations import send_dataframe
from lakequeue.spark import checkpoint as checkpoints
from lakequeue.storage.bulk import commit_files
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.engines.commit import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from lakequeue.lease import Lease
    from lakequeue.queue import Queue
    from lakequeue.renewal.policies import Renewal
    from lakequeue.shard import LeaseCounts

_log = logging.getLogger("lakequeue")

AVAILABLE_NOW = "availableNow"
"""Trigger of a query that works off what is there and ends."""


def stream_to_queue(
    df: DataFrame, q: Queue, checkpoint: str, trigger: str | None = None, order_by: str | None = None
) -> StreamingQuery:
    """Starts a query that sends every row of a stream as a message, exactly once.

    A micro-batch is one commit, which also carries its number. So when Spark repeats a batch, after a crash
    for example, nothing is sent twice, for good; and a batch whose files had been written is sent from these
    files, not evaluated again.

    Args:
        df: a stream with the columns of ``Queue.send_dataframe``.
        q: the queue.
        checkpoint: directory of the query's progress, for this stream and this queue only. Without it,
            a stream starts over and sends everything again.
        trigger: time between the starts of two batches, as ``"5 seconds"``; None: as soon as there are rows;
            ``"availableNow"``: sends what is there and ends.
        order_by: see ``Queue.send_dataframe``.

    Returns:
        The running query. A row that breaks a rule ends it, with nothing of its batch sent; the error is the
        ``__cause__`` of what ``awaitTermination`` raises. ``observedMetrics["lakequeue"]`` of a progress has
        ``messages``, the number of those that the batch added.

    Raises:
        InvalidParameterValue: ``df`` is no stream, or its columns cannot be sent.
        InvalidOptions: the trigger is none, or the checkpoint is another stream's.
        QueueDoesNotExist: the queue was deleted.
    """
    if not df.isStreaming:
        raise InvalidParameterValue("The DataFrame is not a stream; send_dataframe sends it.")
    commit_files.check(q.runtime.attributes, df, order_by)
    writer = _with_trigger(df.writeStream, trigger, [])
    place = checkpoints.claim(df.sparkSession, checkpoint, q, "stream_to_queue")
    if send_dataframe.batches_of(q.runtime, place.stream) > place.last_batch + 1:
        # else it would number batches that the queue takes for repeated ones, and lose them
        raise InvalidOptions([f"checkpoint {checkpoint} was reset behind what {q.name} has of it; use a new one"])

    def send(rows: DataFrame, batch: int) -> dict[str, int]:
        name = SendKey.of_batch(place.stream, batch)
        return {"messages": send_dataframe.bulk_send(q.runtime, rows.sparkSession, rows, name, order_by)}

    return _start(writer, send, q, checkpoint, place.stream)


def stream_from_queue(
    q: Queue,
    handle_batch: Callable[[DataFrame, int], Any],
    checkpoint: str,
    trigger: str | None = "5 seconds",
    max_messages: int = 100_000,
    visibility_timeout: Duration | None = None,
    renewal: Renewal | None = None,
) -> StreamingQuery:
    """Starts a query that hands the queue's messages to a function, at least once.

    Each trigger makes one lease of at most ``max_messages``; after a full one the rest waits for the next trigger,
    which comes at once if the batch took longer than the interval. When ``handle_batch`` returns, the messages are
    deleted. When it raises, they are visible again at once and the query ends; when the process dies, they are
    once their visibility timeout is over. A batch that was begun before the query was restarted is not repeated
    under its number: its messages come with the next leases, so no number is ever used for two of them.

    Args:
        q: the queue; its root was opened with a Spark session.
        handle_batch: called with ``Lease.messages`` and the number of the batch, in the driver, only if there
            are messages. A message may come again, also one that was worked on: ``message_id`` tells.
        checkpoint: directory of the query's progress, for this queue only.
        trigger: time between the starts of two batches; None: one after another; ``"availableNow"``: one
            lease of what is there, then the query ends.
        max_messages: most messages in a batch.
        visibility_timeout: how long a batch may take; None: the renewal's, else the queue's visibility timeout.
        renewal: extends the lease while the function works, see ``Lease.keep_alive``; None: nothing does.

    Returns:
        The running query. ``observedMetrics["lakequeue"]`` of a progress has ``messages``, those of the batch,
        ``deleted``, and ``lost``, those that came free again because the batch took too long.
        What ended the query, as LeaseLost if all were lost or QueueDoesNotExist, is the ``__cause__`` of what
        ``awaitTermination`` raises.

    Raises:
        InvalidOptions: options are out of range, all are named; or the checkpoint is another stream's.
        QueueDoesNotExist: the queue was deleted.
        QueueClientError: no Spark session.
    """
    problems = []
    if not callable(handle_batch):
        problems.append(f"handle_batch {handle_batch!r}: not a function of messages and batch number")
    if isinstance(max_messages, bool) or not isinstance(max_messages, int) or max_messages < 1:
        problems.append(f"max_messages {max_messages}: must be a whole number of at least 1")
    if visibility_timeout is None and renewal is not None:
        visibility_timeout = renewal.receive_timeout
    if visibility_timeout is not None:
        try:
            check_visibility_timeout(q.runtime.attributes, visibility_timeout)
        except QueueServiceError as error:
            problems.append(f"visibility_timeout {visibility_timeout}: {error.message}")
    spark = q.runtime.root.require_spark("stream_from_queue")
    # the source only beats: a row a micro-batch, from the first on, whatever the time is
    beat = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = _with_trigger(beat.writeStream, trigger, problems)
    q.tags()  # raises if the queue was deleted
    place = checkpoints.claim(spark, checkpoint, q, "stream_from_queue")

    def receive(_: DataFrame, batch: int) -> dict[str, int]:
        lease = None
        if batch > place.last_batch:
            lease = q.lease(max_messages, visibility_timeout)
        if lease is None:
            return {"messages": 0, "deleted": 0, "lost": 0}
        counts = work_off(lease, lambda messages: handle_batch(messages, batch), renewal)
        return {"messages": lease.message_count, "deleted": counts.done, "lost": counts.lost}

    return _start(writer, receive, q, checkpoint, place.stream)


def work_off(lease: Lease, handle: Callable[[DataFrame], Any], renewal: Renewal | None = None) -> LeaseCounts:
    """Deletes a lease's messages once a function has returned; hands them back if it raises.

    A renewal keeps the lease meanwhile.

    Raises:
        LeaseLost: the function took too long, and nothing of the lease was left to delete.
    """
    try:
        with nullcontext() if renewal is None else lease.keep_alive(renewal):
            handle(lease.messages)
    except BaseException:
        try:
            lease.release()
        except LakeQueueError as error:  # then their visibility timeout ends
            _log.warning("%d messages were not handed back: %s", lease.message_count, first_line(error))
        raise
    counts = lease.delete()
    if counts.lost:
        _log.warning("%d of %d messages were lost to a timeout; they come again", counts.lost, lease.message_count)
    return counts


def _with_trigger(writer: DataStreamWriter, trigger: str | None, problems: list[str]) -> DataStreamWriter:
    """The writer with its trigger; raises InvalidOptions if that is none, or if there are problems already."""
    from pyspark.errors import PySparkException

    try:
        if trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
    except PySparkException:
        problems = [*problems, f'trigger {trigger!r}: not an interval as "5 seconds", and not "{AVAILABLE_NOW}"']
    if problems:
        raise InvalidOptions(problems)
    return writer


def _start(
    writer: DataStreamWriter,
    work: Callable[[DataFrame, int], dict[str, int]],
    q: Queue,
    checkpoint: str,
    stream: str,
) -> StreamingQuery:
    from lakequeue.spark.query import Batches, QueueStream

    batches = Batches(work)
    named = writer.foreachBatch(batches).queryName(f"lakequeue {q.name} {stream[:8]}")
    return QueueStream(named.option("checkpointLocation", checkpoint).start(), batches)
