"""Compaction as a Structured Streaming query. Each micro-batch makes one pass over the queues."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakequeue import frame_verbs
from lakequeue.frame_verbs import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from lakequeue import CompactionSummary, LakeQueue
    from lakequeue.frame_verbs import Passed, QueuePass

_log = logging.getLogger("lakequeue")
_FEW_TASKS, _MAX_TASKS = 16, 256
_QUEUES_OF_A_TASK = 16
"""Number of queues for which a pass uses one more Spark task. With a smaller number, the start of the tasks, 20 to
60 ms each, would take more time than the tasks save.
"""


def compact_once(
    lq: LakeQueue, queue: str | None = None, spark: SparkSession | None = None
) -> list[CompactionSummary]:
    """Compacts one queue, or the whole root. For the whole root, tasks of ``spark`` compact the queues if the
    tasks can read the root; else this process does.
    """
    if queue is not None:
        return [lq.queue(queue).compact()]
    shared = spark is not None and frame_verbs.can_be_dealt(lq)
    return frame_verbs.compact_root(lq, None, partial(_dealt, lq, spark) if shared else None)


def _dealt(lq: LakeQueue, spark: SparkSession, passes: Sequence[QueuePass]) -> Iterator[tuple[int, Passed]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch["id"].to_pylist():
                passed = pickle.dumps(passes[index].run(elsewhere=True))
                yield pa.record_batch({"index": pa.array([index]), "passed": pa.array([passed])})

    reason = frame_verbs.why_only_here(lq) or frame_verbs.why_tasks_cannot_read(lq, spark) if passes else None
    if reason:
        _log.info("the queues are compacted in this process: %s", reason)
        yield from ((index, each.run()) for index, each in enumerate(passes))
    elif passes:
        number = min(len(passes), _FEW_TASKS + len(passes) // _QUEUES_OF_A_TASK, _MAX_TASKS)
        indexes = spark.range(0, len(passes), 1, number)
        with frame_verbs.quiet_about_pandas():
            rows = indexes.mapInArrow(run, "index long, passed binary")
        for row in rows.collect():
            yield row["index"], pickle.loads(row["passed"])


def compact_every(
    lq: LakeQueue,
    spark: SparkSession,
    seconds: float,
    report: Callable[[list[CompactionSummary]], None],
    queue: str | None = None,
) -> StreamingQuery:
    """Runs a pass at once and then at an interval, until the query is stopped.

    Args:
        lq: the root; its clock decides what has expired.
        seconds: interval between the starts of two passes; a longer pass delays the next.
        report: called with the summaries of each pass. A failed pass is logged, and the next pass tries again.
        queue: name of the only queue to compact; None for all.
    """

    def compact(_: Any, number: int) -> None:
        try:
            report(compact_once(lq, queue, spark))
        except Exception as error:
            _log.warning("compaction pass %d failed: %s", number, first_line(error))

    # The source is only a timer: one row per micro-batch, from the first on.
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = ticks.writeStream.queryName("lakequeue compaction").foreachBatch(compact)
    return writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds").start()
