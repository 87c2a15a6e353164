"""A clock that is far ahead is not believed at once (DUR-82)."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from concurrency.harness import Wrong, apart
from concurrency.steps import at
from insides import shard_of
from lakequeue import (
    Consumer,
    InvalidParameterValue,
    LakeQueue,
    LakeQueueError,
    Outage,
    PurgeQueueInProgress,
    Queue,
    QueueClientError,
)
from lakequeue.model.clock import SystemClock
from lakequeue.operations import move, relations
from lakequeue.storage import clock_guard, layout
from lakequeue.storage.clock_guard import AHEAD, ClockGuard
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, believe_every_clock, each_case, replace, shown_by

DAYS = timedelta(days=1)
VERBS: dict[str, Callable[[Queue], object]] = {
    "send": lambda queue: queue.send("ahead"),
    "receive": lambda queue: queue.receive(10),
    "purge": Queue.purge,
    "send_arrow": lambda queue: queue.send_arrow(pa.table({"body": ["ahead"]})),
}


def judged(queue: Queue) -> object:
    views = relations.relations(queue._runtime.root, None, None)
    return [view.to_table() for name, view in views.items() if name != "stats"]


READS: dict[str, Callable[[Queue], object]] = {
    "receive": lambda queue: queue.receive(10),
    "receive of nothing": lambda queue: queue.receive(visibility_timeout=0),
    "receive_async": lambda queue: asyncio.run(queue.receive_async()),
    "lease": lambda queue: queue.lease(10),
    "counts": Queue.counts,
    "counts by shard": Queue.shard_counts,
    "counts by priority": Queue.priority_counts,
    "counts as attributes": lambda queue: queue.attributes(["All"], wire=True),
    "peek": Queue.peek,
    "peek of chosen": lambda queue: queue.peek(where="body = 'a'"),
    "groups": Queue.groups,
    "rewindable": lambda queue: queue.rewindable(queue.created_at),
    "redrivable": lambda queue: queue.redrivable(),
    "views": judged,
}
"""Reads that leave out what has expired."""


@pytest.fixture(autouse=True)
def looks(monkeypatch: Patch) -> list[float]:
    """Pauses until a second look; they take no time."""
    found: list[float] = []
    own = SimpleNamespace(sleep=found.append, time=time.time, monotonic=time.monotonic)  # other threads sleep on
    monkeypatch.setattr(clock_guard, "time", own)
    return found


def process(root: object, by: timedelta = 0 * DAYS) -> LakeQueue:
    return apart(root, Wrong(by), 1)[0]


def once(root: object, by: timedelta) -> LakeQueue:
    """A process of another time, when its clock was right."""
    lake = process(root, by)
    guard = lake._runtime._tables.guard
    assert guard.now is not None
    guard._believed = ClockGuard._offset(guard.now)
    return lake


def a_year_ahead_nothing_expires(root: Path) -> None:
    queue = process(root).create_queue("orders", message_retention_period=3600)
    for body in "abc":
        queue.send(body)
    for verb in VERBS:
        with pytest.raises(QueueClientError, match=r"36\d days.* ahead of the storage's"):
            VERBS[verb](process(root, 365 * DAYS).queue("orders"))
    process(root, 365 * DAYS).compact()
    assert {message.body for message in process(root).queue("orders").receive(10)} == set("abc")


def a_year_behind_nothing_is_sent_that_has_expired(root: Path) -> None:
    for name, sent in ("orders", False), ("others", True):
        queue = once(root, -9 * DAYS * sent).create_queue(name)
        if sent:
            queue.send("old")
        for verb in ("send", "send_arrow"):
            with pytest.raises(
                QueueClientError, match=r"before the last commit, and is 36\d days.* behind the storage's"
            ):
                VERBS[verb](process(root, -365 * DAYS).queue(name))
                pytest.fail("nobody will receive it", pytrace=False)
        process(root).queue(name).send("b")
        assert [message.body for message in process(root).queue(name).receive(10)] == ["b"]


def ten_days_ahead_no_read_leaves_out_messages(root: Path, read: Callable[[Queue], object]) -> None:
    queue = process(root).create_queue("orders", message_retention_period=3600, rewind_range=3600)
    for body in "abc":
        queue.send(body)
    queue.delete(queue.receive()[0].receipt_handle)
    with pytest.raises(QueueClientError, match=r"10 days|9 days.* ahead of the storage's"):
        read(process(root, 10 * DAYS).queue("orders"))
        pytest.fail("it says that there are none", pytrace=False)
    assert len(process(root).queue("orders").receive(10)) == 2


@pytest.mark.spec("DUR-82")
@pytest.mark.parametrize("read", READS)
def test_a_read_of_an_idle_queue_whose_messages_have_expired_looks_at_the_clock_once(
    tmp_path: Path, read: str, looks: list[float]
) -> None:
    once(tmp_path, -3 * DAYS).create_queue("orders", message_retention_period=3600, rewind_range=3600).send("old")
    queue = process(tmp_path).queue("orders")
    with suppress(LakeQueueError):  # some refuse what is no dead-letter queue, or too old an instant
        READS[read](queue)
    assert queue.counts().visible == 0
    assert looks == [clock_guard.SECOND_LOOK]


@pytest.mark.spec("DUR-82")
@pytest.mark.parametrize("read", READS)
def test_a_read_that_leaves_nothing_out_looks_at_no_clock(tmp_path: Path, read: str, looks: list[float]) -> None:
    once(tmp_path, -3 * DAYS).create_queue("orders", rewind_range=3600).send("old")
    if read in ("receive", "receive of nothing", "receive_async", "lease"):
        once(tmp_path, -3 * DAYS).queue("orders").purge()
    with suppress(LakeQueueError):
        READS[read](process(tmp_path).queue("orders"))
    assert not looks


@pytest.mark.spec("DUR-82")
def test_a_consumer_whose_clock_is_ahead_does_not_end_as_if_all_were_done(tmp_path: Path) -> None:
    process(tmp_path).create_queue("orders", message_retention_period=3600).send("a")
    queue, handled = process(tmp_path, 10 * DAYS).queue("orders"), list[str]()
    consumer = Consumer(
        queue, lambda message, context: handled.append(message.body), outage=Outage(give_up_after=0.1)
    )
    with pytest.raises(QueueClientError, match="ahead of the storage's"):
        consumer.run(until_empty=True)
    assert not handled


@pytest.mark.spec("DUR-82")
def test_a_process_that_may_not_write_reads_by_its_own_clock(tmp_path: Path, monkeypatch: Patch) -> None:
    once(tmp_path, -3 * DAYS).create_queue("orders", message_retention_period=3600).send("old")
    asked = []

    def refused(folder: object, create: bool) -> float:
        assert not create
        asked.append(folder)
        raise PermissionError("read-only")

    monkeypatch.setattr(clock_guard, "_stamped", refused)
    queue = process(tmp_path).queue("orders")
    assert queue.counts() == queue.counts() and not queue.peek()
    assert len(asked) == 1


@pytest.mark.spec("DUR-42", "DUR-82")
def test_a_year_ahead_no_message_is_erased_that_stays_in_flight(tmp_path: Path) -> None:
    queue = process(tmp_path).create_queue("orders")
    sent = queue.send("a")
    assert queue.receive(visibility_timeout=600)
    with pytest.raises(QueueClientError, match="ahead of the storage's"):
        process(tmp_path, 365 * DAYS).queue("orders").erase(sent.message_id)
    assert [message.body for message in queue.peek()] == ["a"]
    queue.erase(sent.message_id)
    counts = queue.counts()
    assert counts.visible + counts.in_flight == 0


def by_a_wrong_clock_no_queue_begins_ends_or_is_repaired(root: Path) -> None:
    """A day after its deletion it would be removed, so at once or in a year."""
    process(root).create_queue("orders").send("a")
    for by, how in (-365 * DAYS, "behind"), (365 * DAYS, "ahead of"):
        wrong = process(root, by)
        calls: list[Callable[[], object]] = [
            lambda: wrong.create_queue("new"),  # noqa: B023
            lambda: wrong.delete_queue("orders"),  # noqa: B023
            lambda: wrong.repair(apply=True),  # noqa: B023
            lambda: wrong.repair(apply=True, clock=True),  # noqa: B023
        ]
        for call in calls:
            with pytest.raises(QueueClientError, match=f"is 36.*{how} the storage's. Nothing was changed"):
                call()
        assert wrong.create_queue("orders").name == "orders"  # it is there already
        wrong.clock.by = 0 * DAYS  # type: ignore[attr-defined]
        wrong.create_queue(f"set-right-{by.days}")
    assert [queue.name for queue in process(root).list_queues(prefix="new")] == []
    assert [message.body for message in process(root).queue("orders").receive()] == ["a"]


def test_a_clock_that_was_set_back_is_believed_if_the_storage_has_it_too(
    tmp_path: Path, looks: list[float]
) -> None:
    once(tmp_path, timedelta(hours=1)).create_queue("orders").send("a")
    queue = process(tmp_path).queue("orders")
    queue.send("b")
    assert len(queue.receive(10)) == 2 and not looks


def test_a_process_whose_clock_is_a_day_ahead_or_less_is_believed(tmp_path: Path, looks: list[float]) -> None:
    process(tmp_path).create_queue("orders").send("a")
    process(tmp_path, timedelta(hours=23)).queue("orders").send("b")
    assert not looks


@pytest.mark.spec("DUR-82")
@pytest.mark.parametrize("verb", VERBS)
def test_a_queue_that_was_idle_for_days_works_after_one_second_look(
    tmp_path: Path, verb: str, looks: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "others"):
        once(tmp_path, -3 * DAYS).create_queue(name).send("old")
    lq = process(tmp_path)
    with caplog.at_level(logging.INFO, "lakequeue"):
        VERBS[verb](lq.queue("orders"))
    assert "3 days" in caplog.text
    for name in ("orders", "others"):
        for each in VERBS.values():
            with suppress(PurgeQueueInProgress):
                each(lq.queue(name))
    assert looks == [clock_guard.SECOND_LOOK]


@pytest.mark.spec("DUR-82")
def test_a_pause_that_a_queue_has_seen_is_no_reason_for_doubts(tmp_path: Path, looks: list[float]) -> None:
    once(tmp_path, -9 * DAYS).create_queue("orders").send("a")
    queue = once(tmp_path, -5 * DAYS).queue("orders")
    queue.send("b")
    assert shard_of(queue).sender._appender.table.transaction(layout.PAUSE_ID) == pytest.approx(4 * 86400, abs=60)
    process(tmp_path, -2 * DAYS).queue("orders").send("c")
    assert not looks


@pytest.mark.spec("DUR-82")
def test_a_clock_that_is_set_right_between_the_looks_is_refused_once(tmp_path: Path, monkeypatch: Patch) -> None:
    process(tmp_path).create_queue("orders").send("a")
    lq = process(tmp_path, 3 * DAYS)
    queue = lq.queue("orders")
    queue.counts()  # in memory its time is three days ahead

    def set_right(seconds: float) -> None:
        lq.clock.by = 0 * DAYS  # type: ignore[attr-defined]

    monkeypatch.setattr(clock_guard.time, "sleep", set_right)
    with pytest.raises(QueueClientError, match="or was just set"):
        queue.send("b")
    queue.send("b")
    queue.receive(10)
    head = shard_of(queue).ledger._open_ledger().head()
    assert head.committed_at <= lq._runtime.now()


@pytest.mark.spec("DUR-82")
def test_time_that_only_memory_knows_does_not_get_into_the_ledger(tmp_path: Path) -> None:
    process(tmp_path).create_queue("orders").send("a")
    lq = process(tmp_path, 3 * DAYS)
    queue = lq.queue("orders")
    queue.counts()
    lq.clock.by = 0 * DAYS  # type: ignore[attr-defined]
    assert [message.body for message in queue.receive()] == ["a"]
    assert shard_of(queue).ledger._open_ledger().head().committed_at <= lq._runtime.now()


@pytest.mark.spec("DUR-82")
def test_a_variable_sets_how_far_a_commit_may_be_ahead(tmp_path: Path, monkeypatch: Patch) -> None:
    process(tmp_path).create_queue("orders").send("a")
    monkeypatch.setenv(AHEAD, str(400 * 86400))
    process(tmp_path, 365 * DAYS).queue("orders").send("b")
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv(AHEAD, wrong)
        with pytest.raises(InvalidParameterValue, match=f"{AHEAD} must be a number of seconds, not {wrong}"):
            process(tmp_path)


def test_a_clock_that_is_set_by_hand_is_believed(tmp_path: Path, clock: ManualClock, looks: list[float]) -> None:
    queue = apart(tmp_path, clock, 1)[0].create_queue("orders")
    queue.send("a")
    clock.advance(365 * 86400)
    queue.send("b")
    assert not looks


@pytest.mark.spec("DUR-82")
@pytest.mark.objectstore
def test_on_a_store_its_clock_decides_at_once(s3_root: str, looks: list[float]) -> None:
    once(s3_root, -3 * DAYS).create_queue("orders").send("a")
    process(s3_root).queue("orders").send("b")
    with pytest.raises(QueueClientError, match="ahead of the storage's"):
        process(s3_root, 20 * DAYS).queue("orders").send("c")
    assert not looks


MUTATIONS = [
    Mutation(
        "every clock is believed",
        believe_every_clock,
        {a_year_ahead_nothing_expires: "DUR-82", a_year_behind_nothing_is_sent_that_has_expired: "DUR-82"},
    ),
    Mutation(
        "every clock may let messages expire in a read",
        replace(ClockGuard, "check_expiry", lambda *_: None),
        {
            shown_by(ten_days_ahead_no_read_leaves_out_messages, lambda root, read=read: (root, read)): "DUR-82"
            for read in READS.values()
        },
    ),
    Mutation(
        "every clock may make and delete queues",
        replace(ClockGuard, "check_now", lambda *_: None),
        {by_a_wrong_clock_no_queue_begins_ends_or_is_repaired: "DUR-82"},
    ),
]


@pytest.mark.spec("DUR-82")
@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: (tmp_path,), (LakeQueueError, pytest.fail.Exception))


def test_a_move_that_a_dead_process_left_is_not_finished_by_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = process(tmp_path)
    target = lake.create_queue("target", message_retention_period=3_600)
    target.send("a")
    lake.create_queue("orders").send("m")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        at(patch, move, "_bring", KeyboardInterrupt())
        lake.queue("orders").redrive(destination=target)
    [summary] = (each for each in process(tmp_path, 3 * DAYS).compact() if each.queue == "orders")
    assert "ahead of the storage" in summary.failures[0]
    assert [message.body for message in process(tmp_path).queue("target").receive(10)] == ["a"]


@pytest.mark.parametrize("verb", ["compact", "erase"])
def test_a_wrong_clock_forgets_no_deduplication_ids(tmp_path: Path, verb: str) -> None:
    queue = process(tmp_path).create_queue("orders.fifo", fifo=True)
    sent = queue.send("x", group_id="g", dedup_id="d1")
    queue.delete(queue.receive()[0].receipt_handle)
    wrong = process(tmp_path, 365 * DAYS)
    with suppress(QueueClientError):
        wrong.compact() if verb == "compact" else wrong.queue("orders.fifo").erase(sent.message_id)
    again = process(tmp_path).queue("orders.fifo").send("x", group_id="g", dedup_id="d1")
    assert again.message_id == sent.message_id


@pytest.mark.spec("DUR-74")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_the_superuser_uses_the_idle_root_of_another_user(tmp_path: Path) -> None:
    once(tmp_path / "root", -3 * DAYS).create_queue("orders").send("old")
    for each in ((tmp_path / "root"), *(tmp_path / "root").rglob("*")):
        os.chown(each, 1234, 1234)
    process(tmp_path / "root").queue("orders").send("new")
    assert {each.stat().st_uid for each in (tmp_path / "root").rglob("_clock")} == {1234}
    assert not any(summary.failures for summary in process(tmp_path / "root").compact())


@pytest.mark.spec("DUR-74")
def test_the_look_of_a_read_at_the_clock_creates_no_file(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now() - 3 * DAYS)
    apart(tmp_path, clock, 1)[0].create_queue("orders", message_retention_period=3600).send("old")
    before = sorted(tmp_path.rglob("*"))
    assert process(tmp_path).queue("orders").counts().visible == 0
    assert sorted(tmp_path.rglob("*")) == before
