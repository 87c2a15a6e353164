"""``spark.read.format("lakequeue")``: the same messages as in SQL, and options that leave files unread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.spark import register
from lakequeue.spark.streams import started
from lakequeue.storage import layout
from lakequeue.storage.messages import append, merge_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


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
    columns += ", delay_seconds, dedup_id, source_queue, moved_at, sequence_number, shard"
    shown = found.selectExpr(*columns.split(", "), "offset AS log_offset")
    told = spark.sql(f"SELECT {columns}, log_offset FROM messages")
    assert shown.count() == 3_009
    assert_df_equality(shown, told, ignore_row_order=True, ignore_nullable=True)
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
    ("options", "offsets"),
    [
        ({"fromOffset": "6", "beforeOffset": "7"}, {6}),
        ({"state": "deleted"}, {0, 1, 2}),
        ({"state": "in_flight, delayed"}, {3, 4, 7}),
        ({"state": "expired"}, set()),
        ({"state": "visible", "beforeOffset": "6"}, {5}),
    ],
)
def test_each_option_reads_less(
    spark: SparkSession, lq: LakeQueue, only: Any, options: dict[str, str], offsets: set[int]
) -> None:
    orders = lq.queue("orders")
    found = read(spark, lq, queue="orders", **options)
    expected = sorted(("late" if offset == 7 else str(offset)) for offset in offsets)
    only(orders, offsets)
    assert bodies(found) == expected


def test_times_read_less(spark: SparkSession, lq: LakeQueue, only: Any) -> None:
    orders = lq.queue("orders")
    times = {message.body: message.sent_at.isoformat() for message in orders.peek()}
    # a file has messages up to the instant at which the next one was opened
    only(orders, {2, 3, 4, 5})
    assert bodies(read(spark, lq, queue="orders", sentFrom=times["3"], sentBefore=times["5"])) == ["3", "4"]


def test_a_query_of_a_data_frame_leaves_its_other_queries_whole(spark: SparkSession, lq: LakeQueue) -> None:
    found = read(spark, lq)
    some, others = (found.where(f"queue = '{name}' AND shard = 0") for name in ("orders", "other"))
    assert found.where("body = '3'").count() == 1
    assert found.count() == 9 and some.count() == 8
    lq.queue("other").send("later")
    lq.queue("orders").purge()
    assert found.count() == 2  # the newest state, whichever query came first
    lq.queue("orders").send_batch([SendEntry("new")] * 8)
    assert sorted(row.queue for row in some.union(others).collect()) == 8 * ["orders"] + others.count() * ["other"]


@pytest.mark.parametrize("way", ["read", "readStream"])
def test_storage_options_are_in_no_plan(spark: SparkSession, lq: LakeQueue, way: str) -> None:
    lq.create_queue("orders")
    # whose name does not tell Spark that it is a secret
    options = {"root": lq.root, "queue": "orders", "storage.azure_storage_account_key": "hunter2"}
    frame = getattr(spark, way).format("lakequeue").options(**options).load()
    plan = frame._jdf.queryExecution().analyzed().treeString()
    assert "hunter2" not in plan and (way == "read" or "redacted" in plan)


@pytest.mark.parametrize("way", ["read", "readStream"])
def test_storage_options_are_in_no_failure(spark: SparkSession, lq: LakeQueue, tmp_path: Path, way: str) -> None:
    """Neither in its text nor in the stacks of the JVM; no plan is told there."""
    options = {"root": lq.root, "queue": "orders", "storage.azure_storage_account_key": "hunter2"}
    frame = getattr(spark, way).format("lakequeue").options(**options).load().selectExpr("raise_error(body)")
    with pytest.raises(Exception) as raised:
        if way == "read":
            frame.collect()
        else:
            stream = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
            started(stream.trigger(availableNow=True).start).awaitTermination()
    told = f"{raised.value!r} {raised.value} {getattr(raised.value, '_stackTrace', '')}"
    assert "USER_RAISED_EXCEPTION" in told
    assert "hunter2" not in told


def test_what_cannot_be_read_is_one_line(spark: SparkSession, lq: LakeQueue) -> None:
    def error_text(act: Callable[[], object]) -> str:
        with pytest.raises(Exception) as raised:
            act()
        text = str(raised.value)
        assert "Traceback" not in text
        return text

    assert "QueueDoesNotExist: queue nowhere: " in error_text(lambda: read(spark, lq, queue="nowhere"))
    assert "option sendId is not known here" in error_text(lambda: read(spark, lq, sendId="a").count())
    wrong = error_text(lambda: read(spark, lq, state="gone", fromOffset="-1", sentFrom="yesterday").count())
    assert (
        "option state is gone, it must be some of visible, in_flight, undecided, delayed, held, deleted, expired,"
        in wrong
    )
    assert "option fromOffset is -1, it must be a whole number of at least 0" in wrong
    assert "option sentFrom is yesterday, it must be an instant with its zone" in wrong
    found = read(spark, lq, queue="other")
    lq.delete_queue("other")
    assert "QueueDoesNotExist: queue other: " in error_text(found.count)
