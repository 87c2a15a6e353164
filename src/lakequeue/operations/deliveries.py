"""The delivery table as an attribute of a queue, and operators' decisions on undecided deliveries (TAB)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from lakequeue.errors import InvalidAttributeValue, InvalidParameterValue, counted
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.model.damage import Repair
from lakequeue.model.deliveries import Mark, application_id, is_catalog_name, new_delivery_id, parse_table
from lakequeue.operations.results import UndecidedDelivery
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.root import Root
from lakequeue.shard.commands import Decide
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.roots import is_inside, root_of


def located(given: Mapping[str, Any], root: Root) -> dict[str, Any]:
    """Makes the path in ``table`` or ``Table`` absolute (TAB-1). Raises InvalidAttributeValue for a bad path."""
    found = dict(given)
    for name in {"table", "Table"} & found.keys():
        if found[name]:
            found[name] = _place(found[name], root)
    return found


def _place(given: object, root: Root) -> str:
    try:
        table = parse_table(given)
        place = table if is_catalog_name(table) else root_of(table)
    except (InvalidParameterValue, ValueError) as error:
        reason = error.message if isinstance(error, InvalidParameterValue) else str(error)
        raise refused(reason.partition("Reason: ")[2] or reason) from None
    if not is_catalog_name(table) and is_inside(place, root.path):
        raise refused(f"{place} and the root {root.path} must not be in one another")
    return place


def identified(attributes: QueueAttributes) -> QueueAttributes:
    """Returns attributes with a new delivery id, or without an id if the queue has no delivery table (TAB-1)."""
    return attrs.evolve(attributes, delivery_id=None if attributes.table is None else new_delivery_id())


def check_unmarked(queue: OpenQueue) -> None:
    """Refuses to change the table while messages have delivery marks (TAB-1). Raises InvalidAttributeValue."""
    now = queue.now()
    marked = sum(shard.ledger.query(lambda machine: machine.marked(now)) for shard in queue.shards)
    if marked:
        found = counted(marked, "message")
        raise refused(f"{found} of deliveries into the table: try again when these have ended or are decided")


def undecided(queue: OpenQueue) -> list[UndecidedDelivery]:
    """Returns the undecided deliveries of all shards, oldest first (TAB-5)."""
    with queue.service("undecided"):
        found = [delivery for shard in queue.shards for delivery in _undecided(queue, shard).values()]
    return sorted(found, key=lambda each: each.since)


def decide(queue: OpenQueue, delivered: bool) -> int:
    """Ends all undecided deliveries, as arrived if ``delivered`` (TAB-10). Returns the number of messages."""
    steps, decided = Steps("the decision"), 0
    with queue.service("decide") as call:
        for shard in queue.shards:
            for mark in _undecided(queue, shard):
                with steps.step():
                    decided += queue.command(shard, Decide(*mark, delivered))
        call.messages = decided
    return decided


def renew(queue: OpenQueue, apply: bool) -> list[Repair]:
    """Gives a queue a new delivery id, and drops the marks of earlier deliveries, whose messages become visible
    (TAB-9, TAB-12). Changes nothing unless ``apply``.
    """
    if queue.attributes.table is None:
        raise InvalidParameterValue.of(True, "new_delivery_id", f"{queue.name} has no delivery table.")
    now = queue.now()
    marks = [
        (shard, mark) for shard in queue.shards for mark in shard.ledger.query(lambda machine: machine.marks(now))
    ]
    steps = ["gives the queue a new delivery id"]
    note = "rows of these messages that are in the table, or that a process still appends, are stored twice"
    if marks:
        steps.append(f"drops the marks of {len(marks)} deliveries, whose messages become visible")
    if apply:
        making = Steps("the repair")
        with queue.service("repair"):
            with making.step():
                queue.update(lambda row: _renewed(queue, row))
                queue.announce_attributes()
            for shard, mark in marks:
                with making.step():
                    queue.command(shard, Decide(*mark, delivered=False))
    return [Repair(queue.name, queue.region, None, steps, notes=[note] if marks else [], applied=apply)]


def _renewed(queue: OpenQueue, row: QueueRow) -> QueueRow:
    queue.adopt(row)
    attributes = identified(QueueAttributes.from_wire(row.attributes)).to_stored()
    version = row.attributes_version + 1
    return attrs.evolve(row, attributes=attributes, attributes_version=version, modified_at=queue.now())


def _undecided(queue: OpenQueue, shard: OpenShard) -> dict[Mark, UndecidedDelivery]:
    now = queue.now()
    found, target = shard.ledger.query(lambda machine: (machine.undecided(now), machine.target))
    return {
        each.mark: UndecidedDelivery(
            shard.number,
            each.messages,
            from_micros(each.since),
            target.owner and application_id(target.owner, shard.number, each.mark.slot),
            each.mark.version,
            each.lease_id,
        )
        for each in found
    }


def refused(reason: str) -> InvalidAttributeValue:
    return InvalidAttributeValue("Invalid value for the parameter {}.", names=["table"], hint=reason)
