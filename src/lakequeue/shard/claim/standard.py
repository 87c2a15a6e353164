"""The claim command. Messages that were received before come first, unless message groups change the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from lakequeue.errors import OverLimit
from lakequeue.model.clock import MICROS
from lakequeue.model.deliveries import Mark
from lakequeue.shard import deliver
from lakequeue.shard.commands import Charge, Claim, ClaimedSpan, ClaimResult, Spans
from lakequeue.shard.move import MOVED_AT_ONCE, dead, set_aside
from lakequeue.shard.runs import IN_FLIGHT, VISIBLE, Run, joined_runs
from lakequeue.shard.spans import SpanSet, joined
from lakequeue.shard.state import ShardState

_LONGEST_TURN = 900 * MICROS
ATTEMPT_WINDOW = 300 * MICROS  # ATT-4: from the first receive with the id


def claim(state: ShardState, command: Claim) -> tuple[ClaimResult, bool]:
    """Hands out messages under a new lease (RCV-2, RCV-3, RCV-14, RCV-16). May raise OverLimit (INF-3)."""
    if command.delivery is not None:
        command = attrs.evolve(command, attempt_id=None)
    result, changed = _claim(state, command)
    if state.marked.size:
        found = tuple(deliver.undecided(state))
        result = attrs.evolve(result, undecided=found, target=deliver.target(state))
    return result, changed


def _claim(state: ShardState, command: Claim) -> tuple[ClaimResult, bool]:
    timeout = command.visibility_timeout
    if timeout is None:
        timeout = state.attributes.visibility_timeout_micros
    attempt_id = command.attempt_id
    if attempt_id is not None and attempt_lives(state, attempt_id):
        return _repeat(state, attempt_id, state.now + timeout)
    allowed = _allowed(state, command)
    elsewhere = command.tokens is not None and state.attributes.pace is not None
    mark: Mark | None = None
    if command.delivery is not None and state.attributes.delivery_id is not None:
        if deliver.target(state).changed:
            return ClaimResult((), state.now, state.now, command.lease_id), False
        [mark] = deliver.new_marks(state, command.delivery, 1)
    if elsewhere and not command.tokens:
        return quote(state, command), False
    picked = _picked(state, command, allowed)
    answer = _letters_first(state, command, picked, allowed)
    if answer is not None:
        return answer
    picked, left, last, passed, halved = _kept(state, command, picked)
    for span in left:
        state.available.add(*span)
    order: Spans = ()
    spans = picked
    if state.attributes.fifo:
        order = picked
        # the rank of each range is kept in its run, so that any process can repeat the answer
        spans = order if attempt_id is not None else list(SpanSet(sorted(order)))
    if attempt_id is not None and spans:
        state.forget_attempt(attempt_id)
        state.attempts[attempt_id] = list(spans)
    claimed = joined_runs(_in_flight(state, command, spans, state.now + timeout, mark))
    state.set_runs(claimed)
    if state.attributes.fifo:
        state.groups.placed()
    elif state.by_tenant:
        if claimed:  # an empty claim serves no group
            state.tenants.add(left)
        state.tenants.placed(() if claimed else left)
    number = sum(run.size for run in claimed)
    if not elsewhere:
        state.pass_pace(number)
    if claimed and mark is not None:
        deliver.begun(state)
    else:
        mark = None
    found = {"last": last, "passed": passed, "halved": halved, "mark": mark}
    return _result(state, claimed, state.now + timeout, command.lease_id, order, **found), bool(claimed)


def quote(state: ShardState, command: Claim) -> ClaimResult:
    """Returns a result whose ``unpaid`` is the number of messages and dead letters that a claim would take if the
    rate limit allowed it (JOB-11). Claims nothing.

    ``unpaid`` is 0 without a rate limit, for a paused queue, and at the maximum in flight.
    """
    result = ClaimResult((), state.now, state.now, command.lease_id)
    if state.attributes.pace is None or state.attributes.paused or state.room == 0:
        return result
    room = state.room
    picked = _picked(state, command, command.max_messages if room is None else min(command.max_messages, room))
    kept, _, _, passed, halved = _kept(state, command, picked)
    taken = picked if dead(state, picked) else kept
    _put_back(state, picked)
    unpaid = sum(last - first + 1 for first, last in taken)
    return attrs.evolve(result, unpaid=unpaid, passed=passed, halved=halved)


def _picked(state: ShardState, command: Claim, allowed: int) -> list[tuple[int, int]]:
    """Takes available messages for a claim. Returns ranges of their offsets, in order of delivery."""
    policy, hands = state.attributes.redrive, command.hands
    only = hands is not None and policy is not None and policy.max_receive_count == 1  # each receive is the last
    # without a free hand one shows whether there are any
    count = min(allowed, max(1, hands)) if hands is not None and only else allowed
    picked = pick(state, count, one_each=only or command.one_each)
    return picked if command.leased is None else _others_first(state, picked, count)


def _others_first(state: ShardState, picked: Spans, count: int) -> list[tuple[int, int]]:
    """If other messages are available, picks them instead of messages that have just failed alone (DLQ-12)."""
    if state.attributes.fifo or state.by_tenant:
        return list(picked)
    going, waiting, size = list[tuple[int, int]](), list[tuple[int, int]](), 0
    while picked and size < count:
        for run in (run for first, last in picked for run in state.known(first, last)):
            (waiting if _failed_alone(state, run) else going).append((run.first, run.last))
        size = sum(last - first + 1 for first, last in going)
        picked = pick(state, count - size)
    for span in waiting:
        state.available.add(*span)
    return joined(going) if going else pick(state, count)


def _failed_alone(state: ShardState, run: Run) -> bool:
    """True if a message that failed alone became visible recently: less than 1 s ago after its first receive. The
    limit doubles with each further receive of the message, up to 15 minutes.
    """
    if run.failed_together != 1 or run.state != VISIBLE or dead(state, [(run.first, run.last)]):
        return False
    wait = min(MICROS << min(max(run.deliveries - 1, 0), 20), _LONGEST_TURN)
    return state.now < (run.visible_at or 0) + wait


def _kept(
    state: ShardState, command: Claim, picked: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int, int, bool]:
    """Splits the picked messages into ranges that are claimed and ranges that stay unclaimed. Also returns the
    values of ``last``, ``passed`` and ``halved`` for the ``ClaimResult``.
    """
    policy, left, last, passed, halved = state.attributes.redrive, list[tuple[int, int]](), 0, 0, False
    if command.hands is not None and policy is not None:
        picked, left, last, passed = _for_hands(state, picked, command.hands, policy.max_receive_count)
    if command.leased is not None:
        picked, left, halved = _halved(state, picked, command.leased)
    return picked, left, last, passed, halved


def charge(state: ShardState, command: Charge) -> tuple[int, bool]:
    """Takes up to ``count`` tokens for another shard's claim. A negative count returns tokens (JOB-11)."""
    left = state.pace_left
    if left is None:
        return command.count, False
    taken = min(left, command.count)
    state.pass_pace(taken)
    return taken, taken != 0


