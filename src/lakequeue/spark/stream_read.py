"""``spark.readStream.format("lakequeue")``: the reader that Spark drives. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lakequeue.model.states import MessageState
from lakequeue.operations.lease import LeasedMessages, stored
from lakequeue.spark import source_schema
from lakequeue.spark.leased_batches import START, LeasedBatches, Offset
from lakequeue.spark.options import Options
from lakequeue.spark.source_errors import one_line
from lakequeue.spark.tasks import TASK_BYTES, cut, packed
from lakequeue.storage.bulk import lease_batches
from lakequeue.storage.bulk.lease_frame import LeaseColumns, LeasePlace
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which runs one batch then

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


@attrs.define
class LeasedPart(InputPartition):
    """Messages of a lease that one task reads; pickled, so it holds values only."""

    places: list[list[LeasePlace]]
    """By file."""
    lease: LeaseColumns


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Receives from a queue: a micro-batch is a lease.

    It lives in a Python process beside the driver for as long as the query runs, and extends leases from there;
    a copy of it reads in the executors, without opening the queue.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        source_schema.check(schema)
        self._options = options
        self._schema = schema
        self._batches: LeasedBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_batches": None}

    @property
    def batches(self) -> LeasedBatches:
        if self._batches is None:
            self._batches = LeasedBatches(self._options.open_queue(), self._options)
        return self._batches

    def initialOffset(self) -> Offset:
        return dict(START)

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:
        self.batches.stop_at_present()

    @one_line
    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:
        # Spark before 4.2 gives no start
        return self.batches.next(self.batches.reached if start is None else start)

    @one_line
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        leased = self.batches.plan(start, end)
        return [] if leased is None else parts_of(leased)

    @one_line
    def commit(self, end: Offset) -> None:
        self.batches.finish(end)

    @one_line
    def read(self, partition: LeasedPart) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def _read(self, partition: LeasedPart) -> Iterator[pa.RecordBatch]:
        store = Store(self._options.root, dict(self._options.storage) or None)
        schema = source_schema.arrow_schema(self._schema)
        columns = [name for name in schema.names if name in lease_batches.SCHEMA.names] or ["shard"]
        constants = {
            "queue": self._options.queue,
            "region": self._options.region,
            "state": MessageState.IN_FLIGHT.value,
        }
        for places in partition.places:
            for batch in lease_batches.read_places(store, places, partition.lease, columns):
                arrays = [
                    batch.column(field.name).cast(field.type)
                    if field.name in columns
                    else pa.repeat(pa.scalar(constants.get(field.name), field.type), batch.num_rows)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def parts_of(leased: LeasedMessages) -> list[LeasedPart]:
    """The messages of a lease as parts of about ``TASK_BYTES``."""
    places, columns = stored(leased)
    pieces = (piece for of_file in lease_batches.files_of(places) for piece in _pieces(of_file))
    return [LeasedPart(group, columns) for group in packed(pieces)]


def _pieces(places: list[LeasePlace]) -> Iterator[tuple[list[LeasePlace], int]]:
    """Adjacent messages of one file cut into pieces of a task, with the bytes of each."""
    size = places[0].size
    if size <= TASK_BYTES:
        yield places, size
        return
    for start, end in cut(places[0].first_position, places[-1].last_position, size):
        piece = [
            place._replace(
                whole=False,
                first_position=max(place.first_position, start),
                last_position=min(place.last_position, end),
            )
            for place in places
            if place.first_position <= end and place.last_position >= start
        ]
        if piece:
            yield piece, size // -(-size // TASK_BYTES)
