"""What a repair does about deliveries when it restores or remakes a ledger (TAB-11)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import attrs

from lakequeue.errors import QueueClientError, UnsupportedOperation
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.deliveries import DELIVERY_ID, Mark, application_id, epoch_above_all
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.undecided import table_of
from lakequeue.runtime.root import Root
from lakequeue.shard.deliver import without_marks
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.delivery.identity import DeliveryIdentity
from lakequeue.storage.repair.ledger import RepairedLedger
from lakequeue.storage.repair.steps import RepairStep

SLOTS = 256
"""Number of delivery slots that a repair blocks in a shard. Fewer deliveries are expected at the same time."""


def undelivered(rows: RepairedLedger, now: int) -> tuple[RepairedLedger, list[str], int]:
    """Removes delivery marks from a ledger (TAB-11). Returns the ledger's rows, notes for the operator, and an
    epoch that is higher than any delivery's. Without a delivery table, returns the same rows, no notes, and 0.
    """
    if DELIVERY_ID not in rows.head.attributes:
        return rows, [], 0
    head, runs, marked = without_marks(rows.head, rows.runs)
    note = (
        f"{marked} messages were being delivered into {head.attributes.get('Table')}, and come again; their rows, "
        "and those of other messages that come again, may be stored a second time"
    )
    return attrs.evolve(rows, head=head, runs=runs), [note], epoch_above_all(now)


def block_step(
    root: Root, row: QueueRow, shard: int, epoch: int, left: Iterable[tuple[int, int]]
) -> tuple[list[RepairStep], list[str]]:
    """Returns a step that blocks deliveries of the messages in ``left``: all deliveries that were claimed up to
    ``epoch``. If the deliveries cannot be blocked, returns a note instead. Apply the step before the messages
    become visible. Otherwise, a process with an old lease may still append the messages' rows.
    """
    attributes = QueueAttributes.from_wire(row.attributes)
    table, delivery_id = attributes.table, attributes.delivery_id
    messages = sum(last - first + 1 for first, last in left)
    if table is None or delivery_id is None or not messages:
        return [], []
    mark = Mark.of(0, epoch + 1, 0)  # its number is above all of the epoch, and below those of later claims
    deliveries = [
        DeliveryIdentity(application_id(delivery_id, shard, slot), mark.number - 1, "repair", root.now())
        for slot in range(min(messages, SLOTS))
    ]
    try:
        target = table_of(root, table)
        if target.read() is None:
            why = f"{table} is not there"
        else:
            text = f"blocks deliveries of earlier claims in {table}"
            return [RepairStep(text, partial(protocol.block_all, target, deliveries))], []
    except (QueueClientError, UnsupportedOperation) as error:
        why = str(error)
    return [], [f"no deliveries are blocked: {why}; stop the consumers first, or rows may be stored twice"]
