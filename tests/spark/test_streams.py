"""Streams to a queue, exactly once, and from a queue, at least once."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import application_id, check_log, log_rows, sent_bodies
from concurrency.stopping import older
from lakequeue import (
    HeartbeatRenewal,
    InvalidOptions,
    InvalidParameterValue,
    LakeQueue,
    LeaseLost,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    SendEntry,
)
from lakequeue.operations.send_dataframe import batches_of, bulk_send
from lakequeue.spark import stream_from_queue, stream_to_queue
from lakequeue.spark.checkpoint import FILE
from lakequeue.storage import layout
from lakequeue.storage.bulk import commit_files, manifests, write_files
from lakequeue.testing import ManualClock
from mutations import Patch
from spark.dropped_files import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders", visibility_timeout=60)


def run(query: StreamingQuery) -> list[Any]:
    """Waits for the end of a query; what each of its batches did to the queue."""
    query.awaitTermination()
    return [tuple(progress["observedMetrics"]["lakequeue"]) for progress in query.recentProgress]


def failure(query: StreamingQuery) -> BaseException | None:
    """Why a query ended."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    found = query.exception()
    assert found is not None and found.__cause__ is caught.value.__cause__
    return caught.value.__cause__


def batch_of(spark: SparkSession, *texts: str) -> DataFrame:
    return spark.createDataFrame([(text,) for text in texts], "body string").coalesce(1)


# --- the bulk send of a micro-batch


@pytest.mark.core
@pytest.mark.spec("SND-17")
def test_a_batch_and_all_before_it_are_sent_once(spark: SparkSession, queue: Queue) -> None:
    def send(number: int, *texts: str) -> int:
        return bulk_send(
            queue._runtime, spark, batch_of(spark, *texts), manifests.SendKey.of_batch("s", number), None
        )

    assert [send(0, "a", "b"), send(0, "a", "b"), send(3, "c"), send(2, "late"), send(3, "c")] == [2, 0, 1, 0, 0]
    assert bulk_send(queue._runtime, spark, batch_of(spark, "d"), manifests.SendKey.of_batch("t", 0), None) == 1
    assert sent_bodies(queue) == ["a", "b", "c", "d"]
    assert (
        batches_of(queue._runtime, "s"),
        batches_of(queue._runtime, "t"),
        batches_of(queue._runtime, "u"),
    ) == (4, 1, 0)
    assert application_id(queue, "stream-s") == 4
    folder = Path(layout.tables_path(queue._runtime.root.path, queue.key)) / "manifests"
    assert not list(folder.iterdir())  # of streams there are too many to leave them to the compactor


def test_an_empty_batch_commits_nothing(spark: SparkSession, queue: Queue) -> None:
    nothing = batch_of(spark, "x").where("body IS NULL")
    assert bulk_send(queue._runtime, spark, nothing, manifests.SendKey.of_batch("s", 0), None) == 0
    assert batches_of(queue._runtime, "s") == 0
    assert not list((Path(layout.tables_path(queue._runtime.root.path, queue.key)) / "manifests").iterdir())


