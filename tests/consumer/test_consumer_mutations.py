"""Guarantees of the consumer, each with the safeguards that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consumer import test_consumer as consuming
from consumer import test_consumer_timelines as timelines
from consumer import test_deleted_by_others as deleted
from consumer import test_late as late
from consumer import test_lingering as lingering
from consumer import test_outages as failing
from consumer import test_rounds as rounds
from consumer.harness import Harness, raises, sleeper
from lakequeue import Context, HeartbeatRenewal, Message, Outcome
from lakequeue.consumer import pool
from lakequeue.consumer.events import WakeHands
from lakequeue.consumer.handler import Lost
from lakequeue.consumer.jobs import Done, Turn
from lakequeue.consumer.letters import Letters
from lakequeue.consumer.outages import OutageMonitor
from lakequeue.consumer.pool import Pool
from lakequeue.consumer.queue_loop import QueueLoop
from lakequeue.operations import claim, move
from lakequeue.renewal import policies
from lakequeue.renewal.heartbeat import HeartbeatScheduler
from lakequeue.renewal.holds import Holds
from lakequeue.shard.claim.fifo import Groups
from lakequeue.shard.decide import ShardMachine
from mutations import Case, Mutation, Patch, Scenario, each_case, replace, shown_by

Make = Callable[..., Harness]


class _NoLog:
    """In the place of `caplog` for scenarios that look at it last."""

    messages = ["storage of orders fails: deleting: no network"]


# --- scenarios


def a_group_waits_for_no_deletion(make: Make) -> None:
    lingering.nothing_waits(lingering.linger(make(fifo=True)))


def a_group_has_no_interval(make: Make) -> None:
    lingering.nothing_rests(make(fifo=True))


def a_cap_waits_for_no_deletion(make: Make) -> None:
    lingering.nothing_waits(lingering.linger(make(max_inflight_messages=10)))


def _ends(make: Make, answer: Any, visible_at: float | None) -> None:
    """A handler of five seconds."""
    harness = make()
    harness.send("A")
    consumer = harness.consumer(harness.handler(5, answer), concurrency=2)
    with harness.running(consumer):
        harness.clock.advance(29)
        consumer.stop(timeout=0)
        harness.clock.advance(0.999)
        assert harness.visible() == []
        harness.clock.advance(0.001)
        assert bool(harness.visible()) is (visible_at == 30)
        harness.clock.advance(200)
    assert harness.queue.changes() == []


def a_heartbeat_ends_with_a_delete(make: Make) -> None:
    _ends(make, None, None)


def a_heartbeat_ends_with_a_failure(make: Make) -> None:
    _ends(make, Outcome.FAILED, 30)


def a_heartbeat_ends_with_an_exception(make: Make) -> None:
    _ends(make, raises(ValueError("by a handler")), 30)


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


def a_lost_receipt_never_deletes(make: Make) -> None:
    """The consumer does not rely on the queue, where the handle might still delete (RCP-8)."""
    harness = make()
    harness.send("A")

    def handle(message: Message, context: Context) -> None:
        context.lost.set()

    harness.consume(handle, 1, concurrency=1)
    assert harness.queue.deletes() == []
    assert harness.other.counts().in_flight == 1


def a_drain_hands_back_what_comes_while_it_begins(make: Make) -> None:
    harness = make()
    harness.send("A")
    handler = harness.handler()
    consumer = harness.consumer(handler)
    harness.queue.before = lambda verb, bodies: consumer.stop() if verb == "receive" else None
    with harness.running(consumer) as running:
        assert running.join() is None
    assert handler.bodies == [] and harness.visible() == ["A"]


def a_drain_waits_for_what_runs(make: Make) -> None:
    harness = make()
    harness.send("A")
    consumer = harness.consumer(sleeper(10))
    with harness.running(consumer) as running:
        consumer.stop()
        harness.clock.advance(10)
        assert running.join() is None
    assert harness.queue.deletes() == [(10, "A")]


# --- mutations


def deletes_whatever_is_lost(patch: Patch) -> None:
    patch.setattr(Lost, "__bool__", lambda self: False)


def waits_for_nobody(patch: Patch) -> None:
    wind_down = QueueLoop._wind_down

    def at_once(self: QueueLoop) -> None:
        self._controls.grace = 0
        wind_down(self)

    patch.setattr(QueueLoop, "_wind_down", at_once)


def deletes_once(patch: Patch) -> None:
    """Gives a delete up that fails, as if the receipt were lost."""
    failed = OutageMonitor.failed
    patch.setattr(
        OutageMonitor,
        "failed",
        lambda self, doing, error: failed(self, doing, error) and doing != "deleting",
    )


_beating: list[HeartbeatScheduler] = []
"""Those that a mutation kept from stopping."""


def looks_at_extensions_only(patch: Patch) -> None:
    patch.setattr(QueueLoop, "_gone", lambda self, handles: ())


def never_drops(patch: Patch) -> None:
    """Nor looks for messages that were deleted."""
    patch.setattr(Holds, "drop", Holds.get)
    looks_at_extensions_only(patch)


def never_stops(patch: Patch) -> None:
    patch.setattr(Holds, "drop", Holds.get)
    patch.setattr(HeartbeatScheduler, "stop", _beating.append)


def knows_no_groups(patch: Patch) -> None:
    turns_of = QueueLoop._turns

    def alone(self: QueueLoop, messages: Sequence[Message], now: int) -> list[Turn]:
        turns = [turn for message in messages for turn in turns_of(self, [message], now)]
        for turn in turns:
            turn.group = None
        return turns

    patch.setattr(QueueLoop, "_turns", alone)


def goes_on_before_the_delete(patch: Patch) -> None:
    later = Pool._settle_later

    def at_once(self: Pool, done: Done) -> None:
        later(self, done)
        before, ahead = done.job.turn, Turn(None)
        for job in list(before.jobs):
            job.turn = ahead
        ahead.jobs, before.jobs = before.jobs, ahead.jobs
        self.line.ready.append(ahead)
        self._do(WakeHands(1))

    patch.setattr(Pool, "_settle_later", at_once)


def wakes_for_the_first_only(self: Pool, done: Done) -> None:
    if not self._done:
        self._wake()
    self._done.append(done)


def shown(test: Callable[..., None], *arguments: Any, **attributes: Any) -> Scenario:
    """A test as a scenario: on a queue with these attributes, and with further arguments."""
    return shown_by(test, lambda make: (make(**attributes), *arguments))


LONG = {"visibility_timeout": 120}
MUTATIONS = [
    Mutation(
        "never drops",
        never_drops,
        {
            a_heartbeat_ends_with_a_delete: "HBN-20 HNS-15",
            a_heartbeat_ends_with_a_failure: "HBN-3 HNS-15",
            a_heartbeat_ends_with_an_exception: "HBN-3 HNS-15",
        },
    ),
    Mutation("never stops", never_stops, {a_heartbeat_ends_with_its_consumer: "HNS-15"}),
    Mutation(
        "knows no groups",
        knows_no_groups,
        {shown(consuming.test_groups_go_in_parallel_and_their_messages_in_turn, False, fifo=True): "HBN-19"},
    ),
    Mutation(
        "claims several messages of a group",
        replace(Groups, "pick", lambda self, count, one_each=False, pick=Groups.pick: pick(self, count)),
        {
            shown(
                consuming.test_each_hand_begins_a_group_of_its_own_and_other_processes_get_the_other_groups,
                fifo=True,
            ): "HBN-18 HBN-19"
        },
    ),
    Mutation(
        "returns only the failure",
        replace(Pool, "_end_rest", lambda self, job: []),
        {shown(consuming.test_after_a_failure_the_rest_of_the_group_is_skipped, False, 30, fifo=True): "HBN-19"},
    ),
    Mutation(
        "keeps losses to itself",
        replace(QueueLoop, "_lose", lambda self, action: None),
        {shown(consuming.test_the_handler_of_a_deleted_message_learns_that_it_is_lost, **LONG): "HBN-20"},
    ),
    Mutation(
        "hands nothing back",
        replace(QueueLoop, "_return_unseen", lambda self, handles: None),
        {
            shown(consuming.test_a_stop_finishes_what_runs_and_hands_back_what_waits, fifo=True): "HBN-19",
            a_drain_hands_back_what_comes_while_it_begins: "RCV-6 HBN-19",
        },
    ),
    Mutation("deletes whatever is lost", deletes_whatever_is_lost, {a_lost_receipt_never_deletes: "RCP-6 HBN-20"}),
    Mutation("waits for nobody", waits_for_nobody, {a_drain_waits_for_what_runs: "HBN-2"}),
    Mutation(
        "deletes once",
        deletes_once,
        {
            shown(
                failing.test_what_was_handled_during_an_outage_is_kept_and_deleted_after_it, _NoLog(), **LONG
            ): "HBN-2"
        },
    ),
    Mutation(
        "knows no twelve hours",
        replace(policies, "_within_twelve_hours", lambda hold, now, timeout: timeout),
        {
            shown(
                timelines.test_a_commit_that_comes_after_the_computed_end_is_tried_with_a_second_less, **LONG
            ): "HBN-22"
        },
    ),
    Mutation(
        "releases before an extension that is on its way",
        replace(Holds, "is_extending", lambda self, key: False),
        {
            shown(
                timelines.test_a_retry_delay_is_not_overwritten_by_an_extension_that_was_on_its_way, **LONG
            ): "HNS-14"
        },
    ),
    Mutation(
        "keeps what it has not begun",
        replace("lakequeue.consumer.ahead.Ahead.behind", 10**12),
        {shown(rounds.test_a_consumer_that_falls_behind_gives_back_what_it_has_not_begun, **LONG): "HBN-23"},
    ),
    Mutation(
        "looks at extensions only",
        looks_at_extensions_only,
        {
            shown_by(
                deleted.test_all_handlers_of_a_process_learn_it_within_two_seconds,
                lambda make: (make, HeartbeatRenewal(), "cancel"),
            ): "HBN-26 JOB-3"
        },
    ),
    Mutation(
        "begins what is over",
        replace(policies.Hold, "is_over", lambda hold, now: False),
        {
            shown_by(
                late.test_what_waits_longer_than_its_receipt_lasts_comes_again_in_order, lambda make: (make, 20)
            ): "HBN-25 FIF-1"
        },
    ),
    Mutation(
        "settles after the claim",
        replace(claim, "DeadLetterMoves", lambda queue, _, steps: move.DeadLetterMoves(queue, None, steps)),
        {shown(rounds.test_a_delete_and_the_next_claim_are_one_commit): "HBN-24"},
    ),
    Mutation(
        "waits on every queue",
        replace(ShardMachine, "_frees_others", lambda self: False),
        {a_group_waits_for_no_deletion: "HBN-27 FIF-8", a_cap_waits_for_no_deletion: "HBN-27 INF-3"},
    ),
    Mutation(
        "claims again at once",
        replace(pool, "rests_until", lambda *given: 0),
        {shown(lingering.one_claim_in_an_interval, **LONG): "HBN-29"},
    ),
    Mutation(
        "waits though there are messages",
        replace(ShardMachine, "took_all", True),
        {
            a_group_has_no_interval: "HBN-29 FIF-8",
            shown(lingering.what_a_claim_left_is_claimed_at_once, **LONG): "HBN-29",
        },
    ),
    Mutation(
        "uses up receipts",
        replace(Pool, "_until", lambda self, hold, now, longest: now + 60_000_000),
        {shown(lingering.a_receipt_is_not_used_up, **LONG): "HBN-27"},
    ),
    Mutation(
        "moves dead letters one by one",
        replace(Letters, "may_wait", lambda self, done, until: False),
        {shown(lingering.several_move_together, **LONG): "HBN-28"},
    ),
    Mutation(
        "leaves dead letters to the next claim",
        replace(Letters, "until", None),
        {shown(lingering.a_letter_waits_for_no_hand, **LONG): "HBN-28 DLQ-2"},
    ),
    Mutation(
        "has what is urgent wait",
        replace(Pool, "_settle_later", wakes_for_the_first_only),
        {shown(lingering.what_is_urgent_does_not_wait_with_the_rest, **LONG): "HBN-27"},
    ),
    Mutation(
        "goes on before the delete",
        goes_on_before_the_delete,
        {
            shown(
                rounds.test_the_next_message_of_a_group_begins_when_the_last_one_is_deleted, fifo=True
            ): "HBN-19 HBN-24"
        },
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, make: Make) -> None:
    case.run(lambda _: (make,))
    while _beating:
        _beating.pop().stop()
