"""Writing the files of a bulk send with Spark: ``stage`` leaves files and a manifest, without a commit."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from lakequeue.storage.bulk import staged_files
from lakequeue.storage.bulk.characters import rows_with_refused_characters
from lakequeue.storage.bulk.manifests import Manifest
from lakequeue.storage.bulk.message_rules import (
    ATTRIBUTES,
    CHARACTERS,
    TEXT_ATTRIBUTES,
    Fifo,
    check_columns,
    no_order,
)
from lakequeue.storage.bulk.partitions import file_count, repartition_by_number
from lakequeue.storage.bulk.row_rules import allowed_characters, broken_rules
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.engines.interface import DataFile
from lakequeue.storage.engines.spark_session import quoted
from lakequeue.storage.folder import Folder
from lakequeue.storage.roots import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def columns_of(df: DataFrame) -> list[tuple[str, str]]:
    """Names and types of a DataFrame's columns."""
    return [(field.name, field.dataType.simpleString()) for field in df.schema.fields]


def stage(spark: SparkSession, df: DataFrame, tables: Folder, staging: Staging) -> Manifest:
    """Checks and writes a DataFrame's messages below the queue's tables in one pass; commits nothing.

    FIFO queues keep each group in order in one file (FIF-1), and of rows with the same deduplication id only the
    first (DDP-1).

    Args:
        spark: the session that the DataFrame belongs to.
        df: columns ``body`` STRING, and optionally ``delay_seconds``, ``group_id``, ``dedup_id`` and
            ``message_attributes`` (name -> text, or name -> type, string_value, binary_value).
        tables: directory of the queue.
        staging: the attempt at the send.

    Returns:
        The manifest; that of an earlier attempt at the same send if there is one.

    Raises:
        InvalidParameterValue: columns or rows break a rule; the message says which and how many. No file is left.
        InvalidMessageContents: likewise, for characters that are not allowed.
    """
    check_columns(columns_of(df), staging.rules.order_by)
    return staging.finish(tables, lambda: _written(spark, df, staging.messages(tables), staging))


def _written(spark: SparkSession, df: DataFrame, messages: Folder, staging: Staging) -> list[DataFile]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rules, given, here = staging.rules, set(df.columns), messages.local is not None
    rows = _normalized(df, rules.order_by)
    conditions = broken_rules(given, rules)
    if not here:  # fetching the files to check their bytes would cost more than Spark's regular expression
        conditions.append((CHARACTERS, ~allowed_characters()))
    observation = Observation(f"lakequeue-{uuid.uuid4().hex}")
    rows = rows.observe(observation, *(F.count_if(condition).alias(rule.name) for rule, condition in conditions))
    rows = _delayed(rows, rules.default_delay) if rules.fifo is None else _grouped(spark, rows, rules.fifo)
    target = spark_uri(f"{messages.uri}/{staging.folder}")
    _rows(rows, staging.key.files).write.mode("error").options(**_PARQUET).parquet(target)
    counts = observation.get
    files = list(staged_files.list_files(messages, staging.folder))
    if here:
        paths = [messages.path(file.path) for file in files]
        counts = {**counts, CHARACTERS.name: rows_with_refused_characters(paths)}
    rules.refuse(given, counts)
    return files


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

    types = dict(columns_of(df))

    def column(name: str, type_: str) -> Column:
        return (F.col(name) if name in types else F.lit(None)).cast(type_).alias(name)

    attributes = column("message_attributes", ATTRIBUTES)
    if types.get("message_attributes") == TEXT_ATTRIBUTES:
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
        raise no_order(str(fifo.order_by), type_) from None
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
