"""The compactor as a Structured Streaming query: a pass with every micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakequeue.operations.compact import CompactionSummary
from lakequeue.storage.engines.commit import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from lakequeue.client import LakeQueue

_log = logging.getLogger("lakequeue")


def compact_once(lq: LakeQueue, queue: str | None = None) -> list[CompactionSummary]:
    """One pass over a queue of the region, or over all of the root."""
    return lq.compact() if queue is None else [lq.queue(queue).compact()]


def compact_every(
    lq: LakeQueue,
    spark: SparkSession,
    seconds: float,
    report: Callable[[list[CompactionSummary]], None],
    queue: str | None = None,
) -> StreamingQuery:
    """Starts passes so many seconds apart, the first at once, until the query is stopped.

    Args:
        lq: the root; its clock judges what is over.
        spark: the session that the query runs in.
        seconds: from the start of a pass to that of the next; a pass that takes longer delays the next.
        report: called with what each pass did.
        queue: only this queue.

    A pass that fails as a whole is logged, and the next one tries again.
    """

    def compact(_: Any, number: int) -> None:
        try:
            report(compact_once(lq, queue))
        except Exception as error:
            _log.warning("compaction pass %d failed: %s", number, first_line(error))

    # the source only beats: a row a micro-batch, from the first on, whatever the time is
    beat = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = beat.writeStream.queryName("lakequeue compaction").foreachBatch(compact)
    return writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds").start()
