"""The worked timelines of both policies, as recorded calls of a consumer on a real queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from consumer.harness import Harness, sleeper
from lakequeue import (
    ComputedRenewal,
    Context,
    HeartbeatRenewal,
    LakeQueue,
    Message,
    NoRenewal,
    Outcome,
    QueueClientError,
    RequestThrottled,
)
from lakequeue.renewal import holds
from lakequeue.testing import ManualClock


def _seconds(duration: float) -> timedelta:
    return timedelta(seconds=duration)


def row(*ids: str, policy: Any, seconds: int, asked: int | None, changes: list[Any], queue: int = 120) -> Any:
    """A handler that takes so long, the timeouts that its consumer asks for and the extensions that it makes."""
    return pytest.param(policy, seconds, asked, changes, queue, marks=pytest.mark.spec(*ids))


@pytest.mark.spec("HBN-1", "HBN-2", "HBN-9", "HBN-21", "DEL-6", "PRF-5", "PRF-8", "EXM-6", "HNS-21")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("policy", "seconds", "asked", "changes", "queue"),
    [
        row("HBN-5", "PRF-6", policy=HeartbeatRenewal(), seconds=45, asked=30, changes=[(25, 30)]),
        row("HNS-11", "PRF-6", policy=ComputedRenewal(30), seconds=45, asked=30, changes=[(20, 40)]),
        row("HNS-10", "PRF-6", policy=ComputedRenewal(), seconds=115, asked=None, changes=[(110, 130)]),
        row(
            *("HNS-1", "HNS-7", "HNS-15"),
            policy=ComputedRenewal(),
            seconds=100,
            asked=None,
            changes=[(20, 40), (50, 40), (80, 40)],
            queue=30,
        ),
    ],
)
def test_a_message_is_kept_until_its_handler_ends_and_is_deleted(
    make: Callable[..., Harness],
    policy: Any,
    seconds: int,
    asked: int | None,
    changes: list[Any],
    queue: int,
    asynchronous: bool,
) -> None:
    """While another consumer asks for it every second."""
    harness = make(visibility_timeout=queue)
    harness.send("A")
    handler = harness.handler(seconds, asynchronous=asynchronous)
    with harness.running(harness.consumer(handler, concurrency=1, renewal=policy)):
        for _ in range(seconds + 30):
            harness.clock.advance(1)
            assert harness.other.receive(visibility_timeout=43_200) == []
    assert harness.queue.changes() == changes
    assert harness.queue.deletes() == [(seconds, "A")]
    assert {each["visibility_timeout"] for each in harness.queue.receives()} == {asked}
    assert harness.other.counts().in_flight == 0


@pytest.mark.spec("HNS-7", "HNS-15", "EXM-7", "HNS-21")
def test_the_worked_sequence_of_computed_renewal(make: Callable[..., Harness]) -> None:
    harness = make(visibility_timeout=30)
    harness.send("A")
    handler = harness.handler(1_000)
    with harness.running(harness.consumer(handler, concurrency=1, renewal=ComputedRenewal())):
        harness.clock.advance(329.999)
        assert harness.visible() == []
        harness.clock.advance(0.001)
        assert harness.visible() == ["A"]  # renewal has stopped, and it still runs
        assert harness.queue.changes() == [(at, 40) for at in range(20, 300, 30)]
        harness.clock.advance(670)
        assert harness.queue.deletes() == [(1_000, "A")]  # nobody else took it
    assert len(harness.queue.changes()) == 10
    assert handler.receives == [1]


@pytest.mark.spec("PRF-6", "PRF-9", "HBN-16", "HNS-9")
@pytest.mark.parametrize(
    ("policy", "again"),
    [
        (HeartbeatRenewal(disable_extension=True), 30),
        (HeartbeatRenewal(heartbeat_interval=0), 30),
        (ComputedRenewal(30, max_auto_renewal_duration=0), 30),
        (NoRenewal(), 120),
        (ComputedRenewal(max_auto_renewal_duration=0), 120),
    ],
)
def test_without_extension_another_consumer_gets_the_message_at_its_timeout(
    harness: Harness, policy: Any, again: float
) -> None:
    harness.send("A")
    with harness.running(harness.consumer(sleeper(150), concurrency=1, renewal=policy)):
        harness.clock.advance(again - 0.001)
        assert harness.other.receive() == []
        harness.clock.advance(0.001)
        assert [message.receive_count for message in harness.other.receive()] == [2]
        assert harness.queue.changes() == []


@pytest.mark.spec("HNS-6", "EXM-7")
@pytest.mark.parametrize("taken", [False, True])
def test_a_scheduler_that_was_held_up_renews_late(make: Callable[..., Harness], taken: bool) -> None:
    harness = make(visibility_timeout=30)
    lost = {}

    def handle(message: Message, context: Context) -> None:
        lost[message.body] = context.lost
        context.sleep(100)

    def stall(verb: str, bodies: list[str]) -> None:
        if verb == "change" and bodies == ["A"] and harness.queue.changes("A")[-1][0] == 20:
            harness.clock.wait(harness.queue.began + _seconds(42), threading.Event())

    harness.queue.before = stall
    harness.send("A")
    with harness.running(harness.consumer(handle, concurrency=2, renewal=ComputedRenewal())):
        harness.clock.advance(10)
        harness.send("B")  # its timeout ends at 40, and its renewal is due at 30
        harness.clock.advance(31)
        if taken:
            assert "B" in [message.body for message in harness.other.receive(10)]
        harness.clock.advance(1.5)
        assert harness.queue.changes("B") == [(42, 32)]
        assert lost["B"].is_set() is taken
        assert harness.visible() == []


@pytest.mark.spec("HNS-12", "HNS-13", "HBN-20")
def test_a_throttled_renewal_is_repeated(make: Callable[..., Harness], caplog: pytest.LogCaptureFixture) -> None:
    harness = make(visibility_timeout=30)
    harness.fails(RequestThrottled("too many"), RequestThrottled("too many"), verbs="change")
    harness.send("A")
    harness.consume(sleeper(45), 50, concurrency=1, renewal=ComputedRenewal())
    assert harness.queue.changes() == [(20, 40), (25, 35), (27.5, 32)]
    assert harness.queue.deletes() == [(45, "A")]
    assert "too many" in caplog.text


@pytest.mark.spec("HNS-12", "HNS-13", "HNS-14")
def test_renewal_that_keeps_failing_goes_on_with_its_handler_and_hands_nothing_back(
    make: Callable[..., Harness], caplog: pytest.LogCaptureFixture
) -> None:
    harness = make(visibility_timeout=30)
    harness.fails(QueueClientError("no network"), verbs="change", until=1_000)
    harness.send("A")
    handler = sleeper(45, Outcome.FAILED)
    with harness.running(harness.consumer(handler, concurrency=1, renewal=ComputedRenewal())):
        harness.clock.advance(44)
        assert harness.visible() == ["A"]
        [taken] = harness.other.receive()
        harness.clock.advance(2)
    assert all(timeout > 0 for _, timeout in harness.queue.changes())  # it is not handed back
    late = [int(at) for at, _ in harness.queue.changes() if at > 30.9]
    assert late == [*range(31, 45)]  # RCP-8: the handle might still have worked
    assert harness.other.counts().in_flight == 1
    assert taken.receive_count == 2
    assert "no network" in caplog.text


@contextmanager
def looking_seldom() -> Iterator[None]:
    """Has a consumer look once in 100 s whether others deleted its messages: twelve hours have 43,200 seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holds, "_WATCH", 100_000_000)
        yield


