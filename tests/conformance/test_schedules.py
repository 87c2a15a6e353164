"""Schedules through the tables: a due message is sent once, by any process and after any failure (JOB-7)."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from concurrency.steps import meanwhile
from conformance.failing import Failing
from conformance.harness import Harness, bodies, every_engine
from insides import compact, engine_of, reopen
from lakequeue import InvalidParameterValue, LakeQueue, QueueDoesNotExist, QueueServiceError
from lakequeue.cli import app
from lakequeue.entry_verbs import doctor
from lakequeue.errors import DamagedTable
from lakequeue.model.schedules import Schedule
from lakequeue.operations import schedules, send
from lakequeue.operations.schedules import OpenSchedules
from lakequeue.storage import layout
from lakequeue.storage.engines.transaction import Change, commit
from lakequeue.storage.messages.append import Appender
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, shown_by

NIGHT: dict[str, Any] = {"cron": "0 2 * * *", "tz": "Europe/Berlin"}
HOURLY: dict[str, Any] = {"cron": "0 * * * *"}
BEYOND = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
"""An instant without a date in UTC."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 27, 12, tzinfo=timezone.utc))


def at(clock: ManualClock, day: int, hour: int, minute: int = 0) -> None:
    """Moves the clock to an instant of March 2026."""
    clock.advance((datetime(2026, 3, day, hour, minute, tzinfo=timezone.utc) - clock.now()).total_seconds())


def due(queue: Any) -> list[str]:
    """The times for which messages were sent, in order, in days and hours."""
    found = [message.message_attributes["scheduled_at"].value for message in queue.peek(limit=200)]
    return sorted(time[8:16].replace("T", " ") for time in found)


@pytest.mark.spec("JOB-7")
def test_a_schedule_is_replaced_if_asked_and_sends_what_is_due(harness: Harness, clock: ManualClock) -> None:
    queue, schedules = harness.create(), harness.open().schedules
    schedules.add("report", queue.name, "old", **HOURLY)
    with pytest.raises(InvalidParameterValue, match="update=True"):
        schedules.add("report", queue.name, "new", **NIGHT)
    at(clock, 27, 13)  # which is due, and nobody has looked
    replaced = schedules.add("report", queue.name, "new", **NIGHT, update=True)
    assert schedules.add("report", queue.name, "new", **NIGHT, update=True) == replaced == schedules.list()[0]
    assert schedules.run_due() == 1 and due(queue) == ["27 13:00"] and bodies(queue.peek()) == ["new"]
    assert schedules.run_due() == 0
    at(clock, 28, 12)
    assert schedules.run_due() == 1 and due(queue) == ["27 13:00", "28 01:00"]
    schedules.pause("report")
    schedules.add("report", queue.name, "hourly", **HOURLY, update=True)
    assert schedules.list()[0].paused, "until somebody resumes it"
    at(clock, 29, 12)
    assert schedules.run_due() == 0
    schedules.resume("report")
    at(clock, 29, 13)
    assert schedules.run_due() == 1 and due(queue)[-1] == "29 13:00"


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize("before", [HOURLY, {"at": datetime(2026, 3, 27, 13, tzinfo=timezone.utc)}])
def test_a_schedule_that_is_replaced_while_its_message_is_sent_stays_replaced(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, before: dict[str, Any]
) -> None:
    queue, schedules = harness.create(), harness.open().schedules
    schedules.add("report", queue.name, "old", **before)
    at(clock, 27, 13)
    run = OpenSchedules._run

    def meanwhile_replaced(self: OpenSchedules, *given: Any) -> Any:
        harness.open().schedules.add("report", queue.name, "new", **NIGHT, update=True)
        return run(self, *given)

    monkeypatch.setattr(OpenSchedules, "_run", meanwhile_replaced)
    assert schedules.run_due() == 1 and bodies(queue.peek()) == ["old"]
    monkeypatch.undo()
    [found] = schedules.list()
    assert (found.body, found.cron, found.next_due.hour) == ("new", NIGHT["cron"], 1)
    assert schedules.run_due() == 0
    at(clock, 28, 1)
    assert schedules.run_due() == 1 and due(queue) == ["27 13:00", "28 01:00"]


