"""``df.write.format("lakequeue")`` and ``df.writeStream.format("lakequeue")``."""

from __future__ import annotations

import pickle
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import log_rows, sent_bodies
from insides import place_of
from lakequeue import InvalidParameterValue, LakeQueue, Queue, SendEntry, SentRows
from lakequeue.errors import InvalidOptions, LakeQueueError, QueueDoesNotExist
from lakequeue.operations import send_dataframe
from lakequeue.spark import stream_to_queue
from lakequeue.spark.source_schema import error_in
from lakequeue.storage import layout
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.bad_rows import BadRows
from lakequeue.storage.bulk.manifests import SendKey
from spark.dropped_files import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakequeue.spark.source import QueueWriter

pytestmark = pytest.mark.spark


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    """By the system's clock: the workers of Spark know no other."""
    return LakeQueue(str(tmp_path / "root"))


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders")


def write(df: DataFrame, queue: Queue, **options: str) -> None:
    writer = df.write.format("lakequeue").option("root", place_of(queue)).option("queue", queue.name)
    writer.options(**options).mode("append").save()


def refusal(send: Callable[[], object]) -> LakeQueueError:
    """The error of lakequeue that Spark's exception tells in one line."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        send()
    text = str(caught.value)
    assert "Traceback" not in text
    found = error_in(text)
    assert found is not None, text
    return found


def files(queue: Queue) -> list[str]:
    """Parquet files and manifests below the queue."""
    tables = Path(layout.tables_path(place_of(queue), queue.key))
    bulk = [path for path in tables.rglob("*.parquet") if "bulk" in path.parts]
    return sorted(path.name for path in [*bulk, *tables.rglob("manifests/*.json")])


def rows(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("format_string('%04d', id) AS body")


@pytest.mark.core
@pytest.mark.spec("SND-17")
def test_rows_are_sent_once_in_order(spark: SparkSession, queue: Queue) -> None:
    queue.send_batch([SendEntry("before")])
    write(rows(spark, 100, 3), queue)
    write(rows(spark, 5, 1), queue, sendId="load")
    write(rows(spark, 5, 2), queue, send_id="load")
    numbers = [f"{number:04}" for number in range(100)]
    assert sent_bodies(queue) == ["before", *numbers, *numbers[:5]]


def test_columns_and_all_shards(spark: SparkSession, lq: LakeQueue) -> None:
    queue = lq.create_queue("wide", shards=3)
    df = spark.sql(
        "SELECT concat('b', id) AS body, 900 * (id % 3) AS delay_seconds, map('k', 'v') AS message_attributes,"
        " 'g' AS group_id FROM range(0, 9, 1, 9)"
    )
    write(df, queue)
    assert len(log_rows(queue)) == 9 and queue.counts().delayed == 6
    lease = queue.lease()
    assert lease is not None
    found = lease.arrow().to_pylist()
    assert sorted(row["body"] for row in found) == ["b0", "b3", "b6"]
    assert found[0]["group_id"] == "g" and found[0]["message_attributes"][0][1]["string_value"] == "v"


@pytest.mark.parametrize("way", ["send_dataframe", "write", "stream_to_queue"])
def test_columns_match_as_the_session_compares_names(
    spark: SparkSession, tmp_path: Path, way: str, request: pytest.FixtureRequest
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    queue = lq.create_queue("spelled.fifo", fifo=True, content_based_deduplication=True)
    source = str(tmp_path / "rows")
    select = "SELECT string(id) AS BODY, 'g' AS Group_Id, -id AS Place FROM range(0, 20, 1, 2)"
    spark.sql(select).write.format("delta").save(source)

    def send() -> None:
        if way == "send_dataframe":
            queue.send_dataframe(spark.read.format("delta").load(source), order_by="PLACE")
        elif way == "write":
            write(spark.read.format("delta").load(source), queue, orderBy="PLACE")
        else:
            stream = spark.readStream.format("delta").load(source)
            started = stream_to_queue(stream, queue, str(tmp_path / "checkpoint"), "availableNow", "PLACE")
            assert started.awaitTermination(60)

    send()
    assert [int(body) for body in sent_bodies(queue)] == [*range(19, -1, -1)]
    spark.conf.set("spark.sql.caseSensitive", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.caseSensitive"))
    if way != "write":  # Spark does not tell it to the process that plans a write
        with pytest.raises(InvalidParameterValue, match="Columns BODY, Group_Id, Place are not known"):
            send()


@pytest.mark.spec("JOB-5", "SND-17")
@pytest.mark.parametrize("way", ["send_dataframe", "write", "stream_to_queue"])
def test_rows_have_priorities(spark: SparkSession, tmp_path: Path, way: str) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    queue, source = lq.create_queue("orders", priorities=3, priorities_strict=True), str(tmp_path / "rows")
    spark.sql("SELECT string(id) AS body, nullif(id % 3, 0) AS priority FROM range(0, 12, 1, 3)").write.format(
        "delta"
    ).save(source)
    for _ in range(2):  # the second adds nothing
        if way == "stream_to_queue":
            rows = spark.readStream.format("delta").load(source)
            started = stream_to_queue(rows, queue, str(tmp_path / "checkpoint"), "availableNow")
            assert started.awaitTermination(60)
        elif way == "write":
            write(spark.read.format("delta").load(source), queue, sendId="load")
        else:
            queue.send_dataframe(spark.read.format("delta").load(source), "load")
    received = queue.receive(20)
    assert [message.priority for message in received] == [2] * 4 + [1] * 4 + [0] * 4
    assert all(int(message.body) % 3 == message.priority for message in received)
    late = spark.sql("SELECT 'late' AS body, 3 AS priority")
    with pytest.raises(InvalidParameterValue, match="1 row has a priority that is none of 0..2"):
        queue.send_dataframe(late)


def test_sql_inserts_into_a_view_that_names_the_columns_to_send(spark: SparkSession, lq: LakeQueue) -> None:
    queue = lq.create_queue("by-sql.fifo", fifo=True)
    place = f"USING lakequeue OPTIONS (root '{lq.root}', queue '{queue.name}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink (body STRING, group_id STRING, dedup_id STRING) {place}")
    spark.sql("INSERT INTO sink VALUES ('a1', 'a', '1'), ('b1', 'b', '2'), ('a2', 'a', '3')")
    spark.sql("INSERT INTO sink BY NAME SELECT '4' AS dedup_id, 'a3' AS body, 'a' AS group_id")
    spark.sql("INSERT INTO sink (dedup_id, group_id, body) VALUES ('4', 'a', 'again')")  # within the five minutes
    assert [message.body for message in queue.receive(10)] == ["a1", "a2", "a3", "b1"]
    assert [row.body for row in spark.sql("SELECT body FROM sink ORDER BY body").collect()] == [
        "a1",
        "a2",
        "a3",
        "b1",
    ]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW all_columns {place}")
    error = refusal(lambda: spark.sql("INSERT INTO all_columns (body) VALUES ('x')"))
    assert "a DataFrame of messages has body" in str(error)
    assert "append" in str(refusal(lambda: spark.sql("INSERT OVERWRITE sink VALUES ('x', 'a', '5')")))
    assert queue.counts().in_flight == 4


@pytest.mark.spec("FIF-1", "DDP-1")
@pytest.mark.parametrize("order_by", [None, "place"])
def test_groups_stay_in_order_over_partitions(spark: SparkSession, lq: LakeQueue, order_by: str | None) -> None:
    queue = lq.create_queue(
        "wide.fifo", fifo=True, content_based_deduplication=True, shards=2, deduplication_scope="message_group"
    )
    df = spark.sql(
        "SELECT concat('g', id % 7) AS group_id, string(id) AS body, -id AS place FROM range(0, 300, 1, 4)"
    )
    df = df if order_by else df.drop("place")
    write(df.union(df.where("body IN ('3', '299')")), queue, **({"orderBy": order_by} if order_by else {}))
    lease = queue.lease()
    assert lease is not None
    log = lease.arrow().sort_by("offset").to_pylist()
    assert len(log) == 300
    for group in range(7):
        of_group = [row for row in log if row["group_id"] == f"g{group}"]
        assert len({row["shard"] for row in of_group}) == 1
        numbers = [int(row["body"]) for row in of_group]
        assert numbers == sorted(numbers, reverse=order_by is not None)


@pytest.mark.core
def test_rows_that_break_a_rule_are_counted_over_all_partitions(spark: SparkSession, queue: Queue) -> None:
    queue.set_attributes(maximum_message_size=1_024)
    df = spark.sql("SELECT if(id % 10 = 0, '', repeat('x', int(id * 11))) AS body FROM range(0, 100, 1, 4)")
    found = refusal(lambda: write(df, queue))
    assert isinstance(found, InvalidParameterValue)
    assert (
        str(found) == "Nothing was sent: 10 rows have no body (SND-1); 6 rows are longer than 1024 bytes (SND-2)."
    )
    assert files(queue) == [] and sent_bodies(queue) == []


def test_what_cannot_be_written_is_refused_in_one_line_before_a_task_starts(
    spark: SparkSession, lq: LakeQueue, queue: Queue
) -> None:
    from pyspark.errors import AnalysisException

    df = rows(spark, 3, 1)

    def refused(said: str, df: DataFrame = df, **options: str) -> None:
        found = refusal(lambda: write(df, queue, **options))
        assert said in str(found), found

    refused("Value body for parameter order_by is invalid", orderBy="body")
    refused("The column body is missing", df.withColumnRenamed("body", "group_id"))
    refused("Columns text are not known", df.withColumn("text", df["body"]))
    refused("The column body is int", spark.sql("SELECT 1 AS body"))
    refused("option maxMessages is not known here; there are root, queue", maxMessages="3")
    overwrite = df.write.format("lakequeue").option("root", lq.root).option("queue", "orders").mode("overwrite")
    assert "mode overwrite: messages can only be added" in str(refusal(overwrite.save))
    for mode in ("error", "ignore"):
        with pytest.raises(AnalysisException, match="Please use either the .Append. or .Overwrite. mode"):
            df.write.format("lakequeue").option("root", lq.root).option("queue", "orders").mode(mode).save()
    fifo = lq.create_queue("orders.fifo", fifo=True)
    assert "The column group_id is missing" in str(refusal(lambda: write(df, fifo)))
    lq.delete_queue("orders")
    assert isinstance(refusal(lambda: write(df, queue)), QueueDoesNotExist)


def test_a_task_that_fails_leaves_no_file_and_no_manifest(spark: SparkSession, queue: Queue) -> None:
    from pyspark.errors import PySparkException

    # one task: the file of another one that ends after the failure would wait for VACUUM
    bad = "SELECT if(id = 55, raise_error('boom'), string(id)) AS body FROM range(0, 60, 1, 1)"
    with pytest.raises(PySparkException, match="boom"):
        write(spark.sql(bad), queue)
    assert files(queue) == [] and sent_bodies(queue) == []
    write(rows(spark, 3, 1), queue)
    assert len(sent_bodies(queue)) == 3


def test_files_of_a_commit_that_spark_believes_to_have_failed_stay(spark: SparkSession, queue: Queue) -> None:
    """Spark aborts a write whose commit failed, also if its answer was lost."""
    writer, message = written(spark, queue)
    writer.commit([message])
    writer.abort([message])
    assert len(sent_bodies(queue)) == 3


def written(
    spark: SparkSession, queue: Queue, df: DataFrame | None = None, **options: str
) -> tuple[QueueWriter, Any]:
    """A writer as Spark makes one, and what a task of it answers that has written rows; by default three."""
    from lakequeue.spark.options import SourceOptions, Use
    from lakequeue.spark.source import QueueWriter

    df = rows(spark, 3, 1) if df is None else df
    given = {"root": place_of(queue), "queue": queue.name, **options}
    writer = QueueWriter(SourceOptions.parse(given, Use.WRITE), df.schema, False)

    def run(batches: Any) -> Any:
        import pyarrow as pa

        yield pa.record_batch([pa.array([pickle.dumps(writer.write(batches))])], names=["part"])

    (part,) = df.mapInArrow(run, "part binary").collect()
    return writer, pickle.loads(part.part)


def diverted(spark: SparkSession, table: Path) -> list[tuple[str, str]]:
    found = spark.read.format("delta").load(str(table))
    assert {row.queue for row in found.collect()} <= {"orders"}
    return sorted((row.body or "", row.reason) for row in found.collect())


def test_attributes_that_change_while_rows_are_written_refuse_them(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakequeue.errors import QueueClientError

    writer, message = written(spark, queue)
    queue.set_attributes(maximum_message_size=1_024)
    with pytest.raises(QueueClientError, match="attributes changed while the rows were written; write them again"):
        writer.commit([message])
    assert files(queue) == [] and sent_bodies(queue) == []


def sent_frame(spark: SparkSession, queue: Queue, df: DataFrame, **given: Any) -> SentRows:
    """What ``send_dataframe`` returns."""
    return LakeQueue(place_of(queue), spark=spark).queue(queue.name).send_dataframe(df, **given)


def sent_by_writer(spark: SparkSession, queue: Queue, df: DataFrame, **given: Any) -> None:
    writer, message = written(spark, queue, df, **given)
    writer.commit([message])


def sent_arrow(_: SparkSession, queue: Queue, df: DataFrame, **given: Any) -> SentRows:
    return queue.send_arrow(df.toArrow(), **given)


Send = Callable[..., object]
SENDS = [sent_frame, sent_arrow, sent_by_writer]
CALLS = SENDS[:2]


def repeated_send(
    spark: SparkSession, queue: Queue, table: Path, monkeypatch: pytest.MonkeyPatch, send: Send
) -> None:
    """Its process dies twice after the refused rows are stored; then other rules hold."""
    options = {"send_id": "load", "on_bad_row": "divert", "bad_rows": str(table)}
    df = spark.sql("SELECT repeat('x', int(id)) AS body FROM VALUES (0), (1024), (1025) AS rows (id)").coalesce(1)
    queue.set_attributes(maximum_message_size=1_025)

    def killed(*_: Any) -> None:
        raise OSError("killed")

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(LakeQueueError, match="killed"):
            patch.setattr(manifests, "write_manifest", killed)
            send(spark, queue, df, **options)
    assert [body for body, _ in diverted(spark, table)] == [""]
    queue.set_attributes(maximum_message_size=1_024)
    for _ in range(2):
        send(spark, queue, df, **options)
    assert [len(body) for body in sent_bodies(queue)] == [1024]
    assert [len(body) for body, _ in diverted(spark, table)] == [0, 0, 1025]


def send_begun_anew(
    spark: SparkSession, queue: Queue, table: Path, monkeypatch: pytest.MonkeyPatch, send: Send
) -> None:
    """An attribute that is no rule of rows changes when the refused rows are stored; the send has no id."""
    settle, timeouts = BadRows.divert, iter([40])

    def settled(*args: Any) -> None:
        settle(*args)
        for timeout in timeouts:
            queue.set_attributes(visibility_timeout=timeout)

    df = spark.sql("SELECT if(id % 3 = 0, '', string(id)) AS body FROM range(0, 9, 1, 2)")
    with monkeypatch.context() as patch:
        patch.setattr(BadRows, "divert", settled)
        found = send(spark, queue, df, on_bad_row="divert", bad_rows=str(table))
    assert sent_bodies(queue) == ["1", "2", "4", "5", "7", "8"] and next(timeouts, None) is None
    assert diverted(spark, table) == [("", "has no body (SND-1)")] * 3
    assert (found, found.refused) == (6, 3)  # type: ignore[attr-defined]


@pytest.mark.spec("SND-2")
@pytest.mark.parametrize("send", SENDS)
def test_a_repeated_send_diverts_what_the_rules_refuse_that_hold_by_then(
    spark: SparkSession, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, send: Send
) -> None:
    repeated_send(spark, queue, tmp_path / "bad", monkeypatch, send)


@pytest.mark.parametrize("send", CALLS)
def test_a_repeated_send_diverts_rows_once(
    spark: SparkSession, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, send: Send
) -> None:
    send_begun_anew(spark, queue, tmp_path / "bad", monkeypatch, send)


def by_key(key: Callable[[str], str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Refused rows are stored under another key."""
    add = BadRows._add

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(BadRows, "_add", lambda self, at, files, id, number: add(self, at, files, key(id), number))

    return mutate


