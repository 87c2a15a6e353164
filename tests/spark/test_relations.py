"""The relations without a JVM say what the views of Spark say."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, RedrivePolicy, SendEntry
from lakequeue.operations import relations, sql_views
from lakequeue.storage.messages import merge_segments
from lakequeue.testing import ManualClock
from random_consumer import consumed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _plans_once(spark: SparkSession) -> Iterator[None]:
    """To plan each stage of a union of 24 tables anew took a fifth of the time, and changes no answer."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")


@pytest.fixture
def lq(tmp_path: Path, spark: SparkSession, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    """A root with messages in every state, sent one by one and by a DataFrame; some deleted ones were emptied."""
    monkeypatch.setattr(merge_segments, "CUT_BYTES", 0)
    lq = LakeQueue(str(tmp_path / "it's a `root`"), spark=spark, clock=clock, region="o'hara\\")
    lq.create_queue("dead")
    policy = RedrivePolicy(dead_letter_queue="dead", max_receive_count=1)
    orders = lq.create_queue(
        "orders",
        shards=2,
        rewind_range=900,
        message_retention_period=1_200,
        redrive_policy=policy,
        tags={"a": "b"},
    )
    orders.send_batch([SendEntry(body=f"too old {index}") for index in range(4)])
    orders.send("raw", attributes={"raw": bytes(range(256)), "half": 0.5, "text": "x"})
    orders.receive(max_messages=2, visibility_timeout=600)
    clock.advance(300)
    fifo = lq.create_queue("orders.fifo", fifo=True, delay=5, max_delayed_messages=2, rewind_range=600)
    held = lq.create_queue("held", shards=2, max_delayed_messages=4)
    for index in range(12):
        fifo.send(f"fifo {index}", group_id="ABC"[index % 3], dedup_id=str(index))
        held.send(f"held {index}", delay=[0, 30, 80][index % 3])
        clock.advance(1)
    for message in fifo.receive(4):
        fifo.delete(message.receipt_handle)
    rows = spark.range(2_000).selectExpr(
        "concat('row ', id) AS body",
        "IF(id % 7 = 0, 60D, NULL) AS delay_seconds",
        "map('n', string(id)) AS message_attributes",
    )
    orders.send_dataframe(rows)
    lease = orders.lease(700, visibility_timeout=30)
    assert lease is not None
    lease.delete_except([m.receipt_handle for m in lease.messages.limit(50).collect()])
    clock.advance(100)
    taken = orders.receive(max_messages=60, visibility_timeout=20)
    orders.delete_batch([m.receipt_handle for m in taken[:30]])
    again = lq.create_queue("again", rewind_range=3_000)
    again.send_batch([SendEntry(body="gone"), SendEntry(body="gone too")])
    again.purge()
    begin = clock.now()
    clock.advance(1)
    again.send_batch([SendEntry(body=f"again {index}") for index in range(6)])
    again.delete_batch([m.receipt_handle for m in again.receive(max_messages=5)])
    again.rewind(begin)
    again.delete(again.receive()[0].receipt_handle)
    lq.create_queue("deleted").send("nowhere")
    lq.delete_queue("deleted")
    lq.create_queue("empty")
    old = lq.create_queue("old")
    old.send_arrow(pa.table({"body": list("abcd"), "delay_seconds": [0.0, 1.0, 2.0, 3.0]}))
    old.receive(1, visibility_timeout=7_200)
    clock.advance(3)
    old.delete_batch(old.receive(3))
    old.send("e")
    tenants = lq.create_queue("tenants", shards=2)
    groups = [None, *"abcde", *["noisy"] * 80]
    for index in range(8):
        tenants.send_batch([SendEntry(body="x", group_id=group) for group in groups[index::8]])
    clock.advance(800)  # the first messages expire; the receipts of the others end, and some become dead letters
    orders.receive(max_messages=5, visibility_timeout=60)
    lq.queue("dead").receive(max_messages=3, visibility_timeout=50)
    lq.compact()
    clock.advance(61)
    for index in range(6):
        held.send(f"held again {index}", delay=500)
    again.receive(visibility_timeout=30)
    tenants.receive(max_messages=10, visibility_timeout=500)
    orders.send("late", delay=600)
    return lq


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in one order, with maps and instants in one form."""

    def cell(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)
        if isinstance(value, dict):
            return {name: cell(each) for name, each in value.items()}
        if isinstance(value, list):  # a map in Arrow is a list of pairs
            return dict(value) if value and isinstance(value[0], tuple) else [cell(each) for each in value]
        return value

    return sorted(map(cell, rows), key=repr)


def compare(
    spark: SparkSession, lq: LakeQueue, names: Collection[str] = (), **when: datetime
) -> dict[str, list[dict[str, Any]]]:
    """Compares the relations of these names, or all of them."""
    views = lq.arrow_views(**when)
    statements = lq.view_statements(**when)  # what `register_views` makes may read the relations
    found = {}
    for name in names or views:
        sql_views.create(spark, [each for each in statements if f" VIEW {name} AS " in each])
        table = views[name].to_table()
        shown = spark.table(name)
        assert table.schema == relations.SCHEMAS[name] and table.column_names == shown.columns
        found[name] = plain(table.to_pylist())
        assert found[name] == plain(shown.toArrow().to_pylist()), name
    return found


@pytest.mark.timeout(900)
def test_all_are_equal_whatever_happened(spark: SparkSession, lq: LakeQueue, clock: ManualClock) -> None:
    now = clock.now()
    found = compare(spark, lq, now=now)
    assert found["history"] and found["stats"] and len(found["queues"]) == 8
    emptied = [row for row in found["messages"] if not row["body"]]
    assert sorted((row["queue"], row["state"], row["delay_seconds"]) for row in emptied) == [
        ("old", "deleted", delay) for delay in (1.0, 2.0, 3.0)
    ]
    assert {row["noisy"] for row in found["groups"]} == {True, False, None}
    seen = {row["state"] for row in found["messages"]}
    # timeouts, delays and some retention have ended; two views do not read `now`, and `queues` is cheaper below
    found = compare(spark, lq, ["messages", "history", "groups"], now=now + timedelta(seconds=400))
    seen |= {row["state"] for row in found["messages"]}
    assert seen == {"visible", "in_flight", "delayed", "held", "deleted", "expired"}


def test_relations_and_views_are_equal_after_any_operations(
    spark: SparkSession, tmp_path: Path, clock: ManualClock
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock)
    queues = [lq.create_queue("plain", rewind_range=300), lq.create_queue("a.fifo", fifo=True, rewind_range=300)]
    consumed(queues, clock)
    before = compare(spark, lq, ["queues"], now=clock.now())
    clock.advance(240)  # the oldest are beyond the range, and no message is in flight
    after = compare(spark, lq, now=clock.now())
    assert after["history"] and after["queues"] != before["queues"]
