"""Commands on a whole shard, and operators' commands on chosen messages. No command here needs a receipt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from lakequeue.errors import InvalidParameterValue, PurgeQueueInProgress, UnsupportedOperation
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, from_micros
from lakequeue.shard import deliver
from lakequeue.shard import expire as retention
from lakequeue.shard.commands import (
    Close,
    Discard,
    Erase,
    Expire,
    MakeVisible,
    MarkEmptying,
    Purge,
    Rewind,
    Rewrite,
    SetAttributes,
)
from lakequeue.shard.runs import DELETED, IN_FLIGHT, MOVING, VISIBLE, Head, Run, joined_runs
from lakequeue.shard.state import ShardState

PURGE_INTERVAL = 60 * MICROS  # PUR-2
_GRACE = MICROS
"""Microseconds. A rewind is accepted if its instant is too early by less than this time."""


def check_purge(state: ShardState, command: Purge) -> None:
    """Raises PurgeQueueInProgress within 60 seconds after a purge, unless ``at_any_time`` is set (PUR-2)."""
    purged_at = state.head.purged_at
    if not command.at_any_time and purged_at is not None and state.now - purged_at < PURGE_INTERVAL:
        raise PurgeQueueInProgress(
            f"Only one PurgeQueue operation on {command.queue_name or 'a queue'} is allowed every 60 seconds."
        )


def purge(state: ShardState, command: Purge) -> tuple[None, bool]:
    """Removes all messages (PUR-1, PUR-3, PUR-4). Raises the error of ``check_purge`` (PUR-2)."""
    check_purge(state, command)
    state.remove_all()
    state.head = attrs.evolve(state.head, purged_offset=state.log.end, purged_at=state.now)
    return None, True


def check_rewind(state: ShardState, command: Rewind) -> None:
    """Raises the error with which ``rewind`` would refuse: UnsupportedOperation or InvalidParameterValue."""
    if not state.attributes.rewind_micros:
        reason = "The queue cannot be rewound: its {} is 0."
        hint = "set it to the seconds for which deleted messages are to be kept; those deleted before stay deleted"
        raise UnsupportedOperation(reason, names=["rewind_range"], hint=hint, cmq_code=6050)
    earliest = state.now - state.attributes.rewind_micros
    if not earliest - _GRACE < command.to <= state.now:
        reason = f"Must be between {_text(earliest)} and {_text(state.now)}."
        raise InvalidParameterValue.of(_text(command.to), "to", reason, cmq_code=10680)


def rewind(state: ShardState, command: Rewind) -> tuple[int, bool]:
    """Makes the deleted messages visible that were sent at ``command.to`` or later (RWD-9, RWD-10, RWD-19).

    Raises:
        UnsupportedOperation: the queue keeps no deleted messages (RWD-15).
        InvalidParameterValue: the instant is too early (RWD-11), or in the future.
    """
    if not command.checked:
        check_rewind(state, command)
    count = 0 if command.to == state.now else state.rewind(state.log.first_sent_at_or_after(command.to))
    return count, count > 0


def set_attributes(state: ShardState, command: SetAttributes) -> tuple[bool, bool]:
    """Adopts newer attributes (QUE-25). Messages that expired under the old attributes stay removed (RET-6)."""
    if command.version <= state.head.attributes_version:
        return False, False
    delay, before = state.delay, (state.attributes.delayed_limit, state.attributes.reasons)
    state.keep_released()
    delivery_id = state.attributes.delivery_id
    state.attributes = QueueAttributes.from_wire(command.attributes)
    state.head = attrs.evolve(state.head, attributes=dict(command.attributes), attributes_version=command.version)
    state.forget_tenants()
    deliver.keep_target(state, delivery_id)
    state.change_pace()
    if state.delay != delay:
        state.change_delay()
    elif (state.attributes.delayed_limit, state.attributes.reasons) != before:
        state.index_anew()
    if not state.attributes.rewind_micros:
        state.forget_history()
    retention.expire(state)
    return True, True


def close(state: ShardState, command: Close) -> tuple[None, bool]:
    """Marks the shard as deleted. From then on, the shard refuses all commands (QUE-13)."""
    state.head = attrs.evolve(state.head, closed=True)
    return None, True


def expire(state: ShardState, command: Expire) -> tuple[int, bool]:
    """Answers with the number of messages that retention has removed since the last commit (RET-9)."""
    return state.expired, state.expired > 0


def rewrite(state: ShardState, command: Rewrite) -> tuple[None, bool]:
    return None, True


def mark_emptying(state: ShardState, command: MarkEmptying) -> tuple[None, bool]:
    """Stores ``mark`` in the head: the number of the next removal of message bodies from the log. ``known`` is the
    number of the log's last removal; the head forgets earlier removals.
    """
    marks = (state.head.emptying or "").split()
    begin = marks.index(str(command.known)) if str(command.known) in marks else 0
    state.head = attrs.evolve(state.head, emptying=" ".join([*marks[begin:], str(command.mark)]))
    return None, True


def _text(instant: int) -> str:
    return from_micros(instant).isoformat()


def discard(state: ShardState, command: Discard) -> tuple[int, bool]:
    """Deletes the visible messages in the command's ranges of offsets."""
    if state.attributes.fifo:
        assert state.groups is not None  # built while the messages are still there
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    found = [part for span in sorted(command.spans) for part in state.withdraw(*span)]
    for run in state.take(found):
        state.remove(run)
    state.serve_groups()
    return sum(last - first + 1 for first, last in found), bool(found)


