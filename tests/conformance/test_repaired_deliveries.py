"""A ledger goes back to an older version while leases from before still deliver into a table (TAB-11)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import polars
import pytest

from conformance.damage import Victim, empty, entries, victim_of_seven
from lakequeue.errors import DamagedTable, LeaseLost
from lakequeue.lease import Lease
from lakequeue.model.damage import Repair
from lakequeue.operations import repair_deliveries
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, a_repair_blocks_nothing, each_case, replace


@attrs.frozen
class Place:
    """A queue whose messages 0 to 6 are delivered into a table, except 0, which is deleted; 1 is delivered."""

    victim: Victim
    table: Path

    @classmethod
    def of(cls, folder: Path) -> Place:
        victim = victim_of_seven(folder, ManualClock())
        victim.queue.set_attributes(table=str(folder / "table"), visibility_timeout=60)
        victim.clock.advance(60)
        made = cls(victim, folder / "table")
        made.deliver(1)
        return made

    def lease(self, most: int) -> Lease | None:
        return self.victim.queue.lease(most)

    def deliver(self, most: int) -> bool:
        lease = self.lease(most)
        return lease is not None and lease.append(rows_of(lease)) > 0

    def stored(self) -> list[int]:
        return sorted(polars.read_delta(str(self.table))["id"].to_list())

    def go_back(self, before: int, apply: bool = True) -> Repair:
        """Loses all entries of the ledger but the first ``before``, and repairs it."""
        for entry in entries(self.victim.receipts)[before:]:
            empty(entry)
        [report] = self.victim.lake().repair("orders", apply=apply, force=True)
        return report


def rows_of(lease: Lease) -> list[dict[str, int]]:
    return [{"id": int(body)} for body in lease.arrow(["body"])["body"].to_pylist()]


def leases_from_before_append_nothing(folder: Path) -> None:
    place = Place.of(folder)
    before = len(entries(place.victim.receipts))
    leases = [lease for lease in (place.lease(2), place.lease(2)) if lease is not None]
    rows = [rows_of(lease) for lease in leases]
    report = place.go_back(before)
    assert f"blocks deliveries of earlier claims in {place.table}" in report.steps
    place.deliver(1)  # the ledger has the id of the table again
    for lease, each in zip(leases, rows, strict=True):
        with suppress(DamagedTable):
            lease.append(each)  # finds another ledger, and forgets what it knew
        with suppress(LeaseLost):
            lease.append(each)
    place.deliver(10)
    assert place.stored() == [1, 2, 3, 4, 5, 6]


def an_append_that_had_looked_at_the_ledger_is_refused(folder: Path) -> None:
    place = Place.of(folder)
    before = len(entries(place.victim.receipts))
    lease = place.lease(2) or pytest.fail("no message")
    append = DeltaDeliverySnapshot.append

    def slow(snapshot: DeltaDeliverySnapshot, *arguments: Any) -> None:
        patch.undo()
        place.go_back(before)
        append(snapshot, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaDeliverySnapshot, "append", slow)
        with suppress(LeaseLost, DamagedTable):
            lease.append(rows_of(lease))
    place.deliver(10)
    assert place.stored() == [1, 2, 3, 4, 5, 6]


MUTATIONS = [
    Mutation(
        "a repair blocks nothing",
        a_repair_blocks_nothing,
        {
            leases_from_before_append_nothing: "TAB-11",
            an_append_that_had_looked_at_the_ledger_is_refused: "TAB-11",
        },
    ),
    Mutation(
        "a repair blocks one slot",
        replace(repair_deliveries, "SLOTS", 1),
        {leases_from_before_append_nothing: "TAB-11"},
    ),
]


@each_case(MUTATIONS)
def test_after_a_repair_rows_of_a_message_are_stored_once(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: (tmp_path,))


@pytest.mark.spec("TAB-11")
def test_what_a_repair_cannot_block_it_names(tmp_path: Path) -> None:
    place = Place.of(tmp_path)
    before = len(entries(place.victim.receipts))
    place.lease(2)
    away = place.table.rename(place.table.with_name("away"))
    planned = place.go_back(before, apply=False)
    note = f"no deliveries are blocked: {place.table} is not there; stop the consumers first"
    assert any(note in each for each in planned.notes)
    assert not any("blocks" in step for step in planned.steps)
    away.rename(place.table)
    assert any("blocks" in step for step in place.go_back(before, apply=False).steps)
    assert sorted(path.name for path in (place.table / "_delta_log").glob("*.json"))[-1] == f"{1:020}.json"


@pytest.mark.spec("TAB-11")
def test_a_killed_repair_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place.of(tmp_path)
    before = len(entries(place.victim.receipts))
    lease = place.lease(2) or pytest.fail("no message")
    rows = rows_of(lease)
    with monkeypatch.context() as patched:
        patched.setattr("lakequeue.operations.repair.fence_step", None)
        with pytest.raises(TypeError):
            place.go_back(before)
    place.go_back(before)
    for expected in (DamagedTable, LeaseLost):
        with pytest.raises(expected):
            lease.append(rows)
    place.deliver(10)
    assert place.stored() == [1, 2, 3, 4, 5, 6]
