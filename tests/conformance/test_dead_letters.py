"""Dead letters and redrives through the tables of both engines, and from one engine to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from conformance.harness import Harness, every_engine, long_on_s3
from hostile import SLOW, SLOW_BODY
from lakequeue import InvalidParameterValue, Queue, RedrivePolicy, SendEntry
from lakequeue.conditions import sandbox
from lakequeue.operations import browse, move
from lakequeue.operations.exchange import exchange
from lakequeue.storage.messages import append, merge_segments
from lakequeue.testing import ManualClock

HOUR = 3_600
DAY = 86_400


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
def cut_short(patch: pytest.MonkeyPatch, before: str) -> Iterator[None]:
    """Makes a process end during a move, before the append or before the removal."""
    bring = move._bring

    def die(*arguments) -> bool:
        if before == "removal":
            bring(*arguments)
        raise KeyboardInterrupt

    with patch.context() as scope, pytest.raises(KeyboardInterrupt):
        scope.setattr(move, "_bring", die)
        yield


@every_engine
@pytest.mark.spec("DLQ-4")
def test_the_reason_of_a_dead_letter_goes_through_both_engines(harness: Harness):
    """Recorded and moved through one, read through the other."""
    create(harness, "dead", "orders")
    orders, reason = harness.open(engine="point").queue("orders"), '{"error": "E"}'
    orders.send("a")
    [message] = orders.receive(visibility_timeout=60)
    here = harness.open().queue("orders")._runtime
    exchange(here, [(message.receipt_handle, 0)], failures={message.receipt_handle: reason})
    assert bodies(harness.open().queue("orders")) == []
    [letter] = harness.open().queue("dead").peek("dead_letter_reason->>'$.error' = 'E'")
    assert letter.body == "a" and letter.receive_count == 1


@pytest.mark.spec("DLQ-2", "DLQ-4")
def test_the_receive_that_would_exceed_the_maximum_moves_the_message(harness: Harness, clock: ManualClock):
    create(harness, "dead")
    point = harness.open(engine="point")
    queue = point.create_queue("orders", redrive_policy=RedrivePolicy("dead", 2))
    trace = {"AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793"}
    sent = queue.send("a", attributes={"key": b"\x00\xff", "price": 12.5}, system_attributes=trace)
    counts = [queue.receive(visibility_timeout=0)[0].receive_count for _ in range(2)]
    clock.advance(60)
    here = harness.open()
    assert (counts, here.queue("orders").receive(10)) == ([1, 2], [])
    [letter] = here.queue("dead").receive(visibility_timeout=0)
    assert (letter.message_id, letter.body, letter.receive_count) == (sent.message_id, "a", 3)
    assert letter.message_attributes["key"].value == b"\x00\xff"
    assert letter.message_attributes["price"].value == "12.5"
    assert letter.system_attributes == trace | {"DeadLetterQueueSourceArn": queue.arn}
    assert letter.sent_at == clock.now() - timedelta(seconds=60)
    [again] = harness.open(engine="point").queue("dead").receive()
    assert (again.receive_count, stored(harness, "orders")) == (4, [])


@pytest.mark.spec("DLQ-10", "DDP-16")
def test_a_fifo_queue_serves_the_group_on_and_asks_no_deduplication_window(harness: Harness, clock: ManualClock):
    create(harness, "dead.fifo", "orders.fifo")
    dead = harness.open(engine="point").queue("dead.fifo")
    own = dead.send("own", group_id="A", dedup_id="A1")
    fail(harness, "orders.fifo", "A1", "A2")
    here = harness.open()
    assert bodies(here.queue("orders.fifo"), 1) == ["A2"]
    assert stored(harness, "dead.fifo") == ["own", "A1"]
    assert here.queue("dead.fifo").send("as own", group_id="A", dedup_id="A1").message_id == own.message_id
    assert bodies(harness.open(engine="point").queue("orders.fifo")) == []
    here.queue("dead.fifo").send("not as what was moved", group_id="A", dedup_id="A2")
    assert stored(harness, "dead.fifo") == ["own", "A1", "A2", "not as what was moved"]


@pytest.mark.spec("DLQ-8")
def test_letters_of_several_queues_go_home_all_or_those_that_are_chosen(harness: Harness):
    create(harness, "dead", "orders", "bills", shards=2)
    fail(harness, "orders", "a", "b", "c")
    fail(harness, "bills", "x", "y")
    point = harness.open(engine="point")
    for name in ("orders", "bills"):
        assert bodies(point.queue(name)) == []
    point.queue("dead").send("sent here")
    here = harness.queue("dead")
    assert here.redrive(where="source_queue = 'orders' AND body > 'a'") == 2
    assert (sorted(stored(harness, "orders")), stored(harness, "bills")) == (["b", "c"], [])
    assert here.redrive(max_messages=3) == 3
    point = harness.open(engine="point")
    assert sorted(bodies(point.queue("orders"))) == ["a", "b", "c"]
    assert [message.receive_count for message in point.queue("bills").receive(10)] == [1, 1]
    assert stored(harness, "dead") == ["sent here"]


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
    with pytest.raises(InvalidParameterValue, match=r"too slow: .*judged before: 3. Messages moved before: 1\.$"):
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
def test_one_engine_ends_what_the_other_began(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    create(harness, "dead", "orders")
    fail(harness, "orders", "a", "b")
    with cut_short(monkeypatch, "append"):
        harness.open(engine="point").queue("orders").receive()
    here = harness.open()
    assert bodies(here.queue("orders")) == []
    assert (stored(harness, "orders"), stored(harness, "dead")) == ([], ["a", "b"])
    with cut_short(monkeypatch, "removal"):
        here.queue("dead").redrive()
    assert harness.open(engine="point").queue("dead").redrive() == 0
    assert (stored(harness, "orders"), stored(harness, "dead")) == (["a", "b"], [])


@long_on_s3
@pytest.mark.spec("DLQ-2", "DLQ-8", "RET-9", "DLT-6")
def test_the_compactor_passes_between_all_the_steps(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 2)
    create(harness, "dead", "orders", rewind_range=HOUR)
    begun = clock.now()
    fail(harness, "orders", "a", "b")

    def compact() -> None:
        assert [summary.failures for summary in harness.open().compact()] == [[]] * 3

    for before in ("append", "removal"):
        with cut_short(monkeypatch, before):
            harness.open(engine="point").queue("orders").receive()
        compact()
        assert (stored(harness, "orders"), stored(harness, "dead")) == ([], ["a", "b"])
        with cut_short(monkeypatch, before):
            harness.open(engine="point").queue("dead").redrive()
        compact()
        assert (stored(harness, "orders"), stored(harness, "dead")) == (["a", "b"], [])
        assert bodies(harness.open(engine="point").queue("orders")) == ["a", "b"]
    assert harness.queue().counts().rewindable == harness.queue("dead").counts().rewindable == 0
    assert harness.open(engine="point").queue("orders").rewind(begun) == 0


@pytest.mark.spec("DLQ-2", "QUE-13")
def test_letters_come_back_from_a_queue_that_was_deleted(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    create(harness, "dead", "orders")
    fail(harness, "orders", "a")
    with cut_short(monkeypatch, "append"):
        harness.open(engine="point").queue("orders").receive()
    harness.open(engine="point").delete_queue("dead")
    kept = harness.queue()
    assert bodies(kept) == ["a"]
    create(harness, "dead")
    assert bodies(kept) == []  # it knew the key of the other one
    assert stored(harness, "dead") == ["a"]
