"""Structured Streaming queries that send to a queue exactly once, or receive from it at least once.

They stay beside the data source, which needs lakequeue where tasks run, sorts rows of FIFO queues in the driver
and reports neither counts nor errors as objects. In its streams from a queue, a function that raises holds the
messages until their timeout (18 s of 20), and before Spark 4.2 the last batch is deleted at the next start only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from lakequeue.errors import InvalidOptions, InvalidParameterValue, LakeQueueError, QueueServiceError
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.clock import Duration
from lakequeue.operations import send_dataframe
from lakequeue.spark import checkpoint as checkpoints
from lakequeue.spark import remote
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.bulk.send import check_rows
from lakequeue.storage.bulk.write_files import columns_of
from lakequeue.storage.engines.spark_access import is_remote
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from lakequeue.lease import Lease
    from lakequeue.queue import Queue
    from lakequeue.renewal.policies import Renewal
    from lakequeue.shard.commands import LeaseCounts

_log = logging.getLogger("lakequeue")

AVAILABLE_NOW = "availableNow"
"""Trigger of a query that processes what is there, then ends."""


def stream_to_queue(
    df: DataFrame, q: Queue, checkpoint: str, trigger: str | None = None, order_by: str | None = None
) -> StreamingQuery:
    """Starts a query that sends every row of a stream as a message, exactly once.

    A micro-batch is one commit, which also records the number of the batch. So when Spark repeats a batch, for
    example after a crash, nothing is sent twice. A batch whose files were already written is sent from these files
    and not evaluated again.

    Args:
        df: a stream with the columns of ``Queue.send_dataframe``.
        q: the queue.
        checkpoint: directory for the progress of this stream to this queue. With a new directory, the stream
            starts over and sends everything again.
        trigger: interval between the starts of two batches, such as ``"5 seconds"``; None: as soon as there are
            rows; ``"availableNow"``: sends what is there, then ends.
        order_by: see ``Queue.send_dataframe``.

    Returns:
        The running query. A row that breaks a rule ends it, and no row of that batch is sent; the error is the
        ``__cause__`` of the exception from ``awaitTermination``. ``observedMetrics["lakequeue"]`` of a progress
        has ``messages``, the number of messages that the batch sent.

    Raises:
        InvalidParameterValue: ``df`` is no stream, or its columns cannot be sent.
        InvalidOptions: the trigger is invalid, or the checkpoint belongs to another stream.
        QueueDoesNotExist: the queue was deleted.
    """
    if not df.isStreaming:
        raise InvalidParameterValue("The DataFrame is not a stream; send_dataframe sends it.")
    check_rows(q._runtime.attributes, columns_of(df), order_by)
    writer = _with_trigger(df.writeStream, trigger, [], df.sparkSession)
    q._runtime.root.allow(df.sparkSession)
    place = checkpoints.claim(df.sparkSession, checkpoint, q, "stream_to_queue")
    if send_dataframe.batches_of(q._runtime, place.stream) > place.last_batch + 1:
        # the queue would take new batches for repeated ones and drop them
        raise InvalidOptions([f"checkpoint {checkpoint} was reset behind what {q.name} has of it; use a new one"])

    return _start(writer, partial(_send, place.stream, order_by), q, df.sparkSession, checkpoint, place.stream)


def stream_from_queue(
    q: Queue,
    handle_batch: Callable[[DataFrame, int], Any],
    checkpoint: str,
    trigger: str | None = "5 seconds",
    max_messages: int = 100_000,
    visibility_timeout: Duration | None = None,
    renewal: Renewal | None = None,
) -> StreamingQuery:
    """Starts a query that passes the messages of a queue to a function, at least once.

    Each trigger leases at most ``max_messages``; further messages wait for the next trigger, which comes at once
    if the batch took longer than the interval. When ``handle_batch`` returns, the messages are deleted. When it
    raises, they become visible again at once and the query ends. When the process dies, they become visible after
    their visibility timeout. A batch that was started before the query was restarted is not repeated under its
    number: its messages come with later leases, so each number stands for one lease.

    Args:
        q: the queue; its root was opened with a Spark session.
        handle_batch: called in the driver with ``Lease.messages`` and the number of the batch, if there are
            messages. A message may come again, even after it was processed; ``message_id`` identifies it.
        checkpoint: directory for the progress of this stream from this queue.
        trigger: interval between the starts of two batches; None: one after another; ``"availableNow"``: one lease
            of what is there, then the query ends.
        max_messages: maximum number of messages in a batch.
        visibility_timeout: how long a batch may take; None: as the renewal says, else the queue.
        renewal: extends the lease while the function runs, see ``Lease.keep_alive``; None: no extension.

    Returns:
        The running query. ``observedMetrics["lakequeue"]`` of a progress has ``messages``, the number in the
        batch, ``deleted``, and ``lost``, the number that became visible again because the batch took too long. The
        error that ended the query, such as QueueDoesNotExist, or LeaseLost if all messages were lost, is the
        ``__cause__`` of the exception from ``awaitTermination``.

    Raises:
        InvalidOptions: options are out of range (names all), or the checkpoint belongs to another stream.
        QueueDoesNotExist: the queue was deleted.
        QueueClientError: the root has no Spark session.
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
            check_visibility_timeout(q._runtime.attributes, visibility_timeout)
        except QueueServiceError as error:
            problems.append(f"visibility_timeout {visibility_timeout}: {error.message}")
    spark = q._runtime.root.require_spark("stream_from_queue")
    # the source is only a timer: one row per micro-batch, from the first one on
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = _with_trigger(ticks.writeStream, trigger, problems, spark)
    q.tags()  # raises if the queue was deleted
    place = checkpoints.claim(spark, checkpoint, q, "stream_from_queue")

    def receive(queue: Queue, _: DataFrame, batch: int) -> dict[str, int]:
        lease = None
        if batch > place.last_batch:
            lease = queue.lease(max_messages, visibility_timeout)
        if lease is None:
            return {"messages": 0, "deleted": 0, "lost": 0}
        counts = process_lease(lease, lambda messages: handle_batch(messages, batch), renewal)
        return {"messages": lease.message_count, "deleted": counts.done, "lost": counts.lost}

    return _start(writer, receive, q, spark, checkpoint, place.stream)


