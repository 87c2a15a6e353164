"""Keeps a root of queues small: expiry, files that are gone, files to join, logs. Changes no answer.

    spark-submit --properties-file conf/<where>.conf jobs/compact.py --root DIR --once
    spark-submit --properties-file conf/<where>.conf jobs/compact.py --root DIR --every 60

It may run beside producers and consumers, twice at once, and be killed anywhere.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

import typer

from lakequeue import CompactionSummary, LakeQueue, LakeQueueError
from lakequeue.cli import render
from lakequeue.cli.output import printable, write
from lakequeue.spark.compaction import compact_every, compact_once
from lakequeue.spark.session import build_session


def main(
    root: Annotated[str, typer.Option(help="Directory or URI that holds the queues.")],
    queue: Annotated[str | None, typer.Option(help="Only this queue; all if not given.")] = None,
    region: Annotated[str, typer.Option(help="Region of that queue.")] = "local",
    once: Annotated[bool, typer.Option("--once", help="One pass.")] = False,
    every: Annotated[
        float | None, typer.Option(min=1, help="Passes so many seconds apart, until stopped.")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, or spark where only Spark may commit.")] = "auto",
) -> None:
    """Frees what the queues of a root no longer need."""
    if once == (every is not None):
        raise typer.BadParameter("give either --once or --every SECONDS")
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    try:
        lake = LakeQueue(root, region=region)
        lake.runtime.rows() if queue is None else lake.queue(
            queue
        )  # what is wrong is known before Spark has started
        spark = build_session("lakequeue compaction")
        lake = LakeQueue(root, spark=spark, region=region, engine=engine)  # type: ignore[arg-type]
        if every is None:
            _report(compact_once(lake, queue))
        else:
            query = compact_every(lake, spark, every, _report, queue)
            while not query.awaitTermination(1) and not stopped.is_set():
                pass
            query.stop()
        spark.stop()
    except LakeQueueError as error:
        sys.exit(f"error: {printable(str(error))}")


def _report(summaries: list[CompactionSummary]) -> None:
    write(render.summary_table(summaries))


if __name__ == "__main__":
    typer.run(main)
