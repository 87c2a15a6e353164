"""Messages that Spark wrote are looked at like others, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import Consumer, LakeQueue, Message, Outcome, RedrivePolicy
from lakequeue.operations import browse
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_condition_on_rows_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path), spark=spark).create_queue("orders")
    queue.send("by hand", attributes={"half": "2"})
    rows = spark.range(5_000).selectExpr(
        "concat('row ', id) AS body",
        "map('half', named_struct('type', 'Number', 'string_value', string(id / 2), 'binary_value', NULL), "
        "'raw', named_struct('type', 'Binary', 'string_value', NULL, 'binary_value', unhex('00ff'))) "
        "AS message_attributes",
        "IF(id = 7, 60D, 0D) AS delay_seconds",
    )
    queue.send_dataframe(rows)
    where = "message_attributes['half']::DOUBLE = 2 OR state = 'delayed' OR body = 'row 4999'"
    assert [(m.body, m.state) for m in queue.peek(where)] == [
        ("by hand", "visible"),
        ("row 4", "visible"),
        ("row 7", "delayed"),
        ("row 4999", "visible"),
    ]
    [first] = queue.peek("message_attributes['raw'] = 'AP8=' AND age < 3600", limit=1)
    assert (first.body, first.message_attributes["raw"].value) == ("row 0", b"\x00\xff")


def refuse(message: object, context: object) -> Outcome:
    return Outcome.FAILED


def refuse_all(message: Message, context: object) -> None:
    raise ValueError(f"no: {message.receive_count} \u2028 {message.body}\n")


@pytest.mark.spec("DLT-5", "QUE-23")
def test_a_condition_chooses_the_same_messages_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    lq = LakeQueue(str(tmp_path), spark=spark, clock=clock)
    lq.create_queue("dead")
    policy = RedrivePolicy(dead_letter_queue="dead", max_receive_count=1)
    source = lq.create_queue("source", redrive_policy=policy)
    source.send("letter", attributes={"customer": "Ada"})
    clock.advance(2)
    Consumer(source, refuse, make_failed_messages_visible_immediately=True).run(until_empty=True)
    assert source.receive() == []  # it moved
    source.set_attributes(redrive_policy=RedrivePolicy("dead", max_receive_count=2))
    source.send('letter that failed twice: é "quoted"')
    Consumer(source, refuse_all, retry_failed_at_once=True).run(until_empty=True)
    assert source.receive() == []
    queue = lq.queue("dead")
    queue.send("received", group_id="tag")
    queue.receive(2, visibility_timeout=30, consumer="worker 1")
    queue.send("late", delay=60)
    queue.send("raw", attributes={"raw": bytes(range(256)), "price": 12.5})
    fifo = lq.create_queue("orders.fifo", fifo=True, shards=2, deduplication_scope="message_group")
    fifo.send("first", group_id="a", dedup_id="1")
    clock.advance(1)
    lq.register_views(spark, now=clock.now())
    instants = [str(message.sent_at.replace(tzinfo=None)) for message in queue.peek(limit=10)]
    # a peek shows no deleted message
    conditions = [f"{name} IS NOT NULL" for name in browse.SCHEMA.names if name != "settled_at"] + [
        "state = 'in_flight' AND receive_count = 1",
        "state = 'delayed' AND delay_seconds = 60 AND visible_at > sent_at",
        "state = 'visible' AND visible_at = sent_at",
        f"sent_at = '{instants[-1]}' AND age = 1",
        "message_attributes['customer'] = 'Ada' AND source_queue = 'source' AND moved_at > sent_at",
        "message_attributes['price']::DOUBLE > 12",
        "queue = 'orders.fifo' AND region = 'local' AND sequence_number LIKE '1%' AND log_offset + shard >= 0",
        "group_id IN ('a', 'tag') AND coalesce(dedup_id, '') <> '2' AND first_received_at IS NULL",
        "body LIKE '%e%' AND message_id <> body",
        "dead_letter_reason LIKE '%ValueError%' AND attempts IS NOT NULL",
    ]
    columns = ", ".join(f"({where}) AS c{number}" for number, where in enumerate(conditions))
    rows = spark.sql(f"SELECT message_id, {columns} FROM messages WHERE queue <> 'source'").collect()
    for number, where in enumerate(conditions):
        chosen = {row.message_id for row in rows if row[f"c{number}"]}
        assert chosen and chosen == {m.message_id for one in (queue, fifo) for m in one.peek(where)}, where
    shown = lq.arrow_views()["messages"].to_table(columns=["message_id", "dead_letter_reason", "attempts"])
    same = spark.sql("SELECT message_id, dead_letter_reason, attempts FROM messages").collect()
    told = [(*row[:2], [(*each[:2], each[2].timestamp(), each[3]) for each in row[2] or ()]) for row in same]
    rows_of = [(*row.values(),) for row in shown.to_pylist()]
    expected = [
        (*row[:2], [(e["error"], e["text"], e["at"].timestamp(), e["consumer"]) for e in row[2] or ()])
        for row in rows_of
    ]
    assert sorted(map(str, told)) == sorted(map(str, expected))
