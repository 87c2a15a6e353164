"""The DataFrame verbs and streams through Spark Connect."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import (
    HeartbeatRenewal,
    InvalidOptions,
    InvalidParameterValue,
    LakeQueue,
    LeaseCounts,
    LeaseLost,
    QueueClientError,
)
from lakequeue.spark import register, stream_from_queue, stream_to_queue
from lakequeue.testing import ManualClock
from spark import connect_server
from spark.source_scenario import four_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with (
        connect_server.server(tmp_path_factory.mktemp("warehouse")) as address,
        connect_server.session(address) as spark,
    ):
        yield spark


@pytest.fixture
def lq(tmp_path: Path, remote: SparkSession) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), spark=remote)


def test_a_dataframe_is_sent_leased_settled_and_seen(
    lq: LakeQueue, remote: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = lq.create_queue("orders")
    assert queue.send_dataframe(remote.range(10).selectExpr("concat('order ', id) AS body"), send_id="once") == 10
    assert queue.send_dataframe(remote.range(10).selectExpr("concat('order ', id) AS body"), send_id="once") == 0
    lease = queue.lease(7, visibility_timeout=3600)
    assert lease is not None
    rows = lease.messages.collect()
    assert len({row.body for row in rows}) == len({row.receipt_handle for row in rows}) == 7
    lq.register_views(remote)
    states = remote.sql("SELECT state, count(*) AS n FROM messages WHERE queue = 'orders' GROUP BY state")
    assert {row.state: row.n for row in states.collect()} == {"in_flight": 7, "visible": 3}
    states.explain()
    assert "ArrowEvalPython" in capsys.readouterr().out  # read by tasks of the server
    kept = lease.messages.where(f"message_id IN ('{rows[0].message_id}', '{rows[1].message_id}')")
    assert lease.delete_except(kept) == LeaseCounts(5, 0, 2)
    assert queue.counts().visible == 5


def test_groups_stay_whole_and_in_order(lq: LakeQueue, remote: SparkSession) -> None:
    queue = lq.create_queue(
        "orders.fifo", fifo=True, shards=2, deduplication_scope="message_group", content_based_deduplication=True
    )
    columns = ("cast(id AS string) AS body", "concat('group-', id % 5) AS group_id", "-id AS rank")
    assert queue.send_dataframe(remote.range(20).selectExpr(*columns), order_by="rank") == 20
    lease = queue.lease(20, visibility_timeout=3600)
    assert lease is not None and lease.message_count == 20
    rows = lease.messages.orderBy("shard", "offset").collect()
    for group in {row.group_id for row in rows}:
        mine = [int(row.body) for row in rows if row.group_id == group]
        assert len(mine) == 4 and mine == sorted(mine, reverse=True)
        assert len({row.shard for row in rows if row.group_id == group}) == 1
    unordered = remote.range(1).selectExpr("'x' AS body", "'g' AS group_id", "map(1, id) AS rank")
    with pytest.raises(InvalidParameterValue, match="rank is map"):
        queue.send_dataframe(unordered, order_by="rank")


def test_jobs_on_a_lost_lease_are_cancelled(tmp_path: Path, remote: SparkSession) -> None:
    clock = ManualClock()
    queue = LakeQueue(str(tmp_path / "root"), spark=remote, clock=clock).create_queue("orders")
    queue.send("one")
    lease = queue.lease(1, visibility_timeout=30)
    assert lease is not None
    policy = HeartbeatRenewal(visibility_timeout=30, extension_threshold=5, heartbeat_interval=1)
    settled = threading.Event()

    def lose() -> None:
        time.sleep(3)  # the job of the other process has begun
        clock.advance(600)
        settled.set()

    loser = threading.Thread(target=lose)
    with pytest.raises(LeaseLost), lease.keep_alive(policy):
        queue.purge()
        loser.start()
        # hours of work, unless it is cancelled
        remote.range(10**7).crossJoin(remote.range(10**7)).selectExpr("sum(hash(*))").collect()
    loser.join(60)
    assert settled.is_set()
    assert remote.range(3).count() == 3


def test_a_stream_sends_each_row_once(tmp_path: Path, lq: LakeQueue, remote: SparkSession) -> None:
    queue = lq.create_queue("orders")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one").write_text("a\nb\n")
    rows = remote.readStream.format("text").load(str(tmp_path / "in")).withColumnRenamed("value", "body")

    def run() -> list[str]:
        stream_to_queue(rows, queue, checkpoint, trigger="availableNow").awaitTermination()
        return sorted(message.body for message in queue.peek(limit=10))

    checkpoint = str(tmp_path / "checkpoint")
    assert run() == run() == ["a", "b"]
    (tmp_path / "in" / "two").write_text("c\n")
    assert run() == ["a", "b", "c"]


def test_a_stream_receives_handles_and_deletes(tmp_path: Path, lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    for text in "abc":
        queue.send(text)
    table = str(tmp_path / "table")

    def handle(messages: DataFrame, batch: int) -> None:
        messages.select("body").write.mode("append").parquet(table)

    query = stream_from_queue(queue, handle, str(tmp_path / "checkpoint"), trigger="availableNow")
    query.awaitTermination()
    assert lq.spark is not None
    assert sorted(row.body for row in lq.spark.read.parquet(table).collect()) == ["a", "b", "c"]
    assert queue.counts().visible == queue.counts().in_flight == 0


def test_what_a_handler_raises_ends_the_query_and_frees_the_messages(tmp_path: Path, lq: LakeQueue) -> None:
    from pyspark.errors import StreamingQueryException

    queue = lq.create_queue("orders")
    queue.send("one")

    def handle(messages: DataFrame, batch: int) -> None:
        raise ValueError("no such order")

    query = stream_from_queue(queue, handle, str(tmp_path / "checkpoint"), trigger="availableNow")
    with pytest.raises(StreamingQueryException, match="no such order"):
        query.awaitTermination()
    assert queue.counts().visible == 1


def test_what_a_remote_session_cannot_do_is_said_in_one_line(
    tmp_path: Path, lq: LakeQueue, remote: SparkSession
) -> None:
    queue = lq.create_queue("orders")
    rows = remote.readStream.format("rate").load().selectExpr("cast(value AS string) AS body")
    with pytest.raises(QueueClientError, match="Spark Connect") as caught:
        LakeQueue(lq.root, spark=remote, engine="spark")
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidOptions, match="trigger 'often'"):
        stream_to_queue(rows, queue, str(tmp_path / "checkpoint"), trigger="often")
    mine = LakeQueue(lq.root, spark=remote, clock=ManualClock()).queue("orders")
    with pytest.raises(QueueClientError, match="clock"):
        stream_to_queue(rows, mine, str(tmp_path / "checkpoint"))


def test_the_four_lines_of_the_data_source(tmp_path: Path, remote: SparkSession) -> None:
    register(remote)
    four_lines(remote, str(tmp_path / "root"), tmp_path)
