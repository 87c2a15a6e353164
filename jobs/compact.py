"""Compacts a root: expires messages, frees and merges files, shortens logs. Results of calls do not change.

    spark-submit --properties-file conf/<where>.conf jobs/compact.py --root DIR --once
    spark-submit --properties-file conf/<where>.conf jobs/compact.py --root DIR --every 60

It may run beside producers, consumers and another compactor, and may be killed at any time.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

import typer

from lakequeue import CompactionSummary, LakeQueue, LakeQueueError
from lakequeue.cli import job, render
from lakequeue.cli.output import printable, write
from lakequeue.cli.values import at_least
from lakequeue.spark.compaction import compact_every, compact_once
from lakequeue.spark.session import build_session


def main(
    root: job.Root,
    queue: Annotated[str | None, typer.Option(help="Compact only this queue; all if not given.")] = None,
    region: job.Region = "local",
    once: Annotated[bool, typer.Option("--once", help="Run one pass.")] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=at_least(1),
            help="Time between the starts of two passes, such as 5m; runs until stopped.",
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(metavar="SCHEMA", help="Create the SQL views anew here after each pass."),
    ] = None,
    engine: job.Engine = "auto",
) -> None:
    """Frees the space that the queues of a root no longer need."""
    if once == (every is not None):
        raise typer.BadParameter("give either --once or --every DURATION")
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    try:
        lake = LakeQueue(root, region=region)
        # reports a wrong root before Spark starts
        lake.list_queues(limit=1) if queue is None else lake.queue(queue)
        spark = build_session("lakequeue compaction", root=root)
        lake = LakeQueue(root, spark=spark, region=region, engine=engine)  # type: ignore[arg-type]

        def report(summaries: list[CompactionSummary]) -> None:
            write(render.compacted(summaries))
            if views is not None:
                lake.create_views(spark, views)

        if every is None:
            done = compact_once(lake, queue, spark)
            report(done)
            render.require_done(done)
        else:
            query = compact_every(lake, spark, every, report, queue)
            with lake.schedules.running():
                while not query.awaitTermination(1) and not stopped.is_set():
                    pass
            query.stop()
        spark.stop()
    except LakeQueueError as error:
        sys.exit(f"error: {printable(str(error))}")


if __name__ == "__main__":
    typer.run(main)
