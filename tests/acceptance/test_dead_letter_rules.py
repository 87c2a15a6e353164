"""Dead letters and redrives as their users see them; the point engine and a manual clock, no JVM."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pyarrow.dataset as ds
import pytest

from conformance.harness import Call
from lakequeue import LakeQueue, Queue, RedriveAllowPolicy, RedrivePolicy, errors
from lakequeue.model.redrive_policies import arn
from lakequeue.operations import browse

HOUR = 3_600
DAY = 86_400


def pair(lq: LakeQueue, most: int = 1, fifo: bool = False, **attributes: Any) -> tuple[Queue, Queue]:
    """A queue and its dead-letter queue."""
    end = ".fifo" if fifo else ""
    dead = lq.create_queue(f"dead{end}", fifo=fifo)
    return lq.create_queue(
        f"orders{end}", fifo=fifo, redrive_policy=RedrivePolicy(dead.name, most), **attributes
    ), dead


def fail(queue: Queue, *bodies: str, times: int = 1) -> None:
    """Sends messages, and receives each so often."""
    for body in bodies:
        group = {"group_id": body[0], "dedup_id": body} if queue.fifo else {}
        queue.send(body, **group)
    for _ in range(times):
        received(queue)


def received(queue: Queue, count: int = 1_000) -> list[str]:
    return [message.body for message in queue.receive(count, visibility_timeout=0, wait_time=0)]


def stored(queue: Queue) -> list[str]:
    return [message.body for message in queue.peek(limit=1_000)]


# --- meeting the maximum


@pytest.mark.spec("DLQ-2", "DLQ-1", "VIS-14", "RCV-2")
def test_the_receive_that_would_exceed_the_maximum_moves_the_message_and_returns_others(lq):
    queue, dead = pair(lq, most=2)
    fail(queue, "a", times=2)
    queue.send("b")
    assert received(queue, 1) == ["b"]
    assert (stored(queue), stored(dead)) == (["b"], ["a"])
    assert received(queue, 10) == ["b"]
    assert received(queue, 10) == []
    assert (stored(queue), stored(dead)) == ([], ["a", "b"])


@pytest.mark.spec("DLQ-2")
def test_a_receive_that_meets_one_takes_along_those_that_are_due(lq, monkeypatch):
    monkeypatch.setattr("lakequeue.shard.claim.standard.MOVED_AT_ONCE", 4)
    monkeypatch.setattr("lakequeue.shard.move.MOVED_AT_ONCE", 4)
    queue, dead = pair(lq)
    fail(queue, *"abcdefghij")
    queue.send("k")
    assert received(queue, 1) == ["k"]
    assert (stored(queue), stored(dead)) == (["k"], list("abcdefghij"))


@pytest.mark.spec("DLQ-2", "DLQ-9")
def test_a_change_of_policy_holds_for_what_was_received_before(lq):
    queue, dead = pair(lq, most=1)
    other = lq.create_queue("other")
    fail(queue, "a")
    queue.set_attributes(redrive_policy="")
    assert queue.attributes(wire=True).get("RedrivePolicy") is None
    assert queue.dead_letter_queue is None and dead.dead_letter_sources() == []
    assert [received(queue) for _ in range(3)] == [["a"]] * 3
    queue.set_attributes(RedrivePolicy=json.dumps({"deadLetterTargetArn": other.arn, "maxReceiveCount": 5}))
    assert received(queue) == ["a"]
    assert received(queue) == []
    assert (stored(dead), [m.receive_count for m in other.receive()]) == ([], [6])


@pytest.mark.spec("DLQ-2", "LPL-1")
def test_a_long_poll_that_meets_a_dead_letter_goes_on_waiting(lq, clock):
    queue, dead = pair(lq)
    queue.send("a")
    queue.receive(visibility_timeout=5)
    began = clock.now()
    call = Call(clock, lambda: queue.receive(10, wait_time=20)).after(7)
    queue.send("b")
    assert [message.body for message in call.join()] == ["b"]
    assert call.ended_at == began + timedelta(seconds=7)
    assert stored(dead) == ["a"]


@pytest.mark.spec("DLQ-2", "LPL-2")
def test_who_waits_at_the_dead_letter_queue_is_woken_by_a_move(lq, clock):
    queue, dead = pair(lq)
    fail(queue, "a")
    began = clock.now()
    call = Call(clock, lambda: dead.receive(wait_time=20)).after(7)
    assert received(queue) == []
    assert [message.body for message in call.join()] == ["a"]
    assert call.ended_at == began + timedelta(seconds=7)


@pytest.mark.spec("DLQ-10", "DLQ-11", "FIF-4")
def test_on_fifo_queues_what_follows_is_delivered_in_the_same_call(lq):
    queue, dead = pair(lq, fifo=True)
    fail(queue, "A1")
    for body in ("A2", "A3", "B1"):
        queue.send(body, group_id=body[0], dedup_id=body)
    messages = queue.receive(1)
    messages += queue.receive(10)
    assert sorted(message.body for message in messages) == ["A2", "B1"]
    [letter] = dead.receive()
    assert (letter.body, letter.group_id, letter.dedup_id, letter.receive_count) == ("A1", "A", "A1", 2)


@pytest.mark.spec("DLQ-4")
def test_a_moved_message_keeps_what_it_is_and_old_handles_are_old(lq, clock):
    queue, dead = pair(lq)
    attributes = {"colour": "blue", "price": 12.5, "raw": b"\x00"}
    trace = {"AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793"}
    sent = queue.send("a", attributes=attributes, group_id="tag", system_attributes=trace)
    [before] = queue.receive(visibility_timeout=5)
    clock.advance(10)
    assert received(queue) == []
    queue.delete(before.receipt_handle)
    assert stored(dead) == ["a"]
    [letter] = dead.receive(visibility_timeout=0)
    assert (letter.message_id, letter.body, letter.group_id) == (sent.message_id, "a", "tag")
    assert letter.message_attributes == before.message_attributes
    assert (before.receive_count, letter.receive_count) == (1, 2)
    assert letter.system_attributes == trace | {"DeadLetterQueueSourceArn": queue.arn}
    assert letter.sent_at == before.sent_at
    assert letter.first_received_at == before.first_received_at
    assert dead.receive()[0].receive_count == 3
    assert before.system_attributes == trace


@pytest.mark.spec("DLQ-2", "DLQ-4")
def test_a_dead_letter_queue_may_have_one_itself(lq):
    queue, dead = pair(lq, most=2)
    last = lq.create_queue("last")
    dead.set_attributes(redrive_policy=RedrivePolicy("last", 3))
    fail(queue, "a", times=2)
    assert received(queue) == []
    assert [received(dead) for _ in range(4)] == [["a"]] * 3 + [[]]
    [letter] = last.receive(visibility_timeout=0)
    assert (letter.receive_count, letter.system_attributes["DeadLetterQueueSourceArn"]) == (6, dead.arn)
    assert last.redrive() == 1
    assert [dead.receive(visibility_timeout=0)[0].receive_count for _ in range(3)] == [1, 2, 3]
    assert received(dead) == []


@pytest.mark.spec("DLQ-13", "DLQ-4")
@pytest.mark.parametrize("fifo", [False, True])
def test_each_queue_of_a_chain_delivers_as_often_as_its_own_policy_says(lq, clock, fifo):
    end = ".fifo" if fifo else ""
    parked = lq.create_queue(f"parked{end}", fifo=fifo)
    retry = lq.create_queue(f"retry{end}", fifo=fifo, dead_letter_queue=parked.name, max_receive_count=1)
    main = lq.create_queue(f"main{end}", fifo=fifo, dead_letter_queue=retry.name, max_receive_count=1)
    fail(main, "a")
    counts = []
    for queue, following in ((main, retry), (retry, parked)):
        assert received(queue) == []
        [letter] = following.receive(visibility_timeout=1)
        counts.append((letter.receive_count, letter.last_receive))
        clock.advance(1)
    assert counts == [(2, True), (3, False)]
    assert (stored(main), stored(retry), stored(parked)) == ([], [], ["a"])


@pytest.mark.spec("DLQ-4", "RET-7")
@pytest.mark.parametrize("fifo", [False, True])
def test_a_dead_letter_was_sent_when_it_was_first_sent_and_has_a_time_of_its_move(lq, clock, fifo):
    queue, dead = pair(lq, fifo=fifo)
    began = clock.now()
    queue.send("a", **({"group_id": "g", "dedup_id": "a"} if fifo else {}))
    dead.send("own", **({"group_id": "h", "dedup_id": "own"} if fifo else {}))
    received(queue)
    clock.advance(60)
    assert received(queue) == []
    moved = clock.now()
    clock.advance(5)
    sent = moved if fifo else began  # as on SQS, whose FIFO queues reset it
    own, letter = dead.peek()
    assert (own.sent_at, own.moved_at) == (began, None)
    assert (letter.sent_at, letter.moved_at) == (sent, moved)
    assert dead.peek("moved_at IS NOT NULL AND age > 3") == [letter]
    assert [each.body for each in dead.peek(f"sent_at = TIMESTAMPTZ '{began.isoformat()}'")] == ["own", "a"][
        : 2 - fifo
    ]
    chosen = (ds.field("queue") == dead.name) & (ds.field("sent_at") <= sent) & (ds.field("body") == "a")
    [row] = lq.arrow_views()["messages"].to_table(filter=chosen).to_pylist()
    assert (row["sent_at"], row["moved_at"]) == (sent, moved)
    dead.delete(dead.receive()[0])
    assert dead.counts().oldest_age == (clock.now() - sent).total_seconds()
    [again] = dead.receive()
    assert (again.sent_at, again.moved_at) == (sent, moved)
    assert again.attributes["SentTimestamp"] == str(int(sent.timestamp() * 1_000))


# --- what may be a dead-letter queue


@pytest.mark.spec("DLQ-2", "DLQ-3", "DLQ-6", "ERR-8")
def test_a_policy_that_is_refused_changes_nothing(lq):
    queue, _ = pair(lq)
    lq.create_queue("log.fifo", fifo=True)
    lq.create_queue("closed", redrive_allow_policy=RedriveAllowPolicy("denyAll"))
    lq.create_queue("chosen", redrive_allow_policy=RedriveAllowPolicy("byQueue", ["else"]))
    far = LakeQueue(lq.root, clock=lq.clock, region="far").create_queue("there")
    before = queue.attributes(wire=True)
    for name, error, reason in (
        ("missing", errors.QueueDoesNotExist, "dead-letter queue missing"),
        ("log.fifo", errors.InvalidParameterValue, "must be a standard queue"),
        ("closed", errors.InvalidParameterValue, "closed does not allow it"),
        ("chosen", errors.InvalidParameterValue, "chosen does not allow it"),
        (far.arn, errors.InvalidParameterValue, "same region"),
        ("arn:aws:s3:::bucket", errors.InvalidParameterValue, "same region"),
    ):
        with pytest.raises(error, match=reason):
            queue.set_attributes(redrive_policy=RedrivePolicy(name, 5), delay=5)
        with pytest.raises(error, match=reason):
            lq.create_queue("new", redrive_policy=RedrivePolicy(name, 5))
    with pytest.raises(errors.InvalidParameterValue, match="must be a FIFO queue"):
        lq.create_queue("new.fifo", fifo=True, redrive_policy=RedrivePolicy("dead", 5))
    assert queue.attributes(wire=True) == before
    assert [found.name for found in lq.list_queues("new")] == []


@pytest.mark.spec("DLQ-3")
@pytest.mark.parametrize("fifo", [False, True])
def test_a_queue_cannot_become_its_own_dead_letter_queue_and_one_that_is_keeps_its_messages(lq, monkeypatch, fifo):
    queue = lq.create_queue("orders.fifo" if fifo else "orders", fifo=fifo)
    with pytest.raises(errors.InvalidParameterValue, match="dead_letter_queue must name another queue"):
        queue.set_attributes(dead_letter_queue=queue.name, max_receive_count=1)
    assert queue.dead_letter_queue is None
    with monkeypatch.context() as older:
        older.setattr("lakequeue.operations.attributes.check_redrive", lambda *_: None)
        queue.set_attributes(dead_letter_queue=queue.name, max_receive_count=1)
    queue.set_attributes(delay=0)
    queue.send("a", **({"group_id": "g", "dedup_id": "d"} if fifo else {}))
    assert [received(queue) for _ in range(3)] == [["a"]] * 3
    assert queue.redrive() == 0


@pytest.mark.spec("DLQ-6")
def test_a_queue_says_who_may_send_its_dead_letters_there(lq):
    names = [f"source{number}" for number in range(10)]
    dead = lq.create_queue("dead", redrive_allow_policy=RedriveAllowPolicy("byQueue", names))
    policy = {"redrivePermission": "byQueue", "sourceQueueArns": [arn("local", name) for name in names]}
    assert json.loads(dead.attributes(wire=True)["RedriveAllowPolicy"]) == policy
    source = lq.create_queue("source9", redrive_policy=RedrivePolicy("dead", 1))

    fail(source, "a")
    dead.set_attributes(redrive_allow_policy=RedriveAllowPolicy("denyAll"))  # judged when a policy is set
    assert received(source) == [] and stored(dead) == ["a"]
    source.set_attributes(delay=0)
    with pytest.raises(errors.InvalidParameterValue, match="does not allow"):
        source.set_attributes(redrive_policy=RedrivePolicy("dead", 2))
    dead.set_attributes(RedriveAllowPolicy=json.dumps({"redrivePermission": "allowAll"}))
    source.set_attributes(redrive_policy=RedrivePolicy("dead", 2))
    dead.set_attributes(redrive_allow_policy="")
    assert "RedriveAllowPolicy" not in dead.attributes(wire=True)
    lq.create_queue("anybody", redrive_policy=RedrivePolicy("dead", 2))


@pytest.mark.spec("DLQ-7", "DLQ-9")
def test_a_queue_knows_whose_dead_letters_it_takes(lq):
    dead = lq.create_queue("dead")
    far = LakeQueue(lq.root, clock=lq.clock, region="far")
    far.create_queue("dead")
    far.create_queue("elsewhere", redrive_policy=RedrivePolicy("dead", 1))
    queues = [lq.create_queue(name, redrive_policy=RedrivePolicy("dead", 1)) for name in ("c", "a", "b")]
    lq.create_queue("other")
    assert [source.name for source in dead.dead_letter_sources()] == ["a", "b", "c"]
    assert {queue.dead_letter_queue for queue in queues} == {dead.arn}
    queues[0].set_attributes(redrive_policy=None)
    lq.delete_queue("a")
    assert [source.name for source in dead.dead_letter_sources()] == ["b"]
    assert queues[2].dead_letter_sources() == []


@pytest.mark.spec("DLQ-2", "QUE-23", "QUE-15")
def test_a_policy_reads_as_json_and_compares_however_it_was_given(lq):
    queue, dead = pair(lq, most=5)
    wire = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5}
    assert json.loads(queue.attributes(["RedrivePolicy"], wire=True)["RedrivePolicy"]) == wire
    for given in (
        {"redrive_policy": RedrivePolicy("dead", 5)},
        {"redrive_policy": RedrivePolicy(dead.arn, 5)},
        {"redrive_policy": wire},
        {"RedrivePolicy": json.dumps({"maxReceiveCount": 5, "deadLetterTargetArn": "dead"})},
        {},
    ):
        assert lq.create_queue("orders", **given).key == queue.key
    lq.create_queue("other")
    for given in (
        {"redrive_policy": RedrivePolicy("dead", 4)},
        {"redrive_policy": RedrivePolicy("other", 5)},
        {"RedrivePolicy": ""},
    ):
        with pytest.raises(errors.QueueNameExists, match="redrive_policy"):
            lq.create_queue("orders", **given)
    lq.delete_queue("dead")  # the policy is not set anew, so nothing is judged
    assert lq.create_queue("orders", redrive_policy=RedrivePolicy("dead", 5)).key == queue.key


# --- retention


@pytest.mark.spec("RET-7", "DLQ-5", "RET-1")
@pytest.mark.parametrize(("fifo", "days"), [(False, 3), (True, 4)])
def test_how_long_a_dead_letter_stays(lq, clock, fifo, days):
    queue, dead = pair(lq, fifo=fifo)
    dead.set_attributes(message_retention_period=4 * DAY)
    fail(queue, "a")
    clock.advance(DAY)
    assert received(queue) == []
    clock.advance(days * DAY - 0.000_001)
    assert stored(dead) == ["a"] and dead.counts().visible == 1
    clock.advance(0.000_001)
    assert stored(dead) == [] and dead.counts().visible == 0
    assert dead.receive() == []


@pytest.mark.spec("RET-7")
def test_a_letter_that_is_older_than_the_other_queue_keeps_anything_is_gone_with_its_move(lq, clock):
    queue, dead = pair(lq)
    dead.set_attributes(message_retention_period=HOUR)
    dead.send("young")
    fail(queue, "a")
    clock.advance(HOUR - 1)
    fail(queue, "b")
    clock.advance(1)
    dead.set_attributes(message_retention_period=HOUR)
    assert received(queue) == []
    assert stored(dead) == ["b"]
    dead.send("next")
    clock.advance(HOUR - 1)
    assert stored(dead) == ["next"]


@pytest.mark.spec("RET-7", "DLQ-8")
def test_what_goes_back_lives_its_whole_retention_again(lq, clock):
    queue, dead = pair(lq, message_retention_period=HOUR)
    fail(queue, "a")
    clock.advance(HOUR - 1)
    assert received(queue) == []
    assert dead.redrive() == 1
    clock.advance(HOUR - 0.000_001)
    [message] = queue.receive()
    assert (message.receive_count, message.sent_at) == (1, clock.now() - timedelta(hours=1, microseconds=-1))
    clock.advance(0.000_001)
    assert stored(queue) == []


# --- redrive


@pytest.mark.spec("DLQ-8")
def test_a_redrive_moves_all_or_the_oldest_or_what_is_chosen(lq):
    queue, dead = pair(lq)
    for body in "abcdef":
        queue.send(body, attributes={"code": ord(body)})
    received(queue)
    assert received(queue) == []
    told: list[int] = []
    assert dead.redrive(max_messages=2, progress=told.append) == 2
    assert (stored(queue), stored(dead)) == (list("ab"), list("cdef"))
    assert told == [2]
    chosen = "message_attributes['code']::INT IN (ascii('d'), ascii('f')) AND source_queue = 'orders'"
    assert dead.redrive(where=chosen, max_messages=1) == 1
    assert dead.redrive(where="body = 'x'") == 0
    assert dead.redrive(where=chosen) == 1
    assert (stored(queue), stored(dead)) == (list("abdf"), list("ce"))
    assert dead.redrive() == 2
    assert dead.redrive() == 0
    messages = queue.receive(10)
    assert [message.body for message in messages] == list("abdfce")
    assert {message.receive_count for message in messages} == {1}
    assert not any(message.system_attributes for message in messages)


@pytest.mark.spec("DLQ-8")
def test_a_redrive_leaves_what_has_no_home_and_what_is_not_visible(lq, clock, monkeypatch):
    monkeypatch.setattr(browse, "ROWS", 3)  # several batches
    queue, dead = pair(lq)
    gone = lq.create_queue("gone", redrive_policy=RedrivePolicy("dead", 1))
    again = lq.create_queue("again", redrive_policy=RedrivePolicy("dead", 1))
    dead.send("direct")
    for source, letters in ((queue, "abc"), (gone, "gh"), (again, "rs"), (queue, "de")):
        fail(source, *letters)
        assert received(source) == []
    dead.send("late", delay=50)
    [held] = dead.receive(visibility_timeout=60)
    assert held.body == "direct"
    dead.change_visibility(held.receipt_handle, 0)
    assert dead.peek("body = 'a'")[0].source_queue == "orders"
    [kept] = [m for m in dead.receive(2, visibility_timeout=60) if m.body == "a"]
    lq.delete_queue("gone")
    lq.delete_queue("again")
    again = lq.create_queue("again")
    assert dead.redrive() == 6
    assert (stored(queue), stored(again)) == (list("bcde"), list("rs"))
    assert sorted(stored(dead)) == ["a", "direct", "g", "h", "late"]
    dead.change_visibility(kept.receipt_handle, 0)
    clock.advance(60)
    assert dead.redrive() == 1
    assert stored(queue) == list("bcdea")


@pytest.mark.spec("DLQ-8")
def test_only_dead_letters_go_back(lq):
    queue, dead = pair(lq)
    fail(queue, "a")
    received(queue)
    assert dead.redrive() == 1
    assert dead.redrive() == 0
    for verb in (queue.redrive, queue.redrivable):
        with pytest.raises(
            errors.UnsupportedOperation, match="is no dead-letter queue: no redrive policy names it"
        ):
            verb()
    assert (stored(queue), stored(dead)) == (["a"], [])


# --- deduplication


@pytest.mark.spec("DDP-16")
def test_a_move_asks_no_deduplication_window_and_leaves_no_trace_in_one(lq):
    queue, dead = pair(lq, fifo=True)
    dead.send("the same id", group_id="A", dedup_id="A1")
    fail(queue, "A1")
    assert received(queue) == []
    assert stored(dead) == ["the same id", "A1"]
    again = dead.send("a duplicate of what was sent", group_id="A", dedup_id="A1")
    assert again.message_id == dead.peek()[0].message_id

    fail(queue, "B1")
    assert received(queue) == []
    new = dead.send("no duplicate of what was moved", group_id="B", dedup_id="B1")
    assert stored(dead)[-1] == "no duplicate of what was moved"
    assert dead.peek(limit=10)[-1].message_id == new.message_id

    first = queue.send("a duplicate at home still", group_id="A", dedup_id="A1")
    assert first.message_id == dead.peek("body = 'A1'")[0].message_id
    assert dead.redrive() == 2
    assert stored(queue) == ["A1", "B1"]
    assert queue.send("a duplicate still", group_id="B", dedup_id="B1").message_id != new.message_id
    assert stored(queue) == ["A1", "B1"]


# --- beside other features


@pytest.mark.spec("DLQ-2", "RWD-4", "RWD-20")
def test_what_moved_is_not_history_and_what_was_deleted_there_is(lq, clock):
    queue, dead = pair(lq, rewind_range=HOUR)
    dead.set_attributes(rewind_range=HOUR)
    begun = clock.now()
    fail(queue, "a", "b")
    queue.delete(queue_handle(queue, "b"))
    clock.advance(10)
    assert received(queue) == []
    assert queue.counts().rewindable == 1
    assert queue.rewind(begun) == 1
    assert stored(queue) == ["b"]

    [letter] = dead.receive()
    dead.delete(letter.receipt_handle)
    assert dead.rewind(begun) == 1
    [again] = dead.receive(visibility_timeout=0)
    assert (again.body, again.receive_count, again.sent_at) == ("a", 1, begun)
    assert dead.redrive() == 1
    assert dead.counts().rewindable == 0
    assert dead.rewind(begun) == 0


def queue_handle(queue: Queue, body: str) -> str:
    """A handle of a visible message, which the other ones are given back for."""
    queue.set_attributes(redrive_policy="")
    try:
        messages = {message.body: message.receipt_handle for message in queue.receive(10)}
        queue.change_visibility_batch([(handle, 0) for name, handle in messages.items() if name != body])
        return messages[body]
    finally:
        queue.set_attributes(redrive_policy=RedrivePolicy("dead", 1))


# --- dead-letter queues that go and come


@pytest.mark.spec("DLQ-2", "QUE-13")
def test_without_its_dead_letter_queue_a_queue_delivers_on(lq):
    queue, _ = pair(lq)
    kept = lq.queue("orders")
    fail(queue, "a")
    received(queue)  # now it knows the queue
    fail(queue, "b")
    lq.delete_queue("dead")
    assert [received(queue) for _ in range(2)] == [["b"]] * 2
    assert received(kept) == ["b"]
    again = lq.create_queue("dead")
    assert (received(queue), received(kept)) == ([], [])
    assert stored(again) == ["b"]
    assert [message.receive_count for message in again.receive()] == [5]


@pytest.mark.spec("DLQ-2", "QUE-13")
def test_a_deletion_that_was_cut_short_does_not_hold_up_the_source(lq, monkeypatch):
    queue, _ = pair(lq)
    fail(queue, "a")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(lq._runtime, "update", killed)  # its log is closed, the catalog does not know
        lq.delete_queue("dead")
    assert received(queue) == ["a"]
    assert [found.name for found in lq.list_queues()] == ["orders"]
