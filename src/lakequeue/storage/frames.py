"""DataFrames in and out: staging the files of a bulk send, and a lease's messages as a DataFrame.

Nothing here commits. ``stage`` leaves files and a manifest below the ``messages`` table; whoever commits adds
the files with the bases of that moment. ``lease_frame`` reads what a committed claim has fixed.
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
from typing import TYPE_CHECKING, NamedTuple

import attrs
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from lakequeue.errors import (
    InvalidMessageContents,
    InvalidParameterValue,
    QueueClientError,
    QueueServiceError,
)
from lakequeue.storage.characters import rows_with_refused_characters
from lakequeue.storage.engine import DataFile
from lakequeue.storage.locks import local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INPUT_COLUMNS = ("body", "delay_seconds", "group_id", "dedup_id", "message_attributes")
LEASE_COLUMNS = (
    "message_id",
    "body",
    "receipt_handle",
    "sent_at",
    "message_attributes",
    "group_id",
    "delay_seconds",
    "receive_count",
    "shard",
    "offset",
)
MAX_PREDICATES = 64
"""More ranges than this are joined; as a predicate they would outgrow what the planner likes."""

_BUCKET = 8
"""Positions are joined by their 256-blocks, so that a row meets few ranges."""
_FOREVER = 10_000_000_000.0
"""Seconds; the largest delay that still makes an instant, where a profile has no limit."""
_ROW_GROUP = 4 << 20
"""Bytes. A receive of ten messages reads a row group; out of large ones it took 2 s."""

_ATTRIBUTES = "map<string,struct<type:string,string_value:string,binary_value:binary>>"
_ORIGIN = "struct<queue:string,message_id:string,sent_at:timestamp>"
_OTHERS = "\\x7f-\\ud7ff\\ue000-\\ufffd\\x{10000}-\\x{10ffff}"
# Java matches a class of single characters from a bit set, several times faster than ranges
_ASCII = "".join(f"\\x{code:02x}" for code in (9, 10, 13, *range(32, 127)))

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"


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


class LeaseSpan(NamedTuple):
    """Messages of one lease that lie together in one segment; all bounds inclusive."""

    shard: int
    base_offset: int
    opened_at: int
    first_position: int
    last_position: int
    first_offset: int
    receive_count: int = 1


@attrs.frozen
class LeaseColumns:
    """What a lease adds to its messages.

    Attributes:
        key: the queue incarnation.
        lease_id: id of the claim.
        lease_key: ``handles.lease_key``: seals this lease's handles only, so that a plan may show it.
    """

    key: str
    lease_id: str
    lease_key: str = attrs.field(repr=False)


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

    _check_columns(df)
    source = _normalized(df)
    here = local_path(messages_path) is not None
    rules = _rules(set(df.columns), max_bytes, max_delay, fifo, count_attributes)
    if not here:  # to fetch the files for a look at their bytes would cost more than Spark's regular expression
        rules.append((_CHARACTERS, ~_allowed_characters()))
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
            broken_rules += [(_CHARACTERS, count)] if count else []
        _refuse(broken_rules)
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


def lease_frame(
    spark: SparkSession,
    messages_path: str,
    spans: Sequence[LeaseSpan | tuple[int, ...]],
    lease: LeaseColumns,
    *,
    version: int | None = None,
) -> DataFrame:
    """The messages of a lease with their receipt handles; columns are ``LEASE_COLUMNS``.

    Args:
        spark: any session with Delta's extension.
        messages_path: the queue's ``messages`` table.
        spans: where the messages lie, by segment, in the snapshot of ``version``.
        lease: what the handles are made of.
        version: version of ``messages`` that the spans were taken from, so that a merge of segments in
            between moves nothing under the lease; None: the newest.
    """
    from pyspark.sql import functions as F

    ordered = sorted(
        (LeaseSpan(*span) for span in spans), key=lambda s: (s.shard, s.base_offset, s.first_position)
    )
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    rows = reader.load(spark_uri(messages_path))
    counts = {span.receive_count for span in ordered}
    if not ordered:
        rows = rows.where(F.lit(False)).withColumn("receive_count", F.lit(0))
    elif len(ordered) <= MAX_PREDICATES:
        rows = rows.where(_any([_exactly(span) for span in ordered]))
        rows = rows.withColumn("receive_count", F.lit(counts.pop()) if len(counts) == 1 else _count_of(ordered))
    else:
        rows = _joined(spark, rows.where(_any([_around(group) for group in _grouped(ordered)])), ordered)
    offset = F.col("base_offset") + F.col("position")
    plain = F.concat(
        F.lit(f"{lease.key}-"), F.col("shard").cast("string"), F.lit("-"), offset.cast("string"),
        F.lit(f"-{lease.lease_id}"),
    )  # fmt: skip
    mac = F.substring(F.sha2(F.concat(F.lit(lease.lease_key), plain), 256), 1, 32)
    return rows.select(
        "message_id",
        "body",
        F.concat(plain, F.lit("-"), mac).alias("receipt_handle"),
        F.coalesce("sent_at", "opened_at").alias("sent_at"),
        "message_attributes",
        "group_id",
        "delay_seconds",
        F.col("receive_count").cast("int").alias("receive_count"),
        "shard",
        offset.alias("offset"),
    )


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


class _Rule(NamedTuple):
    name: str
    verb: str
    text: str
    error: type[QueueServiceError] = InvalidParameterValue

    def said_of(self, count: int) -> str:
        if count != 1:
            return f"{count:,} rows {self.verb} {self.text}"
        return f"1 row {_SINGULAR.get(self.verb, f'{self.verb}s')} {self.text}"


_SINGULAR = {"have": "has", "are": "is"}


_CHARACTERS = _Rule("characters", "have", "characters that are not allowed (SND-12)", InvalidMessageContents)


def _allowed_characters() -> Column:
    from pyspark.sql import functions as F

    body = F.col("body")
    return body.rlike(f"^[{_ASCII}]*\\z") | body.rlike(f"^[{_ASCII}{_OTHERS}]*\\z")


def _check_columns(df: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    unknown = sorted(set(types) - set(INPUT_COLUMNS))
    if unknown:
        raise InvalidParameterValue(
            f"Columns {', '.join(unknown)} are not known; a DataFrame of messages has {', '.join(INPUT_COLUMNS)}."
        )
    if len(df.columns) != len(types):
        raise InvalidParameterValue("A column appears more than once.")
    if "body" not in types:
        raise InvalidParameterValue("The column body is missing.")
    for name in ("body", "group_id", "dedup_id"):
        if types.get(name, "string") not in ("string", "void"):
            raise InvalidParameterValue(f"The column {name} is {types[name]}, it must be string.")
    delay = types.get("delay_seconds", "double")
    if delay not in ("tinyint", "smallint", "int", "bigint", "float", "double", "void") and "decimal" not in delay:
        raise InvalidParameterValue(f"The column delay_seconds is {delay}, it must be a number of seconds.")
    attributes = types.get("message_attributes", _ATTRIBUTES)
    if attributes not in (_ATTRIBUTES, "map<string,string>", "void"):
        raise InvalidParameterValue(
            f"The column message_attributes is {attributes}, it must be map<string,string> or {_ATTRIBUTES}."
        )


def _normalized(df: DataFrame) -> DataFrame:
    """Every input column, with ``_number`` = partition and row number of monotonically_increasing_id."""
    from pyspark.sql import functions as F

    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}

    def column(name: str, type_: str) -> Column:
        return (F.col(name) if name in types else F.lit(None)).cast(type_).alias(name)

    attributes = column("message_attributes", _ATTRIBUTES)
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


def _rules(
    given: set[str],
    max_bytes: int,
    max_delay: float | None,
    fifo: bool,
    count_attributes: bool,
) -> list[tuple[_Rule, Column]]:
    """Rules with the condition under which a row breaks them; columns that are not given cost nothing."""
    from pyspark.sql import functions as F

    body = F.col("body")
    size = F.octet_length(body)
    rules: list[tuple[_Rule, Column]] = [
        (_Rule("missing", "have", "no body (SND-1)"), body.isNull() | (F.octet_length(body) == 0)),
    ]
    if "message_attributes" in given:
        if count_attributes:
            size = size + F.coalesce(_attribute_bytes(), F.lit(0))
        rules.append(
            (
                _Rule("attributes", "break", "the rules for message attributes (MSA-3)"),
                ~F.coalesce(_attributes_allowed(), F.lit(False)) & F.col("message_attributes").isNotNull(),
            )
        )
    rules.insert(1, (_Rule("size", "are", f"longer than {max_bytes} bytes (SND-2)"), size > max_bytes))
    if "delay_seconds" in given:
        delay = F.col("delay_seconds")
        if fifo:
            rules.append((_Rule("delay", "have", "a delay, which FIFO queues refuse (SND-6)"), delay != 0))
        else:
            limit = _FOREVER if max_delay is None else max_delay
            text = f"a delay_seconds outside 0..{limit:g} (DLY-3)"
            rules.append((_Rule("delay", "have", text), ~delay.between(0, limit)))
    identifier = r"^[!-~]{1,128}\z"
    if fifo:
        group = F.col("group_id")
        rules.append(
            (
                _Rule("group", "have", "no valid group_id (SND-4)"),
                ~F.coalesce(group.rlike(identifier), F.lit(False)),
            )
        )
        rules.append(
            (_Rule("dedup", "have", "an invalid dedup_id (SND-13)"), ~F.col("dedup_id").rlike(identifier))
        )
    else:
        if "group_id" in given:
            rules.append(
                (_Rule("group", "have", "an invalid group_id (SND-13)"), ~F.col("group_id").rlike(identifier))
            )
        if "dedup_id" in given:
            text = "a dedup_id, which standard queues refuse (SND-14)"
            rules.append((_Rule("dedup", "have", text), F.col("dedup_id").isNotNull()))
    return rules


def _attribute_bytes() -> Column:
    from pyspark.sql import functions as F

    def added(total: Column, entry: Column) -> Column:
        value = entry.value
        parts = (entry.key, value.type, value.string_value, value.binary_value)
        return sum((F.coalesce(F.octet_length(part), F.lit(0)) for part in parts), total)

    return F.aggregate(F.map_entries("message_attributes"), F.lit(0), added)


def _attributes_allowed() -> Column:
    from pyspark.sql import functions as F

    def name_allowed(name: Column, value: Column) -> Column:
        return (
            name.rlike(r"^(?!\.)(?!(?i:aws|amazon)\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)\z")
            & value.type.rlike(r"^(String|Number|Binary)(\.[^\x00-\x1f]+)?\z")
            & F.when(
                value.type.startswith("Binary"),
                value.string_value.isNull() & (F.octet_length(value.binary_value) > 0),
            )
            .when(
                value.type.startswith("Number"),
                value.binary_value.isNull() & value.string_value.rlike(_NUMBER),
            )
            .otherwise(value.binary_value.isNull() & value.string_value.rlike(f"^[{_ASCII}{_OTHERS}]+\\z"))
        )

    good = F.map_filter(
        "message_attributes", lambda name, value: F.coalesce(name_allowed(name, value), F.lit(False))
    )
    count = F.size("message_attributes")
    return (count <= 10) & (F.size(good) == count)


def _refuse(broken: Sequence[tuple[_Rule, int]]) -> None:
    if broken:
        said = "; ".join(rule.said_of(count) for rule, count in broken)
        # one error for the call: characters only if they are all that is wrong
        error = broken[0][0].error if len({rule.error for rule, _ in broken}) == 1 else InvalidParameterValue
        raise error(f"Nothing was sent: {said}.")


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


# -- reading ---------------------------------------------------------------------------------------------------


def _any(conditions: Sequence[Column]) -> Column:
    """An OR of many as a balanced tree; a chain of 64 nests too deep for the planner's liking."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return _any(conditions[:half]) | _any(conditions[half:])


