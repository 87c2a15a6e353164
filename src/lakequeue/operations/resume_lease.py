"""Leases as values that outlive their process: another process takes up what the lease still holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from lakequeue.errors import LeaseLost
from lakequeue.model.clock import Duration
from lakequeue.operations.lease import LeasedMessages, Part, extend
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import ClaimedSpan, ClaimResult


def described(leased: LeasedMessages) -> dict[str, Any]:
    """A lease as JSON: its id and the places of its messages; it holds no secret."""
    return {
        "lease": leased.lease_id,
        "queue": leased.queue.key,
        "shards": [
            [
                part.shard.shard,
                part.claimed.received_at,
                part.claimed.visible_at,
                [list(attrs.astuple(span)) for span in part.claimed.spans],
            ]
            for part in leased.parts
        ],
    }


def restored(queue: OpenQueue, description: dict[str, Any]) -> LeasedMessages | None:
    """The lease of a description, whatever became of it; None if it was of an earlier queue of this name."""
    if description["queue"] != queue.key:
        return None
    lease_id: str = description["lease"]
    parts = [
        Part(
            queue.shards[shard],
            ClaimResult(tuple(ClaimedSpan(*span) for span in spans), received_at, visible_at, lease_id),
        )
        for shard, received_at, visible_at, spans in description["shards"]
    ]
    return LeasedMessages(queue, lease_id, parts)


def resumed(leased: LeasedMessages, visibility_timeout: Duration) -> LeasedMessages | None:
    """Extends a lease by what it still holds, and leaves out the rest; None if it holds nothing.

    A lease that timed out holds the messages that nobody received since.
    """
    queue = leased.queue
    try:
        _, visible_at = extend(leased, visibility_timeout)
    except LeaseLost:
        return None
    parts = []
    with queue.service("lease_messages"):
        for part in leased.parts:
            now = queue.now()
            held = part.shard.query(lambda machine: machine.held(leased.lease_id, part.spans, now))  # noqa: B023
            spans = tuple(_cut(part.claimed.spans, held))
            if spans:
                parts.append(Part(part.shard, attrs.evolve(part.claimed, spans=spans, visible_at=visible_at)))
    return LeasedMessages(queue, leased.lease_id, parts) if parts else None


def _cut(spans: Sequence[ClaimedSpan], ranges: Sequence[tuple[int, int]]) -> Iterator[ClaimedSpan]:
    """The parts of spans that lie in ranges; both ascend."""
    first_range = 0
    for span in spans:
        while first_range < len(ranges) and ranges[first_range][1] < span.first:
            first_range += 1
        for first, last in ranges[first_range:]:
            if first > span.last:
                break
            yield attrs.evolve(span, first=max(first, span.first), last=min(last, span.last))
