"""DataFrames, streams, compaction and SQL on S3: the point engine commits, Spark reads and writes through s3a."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from benchmarks.object_store import BUCKET, Counted, environment, serve

from lakequeue import HeartbeatRenewal, LakeQueue, LeaseCounts, Queue, QueueClientError
from lakequeue.spark import stream_from_queue, stream_to_queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.objectstore, pytest.mark.spark]

SECRET = "never-to-be-seen"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, Counted]]:
    server, application = serve()
    yield server, application
    server.shutdown()


@pytest.fixture
def lq(served: tuple[Any, Counted], spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    """A root that only its options reach, by the name of the host, as MinIO is reached."""
    options = environment(f"http://localhost:{served[0].server_port}") | {"AWS_SECRET_ACCESS_KEY": SECRET}
    for name in options:
        monkeypatch.delenv(name, raising=False)
    return LakeQueue(f"s3a://{BUCKET}/{uuid4().hex}", spark=spark, storage_options=options)


def numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("CAST(id AS STRING) AS body")


def bodies(messages: DataFrame) -> list[str]:
    return [row.body for row in messages.select("body").collect()]


def expected(count: int) -> Counter[str]:
    return Counter(str(number) for number in range(count))


def test_a_dataframe_is_sent_once_and_leased(lq: LakeQueue, spark: SparkSession) -> None:
    queue = lq.create_queue("orders", shards=2)
    rows = numbered(spark, 1_000)
    assert [queue.send_dataframe(rows, send_id="load") for _ in range(2)] == [1_000, 0]
    queue.send("1000")
    lease = queue.lease(2_000, 3600)
    assert lease is not None and lease.extend(7200).done == 1_001
    with lease.keep_alive(HeartbeatRenewal()):
        assert Counter(bodies(lease.messages)) == expected(1_001)
    left = [str(number) for number in range(1_001) if str(number) < "2"]
    assert lease.delete_except(lease.messages.where("body < '2'")) == LeaseCounts(1_001 - len(left), 0, len(left))
    assert queue.counts().visible == len(left)
    again = queue.lease(2_000, 3600)
    assert again is not None and sorted(bodies(again.messages)) == sorted(left)
    again.release()
    last = queue.lease(2_000, 3600)
    assert last is not None and last.delete().done == len(left)
    assert queue.counts().visible == queue.counts().in_flight == 0


def test_streams_keep_their_checkpoints_on_the_store(lq: LakeQueue, spark: SparkSession, tmp_path: Path) -> None:
    queue = lq.create_queue("orders", visibility_timeout=3600)
    dropped = tmp_path / "dropped"
    dropped.mkdir()
    source = spark.readStream.format("text").load(str(dropped)).withColumnRenamed("value", "body")
    sent, received = (f"{scheme}://{BUCKET}/{uuid4().hex}" for scheme in ("s3a", "s3"))  # either name will do
    found: list[str] = []
    for batch in range(2):
        (dropped / f"{batch}.txt").write_text(f"{2 * batch}\n{2 * batch + 1}\n")
        stream_to_queue(source, queue, sent, "availableNow").awaitTermination()
        assert queue.counts().visible == 2
        stream_from_queue(
            queue, lambda messages, _: found.extend(bodies(messages)), received, "availableNow"
        ).awaitTermination()
    assert Counter(found) == expected(4)
    assert queue.counts().visible == queue.counts().in_flight == 0


def test_a_task_without_rights_says_so_in_one_line(
    lq: LakeQueue, spark: SparkSession, served: tuple[Any, Counted]
) -> None:
    queue = lq.create_queue("orders")
    denied = "403 Forbidden", "AccessDenied", "No."
    served[1].refusal = lambda environ: denied if "/messages/bulk/" in environ["PATH_INFO"] else None
    try:
        with pytest.raises(QueueClientError, match="s3://lake/.*: access is denied") as caught:
            queue.send_dataframe(numbered(spark, 10))
    finally:
        served[1].refusal = lambda environ: None
    assert "\n" not in str(caught.value)
    assert queue.counts().visible == 0


def test_a_pass_of_the_compactor_frees_what_was_consumed(lq: LakeQueue, spark: SparkSession) -> None:
    queue = lq.create_queue("orders")
    queue.send_dataframe(numbered(spark, 100))
    lease = queue.lease(100, 3600)
    assert lease is not None and lease.delete().done == 100
    queue.send("stays")
    summaries = lq.compact()
    assert [summary.failures for summary in summaries] == [[], []]
    assert sum(summary.segments_dropped for summary in summaries) == 2
    assert [message.body for message in queue.receive()] == ["stays"]


def test_views_show_the_messages_of_a_root(lq: LakeQueue, spark: SparkSession) -> None:
    queue = lq.create_queue("orders", visibility_timeout=3600)
    queue.send_dataframe(numbered(spark, 10))
    [message] = queue.receive()
    lq.register_views(spark)
    states = spark.sql("SELECT state, count(*) AS messages FROM messages GROUP BY state")
    assert {row.state: row.messages for row in states.collect()} == {"visible": 9, "in_flight": 1}
    assert "ArrowEvalPython" in states._jdf.queryExecution().executedPlan().toString()  # tasks have the options
    [row] = spark.sql(f"SELECT queue, state FROM messages WHERE message_id = '{message.message_id}'").collect()
    assert tuple(row) == ("orders", "in_flight")


def test_no_secret_is_in_a_plan_a_setting_or_the_log_of_events(
    lq: LakeQueue, spark: SparkSession, event_log: str, capfd: pytest.CaptureFixture[str]
) -> None:
    queue: Queue = lq.create_queue("orders")
    queue.send_dataframe(numbered(spark, 10))
    lease = queue.lease(100, 3600)
    assert lease is not None and lease.messages.count() == 10
    lq.register_views(spark)
    lease.messages.explain("extended")
    spark.table("messages").explain("extended")
    spark.sparkContext.addFile(__file__)  # Spark records its environment again
    hadoop = spark._jsc.hadoopConfiguration()  # the secret is here, and goes from here to executors
    assert hadoop.get(f"fs.s3a.bucket.{BUCKET}.secret.key") == SECRET
    assert hadoop.get("fs.s3a.secret.key") is None
    other = LakeQueue(lq.root, spark=spark, storage_options={"AWS_SECRET_ACCESS_KEY": "another"})
    other._runtime.allow(spark)
    assert hadoop.get(f"fs.s3a.bucket.{BUCKET}.secret.key") == SECRET  # Hadoop keeps its connection
    settings = [*spark.sparkContext.getConf().getAll(), *spark.sql("SET -v").collect()]
    [log] = Path(event_log).iterdir()
    seen = log.read_text() + str(settings) + "".join(capfd.readouterr())
    assert f"fs.s3a.bucket.{BUCKET}.secret.key" in seen and "s3a://lake/" in seen
    assert SECRET not in seen
