"""Spark jobs and streams as producers and consumers of queues. This package needs pyspark, but does not
import it.
"""

from __future__ import annotations

from lakequeue.errors import MissingPackage
from lakequeue.spark.session import register
from lakequeue.spark.streams import stream_from_queue, stream_to_queue

__all__ = ["register", "stream_from_queue", "stream_to_queue"]

MissingPackage.check("lakequeue.spark", "spark", "pyspark")