def unnamed_attempts(patch: pytest.MonkeyPatch) -> None:
    send = send_dataframe.send_rows
    patch.setattr(send_dataframe, "send_rows", lambda target, _, *rest: send(target, SendKey.new(), *rest))


@pytest.mark.parametrize(
    ("mutate", "scenario", "send"),
    [
        pytest.param(by_key(lambda _: uuid.uuid4().hex), repeated_send, sent_by_writer, id="of its own"),
        pytest.param(by_key(lambda key: key.rpartition("-")[0]), repeated_send, sent_by_writer, id="no rules"),
        pytest.param(unnamed_attempts, send_begun_anew, sent_frame, id="of each attempt"),
        pytest.param(unnamed_attempts, send_begun_anew, sent_arrow, id="of each attempt, in Arrow"),
    ],
)
def test_with_another_key_refused_rows_come_twice_or_are_lost(
    spark: SparkSession,
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None],
    send: Send,
) -> None:
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        mutate(patch)
        scenario(spark, queue, tmp_path / "bad", monkeypatch, send)


@pytest.mark.spec("FIF-1", "SND-4", "SND-5")
@pytest.mark.parametrize("send", SENDS)
def test_rows_that_break_a_rule_are_dropped_and_counted(
    spark: SparkSession, lq: LakeQueue, caplog: pytest.LogCaptureFixture, send: Send
) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, shards=2, deduplication_scope="message_group")
    df = spark.sql(
        "SELECT string(id) AS body, if(id % 5 = 0, NULL, concat('g', id % 3)) AS group_id,"
        " if(id % 4 = 0, '', string(id)) AS dedup_id FROM range(0, 20, 1, 1)"
    )
    with caplog.at_level("WARNING", "lakequeue"):
        found = send(spark, queue, df, on_bad_row="drop")
    if isinstance(found, SentRows):
        assert (found, found.refused) == (12, 8)  # one row breaks both rules
    assert sorted(map(int, sent_bodies(queue))) == [n for n in range(20) if n % 5 and n % 4]
    said = "4 rows have no valid group_id (SND-4); 5 rows have an invalid dedup_id (SND-13)"
    assert caplog.messages == [f"queue orders.fifo: rows were dropped: {said}"]
    assert files(queue) == [name for name in files(queue) if name.startswith("part-")]


