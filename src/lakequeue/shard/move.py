"""Moves to another queue: dead letters (DLQ-2) and redrives. Messages become ``moving`` here, the target appends
them, then this shard removes them. A shard has at most one unfinished move, which any process can complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from lakequeue.model.failures import dead_letter_note, parse_note
from lakequeue.shard.commands import Move, MoveBack, Moved, Spans
from lakequeue.shard.runs import MOVING, Destination, MovePart, Outgoing, Run
from lakequeue.shard.state import ShardState

MOVED_AT_ONCE = 1_000
"""Maximum number of dead letters that one claim moves. To find dead letters, the claim looks through at least this
many messages, if so many are available.
"""


def dead(state: ShardState, spans: Spans) -> list[Run]:
    """Returns at most ``MOVED_AT_ONCE`` dead letters of these ranges, as runs (DLQ-13). Skips messages that failed
    together as a batch, because each must first fail alone (DLQ-12).
    """
    policy = state.attributes.redrive
    found: list[Run] = []
    left = MOVED_AT_ONCE
    if policy is None:
        return found
    for first, last in spans:
        for run in state.known(first, last):
            too_often = run.deliveries >= policy.max_receive_count
            if too_often and left > 0 and (run.failed_together or 1) == 1:
                found.append(run._replace(last=min(run.last, run.first + left - 1)))
                left -= found[-1].size
    return found


def set_aside(state: ShardState, runs: Sequence[Run], target: Destination, *, redrive: bool = False) -> None:
    """Begins to move ``runs`` to ``target``. Their messages must be neither available nor in flight."""
    number = state.head.move_number + 1
    state.head = attrs.evolve(state.head, move_number=number)
    for run in runs:
        note = None if redrive else dead_letter_note(run.failure, run.failed_attempts)
        count, instants = run.receive_count, (run.received_at, run.first_received_at)
        move = MovePart(number, target, note, redrive)
        state.set_aside(Run(run.first, run.last, MOVING, None, count, None, *instants, move=move))


def move(state: ShardState, command: Move) -> tuple[int | None, bool]:
    """Begins a redrive of the visible messages in the command's ranges of offsets (DLQ-8)."""
    if state.moving.size:
        return None, False
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    found = [part for span in sorted(command.spans) for part in state.withdraw(*span)]
    if found:
        set_aside(state, state.take(found), command.target, redrive=True)
    return sum(last - first + 1 for first, last in found), bool(found)


def moved(state: ShardState, command: Moved) -> tuple[int, bool]:
    """Removes the messages that arrived at the target. Their groups then wait behind other groups (DLQ-10)."""
    runs = _of(state, command.number)
    for run, _ in runs:
        state.remove(run)
    state.serve_groups()
    return sum(run.size for run, _ in runs), bool(runs)


def move_back(state: ShardState, command: MoveBack) -> tuple[int, bool]:
    """Makes the messages of a move visible again, because the target queue is gone."""
    runs = _of(state, command.number)
    for run, part in runs:  # their receives are counted from 0 again (DLQ-13)
        count, (_, attempts) = run.receive_count, parse_note(part.note)
        state.hand_back(run._replace(move=None, receives_before=count, failed_attempts=attempts))
    return sum(run.size for run, _ in runs), bool(runs)


def _of(state: ShardState, number: int) -> Outgoing:
    return [(run, part) for run, part in state.moving_runs() if part.number == number]
