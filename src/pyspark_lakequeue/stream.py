"""The reader of a stream from a queue, as each process of Spark imports it.

One process plans the tasks of a batch, and others run them. These do not open the queue, so this module does not
import ``lakequeue.spark.source``, which takes half a second of CPU time in each process.
"""

# mypy: allow-subclassing-any
# mypy does not analyse pyspark.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from lakequeue.spark.source import Offset, StreamLeases

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark before 4.2 runs one batch then.

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Receives from a queue through ``StreamLeases``, which only the process next to the driver makes.

    That process makes it at Spark's first call, so the call raises the errors of the options.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema}

    @cached_property
    def _leases(self) -> StreamLeases:
        from lakequeue.spark.source import stream_leases

        return stream_leases(self._options, self._schema)

    def initialOffset(self) -> Offset:
        return self._leases.initial_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        self._leases.prepare_for_available_now()

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:
        return self._leases.latest_offset(start)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._leases.tasks(start, end)]

    def commit(self, end: Offset) -> None:
        self._leases.commit(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from lakequeue.storage.engines.spark_access import arrow_schema

        task, constants = partition.value
        schema = arrow_schema(self._schema)
        names = [name for name in schema.names if name in task.columns] or ["shard"]
        yield from shaped(task.read(names), schema, constants)


def shaped(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, constants: Mapping[str, str | None]
) -> Iterator[pa.RecordBatch]:
    """Gives batches the columns of a schema. A missing column gets its constant, or NULL."""
    import pyarrow as pa

    for batch in batches:
        arrays = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.repeat(pa.scalar(constants.get(field.name), field.type), batch.num_rows)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
