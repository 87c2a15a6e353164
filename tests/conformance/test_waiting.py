"""Long polls."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.harness import Call, Harness, batch, bodies
from lakequeue import errors


@pytest.mark.spec("LPL-1", "LPL-5", "LPL-6", "RCV-4")
def test_a_long_poll_returns_with_the_first_message_that_comes(harness: Harness, clock):
    queue = harness.create()
    started = clock.now()
    call = Call(clock, lambda: queue.receive(10, wait_time=10)).after(4)
    queue.send("A")
    assert bodies(call.join()) == ["A"]
    assert call.ended_at - started == timedelta(seconds=4)
    clock.advance(29.9)
    assert queue.receive() == []
    clock.advance(0.1)
    assert bodies(queue.receive(10, wait_time=20)) == ["A"]


@pytest.mark.spec("LPL-1", "RCV-14")
def test_a_long_poll_for_nothing_ends_with_its_wait(harness: Harness, clock):
    queue = harness.create(receive_wait_time=2)
    started = clock.now()
    before = harness.versions()
    call = Call(clock, queue.receive).after(5)
    assert call.join() == []
    assert call.ended_at - started == timedelta(seconds=2)
    assert harness.versions() == before


@pytest.mark.spec("LPL-1", "LPL-6", "DLT-4")
def test_a_long_poll_soon_finds_messages_of_another_process(harness: Harness, clock):
    queue, other = harness.create(), harness.queue()
    call = Call(clock, lambda: queue.receive(10, wait_time=10)).after(4)
    other.send("A")
    sent_at = clock.now()
    clock.advance(1)
    assert bodies(call.join()) == ["A"]
    assert call.ended_at - sent_at <= timedelta(microseconds=queue._runtime.root.poll_interval)


@pytest.mark.spec("LPL-4", "LPL-6")
@pytest.mark.parametrize("hidden_by", ["a delay", "a visibility timeout", "retention at the cap"])
def test_a_long_poll_wakes_at_the_instant_a_message_becomes_available(harness: Harness, clock, hidden_by):
    queue = harness.create(max_inflight_messages=1, message_retention_period=60)
    if hidden_by == "a delay":
        queue.send("A", delay=3.0625)
    elif hidden_by == "a visibility timeout":
        queue.send("A")
        queue.receive(visibility_timeout=3.0625)
    else:
        queue.send("old")
        clock.advance(60 - 3.0625)
        queue.receive(visibility_timeout=1000)
        queue.send("A")
    started = clock.now()
    call = Call(clock, lambda: queue.receive(10, wait_time=10)).after(10)
    assert bodies(call.join()) == ["A"]
    assert call.ended_at - started == timedelta(seconds=3.0625)


@pytest.mark.spec("INF-7")
def test_a_long_poll_at_the_cap_waits_for_room(harness: Harness, clock):
    queue = harness.create(profile="sqs", max_inflight_messages=1)
    queue.send_batch(batch("a", "b"))
    (a,) = queue.receive()
    with pytest.raises(errors.OverLimit):
        queue.receive()
    call = Call(clock, lambda: queue.receive(wait_time=5)).after(3)
    queue.delete(a.receipt_handle)
    assert bodies(call.join()) == ["b"]
    call = Call(clock, lambda: queue.receive(wait_time=5)).after(6)
    assert call.join() == []


@pytest.mark.spec("INF-7")
def test_a_long_poll_at_the_cap_goes_on_after_a_file_of_the_log_was_replaced(harness: Harness, clock):
    queue = harness.create(max_inflight_messages=2)
    queue.send_batch(batch("a", "b", "c"))
    a, b = queue.receive(2)
    queue.set_attributes(max_inflight_messages=1)
    queue.erase(a.message_id)
    call = Call(clock, lambda: queue.receive(wait_time=5)).after(3)
    queue.delete(b.receipt_handle)
    assert bodies(call.join()) == ["c"]


@pytest.mark.spec("INF-7")
def test_a_long_poll_at_the_cap_of_2018_is_refused_when_its_wait_ends(harness: Harness, clock):
    queue = harness.create(profile="sqs-2018", max_inflight_messages=1)
    queue.send_batch(batch("a", "b"))
    queue.receive()
    started = clock.now()
    call = Call(clock, lambda: queue.receive(wait_time=5)).after(6)
    assert isinstance(call.join(), errors.OverLimit)
    assert call.ended_at - started == timedelta(seconds=5)


@pytest.mark.spec("LPL-1", "LPL-4", "LPL-5", "LPL-6")
def test_tasks_wait_without_threads_and_share_what_comes(harness: Harness, clock):
    queue = harness.create()

    async def scenario():
        started = clock.now()
        ended = []

        async def one():
            messages = await queue.receive_async(1, wait_time=10)
            ended.append((clock.now() - started).total_seconds())
            return messages

        tasks = [asyncio.create_task(one()) for _ in range(3)]
        await clock.advance_async(4)
        await asyncio.to_thread(queue.send, "A")
        await clock.advance_async(0)
        assert ended == [4]
        await asyncio.to_thread(queue.send, "B", 3)
        await clock.advance_async(10)
        got = [bodies(task.result()) for task in tasks]
        assert sorted(got) == [[], ["A"], ["B"]]
        assert ended == [4, 7, 10]

    asyncio.run(scenario())
