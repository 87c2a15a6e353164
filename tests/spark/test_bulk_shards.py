"""Bulk sends of Spark over several shards; `tests/concurrency/test_bulk_shards.py` has the rest, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from concurrency.cut_off import ROWS, SHARDS, bodies, cut_off
from concurrency.harness import check_log
from lakequeue import LakeQueue, Queue
from lakequeue.operations import send_dataframe
from lakequeue.storage.bulk import manifests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.core, pytest.mark.spec("SND-17", "DLT-3")]


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def queue(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> Queue:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    if request.param:
        return lq.create_queue("orders.fifo", fifo=True, shards=SHARDS, deduplication_scope="message_group")
    return lq.create_queue("orders", shards=SHARDS)


def rows_of(spark: SparkSession, queue: Queue) -> DataFrame:
    rows = spark.range(ROWS).selectExpr("string(id) AS body").repartition(SHARDS)
    return rows.selectExpr("body", "body AS group_id", "body AS dedup_id") if queue.fifo else rows


def test_a_repeated_batch_of_a_stream_adds_what_is_missing(spark: SparkSession, queue: Queue) -> None:
    df, name = rows_of(spark, queue), manifests.SendKey.of_batch("s", 0)
    cut_off(queue, lambda: send_dataframe.bulk_send(queue._runtime, df, name, None), 1)
    left = ROWS - len(bodies(queue))
    assert [send_dataframe.bulk_send(queue._runtime, df, name, None) for _ in range(2)] == [left, 0]
    assert bodies(queue) == [*range(ROWS)]


@pytest.mark.spec("SND-18")
@pytest.mark.parametrize("partitions", [1, 5])
def test_rows_fill_all_shards_evenly_in_contiguous_ranges(
    tmp_path: Path, spark: SparkSession, partitions: int
) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark).create_queue("orders", shards=4)
    rows = spark.range(0, 1_003, 1, partitions).selectExpr("string(id) AS body")
    assert queue.send_dataframe(rows) == 1_003
    ranges: dict[int, list[int]] = {}
    for row in check_log(queue):
        ranges.setdefault(row.shard, []).append(int(row.body))
    assert sorted(number for numbers in ranges.values() for number in numbers) == [*range(1_003)]
    for numbers in ranges.values():
        assert numbers == [*range(numbers[0], numbers[-1] + 1)]
        assert 0.79 < len(numbers) / (1_003 / 4) < 1.21
    assert len(ranges) == 4