@every_engine
@pytest.mark.spec("JOB-7")
def test_a_nightly_message_is_sent_once_each_night_by_any_process(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create()
    assert harness.open().schedules.list() == [] and harness.open().schedules.run_due() == 0
    made = harness.open().schedules.add("nightly", "orders", "report", **NIGHT)
    assert made == harness.open().schedules.add("nightly", "orders", "report", **NIGHT)
    assert harness.open().schedules.list() == [made]
    assert harness.open().schedules.run_due() == 0
    at(clock, 28, 1)
    assert harness.open().schedules.run_due() == 1 and harness.open().schedules.run_due() == 0
    at(clock, 29, 1)  # the night in which clocks are set forward
    assert harness.open().schedules.run_due() == 1 and harness.open().schedules.run_due() == 0
    assert due(queue) == ["28 01:00", "29 01:00"]
    [message, _] = queue.receive(10)
    assert (message.body, message.message_attributes["schedule"].value) == ("report", "nightly")
    [row] = harness.open().schedules.list()
    assert (row.last_due, row.next_due) == (clock.now(), clock.now() + timedelta(hours=23))


@pytest.mark.spec("JOB-7")
def test_every_kind_of_queue_gets_its_message_once(lq: LakeQueue, clock: ManualClock) -> None:
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({"shards": 3}, {}),
        "fifo.fifo": ({"fifo": True}, {"group_id": "g"}),
        "content.fifo": ({"fifo": True, "content_based_deduplication": True}, {"group_id": "g"}),
        "urgent": ({"priorities": 3, "shards": 6}, {"priority": 2}),
        "unique": ({"deduplication_interval": 3_600}, {}),
        "tenants": ({"group_in_flight_limit": 2, "shards": 3}, {"group_id": "g"}),
        "cmq": ({"profile": "cmq"}, {}),
    }
    for name, (attributes, options) in kinds.items():
        lq.create_queue(name, **attributes)
        lq.schedules.add(name, name, "x", cron="* * * * *", missed="all", **options)
    clock.advance(120)
    assert reopen(lq).schedules.run_due() == 2 * len(kinds)
    for name, (_, options) in kinds.items():
        [first, second] = lq.queue(name).peek()
        assert {first.group_id, second.group_id} == {options.get("group_id")}, name
        assert due(lq.queue(name)) == ["27 12:01", "27 12:02"]


