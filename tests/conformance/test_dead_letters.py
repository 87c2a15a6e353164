"""Dead letters and redrives through the tables of both engines, and from one engine to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest

from concurrency.steps import Killed, at
from conformance.harness import Harness, every_engine, long_on_s3
from hostile import SLOW, SLOW_BODY
from lakequeue import (
    DeadLetterReason,
    InvalidParameterValue,
    LakeQueue,
    Queue,
    QueueDoesNotExist,
    RedrivePolicy,
    SendEntry,
)
from lakequeue.conditions import sandbox
from lakequeue.operations import browse, move
from lakequeue.operations.consumer_round import exchange


def create(harness: Harness, *names: str, **attributes) -> None:
    """Queues of one kind; the first is the dead-letter queue of the others, after one receive."""
    point = harness.open(engine="point")
    first, *others = names
    point.create_queue(first, fifo=first.endswith(".fifo"), **attributes)
    for name in others:
        policy = RedrivePolicy(first, 1)
        point.create_queue(name, fifo=name.endswith(".fifo"), redrive_policy=policy, **attributes)


def fail(harness: Harness, name: str, *bodies: str, **fields) -> None:
    """Sends messages and receives them once, as often as allowed, through the point engine, which is fast."""
    queue = harness.open(engine="point").queue(name)
    groups = [{"group_id": body[0], "dedup_id": body} if queue.fifo else {} for body in bodies]
    queue.send_batch([SendEntry(body, **group, **fields) for body, group in zip(bodies, groups, strict=True)])
    if queue.fifo:
        bodies = tuple({body[0]: body for body in reversed(bodies)}.values())  # the first of each group
    received = queue.receive(len(bodies), visibility_timeout=0)
    assert {message.body for message in received} == set(bodies)


def stored(harness: Harness, name: str) -> list[str]:
    return [message.body for message in harness.open(engine="point").queue(name).peek(limit=100)]


def bodies(queue: Queue, count: int = 100) -> list[str]:
    return [message.body for message in queue.receive(count, visibility_timeout=0)]


@contextmanager
def cut_short(*, landed: bool) -> Iterator[None]:
    """Makes a process end during a move, before the append or, once it landed, before the removal."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        at(patch, move, "_bring", Killed(), landed=landed)
        yield


@every_engine
@pytest.mark.spec("DLQ-4")
def test_the_reason_of_a_dead_letter_goes_through_both_engines(harness: Harness):
    """Recorded and moved through one, read through the other."""
    create(harness, "dead", "orders")
    orders = harness.open(engine="point").queue("orders")
    reason = DeadLetterReason("E", "no", datetime(2026, 1, 1, tzinfo=timezone.utc), "worker")
    orders.send("a")
    [message] = orders.receive(visibility_timeout=60)
    here = harness.open().queue("orders")._runtime
    exchange(here, [(message.receipt_handle, 0)], failures={message.receipt_handle: reason})
    assert bodies(harness.open().queue("orders")) == []
    [letter] = harness.open().queue("dead").peek("dead_letter_reason->>'$.error' = 'E'")
    assert letter.body == "a" and letter.receive_count == 1


@long_on_s3
@pytest.mark.spec("DLQ-8")
def test_a_redrive_whose_condition_fails_on_the_way_says_how_far_it_came(harness: Harness, monkeypatch):
    monkeypatch.setattr(browse, "ROWS", 3)
    create(harness, "dead", "orders")
    fail(harness, "orders", "1", "2", "3", "4", "five", SLOW_BODY)
    assert bodies(harness.queue()) == []
    dead = harness.queue("dead")
    with pytest.raises(
        InvalidParameterValue, match=r"Could not convert string 'five'.* Messages moved before: 2\.$"
    ):
        dead.redrive(where="body::INT < 3")
    assert sorted(stored(harness, "orders")) == ["1", "2"]
    monkeypatch.setattr(sandbox, "SECONDS", 1.0)
    with pytest.raises(
        InvalidParameterValue, match=r"too slow: .*evaluated before: 3. Messages moved before: 1\.$"
    ):
        dead.redrive(where=f"body = '3' OR {SLOW}")
    assert sorted(stored(harness, "orders")) == ["1", "2", "3"]
    assert stored(harness, "dead") == ["4", "five", SLOW_BODY]


