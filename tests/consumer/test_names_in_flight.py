"""Messages in flight tell which consumer has them, if it gave a name."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from insides import shard_of
from lakequeue import Consumer, Context, InvalidParameterValue, LakeQueue, Message, Queue
from lakequeue.cli.app import app
from lakequeue.entry_verbs import consumers
from lakequeue.storage import layout
from lakequeue.testing import ManualClock


def who(queue: Queue, where: str | None = None) -> list[str | None]:
    return [message.consumer for message in queue.peek(where)]


def sql_messages(lq: LakeQueue) -> list[dict[str, Any]]:
    """What SQL shows of all messages."""
    shown = lq.arrow_views()["messages"].to_batches(columns=["queue", "body", "consumer", "dead_letter_reason"])
    return sorted((row for batch in shown for row in batch.to_pylist()), key=lambda row: row["body"])


def sql(lq: LakeQueue) -> list[str | None]:
    return [row["consumer"] for row in sql_messages(lq)]


def test_a_receive_may_say_who_has_the_messages(lq: LakeQueue, clock: ManualClock):
    queue = lq.create_queue("orders", visibility_timeout=30)
    for body in "abc":
        queue.send(body)
    name = 'worker "7"\u2028é'
    queue.receive(consumer=name)
    queue.receive()
    assert who(queue) == [name, None, None]
    assert who(queue, "consumer LIKE 'worker%'") == [name]
    assert sql(lq) == [name, None, None]
    assert who(LakeQueue(lq.root, clock=clock).queue("orders")) == [name, None, None]
    clock.advance(30)
    assert who(queue) == [None, None, None], "who let it time out has it no more"
    assert sql(lq) == [None, None, None]
    [again, _, _] = queue.receive(3, consumer="other")
    assert who(queue) == ["other"] * 3
    queue.change_visibility(again, 60)
    assert who(queue) == ["other"] * 3, "an extension changes when it ends, and no more"
    queue.change_visibility(again, 0)
    assert who(queue) == [None, "other", "other"]


def test_who_gives_no_name_stores_nothing(lq: LakeQueue):
    queue = lq.create_queue("orders")
    queue.send("a")
    queue.receive()
    [run] = shard_of(queue).ledger.query(lambda machine: machine.runs)
    assert run.consumer is None
    rows = DeltaTable(layout.receipts_path(lq.root, queue.key, 0)).to_pyarrow_table().to_pylist()
    assert [row["run"]["attempt_id"] for row in rows if row["run"]] == [None]


def test_an_attempt_leaves_no_room_for_a_name(lq: LakeQueue):
    queue = lq.create_queue("orders.fifo", fifo=True)
    queue.send("a", group_id="g", dedup_id="1")
    first = queue.receive(attempt_id="x", consumer="worker")
    assert who(queue) == [None]
    assert queue.receive(attempt_id="x", consumer="worker")[0].receipt_handle == first[0].receipt_handle
    queue.send("b", group_id="h", dedup_id="2")
    queue.receive(consumer="worker")
    assert who(queue, "body = 'b'") == ["worker"]


@pytest.mark.spec("DLQ-4")
def test_a_name_is_no_reason_of_a_dead_letter(lq: LakeQueue, clock: ManualClock):
    dead = lq.create_queue("dead")
    policy = {"deadLetterTargetArn": "dead", "maxReceiveCount": 1}
    queue = lq.create_queue("orders", visibility_timeout=5, redrive_policy=policy)
    queue.send("a")
    queue.receive(consumer="killed")
    clock.advance(5)
    queue.receive(consumer="next")
    assert [message.dead_letter_reason for message in dead.peek()] == [None] and who(dead) == [None]
    assert [row["dead_letter_reason"] for row in sql_messages(lq) if row["queue"] == "dead"] == [None]


def test_a_consumer_with_a_name_shows_what_it_has(lq: LakeQueue):
    queue = lq.create_queue("orders")
    for body in "abc":
        queue.send(body)
    seen: list[list[str | None]] = []

    def handle(message: Message, context: Context) -> None:
        seen.append(who(queue, f"body = '{message.body}'"))
        if message.body == "a":
            raise ValueError("no")

    Consumer(queue, handle, concurrency=1, prefetch=0, name="picker").run(until_empty=True)
    assert seen[:3] == [["picker"]] * 3, "the first receive, and those that a settle claims"
    assert who(queue) == ["picker"], "it failed, and stays in flight until its timeout"
    queue.purge()
    queue.send("d")
    seen.clear()
    unnamed = Consumer(queue, handle, concurrency=1, wait_time=0)
    unnamed.run(until_empty=True)
    assert seen == [[unnamed.name]] and unnamed.name.endswith(f"-{os.getpid()}"), "by host and process"


def test_the_consumers_of_a_queue_are_those_that_have_messages_in_flight(lq: LakeQueue, clock: ManualClock):
    queue = lq.create_queue("orders", visibility_timeout=60, shards=2)
    for body in "abcdefg":
        queue.send(body)
    queue.receive(2, consumer="gone", visibility_timeout=5)
    clock.advance(10)
    queue.receive(consumer="first")
    clock.advance(10)
    queue.receive(2, consumer="first")
    clock.advance(10)
    queue.receive(2)
    now, ago = clock.now(), [timedelta(seconds=seconds) for seconds in (10, 20)]
    assert [attrs.astuple(each) for each in consumers(queue)] == [
        (None, 2, now, now, (), (), now + timedelta(seconds=60), 0),
        ("first", 3, now - ago[1], now - ago[0], (), (), now + timedelta(seconds=50), 0),
    ], "whose timeout has ended has none; the latest receive comes first"


def test_the_command_lists_consumers(tmp_path: Path):
    queue = LakeQueue(str(tmp_path)).create_queue("orders")
    queue.send("a")
    queue.receive(consumer="packer")
    text, document = (
        CliRunner().invoke(app, ["--root", str(tmp_path), *options, "consumers", "orders"]).stdout
        for options in ([], ["--json"])
    )
    assert [(row["consumer"], row["in_flight"]) for row in json.loads(document)] == [("packer", 1)]
    assert "packer" in text and "oldest receive" in text


@pytest.mark.parametrize("name", ["", "x" * 101, 7])
def test_a_name_has_limits(lq: LakeQueue, name: str):
    queue = lq.create_queue("orders")
    queue.send("a")
    with pytest.raises(InvalidParameterValue, match="consumer"):
        queue.receive(consumer=name)
    assert queue.counts().visible == 1
