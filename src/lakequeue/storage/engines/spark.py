"""The Spark engine: one Delta table through delta-spark, the reference for the point engine's commits.

Commits use Delta's optimistic transaction on the snapshot that the handle has loaded. So a commit carries several
application ids, adds staged files as they are, and is checked by Delta against every commit since that snapshot.
Only MERGE starts a transaction of its own; there the fence is the stale-id check of a fresh session.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage.delta_log import LiveFile, live_file
from lakequeue.storage.engines import delta_internals, entries, process, spark_access
from lakequeue.storage.engines.delta_internals import Log, active
from lakequeue.storage.engines.interface import DataFile, LostRace, Table, partition_text
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.spark_session import lost_races, new_session
from lakequeue.storage.roots import local_path, spark_uri
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMMITTED = "spark.databricks.delta.lastCommitVersionInSession"
_ROW_ORDER = ("position", "first_offset")
"""The rows of a file are sorted by the first of these columns that the table has."""


class SparkTable:
    """One handle on one Delta table; ``interface.Table`` documents the methods."""

    commits_alone = True

    def __init__(self, spark: SparkSession, store: Store, path: str) -> None:
        self.path = path
        self.folder = store.folder(path)
        self.lost_races = 0
        self._syncs = store.syncs and self.folder.local is not None
        self._spark = spark
        self._uri = spark_uri(path)
        self._session = new_session(spark)
        self._log = Log(self._session, self._uri)
        self._files: list[LiveFile] | None = None
        self.refresh()
        self._partitions = self._snapshot.partitions
        self._schema = self._snapshot.schema

    @property
    def version(self) -> int:
        return self._snapshot.version

    def refresh(self) -> None:
        asked_at = time.time()
        snapshot = self._log.update()
        if self._files is not None and snapshot.version != self.version:
            self._files = None
        self._snapshot = snapshot
        self.loaded_at = asked_at

    def learn(self, other: Table) -> None:
        pass

    def advance(self) -> None:
        pass

    def transaction(self, app_id: str) -> int | None:
        with active(self._session):  # after a checkpoint this reads it
            return self._snapshot.transaction(app_id)

    def files(self) -> list[LiveFile]:
        if self._files is None:
            with active(self._session):
                self._files = [live_file(add) for add in self._snapshot.adds()]
        return self._files

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        if not files:
            return []
        rows = self._rows(files, columns)
        uris = rows["_file"].unique().to_pylist()
        tables = []
        for file in files:
            # the path in the log and the URI from Spark are each URL-encoded once
            mine = pa.array([uri for uri in uris if unquote(uri).endswith(f"/{file.name}")], pa.string())
            own = rows.filter(pc.is_in(rows["_file"], mine)).sort_by("_row")
            tables.append(own.drop_columns(["_file", "_row"]).combine_chunks())
        return tables

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        condition = f"_row BETWEEN {int(first)} AND {int(last)}"
        start = file.minimum.get("position")
        if start is not None:  # this column has statistics, so other row groups are skipped
            condition += f" AND position BETWEEN {start + int(first)} AND {start + int(last)}"
        rows = self._rows([file], columns, condition)
        return rows.sort_by("_row").drop_columns(["_file", "_row"]).combine_chunks()

    def append(self, rows: pa.Table, transactions: Mapping[str, int], token: str) -> None:
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
    ) -> None:
        values = {name: {partition_text(value) for value in among} for name, among in partition.items()}
        with active(self._session):
            removed = self._snapshot.removals(values)
        self._commit(removed, rows, transactions, token)

    def merge(
        self,
        source: pa.Table,
        key: str,
        transactions: Mapping[str, int],
        token: str,
        known: dict[str, pa.Table] | None = None,
    ) -> None:
        """The fence is the first of ``transactions``: Delta's MERGE takes one id, the others are dropped.

        Each commit must raise it by one, so that of two commits the second finds it taken.
        """
        from delta.tables import DeltaTable

        app_id, version = next(iter(transactions.items()))
        decided_on = self.transaction(app_id)
        session = new_session(self._spark)  # only a fresh session tells whether it committed
        for name, value in {
            "spark.databricks.delta.write.txnAppId": app_id,
            "spark.databricks.delta.write.txnVersion": str(version),
            "spark.databricks.delta.commitInfo.userMetadata": token,
        }.items():
            session.conf.set(name, value)
        names = [field["name"] for field in self._schema["fields"]]
        updates = {f"`{name}`": f"s.`{name}`" for name in names}
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
        self._committed()

    def landed(self, token: str, since: int) -> bool | None:
        from delta.tables import DeltaTable

        behind = self.version - since
        if behind <= 0:
            return None
        history = DeltaTable.forPath(self._session, self._uri).history(behind)
        read = [row.userMetadata for row in history.select("userMetadata").collect()]
        return token in read or (False if len(read) == behind else None)

    def checkpoint(self) -> None:
        self.refresh()
        self._log.checkpoint(self._snapshot)

    # -- commits -----------------------------------------------------------------------------------------------

    def _commit(
        self, actions: Sequence[Any], tables: Iterable[pa.Table], transactions: Mapping[str, int], token: str
    ) -> None:
        """Commits on the loaded snapshot."""
        now = int(time.time() * 1000)
        ids = [
            json.dumps({"txn": {"appId": app_id, "version": version, "lastUpdated": now}})
            for app_id, version in transactions.items()
        ]
        frames = (self._frame(table) for table in tables)
        with lost_races():
            self._log.commit(self._snapshot, [*ids, *actions], frames, transactions, token)
        self._committed()

    def _committed(self) -> None:
        self.refresh()
        if self._syncs:
            os.sync()  # Spark does not

    def _frame(self, rows: pa.Table) -> DataFrame:
        """Rows as one Spark partition, sorted by the table's partitions and its row order."""
        names = [field["name"] for field in self._schema["fields"]]
        order = [name for name in _ROW_ORDER if name in names][:1]
        df = self._session.createDataFrame(rows.select(names)).coalesce(1)
        keys = [*self._partitions, *order]
        return df.sortWithinPartitions(*keys) if keys else df

    # -- reading -----------------------------------------------------------------------------------------------

    def _rows(
        self, files: Sequence[LiveFile], columns: Sequence[str] | None, condition: str | None = None
    ) -> pa.Table:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        data = [field for field in self._schema["fields"] if field["name"] not in self._partitions]
        schema = StructType.fromJson({"type": "struct", "fields": data})
        wanted = list(columns) if columns is not None else [field["name"] for field in data]
        with active(self._session):
            reader = self._session.read.schema(schema).option("__globPaths__", "false")
            rows = reader.parquet(*(f"{self._uri}/{file.name}" for file in files))
            rows = rows.withColumns({"_file": F.col("_metadata.file_path"), "_row": F.col("_metadata.row_index")})
            if condition is not None:
                rows = rows.where(condition)
            table = rows.select(*(f"`{name}`" for name in wanted), "_file", "_row").toArrow()
        return table


