"""Settling by receipt: delete, change visibility, and the same for a whole lease.

Only the latest receipt of a message is valid (RCP-6). On lenient queues, the receipt is valid until the next
receive (RCP-8). On strict queues, the receipt is valid until its timeout (RCP-7).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from lakequeue.errors import InvalidParameterValue, MessageNotInflight, OverLimit
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.clock import seconds
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.shard.commands import (
    ChangeVisibility,
    Delete,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    RecordFailure,
    Spans,
)
from lakequeue.shard.expire import expire
from lakequeue.shard.runs import IN_FLIGHT, MOVING, Run
from lakequeue.shard.spans import apart, ranges
from lakequeue.shard.state import ShardState


def delete(state: ShardState, command: Delete) -> tuple[bool, bool]:
    """Deletes a message (RCP-10, DEL-9). Strict queues raise InvalidParameterValue for old receipts (RCP-7)."""
    run = state.runs.at(command.offset)
    if run is None:
        return False, False
    if not holds(state, run, command.lease_id):
        if state.attributes.strict_receipts:
            raise _receipt_ended(command.handle_text)
        return False, False
    state.remove(run._replace(first=command.offset, last=command.offset))
    state.serve_groups()
    return True, True


def change_visibility(state: ShardState, command: ChangeVisibility) -> tuple[None, bool]:
    """Makes a receipt end ``timeout`` microseconds from now (VIS-1, VIS-3). 0 makes the message visible (VIS-4).

    Raises:
        InvalidParameterValue: the message is gone (RCP-11), the receipt is not the latest (RCP-7, VIS-2), the
            queue does not allow the timeout 0, or the total since the receive exceeds twelve hours (VIS-9).
        MessageNotInflight: the message is visible, or undecided and the timeout is 0 (TAB-6), or a strict receipt
            has ended (RCP-12).
        OverLimit: the receipt has ended, and the cap allows no other message in flight (INF-11, FAI-4).
    """
    run = state.runs.at(command.offset)
    if run is None:
        raise InvalidParameterValue.of(
            command.handle_text,
            "receipt_handle",
            "Message does not exist or is not available for visibility timeout change.",
        )
    if run.lease_id != command.lease_id:
        raise _receipt_ended(command.handle_text)
    if run.state != IN_FLIGHT or not holds(state, run, command.lease_id):
        raise MessageNotInflight()
    part = run._replace(first=command.offset, last=command.offset)
    if command.timeout == 0:
        if _handed_back(state, run):
            raise MessageNotInflight()
        check_visibility_timeout(state.attributes, 0)  # the caller may know older attributes (QUE-25)
        state.hand_back(part)
        return None, True
    check_total(state, run, command.timeout)
    if not state.live(run):
        if state.room == 0:
            raise OverLimit("The maximum number of messages in flight is reached.")
        if not state.group_room(part):
            raise OverLimit("The maximum number of messages in flight of the message group is reached.")
    return None, state.hide(part, state.now + command.timeout)


def record_failure(state: ShardState, command: RecordFailure) -> tuple[None, bool]:
    """Stores a handler's failure with its message, unless the message was received again in the meantime."""
    run = state.runs.at(command.offset)
    if run is None or run.lease_id != command.lease_id or run.state == MOVING:
        return None, False
    part = run._replace(first=command.offset, last=command.offset)
    if run.attempt_id is not None:
        state.forget_attempt(run.attempt_id)
    state.runs.put(part.failed(command.failure))
    return None, True


def lease_delete(state: ShardState, command: LeaseDelete) -> tuple[LeaseCounts, bool]:
    """Deletes the messages that the lease still holds. Makes messages in ``except_offsets`` visible instead."""
    kept = sorted(set(command.except_offsets))
    done = released = 0
    changed = False
    for part in list(held(state, command.lease_id, command.spans)):
        start, end = bisect_left(kept, part.first), bisect_right(kept, part.last)
        spans = ranges(kept[start:end])
        released += end - start
        done += part.size - (end - start)
        part = _unmarked(part) if command.unmark else part
        if not _handed_back(state, part):
            failures = {offset: command.reasons.get(offset, command.failure) for offset in kept[start:end]}
            alike = len(set(failures.values())) == 1
            state.remove(part, spans, next(iter(failures.values())) if alike else None)
            for offset, failure in () if alike else failures.items():
                if failure is not None:
                    record_failure(state, RecordFailure(offset, command.lease_id, failure))
            changed = True
        else:  # messages that were handed back before stay as they are
            for first, last in apart(part.first, part.last, spans):
                state.remove(part._replace(first=first, last=last))
                changed = True
    state.serve_groups()
    if command.unmark:
        expire(state)  # marks kept messages past their retention
    return _counts(command.spans, done, released), changed


