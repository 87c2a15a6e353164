"""Files of a bulk send that wait below the ``messages`` tables for their commits, and their manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.errors import QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.engines.interface import DataFile, Table
from lakequeue.storage.engines.locks import local_path
from lakequeue.storage.folder import Folder

ROW_GROUP = 4 << 20
"""Bytes. A receive of ten messages reads a row group; out of large ones it took 2 s."""

_FOLDER = "manifests"
LONGEST_WAIT = 12 * 3600.0
"""Seconds that files wait for their commit: half of what VACUUM keeps."""

_COLUMNS = pa.schema([field for field in layout.MESSAGES if field.name not in layout.MESSAGE_PARTITIONS])


@attrs.frozen
class SendKey:
    """What a bulk send is recognised by when it is repeated, for good.

    It has reached a shard once the application id has the version there.
    """

    app_id: str
    version: int
    files: str
    """SendKey of the files that wait for the commits; message ids are derived from it."""
    of_stream: bool = False
    anonymous: bool = False
    """Its caller knows no name, so it is not repeated; but it may have to be completed."""

    @classmethod
    def of_send(cls, send_id: str) -> SendKey:
        """A send that its caller has named."""
        return cls(layout.bulk_id(send_id), 1, send_id)

    @classmethod
    def of_batch(cls, stream: str, batch: int) -> SendKey:
        """A micro-batch of a stream, whose batches come in the order of their numbers, from 0 on."""
        return cls(layout.stream_id(stream), batch + 1, f"stream-{stream}-{batch}", of_stream=True)

    @classmethod
    def new(cls) -> SendKey:
        """A send without a name."""
        id = uuid.uuid4().hex
        return cls(layout.bulk_id(id), 1, id, anonymous=True)

    def reached(self, table: Table) -> bool:
        """Whether the loaded snapshot of a shard's ``messages`` has this send, or a later batch of its stream."""
        return (table.transaction(self.app_id) or 0) >= self.version


@attrs.frozen
class WaitingFile:
    """A file below the ``messages`` table of a shard that is not committed yet."""

    shard: int
    file: DataFile
    """Its ``partition`` is empty until the commit fixes it."""


@attrs.frozen
class Manifest:
    """Files of a bulk send that wait for their commits, one for each shard."""

    send_id: str
    app_id: str | None
    """What each shard's commit is recognised by, see ``SendKey``; None if its one commit needs no completion."""
    version: int
    files: Sequence[WaitingFile]
    """In the order of the DataFrame's partitions."""
    written_at: float = attrs.field(factory=time.time, eq=False)
    """By the machine's wall clock, in seconds."""

    @property
    def rows(self) -> int:
        """Messages in all files."""
        return sum(waiting.file.rows for waiting in self.files)

    @property
    def shards(self) -> list[int]:
        """The shards that it has messages for."""
        return list(dict.fromkeys(waiting.shard for waiting in self.files))

    @property
    def too_old(self) -> bool:
        """Whether VACUUM may take its files before they are committed."""
        return time.time() - self.written_at > LONGEST_WAIT

    def reached(self, table: Table) -> bool:
        """As ``SendKey.reached``."""
        return self.app_id is not None and (table.transaction(self.app_id) or 0) >= self.version

    def of(self, shard: int) -> list[DataFile]:
        """The files of a shard."""
        return [waiting.file for waiting in self.files if waiting.shard == shard]


# -- manifests -------------------------------------------------------------------------------------------------


def load_manifest(tables_path: str, send_id: str) -> Manifest | None:
    """The manifest of a bulk send that was staged below a queue's directory, None if there is none."""
    return _load(tables_path, _manifest_name(send_id))


def manifests(tables_path: str) -> Iterator[Manifest]:
    """Every manifest below a queue's directory."""
    for entry in Folder(tables_path).files(_FOLDER):
        found = _load(tables_path, entry.name) if entry.name.endswith(".json") else None
        if found is not None:
            yield found


def _load(tables_path: str, name: str) -> Manifest | None:
    folder = Folder(tables_path)
    try:
        plain, written_at = json.loads(folder.read(name)), folder.modified(name)
    except FileNotFoundError:  # gone before, or between the two
        return None
    files = [WaitingFile(each["shard"], DataFile(**each["file"])) for each in plain["files"]]
    return Manifest(plain["send_id"], plain["app_id"], plain["version"], files, written_at)


def check_there(messages_path: str, files: Sequence[DataFile]) -> None:
    """Raises FileNotFoundError if VACUUM took one of the files; for those who hold the lock of a local table."""
    local = local_path(messages_path)
    gone = [] if local is None else [file.path for file in files if not os.path.exists(f"{local}/{file.path}")]
    if gone:
        raise FileNotFoundError(f"{len(gone)} of {len(files)} files waited too long and were removed")


def write_manifest(tables_path: str, manifest: Manifest) -> Manifest:
    """Writes the manifest unless there is one; returns the one that is there."""
    stored = attrs.filters.exclude(attrs.fields(Manifest).written_at)
    text = json.dumps(attrs.asdict(manifest, filter=stored, value_serializer=_plain)).encode()
    # two attempts agree on one
    while not Folder(tables_path).create(_manifest_name(manifest.send_id), text):
        there = load_manifest(tables_path, manifest.send_id)
        if there is not None:
            return there
    return manifest


def forget(tables_path: str, send_id: str) -> None:
    """Removes the manifest of a send, if there is one; its files belong to the tables by now, or to VACUUM."""
    Folder(tables_path).remove([_manifest_name(send_id)])


