"""Bulk sends by Spark, concurrent with small sends by other threads and processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import apart, application_id, at_once, check_log, small_segments
from concurrency.steps import at, cut_off
from lakequeue import LakeQueue
from lakequeue.model.clock import SystemClock
from lakequeue.storage import layout
from lakequeue.storage.engines.interface import LostRace
from lakequeue.storage.engines.point import Table

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


@pytest.mark.core
@pytest.mark.parametrize("landed", [False, True])
def test_a_repeated_send_id_sends_nothing_twice(tmp_path: Path, spark: SparkSession, landed: bool) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=SystemClock())
    queue = lq.create_queue("orders")
    with cut_off("add", landed):
        queue.send_dataframe(rows(spark, 50), send_id="load 1")
    other = LakeQueue(str(tmp_path / "root"), spark=spark, clock=SystemClock()).queue("orders")
    assert other.send_dataframe(rows(spark, 50), send_id="load 1") == (0 if landed else 50)
    assert other.send_dataframe(rows(spark, 50), send_id="load 1") == 0
    assert len(check_log(queue)) == 50


@pytest.mark.core
def test_the_replay_check_can_fail(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 5: without the bulk send's id in the log, its files get new offsets again."""
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=SystemClock())
    queue = lq.create_queue("orders")
    transaction = Table.transaction
    with monkeypatch.context() as patch:
        patch.setattr(
            Table,
            "transaction",
            lambda self, app_id: 0 if app_id.startswith("bulk-") else transaction(self, app_id),
        )
        for _ in range(2):
            queue.send_dataframe(rows(spark, 20), send_id="load 1")
    with pytest.raises(AssertionError):
        check_log(queue)


def test_a_lost_race_numbers_the_same_files_anew(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=SystemClock())
    queue = lq.create_queue("orders")
    other = apart(tmp_path / "root", SystemClock(), 1)[0].queue("orders")
    add, offered = Table.add, []

    def overtaken(self: Table, files: Any, *args: Any) -> None:
        offered.append([file.path for file in files])
        if len(offered) == 1:
            other.send("before")
        add(self, files, *args)

    monkeypatch.setattr(Table, "add", overtaken)
    assert queue.send_dataframe(rows(spark, 20)) == 20
    assert len(offered) == 2 and offered[0] == offered[1]
    assert [row.body for row in check_log(queue)][0] == "before"

    at(monkeypatch, Table, "add", LostRace("conflict"), times=1_000)
    monkeypatch.setattr("lakequeue.storage.engines.commit.back_off", lambda _: None)
    monkeypatch.setattr("lakequeue.storage.engines.commit.ATTEMPTS", 2)
    end = application_id(queue, layout.SEND_ID)
    with pytest.raises(Exception, match="nothing was sent"):
        queue.send_dataframe(rows(spark, 20))
    assert application_id(queue, layout.SEND_ID) == end == len(check_log(queue))
