"""Common parts of the jobs for spark-submit: options, opening a queue, exit codes."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from lakequeue.cli.errors import reason_of, report_error
from lakequeue.cli.options import duration_option, flag, option
from lakequeue.cli.session import DONE, ENVIRONMENT, REFUSED, Session, usage
from lakequeue.cli.values import at_least, imported
from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import located_table, settings
from lakequeue.errors import InvalidOptions, MissingPackage, QueueClientError, QueueServiceError
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.causes import cause_of
from lakequeue.model.clock import MICROS
from lakequeue.renewal.policies import HeartbeatRenewal, Renewal

try:
    from lakequeue.spark import source_schema
    from lakequeue.spark.session import build_session
except MissingPackage as error:  # only scripts import this module, before anything else of Spark
    sys.exit(report_error(Session(), error))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from lakequeue import LeaseCounts
    from lakequeue.queue import Queue

Root = Annotated[str, option(..., "Directory or URI that holds the queues.", "DIR", envvar="LAKEQUEUE_ROOT")]
QueueName = Annotated[str, typer.Option(help="Name of the queue, which must exist.")]
Region = Annotated[str, typer.Option(help="Region of the queue.")]
Engine = Annotated[
    Literal["auto", "point", "spark"], typer.Option(help="auto, or spark to commit by Delta's MERGE INTO.")
]
Checkpoint = Annotated[
    str, typer.Option(help="Directory for the progress of this stream; not shared with other streams.")
]
Once = Annotated[bool, flag(..., "Process the present messages, then end.", "--once")]

Format = Annotated[str, typer.Option(help="Format of the source in Spark: text, json, csv, parquet, delta ...")]
Path = Annotated[str | None, typer.Option(help="Path of the source; some formats use options instead.")]
Schema = Annotated[str | None, typer.Option(help="Schema as DDL; required for streams of files other than text.")]
FormatOptions = Annotated[
    list[str] | None, option(..., "Option of the format; repeatable.", "NAME=VALUE", "--option")
]
Body = Annotated[str, typer.Option("--body-column", help="Column with the bodies; '*' sends each row as JSON.")]
Group = Annotated[str | None, typer.Option("--group-column", help="Column with the message groups.")]
Dedup = Annotated[str | None, typer.Option("--dedup-column", help="Column with deduplication ids (FIFO).")]
Delay = Annotated[str | None, typer.Option("--delay-column", help="Column with delays in seconds.")]
Priority = Annotated[str | None, typer.Option("--priority-column", help="Column with priorities.")]
OnBadRow = Annotated[
    Literal["fail", "drop", "divert"],
    typer.Option(help="How to treat a row that breaks a rule; divert adds it to --bad-rows."),
]
BadRows = Annotated[str | None, option(..., "Delta table for refused rows and the reasons.", "DIR")]
OrderBy = Annotated[str | None, typer.Option(help="Column that orders the messages of a group (FIFO).")]

Handler = Annotated[
    str | None, option(..., "Function from a DataFrame of messages to a DataFrame of results.", "PACKAGE:FUNCTION")
]
Table = Annotated[
    str | None,
    typer.Option(
        help="Delta table for the results, or for the messages without a handler: path, URI or name in a catalog. "
        "A queue without a table gets this one.",
    ),
]
MaxMessages = Annotated[int, typer.Option(min=1, help="Maximum number of messages in a batch.")]
Visibility = Annotated[
    float | None,
    duration_option(
        ...,
        "Timeout of the messages of a batch, which is extended while the batch runs; the queue's if not given.",
        "--visibility-timeout",
    ),
]
GiveUp = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="ROUNDS",
        help="End with exit code 1 after this many batches in a row that finish no message; by default 3, never "
        "with a dead-letter queue.",
    ),
]


Every = Annotated[
    float | None, duration_option(..., "Time between the starts of two batches.", parser=at_least(0))
]


_RAISED = re.compile(r'^  File "([^"]+)", line (\d+).*\n(?:    .*\n)*[A-Za-z_][\w.]*(?::|$)', re.MULTILINE)


def run(main: Callable[..., None]) -> NoReturn:
    """Runs the function of a job. Reports errors and exits as the command ``lakequeue`` does."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(epilog="Exit codes: 0 done, 1 refused by the service, 2 usage, 3 storage or environment.")(main)
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt as error:
        status = report_error(Session(), error)
    except Exception as error:
        status = _report_error(error)
    sys.exit(status if isinstance(status, int) else DONE)


@contextmanager
def opened(
    app_name: str, root: str, queue: str, region: str = "local", engine: Engine = "auto"
) -> Iterator[tuple[SparkSession, Queue]]:
    """Opens a Spark session and a queue. Prints a note if the queue is paused."""
    with opened_root(app_name, root, queue, region, engine) as (spark, lake):
        opened_queue = lake.queue(queue)
        Session().note_pauses(opened_queue)
        yield spark, opened_queue


