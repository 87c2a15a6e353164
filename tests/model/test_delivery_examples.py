"""Deliveries into a table: examples on the state machine of one shard."""

from __future__ import annotations

import attrs
import pytest

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.deliveries import DeliveryTarget, Mark, Undecided
from lakequeue.shard.commands import (
    ChangeVisibility,
    Claim,
    ClaimResult,
    Command,
    Decide,
    Discard,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    MakeVisible,
    Move,
    Purge,
    RecordTable,
    Remark,
    SetAttributes,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Destination, Head

from .model import SECOND, ListLog, Row

MINUTE = 60 * SECOND
NONCE = 7


class Shard:
    """A shard of a queue with a delivery table, at 1,000 seconds."""

    def __init__(self, messages: int = 4, groups: str = "", **attributes: object) -> None:
        given = {"fifo": bool(groups), "visibility_timeout": 30, "table": "/lake/orders"} | attributes
        if groups:
            given["content_based_deduplication"] = True
        self.attributes = attrs.evolve(QueueAttributes.create(**given), delivery_id="a")
        rows = [Row(0, group=groups[number % len(groups)] if groups else "") for number in range(messages)]
        self.machine = ShardMachine(Head(attributes=self.attributes.to_wire()), [], ListLog(rows))
        self.now = 1_000 * SECOND
        self.leases = 0

    def ask(self, command: Command) -> object:
        decision = self.machine.decide([command], self.now)
        [result] = decision.results
        if decision.commit:
            self.machine.committed()
        if result.error is not None:
            raise result.error
        return result.value

    def claim(self, most: int = 10, delivery: int | None = NONCE, leased: int | None = None) -> ClaimResult:
        self.leases += 1
        result = self.ask(Claim(most, None, f"lease-{self.leases}", delivery=delivery, leased=leased))
        assert isinstance(result, ClaimResult)
        return result

    def claim_mark(self, most: int = 10) -> Mark:
        mark = self.claim(most).mark
        assert mark is not None
        return mark

    def change(self, version: int, **attributes: object) -> None:
        changed = attrs.evolve(self.attributes, **attributes)
        self.ask(SetAttributes(changed.to_wire(), version))

    def offsets(self, result: ClaimResult) -> list[int]:
        return [offset for span in result.spans for offset in range(span.first, span.last + 1)]


@pytest.mark.spec("TAB-2")
def test_a_claim_takes_the_lowest_slot_without_a_mark_and_a_higher_number_than_any_before() -> None:
    shard = Shard()
    first, second = shard.claim_mark(1), shard.claim_mark(1)
    assert (first, second) == (Mark(0, 2**20 + NONCE), Mark(1, 2 * 2**20 + NONCE))
    assert shard.ask(LeaseRelease("lease-1", [(0, 0)], unmark=True)).done == 1
    again = shard.claim_mark(1)
    assert again.slot == 0 and again.number > second.number
    assert (again.version, again.block) == (2 * again.number, 2 * again.number + 1)


@pytest.mark.spec("TAB-2")
def test_a_claim_that_is_not_for_a_delivery_or_finds_nothing_marks_nothing() -> None:
    shard = Shard(2)
    assert shard.claim(1, delivery=None).mark is None
    assert shard.claim(1).mark is not None
    empty = shard.claim(1)
    assert (empty.spans, empty.mark) == ((), None)
    assert shard.machine.marked(shard.now) == 1


@pytest.mark.spec("TAB-3")
def test_a_mark_lasts_over_extensions_and_the_end_of_the_receipt() -> None:
    shard = Shard(2)
    mark = shard.claim_mark()
    shard.ask(LeaseExtend("lease-1", [(0, 1)], MINUTE))
    shard.now += 59 * SECOND
    assert shard.machine.undecided(shard.now) == []
    shard.now += SECOND
    assert shard.machine.undecided(shard.now) == [Undecided(mark, "lease-1", 2, shard.now)]
    shard.ask(LeaseExtend("lease-1", [(0, 1)], MINUTE))
    assert shard.machine.undecided(shard.now) == [] and shard.machine.counts(shard.now).in_flight == 2


@pytest.mark.spec("TAB-5")
def test_undecided_messages_are_neither_visible_nor_moved_nor_cancelled_nor_rescheduled_nor_expired() -> None:
    policy = {"deadLetterTargetArn": "arn:lakequeue:sqs:local:000000000000:dead", "maxReceiveCount": 1}
    shard = Shard(3, redrive_policy=policy, message_retention_period=3_600, rewind_range=3_600)
    mark = shard.claim_mark(2)
    shard.now += 30 * SECOND
    nothing = shard.machine.counts(shard.now)
    assert (nothing.visible, nothing.in_flight, nothing.undecided) == (1, 0, 2)
    assert shard.ask(Move([(0, 1)], Destination("elsewhere", 1, False))) == 0
    assert shard.ask(Discard([(0, 1)])) == 0
    assert shard.ask(MakeVisible([(0, 1)], in_flight=True, at=shard.now + MINUTE)) == 0
    shard.now += 7_200 * SECOND
    result = shard.claim()
    assert (result.spans, [each.mark for each in result.undecided]) == ((), [mark])
    assert shard.machine.counts(shard.now).undecided == 2
    assert shard.ask(Decide(*mark, delivered=False)) == 2
    assert shard.machine.stored(shard.now) == 0  # older than their retention


@pytest.mark.spec("TAB-5")
def test_a_decision_that_rows_arrived_deletes_the_messages_and_one_that_they_did_not_shows_them_at_once() -> None:
    shard = Shard(4, rewind_range=3_600)
    arrived, lost = shard.claim_mark(2), shard.claim_mark(2)
    shard.now += 30 * SECOND
    assert shard.ask(Decide(*arrived, delivered=True)) == 2
    assert shard.ask(Decide(*arrived, delivered=True)) == 0
    assert shard.ask(Decide(lost.slot, lost.number - 1, delivered=True)) == 0, "the slot alone decides nothing"
    assert shard.ask(Decide(*lost, delivered=False)) == 2
    counts = shard.machine.counts(shard.now)
    assert (counts.visible, counts.undecided, counts.rewindable) == (2, 0, 2)
    late = shard.ask(LeaseDelete("lease-2", [(2, 3)]))
    assert (late.done, late.lost) == (0, 2), "the receipt of before the decision holds nothing"


@pytest.mark.spec("TAB-5", "DLQ-12")
def test_messages_that_come_again_after_a_decision_come_in_halves() -> None:
    shard = Shard(8)
    mark = shard.claim_mark()
    shard.now += 30 * SECOND
    shard.ask(Decide(*mark, delivered=False))
    halves = [shard.offsets(shard.claim(leased=0)) for _ in range(2)]
    assert halves == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.spec("TAB-5")
def test_in_a_fifo_queue_the_other_groups_go_on() -> None:
    shard = Shard(4, groups="AB")
    mark = shard.claim_mark(1)
    shard.now += 30 * SECOND
    assert shard.offsets(shard.claim(delivery=None)) == [1, 3]
    shard.ask(Decide(*mark, delivered=True))
    assert shard.offsets(shard.claim(delivery=None)) == [2]


@pytest.mark.spec("TAB-5")
def test_a_receive_that_waits_looks_again_when_a_receipt_ends_and_every_thirty_seconds_after_that() -> None:
    shard = Shard(1)
    shard.claim_mark()
    assert shard.machine.next_event(shard.now) == shard.now + 30 * SECOND
    shard.now += 40 * SECOND
    assert shard.machine.next_event(shard.now) == shard.now + 30 * SECOND


@pytest.mark.spec("TAB-6")
def test_a_release_leaves_a_message_undecided_unless_no_append_can_land() -> None:
    shard = Shard(5)
    shard.claim_mark()
    shard.ask(LeaseRelease("lease-1", [(0, 0)], unmark=True))
    shard.ask(LeaseRelease("lease-1", [(1, 1)]))
    shard.ask(LeaseRelease("lease-1", [(4, 4)], unseen=True))
    assert [run.receive_count for run in shard.machine.runs] == [1, 1, 1, 0]
    shard.ask(ChangeVisibility(2, "lease-1", 0))
    shard.ask(MakeVisible([(3, 3)], in_flight=True))
    counts = shard.machine.counts(shard.now)
    assert (counts.visible, counts.undecided) == (1, 4)
    assert shard.ask(LeaseDelete("lease-1", [(0, 4)], [1], unmark=True)).released == 1
    counts = shard.machine.counts(shard.now)
    assert (counts.visible, counts.undecided, counts.in_flight) == (1, 0, 0)


@pytest.mark.spec("TAB-7")
def test_parts_of_a_blocked_delivery_get_new_numbers_and_slots_and_the_rest_is_visible() -> None:
    shard = Shard(6)
    mark, other = shard.claim_mark(4), shard.claim_mark(2)
    parts = [[(0, 0)], [(1, 2)]]
    first, second = shard.ask(Remark("lease-1", *mark, parts, NONCE))
    assert [first.slot, second.slot] == [0, 2] and min(first.number, second.number) > other.number
    assert shard.machine.counts(shard.now).visible == 1
    assert shard.ask(Remark("lease-1", *mark, parts, NONCE)) is None, "the number is used up"
    assert shard.ask(Decide(*first, delivered=True)) == 1
    assert shard.ask(Decide(*second, delivered=True)) == 2
    assert shard.machine.counts(shard.now).in_flight == 2


@pytest.mark.spec("TAB-7")
@pytest.mark.parametrize("seconds", [30, 31])
def test_a_lease_that_has_ended_gets_no_new_marks(seconds: int) -> None:
    shard = Shard(2)
    mark = shard.claim_mark()
    shard.now += seconds * SECOND
    assert shard.ask(Remark("lease-1", *mark, [[(0, 0)]], NONCE)) is None
    assert [each.mark for each in shard.machine.undecided(shard.now)] == [mark]


@pytest.mark.spec("TAB-8")
def test_a_purge_removes_marked_messages_and_their_slots() -> None:
    shard = Shard(2)
    shard.claim_mark()
    shard.ask(Purge())
    assert (shard.machine.marked(shard.now), shard.machine.counts(shard.now).in_flight) == (0, 0)


@pytest.mark.spec("TAB-4")
def test_the_first_table_id_stays_and_is_recorded_only_while_the_mark_is_there() -> None:
    shard = Shard(2)
    mark = shard.claim_mark(1)
    assert shard.ask(RecordTable(mark.slot, mark.number - 1, "t1")) is None
    assert shard.ask(RecordTable(*mark, "t1")) == "t1" == shard.ask(RecordTable(*mark, "t2"))
    assert shard.machine.target == DeliveryTarget("/lake/orders", "a", "t1", owner="a")


@pytest.mark.spec("TAB-4")
def test_a_mark_is_not_removed_as_of_no_table_once_a_table_is_recorded() -> None:
    shard = Shard(2)
    mark = shard.claim_mark(1)
    shard.now += 30 * SECOND
    shard.ask(RecordTable(*mark, "t1"))
    assert shard.ask(Decide(*mark, delivered=False, unrecorded=True)) == 0
    assert shard.machine.counts(shard.now).undecided == 1


@pytest.mark.spec("TAB-9")
def test_marks_of_an_earlier_delivery_id_stop_deliveries_until_they_are_decided() -> None:
    shard = Shard(3)
    mark = shard.claim_mark(1)
    shard.change(1, table="/lake/other", delivery_id="b")
    assert shard.machine.target == DeliveryTarget("/lake/other", "b", None, changed=True, owner="a")
    assert shard.ask(RecordTable(*mark, "t1")) is None
    stopped = shard.claim()
    assert (stopped.spans, stopped.target and stopped.target.changed) == ((), True)
    assert shard.offsets(shard.claim(1, delivery=None)) == [1], "other receives go on"
    shard.ask(Decide(*mark, delivered=True))
    mark = shard.claim_mark(1)
    assert shard.machine.target == DeliveryTarget("/lake/other", "b", None, owner="b")
    assert shard.ask(RecordTable(*mark, "t2")) == "t2"


@pytest.mark.spec("TAB-9")
def test_a_shard_that_knows_of_no_table_any_more_marks_nothing() -> None:
    shard = Shard(1)
    shard.change(1, table=None, delivery_id=None)
    assert (shard.claim().mark, shard.machine.marked(shard.now)) == (None, 0)
