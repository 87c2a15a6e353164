"""The ledger's side of deliveries into a table: the attribute, and what operators see of undecided messages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import keep_to
from conformance.damage import Victim, empty, entries, victim_of_seven
from insides import shard_of
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.errors import InvalidAttributeValue, InvalidParameterValue, RootDoesNotExist
from lakequeue.model.deliveries import Mark, new_nonce
from lakequeue.shard.commands import Claim, Command, Decide, LeaseDelete, RecordTable, SetAttributes
from lakequeue.testing import ManualClock


def delivery_id(queue: Queue) -> str | None:
    return queue._runtime.attributes.delivery_id


def commit(queue: Queue, command: Command) -> Any:
    return queue._runtime.command(shard_of(queue), command)


@pytest.mark.spec("TAB-1")
@pytest.mark.parametrize(
    ("table", "stored"),
    [
        ("/lake/orders/", "/lake/orders"),
        (Path("/lake/orders"), "/lake/orders"),
        ("file:///lake/some%20orders", "/lake/some orders"),
        ("s3a://lake/orders", "s3://lake/orders"),
        ("silver.orders", "silver.orders"),
        ("lake.silver.orders", "lake.silver.orders"),
    ],
)
def test_a_table_is_an_absolute_path_a_uri_or_a_name_in_a_catalog(
    lq: LakeQueue, table: object, stored: str
) -> None:
    queue = lq.create_queue("orders", table=table)
    assert queue.attributes()["table"] == stored == lq.queue("orders").attributes()["Table"]
    again = lq.create_queue("orders", table=table)
    assert delivery_id(again) == delivery_id(queue)


@pytest.mark.spec("TAB-1")
@pytest.mark.parametrize(
    "table",
    [
        "s3://key:secret@lake/orders",
        "https://lake/orders?sig=secret",
        "redis://lake/orders",
        "/lake/a\nb",
        "  ",
        7,
    ],
)
def test_a_place_that_no_table_can_have_is_refused(lq: LakeQueue, table: object) -> None:
    with pytest.raises(InvalidAttributeValue, match=r"parameter table\b") as caught:
        lq.create_queue("orders", table=table)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(RootDoesNotExist):
        lq.list_queues()


@pytest.mark.spec("TAB-1")
def test_a_table_and_the_root_are_not_in_one_another(lq: LakeQueue) -> None:
    for place in (lq.root, f"{lq.root}/orders", lq.root.rpartition("/")[0]):
        with pytest.raises(InvalidAttributeValue, match="in one another"):
            lq.create_queue("orders", table=place)
    lq.create_queue("orders", table=f"{lq.root}-tables/orders")


@pytest.mark.spec("TAB-1")
def test_each_change_of_the_table_gives_the_queue_a_new_delivery_id_and_other_changes_do_not(
    lq: LakeQueue,
) -> None:
    queue = lq.create_queue("orders")

    assert delivery_id(queue) is None
    known = set()
    for table in ("/lake/orders", "/lake/other", "/lake/orders"):
        queue.set_attributes(table=table)
        known.add(delivery_id(lq.queue("orders")))
        queue.set_attributes(table=table, visibility_timeout=60)
        known.add(delivery_id(lq.queue("orders")))
    assert len(known) == 3 and all(re.fullmatch("[0-9a-f]{32}", each or "") for each in known)
    queue.set_attributes(table=None)
    assert (delivery_id(queue), queue.attributes()["table"]) == (None, None)


@pytest.mark.spec("TAB-1")
def test_the_table_stays_while_a_message_is_being_delivered_or_is_undecided(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    queue.send("one")
    claimed = commit(queue, Claim(1, None, "lease", delivery=new_nonce()))
    for _ in range(2):
        with pytest.raises(InvalidAttributeValue, match="1 message of deliveries into the table"):
            queue.set_attributes(table="/lake/other")
        queue.set_attributes(table="/lake/orders", visibility_timeout=60)
        lq.clock.advance(30)
    assert queue.counts().undecided == 1
    assert commit(queue, Decide(*claimed.mark, delivered=True)) == 1
    queue.set_attributes(table="/lake/other")


def died(queue: Queue, messages: int, most: int | None = None) -> list[Mark]:
    """Messages of deliveries of up to ``most`` messages whose process has died."""
    queue.send_batch([SendEntry(str(number)) for number in range(messages)])
    leases = range(0, messages, most or messages)
    marks = [
        commit(queue, Claim(most or messages, None, f"l{each}", delivery=new_nonce())).mark for each in leases
    ]
    for mark in marks:
        commit(queue, RecordTable(*mark, "id of the table"))  # else the next claim would decide
    queue.clock.advance(30)
    return marks


@pytest.mark.spec("TAB-10")
def test_undecided_messages_are_counted_and_listed_with_the_id_that_the_table_has(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    assert (queue.undecided(), queue.decide(delivered=True)) == ([], 0)
    marks = died(queue, 3, most=2)
    counts = queue.counts()
    assert (counts.undecided, counts.visible, counts.in_flight, counts.oldest_age) == (3, 0, 0, 30)
    assert queue.shard_counts()[0].undecided == 3
    app = f"lakequeue-{delivery_id(queue)}-0-"
    found = [(each.application_id, each.version, each.messages, each.lease_id) for each in queue.undecided()]
    assert found == [(f"{app}0", 2 * marks[0].number, 2, "l0"), (f"{app}1", 2 * marks[1].number, 1, "l2")]
    assert {each.since for each in queue.undecided()} == {lq.clock.now()}
    assert [each.state.value for each in queue.peek(limit=5)] == ["undecided"] * 3
    assert [each.body for each in queue.peek("state = 'undecided' AND body < '2'")] == ["0", "1"]
    assert queue.receive() == [] and queue.lease(10) is None


@pytest.mark.spec("TAB-10")
@pytest.mark.parametrize("delivered", [True, False])
def test_an_operator_decides_all_undecided_deliveries(lq: LakeQueue, delivered: bool) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    died(queue, 4, most=2)
    queue.send("later")
    assert queue.decide(delivered=delivered) == 4
    assert (queue.counts().visible, queue.counts().undecided, queue.undecided()) == (1 if delivered else 5, 0, [])


@pytest.mark.spec("TAB-9", "TAB-10")
def test_deliveries_of_an_earlier_table_are_listed_with_its_id(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    before = delivery_id(queue)
    died(queue, 1)
    shard = shard_of(queue)
    other = attrs.evolve(queue._runtime.attributes, table=None, delivery_id=None)
    commit(queue, SetAttributes(other.to_stored(), 7))
    assert shard.ledger.query(lambda machine: machine.target.changed)
    assert [each.application_id for each in queue.undecided()] == [f"lakequeue-{before}-0-0"]
    assert queue.decide(delivered=False) == 1


@pytest.mark.spec("TAB-8")
def test_a_cancellation_and_a_purge_remove_undecided_messages(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    died(queue, 2)
    assert queue.cancel(queue.peek()[0].message_id) and queue.counts().undecided == 1
    queue.purge()
    assert (queue.counts().undecided, queue.undecided()) == (0, [])


@pytest.mark.spec("TAB-10")
def test_sql_shows_undecided_messages_and_their_marks_also_past_their_retention(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30, message_retention_period=60)
    [mark] = died(queue, 2)
    lq.clock.advance(60)
    queue.send("later")
    views = {name: relation.to_table().to_pylist() for name, relation in lq.arrow_views().items()}
    [counts] = views["queues"]
    assert (counts["undecided"], counts["visible"], counts["in_flight"]) == (2, 1, 0)
    shown = [(row["body"], row["state"], row["visible_at"]) for row in views["messages"]]
    assert shown[:2] == [("0", "undecided", None), ("1", "undecided", None)] and shown[2][1] == "visible"
    marks = {(row["delivery_slot"], row["delivery_number"]) for row in views["receipts"]}
    assert marks == {tuple(mark), (None, None)}


@pytest.mark.spec("TAB-11")
def test_a_copy_has_its_own_delivery_id_and_no_marks(lq: LakeQueue, tmp_path: Path) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30, shards=2)
    keep_to(queue, 0)
    died(queue, 2)
    lq.copy(copied := LakeQueue(str(tmp_path / "copy"), clock=lq.clock))
    other = copied.queue("orders")
    assert queue.counts().undecided == 2
    assert (other.counts().undecided, other.counts().visible, other.undecided()) == (0, 2, [])
    assert delivery_id(other) not in (None, delivery_id(queue))
    targets = [each.ledger.query(lambda machine: machine.target) for each in other._runtime.shards]
    assert {(each.delivery_id, each.table_id) for each in targets} == {(delivery_id(other), None)}
    assert other.attributes()["table"] == "/lake/orders"
    assert commit(other, Claim(2, None, "other", delivery=new_nonce())).message_count == 2


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    victim = victim_of_seven(tmp_path, clock)
    victim.queue.set_attributes(table="/lake/orders")
    clock.advance(60)
    return victim


def claimed(victim: Victim, most: int) -> Mark:
    mark = commit(victim.queue, Claim(most, 30, "lease", delivery=new_nonce())).mark
    assert mark is not None
    return mark


@pytest.mark.spec("TAB-11")
def test_a_ledger_that_goes_back_has_no_marks_and_higher_numbers_than_any_before(victim: Victim) -> None:
    first = claimed(victim, 2)
    before = len(entries(victim.receipts))
    lost = claimed(victim, 2)
    commit(victim.queue, Decide(*lost, delivered=True))
    for entry in entries(victim.receipts)[before:]:
        empty(entry)
    [report] = victim.lake().repair("orders", apply=True, force=True)
    assert any(
        "2 messages were being delivered into /lake/orders, and come again" in note for note in report.notes
    )
    assert victim.queue.counts().undecided == 0 == len(victim.queue.undecided())
    victim.clock.advance(60)
    assert claimed(victim, 7).number > max(first, lost, key=lambda mark: mark.number).number + (1 << 30)
    assert commit(victim.queue, LeaseDelete("lease", [(0, 6)])).done == 6


@pytest.mark.spec("TAB-11")
def test_a_new_ledger_has_higher_numbers_than_the_lost_ledger(victim: Victim) -> None:
    lost = claimed(victim, 2)
    shutil.rmtree(victim.receipts / "_delta_log")
    reports = victim.lake().repair("orders", apply=True, force=True)
    assert any("being delivered into /lake/orders" in note for each in reports for note in each.notes)
    assert claimed(victim, 2).number > lost.number


@pytest.mark.spec("TAB-11")
def test_a_repair_of_the_newest_ledger_keeps_its_marks(victim: Victim) -> None:
    claimed(victim, 2)
    victim.clock.advance(60)
    victim.lake().repair("orders", apply=True, force=True)
    assert victim.queue.counts().undecided == 2


@pytest.mark.spec("TAB-12")
def test_a_new_delivery_id_drops_the_marks_of_the_old_one(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    before = delivery_id(queue)
    died(queue, 2)
    queue.send("third")
    commit(queue, Claim(1, 60, "live", delivery=new_nonce()))
    [planned] = lq.repair("orders", new_delivery_id=True)
    assert len(planned.steps) == 2 and not planned.applied
    assert (delivery_id(lq.queue("orders")), queue.counts().undecided) == (before, 2)
    [done] = lq.repair("orders", apply=True, new_delivery_id=True)
    assert done.applied and done.steps == planned.steps
    assert delivery_id(lq.queue("orders")) not in (None, before)
    assert (queue.counts().visible, queue.counts().undecided) == (3, 0)
    lq.create_queue("plain")
    for name in ("plain", None):
        with pytest.raises(InvalidParameterValue, match="new_delivery_id"):
            lq.repair(name, new_delivery_id=True)
