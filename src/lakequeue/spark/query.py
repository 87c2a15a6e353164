"""A running streaming query with the counts and errors of its batches. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from lakequeue.storage.store_failures import first_line

_log = logging.getLogger("lakequeue")
_KEPT = 100
"""Micro-batches whose counts are kept; Spark keeps as many progress reports."""


class Batches:
    """A function for ``foreachBatch`` that keeps the counts of each batch, and the error that ended the query."""

    def __init__(self, work: Callable[[DataFrame, int], dict[str, int]]) -> None:
        self.failure: Exception | None = None
        self._work = work
        self._counts: deque[tuple[int, Row]] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        try:
            counts = self._work(rows, batch)
        except Exception as error:
            self.failure = error
            _log.warning("batch %d failed: %s", batch, first_line(error))
            raise
        with self._lock:
            self._counts.append((batch, Row(**counts)))
        _log.info("batch %d: %s", batch, ", ".join(f"{name} {count}" for name, count in counts.items()))

    def counts(self, batch: int) -> Row | None:
        """The counts of a batch; None if it is too old or belongs to another run."""
        with self._lock:
            return next((row for number, row in reversed(self._counts) if number == batch), None)


class QueueStream(StreamingQuery):
    """A StreamingQuery of Spark with two additions.

    ``observedMetrics["lakequeue"]`` of each progress has the counts of the batch. The StreamingQueryException of a
    failed query has the error of the queue or of the handler as ``__cause__``.
    """

    def __init__(self, query: StreamingQuery, batches: Batches) -> None:
        super().__init__(query._jsq)
        self._batches = batches

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        try:
            ended: bool | None = super().awaitTermination(timeout)
            return ended
        except StreamingQueryException as error:
            raise error from self._batches.failure

    def processAllAvailable(self) -> None:
        try:
            super().processAllAvailable()
        except StreamingQueryException as error:
            raise error from self._batches.failure

    def exception(self) -> StreamingQueryException | None:
        error = super().exception()
        if error is not None:
            error.__cause__ = self._batches.failure
        return error

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        progress = super().lastProgress
        return None if progress is None else self._with_counts(progress)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        return [self._with_counts(progress) for progress in super().recentProgress]

    def _with_counts(self, progress: Any) -> Any:
        counts = self._batches.counts(progress.batchId)
        if counts is not None:
            progress["observedMetrics"]["lakequeue"] = counts
        return progress
