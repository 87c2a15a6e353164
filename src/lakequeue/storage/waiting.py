"""Files of a bulk send that wait below the ``messages`` table for their commit, and their manifest."""

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
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from lakequeue.errors import QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.engine import DataFile
from lakequeue.storage.locks import local_path
from lakequeue.storage.sweep import filesystem_of

ROW_GROUP = 4 << 20
"""Bytes. A receive of ten messages reads a row group; out of large ones it took 2 s."""

LONGEST_WAIT = 12 * 3600.0
"""Seconds that files wait for their commit: half of what VACUUM keeps."""

_COLUMNS = pa.schema([field for field in layout.MESSAGES if field.name not in layout.MESSAGE_PARTITIONS])


@attrs.frozen
class Manifest:
    """Files of a bulk send that wait for their commit."""

    send_id: str
    files: Sequence[DataFile]
    """In the order of the DataFrame's partitions; ``partition`` is empty until the commit fixes it, but names
    the shard on FIFO queues."""
    written_at: float = attrs.field(factory=time.time, eq=False)
    """By the machine's wall clock, in seconds."""

    @property
    def rows(self) -> int:
        """Messages in all files."""
        return sum(file.rows for file in self.files)

    @property
    def too_old(self) -> bool:
        """Whether VACUUM may take its files before they are committed."""
        return time.time() - self.written_at > LONGEST_WAIT


# -- manifests -------------------------------------------------------------------------------------------------


def load_manifest(messages_path: str, send_id: str) -> Manifest | None:
    """The manifest of a bulk send that was staged here, None if there is none."""
    filesystem, base = filesystem_of(messages_path)
    path = f"{base}{_manifest_name(send_id)}"
    try:
        with filesystem.open_input_stream(path) as stream:
            plain = json.loads(stream.read())
        written_at = filesystem.get_file_info(path).mtime.timestamp()
    except (FileNotFoundError, AttributeError):  # gone before, or between the two
        return None
    return Manifest(plain["send_id"], [DataFile(**file) for file in plain["files"]], written_at)


def check_there(messages_path: str, files: Sequence[DataFile]) -> None:
    """Raises FileNotFoundError if VACUUM took one of the files; for those who hold the lock of a local table."""
    local = local_path(messages_path)
    gone = [] if local is None else [file.path for file in files if not os.path.exists(f"{local}/{file.path}")]
    if gone:
        raise FileNotFoundError(f"{len(gone)} of {len(files)} files waited too long and were removed")


def write_manifest(messages_path: str, manifest: Manifest) -> Manifest:
    """Writes the manifest unless there is one; returns the one that is there."""
    stored = attrs.filters.exclude(attrs.fields(Manifest).written_at)
    text = json.dumps(attrs.asdict(manifest, filter=stored, value_serializer=_plain)).encode()
    name = _manifest_name(manifest.send_id)
    local = local_path(messages_path)
    if local is None:
        there = load_manifest(messages_path, manifest.send_id)
        if there is not None:
            return there
        filesystem, base = filesystem_of(messages_path)
        with filesystem.open_output_stream(f"{base}{name}") as stream:  # object stores write all or nothing
            stream.write(text)
        return manifest
    target = os.path.join(local, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    draft = f"{target}.{uuid.uuid4().hex}"
    with open(draft, "wb") as stream:
        stream.write(text)
    try:
        os.link(draft, target)  # fails if it exists, so two attempts agree on one
    except FileExistsError:
        there = load_manifest(messages_path, manifest.send_id)
        if there is not None:
            return there
        raise
    finally:
        os.unlink(draft)
    return manifest


def forget(messages_path: str, send_id: str) -> None:
    """Removes the manifest of a send, if there is one; its files belong to the table by now, or to VACUUM."""
    filesystem, base = filesystem_of(messages_path)
    with contextlib.suppress(FileNotFoundError):
        filesystem.delete_file(f"{base}{_manifest_name(send_id)}")


def discard(messages_path: str, send_id: str) -> None:
    """Removes the manifest of a send and its files; only for a send that was never committed."""
    manifest = load_manifest(messages_path, send_id)
    if manifest is None:
        return
    forget(messages_path, send_id)
    for folder in {os.path.dirname(file.path) for file in manifest.files}:
        delete_folder(messages_path, folder)


def _manifest_name(send_id: str) -> str:
    return f"_manifests/{_safe(send_id)}.json"


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


def delete_folder(messages_path: str, folder: str) -> None:
    """Removes a folder with all files in it."""
    local = local_path(messages_path)
    if local is not None:
        shutil.rmtree(os.path.join(local, folder), ignore_errors=True)
        return
    filesystem, base = filesystem_of(messages_path)
    filesystem.delete_dir(f"{base}{folder}")


def delete_file(messages_path: str, path: str) -> None:
    """Removes a file."""
    filesystem, base = filesystem_of(messages_path)
    filesystem.delete_file(f"{base}{path}")


def written(messages_path: str, folder: str) -> Iterator[DataFile]:
    """What Spark wrote into a folder, in the order of its partitions, without empty files."""
    filesystem, base = filesystem_of(messages_path)
    found = filesystem.get_file_info(pa_fs.FileSelector(f"{base}{folder}"))
    for info in sorted(found, key=lambda info: info.base_name):
        if info.base_name.endswith(".parquet"):
            file = _described(messages_path, f"{folder}/{info.base_name}")
            if file.rows:
                yield file


def columns_of(messages_path: str, file: DataFile, columns: Sequence[str]) -> pa.Table:
    """Some columns of a file."""
    filesystem, base = filesystem_of(messages_path)
    with pq.ParquetFile(f"{base}{file.path}", filesystem=filesystem) as source:
        return source.read(columns)


def in_shard(messages_path: str, file: DataFile, shards: int) -> DataFile:
    """The file with the shard that its message groups belong to."""
    number = 0
    if shards > 1:
        filesystem, base = filesystem_of(messages_path)
        with pq.ParquetFile(f"{base}{file.path}", filesystem=filesystem) as source:
            group = source.read_row_group(0, ["group_id"])["group_id"][0].as_py()
        number = zlib.crc32(group.encode()) % shards
    return attrs.evolve(file, partition={"shard": str(number)})


def rewritten(messages_path: str, file: DataFile, kept: npt.NDArray[np.bool_]) -> DataFile:
    """Writes the rows to keep beside a file that waits, numbered from 0 again."""
    filesystem, base = filesystem_of(messages_path)
    path = f"{os.path.dirname(file.path)}/kept-{uuid.uuid4().hex}.parquet"
    with (
        pq.ParquetFile(f"{base}{file.path}", filesystem=filesystem) as source,
        pq.ParquetWriter(
            f"{base}{path}",
            _COLUMNS,
            filesystem=filesystem,
            compression="snappy",
            use_dictionary=["group_id", "send_id"],  # of the others, a dictionary is built for nothing
        ) as target,
    ):
        count = 0
        for rows in _joined(_kept(source, kept)):
            positions = pa.array(np.arange(count, count + len(rows)), pa.int64())
            target.write_table(rows.set_column(0, "position", positions))
            count += len(rows)
    return attrs.evolve(_described(messages_path, path), partition=file.partition)


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


def _described(messages_path: str, path: str) -> DataFile:
    filesystem, base = filesystem_of(messages_path)
    with filesystem.open_input_file(f"{base}{path}") as stream:
        footer, size = pq.read_metadata(stream), stream.size()
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
