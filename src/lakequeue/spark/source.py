"""The data source ``lakequeue`` of Spark, for reads, writes and streams of both directions. Imports pyspark."""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from lakequeue.spark.options import Options, Use
from lakequeue.spark.read import QueueReader, QueueStreamReader
from lakequeue.spark.source_schema import one_line, schema
from lakequeue.spark.write import QueueStreamWriter, QueueWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LakeQueueSource(DataSource):
    """Queues as a source and a sink; Spark makes its objects, by the name ``lakequeue``."""

    @classmethod
    def name(cls) -> str:
        return "lakequeue"

    @one_line
    def schema(self) -> StructType:
        """The columns of a batch read and of a stream alike: Spark does not say which of the two it plans."""
        options = Options.parse(self.options, Use.ANY_READ)
        if options.queue is not None:
            options.open_queue()  # reports a wrong root or queue where it is named
        return schema()

    @one_line
    def reader(self, schema: StructType) -> QueueReader:
        return QueueReader(Options.parse(self.options, Use.READ), schema)

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        return QueueWriter(Options.parse(self.options, Use.WRITE), schema, overwrite)

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        return QueueStreamWriter(Options.parse(self.options, Use.STREAM_WRITE), schema, overwrite)

    @one_line
    def streamReader(self, schema: StructType) -> QueueStreamReader:
        return QueueStreamReader(Options.parse(self.options, Use.STREAM_READ), schema)
