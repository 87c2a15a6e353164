"""Spark jobs and streams as producers and consumers. Importing this imports no pyspark."""

from lakequeue.spark.streams import stream_from_queue, stream_to_queue

__all__ = ["stream_from_queue", "stream_to_queue"]
