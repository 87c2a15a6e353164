"""Spark streams to a queue and from a queue.

Streams to a queue send exactly once. Streams from a queue pass messages at least once, or exactly once into the
queue's delivery table.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import attrs

from lakequeue import LeaseCounts, errors, frame_verbs
from lakequeue.entry_verbs import settings
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.causes import cause_of
from lakequeue.model.clock import MICROS, Duration
from lakequeue.spark import faults
from lakequeue.spark.options import SourceOptions, Use
from lakequeue.spark.session import register
from lakequeue.spark.source_schema import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from lakequeue import Lease, Queue, Renewal

_log = logging.getLogger("lakequeue")

_LATE = "Python worker failed to connect back"
_STARTS = 6
_POLL = 0.05
_WRONG_RESULT = (TypeError, errors.InvalidParameterValue, errors.ReceiptHandleIsInvalid)
AVAILABLE_NOW = "availableNow"
"""Trigger of a query that processes all available rows and then ends."""


def stream_to_queue(
    df: DataFrame,
    q: Queue,
    checkpoint: str,
    trigger: str | None = None,
    order_by: str | None = None,
    on_bad_row: frame_verbs.OnBadRow = "fail",
    bad_rows: str | None = None,
) -> StreamingQuery:
    """Starts a query that sends every row of a stream as a message, exactly once.

    The query is ``df.writeStream.format("lakequeue")`` with the options of the queue. A micro-batch is one commit
    per shard. The commit records the number of the batch, so that a repeated batch sends nothing.

    Args:
        df: a stream with the columns of ``Queue.send_dataframe``.
        q: the queue.
        checkpoint: directory for the progress of this stream. A new directory sends everything again.
        trigger: interval between the starts of two batches, such as ``"5 seconds"``; None to start as soon as
            there are rows; ``"availableNow"`` to send all available rows, then end.
        order_by: see ``Queue.send_dataframe``.
        on_bad_row: treatment of a row that breaks a rule: ``"fail"`` ends the query, and no row of that batch is
            sent; ``"drop"`` loses the row, and logs how many rows were lost; ``"divert"`` adds the row to
            ``bad_rows``.
        bad_rows: path or URI of a Delta table outside the root, created if it is missing, with the columns that
            can be sent, ``queue``, ``refused_at`` and ``reason``. The root's storage options open this table.

    Returns:
        The running query, whose sources have started. ``awaitTermination`` raises the error that ended it.

    Raises:
        InvalidParameterValue: ``df`` is not a stream, or its columns cannot be sent.
        InvalidOptions: the trigger or the table of bad rows is invalid; names all invalid options.
        QueueDoesNotExist: the queue was deleted.
        QueueClientError: the queue has a clock of its own.
    """
    if not df.isStreaming:
        raise errors.InvalidParameterValue("The DataFrame is not a stream; send_dataframe sends it.")
    df, order_by = frame_verbs.respelled(df, order_by)
    spark = df.sparkSession
    bad_rows = bad_rows and frame_verbs.root_of(bad_rows)
    row_options = {"orderBy": order_by, "onBadRow": on_bad_row, "badRows": bad_rows}
    options = SourceOptions.of(q).spelled() | {
        name: value for name, value in row_options.items() if value is not None
    }
    more = SourceOptions.parse(options, Use.STREAM_WRITE)
    columns = frame_verbs.columns_of(df.schema)
    frame_verbs.plan_send(q, columns, order_by, None, more.on_bad_row, more.bad_rows)
    problems = _trigger_problems(spark, trigger)
    if problems:
        raise errors.InvalidOptions(problems)
    frame_verbs.allow(q, spark)  # For a checkpoint below the queue.
    register(spark)
    writer = df.writeStream.format("lakequeue").options(**options)
    return _start(writer, q, trigger, checkpoint)


def stream_from_queue(
    q: Queue,
    handle_batch: Callable[[DataFrame, int], Any],
    checkpoint: str,
    trigger: str | None = "5 seconds",
    max_messages: int = 100_000,
    visibility_timeout: Duration | None = None,
    renewal: Renewal | None = None,
    report: Callable[[int, LeaseCounts], Any] | None = None,
) -> StreamingQuery:
    """Starts a query that passes the messages of a queue to a function, at least once.

    The query is ``spark.readStream.format("lakequeue")`` with ``foreachBatch``. A micro-batch is a lease of at
    most ``max_messages``. When ``handle_batch`` returns, the messages are deleted. Failed messages that
    ``handle_batch`` returns become visible instead. When ``handle_batch`` raises an error, all messages become
    visible and come in batches half as large, until the faulty message is alone. Then the query ends (DLQ-12). An
    error of analysis, parsing or types ends the query at once. When the process dies, the messages become visible
    after their visibility timeout. If the query is started again on the checkpoint, it repeats the batch with the
    messages that the batch's lease still holds.

    Args:
        q: the queue; its root was opened with a Spark session.
        handle_batch: called in the driver, or on the server of Spark Connect, with the columns of
            ``Lease.messages`` and the number of the batch. A message may come again; ``message_id`` identifies it.
            Returns the failed messages, optionally with reasons, as for ``Lease.delete_except``, or None. If the
            queue has a delivery table, ``handle_batch`` returns the rows to append as for ``Lease.append``, or a
            pair of rows and failed messages; None to only delete the messages (TAB-31).
        checkpoint: directory for the progress of this stream from this queue.
        trigger: interval between the starts of two batches; None for no pause; ``"availableNow"`` to end the query
            after the messages that are visible now. Before Spark 4.2, that is one batch of these messages.
        max_messages: maximum number of messages in a batch.
        visibility_timeout: how long a batch may take; None for the timeout of the renewal, else of the queue.
        renewal: extends the lease while the function runs, see ``Lease.keep_alive``; None for no extension.
        report: called after each batch with its number, and numbers of messages that were done, lost and released.

    Returns:
        The running query, whose source has started. ``awaitTermination`` raises the error that ended it, such as
        QueueDoesNotExist, or LeaseLost if a batch took too long.

    Raises:
        InvalidOptions: options are out of range. The error names all of them.
        QueueDoesNotExist: the queue was deleted.
        QueueClientError: the root has no Spark session, or a clock of its own.
    """
    problems = []
    if report is not None and not callable(report):
        problems.append(f"report {report!r}: not a function of batch number and counts")
    if not callable(handle_batch):
        problems.append(f"handle_batch {handle_batch!r}: not a function of messages and batch number")
    if isinstance(max_messages, bool) or not isinstance(max_messages, int) or max_messages < 1:
        problems.append(f"max_messages {max_messages}: must be a whole number of at least 1")
    # The function's own process extends the lease.
    delivers = settings(q).table is not None
    lease_options = {"maxMessages": str(max_messages), "leaseSeconds": "0", "delivers": str(delivers).lower()}
    if visibility_timeout is None and renewal is not None:
        visibility_timeout = renewal.receive_timeout
    if visibility_timeout is not None:
        try:
            micros = check_visibility_timeout(settings(q), visibility_timeout)
            lease_options["visibilityTimeout"] = str(micros / MICROS)
        except errors.QueueServiceError as error:
            problems.append(f"visibility_timeout {visibility_timeout}: {error.message}")
    spark = frame_verbs.require_spark(q, "stream_from_queue")
    place = SourceOptions.of(q)
    problems += _trigger_problems(spark, trigger)
    if problems:
        raise errors.InvalidOptions(problems)
    q.tags()  # Raises an error if the queue was deleted.
    frame_verbs.decide_in_catalog(q)
    register(spark)
    reader = spark.readStream.format("lakequeue").options(**place.spelled(), **lease_options)
    rows = reader.schema(schema(frame_verbs.LEASE_COLUMNS)).load()
    batches = _Batches(place, handle_batch, renewal, report, delivers)
    return _start(rows.writeStream.foreachBatch(batches), q, trigger, checkpoint)


@attrs.define
class _Batches:
    """The function that ``foreachBatch`` calls, as an object that Spark Connect can send to its server."""

    place: SourceOptions
    handle: Callable[[DataFrame, int], Any]
    renewal: Renewal | None
    report: Callable[[int, LeaseCounts], Any] | None = None
    delivers: bool = False
    _queue: Queue | None = attrs.field(default=None, init=False)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        last = rows.select("receipt_handle").tail(1)  # The last task; see lease_tasks.
        if not last:  # No message of the repeated batch is left.
            return
        if self._queue is None:
            self._queue = self.place.open_queue(rows.sparkSession)
        frame_verbs.decide_in_catalog(self._queue)
        lease = frame_verbs.lease_of_handle(self._queue, last[0].receipt_handle)
        if lease is None:
            _log.warning("batch %d was lost to a timeout before it began; it will be received again", batch)
            return
        counts = process_lease(lease, lambda: self.handle(rows, batch), self.renewal, self.delivers)
        _log.info("batch %d: messages %d, %s", batch, lease.message_count, counts)
        if self.report is not None:
            self.report(batch, counts)


def process_lease(
    lease: Lease, work: Callable[[], Any], renewal: Renewal | None = None, delivers: bool = False
) -> LeaseCounts:
    """Calls ``work`` on the messages of a lease. Then deletes the messages, except failed messages that ``work``
    returns.

    With ``delivers``, ``work`` returns rows for the delivery table, or a pair of rows and failed messages. The
    work also fails if the table refuses the rows. After a failure, all messages become visible. They come again in
    two halves if the error may depend on the messages. If the error is in the program, so that any messages would
    cause it, the receive is not counted. ``renewal`` extends the lease while ``work`` runs.

    Raises:
        LeaseLost: the work took too long, and the lease ended for all messages.
        InvalidParameterValue, ReceiptHandleIsInvalid: the result does not name messages of the lease.
        Exception: the error of ``work``, if the lease had a single message, or if the error does not depend on the
            messages, such as an error of analysis, parsing or return types.
    """
    count = lease.message_count
    returned = of_program = False
    try:
        with nullcontext() if renewal is None else lease.keep_alive(renewal):
            result = work()
            returned = True
            rows, named = (None, result) if not delivers else result if _is_pair(result) else (result, None)
            failed = {} if named is None else frame_verbs.failed_of(named)
            if delivers:
                return _logged(count, frame_verbs.deliver(lease, rows, failed))
    except BaseException as error:
        of_program = faults.of_program(error) or (returned and isinstance(error, _WRONG_RESULT))
        of_messages = isinstance(error, Exception) and not isinstance(error, faults.NOT_OF_MESSAGES)
        of_messages = of_messages and not of_program and not faults.was_stopped(error)
        try:
            released = frame_verbs.release_failed(lease, error if of_messages else None, unseen=of_program)
        except errors.LakeQueueError as refused:  # The messages become visible after their timeout.
            _log.warning("%d messages were not released: %s", count, frame_verbs.first_line(refused))
            raise error from None
        if count == 1 or not of_messages:
            raise
        reason = ": ".join(cause_of(error)).splitlines()[0]
        _log.warning("a batch of %d messages failed, and comes again in halves: %s", count, reason)
        return LeaseCounts(0, released.lost, released.done)
    try:
        counts = lease.delete_except(failed) if failed else lease.delete()
    except _WRONG_RESULT:  # For handles or ids that the lease does not have.
        lease.release()
        raise
    return _logged(count, counts)


def _is_pair(result: object) -> bool:
    return isinstance(result, tuple) and len(result) == 2


def _logged(count: int, counts: LeaseCounts) -> LeaseCounts:
    if counts.released:
        _log.warning("%d of %d messages failed; they will be received again", counts.released, count)
    if counts.lost:
        _log.warning("%d of %d messages were lost to a timeout; they will be received again", counts.lost, count)
    return counts


def _trigger_problems(spark: SparkSession, trigger: str | None) -> list[str]:
    """Returns a list with the problem of an invalid trigger; an empty list if the trigger is valid. Checked here
    because a remote session would report the problem only after the start.
    """
    from pyspark.errors import PySparkException

    if trigger in (None, AVAILABLE_NOW):
        return []
    with suppress(PySparkException):
        if isinstance(trigger, str) and re.fullmatch(r"[\w\s.+-]+", trigger):
            # Only parses, because a job would take a second of a new session.
            spark.sql(f"SELECT INTERVAL '{trigger}'")
            return []
    return [f'trigger {trigger!r}: not an interval such as "5 seconds", and not "{AVAILABLE_NOW}"']


def _start(writer: DataStreamWriter, q: Queue, trigger: str | None, checkpoint: str) -> StreamingQuery:
    if trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    elif trigger is not None:
        writer = writer.trigger(processingTime=trigger)
    writer = writer.option("checkpointLocation", checkpoint)
    return started(lambda: writer.queryName(f"lakequeue {q.name} {uuid.uuid4().hex[:8]}").start())


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Starts a query, and returns it when its sources run. Tries slow starts again, up to ``_STARTS`` tries."""
    from pyspark.errors import PySparkException, StreamingQueryException

    for left in reversed(range(_STARTS)):
        try:
            query = start()
            with suppress(StreamingQueryException):  # The query reports the error to the caller.
                while query.status["message"].startswith("Initializing") and not query.awaitTermination(_POLL):
                    pass
            error = query.exception()
        except PySparkException as failed:  # Spark Connect starts the process of foreachBatch in this call.
            if not left or _LATE not in str(failed):
                raise
            error = failed
        if error is None or not left or _LATE not in str(error):
            return query
        _log.warning("a stream starts again: a Python process of Spark did not connect in 10 s (busy machine?)")
    raise AssertionError("the last start returns or raises")
