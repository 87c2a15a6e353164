"""Sends the rows of files that appear in a directory to a queue, each exactly once.

    spark-submit --properties-file conf/<where>.conf jobs/produce_stream.py --root DIR --queue NAME \
        --path DIR --body-column value --checkpoint DIR

Files must appear complete: write them elsewhere, then move them. The job may be killed at any time and restarted.
"""

from __future__ import annotations

from lakequeue_command import end_by_sigterm

end_by_sigterm()  # Called before the other imports.

from lakequeue.cli import job
from lakequeue.cli.options import parse_pairs
from lakequeue.spark import stream_to_queue
from lakequeue.spark.rows import as_messages


def main(
    root: job.Root,
    queue: job.QueueName,
    checkpoint: job.Checkpoint,
    format: job.Format = "text",
    path: job.Path = None,
    schema: job.Schema = None,
    option: job.FormatOptions = None,
    body: job.Body = "body",
    group: job.Group = None,
    dedup: job.Dedup = None,
    delay: job.Delay = None,
    priority: job.Priority = None,
    order_by: job.OrderBy = None,
    on_bad_row: job.OnBadRow = "fail",
    bad_rows: job.BadRows = None,
    once: job.Once = False,
    every: job.Every = None,
    region: job.Region = "local",
    engine: job.Engine = "auto",
) -> None:
    """Sends the rows of a stream as messages, until it is stopped."""
    options = parse_pairs(option, "--option")
    with job.opened("lakequeue produce", root, queue, region, engine) as (spark, q):
        source = spark.readStream.format(format).options(**options).load(path, schema=schema)
        rows = as_messages(source, body, group, dedup, delay, order_by, priority)
        trigger = job.trigger(once, every)
        query = stream_to_queue(rows, q, checkpoint, trigger, order_by, on_bad_row, bad_rows)
        job.wait(query, job.BatchLines().report)


if __name__ == "__main__":
    job.run(main)