def _in_flight(state: ShardState, command: Claim, spans: Spans, visible_at: int, mark: Mark | None) -> list[Run]:
    attempt_id, consumer, now = command.attempt_id, command.consumer, state.now
    return [
        run.unattempted()._replace(
            state=IN_FLIGHT,
            lease_id=command.lease_id,
            receive_count=run.receive_count + 1,
            visible_at=visible_at,
            received_at=now,
            first_received_at=now if run.first_received_at is None else run.first_received_at,
            attempt_id=attempt_id,
            attempted_at=None if attempt_id is None else now,
            attempt_place=None if attempt_id is None else place,
            consumer=consumer if attempt_id is None else None,
            mark=mark,
        )
        for place, span in enumerate(spans)
        for run in state.take([span])
    ]


def pick(state: ShardState, count: int, one_each: bool = False) -> list[tuple[int, int]]:
    """Takes up to ``count`` available messages. With ``one_each``, takes at most one of each FIFO group."""
    if state.attributes.fifo:
        return state.groups.pick(count, one_each)
    if state.by_tenant:
        return state.tenants.pick(count)
    state.scan_for(count)
    return state.available.take(count)


def _for_hands(
    state: ShardState, picked: Spans, hands: int, most: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int, int]:
    """Splits picked messages as ``_kept`` does. A message on its last receive is claimed only if a handler is free
    for it. If it is not claimed, later messages of its FIFO group are not claimed either (HBN-23).
    """
    runs = [(run, run.deliveries + 1 >= most) for first, last in picked for run in state.known(first, last)]
    if not any(at_last for _, at_last in runs):
        return list(picked), [], 0, 0
    kept, left, free, passed = list[tuple[int, int]](), list[tuple[int, int]](), hands, 0
    if not state.attributes.fifo:
        for run, at_last in runs:
            taken = min(run.size, free) if at_last else run.size
            free -= taken * at_last
            kept += [(run.first, run.first + taken - 1)] if taken else []
            left += [(run.first + taken, run.last)] if taken < run.size else []
        return joined(kept), left, hands - free, sum(last - first + 1 for first, last in left)
    groups = {int(each): group for group, offsets in state.log.groups(sorted(picked)) for each in offsets}
    begun, stopped = set[str](), set[str]()
    for run, at_last in runs:
        for offset in range(run.first, run.last + 1):
            group = groups[offset]
            if at_last and group not in stopped and (group in begun or not free):
                stopped.add(group)
                passed += group not in begun
            (left if group in stopped else kept).append((offset, offset))
            if group not in stopped:
                begun.add(group)
                free -= at_last
    return joined(kept), left, hands - free, passed


