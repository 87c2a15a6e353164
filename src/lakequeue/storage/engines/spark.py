"""The Spark engine, whose tables commit through Delta. It serves as a reference for the point engine.

Delta checks each commit for conflicts with all commits since the loaded version. MERGE is the exception: it starts
its own transaction on the newest version. A MERGE is fenced by an application id instead: Delta skips the MERGE if
another commit has already set the id's version.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakequeue.storage.engines import delta_internals, entries, process, spark_access
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.data_files import DataFile, partition_text
from lakequeue.storage.engines.delta_internals import SparkDeltaLog, active, lost_races, new_session
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.roots import spark_uri
from lakequeue.storage.snapshot import Snapshot
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMMITTED = "spark.databricks.delta.lastCommitVersionInSession"
_ROW_ORDER = ("position", "first_offset")
"""Columns that sort the rows of a file. Only the first of these columns that the table has is used."""


class SparkTable(Table):
    """A handle on a Delta table that commits through Spark. Reads need no JVM. Other sessions may also commit."""

    commits_alone = True

    def __init__(self, spark: SparkSession, store: Store, path: str) -> None:
        self._spark = spark
        self._uri = spark_uri(path)
        self._session = new_session(spark)
        self._log = SparkDeltaLog(self._session, self._uri)
        self._delta = self._log.update()
        """Delta's snapshot for the next commit. Not newer than ``version``, so Delta checks all commits since."""
        super().__init__(store, path)
        self._partitions = self.state.partitions
        schema = json.loads(self.state.metadata["schemaString"])
        self._columns = [field["name"] for field in schema["fields"]]

    def _follow(self, follow: Callable[[Snapshot], bool]) -> None:
        self._delta = self._log.update()
        super()._follow(follow)

    def append(
        self,
        rows: pa.Table,
        transactions: Mapping[str, int],
        token: str,
        partition: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (partition or {}).items():
            rows = rows.append_column(name, pa.array([value] * len(rows)))
        self._commit([], [rows], transactions, token)

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        now = int(time.time() * 1000)
        actions = [json.dumps({"add": entries.add_action(file, now)}) for file in files]
        self._commit(actions, [], transactions, token)

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
        answers: str | None = None,
    ) -> None:
        self._commit([], rows, transactions, token, partition)

    def merge(
        self,
        source: pa.Table,
        key: str,
        transactions: Mapping[str, int],
        token: str,
        answers: str | None = None,
    ) -> None:
        """Merges rows. The fence is the first id in ``transactions``. Each commit must raise the version of this
        id by one. If another commit has raised it since the loaded snapshot, Delta skips the merge.
        """
        from delta.tables import DeltaTable

        app_id, version = next(iter(transactions.items()))
        decided_on = self.transaction(app_id)
        session = new_session(self._spark)  # only a fresh session reports if it committed
        for name, value in {
            "spark.databricks.delta.write.txnAppId": app_id,
            "spark.databricks.delta.write.txnVersion": str(version),
            "spark.databricks.delta.commitInfo.userMetadata": token,
        }.items():
            session.conf.set(name, value)
        updates = {f"`{name}`": f"s.`{name}`" for name in self._columns}
        same = [f"t.`{name}` = s.`{name}`" for name in (key, *self._partitions)]
        predicate = " AND ".join([*same, *_pruning(source, key, self._partitions)])
        with lost_races(), active(session):
            self.refresh()
            if self.transaction(app_id) != decided_on:
                raise LostRace(f"{app_id} moved on from {decided_on}")
            (
                DeltaTable.forPath(session, self._uri)
                .alias("t")
                .merge(session.createDataFrame(source).coalesce(1).alias("s"), predicate)
                .whenMatchedDelete("s.op = 'del'")
                .whenMatchedUpdate(set=updates)
                .whenNotMatchedInsert("s.op = 'put'", values=updates)
                .execute()
            )
            if session.conf.get(_COMMITTED, "") == "":
                raise LostRace(f"{app_id} had reached {version} before")
        self._after_commit()

    def _commit(
        self,
        actions: Sequence[Any],
        tables: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
        replaced: Mapping[str, Sequence[int | bool | str]] | None = None,
    ) -> None:
        """Commits on the loaded version. Removes the files whose partition values are in ``replaced``."""
        now = int(time.time() * 1000)
        ids = [
            json.dumps({"txn": {"appId": app_id, "version": version, "lastUpdated": now}})
            for app_id, version in transactions.items()
        ]
        frames = (self._frame(table) for table in tables)
        with lost_races():
            removed = [] if replaced is None else self._log.removals(self._delta, replaced)
            self._log.commit(self._delta, [*ids, *actions, *removed], frames, transactions, token)
        self._after_commit()

    def _after_commit(self) -> None:
        self.refresh()
        if self.folder.syncs:
            os.sync()  # Spark does not

    def _frame(self, rows: pa.Table) -> DataFrame:
        """Returns rows as a DataFrame in one partition, sorted by partition columns and one of ``_ROW_ORDER``."""
        order = [name for name in _ROW_ORDER if name in self._columns][:1]
        df = self._session.createDataFrame(rows.select(self._columns)).coalesce(1)
        keys = [*self._partitions, *order]
        return df.sortWithinPartitions(*keys) if keys else df


class SparkEngine(Engine):
    """Opens tables that commit through delta-spark."""

    name = "spark"
    commits_alone = True

    def __init__(self, spark: SparkSession, store: Store) -> None:
        process.note_use()
        delta_internals.require(spark)
        spark_access.require_atomic_commits(store)
        spark_access.allow(spark, store)
        super().__init__(store)
        self._spark = spark

    def open(self, path: str) -> SparkTable:
        return SparkTable(self._spark, self.store, path)


def _pruning(source: pa.Table, key: str, partitions: Sequence[str]) -> list[str]:
    """Returns SQL conditions with which a MERGE reads fewer files and has fewer conflicts."""
    found = [
        f"t.`{name}` IN ({', '.join(map(partition_text, source[name].unique().to_pylist()))})"
        for name in partitions
    ]
    if pa.types.is_integer(source[key].type):
        numbers = sorted(source[key].to_pylist())
        # the head's row, which every commit to a ledger writes, lies apart from the others
        found.append(
            f"(t.`{key}` = {numbers[0]} OR t.`{key}` BETWEEN {numbers[1 % len(numbers)]} AND {numbers[-1]})"
        )
    return found
