"""Whatever order the steps have, each message is in the queue, or its rows are in the delivery table once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from lakequeue.errors import TableUnavailable
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.delivery_protocol import DeliveryStatus, OpenedDeliveryTable
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity
from mutations import (
    Case,
    Mutation,
    a_block_looks_like_an_append,
    a_refused_block_is_an_arrival,
    a_repair_blocks_nothing,
    an_acknowledged_append_counts_unseen,
    each_case,
    messages_are_deleted_first,
    replace,
)

from .deliveries import Held, MemoryTable, Scenario, World, explore

APPENDS, CLEANED, CUT, LOST = (
    *("another program appends", "the log is cleaned up", "the power is cut", "an answer is lost"),
)


def exploring(name: str, scenario: Scenario) -> Callable[[], None]:
    def explored() -> None:
        explore(scenario)

    explored.__name__ = name
    return explored


PAIR = exploring("a_holder_and_a_decider", Scenario(("holder", "decider")))
DECIDERS = exploring("two_deciders", Scenario(("holder", "decider", "decider")))
HOLDERS = exploring("two_holders", Scenario(("holder", "holder", "decider")))
NEW = exploring("a_table_that_is_new", Scenario(("holder", "decider"), is_new=True))
FIRST = exploring("holders_of_a_table_that_is_new", Scenario(("holder", "holder", "decider"), is_new=True))
ANSWERS = exploring("a_lost_answer", Scenario(("holder", "decider"), happens=(LOST,)))
CLEANING = exploring("a_log_that_is_cleaned_up", Scenario(("holder", "decider"), happens=(APPENDS, CLEANED)))
POWER = exploring("a_power_cut", Scenario(("holder", "decider"), happens=(CUT,)))
FAILING = exploring("a_message_that_failed", Scenario(("failing holder", "decider"), messages=2))
TURNS = exploring("deliveries_in_turn", Scenario(("holder of two", "decider"), messages=2, happens=(CLEANED,)))
HALVES = exploring("halves", Scenario(("halving holder", "decider"), messages=2, happens=(LOST,)))
REPAIR = exploring("a_ledger_that_goes_back", Scenario(("holder", "repairer")))


def block_unseen(opened: OpenedDeliveryTable, delivery: DeliveryIdentity) -> Any:
    snapshot = opened.read()
    try:
        snapshot.block(delivery)
    except CommitRefused:
        raise TableUnavailable("", "") from None
    return DeliveryStatus.BLOCKED, snapshot


def release_after_the_append(patch: pytest.MonkeyPatch) -> None:
    release, append_rows, failed = Held.release, protocol.append, list[tuple[Held, int]]()

    def later(held: Held, index: int) -> bool:
        failed[:] = [(held, index)]
        return True

    def appended(opened: OpenedDeliveryTable, snapshot: Any, marked: Held, rows: Any, **options: Any) -> Any:
        append_rows(opened, snapshot, marked, rows, **options)
        for held, index in failed:
            release(held, index)
        return marked.delete()

    patch.setattr(Held, "release", later)
    patch.setattr(protocol, "deliver", appended)


def record_nothing(table: Any, marked: Held, schema: Any) -> Any:
    snapshot = table.read()
    if snapshot is None:
        table.create(schema())
        snapshot = table.read()
    return OpenedDeliveryTable(table, snapshot.table_id, "orders"), snapshot


def whatever_is_recorded(held: Held, delivered: bool, unrecorded: bool = False) -> int:
    return DECIDE(held, delivered)


def claim_as_recorded(world: World, size: int) -> Held | None:
    held = CLAIM(world, size)
    return held and attrs.evolve(held, was_recorded=True)


DECIDE, CLAIM = Held.decide, World.claim

MUTATIONS = [
    Mutation(
        "a block has the version of an append",
        a_block_looks_like_an_append,
        {DECIDERS: "TAB-20 TAB-26"},
    ),
    Mutation("messages are deleted before the append", messages_are_deleted_first, {PAIR: "TAB-25"}),
    Mutation("failed messages are released after the append", release_after_the_append, {FAILING: "TAB-6 TAB-29"}),
    Mutation(
        "a slot is used again without a new number",
        replace(World, "next_number", lambda world: world.commit() and 1),
        {TURNS: "TAB-2"},
    ),
    Mutation("an acknowledged append counts unseen", an_acknowledged_append_counts_unseen, {CLEANING: "TAB-20"}),
    Mutation(
        "a refused block is taken for an arrival",
        a_refused_block_is_an_arrival,
        {DECIDERS: "TAB-26"},
    ),
    Mutation(
        "a number is blocked without a look at its version",
        replace(protocol, "close", block_unseen),
        {PAIR: "TAB-26", HALVES: "TAB-27"},
    ),
    Mutation("a repair blocks nothing", a_repair_blocks_nothing, {REPAIR: "TAB-11"}),
    Mutation("what arrived is not synced", replace(MemoryTable, "sync", lambda *_: None), {POWER: "TAB-24"}),
    Mutation(
        "the table's id is not recorded", replace(OpenedDeliveryTable, "of", record_nothing), {NEW: "TAB-22"}
    ),
    Mutation(
        "a mark that was made before the table's id was recorded is not looked for",
        replace(World, "claim", claim_as_recorded),
        {FIRST: "TAB-4 TAB-25"},
    ),
    Mutation(
        "a mark is removed although an id was recorded meanwhile",
        replace(Held, "decide", whatever_is_recorded),
        {NEW: "TAB-26"},
    ),
]


@each_case(MUTATIONS)
def test_a_message_is_in_the_queue_or_its_rows_are_in_the_table_once(case: Case):
    case.run()


@pytest.mark.spec("TAB-25", "TAB-26")
@pytest.mark.parametrize("explored", [HOLDERS, ANSWERS], ids=lambda each: each.__name__)
def test_exactly_once_delivery_holds_with(explored: Callable[[], None]):
    explored()


@pytest.mark.slow
@pytest.mark.spec("TAB-25", "TAB-26", "TAB-27")
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(("failing holder", "holder", "decider"), messages=2),
        Scenario(("holder", "holder", "decider", "decider")),
        Scenario(("holder", "decider"), happens=(APPENDS, CLEANED, LOST)),
        Scenario(("holder", "holder", "decider"), happens=(CLEANED, LOST)),
        Scenario(("holder", "decider", "decider"), happens=(CUT,), is_new=True),
        Scenario(("halving holder", "holder", "decider"), messages=2),
        Scenario(("holder", "decider", "repairer")),
        Scenario(("holder", "holder", "repairer")),
    ],
    ids=str,
)
def test_exactly_once_delivery_holds_with_more_processes_and_faults(scenario: Scenario):
    assert explore(scenario) > 1_000
