"""``spark.read.format("lakequeue")``: the same messages as in SQL, and filters that leave files unread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakequeue import LakeQueue, Queue
from lakequeue.spark import register
from lakequeue.storage import layout
from lakequeue.storage.messages import append, merge_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def lq(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    """Eight messages of ``orders``, each in a file of its own, and others elsewhere."""
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 100)
    register(spark)
    lq = LakeQueue(str(tmp_path / "it's a root"), spark=spark)
    lq.create_queue("other", shards=2).send("elsewhere")
    orders = lq.create_queue("orders", rewind_range=600)
    for index in range(7):
        orders.send(str(index), attributes={"n": index})
    orders.send("late", delay=600)
    orders.delete_batch([m.receipt_handle for m in orders.receive(max_messages=3)])
    orders.receive(max_messages=2, visibility_timeout=600)
    return lq


def read(spark: SparkSession, lq: LakeQueue, **options: str) -> DataFrame:
    return spark.read.format("lakequeue").options(root=lq.root, **options).load()


def bodies(found: DataFrame) -> list[str]:
    return sorted(row.body for row in found.select("body").collect())


def test_a_read_shows_the_messages_as_sql_does_and_changes_nothing(spark: SparkSession, lq: LakeQueue) -> None:
    orders = lq.queue("orders")
    before = orders.counts()
    orders.send_dataframe(spark.range(3_000).selectExpr("concat('row ', id) AS body", "string(id) AS group_id"))
    lq.register_views(spark)
    found = read(spark, lq)
    columns = (
        "queue, region, message_id, state, group_id, sent_at, visible_at, receive_count, first_received_at, body"
    )
    columns += ", delay_seconds, dedup_id, source_queue, first_sent_at, sequence_number, shard"
    shown = found.selectExpr(*columns.split(", "), "offset AS log_offset")
    told = spark.sql(f"SELECT {columns}, log_offset FROM messages")
    rows = sorted(map(repr, shown.collect()))
    assert len(rows) == 3_009 and rows == sorted(map(repr, told.collect()))
    assert shown.exceptAll(told).isEmpty() and told.exceptAll(shown).isEmpty()
    typed = found.where("body = '4'").selectExpr(
        "message_attributes['n'].type", "message_attributes['n'].string_value"
    )
    assert tuple(typed.head()) == ("Number", "4")
    assert read(spark, lq, queue="other").count() == read(spark, lq).where("queue = 'other'").count() == 1
    assert read(spark, lq, region="elsewhere").count() == 0
    counts = orders.counts()
    assert (counts.in_flight, counts.visible) == (before.in_flight, before.visible + 3_000)


@pytest.fixture
def only(lq: LakeQueue) -> Iterator[Callable[[Queue, set[int]], None]]:
    """Takes away all files of a queue but those of some offsets, so that reading others fails."""
    hidden: list[tuple[Path, Path]] = []

    def keep(queue: Queue, offsets: set[int]) -> None:
        folder = Path(layout.messages_path(lq.root, queue.key, 0))
        for file in folder.glob("*/*/*.parquet"):
            base = int(file.parts[-3].partition("=")[2])
            if base not in offsets:
                hidden.append((file, file.with_suffix(".hidden")))
                file.rename(file.with_suffix(".hidden"))

    yield keep
    for file, away in hidden:
        away.rename(file)


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("offset = 6", {6}),
        ("offset >= 5 AND offset < 7", {5, 6}),
        ("offset IN (1, 4)", {1, 4}),
        ("state = 'deleted'", {0, 1, 2}),
        ("state = 'in_flight'", {3, 4}),
        ("state IN ('delayed', 'held')", {7}),
        ("NOT state = 'visible' AND NOT state = 'deleted' AND shard = 0", {3, 4, 7}),
        ("state = 'expired'", set()),
        ("shard = 3", set()),
        ("queue = 'nowhere'", set()),
        ("state LIKE 'in%'", {3, 4}),
    ],
)
def test_each_pushed_filter_reads_less(
    spark: SparkSession, lq: LakeQueue, only: Any, where: str, offsets: set[int]
) -> None:
    orders = lq.queue("orders")
    found = read(spark, lq, queue="orders").where(where)
    expected = sorted(("late" if offset == 7 else str(offset)) for offset in offsets)
    only(orders, offsets)
    assert bodies(found) == expected


def test_times_and_queues_are_pushed_down(spark: SparkSession, lq: LakeQueue, only: Any) -> None:
    orders = lq.queue("orders")
    [third] = [message for message in orders.peek() if message.body == "3"]
    only(orders, {0, 1, 2, 3})  # the file before the instant may have messages of it
    found = read(spark, lq).where(f"queue = 'orders' AND sent_at < timestamp '{third.sent_at.isoformat()}'")
    assert bodies(found) == ["0", "1", "2"]
    assert bodies(read(spark, lq).where("queue = 'other'")) == ["elsewhere"]


def test_without_pushdown_filters_are_applied_by_spark(spark: SparkSession, lq: LakeQueue) -> None:
    spark.conf.set(PUSHDOWN, "false")  # Spark's default
    try:
        assert bodies(read(spark, lq).where("state = 'in_flight' AND offset > 3")) == ["4"]
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_what_cannot_be_read_is_one_line(spark: SparkSession, lq: LakeQueue) -> None:
    def told(act: Callable[[], object]) -> str:
        with pytest.raises(Exception) as raised:
            act()
        text = str(raised.value)
        assert "Traceback" not in text
        return text

    assert "QueueDoesNotExist: queue nowhere: " in told(lambda: read(spark, lq, queue="nowhere"))
    assert "option sendId is not known here" in told(lambda: read(spark, lq, sendId="a").count())
    found = read(spark, lq, queue="other")
    lq.delete_queue("other")
    assert "QueueDoesNotExist: queue other: " in told(found.count)
