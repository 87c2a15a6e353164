"""Messages that Spark wrote are looked at like others, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_condition_on_rows_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path), spark=spark).create_queue("orders")
    queue.send("by hand", attributes={"half": "2"})
    rows = spark.range(5_000).selectExpr(
        "concat('row ', id) AS body",
        "map('half', named_struct('type', 'Number', 'string_value', string(id / 2), 'binary_value', NULL), "
        "'raw', named_struct('type', 'Binary', 'string_value', NULL, 'binary_value', unhex('00ff'))) "
        "AS message_attributes",
        "IF(id = 7, 60D, 0D) AS delay_seconds",
    )
    queue.send_dataframe(rows)
    where = "message_attributes['half']::DOUBLE = 2 OR state = 'delayed' OR body = 'row 4999'"
    assert [(m.body, m.state) for m in queue.peek(where)] == [
        ("by hand", "visible"),
        ("row 4", "visible"),
        ("row 7", "delayed"),
        ("row 4999", "visible"),
    ]
    [first] = queue.peek("message_attributes['raw'] = 'AP8=' AND age < 3600", limit=1)
    assert (first.body, first.message_attributes["raw"].value) == ("row 0", b"\x00\xff")


def test_long_binary_values_are_the_same_text_in_sql_and_in_conditions(
    spark: SparkSession, tmp_path: Path
) -> None:
    lq = LakeQueue(str(tmp_path), spark=spark)
    queue = lq.create_queue("orders")
    queue.send("a", attributes={"raw": bytes(range(256))})
    lq.register_views(spark)
    [(text,)] = spark.sql("SELECT message_attributes['raw'] FROM messages").collect()
    assert [message.body for message in queue.peek(f"message_attributes['raw'] = '{text}'")] == ["a"]