@pytest.mark.spec("JOB-7", "ERR-8")
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
def test_each_commit_of_a_look_fails_in_turn(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """An hour later another process looks."""
    failing, base = Failing(monkeypatch, lasts), LakeQueue(str(tmp_path / "base"), clock=clock)
    for queue in (base.create_queue("a", shards=3), base.create_queue("b.fifo", fifo=True)):
        group = "g" if queue.fifo else None
        base.schedules.add(f"all-{queue.name}", queue.name, "x", **HOURLY, missed="all", group_id=group)
        base.schedules.add(f"last-{queue.name}", queue.name, "x", **HOURLY, group_id=group)
        base.schedules.add(f"once-{queue.name}", queue.name, "x", at=clock.now(), group_id=group)
    for after in range(20):
        shutil.copytree(base.root, tmp_path / str(after))
        time = ManualClock(clock.now() + timedelta(hours=1))
        lake = reopen(LakeQueue(str(tmp_path / str(after)), clock=time))
        failing.run(after, lake.schedules.run_due)
        lake.queue("a").set_attributes(shards=5)  # the next look finds more of them
        time.advance(3_600)
        for _ in range(2):
            reopen(lake).schedules.run_due()
        for queue in reopen(lake).list_queues():
            messages = queue.peek(limit=100)
            sent = [
                (m.message_attributes["schedule"].value, m.message_attributes["scheduled_at"]) for m in messages
            ]
            assert len(sent) == len(set(sent)), f"after {after} commits: {sorted(sent)}"
            counts = Counter(name.partition("-")[0] for name, _ in sent)
            assert (counts["all"], counts["once"]) == (2, 1) and counts["last"] in (1, 2)
        assert [row.last_error for row in lake.schedules.list()] == [None] * 4
        if not failing.failed:
            assert after == 3 + lasts, "a send to each queue, the rows, and the look at the base after that"
            return
    raise AssertionError("a look of twenty commits")


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize("together", [2, 1_000])
def test_what_is_due_is_few_commits_for_each_queue(
    lq: LakeQueue, clock: ManualClock, monkeypatch: Patch, together: int
) -> None:
    monkeypatch.setattr(schedules, "_TOGETHER", together)
    queues = lq.create_queue("a"), lq.create_queue("b.fifo", fifo=True)
    for number in range(4):
        name = queues[number % 2].name
        lq.schedules.add(f"s{number}", name, "x", cron="* * * * *", missed="all", group_id="g")
    clock.advance(120)

    def versions() -> list[int]:
        paths = [layout.schedules_path(lq.root), *(layout.messages_path(lq.root, each.key, 0) for each in queues)]
        return [engine_of(lq).open(path).version for path in paths]

    before = versions()
    assert lq.schedules.run_due() == 8 and lq.schedules.run_due() == 0
    commits = -(-4 // together)
    assert [new - old for new, old in zip(versions(), before, strict=True)] == [1, commits, commits]
    for queue in queues:
        assert due(queue) == ["27 12:01", "27 12:01", "27 12:02", "27 12:02"]


@pytest.mark.spec("JOB-7")
def test_two_looks_at_once_send_one_message(lq: LakeQueue, clock: ManualClock, monkeypatch: Patch) -> None:
    """Both have read the schedule before either sends."""
    queue, met = lq.create_queue("orders", shards=3), threading.Barrier(2, timeout=60)
    lq.schedules.add("nightly", "orders", "report", **HOURLY)
    lq.schedules.add("other", "orders", "report", **HOURLY, missed="all")
    clock.advance(2 * 3_600)
    run = OpenSchedules._run

    def together(self: OpenSchedules, *given: Any) -> Any:
        met.wait()
        return run(self, *given)

    monkeypatch.setattr(OpenSchedules, "_run", together)
    sent: list[int] = []
    looks = [reopen(lq).schedules, reopen(lq).schedules]
    threads = [threading.Thread(target=lambda look=look: sent.append(look.run_due())) for look in looks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(sent) == 3 and due(queue) == ["27 13:00", "27 14:00", "27 14:00"]


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize(("where", "name"), [(OpenSchedules, "_send"), (Appender, "append")], ids=["before", "in"])
def test_who_stopped_about_a_send_adds_nothing(lq: LakeQueue, clock: ManualClock, where: Any, name: str) -> None:
    """A process stops as it sends, again and again, while others look; it goes on after them."""
    queue = lq.create_queue("orders", shards=3)
    lq.schedules.add("hourly", "orders", "report", **HOURLY)

    def others(*_: Any) -> None:
        assert reopen(lq).schedules.run_due() == 1
        clock.advance(3_600)

    for hour in range(8):
        clock.advance(0 if hour else 3_600)
        with meanwhile(where, name, others):
            assert reopen(lq).schedules.run_due() == 0
        assert len(due(queue)) == len(set(due(queue))) == hour + 1
    [row] = reopen(lq).schedules.list()
    assert row.last_due == clock.now() - timedelta(hours=1) and row.next_due == clock.now()


@pytest.mark.spec("JOB-7")
def test_of_missed_times_those_are_sent_that_the_schedule_says(
    lq: LakeQueue, clock: ManualClock, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lakequeue.model.schedules.MOST_AT_ONCE", 3)
    for missed in ("last", "all", "none"):
        lq.create_queue(missed)
        lq.schedules.add(missed, missed, "x", cron="*/10 * * * *", missed=missed)
    clock.advance(50 * 60 + 301)
    assert lq.schedules.run_due() == 1 + 3
    assert due(lq.queue("last")) == ["27 12:50"] and due(lq.queue("none")) == []
    [behind] = [row for row in lq.schedules.list() if row.next_due <= clock.now()]
    assert behind.name == "all" and lq.schedules.run_due() == 2
    assert len(set(due(lq.queue("all")))) == 5
    clock.advance(300)
    assert lq.schedules.run_due() == 3 and due(lq.queue("none")) == ["27 13:00"]


@pytest.mark.spec("JOB-7")
def test_a_refused_schedule_keeps_its_time_and_the_others_go_on(
    lq: LakeQueue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    small, gone, well = (lq.create_queue(name) for name in ("small", "gone", "well"))
    for queue in (small, gone, well):
        lq.schedules.add(queue.name, queue.name, "x" * 2_000, **HOURLY)
    small.set_attributes(maximum_message_size=1_024)
    lq.delete_queue("gone")
    clock.advance(3_600)
    assert lq.schedules.run_due() == 1 and len(well.peek()) == 1
    errors = {row.name: row.last_error for row in lq.schedules.list()}
    assert "1,024" in str(errors["small"]) or "1024" in str(errors["small"])
    assert "does not exist" in str(errors["gone"]) and errors["well"] is None
    table = engine_of(lq).open(layout.schedules_path(lq.root))
    assert lq.schedules.run_due() == 0 and len(caplog.records) == 2  # and nothing is written or logged again
    assert engine_of(lq).open(layout.schedules_path(lq.root)).version == table.version
    lq.schedules.add("late", "well", "x", at=clock.now())
    clock.advance(301)
    found = [each for each in doctor(lq).concerns if each.kind.startswith("schedule")]
    assert [each.text for each in found] == [
        f"schedule gone: {errors['gone']}",
        f"schedule small: {errors['small']}",
        "schedule late is overdue",
    ]
    listed, *steps = [step.command for step in found[0].steps]
    assert [step.command for step in found[2].steps] == [listed] == ["lakequeue schedule list"]
    assert steps == [
        "lakequeue create gone",
        "lakequeue schedule add gone --queue QUEUE --update",
        "lakequeue schedule pause gone",
        "lakequeue schedule remove gone",
    ]
    assert [step.command for step in found[1].steps][1] == "lakequeue schedule add small --body BODY --update"
    lq.schedules.remove("late")
    lq.create_queue("gone")
    small.set_attributes(maximum_message_size=4_096)
    clock.advance(3_600)
    assert lq.schedules.run_due() == 3
    assert due(lq.queue("gone")) == ["27 14:00"] and due(small) == ["27 14:00"]
    assert {row.last_error for row in lq.schedules.list()} == {None}


def test_an_update_on_the_command_line_keeps_what_is_not_given(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    for name in ("a", "b"):
        lq.create_queue(name)
    at = lq.clock.now().replace(microsecond=0) + timedelta(days=1)
    lq.schedules.add("nightly", "a", "x", cron="0 2 * * *", tz="Europe/Berlin", missed="all")
    lq.schedules.add("once", "a", "y", at=at)

    def update(*arguments: str) -> Schedule:
        add = ["--root", lq.root, "schedule", "add", *arguments, "--update"]
        assert CliRunner().invoke(app, add).exit_code == 0
        return next(row for row in lq.schedules.list() if row.name == arguments[0])

    moved = update("nightly", "--queue", "b")
    assert (moved.queue, moved.body, moved.cron, moved.tz) == ("b", "x", "0 2 * * *", "Europe/Berlin")
    assert (update("nightly", "--cron", "1 2 * * *").cron, moved.missed) == ("1 2 * * *", "all")
    later = update("once", "--body", "z")
    assert (later.body, later.queue, later.next_due) == ("z", "a", at)
    single = update("nightly", "--at", "2040-01-01T06:00Z")
    assert (single.cron, single.queue, single.next_due.year) == (None, "b", 2040)
    refused = CliRunner().invoke(app, ["--root", lq.root, "schedule", "add", "new", "--cron", "0 2 * * *"])
    assert refused.exit_code == 2 and "give --queue and --body" in refused.stderr


def set_due(lq: LakeQueue, name: str, instant: int) -> None:
    """Gives a schedule another time, in microseconds, as another program could."""
    table = engine_of(lq).open(layout.schedules_path(lq.root))
    rows = pa.concat_tables(table.read(table.files())).select(layout.SCHEDULES.names).cast(layout.SCHEDULES)
    due = pc.if_else(pc.equal(rows["name"], name), instant, rows["next_due"].cast(pa.int64()))
    at = rows.schema.get_field_index("next_due")
    rows = rows.set_column(at, rows.schema.field(at), due.cast(rows.schema.field(at).type))
    ids = {layout.SCHEDULES_ID: (table.transaction(layout.SCHEDULES_ID) or 0) + 1}
    puts = rows.append_column("op", pa.repeat("put", len(rows)))
    assert commit(table, Change({}, ids, partial(table.merge, puts, "id"), None))


@pytest.mark.spec("JOB-7")
def test_a_time_that_no_calendar_has_stops_no_other_schedule(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders")
    lq.schedules.add("first", "orders", "x", cron="0 * * * *", tz="America/New_York", missed="all")
    lq.schedules.add("well", "orders", "x", **HOURLY)
    set_due(lq, "first", -62_135_596_800_000_000)  # the year 1, which is before it in New York
    clock.advance(3_600)
    assert reopen(lq).schedules.run_due() == 1 and len(queue.peek()) == 1
    assert "out of range" in str(reopen(lq).schedules.list()[0].last_error)
    set_due(lq, "first", -62_135_596_800_000_001)
    with pytest.raises(DamagedTable, match="cannot be read"):
        reopen(lq).schedules.list()
    assert ["cannot be read" in each.problem for each in doctor(reopen(lq)).findings] == [True]
    [found], [repair] = reopen(lq).check(), reopen(lq).repair(apply=True)
    assert "cannot be read" in found.problem and found.repair.startswith("nothing; remove it")
    assert "add its schedules anew" in repair.notes[0] and not repair.steps


@pytest.mark.spec("JOB-7", "JOB-5")
def test_a_priority_that_the_queue_no_longer_has_is_refused(lq: LakeQueue, clock: ManualClock) -> None:
    lq.create_queue("orders", priorities=3)
    lq.schedules.add("urgent", "orders", "x", **HOURLY, priority=2)
    lq.delete_queue("orders")
    queue = lq.create_queue("orders", priorities=2)
    clock.advance(3_600)
    assert lq.schedules.run_due() == 0 and queue.peek() == []
    [row] = lq.schedules.list()
    assert "priority" in str(row.last_error) and row.next_due == clock.now()


@pytest.mark.spec("JOB-7")
def test_a_pause_leaves_times_out_and_a_schedule_that_is_added_again_is_another(
    lq: LakeQueue, clock: ManualClock
) -> None:
    queue, own = lq.create_queue("orders"), lq.schedules
    own.add("hourly", "orders", "x", **HOURLY)
    own.pause("hourly")
    clock.advance(2 * 3_600)
    assert own.run_due() == 0
    own.resume("hourly")
    own.resume("hourly")
    assert own.run_due() == 0
    clock.advance(3_600)
    own.resume("hourly")  # it runs: what is due stays so
    assert own.run_due() == 1 and due(queue) == ["27 15:00"]
    for _ in range(2):
        assert own.run_now("hourly").message_id in {message.message_id for message in queue.peek()}
    assert len(queue.peek()) == 3
    own.remove("hourly")
    assert own.list() == []
    for seconds in 60, 3_600:
        own.add(f"in-{seconds}", "orders", "late", at=clock.now() + timedelta(seconds=seconds))
        own.pause(f"in-{seconds}")
    clock.advance(60)
    own.resume("in-60")
    own.resume("in-3600")
    assert own.run_due() == 0 and [row.name for row in own.list()] == ["in-3600"]
    own.remove("in-3600")
    with pytest.raises(InvalidParameterValue, match="tz is invalid.*Goes with cron"):
        own.add("hourly", "orders", "once", at=clock.now(), tz="Europe/Berlin")
    own.add("hourly", "orders", "once", at=clock.now())
    assert own.run_due() == 1 and own.list() == []
    assert bodies(queue.peek()) == ["once", "x", "x", "x"]


@pytest.mark.spec("JOB-8")
def test_a_message_is_sent_for_an_instant_within_the_longest_delay(lq: LakeQueue, clock: ManualClock) -> None:
    queue, sqs = lq.create_queue("orders", delay=5), lq.create_queue("sqs", profile="sqs")
    fifo = lq.create_queue("jobs.fifo", fifo=True, content_based_deduplication=True)
    queue.send("later", at=clock.now() + timedelta(seconds=10.5))
    sqs.send("later", at=clock.now() + timedelta(seconds=10.5))
    for sent, group in ((queue, None), (fifo, "g")):
        sent.send("now", at=clock.now() - timedelta(days=1), group_id=group)
        assert bodies(sent.receive(10)) == ["now"]
    clock.advance(10.5)
    assert bodies(queue.receive(10)) == ["later"] and sqs.receive() == []
    clock.advance(0.5)
    assert bodies(sqs.receive(10)) == ["later"]
    soon = clock.now() + timedelta(seconds=901)
    for call, reason in [
        (lambda: sqs.send("x", at=soon), "at is invalid.*900 s from now; a schedule can send later messages"),
        (lambda: queue.send("x", at=clock.now() + timedelta(days=15)), "at is invalid.*345600 s from now"),
        (lambda: fifo.send("x", at=soon, group_id="g"), "at is invalid.*not valid for this queue type"),
        (lambda: queue.send("x", at=soon, delay=5), "Give either at or delay"),
        (lambda: queue.send("x", at=datetime(2026, 4, 1)), "at is invalid.*time zone"),
    ]:
        with pytest.raises(InvalidParameterValue, match=reason):
            call()
    assert queue.counts().delayed == sqs.counts().delayed == 0


@pytest.mark.spec("JOB-7")
def test_schedules_belong_to_a_region(harness: Harness, clock: ManualClock) -> None:
    for region in ("a", "b"):
        harness.open(region=region).create_queue("orders")
        harness.open(region=region).schedules.add("nightly", "orders", region, **HOURLY)
    harness.open(region="a").schedules.remove("nightly")
    clock.advance(3_600)
    assert harness.open(region="a").schedules.run_due() == 0
    assert harness.open(region="b").schedules.run_due() == 1
    assert harness.open(region="a").schedules.list() == []


@pytest.mark.spec("JOB-7")
def test_a_refused_schedule_changes_nothing(lq: LakeQueue, clock: ManualClock, monkeypatch: Patch) -> None:
    own = lq.schedules
    with pytest.raises(QueueDoesNotExist):
        lq.create_queue("other").name and own.add("a", "orders", "x", **HOURLY)
    lq.create_queue("orders", maximum_message_size=1_024)
    lq.create_queue("jobs.fifo", fifo=True)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: own.add("a", "orders", "x"), "cron or at"),
        (lambda: own.add("a", "orders", "x", **HOURLY, at=clock.now()), "cron or at"),
        (lambda: own.add("a", "orders", "x", at="now"), "at is invalid"),  # type: ignore[arg-type]
        (lambda: own.add("a", "orders", "x", at=BEYOND), "at is invalid"),
        (lambda: own.add("a", "orders", "x", cron="* * *"), "five fields"),
        (lambda: own.add("a", "orders", "x" * 2_000, **HOURLY), "1024"),
        (lambda: own.add("a", "orders", "", **HOURLY), "body|MessageBody"),
        (lambda: own.add("a", "orders", "x", **HOURLY, priority=1), "priority"),
        (lambda: own.add("a", "jobs.fifo", "x", **HOURLY), "group_id|MessageGroupId"),
        (lambda: own.run_now("a"), "no such schedule"),
        (lambda: own.remove("a"), "no such schedule"),
        (lambda: own.pause("a/b"), "name is invalid"),
    ]
    for call, reason in wrong:
        with pytest.raises(QueueServiceError, match=reason):
            call()
    assert own.list() == [] and not engine_of(lq).exists(layout.schedules_path(lq.root))
    own.add("a", "orders", "x", **HOURLY)
    with pytest.raises(InvalidParameterValue, match="another schedule"):
        own.add("a", "orders", "y", **HOURLY)
    monkeypatch.setattr("lakequeue.operations.schedules.MOST", 1)
    with pytest.raises(InvalidParameterValue, match="remove some"):
        own.add("b", "orders", "x", **HOURLY)
    assert [row.body for row in reopen(lq).schedules.list()] == ["x"]


def test_a_thread_looks_at_the_start_of_each_minute(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders")
    lq.schedules.add("often", "orders", "x", cron="* * * * *")
    clock.advance(30)
    with lq.schedules.running():
        for minute in (1, 2, 3):
            clock.advance(60)
            assert len(due(queue)) == minute
    clock.advance(120)
    assert len(due(queue)) == 3


def test_the_table_stays_small_and_is_swept(lq: LakeQueue, clock: ManualClock) -> None:
    lq.create_queue("orders")
    lq.schedules.add("often", "orders", "x", cron="* * * * *")
    lq.schedules.add("other", "orders", "x", **HOURLY)
    for _ in range(5):
        clock.advance(60)
        lq.schedules.run_due()
    assert len(engine_of(lq).open(layout.schedules_path(lq.root)).files()) == 1
    compact(lq)
    assert len(reopen(lq).schedules.list()) == 2


def forget_sends(patch: Patch) -> None:
    """A message is sent under no id that a shard remembers."""
    patch.setattr(send, "stream_id", lambda _: uuid.uuid4().hex)


def send_to_any_shard(patch: Patch) -> None:
    """Sends late, and looks for the message in the wrong shard."""
    patch.setattr(send, "_by_shard", lambda queue, entries: [(send.in_turn(queue), entries)])


def fresh(tmp_path: Path, _: Patch) -> tuple[LakeQueue, ManualClock, Any, str]:
    clock = ManualClock(datetime(2026, 3, 27, 12, tzinfo=timezone.utc))
    return LakeQueue(str(tmp_path / "root"), clock=clock), clock, Appender, "append"


in_turn = shown_by(
    test_each_commit_of_a_look_fails_in_turn, lambda tmp_path, patch: (tmp_path, ManualClock(), patch, True)
)
stopped_in_a_send = shown_by(test_who_stopped_about_a_send_adds_nothing, fresh)
MUTATIONS = [
    Mutation("send under a new id", forget_sends, {in_turn: "JOB-7", stopped_in_a_send: "JOB-7"}),
    Mutation("send to any shard", send_to_any_shard, {stopped_in_a_send: "JOB-7"}),
]


@each_case(MUTATIONS)
def test_the_rule_falls_with_its_safeguard(tmp_path: Path, case: Case) -> None:
    case.run(lambda patch: (tmp_path, patch))