@pytest.mark.spec("DLQ-8")
def test_a_redrive_takes_all_to_a_queue_that_is_named(harness: Harness):
    create(harness, "dead", "orders")
    fail(harness, "orders", "a", "b")
    point = harness.open(engine="point")
    assert bodies(point.queue("orders")) == []
    point.queue("dead").send("sent here")
    point.create_queue("aside")
    point.create_queue("aside.fifo", fifo=True)
    here, open_ = harness.queue("dead"), harness.open()
    for refused in ("dead", "aside.fifo"):
        with pytest.raises(InvalidParameterValue, match="destination"):
            here.redrive(destination=open_.queue(refused))
    assert here.redrive(2, destination=open_.queue("aside")) == 2
    assert here.redrive(destination=open_.queue("aside")) == 1
    assert (stored(harness, "dead"), stored(harness, "orders")) == ([], [])
    assert sorted(stored(harness, "aside")) == ["a", "b", "sent here"]


@pytest.mark.spec("DLQ-8")
def test_a_redrive_refuses_a_queue_of_a_copy_and_a_deleted_queue(lq: LakeQueue, tmp_path: Path):
    """A copy has queues with the same keys. The messages would go to the queue in the source's root."""
    queue, aside, gone = map(lq.create_queue, ("orders", "aside", "gone"))
    queue.send("a")
    copy = LakeQueue(str(tmp_path / "copy"), clock=lq.clock)
    lq.copy(copy)
    lq.delete_queue("gone")
    for verb in queue.redrive, queue.redrivable:
        with pytest.raises(InvalidParameterValue, match="Must be in"):
            verb(destination=copy.queue("aside"))
        with pytest.raises(QueueDoesNotExist, match="gone was deleted"):
            verb(destination=gone)
        with pytest.raises(InvalidParameterValue, match="destination"):
            verb(destination=queue)
    assert queue.counts().visible == 1 and queue.redrive(destination=aside) == 1


@pytest.mark.spec("DLQ-8", "DLQ-10", "FIF-1")
def test_groups_keep_their_order_between_fifo_queues_of_several_shards(harness: Harness):
    create(harness, "dead.fifo", shards=2, deduplication_scope="message_group")
    point, policy = harness.open(engine="point"), RedrivePolicy("dead.fifo", 1)
    scope = {"fifo": True, "shards": 3, "deduplication_scope": "message_group"}
    queue = point.create_queue("orders.fifo", redrive_policy=policy, **scope)
    names = [f"{group}{number}" for number in (1, 2) for group in "ABCD"]
    queue.send_batch([SendEntry(name, group_id=name[0], dedup_id=name) for name in names])
    assert sorted(bodies(queue)) == sorted(names)
    assert bodies(queue) == []
    assert harness.queue("dead.fifo").redrive() == 8
    assert stored(harness, "dead.fifo") == []
    back = bodies(harness.open(engine="point").queue("orders.fifo"))
    assert [[name for name in back if name[0] == group] for group in "ABCD"] == [
        [f"{group}1", f"{group}2"] for group in "ABCD"
    ]


@every_engine
@pytest.mark.spec("DLQ-2", "DLQ-8")
def test_one_engine_ends_what_the_other_began(harness: Harness):
    create(harness, "dead", "orders")
    fail(harness, "orders", "a", "b")
    with cut_short(landed=False):
        harness.open(engine="point").queue("orders").receive()
    here = harness.open()
    assert bodies(here.queue("orders")) == []
    assert (stored(harness, "orders"), stored(harness, "dead")) == ([], ["a", "b"])
    with cut_short(landed=True):
        here.queue("dead").redrive()
    assert harness.open(engine="point").queue("dead").redrive() == 0
    assert (stored(harness, "orders"), stored(harness, "dead")) == (["a", "b"], [])
