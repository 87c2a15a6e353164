"""The SQL views of Spark: schemas, plans and failures. What they show is compared in `test_relations`."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from insides import messages_of, shard_of
from lakequeue import LakeQueue, SendEntry
from lakequeue.cli import app, sql
from lakequeue.model.deliveries import new_nonce
from lakequeue.operations import sql_views, task_views
from lakequeue.shard.commands import Claim
from lakequeue.storage.messages import merge_segments
from lakequeue.storage.messages.emptied_rows import ForgottenMessages
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=["tasks", pytest.param("tables", marks=pytest.mark.slow)], autouse=True)
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What reads behind the views: lakequeue in Spark's tasks, or Delta's scans where tasks have none."""
    if request.param == "tables":
        monkeypatch.setattr(task_views, "create", lambda *_: False)
    return str(request.param)


@pytest.fixture
def lq(tmp_path: Path, clock: ManualClock) -> LakeQueue:
    return LakeQueue(str(tmp_path / "it's a `root`"), clock=clock, region="o'hara\\")


def states(spark: SparkSession, where: str = "true") -> dict[str, str]:
    rows = spark.sql(f"SELECT body, state FROM messages WHERE {where}").collect()
    assert len({row.body for row in rows}) == len(rows)
    return {row.body: row.state for row in rows}


