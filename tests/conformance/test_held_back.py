"""What holds messages back in every process: rate limits, whose bucket lies in the ledger, pauses, caps."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from concurrency.harness import keep_to
from conformance.fifo import FifoHarness, bodies, send
from conformance.harness import Call, Harness, every_engine, long_on_s3
from insides import reopen
from lakequeue import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    LakeQueue,
    QueueClientError,
    RequestThrottled,
    SendEntry,
)
from lakequeue.entry_verbs import FreeHands, Request, exchange, settings
from lakequeue.model.names import shard_of_group
from lakequeue.operations.tokens import Tokens
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard.commands import Claim


def fill(queue, count: int, group: str | None = None) -> None:
    queue.send_batch(
        [SendEntry(str(n), group_id=group and f"{group}{n}", dedup_id=group and str(n)) for n in range(count)]
    )


@every_engine
@pytest.mark.spec("JOB-11")
def test_all_processes_share_a_bucket(harness: Harness, clock):
    queue = harness.create(rate_limit="5/s", rate_burst=3)
    fill(queue, 20)
    assert len(queue.receive(10)) == 3
    assert harness.queue().receive(10) == [] and queue.receive(10) == []
    clock.advance(0.199)
    assert harness.queue().receive(10) == []
    clock.advance(0.001)
    assert len(harness.queue().receive(10)) == 1
    clock.advance(0.5)
    assert len(queue.receive(10)) == 2 and harness.queue().receive(10) == []
    clock.advance(0.1)  # two and a half and a half
    assert len(harness.queue().receive(10)) == 1
    clock.advance(100)
    assert len(harness.queue().receive(10)) == 3, "no more than the bucket holds, however long nobody received"
    assert harness.queue().counts().visible == 20 - 3 + 3 - 3, "visibility timeouts ended"


@pytest.mark.spec("JOB-11")
def test_the_bucket_outlasts_rewrites_of_the_ledger_and_what_does_not_receive(harness: Harness, clock):
    queue = harness.create(rate_limit="1/m")
    fill(queue, 10)
    (message,) = queue.receive(10)
    queue.compact()
    message.change_visibility(0)
    queue.compact()
    clock.advance(59)
    assert harness.queue().receive() == [] and harness.queue().lease() is None
    clock.advance(1)
    assert len(harness.queue().lease().arrow()) == 1
    assert harness.queue().receive() == []


@pytest.mark.spec("JOB-11", "DUR-31")
def test_a_ledger_that_goes_back_begins_with_an_empty_bucket(tmp_path: Path, clock):
    lq = LakeQueue(str(tmp_path), clock=clock)
    queue = lq.create_queue("orders", rate_limit="6/m", rate_burst=2)
    fill(queue, 10)
    assert len(queue.receive(10)) == 2
    newest = max((tmp_path / "q").glob("*/0/receipts/**/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    assert reopen(lq).repair(apply=True, force=True)[0].applied
    queue = reopen(lq).queue("orders")
    assert queue.counts().visible == 10 and queue.receive(10) == []
    clock.advance(10)
    assert len(queue.receive(10)) == 1


@pytest.mark.spec("JOB-11", "LPL-4")
def test_a_receive_waits_for_the_next_token(harness: Harness, clock):
    queue = harness.create(rate_limit="6/m")
    fill(queue, 3)
    assert len(queue.receive(10)) == 1
    call = Call(clock, lambda: harness.queue().receive(10, wait_time=20)).after(9.999).after(0.001)
    assert len(call.join()) == 1


SPREAD = {
    "one priority of ten": ({"priorities": 10}, [5]),
    "two priorities of ten": ({"priorities": 10}, [0, 9]),
    "the shard of the bucket": ({"shards": 3}, [0]),
    "another of three shards": ({"shards": 3}, [2]),
    "all three shards": ({"shards": 3}, [0, 1, 2]),
    "one shard of a FIFO queue": ({"shards": 3, "fifo": True, "deduplication_scope": "message_group"}, [1]),
}


def spread(queue, shards: list[int], count: int) -> None:
    """Sends messages to these shards, or of these priorities, in turn."""
    if queue.priorities:
        queue.send_batch([SendEntry(str(n), priority=shards[n % len(shards)]) for n in range(count)])
        return
    for shard in shards:
        part = range(shards.index(shard), count, len(shards))
        group = next(f"g{n}" for n in range(100) if shard_of_group(f"g{n}", 3) == shard) if queue.fifo else None
        keep_to(queue, shard)
        queue.send_batch([SendEntry(str(n), group_id=group, dedup_id=group and str(n)) for n in part])


@pytest.mark.spec("JOB-11")
@pytest.mark.parametrize("case", SPREAD)
def test_the_limit_holds_for_the_queue_wherever_its_messages_are(harness: Harness, clock, case: str):
    attributes, shards = SPREAD[case]
    name = "orders.fifo" if "fifo" in attributes else "orders"
    queue = harness.create(name, rate_limit="20/s", rate_burst=2, visibility_timeout=600, **attributes)
    spread(queue, shards, 90)
    got, found = [], []
    for step in range(80):
        clock.advance(0.05 * (step > 1))
        messages = queue.receive(10)
        for message in messages if queue.fifo else ():  # else its group would block
            message.delete()
        got.append(len(messages))
        found += messages
    assert got == [2, 0] + [1] * 78
    assert not queue.fifo or bodies(found) == [str(number) for number in range(80)]


@pytest.mark.spec("JOB-11")
def test_what_the_limit_lets_through_comes_from_all_shards(harness: Harness, clock):
    queue = harness.create(shards=3, rate_limit="1/s", rate_burst=60, visibility_timeout=600)
    spread(queue, [0, 1, 2], 180)
    keep_to(queue, 0)
    queue._runtime.shards[0].shared.home._chance = Random(58)
    found = [int(message.body) % 3 for _ in range(60) for message in queue.receive(1)]
    assert len(found) == 60 and min(found.count(shard) for shard in range(3)) >= 12


@pytest.mark.spec("JOB-11", "ATT-8")
@pytest.mark.parametrize("shard", [None, 0, 2])
def test_a_receive_that_is_repeated_takes_nothing_more_of_the_bucket(harness: Harness, clock, shard: int | None):
    attributes = {} if shard is None else {"shards": 3, "deduplication_scope": "message_group"}
    queue = harness.create("orders.fifo", fifo=True, rate_limit="1/s", rate_burst=4, **attributes)
    other = harness.queue("orders.fifo")
    spread(queue, [shard or 0], 6)
    found = bodies(queue.receive(3, attempt_id="a"))
    assert found == ["0", "1", "2"] and bodies(other.receive(3, attempt_id="a")) == found
    assert bodies(queue.receive(3, attempt_id="b")) == []  # their group is in flight
    clock.advance(0.999)
    for message in queue.receive(3, attempt_id="a"):
        message.delete()
    assert len(other.receive(10, attempt_id="c")) == 1, "three tokens of four were taken, not nine"
    assert queue.receive(10) == []


@pytest.mark.spec("JOB-11")
def test_what_another_process_took_of_the_bucket_is_not_claimed(harness: Harness, clock, monkeypatch):
    queue = harness.create(shards=2, rate_limit="1/s", rate_burst=4)
    for shard in (0, 1):
        keep_to(queue, shard)
        fill(queue, 4)
    other, charge, taken = harness.queue(), Tokens._charge, []

    def late(tokens, count):
        patch.undo()
        taken.extend(other.receive(1))
        return charge(tokens, count)

    for process in (queue, other):
        process._runtime.shards[0].shared.home.anywhere = lambda: [1, 0]
    with monkeypatch.context() as patch:
        patch.setattr(Tokens, "_charge", late)
        found = queue.receive(10)
    assert len(taken) == 1 and len(found) == 3 and queue.receive(10) == []
    assert {message.receive_count for message in [*taken, *found]} == {1}
    assert sorted(message.receive_count for message in queue.peek()) == [0] * 4 + [1] * 4
    assert queue.counts().in_flight == 4
    clock.advance(2)
    assert [message.receive_count for message in other.receive(10)] == [1, 1]


@pytest.mark.spec("JOB-11")
@pytest.mark.parametrize(("left", "fails"), [(0, False), (1, False), (1, True)])
def test_tokens_for_messages_that_others_took_are_given_back(
    harness: Harness, clock, monkeypatch, left: int, fails: bool
):
    queue = harness.create(priorities=2, rate_limit="1/m", rate_burst=4)
    queue.send_batch([SendEntry(str(n), priority=1) for n in range(2)])
    charge, stored = Tokens._charge, queue.peek()

    def late(tokens, count):
        if count < 0:
            raise QueueClientError("the disk is gone")
        if not fails:
            patch.undo()
        paid = charge(tokens, count)
        assert all(harness.queue().erase(message.message_id) for message in stored[left:])
        return paid

    with monkeypatch.context() as patch:
        patch.setattr(Tokens, "_charge", late)
        assert len(queue.receive(10)) == left, "a failure hides no message"
    queue.send_batch([SendEntry(str(n), priority=n % 2) for n in range(6)])
    assert len(harness.queue().receive(10)) == 4 - left - fails and queue.receive(10) == []


@pytest.mark.spec("JOB-11")
def test_a_claim_that_loses_its_races_gives_its_tokens_back(harness: Harness, clock, monkeypatch):
    queue = harness.create(priorities=2, rate_limit="1/m", rate_burst=4)
    queue.send_batch([SendEntry(str(n), priority=1) for n in range(3)])
    command = ShardLedger.command

    def lost(ledger, commands, *given):
        if any(isinstance(each, Claim) and each.tokens for each in commands):
            raise RequestThrottled("busy")
        return command(ledger, commands, *given)

    with monkeypatch.context() as patch, pytest.raises(RequestThrottled):
        patch.setattr(ShardLedger, "command", lost)
        queue.receive(10)
    assert len(queue.receive(10)) == 3


@pytest.mark.spec("JOB-11")
def test_a_charge_that_fails_claims_nothing(harness: Harness, clock, monkeypatch):
    queue = harness.create(priorities=2, rate_limit="1/s", rate_burst=4)
    queue.send_batch([SendEntry(str(n), priority=1) for n in range(3)])

    def fails(*_):
        raise QueueClientError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("lakequeue.operations.tokens.Charge", fails)
        with pytest.raises(QueueClientError, match="the disk is gone"):
            queue.receive(10)
    assert [message.receive_count for message in queue.peek()] == [0, 0, 0]
    assert len(queue.receive(10)) == 3 and harness.queue().receive() == []


@pytest.mark.spec("JOB-11", "HBN-23")
def test_a_claim_that_leaves_last_receives_to_other_consumers_charges_nothing(harness: Harness, clock):
    dead = {"dead_letter_queue": harness.create("dead").name, "max_receive_count": 1}
    queue = harness.create(priorities=2, rate_limit="1/m", rate_burst=4, **dead)
    queue.send_batch([SendEntry(str(n), priority=1) for n in range(2)])
    hands, ledger = FreeHands(lambda: 0), queue._runtime.shards[0].ledger
    commits = ledger.activity()
    assert not exchange(queue, [], Request(10, hands=hands)).messages and hands.passed
    assert ledger.activity() == commits, "nothing was charged"
    hands.free = lambda: 1
    assert len(exchange(queue, [], Request(10, hands=hands)).messages) == 1 and ledger.activity() != commits


@pytest.mark.spec("JOB-11", "LPL-4")
def test_a_receive_waits_for_the_next_token_of_another_shard(harness: Harness, clock):
    queue = harness.create(priorities=3, rate_limit="6/m")
    queue.send_batch([SendEntry(str(n), priority=2) for n in range(3)])
    assert len(queue.receive(10)) == 1
    call = Call(clock, lambda: harness.queue().receive(10, wait_time=20)).after(9.999).after(0.001)
    assert len(call.join()) == 1


@pytest.mark.spec("JOB-11")
def test_a_limit_that_another_process_sets_or_lifts_holds_at_once(harness: Harness, clock):
    queue, other = harness.create(priorities=2), harness.queue()
    queue.send_batch([SendEntry(str(n), priority=n % 2) for n in range(20)])
    assert len(queue.receive(2)) == 2
    other.set_attributes(rate_limit="1/m", rate_burst=3)
    assert len(queue.receive(10)) == 3 and queue.receive(10) == []
    other.set_attributes(rate_limit=None)
    assert len(queue.receive(10)) == 10


@pytest.mark.spec("JOB-11", "DLQ-2")
def test_dead_letters_wait_for_the_limit_and_take_nothing_from_it(harness: Harness, clock):
    dead = harness.create("dead")
    queue = harness.create(rate_limit="1/s", dead_letter_queue="dead", max_receive_count=1)
    fill(queue, 2)
    (message,) = queue.receive(10)
    message.change_visibility(0)
    assert queue.receive(10) == [] and dead.counts().visible == 0
    clock.advance(1)
    assert bodies(queue.receive(10)) == ["1"] and dead.counts().visible == 1


# --- a pause (JOB-1)


@pytest.mark.spec("JOB-1")
def test_nobody_receives_from_a_paused_queue_and_all_else_goes_on(harness: Harness, clock):
    queue, other = harness.create(), harness.queue()
    queue.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c")])
    first, second = other.receive(2)
    queue.pause("the bank is down")
    assert other.attributes(["paused"]) == {"paused": "the bank is down"}
    assert other.attributes(wire=True)["Paused"] == "the bank is down"
    assert other.receive(10) == [] and other.lease() is None and harness.queue().receive(10) == []
    other.send("d")
    first.delete()
    second.change_visibility(300)
    clock.advance(299)
    assert harness.queue().receive(10) == []
    counts = harness.queue().counts()
    assert (counts.visible, counts.in_flight) == (2, 1)

    clock.advance(1)
    other.resume()
    assert other.attributes(["paused"]) == {"paused": None} and "Paused" not in other.attributes(wire=True)
    assert sorted(bodies(queue.receive(10))) == ["b", "c", "d"]


@pytest.mark.spec("JOB-1")
def test_a_pause_knows_since_when_it_lasts_until_its_reason_changes(harness: Harness, clock):
    def said(queue):
        queue.attributes()
        return {
            pause.group: (pause.reason, (pause.since - began).total_seconds()) for pause in settings(queue).pauses
        }

    began = clock.now()
    queue = harness.create(paused="made so", paused_groups={"g": "it is down"})
    assert said(harness.queue()) == {None: ("made so", 0), "g": ("it is down", 0)}
    clock.advance(10)
    queue.set_attributes(delay=5, paused="made so")
    queue.pause("another", "h")
    assert said(harness.queue()) == {None: ("made so", 0), "g": ("it is down", 0), "h": ("another", 10)}
    clock.advance(10)
    queue.pause("the bank is down")
    queue.resume("g")
    assert said(harness.queue()) == {None: ("the bank is down", 20), "h": ("another", 10)}
    queue.resume()
    clock.advance(10)
    queue.pause("the bank is down")
    assert said(harness.queue()) == {None: ("the bank is down", 30), "h": ("another", 10)}
    assert "paused_since" not in queue.attributes() and "PausedSince" not in queue.attributes(wire=True)
    with pytest.raises(InvalidAttributeName):
        queue.set_attributes(paused_since="0")


@pytest.mark.spec("JOB-1")
def test_a_pause_needs_a_reason_that_can_be_stored(harness: Harness):
    queue = harness.create()
    for reason in ("", None, 5):
        with pytest.raises(InvalidParameterValue, match="reason"):
            queue.pause(reason)
    with pytest.raises(InvalidAttributeValue, match="8,192 bytes"):
        queue.pause("x" * 8_193)
    for verb in (queue.pause, lambda reason: queue.set_attributes(paused=reason)):
        with pytest.raises(InvalidAttributeValue, match="paused"):
            verb("\ud800")
    queue.send("a")
    assert len(queue.receive()) == 1


@pytest.mark.spec("JOB-1", "FIF-9")
def test_a_group_is_paused_and_the_others_go_on(fifo: FifoHarness):
    queue, other = fifo.create(), fifo.queue()
    send(queue, "a1", "a2", "b1", "b2", "c1", "c2")
    other.pause("its bank is down", group_id="a")
    fifo.queue().pause("late", group_id="c")
    reasons = {"a": "its bank is down", "c": "late"}
    assert queue.attributes(["paused_groups", "paused"]) == {"paused_groups": reasons, "paused": None}
    assert json.loads(queue.attributes(wire=True)["PausedGroups"]) == reasons
    assert bodies(queue.receive(10)) == ["b1", "b2"]
    assert fifo.queue().receive(10) == [] and other.counts().visible == 4
    queue.resume(group_id="a")
    queue.resume(group_id="nobody")
    assert bodies(fifo.queue().receive(10)) == ["a1", "a2"]
    other.resume("c")
    assert queue.attributes(["paused_groups"]) == {"paused_groups": None}
    assert bodies(queue.receive(10)) == ["c1", "c2"]


@pytest.mark.spec("JOB-1")
def test_pauses_of_groups_that_cannot_be_stored_are_refused(harness: Harness):
    queue = harness.create()
    for group in ("", 5, "a b", "x" * 129):
        with pytest.raises(InvalidParameterValue, match="group_id"):
            queue.pause(group_id=group)
    with pytest.raises(InvalidAttributeValue, match="8,192 bytes"):
        queue.pause("x" * 8_193, group_id="a")
    halves = ({"a": "\ud800"}, '{"\\ud800": "a"}')
    for wrong in ([1], {"a": ""}, {"a": 5}, "{", "acme", "[" * 100_000, '["a"]', *halves):
        with pytest.raises(InvalidAttributeValue, match="paused_groups") as refused:
            queue.set_attributes(paused_groups=wrong)
        assert "such as" in str(refused.value.hint)
    assert queue.attributes(["paused_groups"]) == {"paused_groups": None}


# --- held messages wait until fewer are delayed (INF-9)


def shown(harness: Harness) -> dict[str, str]:
    """The state of each message, as a new process sees it."""
    return {message.body: message.state for message in harness.queue().peek(limit=100)}


@long_on_s3
@pytest.mark.spec("INF-9", "QUE-25", "DLT-3")
def test_what_one_process_released_stays_so_for_others_whatever_the_cap_becomes(harness: Harness, clock):
    queue, other = harness.create(), harness.queue()
    assert other.receive() == [] and other.counts().held == 0  # it has looked at the empty log
    queue.send_batch([SendEntry(f"late {number}", delay=10) for number in range(8)])
    queue.send_batch([SendEntry(f"now {number}") for number in range(8)])
    other.set_attributes(max_delayed_messages=2)  # before that all were released, which this process has not read
    queue.send_batch([SendEntry(f"new {number}") for number in range(8)])
    states = shown(harness)
    assert {name: states[f"{name} 0"] for name in ("late", "now", "new")} == {
        "late": "delayed",
        "now": "visible",
        "new": "held",
    }
    for each in (queue, other, harness.queue()):
        counts = each.counts()
        assert (counts.visible, counts.delayed, counts.held) == (8, 8, 8)
    queue.set_attributes(max_delayed_messages=18)
    assert (other.counts().visible, harness.queue().counts().held) == (16, 0)
    queue.set_attributes(max_delayed_messages=2)
    assert len(other.receive(100)) == 16 and harness.queue().receive(100) == []


@pytest.mark.spec("INF-9", "RET-2", "PUR-1", "QUE-21", "STA-13")
def test_held_messages_are_stored_and_purged(harness: Harness):
    queue = harness.create(max_delayed_messages=1, max_stored_messages=3, profile_strict=False)
    answer = queue.send_batch([SendEntry("late", delay=5), *(SendEntry(f"held {number}") for number in range(3))])
    assert (len(answer.successful), len(answer.failed)) == (3, 1)
    assert harness.queue().counts().held == 2
    harness.queue().purge()
    assert shown(harness) == {} and harness.queue().counts().held == 0
    queue.send("after")
    assert bodies(harness.queue().receive(10)) == ["after"]
