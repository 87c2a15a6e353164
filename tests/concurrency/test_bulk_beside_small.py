"""Bulk sends by Spark, concurrent with small sends by other threads and processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import apart, at_once, check_log, small_segments
from lakequeue import LakeQueue
from lakequeue.model.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def rows(spark: SparkSession, count: int, name: str = "bulk") -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(f"concat('{name}', id) AS body")


@pytest.mark.core
@pytest.mark.spec("SND-17")
def test_everything_is_there_once(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch, 8)
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=SystemClock())
    queue = lq.create_queue("orders")
    other = apart(tmp_path / "root", SystemClock(), 1)[0].queue("orders")
    done = threading.Event()

    def send_small(target: Any, name: str) -> list[str]:
        bodies: list[str] = []
        while not done.is_set():
            bodies.append(f"{name}{len(bodies)}")
            target.send(bodies[-1])
        return bodies

    def send_bulk() -> int:
        try:
            return sum(queue.send_dataframe(rows(spark, 10_000, name)) for name in ("one-", "two-"))
        finally:
            done.set()

    small, elsewhere, sent = at_once(
        [lambda: send_small(queue, "here"), lambda: send_small(other, "there"), send_bulk], 120
    )
    assert sent == 20_000 and small and elsewhere
    expected = [*small, *elsewhere, *(f"{name}-{n}" for name in ("one", "two") for n in range(10_000))]
    assert sorted(row.body for row in check_log(queue)) == sorted(expected)
    lease = queue.lease(1_000_000)
    assert lease is not None and lease.message_count == len(expected)
    assert sorted(row.body for row in lease.messages.select("body").collect()) == sorted(expected)
    assert lease.delete().done == len(expected)
    assert queue.counts().in_flight == 0
