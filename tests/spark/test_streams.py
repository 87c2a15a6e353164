"""Streams to a queue, exactly once, and from a queue, at least once."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from concurrency.harness import sent_bodies
from concurrency.stopping import older
from insides import place_of
from lakequeue import (
    HeartbeatRenewal,
    InvalidOptions,
    InvalidParameterValue,
    LakeQueue,
    Lease,
    LeaseCounts,
    LeaseLost,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    SendEntry,
)
from lakequeue.frame_verbs import lease_of_handle
from lakequeue.spark import stream_from_queue, stream_to_queue, streams
from lakequeue.spark.rows import results
from lakequeue.spark.source_schema import error_in
from lakequeue.spark.streams import process_lease
from lakequeue.storage.bulk import bulk_send
from lakequeue.testing import ManualClock
from mutations import Patch
from serve.serving import wait_until
from spark.dropped_files import Folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders", visibility_timeout=60)


def batch_of(spark: SparkSession, *texts: str) -> DataFrame:
    return spark.createDataFrame([(text,) for text in texts], "body string").coalesce(1)


@pytest.mark.core
@pytest.mark.spec("QUE-33", "DLT-7")
@pytest.mark.parametrize("hours", [13, 30])
def test_a_bulk_send_that_was_stopped_before_its_commit_until_its_files_were_too_old_sends_nothing(
    spark: SparkSession, queue: Queue, monkeypatch: Patch, hours: float
) -> None:
    complete, now = bulk_send.complete, time.time

    def stopped(*args: Any) -> int:
        for _ in range(2):  # the second pass removes what the first found unneeded
            older(place_of(queue), hours * 3600 / 2)
            assert not queue.compact().failures
        if hours == 13:  # the files are there still, but would not be for long
            monkeypatch.setattr("lakequeue.storage.bulk.manifests.time.time", lambda: now() + hours * 3600)
            monkeypatch.setattr("lakequeue.storage.clock_guard._stamped", lambda *_: now() + hours * 3600)
        return complete(*args)

    monkeypatch.setattr(bulk_send, "complete", stopped)
    with pytest.raises(QueueClientError, match="waited too long" if hours == 30 else "12 h ago") as caught:
        queue.send_dataframe(batch_of(spark, "a", "b"))
    assert not caught.value.outcome_unknown
    monkeypatch.undo()
    assert sent_bodies(queue) == []
    assert queue.send_dataframe(batch_of(spark, "a", "b")) == 2
    assert sorted(sent_bodies(queue)) == ["a", "b"]


# --- streams


@pytest.fixture
def present(tmp_path: Path, spark: SparkSession) -> Queue:
    """By the system's clock: the workers of Spark know no other."""
    return LakeQueue(str(tmp_path / "root"), spark=spark).create_queue("orders", visibility_timeout=60)