def lease_extend(state: ShardState, command: LeaseExtend) -> tuple[LeaseCounts, bool]:
    """Extends the lease's receipts, ended or not, but not the delay of failed messages (TAB-29). Raises
    InvalidParameterValue for more than 12 hours (VIS-9).
    """
    if command.timeout == 0:
        return lease_release(state, LeaseRelease(command.lease_id, command.spans))
    found = held(state, command.lease_id, command.spans)
    parts = [run for run in found if run.state == IN_FLIGHT and run.failure is None]
    for run in parts:
        check_total(state, run, command.timeout)
    done = 0
    changed = False
    for part in parts:
        for run in [part] if state.live(part) else state.group_room(part):
            if not state.live(run):
                room = state.room
                if room == 0:
                    continue
                if room is not None and room < run.size:
                    run = run._replace(last=run.first + room - 1)
            changed |= state.hide(run, state.now + command.timeout)
            done += run.size
    return _counts(command.spans, done), changed


def lease_release(state: ShardState, command: LeaseRelease) -> tuple[LeaseCounts, bool]:
    """Makes messages visible now, or failed messages after a delay, if the lease still holds them."""
    done = 0
    for run in list(held(state, command.lease_id, command.spans)):
        if command.unmark or command.unread:
            run = _unmarked(run)
        if not _handed_back(state, run):
            if (command.unseen or command.unread) and run.deliveries:
                first = run.first_received_at if run.receive_count > 1 else None
                run = run._replace(receive_count=run.receive_count - 1, first_received_at=first)
            if command.unread:
                state.leave(run)
                state.set_runs([run])
            elif command.failure is not None and command.delay and state.live(run):
                state.hide(run.failed(command.failure, command.failed_together), state.now + command.delay)
            else:
                state.hand_back(run, command.failure, command.failed_together)
            done += run.size
    if command.unmark:
        expire(state)
    return _counts(command.spans, done), done > 0


def _unmarked(run: Run) -> Run:
    return run if run.mark is None else run._replace(mark=None)


def _handed_back(state: ShardState, run: Run) -> bool:
    """True if the run is already visible or undecided, so that a release changes nothing (TAB-6)."""
    return run.state != IN_FLIGHT or (run.mark is not None and not state.live(run))


def holds(state: ShardState, run: Run, lease_id: str) -> bool:
    """True if a lease may still delete, extend or release a run."""
    return run.lease_id == lease_id and (not state.attributes.strict_receipts or state.live(run))


def held(state: ShardState, lease_id: str, spans: Spans) -> Iterator[Run]:
    """Yields the parts of ``spans`` that a lease may still delete, extend or release, as runs in order."""
    reached = -1
    for first, last in sorted(spans):
        first = max(first, reached + 1)
        if first <= last:
            reached = last
            yield from (run for run in state.runs.pieces(first, last) if holds(state, run, lease_id))


def check_total(state: ShardState, run: Run, timeout: int) -> None:
    """Raises InvalidParameterValue if the timeout would end more than twelve hours after the receive (VIS-9)."""
    received_at = state.now if run.received_at is None else run.received_at
    if state.now + timeout - received_at > LONGEST_RECEIPT:
        raise InvalidParameterValue.of(
            seconds(timeout),
            "visibility_timeout",
            "Total {} for the message is beyond the limit [43200 seconds]",
            "visibility_timeout",
        )


def _counts(spans: Spans, done: int, released: int = 0) -> LeaseCounts:
    """Counts messages after a command on a lease. A message is lost if it is neither done nor released."""
    total, reached = 0, -1
    for first, last in sorted(spans):
        total += max(0, last - max(first, reached + 1) + 1)
        reached = max(reached, last)
    return LeaseCounts(done, total - done - released, released)


def _receipt_ended(handle_text: str) -> InvalidParameterValue:
    return InvalidParameterValue.of(handle_text, "receipt_handle", "The receipt handle has expired.")
