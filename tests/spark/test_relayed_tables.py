"""Relays of tables that Spark writes: column mapping, deletion vectors, change feeds, and instants of 96 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakequeue import LakeQueue, Queue, errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
    }
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    columns = "id BIGINT, word STRING, at TIMESTAMP, inner STRUCT<a: INT, b: STRUCT<c: DECIMAL(20, 5)>>, part DATE"
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({columns}) USING delta PARTITIONED BY (part) TBLPROPERTIES ({listed})"
    )
    return path


def insert(spark: SparkSession, table: str, *ids: int) -> None:
    for id in ids:
        spark.sql(
            f"INSERT INTO delta.`{table}` SELECT {id}, 'w{id}', TIMESTAMP'2500-01-31T08:00:00.5Z', "
            "named_struct('a', 7, 'b', named_struct('c', 1.5BD)), DATE'2026-01-31'"
        )


def message_bodies(queue: Queue) -> list[dict[str, Any]]:
    return [json.loads(message.body, parse_float=str) for message in queue.peek(limit=100)]


@pytest.mark.spec("RLY-4")
def test_columns_that_spark_maps_renames_and_drops(spark: SparkSession, lq: LakeQueue, table: str) -> None:
    queue = lq.create_queue("orders")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        insert(spark, table, 1)
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN word TO text")
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN inner.b TO z")
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN part TO day")
    insert(spark, table, 2)
    spark.sql(f"ALTER TABLE delta.`{table}` DROP COLUMN at")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT 3, 'w3', NULL, DATE'2026-02-01'")
    assert lq.relay(table, queue, start=0) == 3
    at, inner = "2500-01-31T08:00:00.500000Z", {"c": "1.50000"}
    assert message_bodies(queue) == [
        {"id": 1, "word": "w1", "at": at, "inner": {"a": 7, "b": inner}, "part": "2026-01-31"},
        {"id": 2, "text": "w2", "at": at, "inner": {"a": 7, "z": inner}, "day": "2026-01-31"},
        {"id": 3, "text": "w3", "day": "2026-02-01"},
    ]


@pytest.mark.spec("RLY-3", "RLY-4")
def test_a_feed_of_spark_and_deletion_vectors(spark: SparkSession, lq: LakeQueue, table: str) -> None:
    queue = lq.create_queue("changes")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT id, 'w', NULL, NULL, DATE'2026-01-31' FROM range(0, 4, 1, 1)")
    spark.sql(f"UPDATE delta.`{table}` SET word = 'new' WHERE id = 2")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    lq.relay(table, queue, start=0, changes="feed")
    seen = [(row["_change_type"], row["_commit_version"], row["id"], row["word"]) for row in message_bodies(queue)]
    assert seen == [
        *(("insert", 2, id, "w") for id in range(4)),
        ("update_postimage", 3, 2, "new"),
        ("delete", 5, 1, "w"),
        ("delete", 6, 3, "w"),
    ]
    assert all(row["part"] == "2026-01-31" for row in message_bodies(queue))
    with pytest.raises(errors.InvalidOptions, match=r"version 5 of .*DELETE"):
        lq.relay(table, lq.create_queue("appends"), start=4)
