"""Lets Spark find the data source ``lakequeue`` by its name: it looks for packages ``pyspark_*`` of this shape."""

from lakequeue.spark.source import LakeQueueSource as DefaultSource

__all__ = ["DefaultSource"]