@pytest.mark.spec("HBN-22")
@looking_seldom()
def test_no_receipt_is_extended_beyond_twelve_hours(harness: Harness) -> None:
    harness.send("A")
    contexts = []

    def handle(message: Message, context: Context) -> None:
        contexts.append(context)
        context.sleep(43_300)

    policy = HeartbeatRenewal(visibility_timeout=20_000)
    with harness.running(harness.consumer(handle, concurrency=1, renewal=policy)):
        harness.clock.advance(39_989)
        assert not contexts[0].visibility_exhausted
        harness.clock.advance(1)
        assert contexts[0].visibility_exhausted
        harness.clock.advance(3_209)
        assert harness.visible() == []
        harness.clock.advance(1)
        assert harness.visible() == ["A"]
        assert not contexts[0].lost
    assert harness.queue.changes("A")[:2] == [(19_995, 20_000), (39_990, 3_210)]


@pytest.mark.spec("HBN-22")
@looking_seldom()
def test_a_commit_that_comes_after_the_computed_end_is_tried_with_a_second_less(harness: Harness) -> None:
    """The twelve hours are judged when the change is committed, which is later than when it was decided."""

    def late(verb: str, bodies: list[str]) -> None:
        if verb == "change" and harness.queue.changes()[-1] == (39_990, 3_210):
            harness.clock.wait(harness.clock.now() + _seconds(0.01), threading.Event())

    harness.queue.before = late
    harness.send("A")
    handler = harness.handler(43_000)
    harness.consume(handler, 43_100, concurrency=1, renewal=HeartbeatRenewal(visibility_timeout=20_000))
    assert [timeout for _, timeout in harness.queue.changes()] == [20_000, 3_210, 3_209]
    assert handler.slept == [True]


