"""The messages of a lease as a DataFrame, with files skipped by segment and position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs

from lakequeue.storage.frames import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
    "dedup_id",
    "sequence_number",
)
SEQUENCE_NUMBER = """
    CAST(10000000000000000000BD + ((`offset` * 1024 + shard) * 256 + `offset` * 37 % 256) AS STRING)
"""
"""``sequence.sequence_number`` in SQL, over ``shard`` and ``offset`` (SEQ-1)."""
MAX_PREDICATES = 64
"""More ranges than this are joined; as a predicate they would outgrow what the planner likes."""
_BUCKET = 8
"""Positions are joined by their 256-blocks, so that a row meets few ranges."""


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
        fifo: whether the queue is one, and its messages have sequence numbers.
    """

    key: str
    lease_id: str
    lease_key: str = attrs.field(repr=False)
    fifo: bool = False


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
        F.col("receive_count").cast("int").alias("receive_count"),
        "shard",
        "offset",
        "dedup_id",
        (F.expr(SEQUENCE_NUMBER) if lease.fifo else F.lit(None).cast("string")).alias("sequence_number"),
    )


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
