"""A consumer whose delivery table fails: its outage, and what becomes of the messages meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars
import pytest

from consumer.harness import Harness
from lakequeue import Outage
from lakequeue.consumer.deliveries import DeliveryLoop
from lakequeue.consumer.outages import OutageMonitor
from lakequeue.errors import TableUnavailable
from lakequeue.operations import lease as leases
from lakequeue.operations.delivery import Delivering
from lakequeue.shard.commands import LeaseRelease
from lakequeue.storage.delivery import table as tables
from lakequeue.storage.delivery.identity import CommitRefused
from mutations import Case, Mutation, Patch, each_case, replace

MESSAGES = [*range(20)]


class Delivery:
    """A queue with a dead-letter queue, and a delivery table in a directory that can be taken away."""

    def __init__(self, make: Callable[..., Harness], folder: Path, **attributes: Any) -> None:
        self.folder = folder / "mounted"
        self.harness = make(table=str(self.folder / "table"), **attributes)
        self.letters = self.harness.with_dead_letters(1)
        self.sizes: list[int] = []

    def handle(self, messages: Any, contexts: Any) -> list[dict[str, int]]:
        self.sizes.append(len(messages))
        return [{"id": int(each.body)} for each in messages]

    def fails(self) -> None:
        if self.folder.exists():
            self.folder.rename(self.folder.with_name("away"))
        self.folder.touch()

    def works(self) -> None:
        self.folder.unlink()
        if self.folder.with_name("away").exists():
            self.folder.with_name("away").rename(self.folder)

    def send(self, *numbers: int) -> None:
        self.harness.send(*map(str, numbers))

    def consumer(self, handler: Any = None, **options: Any) -> Any:
        options = {"batch": 5, "concurrency": 2, **options}
        return self.harness.consumer(handler or self.handle, **options)

    def stored(self) -> list[int]:
        return sorted(polars.read_delta(str(self.folder / "table"))["id"].to_list())

    def receives(self) -> set[int]:
        return {each.receive_count for each in self.harness.other.peek(limit=100)}


@pytest.fixture
def delivery(make: Callable[..., Harness], tmp_path: Path) -> Delivery:
    return Delivery(make, tmp_path)


@pytest.mark.spec("TAB-22", "TAB-32")
@pytest.mark.parametrize("known", [False, True], ids=["before its first delivery", "after its first delivery"])
def test_a_table_that_fails_is_one_outage_and_takes_no_receive_of_any_message(
    make: Callable[..., Harness], tmp_path: Path, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = Delivery(make, tmp_path)
    harness, consumer = delivery.harness, delivery.consumer()
    if known:
        delivery.send(100)
        consumer.run(until_empty=True)
    delivery.fails()
    delivery.send(*MESSAGES)
    began = harness.clock.now()
    caplog.clear()
    delivery.sizes.clear()
    with harness.running(consumer):
        harness.clock.advance(200)
        health = consumer.health
        assert (health.ok, health.outage_since) == (False, began)
        assert health.failing_table == str(delivery.folder / "table")
        assert health.last_error is not None and str(delivery.folder / "table") in health.last_error
        # after 0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5 … s; the first with the other thread
        assert 13 <= len(delivery.sizes) <= 14
        assert delivery.receives() == {0} and len(delivery.harness.visible()) == len(MESSAGES)
        delivery.works()
        harness.clock.advance(40)
        assert consumer.health.ok
    assert delivery.stored() == [*MESSAGES, *[100] * known]
    assert delivery.letters.counts().visible == 0
    name = f"the delivery table of orders at {delivery.folder / 'table'}"
    told = [line for line in caplog.messages if line.startswith(name) or "storage of" in line]
    assert told[0].startswith(f"{name} fails, the consumer waits until it is back: delivering: ")
    assert told[-1].startswith(f"{name} works again after 2")
    assert [line.removeprefix(name).split(" s:")[0] for line in told[1:-1]] == [
        f" has failed for {seconds}" for seconds in (62, 122, 182)
    ]


@pytest.mark.spec("TAB-32")
def test_a_consumer_gives_up_after_the_time_that_its_delivery_table_failed(delivery: Delivery) -> None:
    delivery.fails()
    delivery.send(*MESSAGES)
    with delivery.harness.running(delivery.consumer(outage=Outage(give_up_after=45))) as running:
        delivery.harness.clock.advance(44)
        assert running.thread.is_alive()
        delivery.harness.clock.advance(1)
        assert isinstance(running.join(), TableUnavailable)
    assert delivery.receives() == {0}


@contextmanager
def failing_appends(fail: Callable[..., None]) -> Iterator[Patch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables.DeltaDeliverySnapshot, "append", fail)
        yield patch


def refuse(*_: Any) -> None:
    raise CommitRefused("No space left on device")


@pytest.mark.spec("TAB-26", "TAB-32")
def test_what_a_table_did_not_take_is_blocked_there_and_handed_back(delivery: Delivery) -> None:
    delivery.send(*MESSAGES)
    consumer = delivery.consumer()
    with failing_appends(refuse) as patch, delivery.harness.running(consumer):
        delivery.harness.clock.advance(100)
        assert not consumer.health.ok
        assert delivery.receives() == {0} and len(delivery.harness.visible()) == len(MESSAGES)
        patch.undo()
        delivery.harness.clock.advance(40)
        assert consumer.health.ok
    assert (delivery.stored(), delivery.letters.counts().visible) == (MESSAGES, 0)


@pytest.mark.spec("TAB-6", "TAB-26", "TAB-32")
@pytest.mark.parametrize("lands", [False, True])
def test_what_is_undecided_as_the_table_fails_is_delivered_once_and_its_receive_does_not_count(
    delivery: Delivery, lands: bool
) -> None:
    append = tables.DeltaDeliverySnapshot.append

    def fail(*arguments: Any) -> None:
        if lands:
            append(*arguments)
        delivery.fails()
        raise CommitRefused("the connection was lost")

    delivery.send(100)
    consumer = delivery.consumer(concurrency=1)
    consumer.run(until_empty=True)
    delivery.send(*MESSAGES)
    with failing_appends(fail) as patch, delivery.harness.running(consumer):
        delivery.harness.clock.advance(100)
        assert not consumer.health.ok
        assert (delivery.harness.other.counts().undecided, delivery.receives()) == (5, {0})
        patch.undo()
        delivery.works()
        delivery.harness.clock.advance(70)
        assert consumer.health.ok
    assert (delivery.stored(), delivery.letters.counts().visible) == ([*MESSAGES, 100], 0)


@pytest.mark.spec("DLQ-12", "TAB-32")
def test_a_part_of_a_failed_batch_makes_no_dead_letters_as_the_table_fails(delivery: Delivery) -> None:
    def handle(messages: Any, contexts: Any) -> Any:
        rows = delivery.handle(messages, contexts)
        if {"id": 13} in rows:
            raise ValueError("no 13")
        if len(delivery.sizes) == 2:
            delivery.fails()
        return rows

    delivery.send(*MESSAGES)
    consumer = delivery.consumer(handle, batch=20, concurrency=1)
    with delivery.harness.running(consumer):
        delivery.harness.clock.advance(100)
        assert not consumer.health.ok and delivery.letters.counts().visible == 0
        delivery.works()
        delivery.harness.clock.advance(100)
        assert consumer.health.ok
    assert delivery.stored() == [number for number in MESSAGES if number != 13]
    assert [each.body for each in delivery.letters.peek()] == ["13"]


@pytest.mark.spec("TAB-32")
def test_an_outage_ends_for_an_idle_consumer_once_others_have_delivered_everything(delivery: Delivery) -> None:
    delivery.fails()
    delivery.send(*MESSAGES)
    consumer = delivery.consumer()
    with delivery.harness.running(consumer):
        delivery.harness.clock.advance(10)
        assert not consumer.health.ok
        taken = delivery.harness.other.receive(10) + delivery.harness.other.receive(10)
        delivery.harness.clock.advance(20)
        assert not consumer.health.ok, "messages are in flight"
        for each in taken:
            delivery.harness.other.delete(each.receipt_handle)
        delivery.harness.clock.advance(60)
        assert consumer.health.ok


@pytest.mark.spec("TAB-32")
def test_a_batch_without_rows_does_not_end_an_outage(delivery: Delivery) -> None:
    def handle(messages: Any, contexts: Any) -> Any:
        return [row for row in delivery.handle(messages, contexts) if row["id"] < 5]

    delivery.harness.queue.set_attributes(dead_letter_queue="dead", max_receive_count=9)
    delivery.fails()
    delivery.send(0)
    consumer = delivery.consumer(handle)
    with delivery.harness.running(consumer):
        delivery.harness.clock.advance(1)
        [other] = delivery.harness.other.receive(1)
        delivery.send(6, 7)
        delivery.harness.clock.advance(20)
        assert not consumer.health.ok and delivery.sizes[-1] == 2
        delivery.harness.other.change_visibility(other.receipt_handle, 0)
        delivery.works()
        delivery.harness.clock.advance(40)
        assert consumer.health.ok and delivery.stored() == [0]


@pytest.mark.spec("TAB-32")
def test_a_run_until_empty_leaves_the_messages_of_a_table_that_fails(delivery: Delivery) -> None:
    delivery.fails()
    delivery.send(*MESSAGES)
    consumer = delivery.consumer(concurrency=1)
    with delivery.harness.running(consumer, until_empty=True) as running:
        delivery.harness.clock.advance(1.5)
        assert running.join() is None
    assert delivery.sizes == [5, 5, 5] and delivery.receives() == {0}
    assert consumer.health.last_error is not None


# --- mutations


def ends_with_each_commit(patch: Patch) -> None:
    """Has the claims end the outage of a table, too."""
    worked = OutageMonitor.worked

    def begin(loop: DeliveryLoop, *arguments: Any, begin: Any = DeliveryLoop.__init__) -> None:
        begin(loop, *arguments)
        loop.outages.worked = lambda doing, committed=True: [  # type: ignore[method-assign,assignment]
            worked(each, doing, committed) for each in loop.monitors
        ]

    patch.setattr(DeliveryLoop, "__init__", begin)


def release_and_count(delivering: Delivering) -> None:
    for part in (delivering.anew() or ()) if delivering.leased.tried else [delivering]:
        part.release()


def hand_back_what_is_decided(delivering: Delivering) -> None:
    for part in (delivering.anew() or ()) if delivering.leased.tried else [delivering]:
        part.release(unseen=True)


def what_may_have_arrived_is_visible(patch: Patch) -> None:
    patch.setattr(leases, "LeaseRelease", lambda *given, unmark: LeaseRelease(*given, unmark=True))


def forget_what_failed_as_a_batch(patch: Patch) -> None:
    def release(lease_id: str, spans: Any, failure: Any, together: Any, *given: Any, **more: Any) -> LeaseRelease:
        return LeaseRelease(lease_id, spans, failure, None, *given, **more)

    patch.setattr(leases, "LeaseRelease", release)


def one_outage(make: Any, folder: Path) -> None:
    delivery = Delivery(make, folder)
    delivery.fails()
    delivery.send(*MESSAGES)
    consumer = delivery.consumer()
    began = delivery.harness.clock.now()
    with delivery.harness.running(consumer):
        delivery.harness.clock.advance(100)
        assert consumer.health.outage_since == began
        assert len(delivery.sizes) < 13 and delivery.receives() == {0}
    assert delivery.letters.counts().visible == 0


def undecided(make: Any, folder: Path, lands: bool = False) -> None:
    test_what_is_undecided_as_the_table_fails_is_delivered_once_and_its_receive_does_not_count(
        Delivery(make, folder), lands
    )


def part_of_a_batch(make: Any, folder: Path) -> None:
    test_a_part_of_a_failed_batch_makes_no_dead_letters_as_the_table_fails(Delivery(make, folder))


def landed(make: Any, folder: Path) -> None:
    undecided(make, folder, lands=True)


def blocked(make: Any, folder: Path) -> None:
    test_what_a_table_did_not_take_is_blocked_there_and_handed_back(Delivery(make, folder))


def left_to_others(make: Any, folder: Path) -> None:
    test_an_outage_ends_for_an_idle_consumer_once_others_have_delivered_everything(Delivery(make, folder))


MUTATIONS = [
    Mutation("a claim ends the outage of a table", ends_with_each_commit, {one_outage: "TAB-32"}),
    Mutation(
        "what was not delivered was received",
        replace(Delivering, "hand_back", release_and_count),
        {one_outage: "TAB-32", blocked: "TAB-32"},
    ),
    Mutation(
        "what was not delivered waits for its timeout",
        replace(Delivering, "hand_back", lambda delivering: None),
        {one_outage: "TAB-32", blocked: "TAB-26 TAB-32"},
    ),
    Mutation(
        "what is undecided was received",
        replace(Delivering, "hand_back", hand_back_what_is_decided),
        {undecided: "TAB-32"},
    ),
    Mutation("a part is no part of a batch", forget_what_failed_as_a_batch, {part_of_a_batch: "DLQ-12"}),
    Mutation("what may have arrived is visible", what_may_have_arrived_is_visible, {landed: "TAB-6"}),
    Mutation(
        "an outage never ends without a delivery",
        replace(DeliveryLoop, "_is_delivered", lambda loop: False),
        {left_to_others: "TAB-32"},
    ),
]


@each_case(MUTATIONS)
def test_an_outage_falls_with_its_safeguard(case: Case, make: Callable[..., Harness], tmp_path: Path) -> None:
    case.run(lambda _: (make, tmp_path))
