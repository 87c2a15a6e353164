"""Spark jobs and streams as producers and consumers. Importing this needs pyspark, and does not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakequeue.errors import MissingPackage
from lakequeue.spark.streams import stream_from_queue, stream_to_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "stream_from_queue", "stream_to_queue"]

MissingPackage.check("lakequeue.spark", "spark", "pyspark")


def register(spark: SparkSession) -> None:
    """Registers the data source ``lakequeue`` in a session, also one of Spark Connect.

    Spark finds it by itself when lakequeue is installed on the driver, or on the server of Spark Connect, when its
    first data source in Python is looked up; this call registers it at any time, and keeps ``storage.``
    options out of the session's plans and errors.

    Args:
        spark: the session.
    """
    from pyspark.errors import AnalysisException

    from lakequeue.spark.session import SECRETS
    from lakequeue.spark.source import LakeQueueSource

    try:
        spark.dataSource.register(LakeQueueSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark has found it by itself
            raise
    name = "spark.sql.redaction.options.regex"
    hidden = spark.conf.get(name)
    if hidden is None or SECRETS not in hidden:
        spark.conf.set(name, f"{hidden}|{SECRETS}" if hidden else SECRETS)
