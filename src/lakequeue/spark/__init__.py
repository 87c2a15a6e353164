"""Spark jobs and streams as producers and consumers of queues. Needs pyspark, but does not import pyspark."""

from __future__ import annotations

from lakequeue.errors import MissingPackage
from lakequeue.spark.session import register
from lakequeue.spark.streams import stream_from_queue, stream_to_queue

__all__ = ["register", "stream_from_queue", "stream_to_queue"]

MissingPackage.check("lakequeue.spark", "spark", "pyspark")
