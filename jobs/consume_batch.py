"""Processes a queue in batches until it is empty, and delivers results or messages into a Delta table.

    spark-submit --properties-file conf/<where>.conf jobs/consume_batch.py --root DIR --queue NAME \
        --handler package:function --table TABLE

The handler takes a DataFrame of messages and returns a DataFrame of results, or a pair of results and failed
messages: a DataFrame with message_id, or ids. The results of each message are in the table once, also after kills.
If anything fails, the messages of the batch come again in halves, until the one that fails is alone. Messages that
fail again and again end the job, unless the queue has a dead-letter queue.
"""

from __future__ import annotations

from lakequeue_command import end_by_sigterm

end_by_sigterm()  # Called before the other imports.

from functools import partial

from lakequeue.cli import job
from lakequeue.errors import counted
from lakequeue.spark.rows import results
from lakequeue.spark.streams import process_lease


def main(
    root: job.Root,
    queue: job.QueueName,
    handler: job.Handler = None,
    table: job.Table = None,
    max_messages: job.MaxMessages = 1_000_000,
    visibility_timeout: job.Visibility = None,
    give_up_after: job.GiveUp = None,
    region: job.Region = "local",
    engine: job.Engine = "auto",
) -> None:
    """Processes the messages of a queue in batches until none is visible."""
    function, delivers = job.function(handler), job.delivers(root, queue, region, table, handler)
    with job.opened("lakequeue consume", root, queue, region, engine) as (_, q):
        progress, renewal = job.Progress(q, give_up_after), job.renewal(q, visibility_timeout)
        while (lease := q.lease(max_messages, visibility_timeout)) is not None:
            work = partial(results, lease.messages, function, delivers)
            progress.add(process_lease(lease, work, renewal, delivers))
            progress.check()
        batches = f"{progress.batches} batch{'es' * (progress.batches != 1)}"
        print(f"{counted(progress.done, 'message')} of {queue} done in {batches}")


if __name__ == "__main__":
    job.run(main)
