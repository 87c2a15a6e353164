"""Processes with a home shard still receive from every other shard."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from concurrency.harness import apart, keep_to, small_segments
from lakequeue import LakeQueue, SendEntry, SystemClock
from lakequeue.runtime.home_shard import ELSEWHERE_EVERY
from lakequeue.runtime.shard_queries import READ_COMMITS_EVERY

SHARDS = 4
LATEST = 2 * ELSEWHERE_EVERY * (SHARDS - 1)
"""Receives of one consumer after which it has seen every shard that nobody else consumes (its first look only
notes who does)."""


@pytest.mark.spec("RCV-16")
@pytest.mark.parametrize("fifo", [False, True])
def test_a_consumer_with_enough_to_do_at_home_forgets_no_shard(tmp_path: Path, fifo: bool) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    more = {"fifo": True, "deduplication_scope": "message_group"} if fifo else {}
    queue = lq.create_queue("orders.fifo" if fifo else "orders", shards=SHARDS, **more)
    if fifo:
        queue.send_batch([SendEntry(f"{n}", group_id=f"{n}", dedup_id=f"{n}") for n in range(4 * LATEST)])
    else:
        for shard in range(SHARDS):
            keep_to(queue, shard)
            queue.send_batch([SendEntry(f"{n}") for n in range(1 if shard else LATEST + 1)])
    keep_to(queue, 0)
    [other] = apart(lq.root, lq.clock, 1)
    seen = {shard.number: 0 for shard in queue._runtime.shards}
    consumer = other.queue(queue.name)
    keep_to(consumer, 0)
    for _ in range(LATEST):
        [message] = consumer.receive()
        seen[int(message.receipt_handle.split("x")[1])] += 1
    assert all(seen.values()), seen
    assert consumer._runtime.shards[0].shared.home.current == 0 and seen[0] >= LATEST * 0.9


@pytest.mark.spec("RCV-16")
def test_a_shard_that_others_consume_is_left_to_them(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders", shards=2)
    queues = [each.queue("orders") for each in apart(lq.root, lq.clock)]
    for shard, queue in enumerate(queues):
        keep_to(queue, shard)
        queue.send_batch([SendEntry(f"{shard}")] * 4 * ELSEWHERE_EVERY)
    for _ in range(4 * ELSEWHERE_EVERY - 4):
        for shard, queue in enumerate(queues):
            assert [message.body for message in queue.receive()] == [f"{shard}"]


@pytest.mark.spec("RCV-16")
def test_a_shard_where_others_commit_but_claim_nothing_is_not_forgotten(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders", shards=2)
    consumer, other = (each.queue("orders") for each in apart(lq.root, lq.clock))
    keep_to(consumer, 0)
    consumer.send_batch([SendEntry("home") for _ in range(2 * READ_COMMITS_EVERY * ELSEWHERE_EVERY)])
    keep_to(other, 1)
    other.send("handled")
    [handled] = other.receive()
    other.send("waiting")
    for _ in range(2 * READ_COMMITS_EVERY * ELSEWHERE_EVERY):
        other.change_visibility(handled.receipt_handle, 600)
        if [message.body for message in consumer.receive()] == ["waiting"]:
            return
    raise AssertionError("nobody received the message")


@pytest.mark.spec("LPL-1")
def test_a_long_poll_sees_what_comes_to_any_shard(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders", shards=SHARDS)
    consumer, producer = (each.queue("orders") for each in apart(lq.root, SystemClock()))
    keep_to(consumer, 0)
    for shard in range(SHARDS):
        keep_to(producer, shard)
        got: list[str] = []
        waiting = threading.Thread(
            target=lambda got=got: got.extend(m.body for m in consumer.receive(wait_time=20))
        )
        waiting.start()
        producer.send(f"to {shard}")
        waiting.join(30)
        assert got == [f"to {shard}"]


@pytest.mark.spec("SND-18")
def test_one_producer_fills_all_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch, commits=4)
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders", shards=SHARDS)
    for number in range(10 * SHARDS):
        queue.send(f"{number}")
    sent = [shard.ledger.query(lambda machine: machine.log.end) for shard in queue._runtime.shards]
    assert min(sent) >= 4 and max(sent) <= 16, sent


@pytest.mark.spec("SND-18")
def test_bulk_sends_with_few_rows_go_to_one_shard_after_the_other(tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders", shards=SHARDS)
    for _ in range(SHARDS):
        queue.send_arrow(pa.table({"body": ["few", "rows"]}))
    assert [shard.ledger.query(lambda machine: machine.log.end) for shard in queue._runtime.shards] == [2] * SHARDS
