"""What every pair of pyspark and delta-spark must do; ``.ci/versions`` runs it in an environment of each pair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, Queue
from lakequeue.spark import register, stream_from_queue, stream_to_queue
from lakequeue.spark.streams import started
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.engines.spark import SparkEngine
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def queue(tmp_path: Path, spark: SparkSession) -> Queue:
    return LakeQueue(str(tmp_path / "root"), spark=spark).create_queue("orders")


def test_dataframes_go_in_and_come_out_and_are_seen_in_sql(
    tmp_path: Path, spark: SparkSession, queue: Queue
) -> None:
    assert queue.send_dataframe(spark.range(10).selectExpr("concat('order ', id) AS body")) == 10
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    lease = queue.lease(7, visibility_timeout=3600)
    assert lease is not None
    rows = lease.messages.collect()
    assert len({row.body for row in rows}) == len({row.receipt_handle for row in rows}) == 7
    lq.register_views(spark)
    states = spark.sql("SELECT state, count(*) AS n FROM messages GROUP BY state")
    assert {row.state: row.n for row in states.collect()} == {"in_flight": 7, "visible": 3}
    by_tasks = "ArrowEvalPython" in states._jdf.queryExecution().executedPlan().toString()
    assert by_tasks == (not spark.version.startswith("4.0."))  # there they are scans of Delta
    assert [row.queue for row in spark.table("queues").collect()] == ["orders"]
    assert spark.table("messages").where("body = 'order 1'").head().queue == "orders"
    assert spark.table("history").isEmpty() and spark.table("stats").isEmpty()
    assert spark.table("receipts").where("state = 'in_flight'").head().last_offset is not None
    [kept, *_] = rows
    assert lease.delete_except(lease.messages.where(f"message_id = '{kept.message_id}'")).done == 6
    assert queue.counts().visible == 4


def test_groups_stay_whole_and_in_order(tmp_path: Path, spark: SparkSession) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark).create_queue(
        "orders.fifo",
        fifo=True,
        shards=3,
        deduplication_scope="message_group",
        content_based_deduplication=True,
    )
    columns = ("cast(id AS string) AS body", "concat('group-', id % 5) AS group_id", "-id AS rank")
    assert queue.send_dataframe(spark.range(40).selectExpr(*columns), order_by="rank") == 40
    lease = queue.lease(40, visibility_timeout=3600)
    assert lease is not None and lease.message_count == 40
    rows = lease.messages.orderBy("shard", "offset").collect()
    for group in {row.group_id for row in rows}:
        mine = [row for row in rows if row.group_id == group]
        assert len({row.shard for row in mine}) == 1
        assert [int(row.body) for row in mine] == sorted((int(row.body) for row in mine), reverse=True)


def test_streams_send_and_receive(tmp_path: Path, spark: SparkSession, queue: Queue) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one").write_text("a\nb\nc\n")
    rows = spark.readStream.format("text").load(str(tmp_path / "in")).withColumnRenamed("value", "body")
    query = stream_to_queue(rows, queue, str(tmp_path / "sent"), trigger="availableNow")
    query.awaitTermination()
    assert queue.counts().visible == 3
    seen: list[str] = []

    def handle(messages: DataFrame, batch: int) -> None:
        seen.extend(row.body for row in messages.collect())

    query = stream_from_queue(queue, handle, str(tmp_path / "received"), trigger="availableNow")
    query.awaitTermination()
    assert sorted(seen) == ["a", "b", "c"]
    assert queue.counts().visible == queue.counts().in_flight == 0


def test_the_data_source_writes_looks_and_streams(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    lq = LakeQueue(str(tmp_path / "root"))
    orders, copies = lq.create_queue("orders"), lq.create_queue("copies")
    rows = spark.range(100).selectExpr("concat('order ', id) AS body")
    for _ in range(2):
        write = rows.write.format("lakequeue").options(root=lq.root, queue="orders", sendId="load")
        write.mode("append").save()
    look = spark.read.format("lakequeue").options(root=lq.root, queue="orders").load()
    assert look.where("state = 'visible'").count() == look.count() == 100
    # one batch, as before Spark 4.2 this trigger makes no more
    messages = spark.readStream.format("lakequeue").options(root=lq.root, queue="orders").load()
    writer = messages.select("body").writeStream.format("lakequeue").options(root=lq.root, queue="copies")
    writer = writer.option("checkpointLocation", str(tmp_path / "progress")).trigger(availableNow=True)
    assert started(writer.start).awaitTermination(200)
    assert (orders.counts().visible, copies.counts().visible) == (0, 100)


def test_the_spark_engine_commits(tmp_path: Path, spark: SparkSession) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark, engine="spark").create_queue("orders")
    queue.send("one")
    [message] = queue.receive()
    queue.delete(message.receipt_handle)
    assert LakeQueue(str(tmp_path / "root")).queue("orders").counts() == queue.counts()


def test_the_spark_engine_merges_rows_once(tmp_path: Path, spark: SparkSession) -> None:
    engine: Engine = SparkEngine(spark, Store())
    path = str(tmp_path / "table")
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
    engine.create(path, schema, [], {}, pa.table({"key": ["a", "b"], "value": [1, 2]}, schema=schema))
    table, beside = engine.open(path), engine.open(path)
    source: Any = pa.table({"key": ["a", "b", "c"], "value": [1, 20, 3], "op": ["del", "put", "put"]})
    table.merge(source, "key", {"fence": 1}, "token")
    assert table.transaction("fence") == 1 and table.landed("token", beside.version)
    [*parts] = engine.open(path).read(engine.open(path).files())
    assert sorted(pa.concat_tables(parts).to_pylist(), key=str) == [
        {"key": "b", "value": 20},
        {"key": "c", "value": 3},
    ]