def erase(state: ShardState, command: Erase) -> tuple[tuple[int, bool], bool]:
    """Deletes the messages in the command's ranges of offsets; with ``for_good``, also from the history. Skips
    messages that are being moved to another queue.
    """
    if state.attributes.fifo:
        assert state.groups is not None  # built while the messages are still there
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    erased, moving, forgotten = 0, False, False
    for first, last in sorted(command.spans):
        last = min(last, state.log.end - 1)
        for run in list(state.known(first, last)):
            if run.state == MOVING:
                moving = True
                continue
            held = run.last >= state.scanned  # the head passes those before it, which releases them (INF-9)
            state.delayed.discard(run.first, run.last)
            for part in state.take([(run.first, run.last)]):
                state.remove(part)
            if held:
                state.index_anew()
            erased += run.size
        if command.for_good and any(state.history.pieces(first, last)):
            state.history.cut(first, last)
            forgotten = True
    state.serve_groups()
    return (erased, moving), erased > 0 or forgotten


def make_visible(state: ShardState, command: MakeVisible) -> tuple[int, bool]:
    """Makes delayed messages visible now. With ``at``, makes delayed and visible messages visible at that instant
    (JOB-12). With ``in_flight``, also ends the receipts of messages in flight (RCP-7, RCP-8).
    """
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    at, done, reached = max(state.now, command.at or 0), 0, 0
    for first, last in sorted(command.spans):
        first, reached = max(first, reached), max(reached, last + 1)
        for run in list(state.known(first, min(last, state.scanned - 1))):
            if state.live(run):
                if command.in_flight:
                    state.hand_back(run)
                    done += run.size
            elif run.state != MOVING and run.mark is None:
                done += _show_at(state, run, at, command.at is not None)
    return done, done > 0


def _show_at(state: ShardState, run: Run, at: int, anew: bool) -> int:
    """Makes the delayed messages of a run visible at the instant ``at``; with ``anew``, all messages of the run.
    Returns the number of messages that it changed.
    """
    known = [(run.first, run.last, run.visible_at or 0)]
    done = 0
    for start, end, instant in list(state.spans(run.first, run.last)) if run.visible_at is None else known:
        if instant > state.now or anew:
            if run.state == IN_FLIGHT:
                state.hand_back(run)
            state.delayed.discard(start, end)
            state.withdraw(start, end)
            shown = state.take([(start, end)])
            state.set_runs([each._replace(state=VISIBLE, visible_at=at) for each in shown])
            done += end - start + 1
    return done


LONGEST = 12 * 3600 * MICROS
"""Maximum visibility timeout in microseconds. A receipt that ends after now + ``LONGEST`` shows a wrong clock."""


_HAPPENED = ("received_at", "first_received_at", "attempted_at")


def is_ahead(head: Head, runs: Sequence[Run], now: int) -> bool:
    """True if the head or one of ``runs`` has recorded an event later than ``now``."""
    marks = [head.committed_at, head.purged_at or 0]
    settled = (run.visible_at or 0 for run in runs if run.state == DELETED)
    return max(*marks, *settled, *(getattr(run, name) or 0 for run in runs for name in _HAPPENED)) > now


def set_back(
    head: Head, runs: Sequence[Run], history: Sequence[Run], now: int
) -> tuple[Head, list[Run], list[Run]]:
    """Returns the head, the runs and the history of a shard, corrected after a wrong clock has recorded later
    instants than ``now``.

    Events that were recorded as later than ``now``, such as receives and commits, are set to ``now``. A purge in
    the future is forgotten, so that the next purge may come at once. A visibility timeout ends now if its receive
    was recorded in the future, or if the timeout would end more than twelve hours from now. A message that was
    scheduled for an instant (JOB-12) keeps this instant, unless the wrong clock had reached the instant or the
    message expires before it. A bucket of the rate limit that would be below empty is set to empty (JOB-11).
    """
    attributes, set_ahead = QueueAttributes.from_wire(head.attributes), head.committed_at
    pace = attributes.pace
    purged_at = head.purged_at if head.purged_at is None or head.purged_at <= now else None
    paced_to = min(head.paced_to, now) if pace is None else pace.bounded(head.paced_to, now)
    head = attrs.evolve(head, committed_at=min(set_ahead, now), purged_at=purged_at, paced_to=paced_to)
    expiry = now + attributes.retention_micros
    stored = joined_runs(
        _set_back(run, now, run.state == VISIBLE and set_ahead < (run.visible_at or 0) < expiry) for run in runs
    )
    return head, stored, joined_runs(_set_back(run, now, False) for run in history)


def _set_back(run: Run, now: int, keep: bool) -> Run:
    visible = run.visible_at
    hidden = run.state == DELETED or (run.received_at or 0) > now or (visible or 0) > now + LONGEST
    if visible is not None and not keep and hidden:
        visible = min(visible, now)
    known = {name: value for name in _HAPPENED if (value := getattr(run, name)) is not None}
    earlier: dict[str, Any] = {name: min(value, now) for name, value in known.items()}
    if run.failure is not None or run.failed_attempts:
        earlier["failure"] = run.failure and run.failure.set_back(now)
        earlier["failed_attempts"] = tuple(each.set_back(now) for each in run.failed_attempts)
    return run._replace(visible_at=visible, **earlier)
