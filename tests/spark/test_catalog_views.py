"""Views in a catalog, for other sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue, errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA IF NOT EXISTS `the queues`")
    yield "the queues"
    spark.sql("DROP SCHEMA `the queues` CASCADE")


def test_other_sessions_query_states_and_a_refresh_follows_the_queues(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    lq = LakeQueue(str(tmp_path / "it's a root"))
    lq.create_queue("orders").send("a")
    lq.create_queue("gone").send("b")
    lq.create_views(spark, schema)
    other = spark.newSession()

    def states() -> list[tuple[str, str, str]]:
        found = other.sql("SELECT queue, body, state FROM `the queues`.messages ORDER BY body").collect()
        return [tuple(row) for row in found]

    assert states() == [("gone", "b", "visible"), ("orders", "a", "visible")]
    lq.queue("orders").receive(visibility_timeout=600)  # each query sees the newest
    assert states()[1] == ("orders", "a", "in_flight")
    shown = {row.viewName for row in other.sql("SHOW VIEWS IN `the queues`").collect() if not row.isTemporary}
    assert shown == {"queues", "messages", "receipts", "history", "stats"}
    assert other.sql("SELECT sum(in_flight) FROM spark_catalog.`the queues`.queues").head()[0] == 1
    lq.delete_queue("gone")
    lq.create_queue("new").send("c")
    lq.create_views(spark, f"spark_catalog.{schema}")
    assert states() == [("orders", "a", "in_flight"), ("new", "c", "visible")]


def test_a_schema_that_is_none_is_told_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders")
    for wrong in ("", "a.b.c", "a..b", ".a"):
        with pytest.raises(errors.InvalidParameterValue, match="CATALOG.SCHEMA"):
            lq.create_views(spark, wrong)
    with pytest.raises(errors.QueueClientError, match="the views cannot be created: .*nowhere") as raised:
        lq.create_views(spark, "nowhere")
    assert "\n" not in str(raised.value)
