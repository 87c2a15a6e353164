"""Bulk sends of Spark over several shards; `tests/concurrency/test_bulk_shards.py` has the rest, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from concurrency.harness import check_log
from lakequeue import LakeQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.core
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


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.spec("SND-17")
def test_the_spark_engine_sends_repeated_rows_once_too(tmp_path: Path, spark: SparkSession) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark, engine="spark").create_queue("orders")
    rows = spark.range(1).selectExpr("string(id) AS body")
    assert [queue.send_dataframe(rows, send_id="load") for _ in range(2)] == [1, 0]
    assert [row.body for row in check_log(queue)] == ["0"]
