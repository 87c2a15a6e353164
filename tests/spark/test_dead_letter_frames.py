"""Dead letters in leases, bulk sends and the SQL views."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from lakequeue import LakeQueue, Queue, RedrivePolicy, SendEntry
from lakequeue.operations import move
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def stored(queue: Queue) -> list[str]:
    return [message.body for message in queue.peek(limit=1_000)]


@pytest.mark.core
@pytest.mark.spec("DLQ-2", "DLQ-4", "RET-7")
def test_a_lease_passes_dead_letters_over_and_counts_on_where_they_are(lq: LakeQueue, clock: ManualClock):
    dead = lq.create_queue("dead", shards=2)
    queue = lq.create_queue("orders", redrive_policy=RedrivePolicy("dead", 2))
    begun = clock.now()
    queue.send_batch([SendEntry(f"{number:02}") for number in range(30)])
    for count in (20, 5):
        lease = queue.lease(count)
        assert lease is not None
        lease.release()
    clock.advance(60)
    lease = queue.lease(visibility_timeout=300)
    assert lease is not None
    rows = {row.body: row.receive_count for row in lease.messages.collect()}
    expected = {f"{number:02}": 2 if number < 20 else 1 for number in range(5, 30)}
    assert rows == expected and lease.message_count == 25
    assert stored(dead) == [f"{number:02}" for number in range(5)]
    lease.delete()

    dead.send("young")
    letters = dead.lease()
    assert letters is not None
    found = {row.body: row for row in letters.messages.collect()}
    assert {body: row.receive_count for body, row in found.items()} == {"young": 1} | {
        f"{number:02}": 3 for number in range(5)
    }
    assert found["00"].sent_at.timestamp() == begun.timestamp()
    assert found["young"].sent_at.timestamp() == clock.now().timestamp()
    dead.delete(found["00"].receipt_handle)
    assert letters.delete_except([found["01"].receipt_handle]).done == 4
    [message] = dead.receive(10)
    assert (message.body, message.receive_count) == ("01", 4)


@pytest.mark.spec("DDP-16")
def test_a_bulk_send_asks_no_dead_letter_for_its_deduplication_id(lq: LakeQueue, spark: SparkSession):
    dead = lq.create_queue("dead.fifo", fifo=True)
    queue = lq.create_queue("orders.fifo", fifo=True, redrive_policy=RedrivePolicy("dead.fifo", 1))
    queue.send("moved", group_id="A", dedup_id="1")
    dead.send("own", group_id="A", dedup_id="2")
    for _ in range(2):
        queue.receive(visibility_timeout=0)
    assert stored(dead) == ["own", "moved"]
    rows = spark.createDataFrame(
        [("new", "A", "1"), ("as own", "A", "2")], "body string, group_id string, dedup_id string"
    )
    dead.send_dataframe(rows)
    assert stored(dead) == ["own", "moved", "new"]
    again = spark.createDataFrame([("at home", "A", "1")], "body string, group_id string, dedup_id string")
    queue.send_dataframe(again)
    assert stored(queue) == []


@pytest.mark.spec("DLT-5", "DLQ-4", "DLQ-8", "RET-7", "STA-3", "STA-9")
def test_the_views_agree_with_the_counts_at_each_step_of_a_move(
    lq: LakeQueue, spark: SparkSession, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    dead = lq.create_queue("dead", message_retention_period=3_600)
    queue = lq.create_queue("orders", rewind_range=3_600, redrive_policy=RedrivePolicy("dead", 1))

    def states() -> dict[tuple[str, str], str]:
        """Of what is not deleted, by queue and body; checks the counts of both queues."""
        lq.register_views(spark, now=clock.now())
        for shown in spark.table("queues").collect():
            counts = lq.queue(shown.queue).counts()
            assert (shown.visible, shown.in_flight, shown.delayed, shown.rewindable) == (
                *(counts.visible, counts.in_flight, counts.delayed, counts.rewindable),
            )
            assert shown.oldest_age == counts.oldest_age
        rows = spark.sql("SELECT queue, body, state FROM messages WHERE state != 'deleted'").collect()
        assert len({(row.queue, row.body) for row in rows}) == len(rows)
        return {(row.queue, row.body): row.state for row in rows}

    begun = clock.now()
    queue.send_batch([SendEntry(body) for body in "ab"])
    queue.receive(10, visibility_timeout=0)
    clock.advance(60)
    bring = move._bring

    def die(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(move, "_bring", die)
        queue.receive()
    assert states() == {("orders", "a"): "moving", ("orders", "b"): "moving"}

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(move, "_bring", lambda *arguments: bring(*arguments) and die())
        queue.receive()
    both = {("dead", "a"): "visible", ("dead", "b"): "visible"}
    assert states() == {("orders", "a"): "moving", ("orders", "b"): "moving"} | both

    assert queue.receive() == []
    assert states() == both
    assert spark.sql("SELECT * FROM messages WHERE state = 'deleted'").count() == 2  # bodies at the source
    row = spark.sql("SELECT * FROM messages WHERE queue = 'dead' AND body = 'a'").head()
    assert row is not None
    assert (row.source_queue, row.receive_count) == ("orders", 1)
    assert row.sent_at.timestamp() == begun.timestamp()
    assert row.moved_at - row.sent_at == timedelta(seconds=60)
    assert spark.table("history").count() == 0

    assert dead.redrive(where="body = 'a'") == 1
    assert lq.compact()
    assert states() == {("orders", "a"): "visible", ("dead", "b"): "visible"}
    row = spark.sql("SELECT * FROM messages WHERE queue = 'orders' AND state = 'visible'").head()
    assert row is not None
    assert (row.body, row.source_queue, row.receive_count) == ("a", "dead", 0)
    assert row.moved_at == row.sent_at

    clock.advance(3_540)
    assert states()["dead", "b"] == "expired"
