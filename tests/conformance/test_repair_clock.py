"""The time of a queue that a process with a wrong clock set ahead is set back (DUR-83)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from concurrency.harness import apart, check_log
from lakequeue import LakeQueue, Queue
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, to_micros
from lakequeue.shard.admin import LONGEST, set_back
from lakequeue.shard.runs import IN_FLIGHT, Head, Run
from lakequeue.testing import ManualClock

YEAR = 365 * 86400


def a_year_ahead(root: Path, clock: ManualClock) -> tuple[LakeQueue, Queue]:
    """A process that sends and receives with a clock that is a year ahead, as one that believed it did."""
    ahead = ManualClock(clock.now() + timedelta(seconds=YEAR))
    lq = apart(root, ahead, 1)[0]
    return lq, lq.queue("orders")


def rightly(root: Path, clock: ManualClock) -> Queue:
    return apart(root, clock, 1)[0].queue("orders")


@pytest.mark.spec("DUR-83")
@pytest.mark.parametrize("bulk", [False, True])
def test_timeouts_delays_and_retention_go_by_the_right_clock_again(
    tmp_path: Path, clock: ManualClock, bulk: bool
) -> None:
    lq = apart(tmp_path, clock, 1)[0]
    queue = lq.create_queue("orders", message_retention_period=1_209_600, visibility_timeout=30)
    _, there = a_year_ahead(tmp_path, clock)
    send: Callable[[Queue, str], object] = Queue.send
    if bulk:
        send = lambda queue, body: queue.send_arrow(pa.table({"body": [body]}))  # noqa: E731
    for body in "ab":
        send(there, body)
    assert len(there.receive(1)) == 1
    clock.advance(60)
    assert [message.body for message in queue.receive(10)] == ["b"]  # `a` is hidden for a year

    planned = lq.repair("orders", clock=True)
    assert len(planned) == 1 and not planned[0].applied
    assert "2 messages count as sent now" in planned[0].steps[0] and "visible now" in planned[0].steps[1]
    assert lq.repair("orders", clock=True) == planned
    assert [each.applied for each in lq.repair("orders", clock=True, apply=True)] == [True]
    assert lq.repair("orders", clock=True) == []
    assert not lq.check()
    check_log(queue)

    queue = rightly(tmp_path, clock)
    queue.send("c")
    received = queue.receive(10)
    assert [message.body for message in received] == ["a", "b", "c"]
    assert all(to_micros(message.sent_at) <= to_micros(clock.now()) for message in received)
    clock.advance(31)
    assert len(queue.receive(10)) == 3
    clock.advance(1_209_600)
    assert queue.receive(10) == []


@pytest.mark.spec("DUR-83", "JOB-11")
def test_a_rate_limit_lets_messages_through_again(tmp_path: Path, clock: ManualClock) -> None:
    lq = apart(tmp_path, clock, 1)[0]
    lq.create_queue("orders", rate_limit="6/m", rate_burst=2)
    _, there = a_year_ahead(tmp_path, clock)
    for body in "abcde":
        there.send(body)
    assert len(there.receive(10)) == 2
    lq.repair("orders", clock=True, apply=True)
    queue = rightly(tmp_path, clock)
    assert queue.receive(10) == []
    clock.advance(10)
    assert len(queue.receive(10)) == 1


@pytest.mark.spec("DUR-83", "JOB-12")
def test_what_was_rescheduled_keeps_its_instant(tmp_path: Path, clock: ManualClock) -> None:
    lq = apart(tmp_path, clock, 1)[0]
    queue = lq.create_queue("orders", message_retention_period=1_209_600)
    there = apart(tmp_path, ManualClock(clock.now() + timedelta(days=1)), 1)[0].queue("orders")
    queue.reschedule(queue.send("a").message_id, clock.now() + timedelta(days=3))
    there.reschedule(there.send("b").message_id, clock.now() + timedelta(days=14, hours=1))
    lq.repair("orders", clock=True, apply=True)
    queue = rightly(tmp_path, clock)
    assert [message.body for message in queue.receive(10)] == ["b"], "it would have expired by then"
    clock.advance(3 * 86_400 - 1)
    assert [message.body for message in queue.receive(10)] == ["b"]
    clock.advance(1)
    assert [message.body for message in queue.receive(10)] == ["a"]


@pytest.mark.spec("DUR-83")
def test_a_queue_with_the_right_time_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    lq = apart(tmp_path, clock, 1)[0]
    queue = lq.create_queue("orders")
    queue.send("a")
    queue.receive()
    assert lq.repair(clock=True, apply=True) == []


@pytest.mark.spec("DUR-83")
def test_what_is_hidden_for_longer_than_any_timeout_is_visible_now() -> None:
    now = 10**15
    runs = [
        Run(0, 0, IN_FLIGHT, "a", 1, now + 30 * MICROS, now - MICROS, now - MICROS),
        Run(1, 1, IN_FLIGHT, "b", 1, now + LONGEST + 1, now - MICROS, now - MICROS),
        Run(2, 2, IN_FLIGHT, "c", 2, now + 90 * MICROS, now + 60 * MICROS, now - MICROS),
        Run(3, 3),
    ]
    wire = QueueAttributes.create().to_wire()
    head, mended = set_back(Head(committed_at=now + 1, purged_at=now + 1, attributes=wire), runs, now)
    assert (head.committed_at, head.purged_at) == (now, now)
    assert [run.visible_at for run in mended] == [now + 30 * MICROS, now, now, None]
    assert mended[2].received_at == now and mended[2].lease_id == "c"
