"""The messages of a lease as a DataFrame over the files that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs
import pyarrow as pa

from lakequeue.storage import layout
from lakequeue.storage.roots import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SEQUENCE_NUMBER = """
    CAST(10000000000000000000BD + ((`offset` * 1024 + shard) * 256 + `offset` * 37 % 256) AS STRING)
"""
"""``sequence_numbers.sequence_number`` in SQL, over ``shard`` and ``offset`` (SEQ-1)."""
MAX_PREDICATES = 64
"""Maximum number of ranges in the filter; more slow down the planner."""
_BUCKET = 8
"""Bits of a block of 256 positions; the join is by block, so that a row meets few ranges."""
_COLUMNS = (
    *("position", "message_id", "body", "sent_at", "message_attributes", "group_id", "delay_seconds"),
    *("dedup_id", "first_sent_at"),
)


class LeasePlace(NamedTuple):
    """Adjacent messages of one lease in one file; bounds are inclusive."""

    path: str
    """URI or path of the file, not URL-encoded."""
    whole: bool
    """Whether these are all messages of the file."""
    shard: int
    base_offset: int
    opened_at: int
    first_position: int
    last_position: int
    receive_count: int = 1
    size: int = 0
    """Bytes of the file; 0 if they are not known."""


@attrs.frozen
class LeaseColumns:
    """What a lease adds to its messages.

    Attributes:
        key: the queue incarnation.
        lease_id: id of the claim.
        lease_key: ``receipt_handles.lease_key``: signs this lease's handles only, so a query plan may show it.
        fifo: whether the queue is one, and its messages have sequence numbers.
    """

    key: str
    lease_id: str
    lease_key: str = attrs.field(repr=False)
    fifo: bool = False


def lease_frame(spark: SparkSession, places: Sequence[LeasePlace], lease: LeaseColumns) -> DataFrame:
    """The messages of a lease with their receipt handles, in the columns of ``Lease.messages``.

    It reads the files directly. They stay for 24 hours whatever is merged or trimmed; log entries are trimmed
    sooner.

    Args:
        spark: any session.
        places: where the messages are.
        lease: what their handles are made from.
    """
    from pyspark.sql import functions as F

    whole, parts = [place for place in places if place.whole], [place for place in places if not place.whole]
    found = [_whole_files(spark, whole)] if whole else []
    if parts or not found:
        found.append(_parts_of_files(spark, parts))
    rows = found[0] if len(found) == 1 else found[0].unionByName(found[1])
    rows = rows.where(F.col("body") != "")  # an empty one marks a message that was erased after the claim
    rows = rows.withColumn("offset", F.col("base_offset") + F.col("position"))
    plain = F.concat(
        F.lit(f"{lease.key}-"), F.col("shard").cast("string"), F.lit("-"), F.col("offset").cast("string"),
        F.lit(f"-{lease.lease_id}"),
    )  # fmt: skip
    mac = F.substring(F.sha2(F.concat(F.lit(lease.lease_key), plain), 256), 1, 32)
    return rows.select(
        "message_id",
        "body",
        F.concat(plain, F.lit("-"), mac).alias("receipt_handle"),
        F.coalesce("first_sent_at", "sent_at", "opened_at").alias("sent_at"),
        "message_attributes",
        "group_id",
        "delay_seconds",
        "receive_count",
        "shard",
        "offset",
        "dedup_id",
        (F.expr(SEQUENCE_NUMBER) if lease.fifo else F.lit(None).cast("string")).alias("sequence_number"),
    )


def _whole_files(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    from pyspark.sql import functions as F

    files = _table(spark, places).select("s_file", "shard", "base_offset", "opened_at", "receive_count")
    rows = _read(spark, places)
    return rows.join(F.broadcast(files), rows["file"] == files["s_file"]).drop("file", "s_file")


def _parts_of_files(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    from pyspark.sql import functions as F

    ordered = sorted(places, key=lambda place: (place.path, place.first_position))
    rows = _read(spark, ordered)
    if len(ordered) <= MAX_PREDICATES:  # lets the reader skip row groups
        rows = rows.where(_any([F.col("position").between(p.first_position, p.last_position) for p in ordered]))
    block = F.explode(F.sequence(F.shiftright("s_first", _BUCKET), F.shiftright("s_last", _BUCKET)))
    ranges = F.broadcast(_table(spark, ordered).withColumn("s_block", block))
    here = (
        (F.col("file") == F.col("s_file"))
        & (F.shiftright("position", _BUCKET) == F.col("s_block"))
        & F.col("position").between(F.col("s_first"), F.col("s_last"))
    )
    return rows.join(ranges, here).drop("file", "s_file", "s_first", "s_last", "s_block")


def _read(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    """The rows of the files, with the name of each as ``file``."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(pa.schema([layout.MESSAGES.field(name) for name in _COLUMNS]))
    if not places:
        return spark.createDataFrame([], schema).withColumn("file", F.lit(""))
    # names are not patterns
    reader = spark.read.schema(schema).option("__globPaths__", "false")
    rows = reader.parquet(*(spark_uri(path) for path in sorted({place.path for place in places})))
    return rows.withColumn("file", F.col("_metadata.file_name"))


def _table(spark: SparkSession, places: Sequence[LeasePlace]) -> DataFrame:
    """The places as rows. A file is identified by its name, which contains a UUID."""
    from pyspark.sql import functions as F

    schema = (
        "s_file string, shard int, base_offset bigint, opened_micros bigint, s_first bigint, s_last bigint, "
        "receive_count int"
    )
    values = [
        (p.path.rpartition("/")[2], p.shard, p.base_offset, p.opened_at, p.first_position, p.last_position,
         p.receive_count)
        for p in places
    ]  # fmt: skip
    rows = spark.createDataFrame(values, schema)
    return rows.withColumn("opened_at", F.timestamp_micros("opened_micros")).drop("opened_micros")


def _any(conditions: Sequence[Column]) -> Column:
    """The OR of conditions as a balanced tree; a chain of 64 is too deep for the planner."""
    from pyspark.sql import functions as F

    if len(conditions) < 2:
        return conditions[0] if conditions else F.lit(False)
    half = len(conditions) // 2
    return _any(conditions[:half]) | _any(conditions[half:])
