"""Claiming on standard queues: what was received before first, then fresh messages from the head."""

from __future__ import annotations

from lakequeue.errors import OverLimit
from lakequeue.shard.commands import Claim, ClaimedSpan, ClaimResult
from lakequeue.shard.runs import IN_FLIGHT, Run
from lakequeue.shard.state import ShardState


def claim(state: ShardState, command: Claim) -> tuple[ClaimResult, bool]:
    """Hand out available messages under a new lease (RCV-2, RCV-3, RCV-16).

    A claim that finds nothing leaves the head where it is, so that it needs no commit (RCV-14).

    Raises:
        OverLimit: as many messages are in flight as the shard allows; delete some, or wait (INF-3).
    """
    count = command.max_messages
    room = state.room
    if room is not None:
        behaviour = command.at_limit
        if behaviour == "default":
            behaviour = state.attributes.inflight_limit_behavior
        if room == 0 and behaviour == "error":
            raise OverLimit("The maximum number of messages in flight is reached.")
        count = min(count, room)
    timeout = command.visibility_timeout
    if timeout is None:
        timeout = state.attributes.visibility_timeout_micros
    visible_at = state.now + timeout
    state.look_for(count)
    claimed = _join(
        [
            run._replace(
                state=IN_FLIGHT,
                lease_id=command.lease_id,
                receive_count=run.receive_count + 1,
                visible_at=visible_at,
                received_at=state.now,
                first_received_at=state.now if run.first_received_at is None else run.first_received_at,
                attempt_id=None,
                attempted_at=None,
            )
            for run in state.take(count)
        ]
    )
    state.set_runs(claimed)
    spans = tuple(
        ClaimedSpan(run.first, run.last, run.receive_count, run.first_received_at or 0) for run in claimed
    )
    return ClaimResult(spans, state.now, visible_at), bool(spans)


def _join(runs: list[Run]) -> list[Run]:
    """Join neighbours that are equal now."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].last + 1 == run.first and joined[-1].alike(run):
            joined[-1] = joined[-1]._replace(last=run.last)
        else:
            joined.append(run)
    return joined
