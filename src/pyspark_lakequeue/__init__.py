"""Lets Spark find the data source ``lakequeue`` by its name: it looks for packages ``pyspark_*`` of this shape.

Spark lists its data sources in one Python process and makes this one in another. Neither
imports lakequeue, which takes a third of a second, unless a method is called.
"""

# mypy: allow-subclassing-any
# pyspark is not analysed

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakequeue.errors import MissingPackage

MissingPackage.check("pyspark_lakequeue", "spark", "pyspark")

from pyspark.sql.datasource import DataSource  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Queues as a source and a sink; Spark makes its objects, by the name ``lakequeue``."""

    @classmethod
    def name(cls) -> str:
        return "lakequeue"

    @property
    def _made(self) -> Any:
        from lakequeue.spark import source

        return source

    def schema(self) -> StructType:
        return self._made.columns(self.options)

    def reader(self, schema: StructType) -> Any:
        return self._made.reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return self._made.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return self._made.stream_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> Any:
        from pyspark_lakequeue.stream import QueueStreamReader

        return QueueStreamReader(self.options, schema)