@pytest.mark.core
@pytest.mark.spec("DLT-5", "STA-1", "STA-2", "STA-3", "STA-4", "STA-5", "STA-8", "PRF-4")
def test_every_state_is_shown_and_agrees_with_the_counts(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    queue = lq.create_queue("orders", visibility_timeout=30, message_retention_period=600)
    lq.create_queue("other").send("elsewhere")
    queue.send("too old")
    clock.advance(500)
    queue.send_batch([SendEntry(body=name) for name in ("deleted", "held", "lapsed", "back")])
    queue.send("late", delay=60)
    queue.send("passed", delay=40)
    received = {m.body: m for m in queue.receive(max_messages=5)}
    queue.change_visibility(received["held"].receipt_handle, 300)
    queue.change_visibility(received["back"].receipt_handle, 0)
    queue.delete(received["deleted"].receipt_handle)
    clock.advance(50)
    queue.send("fresh")
    queue.send("fresh and delayed", delay=5)
    clock.advance(1)

    lq.register_views(spark, now=clock.now())
    shown = states(spark, "queue = 'orders'")
    assert shown == {
        "too old": "visible",  # received and timed out
        "deleted": "deleted",
        "held": "in_flight",
        "lapsed": "visible",
        "back": "visible",
        "late": "delayed",
        "passed": "visible",
        "fresh": "visible",
        "fresh and delayed": "delayed",
    }
    (row,) = spark.sql("SELECT * FROM queues WHERE queue = 'orders'").collect()
    counts = queue.counts()
    assert (row.visible, row.in_flight, row.delayed) == (counts.visible, counts.in_flight, counts.delayed)
    assert row.oldest_age == counts.oldest_age
    assert row.attributes["VisibilityTimeout"] == "30"
    assert row.region == lq.region

    columns, bodies = "visible_at, receive_count, sent_at, age", "'late', 'held', 'fresh'"
    asked = spark.sql(f"SELECT {columns} FROM messages WHERE body IN ({bodies}) ORDER BY visible_at")
    fresh, late, held = asked.collect()
    assert late.visible_at - late.sent_at == timedelta(seconds=60)
    assert (late.receive_count, held.receive_count, fresh.receive_count) == (0, 1, 0)
    assert held.visible_at - held.sent_at == timedelta(seconds=300)
    assert fresh.age == 1.0

    clock.advance(49)
    lq.register_views(spark, now=clock.now())
    assert states(spark, "queue = 'orders'")["too old"] == "expired"
    assert queue.counts().visible == spark.sql("SELECT visible FROM queues WHERE queue = 'orders'").head()[0]


@pytest.mark.parametrize("reading", ["tables"], indirect=True)
@pytest.mark.spec("TAB-10")
def test_undecided_messages_are_shown_also_past_their_retention(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    settings = {"visibility_timeout": 30, "message_retention_period": 60}
    queue = lq.create_queue("orders", table="/lake/orders", **settings)
    queue.send_batch([SendEntry(body=name) for name in ("first", "second")])
    queue._runtime.command(shard_of(queue), Claim(1, None, "lease", delivery=new_nonce()))
    for seconds, expected in ((30, "visible"), (31, "expired")):
        clock.advance(seconds)
        lq.register_views(spark, now=clock.now())
        assert states(spark) == {"first": "undecided", "second": expected}
    (row,) = spark.sql("SELECT undecided, visible, in_flight FROM queues").collect()
    assert tuple(row) == (1, 0, 0)


@pytest.mark.parametrize("reading", ["tables"], indirect=True)
def test_runs_across_chunks_reach_every_message(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_views, "_CHUNK", 3)
    queue = lq.create_queue("orders")
    queue.send_batch([SendEntry(body=f"{i:02}") for i in range(20)])
    handles = {m.body: m.receipt_handle for m in queue.receive(max_messages=17)}
    queue.delete_batch([handles["04"], handles["05"], handles["12"]])
    lq.register_views(spark, now=clock.now())
    expected = {f"{i:02}": "in_flight" if i < 17 else "visible" for i in range(20)}
    assert states(spark) == expected | dict.fromkeys(("04", "05", "12"), "deleted")


@pytest.mark.spec("DLT-5")
def test_a_message_that_was_emptied_since_the_ledger_was_read_is_left_out(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    monkeypatch.setattr(merge_segments, "CUT_BYTES", 0)
    queue = lq.create_queue("orders")
    queue.send_arrow(pa.table({"body": list("abcd")}))
    queue.send_arrow(pa.table({"body": ["e"]}))
    queue.delete(queue.receive(1)[0])
    newer, none = shard_of(queue).tables.engine.open(messages_of(queue)), np.array([], np.int64)
    merge_segments.merge_all(newer, 0, 0, forgotten=lambda: ForgottenMessages(99, 3, none, none))
    lq.register_views(spark, now=clock.now())
    assert states(spark, "state != 'deleted'") == {"d": "visible", "e": "visible"}
    assert spark.sql("SELECT sum(visible) FROM groups").head()[0] == 2
    if reading == "tables":  # and are there without the filter
        judged = sql_views._judged
        monkeypatch.setattr(sql_views, "_judged", lambda *given: judged(*given).rpartition("WHERE emptied")[0])
        lq.register_views(spark, now=clock.now())
        assert spark.sql("SELECT count(*) FROM messages WHERE state != 'deleted'").head()[0] == 4


def test_a_filter_on_queue_leaves_other_queues_unread(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock, reading: str
) -> None:
    for name in ("one", "two"):
        # with one shard, Spark joins each message with the one head row whatever the condition
        lq.create_queue(name, shards=2).send(name)
    lq.register_views(spark)
    for view in ("messages", "receipts", "history", "queues"):
        found = spark.sql(f"SELECT * FROM {view} WHERE queue = 'one'")
        plan = found._jdf.queryExecution().executedPlan().toString()
        if reading == "tables":
            files = " ".join(found.inputFiles())
            assert lq.queue("one").key in files
            assert lq.queue("two").key not in files
            if view != "queues":  # there it is a row of the catalog beside a row of counts
                assert "NestedLoop" not in plan
        assert "handle_key" not in spark.table(view).columns


@pytest.mark.parametrize("reading", ["tasks"], indirect=True)
@pytest.mark.spec("DLT-5")
def test_a_plan_stays_as_it_is_with_more_queues_and_opens_those_asked_for_only(
    spark: SparkSession, lq: LakeQueue
) -> None:
    lq.create_queue("one", shards=2).send_batch([SendEntry(body) for body in "abc"])
    lq.register_views(spark)
    query = "SELECT queue, state, count(*) AS n FROM messages GROUP BY queue, state"

    def plan() -> str:
        return re.sub(r"\d+", "", spark.sql(query)._jdf.queryExecution().executedPlan().toString())

    few = plan()
    for index in range(8):
        lq.create_queue(f"torn-{index}").send("unread")
    assert sorted(row.n for row in spark.sql(query).collect()) == [1] * 8 + [3]  # each query lists the queues
    by_group: dict[str, Any] = {"deduplication_scope": "message_group", "content_based_deduplication": True}
    two = lq.create_queue("two.fifo", fifo=True, shards=2, **by_group)
    two.send_batch([SendEntry(body, group_id=body) for body in "abcdefgh"])
    counted = "SELECT shard, count(*) FROM messages WHERE queue = 'two.fifo' GROUP BY shard"
    of_shard = dict(map(tuple, spark.sql(counted).collect()))
    assert of_shard.keys() == {0, 1}
    far = LakeQueue(lq.root, clock=lq._runtime.clock, region="far").create_queue("far")
    far.send("d")
    whole = (lq.queue("one").key, f"{two.key}/0", far.key)
    for file in Path(lq.root).glob("q/*/*/*/_delta_log/*.json"):  # a query fails if it opens one of these tables
        if not any(key in str(file) for key in whole):
            file.write_text("torn")
    names = "SELECT 'one' AS queue, 'far' AS region, 0 AS shard UNION ALL SELECT 'none', 'none', -1"
    spark.sql(names).createOrReplaceTempView("names")
    for condition in (
        "queue = 'one'",
        "queue LIKE 'on%'",
        "queue IN ('one', 'none')",
        "queue = 'one' OR queue = 'none'",
        "queue = 'one' AND state <> 'moving'",
        "queue IN (SELECT queue FROM names)",
        "queue = (SELECT max(queue) FROM names)",
        "EXISTS (SELECT 1 FROM names WHERE names.queue = messages.queue)",
    ):
        assert spark.sql(f"SELECT body FROM messages WHERE {condition}").count() == 3, condition
    for condition in (
        "region = 'far'",
        "region IN ('far', 'none')",
        "region IN (SELECT region FROM names)",
        "region = (SELECT min(region) FROM names)",
        "EXISTS (SELECT 1 FROM names WHERE names.region = messages.region)",
    ):
        assert spark.sql(f"SELECT body FROM messages WHERE {condition}").count() == 1, condition
    for condition in (
        "shard = 0",
        "shard < 1",
        "shard IN (0, 5)",
        "shard IN (SELECT shard FROM names)",
        "shard = (SELECT max(shard) FROM names)",
        "EXISTS (SELECT 1 FROM names WHERE names.shard = messages.shard)",
    ):
        found = spark.sql(f"SELECT body FROM messages WHERE queue = 'two.fifo' AND {condition}")
        assert found.count() == of_shard[0], condition
    for join in (
        "LEFT SEMI JOIN names USING (queue)",
        "JOIN names USING (queue) WHERE queue IN (SELECT queue FROM names)",
    ):
        assert spark.sql(f"SELECT body FROM messages {join}").count() == 3, join
    with pytest.raises(PySparkException):  # the torn shard of a queue would be noticed
        spark.sql("SELECT shard FROM messages WHERE queue = 'two.fifo'").collect()
    for view in ("messages", "receipts", "history", "groups", "queues"):
        for condition in ("= 'one'", "IN ('one', 'none')", "IN (SELECT queue FROM names)"):
            spark.sql(f"SELECT * FROM {view} WHERE queue {condition}").collect()
    with pytest.raises(PySparkException):
        spark.sql("SELECT body FROM messages").collect()
    lq.register_views(spark)
    assert plan() == few


@pytest.mark.parametrize("reading", ["tasks"], indirect=True)
def test_the_number_of_tasks_follows_the_number_of_cores(spark: SparkSession, lq: LakeQueue) -> None:
    for number in range(3):
        lq.create_queue(f"queue-{number}", shards=20).send("a")
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    cores = spark.sparkContext.defaultParallelism
    try:
        for partitions, tasks in (("200", min(64, 3 * cores)), ("2", 2)):
            spark.conf.set("spark.sql.shuffle.partitions", partitions)
            lq.register_views(spark)
            for view in ("messages", "queues", "groups"):
                assert spark.table(view).rdd.getNumPartitions() == tasks, view
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(shuffled))


@pytest.mark.parametrize("reading", ["tasks"], indirect=True)
def test_bodies_are_read_where_they_are_asked_for_and_of_the_messages_that_are_left(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    queue = lq.create_queue("one", shards=2)
    queue.send_batch([SendEntry(body, attributes={"letter": body}) for body in "abc"])
    queue.receive(1)
    lq.register_views(spark, now=clock.now())

    def plan(query: str) -> str:
        return str(spark.sql(query)._jdf.queryExecution().optimizedPlan().toString())

    counted = plan("SELECT state, count(*) FROM messages WHERE queue = 'one' GROUP BY state")
    assert counted.count("ArrowEvalPython") == 3
    one = "SELECT body, message_attributes FROM messages WHERE state = 'in_flight'"
    found = plan(one)
    assert found.count("ArrowEvalPython") == 5
    assert found.index("ArrowEvalPython") < found.index("in_flight")  # a plan is written from its end
    [row] = spark.sql(one).collect()
    assert row.message_attributes == {"letter": row.body}
    longest = "SELECT max(length(body)) AS n, count(DISTINCT message_attributes['letter']) AS k FROM messages"
    assert spark.sql(longest).head().asDict() == {"n": 1, "k": 3}


def test_a_subquery_in_a_select_list_refers_to_the_queue_of_its_row(spark: SparkSession, lq: LakeQueue) -> None:
    for number, name in enumerate(("one", "two", "three"), 1):
        lq.create_queue(name).send_batch([SendEntry("a")] * number)
    lq.register_views(spark)
    counted = "(SELECT count(*) FROM messages WHERE messages.queue = queues.queue)"
    rows = spark.sql(f"SELECT queue, {counted} AS n FROM queues").collect()
    assert {row.queue: row.n for row in rows} == {"one": 1, "two": 2, "three": 3}


def test_a_root_without_queues_has_empty_views_of_the_same_schema(spark: SparkSession, lq: LakeQueue) -> None:
    lq.create_queue("orders").send("a")
    lq.compact()
    lq.register_views(spark)
    names = ("messages", "receipts", "history", "queues", "stats")
    full = {view: spark.table(view).schema.simpleString() for view in names}
    assert spark.table("stats").select("queue", "visible", "sent").collect() == [("orders", 1, 1)]
    lq.delete_queue("orders")
    lq.register_views(spark)
    spark.table("stats").limit(0).createOrReplaceTempView("stats")  # it tells of deleted queues, too
    assert {view: spark.table(view).schema.simpleString() for view in full} == full
    assert all(spark.table(view).isEmpty() for view in full)


@pytest.mark.parametrize("reading", ["tasks"], indirect=True)
@pytest.mark.parametrize("version", ["0.0.1", None])
def test_tasks_without_this_lakequeue_leave_the_views_to_delta(
    spark: SparkSession,
    lq: LakeQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str | None,
) -> None:
    lq.create_queue("orders", shards=2).send("a")
    package = tmp_path / "path" / ("lakequeue" if version is None else f"lakequeue-{version}.dist-info")
    package.mkdir(parents=True)
    if version is None:
        (package / "__init__.py").write_text("raise ImportError('broken')")
    else:
        (package / "METADATA").write_text(f"Name: lakequeue\nVersion: {version}\n")
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path / "path"))
    with caplog.at_level("INFO", "lakequeue"):
        lq.register_views(spark)
    assert (f"lakequeue {version}" if version else "ImportError: broken") in caplog.text
    found = spark.sql("SELECT body FROM messages")
    assert "ArrowEvalPython" not in found._jdf.queryExecution().executedPlan().toString()
    assert [row.body for row in found.collect()] == ["a"]


@pytest.mark.parametrize("reading", ["tasks"], indirect=True)
def test_a_query_that_fails_in_a_task_is_reported_in_one_line(
    spark: SparkSession, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lq.create_queue("orders").send("a")
    [file] = Path(lq.root).glob("q/*/0/messages/**/*.parquet")
    file.write_bytes(b"torn")
    monkeypatch.setattr(sql, "_spark", lambda *_, **__: spark)  # the command's own logs nothing
    query = ["sql", "--spark", "SELECT state, count(*) FROM messages GROUP BY state"]
    done = CliRunner().invoke(app, ["--root", lq.root, *query])
    *_, told = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (3, "")
    assert told.startswith(f"error: storage: {lq.root}") and "Parquet" in told
