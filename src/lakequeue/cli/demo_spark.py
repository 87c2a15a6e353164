"""The demo with Spark. Leases batches and writes results to a Delta table. One batch loses its worker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lakequeue.cli.demo_files import QUEUE, fresh_queue, measure
from lakequeue.cli.render import table
from lakequeue.client import LakeQueue
from lakequeue.errors import LeaseLost
from lakequeue.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console, RenderableType

    from lakequeue.lease import Lease
    from lakequeue.queue import Queue

BATCHES = 5
"""Number of batches that are needed to process each message once. A released message is in a later batch, too."""
LEASE_SECONDS = 120
LOST_BATCH, LOST_SECONDS = 2, 12
"""Number of the batch whose worker is lost, and the batch's visibility timeout in seconds."""

_OUTCOME = "struct<path:string, failed:boolean, lines:bigint, functions:bigint, classes:bigint, problem:string>"

_STATES_SQL = """
SELECT state, count(*) AS messages, count(DISTINCT group_id) AS packages, max(receive_count) AS received
FROM messages WHERE queue = 'lakequeue-demo' GROUP BY state ORDER BY state
"""
_RESULTS_SQL = """
SELECT m.state, count(*) AS messages, sum(r.receive_count) AS receives, sum(r.lines) AS lines
FROM messages m JOIN demo_results r ON m.message_id = r.message_id
WHERE m.queue = 'lakequeue-demo' GROUP BY m.state ORDER BY m.state
"""


@attrs.define
class _BatchTally:
    batches: int = 0
    done: int = 0
    failed: int = 0
    left_to_expire: int = 0


def process(root: str, entries: Sequence[tuple[str, str]], console: Console) -> int:
    """Processes entries in Spark, with results in ``ROOT-demo-results``. Returns 0 if all are done, else 3."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession() is not None
    with console.status("Starting Spark ..."):
        spark = build_session("lakequeue demo")
    try:
        return _demo(root, entries, spark, console)
    finally:
        if not running:
            spark.stop()


def _demo(root: str, entries: Sequence[tuple[str, str]], spark: SparkSession, console: Console) -> int:
    lake = LakeQueue(root, spark=spark)
    begun = lake.clock.now()
    results = f"{lake.root}-demo-results"
    queue = fresh_queue(lake, QUEUE)
    with console.status("Sending ..."):
        sent = queue.send_dataframe(spark.createDataFrame(list(entries), "body STRING, group_id STRING"))
    console.print(f"Sent: {sent:,} messages in one commit, {(lake.clock.now() - begun).total_seconds():.1f} s")
    tally = _consume(lake, queue, spark, results, sent, console)
    console.print()
    complete = _summarise(lake, queue, spark, results, sent, tally, console)
    console.print(f"Root: {lake.root}\nResults: {results}", highlight=False, soft_wrap=True)
    return 0 if complete else 3


def _consume(
    lake: LakeQueue, queue: Queue, spark: SparkSession, results: str, sent: int, console: Console
) -> _BatchTally:
    tally = _BatchTally()
    size = -(-sent // BATCHES)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Processing", total=sent)
        while True:
            loses_worker = tally.batches + 1 == LOST_BATCH
            lease = queue.lease(size, LOST_SECONDS if loses_worker else LEASE_SECONDS)
            if lease is None:
                counts = queue.counts()
                if not (counts.visible or counts.in_flight or counts.delayed):
                    return tally
                progress.update(task, description="Waiting for the lost batch")
                lake.clock.wait(lake.clock.now() + timedelta(seconds=0.25), threading.Event())
                continue
            tally.batches += 1
            said = f"Batch {tally.batches}: {lease.message_count:,} messages leased"
            progress.update(task, description=f"Processing batch {tally.batches}")
            if loses_worker:
                tally.left_to_expire = lease.message_count
                console.print(f"{said}; its worker is lost, they come back after {LOST_SECONDS} s")
                console.print(_answer(lake, spark, "Spark SQL, now", _STATES_SQL))
                continue
            done, failed = _process(lease, spark, results, tally.done == 0)
            tally.done += done
            tally.failed += failed
            progress.update(task, completed=min(tally.done, sent))
            console.print(f"{said}, {done:,} done" + (f", {failed:,} failed and handed back" if failed else ""))


def _process(lease: Lease, spark: SparkSession, results: str, first: bool) -> tuple[int, int]:
    """Parses, stores and then settles a batch. Returns the numbers of processed and failed messages."""
    from pyspark.sql import functions as F

    # without Arrow, for which Spark requires pandas
    measured = F.udf(measure, _OUTCOME, useArrow=False)("body", "receive_count")
    spread = lease.messages.repartition(spark.sparkContext.defaultParallelism)
    outcomes = spread.select("message_id", "receipt_handle", "receive_count", measured.alias("file"))
    outcomes = outcomes.select("message_id", "receipt_handle", "receive_count", "file.*").cache()
    try:
        kept = outcomes.where("NOT failed").drop("receipt_handle", "failed")
        if first:
            kept.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(results)
        else:
            kept.write.format("delta").mode("append").save(results)
        settled = lease.delete_except(outcomes.where("failed"))
    except LeaseLost:  # the batch took longer than its lease: the next one repeats it
        return 0, lease.message_count
    finally:
        outcomes.unpersist()
    return settled.done, settled.released + settled.lost


def _summarise(
    lake: LakeQueue,
    queue: Queue,
    spark: SparkSession,
    results: str,
    sent: int,
    tally: _BatchTally,
    console: Console,
) -> bool:
    modules = spark.read.format("delta").load(results).dropDuplicates(["message_id"]).cache()
    modules.createOrReplaceTempView("demo_results")
    total = modules.selectExpr(
        "count(*) AS `messages with a result`",
        "sum(receive_count) AS receives",
        "count_if(receive_count > 1) AS `done after more than one receive`",
        "count(problem) AS `files that Python cannot parse`",
        "sum(lines) AS lines",
        "sum(functions) AS functions",
        "sum(classes) AS classes",
    ).first()
    assert total is not None
    summary = {
        "messages sent": sent,
        "batches": tally.batches,
        "failed on purpose, handed back": tally.failed,
        "left to expire with their worker": tally.left_to_expire,
        **total.asDict(),
    }
    console.print(table(["what", "number"], [(name, value or 0) for name, value in summary.items()], "Summary"))
    largest = modules.orderBy("lines", ascending=False).limit(5)
    console.print(_table("Largest modules", largest.select("path", "lines", "functions", "classes")))
    counts = queue.counts()
    console.print(
        f"Queue {QUEUE}: {counts.visible} visible, {counts.in_flight} in flight, {counts.delayed} delayed"
    )
    console.print(_answer(lake, spark, "Spark SQL over the queue and the results", _RESULTS_SQL))
    modules.unpersist()
    left = counts.visible + counts.in_flight + counts.delayed
    return total["messages with a result"] == sent and left == 0


def _answer(lake: LakeQueue, spark: SparkSession, title: str, query: str) -> RenderableType:
    lake.register_views(spark)
    return _table(title, spark.sql(query))


def _table(title: str, frame: DataFrame) -> RenderableType:
    return table(frame.columns, frame.collect(), title)
