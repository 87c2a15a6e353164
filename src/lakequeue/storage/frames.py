"""DataFrames on their way in: the files of a bulk send, and the manifest that they wait under.

Nothing here commits. ``stage`` leaves files and a manifest below the ``messages`` table; whoever commits adds
the files with the bases of that moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from lakequeue.errors import QueueClientError
from lakequeue.storage.characters import rows_with_refused_characters
from lakequeue.storage.engine import DataFile
from lakequeue.storage.locks import local_path
from lakequeue.storage.row_rules import (
    ATTRIBUTES,
    CHARACTERS,
    allowed_characters,
    check_columns,
    refuse,
    row_rules,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ROW_GROUP = 4 << 20
"""Bytes. A receive of ten messages reads a row group; out of large ones it took 2 s."""

_ORIGIN = "struct<queue:string,message_id:string,sent_at:timestamp>"


@attrs.frozen
class Manifest:
    """Files of a bulk send that wait for their commit."""

    send_id: str
    created_at: int
    """Microseconds; files older than half of what VACUUM keeps must not be committed."""
    files: Sequence[DataFile]
    """In the order of the DataFrame's partitions; ``partition`` is empty until the commit fixes it."""

    @property
    def rows(self) -> int:
        """Messages in all files."""
        return sum(file.rows for file in self.files)


def spark_uri(path: str) -> str:
    """A path that means the same to Spark whatever its default file system is."""
    local = local_path(path)
    return f"file://{os.path.abspath(local)}" if local is not None else path


def quoted(name: str) -> str:
    """A name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def stage(
    spark: SparkSession,
    df: DataFrame,
    messages_path: str,
    send_id: str,
    *,
    now: int,
    max_bytes: int,
    default_delay: float = 0.0,
    max_delay: float | None = None,
    fifo: bool = False,
    count_attributes: bool = True,
) -> Manifest:
    """Writes a DataFrame's messages below the table in one pass, checked on the way; commits nothing.

    Args:
        spark: the session that the DataFrame belongs to.
        df: columns ``body`` STRING, and optionally ``delay_seconds``, ``group_id``, ``dedup_id`` and
            ``message_attributes`` (name -> text, or name -> type, string_value, binary_value).
        messages_path: the queue's ``messages`` table.
        send_id: names the send; message ids are derived from it and the row's place.
        now: microseconds, written into the manifest.
        max_bytes: the largest message, in UTF-8 bytes (SND-2).
        default_delay: seconds for rows without ``delay_seconds`` (DLY-9).
        max_delay: largest delay a row may ask for, in seconds; None: any.
        fifo: rows need a group, may have a dedup id, and may not have a delay (SND-4, SND-6).
        count_attributes: whether message attributes count towards ``max_bytes``.

    Returns:
        The manifest; that of an earlier staging of the same ``send_id`` if one is there by now.

    Raises:
        InvalidParameterValue: columns or rows break a rule; the message says which and how many. Nothing is
            left behind.
        InvalidMessageContents: likewise, for characters that are not allowed.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    check_columns(df)
    source = _normalized(df)
    here = local_path(messages_path) is not None
    rules = row_rules(set(df.columns), max_bytes, max_delay, fifo, count_attributes)
    if not here:  # to fetch the files for a look at their bytes would cost more than Spark's regular expression
        rules.append((CHARACTERS, ~allowed_characters()))
    observation = Observation(f"lakequeue-{uuid.uuid4().hex}")
    broken = [F.count_if(condition).alias(rule.name) for rule, condition in rules]
    folder = f"bulk/{_safe(send_id)}/{uuid.uuid4().hex[:8]}"
    target = f"{messages_path.rstrip('/')}/{folder}"
    try:
        writer = _rows(source.observe(observation, *broken), send_id, default_delay, fifo).write
        writer.mode("error").options(**_PARQUET).parquet(spark_uri(target))
        counts = observation.get
        files = list(_footers(messages_path, folder))
        broken_rules = [(rule, counts[rule.name]) for rule, _ in rules if counts[rule.name]]
        if here:
            paths = [f"{local_path(messages_path)}/{file.path}" for file in files]
            count = rows_with_refused_characters(paths)
            broken_rules += [(CHARACTERS, count)] if count else []
        refuse(broken_rules)
    except BaseException:
        with contextlib.suppress(OSError):
            _delete(messages_path, folder)
        raise
    manifest = Manifest(send_id, now, files)
    first = _write_manifest(messages_path, manifest)
    if first != manifest:  # a second attempt at the same send was quicker; its files are the send
        _delete(messages_path, folder)
    return first