def _halved(
    state: ShardState, picked: Spans, others: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], bool]:
    """Splits picked messages so that the claim ends before a failed batch. If the failed batch comes first, the
    claim takes half of it, or nothing if the receive already has ``others``, messages of other shards (DLQ-12).
    """
    runs = [run for first, last in picked for run in state.known(first, last)]
    if not any(run.failed_together for run in runs):
        return list(picked), [], False
    batches = [(run.failed_together, run.failure) for run in runs]
    if together := runs[0].failed_together:
        room = 0 if others else max(1, together // 2)
        same = next((place for place, batch in enumerate(batches) if batch != batches[0]), len(runs))
    else:
        room = sum(run.size for run in runs)
        same = next(place for place, run in enumerate(runs) if run.failed_together)
    kept, left = list[tuple[int, int]](), list[tuple[int, int]]()
    for place, run in enumerate(runs):
        taken = min(run.size, room) if place < same else 0
        room -= taken
        kept += [(run.first, run.first + taken - 1)] if taken else []
        left += [(run.first + taken, run.last)] if taken < run.size else []
    return joined(kept), joined(left), True


def _put_back(state: ShardState, spans: Spans) -> None:
    for first, last in spans:
        state.available.add(first, last)
    if state.attributes.fifo:
        state.groups.placed()
    elif state.by_tenant:
        state.tenants.placed(spans)


def _letters_first(
    state: ShardState, command: Claim, picked: Spans, count: int
) -> tuple[ClaimResult, bool] | None:
    """Begins the move of dead letters, and answers the claim. None if the claim may go on (DLQ-2, DLQ-10)."""
    policy = state.attributes.redrive
    letters = dead(state, picked)
    if policy is None or not letters:
        return None
    result = ClaimResult((), state.now, state.now, command.lease_id, moving=state.moving.size > 0)
    queue = policy.dead_letter_queue
    if queue not in command.dead_letter_queues:
        _put_back(state, picked)
        return attrs.evolve(result, unresolved=queue), False
    target = command.dead_letter_queues[queue]
    if target is None:
        return None
    _put_back(state, picked)
    free = not state.moving.size
    if free:
        picked = pick(state, max(count, MOVED_AT_ONCE))
        found = [(run.first, run.last) for run in dead(state, picked) or letters]
        _put_back(state, picked)
        for span in found:
            state.withdraw(*span)
        set_aside(state, state.take(sorted(found)), target)
    return attrs.evolve(result, moving=True), free


def attempt_lives(state: ShardState, attempt_id: str) -> bool:
    """True if a claim with this attempt id gets the messages of an earlier claim again (ATT-3, ATT-4, ATT-6)."""
    runs = state.attempt(attempt_id)
    return bool(runs) and all(
        state.live(run) and state.now - (run.attempted_at or 0) < ATTEMPT_WINDOW for run in runs
    )


def _repeat(state: ShardState, attempt_id: str, visible_at: int) -> tuple[ClaimResult, bool]:
    """Repeats the answer of an earlier attempt. Its receipts get a new timeout (ATT-1, ATT-3, ATT-8)."""
    before = sorted(state.attempt(attempt_id), key=lambda run: (run.attempt_place or 0, run.first))
    again = [run._replace(visible_at=visible_at, received_at=state.now) for run in before]
    for run in before:
        state.count_in_flight(run.first, run.last, -1)
    state.set_runs(again)
    lease_id = again[0].lease_id or ""
    order = [(run.first, run.last) for run in again]
    return _result(state, again, visible_at, lease_id, order), again != before


def _allowed(state: ShardState, command: Claim) -> int:
    """Returns how many messages a claim may take (INF-6, JOB-1, JOB-11). Raises OverLimit like ``claim``."""
    if state.attributes.paused:
        return 0
    room = state.room
    if room == 0 and state.attributes.inflight_limit_behavior == "error":
        raise OverLimit("The maximum number of messages in flight is reached.")
    left = state.pace_left
    limits = (command.max_messages, room, left if left is None or command.tokens is None else command.tokens)
    return min(limit for limit in limits if limit is not None)


def _result(
    state: ShardState,
    runs: Sequence[Run],
    visible_at: int,
    lease_id: str,
    order: Sequence[tuple[int, int]],
    **found: Any,
) -> ClaimResult:
    policy = state.attributes.redrive
    most = None if policy is None else policy.max_receive_count
    spans = tuple(
        ClaimedSpan(
            run.first,
            run.last,
            run.receive_count,
            run.first_received_at or 0,
            most is not None and run.deliveries >= most,
        )
        for run in sorted(runs, key=lambda run: run.first)
    )
    return ClaimResult(spans, state.now, visible_at, lease_id, tuple(order), state.moving.size > 0, **found)
