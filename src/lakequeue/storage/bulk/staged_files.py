"""Parquet files of a bulk send below the ``messages`` tables."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.model.names import shard_of_group
from lakequeue.storage import layout
from lakequeue.storage.engines.data_files import DataFile, Description
from lakequeue.storage.folder import Folder
from lakequeue.storage.parquet_files import ANY, row_groups, writer

ROW_GROUP = 4 << 20
"""Approximate size of a row group in bytes. A receive reads complete row groups."""

COLUMNS = layout.FILES["messages"]


def check_exist(messages: Folder, files: Sequence[DataFile]) -> None:
    """Raises FileNotFoundError if a local file was removed. Call this while holding the table's lock."""
    gone = [] if messages.local is None else [file.path for file in files if not messages.exists(file.path)]
    if gone:
        raise FileNotFoundError(f"{len(gone)} of {len(files)} files waited too long and were removed")


def safe_name(send_id: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", send_id):
        return send_id
    return f"sha256-{hashlib.sha256(send_id.encode()).hexdigest()}"


def folder_of(send_id: str, attempt: str) -> str:
    """Returns the directory for the files of one attempt at a send, relative to the table."""
    return f"bulk/{safe_name(send_id)}/{attempt}"


def read_spilled(messages: Folder, file: DataFile) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a temporary file, one row group at a time."""
    with messages.parquet(file.path, file.size, ANY) as parquet:
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group, use_threads=False).to_batches()


def shard_of(messages: Folder, file: DataFile, shards: int) -> int:
    """Returns the shard of a file whose message groups all belong to one shard."""
    if shards == 1:
        return 0
    with messages.parquet(file.path, file.size) as parquet:
        group = parquet.read_row_group(0, ["group_id"], use_threads=False)["group_id"][0].as_py()
    return shard_of_group(group, shards)


def move_file(tables: Folder, file: DataFile, source: int, target: int) -> None:
    if source != target:
        tables.move(f"{source}/messages/{file.path}", f"{target}/messages/{file.path}")


def new_name(partition: int, kind: str) -> str:
    """Returns a name for a new file. Names sort by ``partition``."""
    return f"{kind}-{partition:05}-{uuid.uuid4().hex}.parquet"


class NumberedFile:
    """Writer for a file of the table ``messages``. The rows get the positions 0, 1, 2 and so on."""

    def __init__(self, messages: Folder, path: str, target: pq.ParquetWriter) -> None:
        self._messages, self._path, self._target = messages, path, target
        self._description = Description()

    def write(self, rows: pa.Table, row_group_size: int | None = None) -> None:
        begin = self._description.rows
        rows = layout.with_column(rows, "position", pa.array(np.arange(begin, begin + len(rows)), pa.int64()))
        self._description.add(rows)
        self._target.write_table(rows, row_group_size=row_group_size)

    def described(self) -> DataFile:
        return self._description.file(self._path, self._messages.entry(self._path).size, {})


@contextmanager
def numbered_file(messages: Folder, path: str) -> Iterator[NumberedFile]:
    """Opens a new file of the table ``messages`` during the block. Yields the writer."""
    options: dict[str, Any] = {
        "compression": "snappy",
        "store_schema": False,  # readers know it
        "use_dictionary": ["group_id", "send_id"],  # no others repeat
        "write_statistics": ["position"],  # by which Spark skips row groups; others would only fill the footer
    }
    with messages.writer(path) as output, writer(output, COLUMNS, **options) as target:
        yield NumberedFile(messages, path, target)


def rewrite(folder: Folder, file: DataFile, kept: npt.NDArray[np.bool_]) -> DataFile:
    """Copies the rows where ``kept`` is True into a new file. Their positions begin with 0."""
    path = f"{os.path.dirname(file.path)}/kept-{uuid.uuid4().hex}.parquet"
    with folder.parquet(file.path, file.size) as source, numbered_file(folder, path) as target:
        for rows in _row_groups(_kept(source, kept)):
            target.write(rows)
    return target.described()


def _kept(source: pq.ParquetFile, kept: npt.NDArray[np.bool_]) -> Iterator[pa.Table]:
    for group, start, stop in row_groups(source):
        if kept[start:stop].any():
            rows = layout.message_rows(source.read_row_group(group, use_threads=False))
            yield rows.filter(pa.array(kept[start:stop]))


def _row_groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    for part in parts:
        pending.append(part)
        if sum(rows.nbytes for rows in pending) >= ROW_GROUP:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)