def load_manifest(messages_path: str, send_id: str) -> Manifest | None:
    """The manifest of a bulk send that was staged here, None if there is none."""
    filesystem, base = _filesystem(messages_path)
    try:
        with filesystem.open_input_stream(f"{base}{_manifest_name(send_id)}") as stream:
            text = stream.read()
    except FileNotFoundError:
        return None
    plain = json.loads(text)
    return Manifest(plain["send_id"], plain["created_at"], [DataFile(**file) for file in plain["files"]])


def discard(messages_path: str, send_id: str) -> None:
    """Removes the manifest of a send and its files; only for a send that was never committed."""
    manifest = load_manifest(messages_path, send_id)
    if manifest is None:
        return
    filesystem, base = _filesystem(messages_path)
    filesystem.delete_file(f"{base}{_manifest_name(send_id)}")
    for folder in {os.path.dirname(file.path) for file in manifest.files}:
        _delete(messages_path, folder)


# -- writing ---------------------------------------------------------------------------------------------------


_PARQUET = {
    "compression": "snappy",
    # positions are row numbers: a file cut in two would start in the middle
    "maxRecordsPerFile": "0",
    "parquet.block.size": str(_ROW_GROUP),
    # unique values: a dictionary is built for nothing
    "parquet.enable.dictionary#body": "false",
    "parquet.enable.dictionary#message_id": "false",
    "parquet.enable.dictionary#position": "false",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def _normalized(df: DataFrame) -> DataFrame:
    """Every input column, with ``_number`` = partition and row number of monotonically_increasing_id."""
    from pyspark.sql import functions as F

    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}

    def column(name: str, type_: str) -> Column:
        return (F.col(name) if name in types else F.lit(None)).cast(type_).alias(name)

    attributes = column("message_attributes", ATTRIBUTES)
    if types.get("message_attributes") == "map<string,string>":
        attributes = F.transform_values(
            "message_attributes",
            lambda _, value: F.struct(
                F.lit("String").alias("type"),
                value.alias("string_value"),
                F.lit(None).cast("binary").alias("binary_value"),
            ),
        ).alias("message_attributes")
    return df.select(
        F.monotonically_increasing_id().alias("_number"),
        column("body", "string"),
        attributes,
        column("group_id", "string"),
        column("dedup_id", "string"),
        column("delay_seconds", "double"),
    )


def _rows(df: DataFrame, send_id: str, default_delay: float, fifo: bool) -> DataFrame:
    """Columns of ``messages`` without the partition columns, in the table's order."""
    from pyspark.sql import functions as F

    def null(name: str, type_: str) -> Column:
        return F.lit(None).cast(type_).alias(name)

    digest = F.md5(F.concat(F.lit(f"{send_id}-"), F.col("_number").cast("string")))
    # the layout of a UUID of version 3 (by md5), variant 1
    parts = [
        F.substring(digest, 1, 8), F.lit("-"), F.substring(digest, 9, 4), F.lit("-3"), F.substring(digest, 14, 3),
        F.lit("-a"), F.substring(digest, 18, 3), F.lit("-"), F.substring(digest, 21, 12),
    ]  # fmt: skip
    delay = F.lit(None).cast("double") if fifo else F.coalesce("delay_seconds", F.lit(float(default_delay)))
    return df.select(
        F.col("_number").bitwiseAND((1 << 33) - 1).alias("position"),
        F.concat(*parts).alias("message_id"),
        "body",
        "message_attributes",
        "group_id",
        "dedup_id",
        null("sender_id", "string"),
        null("trace_header", "string"),
        null("sent_at", "timestamp"),
        delay.alias("delay_seconds"),
        F.lit(send_id).alias("send_id"),
        null("origin", _ORIGIN),
    )


