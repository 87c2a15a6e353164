"""Compaction as a Structured Streaming query: one pass per micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakequeue.frame_verbs import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from lakequeue import CompactionSummary, LakeQueue

_log = logging.getLogger("lakequeue")


def compact_once(lq: LakeQueue, queue: str | None = None) -> list[CompactionSummary]:
    """Runs one pass over a queue of the region, or over the whole root."""
    return lq.compact() if queue is None else [lq.queue(queue).compact()]


def compact_every(
    lq: LakeQueue,
    spark: SparkSession,
    seconds: float,
    report: Callable[[list[CompactionSummary]], None],
    queue: str | None = None,
) -> StreamingQuery:
    """Starts a pass at once and then at an interval, until the query is stopped.

    Args:
        lq: the root; its clock decides what has expired.
        spark: the session that the query runs in.
        seconds: interval between the starts of two passes; a longer pass delays the next.
        report: called with the summaries of each pass.
        queue: name of the only queue to compact; None: all.

    A pass that fails as a whole is logged, and the next one tries again.
    """

    def compact(_: Any, number: int) -> None:
        try:
            report(compact_once(lq, queue))
        except Exception as error:
            _log.warning("compaction pass %d failed: %s", number, first_line(error))

    # the source is only a timer: one row per micro-batch, from the first one on
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = ticks.writeStream.queryName("lakequeue compaction").foreachBatch(compact)
    return writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds").start()