@contextmanager
def opened_root(
    app_name: str, root: str, queue: str | None, region: str, engine: Engine
) -> Iterator[tuple[SparkSession, LakeQueue]]:
    """Opens a Spark session and a root. Raises QueueDoesNotExist for a missing ``queue``, except on ``spark``."""
    if engine != "spark":  # reports a wrong root before Spark starts
        lake = LakeQueue(root, region=region)
        lake.list_queues(limit=1) if queue is None else lake.queue(queue)
    from pyspark import SparkContext

    running = SparkContext._active_spark_context is not None
    spark = build_session(app_name, root=root)
    if not running:  # errors are exceptions, too, and the job prints these as one line
        spark.sparkContext.setLogLevel("OFF")
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        yield spark, LakeQueue(root, spark=spark, region=region, engine=engine)
    finally:
        if not running:
            spark.stop()


def wait(query: StreamingQuery, report: Callable[[StreamingQuery], None] = lambda query: None) -> bool:
    """Waits for a query's end, and calls ``report`` each second. Returns False if a signal stopped the query."""
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    while not stopped.is_set():
        try:
            if query.awaitTermination(1):
                return True
        finally:
            report(query)
    query.stop()
    return False


class BatchLines:
    """Prints a line for each batch of a streaming query that has read rows."""

    def __init__(self) -> None:
        self._next = 0

    def report(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            batch, rows = progress["batchId"], progress["numInputRows"]
            if rows and batch >= self._next:  # an idle query reports its next batch without rows
                print(f"batch {batch}: {rows:,} rows read", flush=True)
                self._next = batch + 1


def renewal(queue: Queue, timeout: float | None) -> Renewal | None:
    """Returns a policy that extends a lease at half of its timeout, or None for a timeout of 0 seconds."""
    own = settings(queue)
    micros = own.visibility_timeout_micros if timeout is None else check_visibility_timeout(own, timeout)
    seconds = micros / MICROS
    return HeartbeatRenewal(seconds, seconds / 2, min(1, seconds / 4)) if micros else None


class Progress:
    """Ends a job after rounds without progress: no message is done, and batches do not get smaller."""

    def __init__(self, queue: Queue, give_up_after: int | None) -> None:
        self._most = give_up_after or (math.inf if queue.dead_letter_queue else 3)
        self._rounds = 0
        self._smallest = math.inf
        self.batches = self.done = 0

    def add(self, counts: LeaseCounts) -> None:
        self.batches += 1
        self.done += counts.done
        size = counts.lost + counts.released
        if counts.done or size < self._smallest:
            self._rounds, self._smallest = 0, math.inf if counts.done else size
        else:
            self._rounds += 1

    def check(self) -> None:
        if self._rounds >= self._most:
            failed = f"the last {self._rounds + 1} batches finished none of {self._smallest:,} messages"
            raise typer.Exit(Session().fail(REFUSED, "no progress", f"{failed}; {self.done:,} are done"))


def delivers(root: str, queue: str, region: str, table: str | None, handler: str | None) -> bool:
    """Returns True if the queue has a delivery table, or gets one from ``--table``. Usage errors end the job."""
    opened_queue = LakeQueue(root, region=region).queue(queue)
    own, wanted = settings(opened_queue).table, table and located_table(opened_queue, table)
    if own is None and wanted is not None:
        opened_queue.set_attributes(table=wanted)
    elif wanted not in (None, own):
        usage(f"--table {wanted}: {queue} delivers into {own}; `lakequeue set` changes that")
    if own is None and wanted is None and handler is None:
        usage("give --handler, --table, or both")
    return own is not None or wanted is not None


def trigger(once: bool, every: float | None) -> str | None:
    """Returns the trigger for ``--once`` and ``--every``."""
    if once:
        return "availableNow"
    return None if every is None else f"{round(every * 1000)} milliseconds"


def function(spec: str | None) -> Callable[[Any], Any] | None:
    """Imports the function of ``--handler``, also from the working directory."""
    if spec is None:
        return None
    return imported(spec, f"--handler {spec}")


def _report_error(error: BaseException) -> int:
    """Prints the error that ended a job. Returns the exit code."""
    from py4j.protocol import Py4JJavaError
    from pyspark import errors

    if isinstance(error, errors.PySparkException) and (ours := source_schema.error_in(str(error))) is not None:
        return report_error(Session(), ours)  # an error of the data source, from a Spark worker
    if isinstance(error, errors.StreamingQueryException) and (raised := _RAISED.findall(str(error))):
        path, line = raised[-1]  # the line in the handler
        kind, text = cause_of(error)
        message = text.strip().partition("\n")[0]
        return Session().fail(ENVIRONMENT, kind, f"{message} ({os.path.basename(path)}, line {line})")
    usage = isinstance(error, errors.IllegalArgumentException) and not isinstance(
        error, errors.NumberFormatException
    )
    if usage or isinstance(error, errors.AnalysisException):
        return report_error(Session(), InvalidOptions([reason_of(error)]))
    if isinstance(error, (errors.PySparkException, Py4JJavaError)):
        return report_error(Session(), QueueClientError(reason_of(error)))
    known = (QueueServiceError, QueueClientError, InvalidOptions, OSError, typer.Abort)
    if isinstance(error, known) or hasattr(error, "format_message"):
        return report_error(Session(), error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}, line {last.lineno}"
    return Session().fail(ENVIRONMENT, type(error).__name__, f"{error} ({place})")
