"""A table or root changes while a consumer delivers: rows of a message are there once, or the message waits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import polars
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from concurrency.power_cuts import disk
from lakequeue import Consumer, LakeQueue, NoRenewal, Queue
from lakequeue.errors import TableUnavailable
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.copy import ShardCopies
from lakequeue.operations.delivery import Delivering
from lakequeue.operations.delivery_protocol import DeliveryStatus, OpenedDeliveryTable
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot, DeltaDeliveryTable
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, a_refused_append_is_an_arrival, each_case, replace, shown_by
from small_disk import mounted, take_bytes

MESSAGES = 12
OTHERS = [9, 10, 11]
"""The messages after those of the first two batches."""


@attrs.frozen
class Place:
    """A queue of messages, and its delivery table."""

    lake: LakeQueue
    queue: Queue
    clock: ManualClock
    table: Path

    @classmethod
    def of(cls, folder: Path, table: Path) -> Place:
        clock = ManualClock()
        lake = LakeQueue(str(folder / "root"), clock=clock, durability="power")
        queue = lake.create_queue("orders", table=str(table), visibility_timeout=60, allow_zero_visibility=True)
        made = cls(lake, queue, clock, table)
        queue.send("0")
        made.deliver()
        for number in range(1, MESSAGES):
            queue.send(str(number))
        return made

    def deliver(self, meanwhile: Callable[[], object] = lambda: None, batch: int = 4) -> None:
        """Runs a consumer until it is killed in its second batch, in which ``meanwhile`` happens."""
        calls: list[int] = []

        def handle(messages: Any, contexts: Any) -> list[dict[str, int]]:
            calls.append(len(messages))
            if len(calls) == 2:
                meanwhile()
                running.stop()
            return [{"id": int(each.body)} for each in messages]

        running = Consumer(self.queue, handle, batch=batch, concurrency=1, renewal=NoRenewal())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Delivering, "hand_back", lambda delivering: None)
            running.run(until_empty=True)

    def stored(self) -> list[int]:
        return sorted(map(int, polars.read_delta(str(self.table))["id"].to_list()))

    def waiting(self) -> list[int]:
        """The messages that can be received, at once, after a receive that decides."""
        self.queue.receive(1, visibility_timeout=0)
        return sorted(int(each.body) for each in self.queue.receive(100, visibility_timeout=0))

    def expire(self) -> None:
        self.clock.advance(61)

    def left(self) -> int:
        counts = self.queue.counts()
        return counts.visible + counts.in_flight + counts.undecided

    def check_all_once(self) -> None:
        """Delivers what is left; the rows of each message are then in the table once."""
        for _ in range(3):
            self.expire()
            self.waiting()  # decides
            self.deliver(batch=100)
        assert self.left() == 0
        assert self.stored() == [*range(MESSAGES)]


@pytest.mark.spec("TAB-22", "TAB-25", "TAB-26")
@pytest.mark.parametrize("how", ["read-only", "renamed", "other columns"])
def test_the_table_is_changed_while_a_consumer_delivers(tmp_path: Path, how: str) -> None:
    place = Place.of(tmp_path, tmp_path / "table")
    log, away = place.table / "_delta_log", tmp_path / "away"

    def change() -> None:
        if how == "read-only":  # root may write in any directory
            log.rename(away)
            log.write_text("not a directory")
        elif how == "renamed":
            place.table.rename(away)
        else:
            rows = pa.table({"id": pa.array([], pa.int64()), "more": pa.array([], pa.string())})
            write_deltalake(place.table, rows, mode="append", schema_mode="merge")

    place.deliver(change)
    if how != "other columns":
        place.expire()
        assert place.waiting() == OTHERS
        if how == "read-only":
            log.unlink()
        away.rename(log if how == "read-only" else place.table)
    place.check_all_once()


@pytest.mark.spec("TAB-22", "TAB-26")
def test_a_table_that_is_deleted_while_a_consumer_delivers_decides_nothing(tmp_path: Path) -> None:
    place = Place.of(tmp_path, tmp_path / "table")
    place.deliver(lambda: shutil.rmtree(place.table))
    place.expire()
    waiting = place.left()
    assert waiting >= 4 and not place.table.exists()
    write_deltalake(place.table, pa.table({"id": pa.array([], pa.int64())}))  # another one in its place
    place.clock.advance(60)
    place.queue.receive(1, visibility_timeout=0)
    assert place.left() == waiting and place.stored() == []
    assert [each.messages for each in place.queue.undecided()] == [4]
    assert place.queue.decide(delivered=False) == 4


@pytest.mark.spec("TAB-25", "TAB-26")
def test_the_disk_of_the_table_is_full_while_a_consumer_delivers(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as small:
        place, others = Place.of(tmp_path, small / "table"), small / "others"
        others.mkdir()
        place.deliver(lambda: take_bytes(others))
        place.expire()
        assert place.waiting() == OTHERS  # a block does not fit either
        shutil.rmtree(others)
        place.check_all_once()
        shutil.rmtree(place.table)


def append_one(queue: Queue, root: str) -> bool:
    """Delivers up to two messages, with the root in their rows; False if there were none."""
    lease = queue.lease(2)
    if lease is not None:
        lease.append([{"id": int(body), "root": root} for body in lease.arrow(["body"])["body"].to_pylist()])
    return lease is not None


@pytest.mark.spec("TAB-11", "TAB-12", "TAB-25", "TAB-26")
@pytest.mark.parametrize("how", ["copy", "cp -r"])
def test_a_copied_root_and_the_original_can_both_deliver(tmp_path: Path, how: str) -> None:
    clock, table = ManualClock(), tmp_path / "table"
    original = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue = original.create_queue("orders", table=str(table), visibility_timeout=60)
    for number in range(MESSAGES):
        queue.send(str(number))
    append_one(queue, "original")
    held = queue.lease(3) or pytest.fail("no message")
    twin = LakeQueue(str(tmp_path / "twin"), clock=clock)
    if how == "copy":
        original.copy(twin)
    else:
        shutil.copytree(original.root, twin.root)
    held.append([{"id": int(body), "root": "original"} for body in held.arrow(["body"])["body"].to_pylist()])
    clock.advance(61)
    refused, queues = 0, {"original": queue, "twin": twin.queue("orders")}
    for _ in range(3):
        for _ in range(MESSAGES):
            append_one(queue, "original")  # so that the original is ahead
            for root, each in queues.items():
                try:
                    append_one(each, root)
                except TableUnavailable as error:
                    assert "--new-delivery-id" in str(error)
                    refused += 1
        clock.advance(61)
        if refused:
            twin.repair("orders", apply=True, new_delivery_id=True)
    assert bool(refused) == (how == "cp -r")
    found = polars.read_delta(str(table))
    ids = {root: sorted(found.filter(polars.col("root") == root)["id"].to_list()) for root in queues}
    assert ids["original"] == [*range(MESSAGES)]
    # what was on its way is another delivery of a copy, and the same one of a root that was copied as files
    assert ids["twin"] == [*range(2 if how == "copy" else 5, MESSAGES)]
    assert [each.counts().visible + each.counts().undecided for each in queues.values()] == [0, 0]


def what_was_deleted_is_on_the_disk(folder: Path) -> None:
    with disk(folder) as drive:
        place = Place.of(folder, drive.path / "table")
        place.deliver()
        drive.cut_power()
        drive.restore()
        assert len(place.stored()) + place.left() == MESSAGES
        place.check_all_once()


def a_commit_that_was_not_synced_may_be_gone(folder: Path) -> None:
    with disk(folder) as drive:
        place = Place.of(folder, drive.path / "table")
        append = DeltaDeliverySnapshot.append

        def cut(*arguments: Any) -> None:
            append(*arguments)
            drive.cut_power()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeltaDeliverySnapshot, "append", cut)
            lease = place.queue.lease(4) or pytest.fail("no message")
            with pytest.raises(TableUnavailable):
                lease.append([{"id": int(body)} for body in lease.arrow(["body"])["body"].to_pylist()])
        drive.restore()
        place.check_all_once()


def what_cannot_be_asked_has_no_rows(patch: Patch) -> None:
    real = protocol.decide

    def decide(table: Any, marked: Any) -> bool:
        try:
            return real(table, marked)
        except TableUnavailable:
            return bool(marked.decide(False))

    patch.setattr(protocol, "decide", decide)


def a_refused_block_blocks(opened: OpenedDeliveryTable, delivery: Any) -> tuple[DeliveryStatus, Any]:
    snapshot = opened.read()
    state = protocol.state_of(snapshot, delivery)
    if state is DeliveryStatus.OPEN:
        with suppress(CommitRefused):
            snapshot.block(delivery)
        state = DeliveryStatus.BLOCKED
    return state, snapshot


def a_newer_delivery_is_overlooked(patch: Patch) -> None:
    real = protocol.state_of

    def state_of(snapshot: Any, delivery: DeliveryIdentity) -> DeliveryStatus:
        newer = snapshot.delivered(delivery.app_id) > delivery.block
        return DeliveryStatus.OPEN if newer else real(snapshot, delivery)

    patch.setattr(protocol, "state_of", state_of)


def changed(how: str) -> Any:
    return shown_by(test_the_table_is_changed_while_a_consumer_delivers, lambda folder: (folder, how))


def copied(how: str) -> Any:
    return shown_by(test_a_copied_root_and_the_original_can_both_deliver, lambda folder: (folder, how))


deleted, full = (
    shown_by(test, lambda folder: (folder,))
    for test in (
        test_a_table_that_is_deleted_while_a_consumer_delivers_decides_nothing,
        test_the_disk_of_the_table_is_full_while_a_consumer_delivers,
    )
)

MUTATIONS = [
    Mutation(
        "a table that cannot be asked has no rows",
        what_cannot_be_asked_has_no_rows,
        dict.fromkeys((changed("read-only"), changed("renamed"), deleted, full), "TAB-22 TAB-26"),
    ),
    Mutation(
        "another table is asked like the earlier table",
        replace(OpenedDeliveryTable, "_compare", lambda *_: None),
        {deleted: "TAB-22"},
    ),
    Mutation("a refused block blocks", replace(protocol, "close", a_refused_block_blocks), {full: "TAB-26"}),
    Mutation(
        "a refused append is an arrival",
        a_refused_append_is_an_arrival,
        {full: "TAB-25"},
    ),
    Mutation(
        "a copy has the delivery id of the original",
        replace(ShardCopies, "_own", lambda _, __, attributes: dict(attributes)),
        {copied("copy"): "TAB-11"},
    ),
    Mutation("a newer delivery is overlooked", a_newer_delivery_is_overlooked, {copied("cp -r"): "TAB-25"}),
]


@each_case(MUTATIONS)
def test_a_change_is_survived_by_a_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: (tmp_path,))


POWER_CUTS = [
    Mutation(
        "a table is not synced before its messages are deleted",
        replace(DeltaDeliveryTable, "sync", lambda *_: None),
        {what_was_deleted_is_on_the_disk: "TAB-24"},
    ),
]


@pytest.mark.powercut
@each_case(POWER_CUTS)
def test_the_power_of_the_table_is_cut(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: (tmp_path,), (TableUnavailable,))


@pytest.mark.powercut
@pytest.mark.spec("TAB-24", "TAB-26")
def test_the_power_is_cut_between_commit_and_sync(tmp_path: Path) -> None:
    a_commit_that_was_not_synced_may_be_gone(tmp_path)
