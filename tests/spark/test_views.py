"""The SQL views: states, counts, schemas, and what they must not show."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.cli import app, sql
from lakequeue.operations import sql_views, task_views
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=["tasks", "tables"], autouse=True)
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

    late, held, fresh = (
        spark.sql("SELECT body, visible_at, receive_count, sent_at, age FROM messages")
        .where(f"body = '{body}'")
        .head()
        for body in ("late", "held", "fresh")
    )
    assert late.visible_at - late.sent_at == timedelta(seconds=60)
    assert (late.receive_count, held.receive_count, fresh.receive_count) == (0, 1, 0)
    assert held.visible_at - held.sent_at == timedelta(seconds=300)
    assert fresh.age == 1.0

    clock.advance(49)
    lq.register_views(spark, now=clock.now())
    assert states(spark, "queue = 'orders'")["too old"] == "expired"
    assert queue.counts().visible == spark.sql("SELECT visible FROM queues WHERE queue = 'orders'").head()[0]


@pytest.mark.spec("DLT-5", "SEQ-4", "SEQ-5", "FIF-8", "DLY-10")
def test_fifo_messages_are_shown_with_numbers_and_a_head_that_moved_up_in_its_state(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, delay=50)
    lq.create_queue("plain").send("plain")
    numbers = {
        name: queue.send(name, group_id=name[0], dedup_id=name).sequence_number
        for name in ("a1", "a2", "a3", "b1")
    }
    lq.register_views(spark, now=clock.now())
    assert set(states(spark, "queue = 'orders.fifo'").values()) == {"delayed"}
    clock.advance(50)
    (first,) = queue.receive()
    clock.advance(10)
    queue.delete(first.receipt_handle)  # the next of the group was never received, and goes behind b1
    queue.send("a4", group_id="a", dedup_id="a4")

    lq.register_views(spark, now=clock.now())
    shown = {"a1": "deleted", "a2": "visible", "a3": "visible", "b1": "visible", "a4": "delayed"}
    assert states(spark, "queue = 'orders.fifo'") == shown
    rows = {row.body: row for row in spark.table("messages").collect()}
    assert {name: rows[name].sequence_number for name in numbers} == numbers
    assert rows["plain"].sequence_number is None
    assert rows["a2"].visible_at == rows["a4"].sent_at and rows["a2"].receive_count == 0
    assert [message.body for message in queue.receive(max_messages=10)] == ["b1", "a2", "a3"]

    clock.advance(40)
    queue.set_attributes(delay=45)
    lq.register_views(spark, now=clock.now())
    assert states(spark, "body = 'a4'") == {"a4": "delayed"}
    queue.set_attributes(delay=5)
    assert states(spark, "body = 'a4'") == {"a4": "visible"}
    counts = queue.counts()
    (row,) = spark.sql("SELECT * FROM queues WHERE queue = 'orders.fifo'").collect()
    assert (row.visible, row.in_flight, row.delayed) == (counts.visible, counts.in_flight, counts.delayed)


@pytest.mark.spec("DLT-5", "INF-9", "STA-13")
def test_held_messages_are_shown_as_such_and_agree_with_the_counts(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    fifo = lq.create_queue("orders.fifo", fifo=True, delay=5, max_delayed_messages=2)
    shards = lq.create_queue("shards", shards=2, max_delayed_messages=3, rewind_range=300)
    chance = random.Random(5)
    for number in range(12):
        fifo.send(f"fifo {number}", group_id=chance.choice("ABC"), dedup_id=str(number))
        shards.send(f"shards {number}", delay=chance.choice([0, 3, 8, 20]))
        clock.advance(chance.randint(0, 2))
        if number == 8:
            fifo.set_attributes(delay=40)  # what is left becomes delayed, but nothing held
        for each in (fifo, shards):
            for message in each.receive(2, visibility_timeout=chance.choice([2, 30])):
                if chance.random() < 0.5:
                    each.delete(message.receipt_handle)
    lq.register_views(spark, now=clock.now())
    for row in spark.table("queues").collect():
        counts = lq.queue(row.queue).counts()
        told = (counts.visible, counts.in_flight, counts.delayed, counts.held, counts.oldest_age)
        assert (row.visible, row.in_flight, row.delayed, row.held, row.oldest_age) == told
        assert row.delayed and row.held
    peeked = {m.body: m.state for each in (fifo, shards) for m in each.peek(limit=100)}
    names = {"visible": "visible", "in_flight": "in_flight", "delayed": "delayed", "held": "held"}
    rows = spark.sql("SELECT * FROM messages WHERE state NOT IN ('deleted', 'expired')").collect()
    assert {row.body: row.state for row in rows} == {body: names[state] for body, state in peeked.items()}
    assert {(row.visible_at, row.receive_count) for row in rows if row.state == "held"} == {(None, 0)}
    shards.set_attributes(max_delayed_messages=None)  # the views ask the shards for the cap
    assert "held" not in states(spark, "queue = 'shards'").values()


@pytest.mark.spec("PUR-1")
def test_what_was_purged_is_not_shown_and_each_query_sees_the_newest(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    queue = lq.create_queue("orders", shards=2)
    lq.register_views(spark, now=clock.now())
    assert states(spark) == {}
    queue.send_batch([SendEntry(body="a"), SendEntry(body="b")])
    queue.send("c")
    assert states(spark) == dict.fromkeys("abc", "visible")
    queue.purge()
    queue.send("d")
    assert states(spark) == {"d": "visible"}
    heads = spark.sql("SELECT shard, state FROM receipts WHERE first_offset = -1 ORDER BY shard").collect()
    assert [tuple(row) for row in heads] == [(0, "head"), (1, "head")]


class Consumed:
    """A queue with rewind under random operations, and what must be rewindable in it."""

    range = timedelta(seconds=300)

    def __init__(self, queue: Queue, clock: ManualClock, seed: int) -> None:
        self.queue = queue
        self.clock = clock
        self.chance = random.Random(seed)
        self.sent: dict[str, datetime] = {}
        self.deleted: set[str] = set()

    def operate(self) -> None:
        draw = self.chance.random()
        if draw < 0.35 or not self.sent:
            bodies = [f"{len(self.sent) + index}" for index in range(self.chance.randint(1, 3))]
            fields = [{"group_id": body[-1], "dedup_id": body} if self.queue.fifo else {} for body in bodies]
            self.queue.send_batch([SendEntry(body, **more) for body, more in zip(bodies, fields, strict=True)])
            self.sent |= dict.fromkeys(bodies, self.clock.now())
        elif draw < 0.8:
            for message in self.queue.receive(self.chance.randint(1, 4), visibility_timeout=20):
                if self.chance.random() < 0.8:
                    self.queue.delete(message.receipt_handle)
                    self.deleted.add(message.body)
        elif draw < 0.9:
            to = self.chance.choice([at for at in self.sent.values() if at >= self.clock.now() - self.range])
            again = (
                {body for body in self.rewindable() if self.sent[body] >= to} if to < self.clock.now() else set()
            )
            assert self.queue.rewind(to) == len(again)
            self.deleted -= again
        else:
            self.clock.advance(self.chance.randint(1, 12))

    def rewindable(self) -> set[str]:
        return {body for body in self.deleted if self.sent[body] >= self.clock.now() - self.range}

    def compare(self, shown: dict[str, str], history: list[str], row: Row) -> None:
        assert sorted(history) == sorted(self.rewindable())
        assert {body for body, state in shown.items() if state == "deleted"} == self.deleted
        counts = self.queue.counts()
        told = (counts.visible, counts.in_flight, counts.delayed, counts.rewindable)
        assert (row.visible, row.in_flight, row.delayed, row.rewindable) == told
        assert counts.rewindable == len(history)


@pytest.mark.spec("DLT-5", "RWD-4", "RWD-7", "RWD-11", "STA-9", "STA-4")
def test_the_history_agrees_with_the_counts_whatever_happened(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock
) -> None:
    both = [
        lq.create_queue("plain", rewind_range=300),
        lq.create_queue("orders.fifo", fifo=True, rewind_range=300),
    ]
    consumed = {queue.name: Consumed(queue, clock, seed) for seed, queue in enumerate(both, 11)}
    for _ in range(60):
        for each in consumed.values():
            each.operate()
    assert all(5 < len(each.rewindable()) < len(each.sent) for each in consumed.values())
    clock.advance(240)  # now the oldest are beyond the range
    lq.register_views(spark, now=clock.now())
    shown = spark.sql("SELECT queue, body, state FROM messages").collect()
    history = spark.sql("SELECT queue, body FROM history").collect()
    for row in spark.table("queues").collect():
        consumed[row.queue].compare(
            {each.body: each.state for each in shown if each.queue == row.queue},
            [each.body for each in history if each.queue == row.queue],
            row,
        )
        assert 0 < len(consumed[row.queue].rewindable()) < len(consumed[row.queue].deleted)

    clock.advance(300)
    lq.register_views(spark, now=clock.now())
    assert spark.table("history").isEmpty()
    assert all(queue.counts().rewindable == 0 for queue in both)


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
        if reading == "tasks":
            assert plan.count("MapInArrow") == 1
        else:
            files = " ".join(found.inputFiles())
            assert lq.queue("one").key in files
            assert lq.queue("two").key not in files
            if view != "queues":  # there it is a row of the catalog beside a row of counts
                assert "NestedLoop" not in plan
        assert "handle_key" not in spark.table(view).columns


def test_a_subquery_in_a_select_list_refers_to_the_queue_of_its_row(spark: SparkSession, lq: LakeQueue) -> None:
    for number, name in enumerate(("one", "two", "three"), 1):
        lq.create_queue(name).send_batch([SendEntry("a")] * number)
    lq.register_views(spark)
    counted = "(SELECT count(*) FROM messages WHERE messages.queue = queues.queue)"
    rows = spark.sql(f"SELECT queue, {counted} AS n FROM queues").collect()
    assert {row.queue: row.n for row in rows} == {"one": 1, "two": 2, "three": 3}


def test_a_root_without_queues_has_empty_views_of_the_same_schema(
    spark: SparkSession, lq: LakeQueue, tmp_path: Path, reading: str
) -> None:
    lq.create_queue("orders").send("a")
    lq.compact()
    lq.register_views(spark)
    names = ("messages", "receipts", "history", "queues", "stats")
    full = {view: spark.table(view).schema.simpleString() for view in names}
    assert spark.table("stats").select("queue", "visible", "sent").collect() == [("orders", 1, 1)]
    if reading == "tasks":
        lq.delete_queue("orders")
        lq.register_views(spark)
        spark.table("stats").limit(0).createOrReplaceTempView("stats")  # it tells of deleted queues, too
    else:
        sql_views.create(spark, sql_views.view_statements(Store(str(tmp_path / "empty")), []))
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
    assert "MapInArrow" not in found._jdf.queryExecution().executedPlan().toString()
    assert [row.body for row in found.collect()] == ["a"]


@pytest.mark.parametrize("reading", ["tasks"], indirect=True)
def test_a_query_that_fails_in_a_task_is_told_in_one_line(
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