class SparkEngine:
    """Opens and creates tables through delta-spark."""

    name = "spark"
    commits_alone = True

    def __init__(self, spark: SparkSession, store: Store) -> None:
        process.note_use()
        delta_internals.require(spark)
        spark_access.require_atomic_commits(store)
        spark_access.allow(spark, store)
        self._spark = spark
        self.store = store

    def exists(self, path: str) -> bool:
        from delta.tables import DeltaTable

        return bool(DeltaTable.isDeltaTable(self._spark, spark_uri(path)))

    def open(self, path: str) -> SparkTable:
        if not self.exists(path):
            raise FileNotFoundError(path)
        return SparkTable(self._spark, self.store, path)

    def create(
        self,
        path: str,
        schema: pa.Schema,
        partitions: Sequence[str],
        properties: Mapping[str, str],
        rows: pa.Table | None = None,
    ) -> None:
        # CREATE TABLE refuses a log retention below that of files, and enables features of its own
        actions = entries.creation(schema, partitions, properties)
        local = local_path(path)
        if local is not None:
            os.makedirs(local, exist_ok=True)
        session = new_session(self._spark)
        with committing(path, exclusive=True):
            log = Log(session, spark_uri(path))
            snapshot = log.update()
            if snapshot.version >= 0:
                return
            with contextlib.suppress(LostRace), lost_races():  # another process has just created it
                log.commit(snapshot, list(map(json.dumps, actions)), [], [], "created")
        if rows is not None:
            self.open(path).append(rows, {"created": 1}, "created")


def _pruning(source: pa.Table, key: str, partitions: Sequence[str]) -> list[str]:
    """Conditions of a MERGE in literals, by which Delta skips files and narrows conflicts."""
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
