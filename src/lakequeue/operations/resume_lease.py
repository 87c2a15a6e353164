"""Leases taken up by another process, which knows no more than their id or a receipt handle."""

from __future__ import annotations

from lakequeue.errors import InvalidParameterValue, LeaseLost
from lakequeue.model import receipt_handles
from lakequeue.model.clock import MICROS
from lakequeue.operations import lease as leases
from lakequeue.operations.lease import LeasedMessages, Part
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import ClaimedSpan, ClaimResult
from lakequeue.shard.runs import IN_FLIGHT


def of_handle(queue: OpenQueue, text: str) -> LeasedMessages | None:
    """As ``held``, by a receipt handle; ReceiptHandleIsInvalid if it is not of this queue."""
    return held(queue, receipt_handles.decode(text, queue.key, queue.row.handle_key).lease_id)


def held(queue: OpenQueue, lease_id: str) -> LeasedMessages | None:
    """The messages that nobody received or handed back since the lease did; None if there are none.

    The lease may have timed out.
    """
    parts = []
    with queue.service("lease_messages"):
        for shard in queue.shards:
            now = queue.now()
            # `stored` first: it lets go of what has expired. `peek` would copy each run, 20 times as slow
            runs = shard.query(lambda machine: machine.runs if machine.stored(now) else [])  # noqa: B023
            mine = [run for run in runs if run.lease_id == lease_id and run.state == IN_FLIGHT]
            if mine:
                spans = tuple(
                    ClaimedSpan(run.first, run.last, run.receive_count, run.first_received_at or now)
                    for run in mine
                )
                received_at = min(run.received_at or now for run in mine)
                visible_at = min(run.visible_at or now for run in mine)
                parts.append(Part(shard, ClaimResult(spans, received_at, visible_at, lease_id)))
    return LeasedMessages(queue, lease_id, parts) if parts else None


def resumed(queue: OpenQueue, lease_id: str, timeout: float | None) -> LeasedMessages | None:
    """Extends a lease, by default as the queue says; without what it no longer holds, None if that is all."""
    leased = held(queue, lease_id)
    if leased is None:
        return None
    try:
        leases.extend(leased, queue.attributes.visibility_timeout_micros / MICROS if timeout is None else timeout)
    except LeaseLost:
        return None
    except InvalidParameterValue:  # twelve hours have passed since the messages were received
        leases.release(leased)  # so that nobody deletes them as those of a batch that has ended
        return None
    return held(queue, lease_id)


def stored(leased: LeasedMessages) -> bool:
    """Whether the queue still has messages of a lease, whoever holds them."""
    return any(
        run.first <= last
        for part in leased.parts
        for first, last in part.spans
        for run in part.shard.query(lambda machine: machine.peek(leased.queue.now(), 1, first))  # noqa: B023
    )