def test_an_unusable_table_for_bad_rows_is_reported_before_a_task_starts(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    def refused(said: str, onBadRow: str, badRows: str | None = None) -> None:
        df = rows(spark, 1, 1)
        options = {"onBadRow": onBadRow} | ({} if badRows is None else {"badRows": badRows})
        assert said in str(refusal(lambda: write(df, queue, **options)))
        for call in CALLS:
            with pytest.raises(InvalidOptions) as caught:
                call(spark, queue, df, on_bad_row=onBadRow, bad_rows=badRows)
            assert said in str(caught.value)

    refused("option onBadRow is skip, it must be fail, drop or divert", onBadRow="skip")
    refused("option badRows is missing", onBadRow="divert")
    refused('option badRows is only for .option("onBadRow", "divert")', onBadRow="drop", badRows="bad")
    inside = f"{place_of(queue)}/bad"
    refused(f"option badRows: {inside} is in the root", onBadRow="divert", badRows=inside)
    rows(spark, 1, 1).write.format("delta").save(str(tmp_path / "bodies"))
    refused("bodies is a table of other columns", onBadRow="divert", badRows=str(tmp_path / "bodies"))


def test_a_table_that_was_trimmed_takes_more_rows(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    table = tmp_path / "bad"
    for number in range(2):
        df = spark.sql(f"SELECT string({number}) AS body, 'd' AS dedup_id")
        sent = sent_frame(spark, queue, df, on_bad_row="divert", bad_rows=str(table))
        assert (sent, sent.refused) == (0, 1)
        assert [body for body, _ in diverted(spark, table)] == [str(number)]
        spark.sql(f"DELETE FROM delta.`{table}` WHERE refused_at <= current_timestamp()")
        spark.sql(f"VACUUM delta.`{table}`")


# --- streams


def stream(df: DataFrame, queue: Queue, checkpoint: str, **options: str) -> None:
    writer = df.writeStream.format("lakequeue").option("root", place_of(queue))
    writer = writer.option("queue", queue.name).option("checkpointLocation", checkpoint).options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.core
@pytest.mark.spec("SND-17")
def test_each_batch_of_a_stream_is_sent_once(queue: Queue, folder: Folder, checkpoint: str) -> None:
    folder.drop("a", "a1", "a2")
    folder.drop("b", "b1")
    stream(folder.rows, queue, checkpoint)
    assert sent_bodies(queue) == ["a1", "a2", "b1"]
    Path(checkpoint, "commits", "1").unlink()
    Path(checkpoint, "commits", ".1.crc").unlink()
    folder.drop("c", "c1")
    stream(folder.rows, queue, checkpoint)  # repeats batch 1
    assert sent_bodies(queue) == ["a1", "a2", "b1", "c1"]
    assert not [name for name in files(queue) if name.endswith(".json")]


def test_a_checkpoint_that_was_reset_is_refused(queue: Queue, folder: Folder, checkpoint: str) -> None:
    folder.drop("a", "a1")
    folder.drop("b", "b1")
    stream(folder.rows, queue, checkpoint)
    for kept in ("offsets", "commits", "sources"):
        shutil.rmtree(f"{checkpoint}/{kept}")
    found = refusal(lambda: stream(folder.rows, queue, checkpoint))
    assert "queue orders has later batches than 0 of this query" in str(found)
    assert sent_bodies(queue) == ["a1", "b1"]


@pytest.mark.spec("SND-1", "SND-16")
def test_a_bad_row_ends_the_stream_in_one_line_and_a_queue_that_is_gone_too(
    lq: LakeQueue, queue: Queue, folder: Folder, checkpoint: str
) -> None:
    folder.drop("a", "good")
    stream(folder.rows, queue, checkpoint)
    folder.drop("b", "good too", "", "")
    assert "2 rows have no body" in str(refusal(lambda: stream(folder.rows, queue, checkpoint)))
    assert sent_bodies(queue) == ["good"]
    folder.drop("b", "mended")
    stream(folder.rows, queue, checkpoint)
    assert sent_bodies(queue) == ["good", "mended"]
    lq.delete_queue("orders")
    folder.drop("c", "late")
    found = refusal(lambda: stream(folder.rows, queue, checkpoint))
    assert isinstance(found, QueueDoesNotExist) and "queue orders" in str(found)


@pytest.mark.spec("SND-1", "SND-2", "SND-12", "SND-17", "DLY-3")
def test_rows_that_break_a_rule_are_diverted_once_with_the_reason_also_when_their_batch_is_repeated(
    spark: SparkSession, queue: Queue, folder: Folder, checkpoint: str, tmp_path: Path
) -> None:
    queue.set_attributes(maximum_message_size=1_024)
    table, long = tmp_path / "bad", "x" * 1_025
    rows = folder.rows.selectExpr("body", "if(body LIKE 'late%', -1, 0) AS delay_seconds")

    def go() -> None:
        given = {"on_bad_row": "divert", "bad_rows": str(table)}
        started = stream_to_queue(rows, queue, checkpoint, "availableNow", **given)  # type: ignore[arg-type]
        started.awaitTermination()

    folder.drop("a", "")
    folder.drop("b", "good", "", "late\x01", "late too", long)
    go()
    late = "has a delay_seconds outside 0..345600 (DLY-3)"
    bad = [
        ("", "has no body (SND-1)"),
        ("", "has no body (SND-1)"),
        ("late\x01", f"{late}; has characters that are not allowed (SND-12)"),
        ("late too", late),
        (long, "is longer than 1024 bytes (SND-2)"),
    ]
    assert sent_bodies(queue) == ["good"] and diverted(spark, table) == bad
    for name in ("1", ".1.crc"):  # as if the driver had been killed before Spark noted the batch
        Path(checkpoint, "commits", name).unlink()
    folder.drop("c", "good too", "")
    go()
    assert sent_bodies(queue) == ["good", "good too"] and diverted(spark, table) == [bad[0], *bad]
    assert files(queue) == [name for name in files(queue) if name.startswith("part-")]


def test_files_that_wait_are_committed_by_the_repetition(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between manifest and commits; the rows of the repetition are not needed."""
    from lakequeue.storage.bulk import bulk_send

    writer, message = written(spark, queue, sendid="load")

    def killed(*_: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(bulk_send, "complete", killed)
        with pytest.raises(LakeQueueError):
            writer.commit([message])
    assert log_rows(queue) == []
    _, again = written(spark, queue, sendid="load")
    assert again.written is None
    write(rows(spark, 50, 2), queue, sendId="load")
    assert sent_bodies(queue) == ["0000", "0001", "0002"]


def test_a_job_reports_it_in_one_line(
    spark: SparkSession, lq: LakeQueue, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import PySparkException

    from lakequeue.cli import job

    lq.delete_queue("orders")
    with pytest.raises(PySparkException) as caught:
        write(rows(spark, 1, 1), queue)
    assert job._report_error(caught.value) == 1
    assert (
        capfd.readouterr().err.splitlines()[-1].startswith("error: QueueDoesNotExist: queue orders: The specified")
    )