@pytest.mark.spec("HBN-11", "HBN-12", "BAT-3")
@pytest.mark.parametrize(("profile", "sizes"), [("sqs", [10, 10, 5]), ("lake", [25])])
def test_extensions_that_are_due_together_go_in_batches(
    make: Callable[..., Harness], profile: str, sizes: list[int]
) -> None:
    harness = make(profile=profile)
    bodies = [str(number) for number in range(25)]
    harness.send(*bodies[:10])
    harness.send(*bodies[10:20])
    harness.send(*bodies[20:])
    with harness.running(harness.consumer(sleeper(45), concurrency=26)):
        harness.clock.advance(10)
        harness.send("late")
        harness.clock.advance(24)
        batches = [(call.at, len(call.asked)) for call in harness.queue.calls if call.verb == "change"]
        assert batches == [(25, size) for size in sizes]
        harness.clock.advance(1)
        assert harness.queue.changes("late") == [(35, 30)]
        assert {body for body, _ in harness.queue.calls[-1].asked} == {"late"}


@pytest.mark.spec("HBN-11")
def test_many_batches_go_at_once(make: Callable[..., Harness]) -> None:
    harness = make(profile="sqs")
    for ten in range(6):
        harness.send(*(f"{ten}{number}" for number in range(10)))
    with harness.running(harness.consumer(sleeper(27), concurrency=60)):
        harness.clock.advance(26)
        assert sorted(harness.queue.changes()) == [(25, 30)] * 60
        assert [len(call.asked) for call in harness.queue.calls if call.verb == "change"] == [10] * 6
        harness.clock.advance(30)
    assert len(harness.queue.deletes()) == 60


@pytest.mark.spec("HNS-12", "HBN-6")
def test_a_clock_that_is_behind_the_queues_extends_by_its_own(harness: Harness) -> None:
    ahead = LakeQueue(harness.lq.root, clock=ManualClock(harness.clock.now() + _seconds(5))).queue("orders")
    ahead.send("from the future")
    ahead.delete(ahead.receive()[0].receipt_handle)  # from now on the queue's time is that of its clock
    harness.send("A")
    with harness.running(harness.consumer(sleeper(40), concurrency=1)):
        harness.clock.advance(41)
    assert harness.queue.changes() == [(25, 30)]  # others, whose clocks are right, would take it at 30 of this one


@pytest.mark.spec("HBN-3", "HNS-14", "HNS-15")
def test_a_retry_delay_is_not_overwritten_by_an_extension_that_was_on_its_way(harness: Harness) -> None:
    harness.send("A")

    def slowly(verb: str, bodies: list[str]) -> None:
        if verb == "change" and harness.now == 25:  # the handler fails meanwhile
            harness.clock.wait(harness.clock.now() + _seconds(2), threading.Event())

    harness.queue.before = slowly
    handler = harness.handler(lambda message: 26 if message.receive_count == 1 else 0, answer=Outcome.FAILED)
    with harness.running(harness.consumer(handler, concurrency=1, retry_delay=5)):
        harness.clock.advance(31)
        assert harness.visible() == []
        harness.clock.advance(1)
    assert harness.queue.changes()[:2] == [(25, 30), (27, 5)]
    assert handler.at == [0, 32]
