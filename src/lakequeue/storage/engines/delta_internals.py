"""Uses Delta's log and transactions on the JVM through py4j. These interfaces are not public.

Only ``engine="spark"`` needs this module. docs/operation/spark.md lists the releases of Delta that were tried.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakequeue.errors import QueueClientError
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.data_files import partition_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BEFORE_TOKEN = 3
"""Number of parameters of ``DeltaOperations.Write`` that come before the token."""


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


def require(spark: SparkSession) -> None:
    """Raises QueueClientError if a session cannot commit through Delta, for example a remote session."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise QueueClientError(
            'engine="spark" needs the JVM of a session in this process, and this one is remote (Spark Connect); '
            'engine="auto" needs none'
        )
    extensions = spark.conf.get("spark.sql.extensions", None) or ""
    if "DeltaSparkSessionExtension" not in extensions or not _has(jvm, "org.apache.spark.sql.delta.DeltaLog"):
        raise QueueClientError(
            'engine="spark" needs Delta in the session: its jar, and '
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension; build_session() has both, and "
            'engine="auto" needs neither'
        )


class SparkDeltaLog:
    """The Delta log of one table on the JVM. Each method makes ``session`` the active session while it runs."""

    def __init__(self, session: SparkSession, uri: str) -> None:
        self._session = session
        self._jvm: Any = session._jvm
        self._none = self._jvm.scala.Option.empty()
        with active(session):
            self._java = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, uri)

    def update(self) -> Any:
        with active(self._session):
            return self._java.update(False, self._none, self._none)

    def removals(self, snapshot: Any, partition: Mapping[str, Sequence[int | bool | str]]) -> list[Any]:
        """Returns actions for ``commit``, which remove the snapshot's files with these partition values."""
        texts = {name: set(map(partition_text, among)) for name, among in partition.items()}

        def is_among(file: Any) -> bool:
            values = json.loads(file.json())["add"]["partitionValues"]
            return all(values[name] in among for name, among in texts.items())

        with active(self._session):
            return [file.remove() for file in snapshot.allFiles().collect() if is_among(file)]

    def commit(
        self,
        snapshot: Any,
        actions: Sequence[Any],
        frames: Iterable[DataFrame],
        app_ids: Iterable[str],
        token: str,
    ) -> None:
        """Commits on top of a snapshot. Delta checks for conflicts with every commit after the snapshot.

        Args:
            actions: actions of Delta's log as JSON, or results of ``removals``.
            frames: rows to write and add.
            app_ids: application ids. If a commit after the snapshot has set one of them, this commit fails.
        """
        with active(self._session):
            transaction = self._java.startTransaction(self._none, self._some(snapshot))
            for app_id in app_ids:
                transaction.txnVersion(app_id)
            sequence = self._sequence(actions)
            for frame in frames:
                sequence = sequence.appendedAll(transaction.writeFiles(frame._jdf))
            transaction.commit(sequence, self._operation(token))

    def _some(self, value: Any) -> Any:
        return self._jvm.scala.Option.apply(value)

    def _sequence(self, actions: Iterable[Any]) -> Any:
        of_json = self._jvm.org.apache.spark.sql.delta.actions.Action.fromJson
        java = self._jvm.java.util.ArrayList()
        for action in actions:
            java.add(of_json(action) if isinstance(action, str) else action)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(java).toSeq()

    def _operation(self, token: str) -> Any:
        """Returns the description of a commit for the table's history, with the token in it."""
        name = "org.apache.spark.sql.delta.DeltaOperations$Write"
        [constructor] = _class(self._jvm, name).getConstructors()
        more = [self._none] * (constructor.getParameterCount() - _BEFORE_TOKEN - 1)
        write = getattr(self._jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")
        append = self._jvm.org.apache.spark.sql.SaveMode.Append
        return write(append, self._none, self._none, self._some(token), *more)


@contextlib.contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Makes a session the active Spark session of this thread during the block, as Delta's code requires."""
    from pyspark.sql import SparkSession

    jvm: Any = session._jvm
    before, known = jvm.SparkSession.getActiveSession(), SparkSession._activeSession
    jvm.SparkSession.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        SparkSession._activeSession = known
        if before.isDefined():
            jvm.SparkSession.setActiveSession(before.get())
        else:
            jvm.SparkSession.clearActiveSession()


def new_session(spark: SparkSession) -> SparkSession:
    """Returns a new session of the same Spark application, with the settings that commits need."""
    with active(spark):
        session = spark.newSession()
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    return session


@contextlib.contextmanager
def lost_races() -> Iterator[None]:
    """Turns Delta's conflict errors into ``LostRace`` during the block."""
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


def _class(jvm: Any, name: str) -> Any:
    """Loads a Java class with the session's class loader, because other loaders do not know added jars."""
    return jvm.java.lang.Class.forName(name, True, jvm.java.lang.Thread.currentThread().getContextClassLoader())


def _has(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _class(jvm, name)
    except Py4JJavaError:
        return False
    return True
