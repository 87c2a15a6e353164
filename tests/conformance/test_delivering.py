"""Deliveries into a table: leases and consumers, and what happens to messages whose holder stopped on the way."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
import polars
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from conformance.typed_handlers import DELIVERING
from lakequeue import Consumer, LakeQueue, NoRenewal, Outcome, Queue, RedrivePolicy, RetryBackoff
from lakequeue.entry_verbs import doctor
from lakequeue.errors import (
    InvalidOptions,
    InvalidParameterValue,
    LeaseLost,
    QueueClientError,
    RowsRefused,
    TableUnavailable,
    UnsupportedOperation,
)
from lakequeue.lease import Lease
from lakequeue.operations import delivery
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.undecided import target_of
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.storage.delivery import table as tables
from lakequeue.storage.messages.read import LogFile
from lakequeue.testing import ManualClock


@attrs.frozen
class Place:
    """A queue with a delivery table."""

    lake: LakeQueue
    queue: Queue
    clock: ManualClock
    table: Path

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.queue.send(str(number))

    def lease(self, most: int = 10) -> Lease:
        found = self.queue.lease(most)
        assert found is not None
        return found

    def stored(self) -> list[int]:
        return sorted(polars.read_delta(str(self.table))["id"].to_list()) if self.table.exists() else []

    def waiting(self) -> list[int]:
        """The messages that can be received, at once."""
        return sorted(int(each.body) for each in self.queue.receive(10, visibility_timeout=0))

    def expire(self) -> None:
        self.clock.advance(61)


def rows_of(lease: Lease) -> list[dict[str, int]]:
    return [{"id": int(body)} for body in lease.arrow(["body"])["body"].to_pylist()]


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    yield ManualClock(datetime(2030, 1, 1, tzinfo=timezone.utc))


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    table = tmp_path / "table"
    with LakeQueue(str(tmp_path / "root"), clock=clock) as lake:
        queue = lake.create_queue("orders", table=str(table), visibility_timeout=60, allow_zero_visibility=True)
        yield Place(lake, queue, clock, table)


# --- leases


@pytest.mark.spec("TAB-25")
def test_rows_of_a_lease_are_in_the_table_and_its_messages_are_gone(place: Place):
    place.send(1, 2, 3)
    lease = place.lease(2)
    assert lease.append(rows_of(lease)) == 2
    assert (place.stored(), place.waiting()) == ([1, 2], [3])
    with pytest.raises(LeaseLost):
        lease.append([{"id": 9}])
    assert place.stored() == [1, 2]


@pytest.mark.spec("TAB-25")
def test_no_rows_only_delete_the_messages(place: Place):
    place.send(1)
    assert place.lease().append([]) == 0
    assert (place.stored(), place.waiting()) == ([], [])


@pytest.mark.spec("TAB-25")
def test_a_lease_that_appends_nothing_gives_its_messages_back_at_once(place: Place):
    place.send(1)
    place.lease().release()
    assert place.waiting() == [1]


@pytest.mark.spec("TAB-26")
@pytest.mark.parametrize("landed", [False, True])
def test_after_a_kill_the_table_decides(place: Place, monkeypatch: pytest.MonkeyPatch, landed: bool):
    place.send(1)
    lease = place.lease()

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # before the commit, or between the commit and the look at what landed
        patched.setattr(
            *((protocol.OpenedDeliveryTable, "read") if landed else (tables.DeltaDeliverySnapshot, "append")),
            killed,
        )
        with pytest.raises(KeyboardInterrupt):
            lease.append([{"id": 1}])
    place.expire()
    assert place.waiting() == ([] if landed else [1])
    assert place.stored() == [1] * landed
    place.expire()
    assert sorted([*place.stored(), *place.waiting()]) == [1]


@pytest.mark.spec("TAB-28")
def test_a_write_by_the_user_needs_a_table(place: Place):
    place.send(1)
    lease = place.lease()
    with pytest.raises(TableUnavailable, match="does not exist"):
        lease.delivery  # noqa: B018
    lease.release()
    assert place.waiting() == [1]


@pytest.mark.spec("TAB-25", "TAB-26")
def test_a_holder_that_was_paused_before_its_commit_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch):
    place.send(0)
    first = place.lease()
    first.append([{"id": 0}])  # so that there is a table
    place.send(1)
    slow, real = place.lease(), tables.DeltaDeliverySnapshot.append

    def paused(snapshot: tables.DeltaDeliverySnapshot, *arguments: Any) -> None:
        place.expire()
        assert place.waiting() == [1]  # which has blocked the slow one
        real(snapshot, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(tables.DeltaDeliverySnapshot, "append", paused)
        with pytest.raises(LeaseLost):
            slow.append([{"id": 1}])
    assert (place.stored(), place.waiting()) == ([0], [1])


@pytest.mark.spec("TAB-23", "TAB-27")
def test_a_lease_whose_rows_are_refused_may_append_others(place: Place):
    place.send(1)
    lease = place.lease()
    lease.append([{"id": 1}])
    place.send(2)
    lease = place.lease()
    with pytest.raises(RowsRefused, match="column id"):
        lease.append([{"id": "two"}])
    assert place.stored() == [1]
    assert lease.append([{"id": 2}]) == 1
    assert (place.stored(), place.waiting()) == ([1, 2], [])


@pytest.mark.spec("TAB-27")
def test_a_lease_whose_rows_are_refused_may_be_released(place: Place):
    place.send(1)
    lease = place.lease()
    with pytest.raises(RowsRefused):
        lease.append([{"id": None}])
    lease.release()
    assert place.waiting() == [1]


@pytest.mark.spec("TAB-22", "TAB-26")
@pytest.mark.parametrize("gone", [True, False])
def test_a_table_that_is_gone_or_another_decides_nothing(place: Place, gone: bool):
    place.send(1)
    place.lease().append([{"id": 1}])
    place.send(2)
    lease = place.lease()
    assert lease.delivery.version > 0
    shutil.rmtree(place.table)
    if not gone:
        write_deltalake(place.table, pa.table({"id": pa.array([7], pa.int64())}))
    with pytest.raises(
        TableUnavailable, match="decide orders --again" if gone else "another table .*repair orders --new-deliv"
    ):
        lease.append([{"id": 2}])
    place.expire()
    place.send(3)
    assert place.waiting() == [3]
    assert place.stored() == ([] if gone else [7])
    [concern] = [each for each in doctor(place.lake).concerns if each.kind == "undecided"]
    assert f"into {place.table}, which {'does not exist' if gone else 'is another table'}" in concern.text
    [_, again, delivered, renewal] = [step.command for step in concern.steps]
    assert (again, delivered) == ("lakequeue decide orders --again", "lakequeue decide orders --delivered")
    assert place.queue.decide(delivered=False) == 1
    assert renewal == "lakequeue repair orders --new-delivery-id"
    place.lake.repair("orders", apply=True, new_delivery_id=True)
    place.lease().append([{"id": 2}])
    assert 2 in place.stored()


@pytest.mark.spec("TAB-26")
def test_a_table_that_comes_back_decides(place: Place):
    place.send(1)
    place.lease().append([{"id": 1}])
    place.send(2)
    lease = place.lease()
    assert lease.delivery.app_id
    moved = place.table.rename(place.table.with_name("away"))
    place.expire()
    assert place.waiting() == []
    moved.rename(place.table)
    assert place.waiting() == []  # it was tried less than 30 seconds ago
    place.clock.advance(31)
    assert place.waiting() == [2]


@pytest.mark.spec("TAB-12", "TAB-25")
def test_a_root_copied_as_files_is_asked_to_take_a_new_delivery_id(place: Place, tmp_path: Path):
    place.send(1)
    place.lease().append([{"id": 1}])
    place.send(2, 3)
    shutil.copytree(tmp_path / "root", tmp_path / "twin")
    lease = place.lease()
    assert lease.append(rows_of(lease)) == 2
    place.send(4)
    place.lease().append([{"id": 4}])
    with LakeQueue(str(tmp_path / "twin"), clock=place.clock) as lake:
        queue = lake.queue("orders")
        lease = queue.lease(1) or pytest.fail("no message")
        with pytest.raises(TableUnavailable, match="repair orders --new-delivery-id"):
            lease.append(rows_of(lease))
        lake.repair("orders", apply=True, new_delivery_id=True)
        assert queue.counts().visible == 2
        lease = queue.lease(10) or pytest.fail("no message")
        assert lease.append(rows_of(lease)) == 2  # messages of its own
    assert (place.stored(), place.waiting()) == ([1, 2, 2, 3, 3, 4], [])


@pytest.mark.spec("TAB-22", "TAB-25", "TAB-26")
@pytest.mark.parametrize("how", ["read-only", "renamed", "other schema", "restored"])
def test_after_a_change_of_the_table_a_row_is_there_once_or_its_message_in_the_queue(place: Place, how: str):
    for number in (1, 2):
        place.send(number)
        place.lease().append([{"id": number}])
    place.send(3)
    lease, away = place.lease(), place.table.with_name("away")
    if how == "read-only":  # root may write in any directory
        place.table.rename(away)
        place.table.write_text("not a directory")
    elif how == "renamed":
        place.table.rename(away)
    elif how == "other schema":
        text = pa.table({"id": pa.array(["x"])})
        write_deltalake(place.table, text, mode="overwrite", schema_mode="overwrite")
    else:
        DeltaTable(place.table).restore(1)
    stored = [] if how == "other schema" else [1, 2]
    if how in ("read-only", "renamed"):
        with pytest.raises(TableUnavailable, match="cannot be used" if how == "read-only" else "is not there"):
            lease.append([{"id": 3}])
        place.expire()
        assert place.waiting() == []
        place.table.unlink(missing_ok=True)
        away.rename(place.table)
        place.clock.advance(31)
        assert (place.stored(), place.waiting()) == (stored, [3])
        return
    lease.append([{"id": 3}])
    assert place.waiting() == []
    assert polars.read_delta(str(place.table))["id"].to_list().count("3" if how == "other schema" else 3) == 1


@pytest.mark.spec("TAB-21")
def test_a_queue_without_a_table_delivers_nothing(place: Place):
    queue = place.lake.create_queue("plain")
    queue.send("1")
    lease = queue.lease()
    assert lease is not None
    with pytest.raises(UnsupportedOperation, match="plain has no delivery table"):
        lease.append([{"id": 1}])
    queue.set_attributes(table=str(place.table))
    with pytest.raises(UnsupportedOperation, match="before the queue had a delivery table"):
        lease.append([{"id": 1}])


def test_options_of_the_table_are_those_given_or_those_of_the_root(tmp_path: Path):
    lake = LakeQueue(str(tmp_path / "root"))
    made = lake.create_queue("far", table="s3://bucket/t", table_options={"AWS_REGION": "a"})
    for queue, expected in ((made, {"AWS_REGION": "a"}), (lake.queue("far"), {})):
        target = target_of(queue._runtime, "s3://bucket/t")
        assert target.store.options == expected and "AWS_REGION" not in repr(queue)
    again = lake.queue("far", table_options={"AWS_REGION": "b"})
    assert target_of(again._runtime, "s3://bucket/t").store.options == {"AWS_REGION": "b"}
    with pytest.raises(InvalidParameterValue, match="table_options"):
        lake.queue("far", table_options={"AWS_REGION": 1})  # type: ignore[dict-item]


# --- own writes


@pytest.mark.spec("TAB-28")
def test_a_write_by_the_user_is_delivered_if_the_table_has_its_commit(place: Place):
    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))
    place.send(1)
    lease = place.lease()
    delivery = lease.delivery
    with pytest.raises(QueueClientError, match=f"{delivery.app_id} and the version {delivery.version}"):
        lease.delivered()
    source = pa.table({"id": pa.array([1], pa.int64())})
    properties = CommitProperties(app_transactions=[Transaction(delivery.app_id, delivery.version)])
    (
        delivery.table.merge(source, "t.id = s.id", "s", "t", commit_properties=properties)
        .when_not_matched_insert_all()
        .execute()
    )
    assert lease.delivered().done == 1
    assert (place.stored(), place.waiting()) == ([1], [])


@pytest.mark.spec("TAB-28")
def test_a_write_by_the_user_after_the_decision_is_refused_only_on_the_handle(place: Place):
    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))
    place.send(1)
    lease = place.lease()
    delivery = lease.delivery
    place.expire()
    assert place.waiting() == [1]
    properties = CommitProperties(app_transactions=[Transaction(delivery.app_id, delivery.version)])
    rows = pa.table({"id": pa.array([1], pa.int64())})
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        write_deltalake(delivery.table, rows, mode="append", commit_properties=properties)
    with pytest.raises(LeaseLost):
        lease.delivered()
    assert place.stored() == []
    write_deltalake(place.table, rows, mode="append", commit_properties=properties)  # by its path: not fenced
    assert (place.stored(), place.waiting()) == ([1], [1])


@pytest.mark.spec("TAB-28")
def test_after_a_delivery_was_asked_for_a_release_leaves_the_decision_to_the_table(place: Place):
    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))
    place.send(1)
    lease = place.lease()
    assert lease.delivery.version
    lease.release()
    assert place.waiting() == [1]
    assert DeltaTable(place.table).version() == 1  # the block


# --- consumers


def consumer(place: Place, handler: Any, **options: Any) -> Consumer:
    return Consumer(place.queue, handler, **{"batch": 100, "concurrency": 1, "renewal": NoRenewal(), **options})


@pytest.mark.spec("TAB-29")
@pytest.mark.parametrize("as_arrow", [False, True])
def test_a_consumer_appends_what_its_handler_returns(place: Place, as_arrow: bool):
    place.send(*range(25))
    sizes: list[int] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        sizes.append(len(messages))
        if as_arrow:
            return pa.table({"id": messages["body"].cast(pa.int64())})
        return polars.DataFrame({"id": [int(each.body) for each in messages]})

    running = consumer(place, handle, batch=10, as_arrow=as_arrow)
    running.run(until_empty=True)
    assert (place.stored(), place.waiting()) == ([*range(25)], [])
    assert sizes == [10, 10, 5] and (running.handled, running.failed, running.unended) == (25, 0, 0)
    assert DeltaTable(place.table).version() == 3


@pytest.mark.spec("TAB-29")
def test_what_the_type_of_handlers_allows_is_appended(place: Place):
    for number, handler in enumerate(DELIVERING):
        place.send(2 * number, 2 * number + 1)
        consumer(place, handler).run(until_empty=True)
    assert (place.stored(), place.waiting()) == ([*range(2 * len(DELIVERING))], [])


@pytest.mark.spec("TAB-29")
def test_nothing_just_deletes(place: Place):
    place.send(1, 2)
    consumer(place, lambda messages, contexts: None).run(until_empty=True)
    assert (place.stored(), place.waiting()) == ([], [])


@pytest.mark.spec("TAB-29")
def test_messages_that_failed_are_released_before_the_rest_is_delivered(place: Place):
    place.send(*range(6))

    def handle(messages: Any, contexts: list[Any]) -> Any:
        even = [each for each in messages if int(each.body) % 2 == 0]
        outcomes = [None if each in even else Outcome.FAILED for each in messages]
        running.stop()
        return [{"id": int(each.body)} for each in even], outcomes

    running = consumer(place, handle)
    running.run()
    place.clock.advance(1)
    assert (place.stored(), place.waiting()) == ([0, 2, 4], [1, 3, 5])
    assert (running.handled, running.failed) == (3, 3)


@pytest.mark.spec("TAB-6", "TAB-29")
@pytest.mark.parametrize("lands", [False, True], ids=["refused", "unknown"])
def test_nothing_is_appended_unless_the_release_of_failed_messages_is_known_to_be_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch, lands: bool
):
    place.send(*range(4))
    real = ShardLedger.command

    def fails(ledger: ShardLedger, commands: Any, *more: Any) -> Any:
        release = any(getattr(each, "unmark", False) for each in commands)
        answer = real(ledger, commands, *more) if lands or not release else None
        if release:
            raise QueueClientError("no answer")
        return answer

    def handle(messages: Any, contexts: list[Any]) -> Any:
        running.stop()
        return [{"id": 0}], [None, Outcome.FAILED, None, None]

    running = consumer(place, handle)
    with monkeypatch.context() as patched:
        patched.setattr(ShardLedger, "command", fails)
        running.run()
    place.clock.advance(1)
    assert (place.stored(), place.waiting()) == ([], [1] if lands else [])
    place.expire()
    consumer(place, lambda messages, contexts: [{"id": int(each.body)} for each in messages]).run(until_empty=True)
    assert (place.stored(), place.waiting()) == ([*range(4)], [])


@pytest.mark.spec("TAB-29")
def test_an_error_of_the_handler_leaves_all_messages_in_the_queue(place: Place):
    place.send(1, 2)

    def handle(messages: Any, contexts: list[Any]) -> Any:
        running.stop()
        raise ValueError("no")

    running = consumer(place, handle)
    running.run()
    assert (place.stored(), place.waiting()) == ([], [1, 2])
    assert (running.handled, running.failed, running.halved) == (0, 0, 2)


def with_letters(place: Place, fifo: bool, max_receive_count: int) -> tuple[Queue, Queue]:
    """A queue of 20 messages with a delivery table, and its dead-letter queue."""
    suffix = ".fifo" if fifo else ""
    dead = place.lake.create_queue(f"dead{suffix}", fifo=fifo)
    policy = RedrivePolicy(dead_letter_queue=dead.name, max_receive_count=max_receive_count)
    queue = place.lake.create_queue(
        f"bad{suffix}", fifo=fifo, table=str(place.table), redrive_policy=policy, visibility_timeout=60
    )
    for number in range(20):
        queue.send(str(number), **({"group_id": str(number % 3), "dedup_id": str(number)} if fifo else {}))
    return queue, dead


@pytest.mark.spec("TAB-27", "TAB-29")
@pytest.mark.parametrize("fifo", [False, True])
def test_a_batch_is_halved_until_the_bad_message_is_alone(
    place: Place, fifo: bool, caplog: pytest.LogCaptureFixture
):
    queue, dead = with_letters(place, fifo, max_receive_count=1)
    calls: list[int] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        calls.append(len(messages))
        return [{"id": "bad" if each.body == "13" else int(each.body)} for each in messages]

    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))
    running = Consumer(queue, handle, batch=100, concurrency=1, renewal=NoRenewal())
    running.run(until_empty=True)
    assert place.stored() == [number for number in range(20) if number != 13]
    [letter] = dead.receive(10)
    assert letter.body == "13"
    assert letter.dead_letter_reason is not None and "column id" in letter.dead_letter_reason.text
    [*halves, logged] = [line for line in caplog.messages if "refuses the rows" in line]
    assert not any("refused the rows" in line for line in caplog.messages)
    assert letter.message_id in logged and all("column id" in line for line in caplog.messages)
    assert halves[0].startswith(
        f"{queue.name}: the table refuses the rows of a batch of 20 messages for {place.table}"
    )
    assert len(calls) < 16
    assert (running.handled, running.failed) == (19, 1) and running.halved == sum(calls) - 20


@pytest.mark.spec("TAB-29", "DLQ-12")
@pytest.mark.parametrize("fifo", [False, True])
def test_a_batch_whose_handler_raises_comes_again_in_halves(
    place: Place, fifo: bool, caplog: pytest.LogCaptureFixture
):
    queue, dead = with_letters(place, fifo, max_receive_count=3)
    calls: list[int] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        calls.append(len(messages))
        if any(each.body == "13" for each in messages):
            raise ValueError("no 13")
        return [{"id": int(each.body)} for each in messages]

    running = Consumer(queue, handle, batch=100, concurrency=1, renewal=NoRenewal())
    running.run(until_empty=True)
    assert place.stored() == [number for number in range(20) if number != 13]
    [letter] = dead.receive(10)
    assert letter.body == "13"
    assert letter.dead_letter_reason is not None and letter.dead_letter_reason.text == "no 13"
    assert len(calls) < 16
    assert (running.handled, running.failed) == (19, 1) and running.halved > 20
    stacks = [bool(record.exc_info) for record in caplog.records]
    assert stacks[0] and not any(stacks[1:-1]) and stacks[-1] and len(stacks) > 3
    first, *halves, last = caplog.messages
    assert f"a batch of 20 messages for {place.table}" in first and letter.message_id in last
    assert all(line.endswith("ValueError: no 13") for line in halves)


@pytest.mark.spec("TAB-29")
@pytest.mark.parametrize(
    ("how", "options", "delays"),
    [
        ("raises", {}, (16, 30)),  # of 20 messages, it is alone at its fifth receive
        ("is refused", {}, (1, 2)),
        ("fails", {}, (1, 2)),
        ("is refused", {"retry_delay": 100}, (100, 100)),
        ("fails", {"retry_delay": RetryBackoff(40)}, (40, 80)),
    ],
)
def test_a_message_that_failed_alone_is_hidden_for_a_delay_and_comes_again_alone(
    place: Place, how: str, options: dict[str, Any], delays: tuple[int, int]
):
    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))
    calls: list[int] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        calls.append(len(messages))
        assert len(calls) < 20, "it comes again and again"
        bad = [each.body == "13" for each in messages]
        if how == "raises" and any(bad):
            raise ValueError("no 13")
        if how == "fails":
            return [{"id": int(each.body)} for each in messages if each.body != "13"], [
                Outcome.FAILED if each else None for each in bad
            ]
        return [{"id": "bad" if each.body == "13" else int(each.body)} for each in messages]

    def run() -> list[int]:
        calls.clear()
        running = Consumer(place.queue, handle, batch=100, concurrency=1, renewal=NoRenewal(), **options)
        running.run(until_empty=True)
        assert running.failed == 1
        return calls

    first, second = delays
    place.send(*range(20))
    run()
    assert place.stored() == [number for number in range(20) if number != 13]
    place.clock.advance(first - 0.001)
    place.send(20)
    calls.clear()
    Consumer(place.queue, handle, batch=100, concurrency=1).run(until_empty=True)
    assert calls == [1] and place.stored()[-1] == 20
    place.clock.advance(0.001)
    place.send(21, 22)
    assert run() == ([3] if how == "fails" else [1, 2])
    place.clock.advance(second - 0.001)
    assert place.waiting() == []
    place.clock.advance(0.001)
    assert place.waiting() == [13] and place.stored()[-2:] == [21, 22]


@pytest.mark.spec("TAB-29")
@pytest.mark.parametrize(("options", "dead"), [({}, 1), ({"retry_delay": 100}, 0)])
def test_with_a_dead_letter_queue_a_message_that_failed_alone_comes_again_at_once(
    place: Place, options: dict[str, Any], dead: int
):
    letters = place.lake.create_queue("dead")
    place.queue.set_attributes(dead_letter_queue="dead", max_receive_count=2)
    place.send(13)
    consumer(place, lambda messages, contexts: ([], [Outcome.FAILED]), **options).run(until_empty=True)
    assert (letters.counts().visible, place.queue.counts().in_flight) == (dead, 1 - dead)


@pytest.mark.spec("TAB-29")
@pytest.mark.parametrize("works", [True, False])
def test_parts_of_failed_batches_come_without_a_wait_unless_messages_fail_alone(place: Place, works: bool):
    calls: list[int] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        calls.append(len(messages))
        if works and len(calls) > 6:  # the first message has failed alone
            return [{"id": int(each.body)} for each in messages]
        raise ValueError("a bad deploy")

    place.lake.create_queue("dead")
    place.queue.set_attributes(dead_letter_queue="dead", max_receive_count=100)
    place.send(*range(20))
    running = consumer(place, handle, batch_wait=60)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    for _ in range(3):
        place.clock.advance(60)
    running.stop()
    thread.join(20)
    if works:
        assert place.stored() == [*range(20)]
    else:
        assert calls[:5] == [20, 10, 5, 2, 1] and len(calls) < 15


@pytest.mark.spec("TAB-29")
def test_options_that_a_delivery_cannot_keep_are_refused(place: Place):
    plain = place.lake.create_queue("plain")
    with pytest.raises(InvalidOptions, match="merge_schema"):
        Consumer(plain, lambda messages, contexts: None, batch=10, merge_schema=True)
    with pytest.raises(InvalidOptions, match="batch: orders delivers into the table .*; give a batch"):
        Consumer(place.queue, lambda message, context: None)
    with pytest.raises(InvalidOptions, match="retry_failed_at_once: .* give retry_delay"):
        Consumer(place.queue, lambda messages, contexts: None, batch=10, retry_failed_at_once=False)
    with pytest.raises(InvalidOptions, match="a consumer of its own"):
        Consumer([place.queue, plain], lambda messages, contexts: None, batch=10)


@pytest.mark.spec("TAB-27", "TAB-29")
@pytest.mark.parametrize("stops_at", [1, 2, 3])
def test_a_stop_hands_the_halves_of_a_refused_batch_back_as_never_received(place: Place, stops_at: int):
    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))
    place.send(*range(8))
    calls: list[int] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        calls.append(len(messages))
        if len(calls) == stops_at:
            running.stop()
        return [{"id": "bad" if each.body == "7" else int(each.body)} for each in messages]

    running = consumer(place, handle)
    running.run()
    assert calls == [8, 4, 4][:stops_at] and (running.failed, running.unended) == (0, 0)
    arrived = [] if stops_at == 1 else [0, 1, 2, 3]
    left = place.queue.receive(10, visibility_timeout=0)
    assert place.stored() == arrived
    assert sorted(int(each.body) for each in left) == [number for number in range(8) if number not in arrived]
    assert {each.receive_count for each in left} == {1}


@pytest.mark.spec("TAB-29")
def test_a_second_stop_shortens_the_time_that_a_running_batch_gets(place: Place):
    place.send(1)
    begun = threading.Event()

    def handle(messages: Any, contexts: list[Any]) -> Any:
        running.stop()
        begun.set()
        contexts[0].sleep(20)

    running = consumer(place, handle)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    begun.wait()
    place.clock.advance(1)
    running.stop(timeout=0)
    thread.join(20)
    assert not thread.is_alive() and running.unended == 1


@pytest.mark.spec("TAB-29")
def test_a_batch_whose_lease_ended_is_lost_to_all_its_contexts_and_not_appended(place: Place):
    place.send(1, 2)
    seen: list[Any] = []

    def handle(messages: Any, contexts: list[Any]) -> Any:
        seen.extend(contexts)
        place.expire()
        place.queue.receive(10)  # which decides, and takes the messages
        running.stop()
        return [{"id": int(each.body)} for each in messages]

    running = consumer(place, handle)
    running.run()
    assert place.stored() == [] and running.handled == 0
    assert [bool(context.lost) for context in seen] == [True, True]


@pytest.mark.spec("TAB-29")
def test_a_handler_that_is_a_coroutine_delivers_too(place: Place):
    async def handle(messages: Any, contexts: list[Any]) -> Any:
        return [{"id": int(each.body)} for each in messages]

    place.send(1, 2)
    consumer(place, handle).run(until_empty=True)
    assert place.stored() == [1, 2]


@pytest.mark.spec("TAB-27")
@pytest.mark.parametrize("step", ["another attempt", "a release"])
def test_a_failure_of_storage_between_two_attempts_is_a_queue_client_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place.send(1, 2)
    lease = place.lease()
    delivering = lease._delivering()
    [first, _] = [message.receipt_handle for message in delivering.messages()]

    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    if step == "a release":
        monkeypatch.setattr(ShardLedger, "command", fails)
    else:
        monkeypatch.setattr(ShardLedger, "query", fails)
    with pytest.raises(QueueClientError, match="the disk is gone"):
        if step == "a release":
            delivering.release_named({first: None})
        else:
            delivering.anew()


@pytest.mark.spec("TAB-4", "DUR-8")
def test_a_message_that_cannot_be_read_is_not_deleted_with_those_that_are_delivered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(1, 2)
    elsewhere = LakeQueue(place.lake.root, clock=place.clock).queue(place.queue.name)  # has cached no body
    rows_of = LogFile.rows_of

    def busy(self: LogFile, table: Any, columns: Any, *span: int) -> pa.Table:
        if self.first == 0 and "body" in columns:
            raise OSError("the storage is too busy")
        return rows_of(self, table, columns, *span)

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "rows_of", busy)
        claimed = delivery.claim(elsewhere._runtime, 2, 30, None)
        assert claimed is not None
        messages = claimed.messages()
        claimed.append([{"id": int(each.body)} for each in messages])
    assert place.stored() == [2]
    assert place.waiting() == [], "what cannot be read stays hidden until its timeout"
    place.expire()
    assert place.waiting() == [1]
