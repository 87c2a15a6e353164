"""Held messages through the tables: they wait until fewer messages are delayed (INF-9)."""

from __future__ import annotations

import pytest

from conformance.harness import Call, Harness, long_on_s3
from lakequeue import SendEntry


def shown(harness: Harness) -> dict[str, str]:
    """The state of each message, as a new process sees it."""
    return {message.body: message.state for message in harness.queue().peek(limit=100)}


def bodies(messages) -> list[str]:
    return [message.body for message in messages]


@pytest.mark.spec("INF-8", "INF-9", "DLY-5", "DLY-12", "PRF-4", "DLT-3")
def test_messages_beyond_the_cap_wait_for_the_delayed_ones_in_every_process(harness: Harness, clock):
    queue = harness.create(max_delayed_messages=2)
    queue.send_batch([SendEntry("d1", delay=10), SendEntry("d2", delay=10)])
    queue.send("m3")
    clock.advance(1)
    assert harness.queue().receive(10) == []
    counts = harness.queue().counts()
    assert (counts.visible, counts.in_flight, counts.delayed, counts.held) == (0, 0, 2, 1)
    assert queue.attributes(wire=True)["ApproximateNumberOfMessagesDelayed"] == "2"
    assert shown(harness) == {"d1": "delayed", "d2": "delayed", "m3": "held"}

    queue.set_attributes(max_delayed_messages=1)
    harness.queue().send("m4", delay=30)
    assert shown(harness) == {"d1": "delayed", "d2": "delayed", "m3": "held", "m4": "held"}
    clock.advance(9)
    assert shown(harness) == {"d1": "visible", "d2": "visible", "m3": "visible", "m4": "delayed"}
    assert bodies(harness.queue().receive(10)) == ["d1", "d2", "m3"]


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


@pytest.mark.spec("INF-9", "LPL-4")
def test_a_waiting_receive_gets_held_messages_when_they_are_released(harness: Harness):
    queue = harness.create(max_delayed_messages=1)
    queue.send("late", delay=5)
    queue.send("held")
    call = Call(harness.clock, lambda: harness.queue().receive(10, wait_time=20)).after(5)
    assert bodies(call.join()) == ["late", "held"]
    assert call.ended_at == harness.clock.now()


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
