"""Retention: messages expire by age, in any state."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from lakequeue.shard.state import ShardState


def advance(state: ShardState, now: int) -> None:
    """Advances a shard's time to ``now``, but never back. Ends timeouts, and removes expired messages."""
    state.advance(now)
    expire(state)


def expired_below(state: ShardState) -> int:
    """Returns the lowest offset whose message is too young to expire (RET-1)."""
    return state.log.first_sent_at_or_after(state.now - state.attributes.retention_micros + 1)


def expire(state: ShardState) -> None:
    """Removes expired messages in any state (STA-5, RET-2, RET-3), except marked messages (TAB-5)."""
    below, lowest = expired_below(state), state.lowest
    before = state.stored + state.history.size
    if lowest is not None and lowest < below:
        state.forget(below)
    for dead_letters in list(_overdue(state)):
        if not _drop(state, *dead_letters[1:]):
            heapq.heappush(state.aging, dead_letters)  # removed once it is no longer held
    first = state.history.first
    if first is not None:
        rewindable = state.log.first_sent_at_or_after(state.earliest_rewind)
        if first < rewindable:
            state.history.cut(first, rewindable - 1)
    state.expired += before - state.stored - state.history.size


def next_expiry(state: ShardState) -> int | None:
    """Returns the instant at which the oldest stored message expires. Returns None if no message is stored, or if
    messages are past their expiry and kept because of their marks (TAB-5).
    """
    since = oldest_sent_at(state)
    expiry = None if since is None else since + state.attributes.retention_micros
    return None if expiry is not None and expiry <= state.now and state.marked.size else expiry


def oldest_sent_at(state: ShardState) -> int | None:
    """Returns when the oldest stored message was first sent (DLQ-4); None if no message is stored."""
    lowest = state.lowest
    if lowest is None:
        return None
    since = state.log.sent_at(lowest)
    in_history = []
    while state.aging:
        first_sent_at, first, last = state.aging[0]
        if state.stored_from(first) <= last:
            since = min(since, first_sent_at)
            break
        dead_letters = heapq.heappop(state.aging)
        if any(state.history.pieces(first, last)):
            in_history.append(dead_letters)  # retention ends for them, too
    for dead_letters in in_history:
        heapq.heappush(state.aging, dead_letters)
    return since


def _overdue(state: ShardState) -> Iterator[tuple[int, int, int]]:
    """Removes from ``aging`` the dead letters whose retention has ended (RET-7). Yields ranges of them: the
    instant at which the messages were sent to their first queue, the first offset and the last offset.
    """
    end = state.log.end
    if state.aging_end < end:
        for dead_letters in state.log.dead_letters(state.aging_end, end - 1):
            if dead_letters.first_sent_at is not None:
                heapq.heappush(state.aging, (dead_letters.first_sent_at, dead_letters.first, dead_letters.last))
        state.aging_end = end
    horizon = state.now - state.attributes.retention_micros
    while state.aging and state.aging[0][0] <= horizon:
        yield heapq.heappop(state.aging)


def _drop(state: ShardState, first: int, last: int) -> bool:
    """Removes a range of messages, also from the history. Returns False if some messages remain, because a
    delivery has marked them or because the cap on delayed messages holds them back.
    """
    if last >= state.head.head_offset:
        state.scan_to(last + 1)
        if state.scanned <= last:
            return False
        state.pass_head(first, last)
    for start, end in state.marked.missing(first, last):
        for run in list(state.runs.pieces(start, end)):
            state.leave(run)
        state.withdraw(start, end)
        state.delayed.discard(start, end)
        state.runs.cut(start, end)
    state.history.cut(first, last)
    return not state.marked.within(first, last)
