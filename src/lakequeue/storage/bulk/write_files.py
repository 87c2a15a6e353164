"""Writing the files of a bulk send: ``stage`` leaves files and a manifest below the tables, without a commit."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakequeue.errors import InvalidParameterValue
from lakequeue.storage.bulk import manifests, staged_files
from lakequeue.storage.bulk.characters import rows_with_refused_characters
from lakequeue.storage.bulk.dedup import without_repeats
from lakequeue.storage.bulk.manifests import Manifest, SendKey, WaitingFile
from lakequeue.storage.bulk.partitions import file_count, repartition_by_number
from lakequeue.storage.bulk.row_rules import (
    ATTRIBUTES,
    CHARACTERS,
    Fifo,
    allowed_characters,
    check_columns,
    refuse,
    row_rules,
)
from lakequeue.storage.engines.spark_session import quoted
from lakequeue.storage.folder import Folder
from lakequeue.storage.roots import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def stage(
    spark: SparkSession,
    df: DataFrame,
    tables: Folder,
    shards: Sequence[int],
    name: SendKey,
    *,
    max_bytes: int,
    default_delay: float = 0.0,
    max_delay: float | None = None,
    fifo: Fifo | None = None,
    count_attributes: bool = True,
) -> Manifest:
    """Checks and writes a DataFrame's messages below the queue's tables in one pass; commits nothing.

    Args:
        spark: the session that the DataFrame belongs to.
        df: columns ``body`` STRING, and optionally ``delay_seconds``, ``group_id``, ``dedup_id`` and
            ``message_attributes`` (name -> text, or name -> type, string_value, binary_value).
        tables: directory of the queue.
        shards: get the files of a standard queue in turn.
        name: the key of the send; message ids are derived from it and the row's place.
        max_bytes: the largest message, in UTF-8 bytes (SND-2).
        default_delay: seconds for rows without ``delay_seconds`` (DLY-9).
        max_delay: largest delay a row may ask for, in seconds; None: any.
        fifo: options of a FIFO queue, which keeps each group in order in one file (FIF-1), and of rows with the
            same
            deduplication id only the first (DDP-1); None on standard queues.
        count_attributes: whether message attributes count towards ``max_bytes``.

    Returns:
        The manifest; that of an earlier attempt at the same send if there is one.

    Raises:
        InvalidParameterValue: columns or rows break a rule; the message says which and how many. No file is left.
        InvalidMessageContents: likewise, for characters that are not allowed.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    check_columns(df, None if fifo is None else fifo.order_by)
    source = _normalized(df, None if fifo is None else fifo.order_by)
    here = tables.local is not None
    rules = row_rules(set(df.columns), max_bytes, max_delay, fifo, count_attributes)
    if not here:  # fetching the files to check their bytes would cost more than Spark's regular expression
        rules.append((CHARACTERS, ~allowed_characters()))
    observation = Observation(f"lakequeue-{uuid.uuid4().hex}")
    broken = [F.count_if(condition).alias(rule.name) for rule, condition in rules]
    folder, first = staged_files.new_folder(name.files), shards[0]
    messages = tables / f"{first}/messages"
    try:
        rows = source.observe(observation, *broken)
        rows = _delayed(rows, default_delay) if fifo is None else _grouped(spark, rows, fifo)
        target = spark_uri(f"{messages.uri}/{folder}")
        _rows(rows, name.files).write.mode("error").options(**_PARQUET).parquet(target)
        counts = observation.get
        files = list(staged_files.list_files(messages, folder))
        broken_rules = [(rule, counts[rule.name]) for rule, _ in rules if counts[rule.name]]
        if here:
            paths = [messages.path(file.path) for file in files]
            count = rows_with_refused_characters(paths)
            broken_rules += [(CHARACTERS, count)] if count else []
        refuse(broken_rules)
        if fifo is not None:
            files = without_repeats(messages, files, fifo.dedup_by_group)
            places = [staged_files.shard_of(messages, file, fifo.shards) for file in files]
        else:
            places = [shards[number % len(shards)] for number in range(len(files))]
        for file, shard in zip(files, places, strict=True):
            staged_files.move_file(tables, file, first, shard)
    except BaseException:
        for shard in shards:
            with contextlib.suppress(Exception):  # VACUUM removes what is left
                staged_files.delete_folder(tables / f"{shard}/messages", folder)
        raise
    app_id = None if name.anonymous and len(set(places)) == 1 else name.app_id
    manifest = Manifest(name.files, app_id, name.version, list(map(WaitingFile, places, files)))
    there = manifests.write_manifest(tables, manifest)
    if there != manifest:  # another attempt at the same send was quicker; its files are used
        for shard in set(places):
            with contextlib.suppress(Exception):  # VACUUM removes what is left
                staged_files.delete_folder(tables / f"{shard}/messages", folder)
    return there


