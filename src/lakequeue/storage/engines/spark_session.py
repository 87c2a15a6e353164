"""Isolated sessions of the Spark engine, Delta's conflicts as lost races, its actions as JSON, and a warning."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakequeue.storage.engines.delta_internals import active
from lakequeue.storage.engines.interface import LostRace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION = {
    # partition values and instants are UTC, whatever the user's session says
    "spark.sql.session.timeZone": "UTC",
    # INT96 has no statistics, and the point engine writes microseconds
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # ledger commits are small: replanning and 200 tasks would cost more than the work
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def quoted(name: str) -> str:
    """A name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def new_session(spark: SparkSession) -> SparkSession:
    """A session of its own on the same context, with the settings that commits need."""
    with active(spark):
        session = spark.newSession()
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    return session


@contextlib.contextmanager
def quiet_about_pandas() -> Iterator[None]:
    """PySpark imports pandas for functions over batches of Arrow, and warns of each that is newer than itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


@contextlib.contextmanager
def lost_races() -> Iterator[None]:
    """Turns Delta's conflicts into ``LostRace``."""
    from delta import exceptions

    # siblings in Python, without a common base
    conflicts = (
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentTransactionException,
        exceptions.ConcurrentWriteException,
        exceptions.DeltaConcurrentModificationException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
    )
    try:
        yield
    except conflicts as error:
        raise LostRace(str(error).strip().partition("\n")[0]) from error
