"""The time of a queue that a process with a wrong clock set ahead is set back (DUR-83)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from concurrency.harness import apart, check_log
from conformance.instants import columns, stored
from insides import compact
from lakequeue import LakeQueue, PurgeQueueInProgress, Queue, QueueDeletedRecently, RedrivePolicy
from lakequeue.entry_verbs import doctor, update_move_tasks
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, SystemClock, to_micros
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.schedules import Schedule
from lakequeue.operations import consumer_round, repair
from lakequeue.operations.receive import Request
from lakequeue.serve.sqs.move_tasks import MoveTask, dump_tasks
from lakequeue.shard.admin import LONGEST, set_back
from lakequeue.shard.runs import DELETED, IN_FLIGHT, Head, Run
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Scenario, each_case, replace, shown_by

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
    queue.reschedule(queue.send("b").message_id, clock.now() + timedelta(days=3))
    lq.schedules.add("yearly", "orders", "x", cron="30 4 1 1 *")
    lq.schedules.add("once", "orders", "x", at=clock.now() + timedelta(days=30))
    lq.create_queue("gone")
    lq.delete_queue("gone")
    compact(lq)
    assert lq.repair(clock=True, apply=True) == [] == lq.repair("orders", clock=True, apply=True)
    assert not [warning for warning in doctor(lq).warnings if "schedule" in warning]


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
    history = [Run(4, 4, DELETED, None, 1, now + 5, None, now + 4)]
    ahead = Head(committed_at=now + 1, purged_at=now + 1, attributes=wire)
    head, mended, settled = set_back(ahead, runs, history, now)
    assert (head.committed_at, head.purged_at) == (now, None)
    assert settled == [Run(4, 4, DELETED, None, 1, now, None, now)]
    assert [run.visible_at for run in mended] == [now + 30 * MICROS, now, now, None]
    assert mended[2].received_at == now and mended[2].lease_id == "c"


LATER = {"receipts.run.visible_at", "schedules.next_due"}
"""Instants that are still to come: timeouts, and the times of schedules."""


def everything_by(lake: LakeQueue, clock: ManualClock) -> None:
    """Stores every instant that lakequeue stores, by the clock of an entry."""
    name = f"{clock.now():%Y%m%d}"
    lake.create_queue("dead", update=True)
    policy = RedrivePolicy("dead", 1)
    queue = lake.create_queue("orders", update=True, rewind_range=3600, rate_limit="100/s", redrive_policy=policy)
    queue.set_tags(at=name)
    queue.set_attributes(visibility_timeout=int(name) % 1000)
    queue.purge()
    lake.schedules.add(name, "orders", "x", cron="* * * * *")
    clock.advance(60)
    assert lake.schedules.run_due()
    queue.send("a")
    for _ in range(2):  # they become dead letters
        queue.receive(10, visibility_timeout=0)
    queue.send_arrow(pa.table({"body": ["b", "c"]}))
    queue.delete(queue.receive()[0].receipt_handle)
    assert queue.receive() and lake.queue("dead").counts().visible
    ordered = lake.create_queue("orders.fifo", fifo=True, update=True)
    ordered.send("d", group_id=name, dedup_id=name)
    assert ordered.receive(attempt_id=name)
    failing = lake.create_queue("failing", update=True)
    failing.send("e")
    handle = failing.receive()[0].receipt_handle
    reason = DeadLetterReason.of(ValueError("f"), clock.now(), "g")
    consumer_round.exchange(failing._runtime, [(handle, 60)], Request(1), {handle: reason})
    task = MoveTask(
        id=name, server=name, started=_millis(clock), written=_millis(clock), source="", destination=None,
        rate=None, to_move=0,
    )  # fmt: skip
    update_move_tasks(queue, lambda text: dump_tasks([task]))
    lake.create_queue(f"gone-{name}")
    lake.delete_queue(f"gone-{name}")
    compact(lake)


def _millis(clock: ManualClock) -> int:
    return to_micros(clock.now()) // 1000


@pytest.mark.spec("DUR-83")
def test_every_instant_that_the_layout_has_is_set_back(tmp_path: Path) -> None:
    """A new instant fails this test until the scenario stores it ahead of time and a repair sets it back."""
    clock = ManualClock(SystemClock().now())
    lake = apart(tmp_path, clock, 1)[0]
    everything_by(lake, clock)
    wrong = ManualClock(clock.now() + timedelta(days=10))
    everything_by(apart(tmp_path, wrong, 1)[0], wrong)
    limit = clock.now() + timedelta(minutes=1)
    ahead = {name for name, instant in stored(tmp_path) if instant > limit + timedelta(days=9)}
    assert ahead == columns()

    lake = apart(tmp_path, clock, 1)[0]
    planned = lake.repair(clock=True)
    assert planned and not any(each.applied for each in planned)
    assert all(each.applied for each in lake.repair(clock=True, apply=True))
    assert {name for name, instant in stored(tmp_path) if instant > limit} <= LATER
    assert not [instant for _, instant in stored(tmp_path) if instant > limit + timedelta(hours=12)]
    assert lake.repair(clock=True) == []
    assert not lake.check()


DAYS = timedelta(days=10)


def a_schedule_goes_on_once_the_clock_is_right(root: Path, clock: ManualClock, name: str, missed: str) -> None:
    lake = apart(root, clock, 1)[0]
    lake.create_queue(name, fifo=name.endswith(".fifo"), visibility_timeout=43_200, profile="lake")
    group = "g" if name.endswith(".fifo") else None
    for each in ("used", "paused", "done"):
        lake.schedules.add(each, name, each, cron="0 2 * * *", missed=missed, group_id=group)
    wrong = ManualClock(clock.now() + DAYS)
    there = apart(root, wrong, 1)[0]
    there.schedules.add("added", name, "added", cron="0 2 * * *", missed=missed, group_id=group)
    wrong.advance(43_200)
    there.schedules.run_due()
    lake.schedules.pause("paused")
    lake.schedules.resume("paused")

    clock.advance(86_400 + 7_260)  # at a minute past two in the morning
    lake = apart(root, clock, 1)[0]
    resumed = int(missed == "none")  # the wrong clock sent none of it, so it goes on
    assert lake.schedules.run_due() == resumed
    told = {row.name: row.last_error for row in lake.schedules.list()}
    silent = {each for each, error in told.items() if error is not None and "before its last one" in error}
    assert silent == {"used", "done", "added", "paused"} - ({"paused"} if resumed else set())
    warned = "\n".join(doctor(lake).warnings)
    assert all(f"schedule {each}: its next times lie before its last one" in warned for each in silent)
    assert lake.schedules.run_due() == 0

    assert all(each.applied for each in lake.repair(name, clock=True, apply=True))
    lake = apart(root, clock, 1)[0]
    lake.queue(name).purge()
    assert not [error for row in lake.schedules.list() if (error := row.last_error)]
    for day in range(2):
        clock.advance(86_400)
        assert lake.schedules.run_due() == 4, f"day {day}"
        assert lake.schedules.run_due() == 0
        assert lake.queue(name).counts().visible == 4
        lake.queue(name).purge()
    assert lake.repair(name, clock=True) == [] and "before its last one" not in "\n".join(doctor(lake).warnings)


@pytest.mark.spec("DUR-83", "JOB-7")
@pytest.mark.parametrize("missed", ["last", "all", "none"])
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_schedules_that_a_clock_silenced_say_so_and_go_on(
    tmp_path: Path, clock: ManualClock, name: str, missed: str
) -> None:
    a_schedule_goes_on_once_the_clock_is_right(tmp_path, clock, name, missed)


def silenced(missed: str) -> Scenario:
    return shown_by(a_schedule_goes_on_once_the_clock_is_right, lambda *given: (*given, "orders", missed))


MUTATIONS = [
    Mutation(
        "a schedule believes that it has sent what it finds",
        replace(Schedule, "is_ahead", lambda *_: False),
        {silenced("last"): "DUR-83"},
    ),
    Mutation(
        "only the ledger and the log are set back",
        replace(repair, "_own_clock_steps", lambda *_: []),
        {
            shown_by(test_every_instant_that_the_layout_has_is_set_back, lambda root, clock: (root,)): "DUR-83",
            silenced("all"): "DUR-83",
        },
    ),
]


@each_case(MUTATIONS)
def test_the_rule_falls_with_its_safeguard(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda _: (tmp_path, clock))


@pytest.mark.spec("DUR-83", "PUR-2")
def test_a_purge_by_the_right_clock_need_not_wait_for_one_by_a_wrong_clock(
    tmp_path: Path, clock: ManualClock
) -> None:
    lake = apart(tmp_path, clock, 1)[0]
    lake.create_queue("orders", shards=2)
    apart(tmp_path, ManualClock(clock.now() + DAYS), 1)[0].queue("orders").purge()
    with pytest.raises(PurgeQueueInProgress):
        rightly(tmp_path, clock).purge()
    lake.repair("orders", clock=True, apply=True)
    queue = rightly(tmp_path, clock)
    queue.purge()
    with pytest.raises(PurgeQueueInProgress):
        queue.purge()


@pytest.mark.spec("DUR-83", "QUE-14")
@pytest.mark.parametrize("name", ["orders", None])
def test_the_name_of_a_queue_that_a_wrong_clock_deleted_is_free_after_its_pause(
    tmp_path: Path, clock: ManualClock, name: str | None
) -> None:
    lake = apart(tmp_path, clock, 1)[0]
    lake.create_queue("orders", profile="sqs")
    apart(tmp_path, ManualClock(clock.now() + DAYS), 1)[0].delete_queue("orders")
    clock.advance(86_400)
    with pytest.raises(QueueDeletedRecently):
        lake.create_queue("orders", profile="sqs")
    [repaired] = lake.repair(name, clock=True, apply=True)
    assert repaired.applied and "orders" in repaired.steps[0]
    clock.advance(60)
    lake.create_queue("orders", profile="sqs").send("a")


@pytest.mark.spec("DUR-83")
def test_depths_are_recorded_again(tmp_path: Path, clock: ManualClock) -> None:
    lake = apart(tmp_path, clock, 1)[0]
    for name in ("orders", "others"):
        lake.create_queue(name).send("a")
    compact(lake)
    compact(apart(tmp_path, ManualClock(clock.now() + DAYS), 1)[0])

    def minutes() -> dict[str, list[datetime]]:
        rows = lake.arrow_views()["stats"].to_table().select(["queue", "minute"]).to_pylist()
        found: dict[str, list[datetime]] = {"orders": [], "others": []}
        for row in rows:
            found[row["queue"]].append(row["minute"])
        return {name: sorted(instants) for name, instants in found.items()}

    first = clock.now()
    clock.advance(60)
    compact(lake)
    assert minutes() == dict.fromkeys(("orders", "others"), [first, first + DAYS])
    assert lake.repair("orders", clock=True, apply=True)
    assert minutes() == {"orders": [first], "others": [first, first + DAYS]}
    compact(lake)
    assert minutes() == {"orders": [first, clock.now()], "others": [first, first + DAYS]}
    assert lake.repair(clock=True, apply=True)
    compact(lake)
    assert minutes() == dict.fromkeys(("orders", "others"), [first, clock.now()])