# -- writing ---------------------------------------------------------------------------------------------------


_PARQUET = {
    "compression": "snappy",
    # positions are row numbers: a file cut in two would start in the middle
    "maxRecordsPerFile": "0",
    "parquet.block.size": str(staged_files.ROW_GROUP),
    # unique values: a dictionary would be useless
    "parquet.enable.dictionary#body": "false",
    "parquet.enable.dictionary#message_id": "false",
    "parquet.enable.dictionary#dedup_id": "false",
    "parquet.enable.dictionary#position": "false",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # renames on an object store copy: once a file, not twice. The directory is this attempt's own
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


def _normalized(df: DataFrame, order_by: str | None) -> DataFrame:
    """All input columns with their types, ``_order``, and ``_number`` from monotonically_increasing_id."""
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
        *([] if order_by is None else [F.col(quoted(order_by)).alias("_order")]),
    )


def _delayed(df: DataFrame, default: float) -> DataFrame:
    from pyspark.sql import functions as F

    return df.withColumn("delay_seconds", F.coalesce("delay_seconds", F.lit(float(default))))


def _grouped(spark: SparkSession, df: DataFrame, fifo: Fifo) -> DataFrame:
    """Partitions that hold whole message groups in order, and belong to one shard each.

    The rows of a group are adjacent, as a claim of neighbours is one run of the ledger.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    files = -(-file_count(spark) // fifo.shards)
    place = F.crc32("group_id") % fifo.shards * files + F.pmod(F.xxhash64("group_id"), F.lit(files))
    placed = repartition_by_number(spark, df, fifo.shards * files, place.cast("int"))
    order = ["_number"] if fifo.order_by is None else ["_order", "_number"]
    try:
        rows = placed.sortWithinPartitions("group_id", *order)
        _ = rows.schema  # through Spark Connect, this asks for the analysis
    except AnalysisException:
        type_ = df.schema["_order"].dataType.simpleString()
        raise InvalidParameterValue(f"The column {fifo.order_by} is {type_}, which has no order.") from None
    rows = rows.withColumn(
        "delay_seconds", F.lit(None).cast("double")
    )  # the queue's, whatever it is then (DLY-10)
    if not fifo.content_based_deduplication:
        return rows
    return rows.withColumn("dedup_id", F.coalesce("dedup_id", F.sha2("body", 256)))


def _rows(df: DataFrame, send_id: str) -> DataFrame:
    """Columns of ``messages`` without the partition columns, in the table's order."""
    from pyspark.sql import functions as F

    def null(name: str, type_: str) -> Column:
        return F.lit(None).cast(type_).alias(name)

    digest = F.md5(F.concat(F.lit(f"{send_id}-"), F.col("_number").cast("string")))
    # formatted as a UUID of version 3 (by md5), variant 1
    parts = [
        F.substring(digest, 1, 8), F.lit("-"), F.substring(digest, 9, 4), F.lit("-3"), F.substring(digest, 14, 3),
        F.lit("-a"), F.substring(digest, 18, 3), F.lit("-"), F.substring(digest, 21, 12),
    ]  # fmt: skip
    return df.select(
        # the place in the written file, unlike _number
        F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1).alias("position"),
        F.concat(*parts).alias("message_id"),
        "body",
        "message_attributes",
        "group_id",
        "dedup_id",
        null("sender_id", "string"),
        null("trace_header", "string"),
        null("sent_at", "timestamp"),
        "delay_seconds",
        F.lit(send_id).alias("send_id"),
        null("source_queue", "string"),
        null("source_receive_count", "int"),
        null("first_sent_at", "timestamp"),
    )
