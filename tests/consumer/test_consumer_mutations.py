"""Guarantees of the consumer, each with the safeguards that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consumer import test_consumer as consuming
from consumer.harness import Harness, sleeper
from lakequeue import Context, HeartbeatRenewal, Message, Outcome
from lakequeue.consumer.workers import WorkerPool
from lakequeue.renewal import policies
from lakequeue.renewal.heartbeat import HeartbeatScheduler
from mutations import Case, Mutation, Patch, each_case, replace, shown_by

Make = Callable[..., Harness]


# --- scenarios


def _ends(make: Make, handler: Any, changes: list[tuple[float, float]], visible_at: float | None) -> None:
    harness = make()
    harness.send("A")
    consumer = harness.consumer(handler, concurrency=2)
    with harness.running(consumer):
        harness.clock.advance(29)
        consumer.stop(timeout=0)
        harness.clock.advance(0.999)
        assert harness.visible() == []
        harness.clock.advance(0.001)
        assert bool(harness.visible()) is (visible_at == 30)
        harness.clock.advance(200)
    assert harness.queue.changes() == changes


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
    harness = make()
    harness.send("A")
    consumer = harness.consumer(sleeper(1_000))
    with harness.running(consumer) as running:
        harness.clock.advance(5)
        consumer.stop(timeout=0)
        assert running.join() is None
        harness.clock.advance(100)
    assert harness.queue.changes() == [(5, 0)]


def a_lost_receipt_is_told(make: Make) -> None:
    harness = make()
    harness.send("A")
    lost = []

    def handle(message: Message, context: Context) -> None:
        harness.other.change_visibility(message.receipt_handle, 0)
        harness.other.receive(visibility_timeout=1_000)
        lost.append(not context.sleep(100))

    with harness.running(harness.consumer(handle, concurrency=1)):
        harness.clock.advance(200)
    assert lost == [True]


def the_last_extension_is_not_refused(make: Make) -> None:
    harness = make()
    harness.send("A")
    lost = []

    def handle(message: Message, context: Context) -> None:
        lost.append(not context.sleep(43_000))

    policy = HeartbeatRenewal(visibility_timeout=20_000)
    with harness.running(harness.consumer(handle, concurrency=1, renewal=policy)):
        harness.clock.advance(43_100)
    assert lost == [False]
    assert harness.queue.deletes() == [(43_000, "A")]


# --- mutations

_beating: list[HeartbeatScheduler[str]] = []
"""Those that a mutation kept from stopping."""


def never_stops(patch: Patch) -> None:
    patch.setattr(HeartbeatScheduler, "drop", HeartbeatScheduler.get)
    patch.setattr(HeartbeatScheduler, "stop", _beating.append)


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


MUTATIONS = [
    Mutation(
        "never drops",
        replace(HeartbeatScheduler, "drop", HeartbeatScheduler.get),
        {
            a_heartbeat_ends_with_a_delete: "HBN-20 HNS-15",
            a_heartbeat_ends_with_a_failure: "HBN-3 HNS-15",
            a_heartbeat_ends_with_an_exception: "HBN-3 HNS-15",
        },
    ),
    Mutation("never stops", never_stops, {a_heartbeat_ends_with_its_consumer: "HNS-15"}),
    Mutation(
        "never beats",
        replace(HeartbeatRenewal, "next_check", lambda self, hold, since: None),
        {
            shown_by(
                consuming.test_messages_that_wait_for_their_group_are_kept_too, lambda make: (make(fifo=True),)
            ): "HBN-1"
        },
    ),
    Mutation(
        "knows no groups",
        replace(WorkerPool, "_by_lane", lambda self, jobs: {job.handle: [job] for job in jobs}),
        {
            shown_by(
                consuming.test_groups_go_in_parallel_and_their_messages_in_turn, lambda make: (make(fifo=True),)
            ): "HBN-19"
        },
    ),
    Mutation(
        "returns only the failure",
        returns_only_the_failure,
        {
            shown_by(
                consuming.test_after_a_failure_the_rest_of_the_group_is_skipped,
                lambda make: (make(fifo=True), False, 30),
            ): "HBN-19"
        },
    ),
    Mutation(
        "keeps losses to itself",
        replace(WorkerPool, "_lose", lambda self, handle: None),
        {a_lost_receipt_is_told: "HBN-20"},
    ),
    Mutation(
        "hands nothing back",
        replace(WorkerPool, "_release", lambda self, jobs: None),
        {
            shown_by(
                consuming.test_a_stop_finishes_what_runs_and_hands_back_what_waits, lambda make: (make(fifo=True),)
            ): "HBN-19"
        },
    ),
    Mutation(
        "knows no twelve hours",
        replace(policies, "_within_twelve_hours", lambda hold, now, timeout: timeout),
        {the_last_extension_is_not_refused: "HBN-22"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, make: Make) -> None:
    case.run(lambda _: (make,))
    while _beating:
        _beating.pop().stop()
