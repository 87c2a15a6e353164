"""Sends the rows of anything that speaks Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.operations.json_rows import Bodies
from lakequeue.operations.send_dataframe import send_staged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import arrow_files
from lakequeue.storage.bulk.arrow_order import check_order
from lakequeue.storage.bulk.arrow_rows import columns_of
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.folder import Folder
from lakequeue.storage.store_failures import first_line


def send_arrow(queue: OpenQueue, data: Any, send_id: str | None, order_by: str | None, body: str) -> int:
    """Sends every row as a message; returns how many."""
    name = None if send_id is None else SendKey.of_send(send_id)
    source = _Source(data)
    schema, batches = source.schema, source.batches
    if body != "body":
        bodies = Bodies(source.schema, body, order_by)
        schema, batches = bodies.schema, lambda: bodies.of(source.batches())

    def stage(tables: Folder, staging: Staging) -> Manifest:
        check_order(schema, order_by)
        return arrow_files.stage(tables, staging, batches())

    return send_staged(queue, columns_of(schema), name, order_by, stage, "send_arrow")


class _Source:
    """Rows that are read once, or again if the queue's attributes changed meanwhile."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._reader: pa.RecordBatchReader | None = self._open()
        self._rows: int | None = None  # that the first reading found
        self.schema = self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        reader, self._reader = self._reader or self._open(), None
        rows = 0
        try:
            for batch in reader:
                rows += len(batch)
                yield batch
        except (OSError, pa.ArrowException) as error:
            raise QueueClientError(f"Nothing was sent: reading the rows failed: {first_line(error)}") from error
        if self._rows not in (None, rows):  # a reader gives its rows only once
            raise QueueClientError(
                "Nothing was sent: the queue's attributes changed meanwhile, and the rows cannot be read again; "
                "repeat the call"
            )
        self._rows = rows

    def _open(self) -> pa.RecordBatchReader:
        if isinstance(self._data, pa.RecordBatchReader):
            return self._data
        try:
            return pa.RecordBatchReader.from_stream(self._data)
        except (TypeError, pa.ArrowException) as error:
            raise InvalidParameterValue.of(
                type(self._data).__name__,
                "data",
                "Must be a pyarrow Table, RecordBatch or RecordBatchReader, or have columns and "
                f"__arrow_c_stream__ ({first_line(error)}).",
            ) from None