def _exactly(span: LeaseSpan) -> Column:
    from pyspark.sql import functions as F

    return (
        (F.col("shard") == span.shard)
        & (F.col("base_offset") == span.base_offset)
        & F.col("position").between(span.first_position, span.last_position)
    )


def _count_of(spans: Sequence[LeaseSpan]) -> Column:
    from pyspark.sql import functions as F

    first = F.when(_exactly(spans[0]), spans[0].receive_count)
    for span in spans[1:]:
        first = first.when(_exactly(span), span.receive_count)
    return first


def _grouped(spans: Sequence[LeaseSpan]) -> list[list[LeaseSpan]]:
    """Ordered spans in at most ``MAX_PREDICATES`` groups, cut where the gaps are widest."""

    def gap(index: int) -> float:
        before, after = spans[index - 1], spans[index]
        if before.shard != after.shard:
            return float("inf")
        return (after.base_offset + after.first_position) - (before.base_offset + before.last_position)

    cuts = sorted(sorted(range(1, len(spans)), key=gap, reverse=True)[: MAX_PREDICATES - 1])
    return [list(spans[a:b]) for a, b in zip([0, *cuts], [*cuts, len(spans)], strict=True)]


def _around(group: Sequence[LeaseSpan]) -> Column:
    """Holds for all messages of a group, and for some between them; skips the files outside."""
    from pyspark.sql import functions as F

    first, last = group[0], group[-1]
    shards = F.col("shard").between(first.shard, last.shard)
    if first.shard != last.shard:
        return shards
    bases = shards & F.col("base_offset").between(first.base_offset, last.base_offset)
    if first.base_offset != last.base_offset:
        return bases
    return bases & F.col("position").between(first.first_position, max(span.last_position for span in group))


def _joined(spark: SparkSession, rows: DataFrame, spans: Sequence[LeaseSpan]) -> DataFrame:
    from pyspark.sql import functions as F

    schema = "s_shard int, s_base bigint, s_first bigint, s_last bigint, receive_count int"
    values = [(s.shard, s.base_offset, s.first_position, s.last_position, s.receive_count) for s in spans]
    block = F.explode(F.sequence(F.shiftright("s_first", _BUCKET), F.shiftright("s_last", _BUCKET)))
    ranges = F.broadcast(spark.createDataFrame(values, schema).withColumn("s_block", block))
    here = (
        (F.col("shard") == F.col("s_shard"))
        & (F.col("base_offset") == F.col("s_base"))
        & (F.shiftright("position", _BUCKET) == F.col("s_block"))
        & F.col("position").between(F.col("s_first"), F.col("s_last"))
    )
    return rows.join(ranges, here)
