"""Appends the rows of a Spark DataFrame to a delivery table. Spark's tasks write the files (TAB-30)."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import attrs
import pyarrow as pa

from lakequeue.errors import QueueClientError, RowsRefused, TableUnavailable
from lakequeue.storage.delivery.identity import DeliveryIdentity
from lakequeue.storage.delivery.rows import new_schema
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot, DeltaDeliveryTable
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.spark_access import arrow_schema, is_stopped, quiet_about_pandas
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from deltalake import Field
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame

_PIECE = 128 << 20
"""Bytes of rows that a task collects before it writes them to a file."""
_OLD = 3_600
"""Age in seconds at which uncommitted files are checked before a commit, as ``VACUUM`` may have removed them."""
_NOBODY = DeliveryIdentity("rows", 1, "", 0)
"""Placeholder identity for appends to a task's temporary table."""


@attrs.frozen
class TaskFiles:
    """Files that a task has written into the table's directory, and that are not committed yet. Can be pickled."""

    files: Sequence[AddAction] = ()
    rows: int = 0
    columns: str = ""
    """Columns of the files as JSON. Empty if there are no rows."""


@attrs.frozen
class RowsTask:
    """Writes the rows of a Spark task to files in the table's directory. Can be pickled.

    The task does not open the delivery table. It writes to a temporary table with the same columns and
    constraints, which raises the same errors. The temporary table's log begins with the entry ``log``.
    """

    store: Store
    log: str
    merge_schema: bool

    def pickled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Calls ``write``. Yields its result, or its error, pickled and in a single row."""
        result: TaskFiles | Exception
        try:
            result = self.write(_pieces(batches))
        except (RowsRefused, TableUnavailable) as error:
            error.__cause__ = error.__context__ = None
            result = error
        yield pa.record_batch({"result": pa.array([pickle.dumps(result)], pa.binary())})

    def write(self, pieces: Iterable[pa.Table]) -> TaskFiles:
        """Writes the rows to files in the table's directory. Raises RowsRefused or TableUnavailable."""
        rows = 0
        with TemporaryDirectory(prefix="lakequeue-rows-") as scratch:
            snapshot = None
            for piece in pieces:
                if snapshot is None:
                    LocalFolder(scratch, syncs=False).create(entry_name(0), self.log.encode())
                    snapshot = DeltaDeliveryTable(scratch, {}, self.store.root, syncs=False).read()
                    assert snapshot is not None
                snapshot.append(_NOBODY, piece, self.merge_schema)
                rows += len(piece)
            if snapshot is None:
                return TaskFiles()
            try:
                files = list(self._moved(scratch, snapshot))
            except Exception as error:
                raise TableUnavailable(self.store.root, f"cannot be written: {first_line(error)}") from error
            return TaskFiles(files, rows, snapshot.handle.schema().to_json())

    def _moved(self, scratch: str, snapshot: DeltaDeliverySnapshot) -> Iterator[AddAction]:
        from deltalake.transaction import AddAction

        folder = self.store.folder(self.store.root)
        for version in range(1, snapshot.version + 1):
            entry = snapshot.target.entry(version) or ()
            for add in [action["add"] for action in entry if "add" in action]:
                path = unquote(add["path"])
                # in the directory of its partition, because polars takes the values of partition columns from it
                name = os.path.join(os.path.dirname(path), f"part-{uuid.uuid4().hex}.parquet")
                with open(f"{scratch}/{path}", "rb") as source, folder.writer(name) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                yield AddAction(
                    name, add["size"], add["partitionValues"], add["modificationTime"], True, add["stats"]
                )


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _PIECE:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


class FrameRows:
    """The rows of a DataFrame to append. Spark computes them once, and again only if the table changes.

    If ``merge_schema`` is True, new columns are added to the table. Raises QueueClientError for a stopped session,
    RowsRefused for two columns of one name.
    """

    def __init__(self, df: DataFrame, merge_schema: bool) -> None:
        if is_stopped(df.sparkSession):
            raise QueueClientError("append needs Spark, and the session of the DataFrame was stopped")
        self._df, self._merge_schema = df, merge_schema
        for name, count in Counter(map(self._known, df.columns)).items():
            if count > 1:
                raise RowsRefused(f"column {name} is there {count} times", name)
        self._fits: Collection[str] = ()  # the logs of temporary tables whose files these are
        self._written = TaskFiles()
        self._began = 0.0

    def _known(self, name: str) -> str:
        return name if self._df.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else name.lower()

    def schema(self) -> pa.Schema:
        """Returns the schema for a new table with these rows. Raises the errors of ``new_schema``."""
        return new_schema(arrow_schema(self._df.schema).empty_table())

    @property
    def num_rows(self) -> int:
        """Number of rows that were written."""
        return self._written.rows

    def files(self, snapshot: DeltaDeliverySnapshot) -> Sequence[AddAction]:
        """Returns the files with the rows. The first call writes them.

        A later call writes them again if a file no longer exists, or if the table's columns or properties changed.

        Raises RowsRefused if the table does not accept a row, TableUnavailable if a file cannot be written.
        """
        log = first_entry(snapshot, snapshot.handle.schema().to_json())
        if log not in self._fits or self._are_gone(snapshot):
            self._began = time.time()
            self._written = self._write(snapshot, log)
            self._fits = log, first_entry(snapshot, self._written.columns)
        return self._written.files

    def _are_gone(self, snapshot: DeltaDeliverySnapshot) -> bool:
        """True if a file no longer exists. Always False for files that are younger than ``_OLD`` seconds."""
        is_old = abs(time.time() - self._began) >= _OLD
        return is_old and not snapshot.target.has_files([file.path for file in self._written.files])

    def new_columns(self, snapshot: DeltaDeliverySnapshot) -> list[Field]:
        """Returns the columns of the files that the table does not have."""
        from deltalake import Field

        known = set(snapshot.schema.names)
        fields = json.loads(self._written.columns)["fields"] if self._written.columns else []
        return [Field.from_json(json.dumps(each)) for each in fields if each["name"] not in known]

    def _write(self, snapshot: DeltaDeliverySnapshot, log: str) -> TaskFiles:
        parts = self._run(RowsTask(snapshot.target.store, log, self._merge_schema), snapshot)
        for error in parts:
            if isinstance(error, Exception):
                raise error
        files = [file for part in parts for file in part.files]
        columns = next((part.columns for part in parts if part.columns), "")
        return TaskFiles(files, sum(part.rows for part in parts), columns)

    def _run(self, writer: RowsTask, snapshot: DeltaDeliverySnapshot) -> Sequence[Any]:
        """Runs ``writer`` in Spark's tasks. Returns a ``TaskFiles`` or an error for each task."""
        spelled = {self._known(name): name for name in snapshot.schema.names}
        df = self._df.toDF(*(spelled.get(self._known(name), name) for name in self._df.columns))
        with quiet_about_pandas():
            return [pickle.loads(row.result) for row in df.mapInArrow(writer.pickled, "result binary").collect()]


def first_entry(snapshot: DeltaDeliverySnapshot, columns: str) -> str:
    """Returns, as JSON, the first log entry of an empty delivery table with the schema ``columns``."""
    protocol, metadata = snapshot.handle.protocol(), snapshot.handle.metadata()
    versions: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    for name, features in (("reader", protocol.reader_features), ("writer", protocol.writer_features)):
        if features is not None:
            versions[f"{name}Features"] = sorted(features)
    described: Mapping[str, Any] = {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(sorted(metadata.configuration.items())),
    }
    return "".join(f"{json.dumps(each)}\n" for each in ({"protocol": versions}, {"metaData": described}))
