"""Commands on a whole shard: purge, rewind, attributes, close, expire, rewrite."""

from __future__ import annotations

import attrs

from lakequeue.errors import InvalidParameterValue, PurgeQueueInProgress, UnsupportedOperation
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, from_micros
from lakequeue.shard import expire as retention
from lakequeue.shard.commands import Close, Expire, Purge, Rewind, Rewrite, SetAttributes
from lakequeue.shard.state import ShardState

PURGE_INTERVAL = 60 * MICROS  # PUR-2


def check_purge(state: ShardState, command: Purge) -> None:
    """Raises PurgeQueueInProgress if the last purge is less than 60 seconds old (PUR-2)."""
    purged_at = state.head.purged_at
    if not command.at_any_time and purged_at is not None and state.now - purged_at < PURGE_INTERVAL:
        raise PurgeQueueInProgress(
            f"Only one PurgeQueue operation on {command.queue_name or 'a queue'} is allowed every 60 seconds."
        )


def purge(state: ShardState, command: Purge) -> tuple[None, bool]:
    """Removes everything sent so far: waiting, in flight and delayed (PUR-1, PUR-3, PUR-4).

    Raises:
        PurgeQueueInProgress: the last purge is less than 60 seconds old (PUR-2).
    """
    check_purge(state, command)
    state.remove_all()
    state.head = attrs.evolve(state.head, purged_offset=state.log.end, purged_at=state.now)
    return None, True


def check_rewind(state: ShardState, command: Rewind) -> None:
    """Raises UnsupportedOperation without a history, InvalidParameterValue for an instant out of range."""
    if not state.attributes.rewind_micros:
        raise UnsupportedOperation("The queue cannot be rewound: its RewindSeconds is 0.", cmq_code=6050)
    earliest = state.now - state.attributes.rewind_micros
    if not earliest <= command.to <= state.now:
        raise InvalidParameterValue(
            f"Value {_text(command.to)} for parameter RewindTime is invalid. Reason: Must be between "
            f"{_text(earliest)} and {_text(state.now)}.",
            cmq_code=10680,
        )


def rewind(state: ShardState, command: Rewind) -> tuple[int, bool]:
    """Makes deleted messages visible again that were sent at an instant or later (RWD-9, RWD-10, RWD-19).

    Raises:
        UnsupportedOperation: the queue keeps no history (RWD-15).
        InvalidParameterValue: the instant is earlier than the range allows (RWD-11), or in the future.
    """
    if not command.checked:
        check_rewind(state, command)
    count = 0 if command.to == state.now else state.rewind(state.log.first_sent_at_or_after(command.to))
    return count, count > 0


def set_attributes(state: ShardState, command: SetAttributes) -> tuple[bool, bool]:
    """Adopts newer attributes at once (QUE-25); what the old retention expired stays removed (RET-6)."""
    if command.version <= state.head.attributes_version:
        return False, False
    delay, cap = state.delay, state.attributes.delayed_limit
    state.keep_released()
    state.attributes = QueueAttributes.from_wire(command.attributes)
    state.head = attrs.evolve(state.head, attributes=dict(command.attributes), attributes_version=command.version)
    state.forget_tenants()
    if state.delay != delay:
        state.change_delay()
    elif state.attributes.delayed_limit != cap:
        state.change_cap()
    if not state.attributes.rewind_micros:
        state.forget_history()
    retention.expire(state)
    return True, True


def close(state: ShardState, command: Close) -> tuple[None, bool]:
    """Refuses every later command (QUE-13)."""
    state.head = attrs.evolve(state.head, closed=True)
    return None, True


def expire(state: ShardState, command: Expire) -> tuple[int, bool]:
    """Reports what retention removed since the last commit; asks for a commit if that is anything (RET-9)."""
    return state.expired, state.expired > 0


def rewrite(state: ShardState, command: Rewrite) -> tuple[None, bool]:
    """Asks for a commit without a change."""
    return None, True


def _text(instant: int) -> str:
    return from_micros(instant).isoformat()