# -- files and manifests ---------------------------------------------------------------------------------------


def _safe(send_id: str) -> str:
    """A directory name for a send id, which is the caller's and may be anything."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", send_id):
        return send_id
    return f"sha256-{hashlib.sha256(send_id.encode()).hexdigest()}"


def _manifest_name(send_id: str) -> str:
    return f"_manifests/{_safe(send_id)}.json"


def _filesystem(path: str) -> tuple[pa_fs.FileSystem, str]:
    """The file system of a table and the prefix of its paths there."""
    local = local_path(path)
    if local is not None:
        return pa_fs.LocalFileSystem(), f"{os.path.abspath(local)}/"
    from deltalake.fs import DeltaStorageHandler

    return pa_fs.PyFileSystem(DeltaStorageHandler(path)), ""


def _footers(messages_path: str, folder: str) -> Iterator[DataFile]:
    filesystem, base = _filesystem(messages_path)
    found = filesystem.get_file_info(pa_fs.FileSelector(f"{base}{folder}"))
    for info in sorted(found, key=lambda info: info.base_name):
        if not info.base_name.endswith(".parquet"):
            continue
        with filesystem.open_input_file(info.path) as stream:
            footer = pq.read_metadata(stream)
        if footer.num_rows == 0:
            continue
        minimum, maximum, nulls = _statistics(footer)
        if (minimum.get("position"), maximum.get("position")) != (0, footer.num_rows - 1):
            raise QueueClientError(f"Spark numbered the rows of {info.base_name} otherwise than from 0 on")
        yield DataFile(f"{folder}/{info.base_name}", info.size, footer.num_rows, {}, minimum, maximum, nulls)


def _statistics(
    footer: pq.FileMetaData,
) -> tuple[dict[str, int | float], dict[str, int | float], dict[str, int]]:
    minimum: dict[str, int | float] = {}
    maximum: dict[str, int | float] = {}
    nulls: dict[str, int] = {}
    # sent_at: NULL throughout, it is the opening of the segment
    nulls["sent_at"] = footer.num_rows
    columns = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    for name in ("position", "delay_seconds"):
        groups = [footer.row_group(g).column(columns[name]).statistics for g in range(footer.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounds = [group for group in groups if group.has_min_max]
        if bounds and nulls[name] + sum(group.num_values for group in bounds) == footer.num_rows:
            minimum[name] = min(group.min for group in bounds)
            maximum[name] = max(group.max for group in bounds)
    return minimum, maximum, nulls


def _write_manifest(messages_path: str, manifest: Manifest) -> Manifest:
    """Writes the manifest unless there is one; returns the one that is there."""
    text = json.dumps(attrs.asdict(manifest, value_serializer=_plain)).encode()
    name = _manifest_name(manifest.send_id)
    local = local_path(messages_path)
    if local is None:
        there = load_manifest(messages_path, manifest.send_id)
        if there is not None:
            return there
        filesystem, base = _filesystem(messages_path)
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


def _plain(_: object, __: object, value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _delete(messages_path: str, folder: str) -> None:
    local = local_path(messages_path)
    if local is not None:
        shutil.rmtree(os.path.join(local, folder), ignore_errors=True)
        return
    filesystem, base = _filesystem(messages_path)
    filesystem.delete_dir(f"{base}{folder}")
