"""Streams through Spark Connect: their batches run on its server, in a process without the client's objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from lakequeue.client import LakeQueue
from lakequeue.errors import QueueClientError, QueueDoesNotExist
from lakequeue.model.clock import SystemClock
from lakequeue.queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@attrs.frozen
class QueuePlace:
    """What another process needs to open the same queue."""

    root: str
    region: str
    storage_options: Mapping[str, str] = attrs.field(repr=False)
    name: str
    key: str

    @classmethod
    def of(cls, queue: Queue) -> QueuePlace:
        """Raises QueueClientError if the queue has a clock of its own, which cannot travel."""
        root = queue._runtime.root
        if not isinstance(root.clock, SystemClock):
            raise QueueClientError(
                "a stream through Spark Connect runs by its server's clock: open the root without clock"
            )
        return cls(root.path, queue.region, root.engine.store.options, queue.name, queue.key)

    def open(self, spark: SparkSession) -> Queue:
        """Raises QueueDoesNotExist if the queue was deleted."""
        options = dict(self.storage_options) or None
        queue = LakeQueue(self.root, spark=spark, region=self.region, storage_options=options).queue(self.name)
        if queue.key != self.key:
            raise QueueDoesNotExist()
        return queue


@attrs.define
class RemoteBatches:
    """A function for ``foreachBatch``. Spark sends it to the server, where lakequeue must be installed, too."""

    place: QueuePlace
    work: Callable[[Queue, DataFrame, int], dict[str, int]]
    _queue: Queue | None = attrs.field(default=None, init=False)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        if self._queue is None:  # the process lives as long as the query
            self._queue = self.place.open(rows.sparkSession)
        self.work(self._queue, rows, batch)


def check_interval(spark: SparkSession, text: str) -> None:
    """Raises ValueError if a text is no interval; a remote writer would take it, and the start would fail."""
    from pyspark.sql import functions as F

    [[valid]] = spark.range(1).select(F.lit(text).try_cast("interval").isNotNull()).collect()
    if not valid:
        raise ValueError(text)
