"""Processes the messages of a queue as they arrive, and delivers results or messages into a Delta table.

    spark-submit --properties-file conf/<where>.conf jobs/consume_stream.py --root DIR --queue NAME \
        --handler package:function --table TABLE --checkpoint DIR --every 5

Handler, results and messages are as in consume_batch.py.
"""

from __future__ import annotations

from lakequeue_command import end_by_sigterm

end_by_sigterm()  # Called before the other imports.

from lakequeue import LeaseCounts
from lakequeue.cli import job
from lakequeue.spark import stream_from_queue
from lakequeue.spark.rows import results


def main(
    root: job.Root,
    queue: job.QueueName,
    checkpoint: job.Checkpoint,
    handler: job.Handler = None,
    table: job.Table = None,
    once: job.Once = False,
    every: job.Every = 5,
    max_messages: job.MaxMessages = 100_000,
    visibility_timeout: job.Visibility = None,
    give_up_after: job.GiveUp = None,
    region: job.Region = "local",
    engine: job.Engine = "auto",
) -> None:
    """Processes the messages of a queue, one batch per interval, until it is stopped."""
    function, trigger = job.function(handler), job.trigger(once, every)
    delivers = job.delivers(root, queue, region, table, handler)
    with job.opened("lakequeue consume", root, queue, region, engine) as (_, q):
        progress = job.Progress(q, give_up_after)

        def report(batch: int, counts: LeaseCounts) -> None:
            failed = f", {counts.released:,} failed" if counts.released else ""
            lost = f", {counts.lost:,} lost to a timeout" if counts.lost else ""
            print(f"batch {batch}: {counts.done:,} messages done{failed}{lost}", flush=True)
            progress.add(counts)

        while True:
            query = stream_from_queue(
                q,
                lambda messages, _: results(messages, function, delivers),
                checkpoint,
                trigger,
                max_messages,
                visibility_timeout,
                job.renewal(q, visibility_timeout),
                report,
            )
            ended = job.wait(query)
            if not ended or not any(progress["numInputRows"] for progress in query.recentProgress):
                return
            progress.check()


if __name__ == "__main__":
    job.run(main)
