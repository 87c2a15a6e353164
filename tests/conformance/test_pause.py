"""A pause through the tables: it holds in every process (JOB-1)."""

from __future__ import annotations

import json

import pytest

from conformance.fifo import FifoHarness, send
from conformance.harness import Harness
from lakequeue import InvalidAttributeValue, InvalidParameterValue, SendEntry


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
    assert sorted(message.body for message in queue.receive(10)) == ["b", "c", "d"]


@pytest.mark.spec("JOB-1", "ATT-3")
def test_a_paused_fifo_queue_only_repeats_what_was_received(fifo: FifoHarness):
    queue = fifo.create()
    send(queue, "a1", "a2", "b1", "b2")
    received = queue.receive(attempt_id="first")
    fifo.queue().pause()
    assert [one.receipt_handle for one in queue.receive(attempt_id="first")] == [received[0].receipt_handle]
    assert queue.receive(10) == [] and queue.receive(10, attempt_id="second") == []
    fifo.queue().resume()
    assert [message.body for message in queue.receive(10)] == ["b1", "b2"]


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
    assert [message.body for message in queue.receive(10)] == ["b1", "b2"]
    assert fifo.queue().receive(10) == [] and other.counts().visible == 4
    queue.resume(group_id="a")
    queue.resume(group_id="nobody")
    assert [message.body for message in fifo.queue().receive(10)] == ["a1", "a2"]
    other.resume("c")
    assert queue.attributes(["paused_groups"]) == {"paused_groups": None}
    assert [message.body for message in queue.receive(10)] == ["c1", "c2"]


@pytest.mark.spec("JOB-1", "FAI-2")
@pytest.mark.parametrize("given", [{}, {"fair_groups": False}, {"group_in_flight_limit": 2}])
def test_a_tenant_is_paused_on_a_standard_queue(harness: Harness, given):
    queue = harness.create(**given)
    queue.send_batch([SendEntry(f"{group}{n}", group_id=group) for n in "12" for group in "ab"] + [SendEntry("-")])
    queue.pause(group_id="a")
    received = harness.queue().receive(10)
    assert sorted(message.body for message in received) == ["-", "b1", "b2"]
    assert queue.receive(10) == [] and harness.queue().lease() is None
    queue.resume(group_id="a")
    assert sorted(message.body for message in queue.receive(10)) == ["a1", "a2"]


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