def failure(query: StreamingQuery) -> str:
    """Why a query ended."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    return str(caught.value)


@pytest.mark.core
@pytest.mark.spec("SND-17", "FIF-1", "DDP-1", "SND-6")
def test_a_stream_sends_each_row_once_in_order(
    folder: Folder, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark).create_queue(
        "orders.fifo", fifo=True, content_based_deduplication=True
    )
    rows = folder.rows.selectExpr("body", "substr(body, 1, 1) AS group_id", "int(substr(body, 2)) AS place")
    folder.drop("a", "x2", "y9", "x1", "x2")
    stream_to_queue(rows, queue, checkpoint, trigger="availableNow", order_by="place").awaitTermination()
    folder.drop("b", "x10", "x9", "x1")
    stream_to_queue(rows, queue, checkpoint, trigger="availableNow", order_by="place").awaitTermination()
    assert [body for body in sent_bodies(queue) if body[0] == "x"] == ["x1", "x2", "x9", "x10"]


def test_what_cannot_be_sent_is_refused_before_anything_starts(
    spark: SparkSession, folder: Folder, lq: LakeQueue, present: Queue, checkpoint: str
) -> None:
    def refused(df: DataFrame, said: str, queue: Queue = present, **more: Any) -> None:
        with pytest.raises((InvalidParameterValue, InvalidOptions, QueueClientError), match=said):
            stream_to_queue(df, queue, checkpoint, **more)

    refused(batch_of(spark, "a"), "not a stream")
    refused(folder.rows.withColumnRenamed("body", "text"), "Columns text are not known")
    refused(folder.rows.selectExpr("1 AS body"), "The column body is int")
    refused(folder.rows.drop("body").selectExpr("'x' AS group_id"), "The column body is missing")
    refused(folder.rows, "Standard queues keep no order", order_by="body")
    for trigger in ("often", "5 seconds' + '1", "", 5):
        refused(folder.rows, "not an interval such as", trigger=trigger)
    refused(folder.rows, "the system's clock", lq.queue("orders"))
    lq.delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        stream_to_queue(folder.rows, present, checkpoint)
    assert not spark.streams.active


@pytest.mark.core
@pytest.mark.spec("RCV-6", "RCV-7", "STA-14")
def test_a_batch_is_deleted_when_its_function_returns_but_for_what_failed(present: Queue, checkpoint: str) -> None:
    present.send_batch([SendEntry(body) for body in "abcde"])
    seen: list[tuple[int, list[str], int]] = []

    def handle(messages: DataFrame, batch: int) -> DataFrame:
        found = messages.drop("receipt_handle").collect()
        assert len(found[0]) == 11
        seen.append((batch, sorted(row.body for row in found), present.counts().in_flight))
        return messages.where("body = 'b' AND receive_count = 1")  # failed

    query = stream_from_queue(present, handle, checkpoint, trigger="0 seconds", max_messages=3)
    wait_until(lambda: len(seen) == 2 and not present.counts().in_flight, "the deletion")
    query.stop()
    assert seen == [(0, ["a", "b", "c"], 3), (1, ["b", "d", "e"], 3)]
    assert present.counts().visible == 0


@pytest.mark.spec("RCV-6", "VIS-4")
def test_a_function_that_raises_hands_back_and_ends_the_query(present: Queue, checkpoint: str) -> None:
    present.send_batch([SendEntry("a"), SendEntry("b")])
    seen: list[tuple[int, list[str]]] = []

    def handle(messages: DataFrame, batch: int) -> None:
        seen.append((batch, sorted(row.body for row in messages.collect())))
        if len(seen) == 1:
            raise ValueError("boom")

    assert "ValueError: boom" in failure(stream_from_queue(present, handle, checkpoint, max_messages=1))
    assert (present.counts().visible, present.counts().in_flight) == (2, 0)
    stream_from_queue(present, handle, checkpoint, trigger="availableNow").awaitTermination()
    # batch 0 had given its message back; its number is not given to another (the message may come last, DLQ-12)
    assert seen[0] == (0, ["a"]) and [number for number, _ in seen] == [0, 1, 2]
    assert sorted(bodies for _, bodies in seen[1:]) == [["a"], ["b"]]
    assert (present.counts().visible, present.counts().in_flight) == (0, 0)


def handle_all_but(poison: str, handled: list[str]) -> Any:
    """A handler that raises for a body."""

    def handle(messages: DataFrame, batch: int) -> None:
        bodies = [row.body for row in messages.collect()]
        if poison in bodies:
            raise ValueError(f"{poison} is poison")
        handled.extend(bodies)

    return handle


@pytest.mark.parametrize(("sink", "stored"), [("merge", "aabbcc"), ("txnVersion", "aaaabb")])
def test_merges_are_exactly_once_and_delta_transactions_by_number_of_batch_are_not(
    spark: SparkSession, tmp_path: Path, present: Queue, checkpoint: str, sink: str, stored: str
) -> None:
    """After a function has raised comes another number, and without its checkpoint numbers begin anew."""
    from delta.tables import DeltaTable

    path = str(tmp_path / "sink")
    batch_of(spark).selectExpr("body AS message_id", "body").write.format("delta").save(path)
    fails = [True]

    def handle(messages: DataFrame, batch: int) -> None:
        rows = messages.select("message_id", "body")
        if sink == "merge":
            merge = (
                DeltaTable.forPath(spark, path)
                .alias("old")
                .merge(rows.alias("new"), "old.message_id = new.message_id")
            )
            merge.whenNotMatchedInsertAll().execute()
        else:
            once = {"txnAppId": "sink", "txnVersion": batch}
            rows.write.format("delta").mode("append").options(**once).save(path)
        if fails:
            fails.clear()
            raise ValueError("boom")

    def run(*bodies: str) -> None:
        present.send_batch([SendEntry(body) for body in bodies])
        stream_from_queue(present, handle, checkpoint, trigger="availableNow").awaitTermination()

    run("a", "a")
    run("b", "b")
    shutil.rmtree(checkpoint)
    run("c", "c")
    assert present.counts().visible == 0
    assert "".join(sorted(row.body for row in spark.read.format("delta").load(path).collect())) == stored


@pytest.mark.spec("DLQ-12", "DLQ-2")
def test_one_message_that_a_function_raises_for_is_the_only_dead_letter(
    tmp_path: Path, spark: SparkSession, checkpoint: str
) -> None:
    lake = LakeQueue(str(tmp_path / "root"), spark=spark)
    dead = lake.create_queue("dead")
    queue = lake.create_queue("orders", dead_letter_queue="dead", max_receive_count=3)
    queue.send_batch([SendEntry(f"m{number}") for number in range(16)])  # halved more often than it is received
    handled: list[str] = []
    handle, now = handle_all_but("m7", handled), {"trigger": "availableNow"}
    assert "m7 is poison" in failure(stream_from_queue(queue, handle, checkpoint, **now))
    stream_from_queue(queue, handle, checkpoint, **now).awaitTermination()
    assert sorted(handled) == sorted(f"m{number}" for number in range(16) if number != 7)
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)
    [letter] = dead.peek()
    assert letter.body == "m7" and letter.dead_letter_reason is not None
    assert (letter.dead_letter_reason.error, letter.dead_letter_reason.text) == ("ValueError", "m7 is poison")


@pytest.mark.core
@pytest.mark.spec("RCV-6")
@pytest.mark.parametrize(
    "kept",
    [
        lambda rows: rows,
        lambda rows: rows.select("message_id"),
        lambda rows: rows.select("message_id").toArrow(),
        lambda rows: [row.message_id for row in rows.collect()],
    ],
)
def test_what_a_function_returns_as_failed_stays_in_the_queue(
    queue: Queue, kept: Callable[[DataFrame], Any]
) -> None:
    queue.send_batch([SendEntry(body) for body in "abc"])
    lease = queue.lease()
    assert lease is not None
    counts = process_lease(lease, lambda: kept(lease.messages.where("body = 'b'")))
    assert (counts.done, counts.lost, counts.released) == (2, 0, 1)
    [message] = queue.receive(3)
    assert (message.body, message.receive_count) == ("b", 2)


@pytest.mark.spec("DLQ-12")
@pytest.mark.parametrize("more", [{"fifo": True}, {"shards": 3}, {"fair_groups": True}])
def test_a_batch_of_several_shards_or_groups_is_halved_as_well(lq: LakeQueue, more: dict[str, Any]) -> None:
    fifo = bool(more.get("fifo"))
    lq.create_queue("dead.fifo" if fifo else "dead", fifo=fifo)
    queue = lq.create_queue(
        "orders.fifo" if fifo else "orders",
        dead_letter_queue="dead.fifo" if fifo else "dead",
        max_receive_count=3,
        **more,
    )
    grouped = fifo or "fair_groups" in more
    for number in range(40):
        queue.send(
            f"m{number}",
            group_id=f"g{number % 4}" if grouped else None,
            dedup_id=f"d{number}" if fifo else None,
        )
    handled: list[str] = []
    raised = 0
    while (lease := queue.lease()) is not None:

        def work(lease: Lease = lease) -> None:
            bodies = lease.arrow(["body"])["body"].to_pylist()
            if "m21" in bodies:
                raise ValueError("poison")
            handled.extend(bodies)

        try:
            process_lease(lease, work)
        except ValueError:
            raised += 1
    assert (raised, len(handled), len(set(handled))) == (1, 39, 39)
    if fifo:
        assert [body for body in handled if int(body[1:]) % 4 == 1] == [
            f"m{n}" for n in range(1, 40, 4) if n != 21
        ]
    [letter] = lq.queue("dead.fifo" if fifo else "dead").peek()
    assert letter.body == "m21" and str(letter.dead_letter_reason).startswith("ValueError: poison")


@pytest.mark.spec("DLQ-12", "QUE-33")
def test_an_error_that_is_not_of_messages_ends_the_work_at_once(queue: Queue) -> None:
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    for error in (KeyboardInterrupt(), QueueClientError("storage")):

        def work(error: BaseException = error) -> None:
            raise error

        lease = queue.lease()
        assert lease is not None and lease.message_count == 2
        with pytest.raises(type(error)):
            process_lease(lease, work)


def wrong_query(messages: DataFrame) -> Any:
    return messages.sparkSession.sql("SELECT * FROM nowhere")


def wrong_write(messages: DataFrame) -> Any:
    messages.selectExpr("int(body) AS x").write.format("nonsense").save()


def wrong_worker(messages: DataFrame) -> Any:
    messages.mapInPandas(lambda batches: (5 for _ in batches), "body string").collect()


PROGRAM = {
    "TABLE_OR_VIEW_NOT_FOUND": wrong_query,
    "UNRESOLVED_COLUMN": lambda messages: messages.select("nothing"),
    "PARSE_SYNTAX_ERROR": lambda messages: messages.where("body ="),
    "DATA_SOURCE_NOT_FOUND": wrong_write,
    "UDF_RETURN_TYPE": wrong_worker,
    "Must be a list": lambda messages: 5,
    "receipt_handle or message_id is missing": lambda messages: messages.select("body"),
    "the handler returned 'done'": lambda messages: results(messages, lambda _: "done", False),
    r"failed\[0\]": lambda messages: results(messages, lambda _: (None, [5]), False),
}


@pytest.mark.core
@pytest.mark.spec("DLQ-12")
@pytest.mark.parametrize("said", PROGRAM)
def test_an_error_of_the_program_releases_everything_and_ends_the_work_at_once(
    lq: LakeQueue, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    dead = lq.create_queue("dead")
    queue = lq.create_queue("orders", dead_letter_queue="dead", max_receive_count=1)
    queue.send_batch([SendEntry(body) for body in "abc"])
    for _ in range(3):
        lease = queue.lease()
        assert lease is not None and lease.message_count == 3
        with pytest.raises(Exception, match=said):
            process_lease(lease, lambda lease=lease: PROGRAM[said](lease.messages))
    assert (queue.counts().visible, queue.counts().in_flight, dead.counts().visible) == (3, 0, 0)
    assert not caplog.records
    [message] = queue.receive()
    assert message.receive_count == 1 and not queue.get(message.message_id).attempts  # type: ignore[union-attr]


@pytest.mark.spec("DLQ-12")
def test_handles_of_other_leases_end_the_work_and_hand_everything_back(queue: Queue) -> None:
    queue.send_batch([SendEntry(body) for body in "abc"])
    lease, other = queue.lease(2), queue.lease(1)
    assert lease is not None and other is not None
    with pytest.raises(InvalidParameterValue, match="of another lease"):
        process_lease(lease, lambda: other.messages)
    assert (queue.counts().visible, queue.counts().in_flight) == (2, 1)


@pytest.mark.spec("DLQ-12")
def test_a_missing_file_may_be_the_fault_of_the_message_that_names_it(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("x")
    queue.send_batch([SendEntry(str(tmp_path / name)) for name in ("there.txt", "lost.txt")])
    read: list[str] = []

    def work(lease: Lease) -> None:
        for row in lease.messages.collect():
            read.append(lease.messages.sparkSession.read.text(row.body).head().value)

    while (lease := queue.lease()) is not None:
        try:
            process_lease(lease, lambda lease=lease: work(lease))
        except Exception as error:
            assert "lost.txt" in str(error)
            break
    assert queue.counts().visible == 1 and "x" in read


@pytest.mark.core
@pytest.mark.spec("DLQ-2", "JOB-10")
def test_a_dead_letter_says_what_a_task_raised(lq: LakeQueue, tmp_path: Path) -> None:
    dead = lq.create_queue("dead")
    queue = lq.create_queue("orders", dead_letter_queue="dead", max_receive_count=2)
    queue.send_batch([SendEntry(body) for body in ("1", "seven", "3")])
    for _ in range(8):
        lease = queue.lease()
        if lease is not None:
            numbers = lease.messages.selectExpr("int(body) AS number").write.format("delta")
            with contextlib.suppress(Exception):
                process_lease(lease, partial(numbers.save, str(tmp_path / uuid.uuid4().hex)))
    [letter] = dead.peek()
    assert letter.body == "seven" and letter.dead_letter_reason is not None
    assert "NumberFormatException" in letter.dead_letter_reason.error
    assert letter.dead_letter_reason.text.startswith("[CAST_INVALID_INPUT] The value 'seven'")
    assert (
        "TASK_WRITE_FAILED" not in letter.dead_letter_reason.text and "\tat" not in letter.dead_letter_reason.text
    )


@pytest.mark.core
@pytest.mark.spec("JOB-10", "RCV-6")
@pytest.mark.parametrize(
    "of", [lambda rows: rows, lambda rows: rows.toArrow(), lambda rows: [tuple(row) for row in rows.collect()]]
)
def test_what_a_function_returns_as_failed_may_say_why(queue: Queue, of: Callable[[DataFrame], Any]) -> None:
    queue.send_batch([SendEntry(body) for body in "abc"])
    lease = queue.lease()
    assert lease is not None
    failed = lease.messages.where("body > 'a'").selectExpr("message_id", "concat('no ', body) AS reason")
    assert process_lease(lease, lambda: of(failed)) == LeaseCounts(1, 0, 2)
    assert {each.body: each.attempts[-1].text for each in queue.peek()} == {"b": "no b", "c": "no c"}


@pytest.mark.spec("RCV-6", "RCP-6")
def test_a_function_that_is_too_slow_loses_its_lease(queue: Queue, clock: ManualClock) -> None:
    def process(received: int) -> tuple[int, int]:
        def work() -> None:
            clock.advance(30)
            assert len(queue.receive(received)) == received

        lease = queue.lease(visibility_timeout=30)
        assert lease is not None
        counts = process_lease(lease, work)
        return counts.done, counts.lost

    queue.send_batch([SendEntry("a"), SendEntry("b")])
    assert process(1) == (1, 1)
    clock.advance(60)
    with pytest.raises(LeaseLost) as caught:
        process(1)
    assert caught.value.lost == 1


@pytest.mark.spec("HBN-1")
def test_a_slow_function_keeps_its_messages_with_a_renewal(queue: Queue, clock: ManualClock) -> None:
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    first = queue.lease(visibility_timeout=30)
    assert first is not None

    def slow() -> None:
        for _ in range(75):
            clock.advance(1)
            assert queue.receive() == []

    handle = first.arrow(["receipt_handle"])["receipt_handle"][0].as_py()
    lease = lease_of_handle(queue, handle)
    assert lease is not None and lease.message_count == 2
    assert process_lease(lease, slow, HeartbeatRenewal(visibility_timeout=30)).done == 2
    clock.advance(30)
    assert queue.receive() == []
    assert lease_of_handle(queue, handle) is None


def test_a_queue_that_is_deleted_ends_the_consumer(lq: LakeQueue, present: Queue, checkpoint: str) -> None:
    query = stream_from_queue(present, print, checkpoint, trigger="0 seconds")
    lq.delete_queue("orders")
    assert isinstance(error_in(failure(query)), QueueDoesNotExist)
    with pytest.raises(QueueDoesNotExist):
        stream_from_queue(present, print, checkpoint)


def test_wrong_options_are_named_all_at_once(tmp_path: Path, present: Queue, checkpoint: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        stream_from_queue(present, 3, checkpoint, "often", 0, 43_201)  # type: ignore[arg-type]
    names = [problem.split()[0] for problem in caught.value.problems]
    assert names == ["handle_batch", "max_messages", "visibility_timeout", "trigger"]
    assert not Path(checkpoint).exists()
    without = LakeQueue(str(tmp_path / "root")).queue("orders")
    with pytest.raises(QueueClientError, match="stream_from_queue needs Spark"):
        stream_from_queue(without, print, checkpoint)


@pytest.fixture
def late_worker(spark: SparkSession, tmp_path: Path, monkeypatch: Patch) -> Path:
    """While this file exists, a Python process of a stream removes it and never connects."""
    late, python = tmp_path / "late", tmp_path / "python"
    take = f"case \"$*\" in *python_streaming_source_runner*) rm '{late}' 2>&- && exit;; esac"
    python.write_text(f"#!/bin/sh\n{take}\nexec '{sys.executable}' \"$@\"\n")
    python.chmod(0o700)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    return late


@pytest.mark.spec("RCV-6")
def test_a_stream_whose_python_process_connects_too_late_starts_again_and_loses_nothing(
    late_worker: Path,
    tmp_path: Path,
    spark: SparkSession,
    checkpoint: str,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = LakeQueue(str(tmp_path / "root"), spark=spark).create_queue("orders")
    queue.send_batch([SendEntry(body) for body in "abc"])
    handled: list[str] = []

    def start() -> StreamingQuery:
        late_worker.touch()
        handle = lambda rows, _: handled.extend(row.body for row in rows.collect())  # noqa: E731
        return stream_from_queue(queue, handle, checkpoint, "availableNow")

    monkeypatch.setattr(streams, "_STARTS", 1)
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        start().awaitTermination()
    assert not [each for each in caplog.messages if "starts again" in each]
    monkeypatch.setattr(streams, "_STARTS", 2)
    start().awaitTermination()
    assert len([each for each in caplog.messages if "starts again" in each]) == 1
    assert not late_worker.exists()
    assert sorted(handled) == ["a", "b", "c"]
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)
