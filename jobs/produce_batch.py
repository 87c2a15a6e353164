"""Sends the rows of a Spark source to a queue, one message per row, in one commit.

    spark-submit --properties-file conf/<where>.conf jobs/produce_batch.py --root DIR --queue NAME \
        --format json --path DIR --body-column text --send-id load-2026-01-31

With --send-id, running the job again sends nothing twice.
"""

from __future__ import annotations

from lakequeue_command import end_by_sigterm

end_by_sigterm()  # Called before the other imports.

from typing import Annotated

import typer

from lakequeue.cli import job
from lakequeue.cli.options import parse_pairs
from lakequeue.errors import counted
from lakequeue.spark.rows import as_messages


def main(
    root: job.Root,
    queue: job.QueueName,
    format: job.Format,
    path: job.Path = None,
    schema: job.Schema = None,
    option: job.FormatOptions = None,
    body: job.Body = "body",
    group: job.Group = None,
    dedup: job.Dedup = None,
    delay: job.Delay = None,
    priority: job.Priority = None,
    order_by: job.OrderBy = None,
    send_id: Annotated[
        str | None, typer.Option(help="Id of the send; a send with the same id is never repeated.")
    ] = None,
    on_bad_row: job.OnBadRow = "fail",
    bad_rows: job.BadRows = None,
    region: job.Region = "local",
    engine: job.Engine = "auto",
) -> None:
    """Sends the rows of a Spark source as messages, all or none; bad rows may be left out."""
    options = parse_pairs(option, "--option")
    with job.opened("lakequeue produce", root, queue, region, engine) as (spark, q):
        rows = spark.read.format(format).options(**options).load(path, schema=schema)
        messages = as_messages(rows, body, group, dedup, delay, order_by, priority)
        sent = q.send_dataframe(messages, send_id, order_by, on_bad_row, bad_rows)
        refused = f", {counted(sent.refused, 'row')} refused" if sent.refused else ""
        print(f"{counted(sent, 'message')} sent to {queue}{refused}")


if __name__ == "__main__":
    job.run(main)
