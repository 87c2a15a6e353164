"""What the consumer framework guarantees has a check here that holds, and fails once its safeguard is taken out.

As in ``concurrency/test_mutations.py``: a scenario is run as it is, and with one mutation of the code, under
which it must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from consumer.stage import Stage, sleeper
from lakequeue import Context, HeartbeatRenewal, Message, Outcome
from lakequeue.consumer.workers import WorkerPool
from lakequeue.renewal import policies
from lakequeue.renewal.heartbeat import HeartbeatScheduler

Patch = pytest.MonkeyPatch
Make = Callable[..., Stage]


# --- scenarios


def _ends(make: Make, handler: Any, changes: list[tuple[float, float]], visible_at: float | None) -> None:
    stage = make()
    stage.send("A")
    consumer = stage.consumer(handler, concurrency=2)
    with stage.running(consumer):
        stage.clock.advance(29)
        consumer.stop(timeout=0)
        stage.clock.advance(0.999)
        assert stage.visible() == []
        stage.clock.advance(0.001)
        assert bool(stage.visible()) is (visible_at == 30)
        stage.clock.advance(200)
    assert stage.queue.changes() == changes


def a_heartbeat_ends_with_a_delete(make: Make) -> None:
    _ends(make, sleeper(5), [], None)


def a_heartbeat_ends_with_a_failure(make: Make) -> None:
    _ends(make, sleeper(5, Outcome.FAILED), [], 30)


def a_heartbeat_ends_with_an_exception(make: Make) -> None:
    def handle(message: Message, context: Context) -> None:
        context.sleep(5)
        raise ValueError("by a handler")

    _ends(make, handle, [], 30)


def a_heartbeat_ends_with_its_consumer(make: Make) -> None:
    stage = make()
    stage.send("A")
    consumer = stage.consumer(sleeper(1_000))
    with stage.running(consumer) as running:
        stage.clock.advance(5)
        consumer.stop(timeout=0)
        assert running.join() is None
        stage.clock.advance(100)
    assert stage.queue.changes() == [(5, 0)]


def a_message_is_kept_while_its_handler_runs(make: Make) -> None:
    stage = make()
    stage.send("A")
    with stage.running(stage.consumer(sleeper(45), concurrency=1)):
        stage.clock.advance(40)
        assert stage.visible() == []


def a_group_goes_one_by_one(make: Make) -> None:
    stage = make(fifo=True)
    stage.send("a1", "a2")
    running: list[str] = []

    def handle(message: Message, context: Context) -> None:
        running.append(message.body)
        context.sleep(1)

    with stage.running(stage.consumer(handle)):
        stage.clock.advance(0.5)
        assert running == ["a1"]
        stage.clock.advance(1)
        assert running == ["a1", "a2"]


def nothing_of_a_group_passes_a_failure(make: Make) -> None:
    stage = make(fifo=True)
    stage.send("a1", "a2")
    with stage.running(stage.consumer(sleeper(1, Outcome.FAILED))):
        stage.clock.advance(10)
    assert stage.queue.deletes() == []


def a_lost_receipt_is_told(make: Make) -> None:
    stage = make()
    stage.send("A")
    lost = []

    def handle(message: Message, context: Context) -> None:
        stage.other.change_visibility(message.receipt_handle, 0)
        stage.other.receive(visibility_timeout=1_000)
        lost.append(not context.sleep(100))

    with stage.running(stage.consumer(handle, concurrency=1)):
        stage.clock.advance(200)
    assert lost == [True]


def what_was_not_begun_is_handed_back(make: Make) -> None:
    stage = make(fifo=True)
    stage.send("a1", "a2")
    consumer = stage.consumer(sleeper(5))
    with stage.running(consumer):
        consumer.stop()
        stage.clock.advance(5)
    assert stage.visible() == ["a2"]


def the_last_extension_is_not_refused(make: Make) -> None:
    stage = make()
    stage.send("A")
    lost = []

    def handle(message: Message, context: Context) -> None:
        lost.append(not context.sleep(43_000))

    policy = HeartbeatRenewal(visibility_timeout=20_000)
    with stage.running(stage.consumer(handle, concurrency=1, renewal=policy)):
        stage.clock.advance(43_100)
    assert lost == [False]
    assert stage.queue.deletes() == [(43_000, "A")]


# --- mutations

_beating: list[HeartbeatScheduler[str]] = []
"""Those that a mutation kept from stopping."""


def never_drops(patch: Patch) -> None:
    patch.setattr(HeartbeatScheduler, "drop", lambda self, key: self.get(key))


def never_stops(patch: Patch) -> None:
    never_drops(patch)
    patch.setattr(HeartbeatScheduler, "stop", _beating.append)


def never_beats(patch: Patch) -> None:
    patch.setattr(HeartbeatRenewal, "next_check", lambda self, hold, since: None)


def knows_no_groups(patch: Patch) -> None:
    patch.setattr(WorkerPool, "_by_lane", lambda self, jobs: {job.handle: [job] for job in jobs})


def returns_only_the_failure(patch: Patch) -> None:
    run = WorkerPool._run_in_turn

    def each_alone(self: WorkerPool, jobs: Sequence[Any]) -> None:
        for job in jobs:
            run(self, [job])

    patch.setattr(WorkerPool, "_run_in_turn", each_alone)
    patch.setattr(WorkerPool, "_handle", _succeeds_after_the_first(WorkerPool._handle))


def _succeeds_after_the_first(handle: Callable[..., Outcome]) -> Callable[..., Outcome]:
    seen: list[object] = []

    def handled(self: WorkerPool, job: Any) -> Outcome:
        seen.append(job)
        outcome = handle(self, job)
        return outcome if len(seen) == 1 else Outcome.SUCCESS

    return handled


def keeps_losses_to_itself(patch: Patch) -> None:
    patch.setattr(WorkerPool, "_lose", lambda self, handle: None)


def hands_nothing_back(patch: Patch) -> None:
    patch.setattr(WorkerPool, "_release", lambda self, jobs: None)


def knows_no_twelve_hours(patch: Patch) -> None:
    patch.setattr(policies, "_within_twelve_hours", lambda hold, now, timeout: timeout)


GUARANTEES = [
    (a_heartbeat_ends_with_a_delete, never_drops),
    (a_heartbeat_ends_with_a_failure, never_drops),
    (a_heartbeat_ends_with_an_exception, never_drops),
    (a_heartbeat_ends_with_its_consumer, never_stops),
    (a_message_is_kept_while_its_handler_runs, never_beats),
    (a_group_goes_one_by_one, knows_no_groups),
    (nothing_of_a_group_passes_a_failure, returns_only_the_failure),
    (a_lost_receipt_is_told, keeps_losses_to_itself),
    (what_was_not_begun_is_handed_back, hands_nothing_back),
    (the_last_extension_is_not_refused, knows_no_twelve_hours),
]

guarantees = pytest.mark.parametrize(("scenario", "mutation"), GUARANTEES, ids=[s.__name__ for s, _ in GUARANTEES])


@guarantees
@pytest.mark.spec("HBN-1", "HBN-3", "HBN-19", "HBN-20", "HBN-22", "HNS-15")
def test_a_guarantee_holds(scenario: Callable[[Make], None], mutation: Any, make: Make) -> None:
    scenario(make)


@guarantees
def test_a_guarantee_falls_with_its_safeguard(
    scenario: Callable[[Make], None], mutation: Callable[[Patch], None], make: Make, monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        mutation(patch)
        with pytest.raises(AssertionError):
            scenario(make)
    while _beating:
        _beating.pop().stop()
