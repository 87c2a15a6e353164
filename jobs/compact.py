"""Compacts a root: expires messages, frees and merges files, shortens logs. Results of calls do not change.

    spark-submit --properties-file conf/<where>.conf jobs/compact.py --root DIR --once
    spark-submit --properties-file conf/<where>.conf jobs/compact.py --root DIR --every 60

It may run at the same time as producers, consumers and another compactor, and may be killed at any time.
"""

from __future__ import annotations

from lakequeue_command import end_by_sigterm

end_by_sigterm()  # Called before the other imports.

from typing import Annotated

import typer

from lakequeue import CompactionSummary
from lakequeue.cli import job, render
from lakequeue.cli.session import Session, usage
from lakequeue.cli.values import at_least
from lakequeue.spark.compaction import compact_every, compact_once


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
        usage("give either --once or --every DURATION")
    with job.opened_root("lakequeue compaction", root, queue, region, engine) as (spark, lake):

        def report(summaries: list[CompactionSummary]) -> None:
            Session().changed(None, render.compacted(summaries))
            if views is not None:
                lake.create_views(spark, views)

        if every is None:
            done = compact_once(lake, queue, spark)
            report(done)
            render.require_done(done)
        else:
            with lake.schedules.running():
                job.wait(compact_every(lake, spark, every, report, queue))


if __name__ == "__main__":
    job.run(main)
