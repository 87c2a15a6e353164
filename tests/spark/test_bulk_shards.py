"""Bulk sends over several shards: cut off between two of them, repeated, completed, and never doubled."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import apart, check_log
from concurrency.stopping import older
from lakequeue import LakeQueue, Queue, QueueClientError, SystemClock
from lakequeue.operations import send_dataframe
from lakequeue.storage import layout
from lakequeue.storage.bulk import commit_files, manifests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.core, pytest.mark.spec("SND-17", "DLT-3")]
SHARDS, ROWS = 3, 30


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def queue(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> Queue:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    if request.param:
        return lq.create_queue("orders.fifo", fifo=True, shards=SHARDS, deduplication_scope="message_group")
    return lq.create_queue("orders", shards=SHARDS)


def rows_of(spark: SparkSession, queue: Queue) -> DataFrame:
    rows = spark.range(ROWS).selectExpr("string(id) AS body").repartition(SHARDS)
    return rows.selectExpr("body", "body AS group_id", "body AS dedup_id") if queue.fifo else rows


def cut_off_after(patch: pytest.MonkeyPatch, commits: int) -> None:
    """Has every commit of a bulk send but the first ones fail."""
    done, add = 0, commit_files._ShardCommit.commit

    def failing(*args: Any, **more: Any) -> int:
        nonlocal done
        done += 1
        if done > commits:
            raise OSError("cut off")
        return add(*args, **more)

    patch.setattr(commit_files._ShardCommit, "commit", failing)


def cut_off(spark: SparkSession, queue: Queue, send: Callable[[], object], commits: int) -> QueueClientError:
    with pytest.MonkeyPatch.context() as patch:
        cut_off_after(patch, commits)
        with pytest.raises(QueueClientError) as caught:
            send()
    assert caught.value.outcome_unknown == (commits > 0)
    sent = bodies(queue)
    assert (0 < len(sent) < ROWS) if commits else not sent
    return caught.value


def bodies(queue: Queue) -> list[int]:
    return sorted(int(row.body) for row in check_log(queue))


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_repeated_send_adds_what_its_first_attempt_left_out(
    spark: SparkSession, queue: Queue, commits: int
) -> None:
    df = rows_of(spark, queue)
    cut_off(spark, queue, lambda: queue.send_dataframe(df, "load"), commits)
    left = ROWS - len(bodies(queue))
    other = apart(queue.runtime.root.path, SystemClock(), 1)[0].queue(queue.name)
    assert send_dataframe.bulk_send(other.runtime, spark, df, manifests.SendKey.of_send("load"), None) == left
    assert queue.send_dataframe(df, "load") == 0
    assert bodies(queue) == [*range(ROWS)]


def test_a_repeated_batch_of_a_stream_adds_what_is_missing(spark: SparkSession, queue: Queue) -> None:
    df, name = rows_of(spark, queue), manifests.SendKey.of_batch("s", 0)
    cut_off(spark, queue, lambda: send_dataframe.bulk_send(queue.runtime, spark, df, name, None), 1)
    left = ROWS - len(bodies(queue))
    assert [send_dataframe.bulk_send(queue.runtime, spark, df, name, None) for _ in range(2)] == [left, 0]
    assert bodies(queue) == [*range(ROWS)]


def test_a_send_without_a_name_says_how_to_repeat_it(spark: SparkSession, queue: Queue) -> None:
    df = rows_of(spark, queue)
    error = cut_off(spark, queue, lambda: queue.send_dataframe(df), 1)
    _, _, name = str(error).partition("send_id=")
    queue.send_dataframe(df, name.split("'")[1])
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


@pytest.mark.parametrize("hours", [1, 30])
def test_the_compactor_completes_what_reached_some_shards(spark: SparkSession, queue: Queue, hours: float) -> None:
    cut_off(spark, queue, lambda: queue.send_dataframe(rows_of(spark, queue)), 1)
    begun = bodies(queue)
    assert not queue.compact().failures
    assert bodies(queue) == begun  # its process may be at it
    older(queue.runtime.root.path, hours * 3600)
    for _ in range(2):
        assert not queue.compact().failures
    assert bodies(queue) == [*range(ROWS)]
    assert len(queue.receive(1_000)) == ROWS


def test_files_of_a_send_that_reached_some_shards_are_kept_however_old(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = rows_of(spark, queue)
    cut_off(spark, queue, lambda: queue.send_dataframe(df, "load"), 1)
    older(queue.runtime.root.path, 30 * 3600)
    with monkeypatch.context() as patch:
        patch.setattr(send_dataframe, "complete_bulk_sends", lambda queue: None)
        assert not queue.compact().failures
    queue.send_dataframe(df, "load")
    assert bodies(queue) == [*range(ROWS)]


def test_files_of_a_send_that_reached_no_shard_go_when_they_are_old(spark: SparkSession, queue: Queue) -> None:
    cut_off(spark, queue, lambda: queue.send_dataframe(rows_of(spark, queue), "load"), 0)
    folder = Path(layout.tables_path(queue.runtime.root.path, queue.key))
    assert [*folder.glob("*/messages/bulk/*/*/*.parquet")]
    for _ in range(2):  # the second pass removes what the first found unneeded
        older(queue.runtime.root.path, 30 * 3600)
        assert not queue.compact().failures
    assert not [*folder.glob("*/messages/bulk/*/*/*.parquet")] and not [*folder.glob("manifests/*")]
    assert bodies(queue) == []


def test_the_check_of_what_was_reached_can_fail(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 5: without it, a repeated send adds again what reached a shard."""
    df = rows_of(spark, queue)
    cut_off(spark, queue, lambda: queue.send_dataframe(df, "load"), 2)
    for kind in manifests.SendKey, manifests.Manifest:
        monkeypatch.setattr(kind, "reached", lambda *_: False)
    monkeypatch.setattr(commit_files, "Duplicates", lambda *_: None)  # a FIFO queue would notice
    monkeypatch.setattr(manifests.Manifest, "too_old", False)
    queue.send_dataframe(df, "load")
    with pytest.raises(AssertionError):
        check_log(queue)


def test_a_send_whose_parts_are_completed_meanwhile_is_not_disturbed(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = commit_files._ShardCommit.commit
    now = time.time

    def slow(*args: Any, **more: Any) -> int:
        monkeypatch.undo()
        rows = add(*args, **more)
        with pytest.MonkeyPatch.context() as patch:  # it takes so long that it seems to be gone
            patch.setattr("lakequeue.storage.bulk.commit_files.time.time", lambda: now() + 3_600)
            assert not queue.compact().failures
        return rows

    monkeypatch.setattr(commit_files._ShardCommit, "commit", slow)
    queue.send_dataframe(rows_of(spark, queue))
    assert bodies(queue) == [*range(ROWS)]


def test_a_send_whose_parts_were_all_committed_by_others_keeps_their_files(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = commit_files.complete
    monkeypatch.setattr(commit_files, "complete", lambda *args: complete(*args) * 0)  # the answer of who was late
    assert queue.send_dataframe(rows_of(spark, queue)) == 0
    assert bodies(queue) == [*range(ROWS)]
    assert len(queue.receive(1_000)) == ROWS