@pytest.mark.spec("QUE-25", "SND-2")
@pytest.mark.parametrize(
    "name", [manifests.SendKey.of_batch("s", 0), manifests.SendKey.of_send("load")], ids=["batch", "send_id"]
)
def test_files_are_judged_by_the_attributes_that_they_are_committed_under(
    spark: SparkSession, lq: LakeQueue, queue: Queue, name: manifests.SendKey, monkeypatch: Patch
) -> None:
    stage = write_files.stage

    def interrupted(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        staged = stage(*args, **more)
        lq.queue("orders").set_attributes(maximum_message_size=1_024)
        return staged

    monkeypatch.setattr(write_files, "stage", interrupted)
    with pytest.raises(InvalidParameterValue, match="1 row is longer than 1024 bytes"):
        bulk_send(queue._runtime, spark, batch_of(spark, "x" * 1_025), name, None)
    assert bulk_send(queue._runtime, spark, batch_of(spark, "x" * 1_024), name, None) == 1
    assert [len(body) for body in sent_bodies(queue)] == [1_024]


def test_files_that_waited_too_long_are_written_anew_for_a_stream_only(
    spark: SparkSession, queue: Queue, clock: ManualClock, monkeypatch: Patch
) -> None:
    def killed(*_: Any) -> None:
        raise OSError("killed")

    names = manifests.SendKey.of_batch("s", 0), manifests.SendKey.of_send("load")
    with monkeypatch.context() as patch:
        patch.setattr(commit_files, "complete", killed)
        for name in names:
            with pytest.raises(QueueClientError):
                bulk_send(queue._runtime, spark, batch_of(spark, "old"), name, None)
    waiting = Path(layout.tables_path(queue._runtime.root.path, queue.key)) / "manifests"
    for manifest in waiting.iterdir():
        written = manifest.stat().st_mtime - 12 * 3600 - 1
        os.utime(manifest, (written, written))
    assert bulk_send(queue._runtime, spark, batch_of(spark, "new"), names[0], None) == 1
    with pytest.raises(QueueClientError, match="more than 12 h ago"):
        bulk_send(queue._runtime, spark, batch_of(spark, "new"), names[1], None)
    assert sent_bodies(queue) == ["new"]


@pytest.mark.core
@pytest.mark.spec("QUE-33", "DLT-7")
@pytest.mark.parametrize("hours", [13, 30])
def test_a_bulk_send_that_was_stopped_before_its_commit_until_its_files_were_too_old_sends_nothing(
    spark: SparkSession, queue: Queue, monkeypatch: Patch, hours: float
) -> None:
    complete, now = commit_files.complete, time.time

    def stopped(*args: Any) -> int:
        for _ in range(2):  # the second pass removes what the first found unneeded
            older(queue._runtime.root.path, hours * 3600 / 2)
            assert not queue.compact().failures
        if hours == 13:  # the files are there still, but would not be for long
            monkeypatch.setattr("lakequeue.storage.bulk.manifests.time.time", lambda: now() + hours * 3600)
        return complete(*args)

    monkeypatch.setattr(commit_files, "complete", stopped)
    with pytest.raises(QueueClientError, match="waited too long" if hours == 30 else "12 h ago") as caught:
        queue.send_dataframe(batch_of(spark, "a", "b"))
    assert not caught.value.outcome_unknown
    monkeypatch.undo()
    assert sent_bodies(queue) == []
    assert queue.send_dataframe(batch_of(spark, "a", "b")) == 2
    assert sorted(sent_bodies(queue)) == ["a", "b"]


# --- to a queue


@pytest.mark.core
@pytest.mark.spec("SND-17", "DLT-3")
def test_every_row_of_a_stream_is_sent_once(folder: Folder, queue: Queue, checkpoint: str) -> None:
    folder.drop("a", "a1", "a2")
    folder.drop("b", "b1")
    query = stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow")
    assert run(query) == [(2,), (1,)]
    assert query.lastProgress["observedMetrics"]["lakequeue"].messages == 1
    folder.drop("c", "c1", "c2", "c3")
    assert run(stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow")) == [(3,)]
    assert sorted(sent_bodies(queue)) == ["a1", "a2", "b1", "c1", "c2", "c3"]
    commits = {row.sent_at for row in log_rows(queue)}
    assert len(commits) == 1 and application_id(queue, layout.SEND_ID) == 6


@pytest.mark.core
@pytest.mark.parametrize("committed", [True, False])
def test_a_batch_that_was_cut_off_is_sent_once(
    folder: Folder, queue: Queue, checkpoint: str, committed: bool, monkeypatch: Patch
) -> None:
    folder.drop("a", "a1", "a2")

    def cut_off(*_: Any) -> None:
        raise OSError("cut off")

    with monkeypatch.context() as patch:
        # the manifest goes right after the commit
        patch.setattr(*((manifests, "forget") if committed else (commit_files, "complete")), cut_off)
        error = failure(stream_to_queue(folder.rows, queue, checkpoint))
    assert isinstance(error, QueueClientError) and "cut off" in str(error)
    assert len(log_rows(queue)) == (2 if committed else 0)
    monkeypatch.setattr(write_files, "stage", cut_off)  # what was written once is not evaluated again
    query = stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow")
    assert run(query) == [(0 if committed else 2,)]
    assert sent_bodies(queue) == ["a1", "a2"]


@pytest.mark.core
def test_the_replay_check_of_streams_can_fail(
    folder: Folder, queue: Queue, checkpoint: str, monkeypatch: Patch
) -> None:
    """Guarantee 5: without the number of the batch in the log, a repeated one is sent again."""
    folder.drop("a", "a1")

    def cut_off(*_: Any) -> None:
        raise OSError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(manifests, "forget", cut_off)
        failure(stream_to_queue(folder.rows, queue, checkpoint))
    for kind in manifests.SendKey, manifests.Manifest:
        monkeypatch.setattr(kind, "reached", lambda *_: False)
    run(stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow"))
    with pytest.raises(AssertionError):
        check_log(queue)


@pytest.mark.spec("SND-1", "SND-2", "SND-16")
def test_bad_rows_end_the_stream_and_say_how_many(folder: Folder, queue: Queue, checkpoint: str) -> None:
    queue.set_attributes(maximum_message_size=1_024)
    folder.drop("a", "good")
    run(stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow"))
    folder.drop("b", "good too", "", "", "x" * 1_025)
    error = failure(stream_to_queue(folder.rows, queue, checkpoint))
    assert isinstance(error, InvalidParameterValue)
    assert "2 rows have no body" in error.message and "1 row is longer than 1024 bytes" in error.message
    assert sent_bodies(queue) == ["good"]
    folder.drop("b", "mended")
    assert run(stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow")) == [(1,)]
    assert sent_bodies(queue) == ["good", "mended"]


@pytest.mark.spec("FIF-1", "DDP-1", "SND-6")
def test_a_stream_keeps_the_order_and_the_ids_of_a_fifo_queue(
    folder: Folder, lq: LakeQueue, checkpoint: str
) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    rows = folder.rows.selectExpr("body", "substr(body, 1, 1) AS group_id", "int(substr(body, 2)) AS place")
    folder.drop("a", "x2", "y9", "x1", "x2")
    folder.drop("b", "x10", "x9", "x1")
    query = stream_to_queue(rows, queue, checkpoint, trigger="availableNow", order_by="place")
    assert run(query) == [(3,), (2,)]
    assert [body for body in sent_bodies(queue) if body[0] == "x"] == ["x1", "x2", "x9", "x10"]


def test_what_cannot_be_sent_is_refused_before_anything_starts(
    spark: SparkSession, folder: Folder, lq: LakeQueue, queue: Queue, checkpoint: str
) -> None:
    def refused(df: DataFrame, said: str, **more: Any) -> None:
        with pytest.raises((InvalidParameterValue, InvalidOptions), match=said):
            stream_to_queue(df, queue, checkpoint, **more)

    refused(batch_of(spark, "a"), "not a stream")
    refused(folder.rows.withColumnRenamed("body", "text"), "Columns text are not known")
    refused(folder.rows.selectExpr("1 AS body"), "The column body is int")
    refused(folder.rows.drop("body").selectExpr("'x' AS group_id"), "The column body is missing")
    refused(folder.rows, "Standard queues keep no order", order_by="body")
    refused(folder.rows, "trigger 'often'", trigger="often")
    lq.delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        stream_to_queue(folder.rows, queue, checkpoint)
    assert not spark.streams.active


@pytest.mark.core
def test_a_checkpoint_belongs_to_one_stream_of_one_queue(
    spark: SparkSession, folder: Folder, lq: LakeQueue, queue: Queue, checkpoint: str, tmp_path: Path
) -> None:
    def refused(said: str, queue: Queue, path: str = checkpoint) -> None:
        with pytest.raises(InvalidOptions, match=said):
            stream_to_queue(folder.rows, queue, path)

    folder.drop("a", "a1")
    run(stream_to_queue(folder.rows, queue, checkpoint, trigger="availableNow"))
    refused("belongs to queue orders, not to others", lq.create_queue("others"))
    with pytest.raises(InvalidOptions, match="belongs to stream_to_queue, not to stream_from_queue"):
        stream_from_queue(queue, print, checkpoint)
    for kept in ("offsets", "commits"):
        shutil.rmtree(f"{checkpoint}/{kept}")
    refused("was reset behind what orders has of it", queue)
    lq.delete_queue("orders")
    refused("belongs to an earlier queue of the name orders", lq.create_queue("orders"))

    foreign = str(tmp_path / "foreign")
    query = folder.rows.writeStream.format("noop").option("checkpointLocation", foreign)
    query.trigger(availableNow=True).start().awaitTermination()
    refused("belongs to a query that stream_to_queue did not start", lq.queue("orders"), foreign)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / FILE).write_text("{")
    with pytest.raises(QueueClientError, match="is damaged"):
        stream_to_queue(folder.rows, lq.queue("orders"), str(damaged))
    (tmp_path / "file").touch()
    with pytest.raises(QueueClientError, match="cannot be used"):
        stream_to_queue(folder.rows, lq.queue("orders"), str(tmp_path / "file"))
    assert not spark.streams.active and not log_rows(lq.queue("orders"))


def test_a_queue_that_is_deleted_ends_the_stream(
    folder: Folder, lq: LakeQueue, queue: Queue, checkpoint: str
) -> None:
    query = stream_to_queue(folder.rows, queue, checkpoint, trigger="0 seconds")
    lq.delete_queue("orders")
    folder.drop("a", "a1")
    assert isinstance(failure(query), QueueDoesNotExist)


@pytest.mark.long
def test_the_spark_engine_sends_a_replayed_batch_once_too(tmp_path: Path, spark: SparkSession) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark, engine="spark").create_queue("orders")
    name = manifests.SendKey.of_batch("s", 0)
    assert [bulk_send(queue._runtime, spark, batch_of(spark, "a"), name, None) for _ in range(2)] == [1, 0]
    assert batches_of(queue._runtime, "s") == 1


# --- from a queue


class Seen:
    """A handler that remembers what it was given."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, messages: DataFrame, batch: int) -> None:
        assert batch not in self.batches
        self.batches[batch] = sorted(row.body for row in messages.select("body").collect())


@pytest.mark.core
@pytest.mark.spec("RCV-7", "STA-14")
def test_messages_are_handled_and_deleted_a_lease_a_trigger(queue: Queue, checkpoint: str) -> None:
    queue.send_batch([SendEntry(body) for body in "abcde"])
    seen = Seen()
    done: list[Any] = []
    for _ in range(3):
        query = stream_from_queue(queue, seen, checkpoint, trigger="availableNow", max_messages=3)
        done += run(query)
    assert seen.batches == {0: ["a", "b", "c"], 1: ["d", "e"]}
    assert done == [(3, 3, 0), (2, 2, 0), (0, 0, 0)]
    counts = query.lastProgress["observedMetrics"]["lakequeue"]
    assert (counts.messages, counts.deleted, counts.lost) == (0, 0, 0)
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)


@pytest.mark.core
@pytest.mark.spec("RCV-6", "VIS-4")
def test_a_handler_that_raises_hands_back_and_ends_the_query(queue: Queue, checkpoint: str) -> None:
    queue.send_batch([SendEntry("a"), SendEntry("b")])

    def fail(messages: DataFrame, batch: int) -> None:
        raise ValueError("boom")

    error = failure(stream_from_queue(queue, fail, checkpoint))
    assert isinstance(error, ValueError) and str(error) == "boom"
    assert (queue.counts().visible, queue.counts().in_flight) == (2, 0)
    seen = Seen()
    # batch 0 was begun; its number is not given to other messages
    assert run(stream_from_queue(queue, seen, checkpoint, trigger="availableNow")) == [(0, 0, 0), (2, 2, 0)]
    assert seen.batches == {1: ["a", "b"]}


@pytest.mark.spec("RCV-6", "RCP-6")
def test_a_handler_that_is_too_slow_is_told(
    queue: Queue, checkpoint: str, clock: ManualClock, tmp_path: Path
) -> None:
    queue.send_batch([SendEntry("a"), SendEntry("b")])

    def sleep(count: int) -> Any:
        def handle(messages: DataFrame, batch: int) -> None:
            clock.advance(30)
            assert len(queue.receive(count)) == count

        return handle

    options: dict[str, Any] = {"trigger": "availableNow", "visibility_timeout": 30}
    assert run(stream_from_queue(queue, sleep(1), checkpoint, **options)) == [(2, 1, 1)]
    clock.advance(60)
    error = failure(stream_from_queue(queue, sleep(1), checkpoint, **options))
    assert isinstance(error, LeaseLost) and error.lost == 1


@pytest.mark.spec("HBN-1")
def test_a_slow_handler_keeps_its_messages_with_a_renewal(
    queue: Queue, clock: ManualClock, checkpoint: str
) -> None:
    queue.send_batch([SendEntry("a"), SendEntry("b")])

    def slow(messages: DataFrame, batch: int) -> None:
        for _ in range(75):
            clock.advance(1)
            assert queue.receive() == []

    renewal = HeartbeatRenewal(visibility_timeout=30)
    assert run(stream_from_queue(queue, slow, checkpoint, trigger="availableNow", renewal=renewal)) == [(2, 2, 0)]
    clock.advance(30)
    assert queue.receive() == []


def test_a_queue_that_is_deleted_ends_the_consumer(lq: LakeQueue, queue: Queue, checkpoint: str) -> None:
    query = stream_from_queue(queue, print, checkpoint, trigger="0 seconds")
    lq.delete_queue("orders")
    assert isinstance(failure(query), QueueDoesNotExist)
    with pytest.raises(QueueDoesNotExist):
        stream_from_queue(queue, print, checkpoint)


def test_wrong_options_are_named_all_at_once(tmp_path: Path, queue: Queue, checkpoint: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        stream_from_queue(queue, 3, checkpoint, "often", 0, 43_201)  # type: ignore[arg-type]
    names = [problem.split()[0] for problem in caught.value.problems]
    assert names == ["handle_batch", "max_messages", "visibility_timeout", "trigger"]
    assert not Path(checkpoint).exists()
    without = LakeQueue(str(tmp_path / "root")).queue("orders")
    with pytest.raises(QueueClientError, match="stream_from_queue needs Spark"):
        stream_from_queue(without, print, checkpoint)