def _send(stream: str, order_by: str | None, queue: Queue, rows: DataFrame, batch: int) -> dict[str, int]:
    name = SendKey.of_batch(stream, batch)
    return {"messages": send_dataframe.bulk_send(queue._runtime, rows.sparkSession, rows, name, order_by)}


def process_lease(lease: Lease, handle: Callable[[DataFrame], Any], renewal: Renewal | None = None) -> LeaseCounts:
    """Calls a function with the messages of a lease; deletes them when it returns, releases them when it raises.

    A renewal extends the lease meanwhile.

    Raises:
        LeaseLost: the function took too long, and all messages were lost.
    """
    try:
        with nullcontext() if renewal is None else lease.keep_alive(renewal):
            handle(lease.messages)
    except BaseException:
        try:
            lease.release()
        except LakeQueueError as error:  # they become visible after their timeout
            _log.warning("%d messages were not released: %s", lease.message_count, first_line(error))
        raise
    counts = lease.delete()
    if counts.lost:
        _log.warning(
            "%d of %d messages were lost to a timeout; they will be received again",
            counts.lost,
            lease.message_count,
        )
    return counts


def _with_trigger(
    writer: DataStreamWriter, trigger: str | None, problems: list[str], spark: SparkSession
) -> DataStreamWriter:
    """Sets the trigger of a writer; raises InvalidOptions if it is invalid, or if there are problems already."""
    from pyspark.errors import PySparkException

    try:
        if trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            if is_remote(spark):
                remote.check_interval(spark, trigger)
            writer = writer.trigger(processingTime=trigger)
    except (PySparkException, ValueError):
        problems = [
            *problems,
            f'trigger {trigger!r}: not an interval such as "5 seconds", and not "{AVAILABLE_NOW}"',
        ]
    if problems:
        raise InvalidOptions(problems)
    return writer


def _start(
    writer: DataStreamWriter,
    work: Callable[[Queue, DataFrame, int], dict[str, int]],
    q: Queue,
    spark: SparkSession,
    checkpoint: str,
    stream: str,
) -> StreamingQuery:
    named = writer.queryName(f"lakequeue {q.name} {stream[:8]}")
    if is_remote(spark):
        named = named.foreachBatch(remote.RemoteBatches(remote.QueuePlace.of(q), work))
        return named.option("checkpointLocation", checkpoint).start()

    from lakequeue.spark.query import Batches, QueueStream

    batches = Batches(partial(work, q))
    return QueueStream(named.foreachBatch(batches).option("checkpointLocation", checkpoint).start(), batches)