def discard(root: str, key: str, send_id: str) -> None:
    """Removes the manifest of a send and its files; only for a send that reached no shard."""
    tables_path = layout.tables_path(root, key)
    manifest = load_manifest(tables_path, send_id)
    if manifest is None:
        return
    forget(tables_path, send_id)
    for shard in manifest.shards:
        for folder in {os.path.dirname(file.path) for file in manifest.of(shard)}:
            with contextlib.suppress(OSError):
                delete_folder(layout.messages_path(root, key, shard), folder)


def _manifest_name(send_id: str) -> str:
    return f"{_FOLDER}/{_safe(send_id)}.json"


def _safe(send_id: str) -> str:
    """A directory name for a send id, which is the caller's and may be anything."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", send_id):
        return send_id
    return f"sha256-{hashlib.sha256(send_id.encode()).hexdigest()}"


def _plain(_: object, __: object, value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


# -- files -----------------------------------------------------------------------------------------------------


def new_folder(send_id: str) -> str:
    """Where one attempt at a send leaves its files, below the table."""
    return f"bulk/{_safe(send_id)}/{uuid.uuid4().hex[:8]}"


def delete_folder(messages_path: str, name: str) -> None:
    """Removes a folder with all files in it."""
    folder = Folder(messages_path)
    if folder.local is not None:
        shutil.rmtree(folder.path(name), ignore_errors=True)
    else:
        folder.remove(entry.name for entry in folder.files(name))


def written(messages_path: str, name: str) -> Iterator[DataFile]:
    """What Spark wrote into a folder, in the order of its partitions, without empty files."""
    folder = Folder(messages_path)
    for entry in sorted(folder.files(name)):
        if entry.name.endswith(".parquet") and "/." not in entry.name:
            file = _described(folder, entry.name, entry.size)
            if file.rows:
                yield file


def columns_of(messages_path: str, file: DataFile, columns: Sequence[str]) -> pa.Table:
    """Some columns of a file."""
    with Folder(messages_path).open(file.path, file.size) as source, pq.ParquetFile(source) as parquet:
        return parquet.read(columns)


def shard_of(messages_path: str, file: DataFile, shards: int) -> int:
    """The shard that the message groups of a file belong to."""
    if shards == 1:
        return 0
    with Folder(messages_path).open(file.path, file.size) as source, pq.ParquetFile(source) as parquet:
        group = parquet.read_row_group(0, ["group_id"])["group_id"][0].as_py()
    return zlib.crc32(group.encode()) % shards


def move(root: str, key: str, file: DataFile, source: int, target: int) -> None:
    """Moves a file that waits from one shard to the same path in another."""
    if source != target:
        tables = Folder(layout.tables_path(root, key))
        tables.move(f"{source}/messages/{file.path}", f"{target}/messages/{file.path}")


def rewritten(messages_path: str, file: DataFile, kept: npt.NDArray[np.bool_]) -> DataFile:
    """Writes the rows to keep beside a file that waits, numbered from 0 again."""
    folder = Folder(messages_path)
    path = f"{os.path.dirname(file.path)}/kept-{uuid.uuid4().hex}.parquet"
    with (
        folder.open(file.path, file.size) as whole,
        pq.ParquetFile(whole) as source,
        folder.writer(path) as output,
        pq.ParquetWriter(
            output,
            _COLUMNS,
            compression="snappy",
            use_dictionary=["group_id", "send_id"],  # of the others, a dictionary is built for nothing
        ) as target,
    ):
        count = 0
        for rows in _joined(_kept(source, kept)):
            positions = pa.array(np.arange(count, count + len(rows)), pa.int64())
            target.write_table(rows.set_column(0, "position", positions))
            count += len(rows)
    return _described(folder, path, folder.size(path))


def _kept(source: pq.ParquetFile, kept: npt.NDArray[np.bool_]) -> Iterator[pa.Table]:
    start = 0
    for group in range(source.num_row_groups):
        stop = start + source.metadata.row_group(group).num_rows
        if kept[start:stop].any():
            rows = source.read_row_group(group).select(_COLUMNS.names).cast(_COLUMNS)
            yield rows.filter(pa.array(kept[start:stop]))
        start = stop


def _joined(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of the size of a row group, however little of each was kept."""
    pending: list[pa.Table] = []
    for part in parts:
        pending.append(part)
        if sum(rows.nbytes for rows in pending) >= ROW_GROUP:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)


def _described(folder: Folder, path: str, size: int) -> DataFile:
    with folder.open(path, size) as stream:
        footer = pq.read_metadata(stream)
    minimum, maximum, nulls = _statistics(footer)
    bounds = minimum.get("position"), maximum.get("position")
    if footer.num_rows and bounds != (0, footer.num_rows - 1):
        raise QueueClientError(f"the rows of {path} are numbered otherwise than from 0 on")
    return DataFile(path, size, footer.num_rows, {}, minimum, maximum, nulls)


def _statistics(
    footer: pq.FileMetaData,
) -> tuple[dict[str, int | float], dict[str, int | float], dict[str, int]]:
    minimum: dict[str, int | float] = {}
    maximum: dict[str, int | float] = {}
    nulls: dict[str, int] = {}
    # sent_at: NULL throughout, it is the opening of the segment
    nulls["sent_at"] = footer.num_rows
    columns = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    for name in ("position", "delay_seconds", "source_receive_count"):
        groups = [footer.row_group(g).column(columns[name]).statistics for g in range(footer.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounds = [group for group in groups if group.has_min_max]
        if bounds and nulls[name] + sum(group.num_values for group in bounds) == footer.num_rows:
            minimum[name] = min(group.min for group in bounds)
            maximum[name] = max(group.max for group in bounds)
    return minimum, maximum, nulls
