"""What a shard holds, for readers that change nothing: parts of runs with the state of their messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from lakequeue.model.states import MessageState
from lakequeue.shard.runs import IN_FLIGHT, MOVING, Run
from lakequeue.shard.state import ShardState


def stored_messages(state: ShardState, limit: int, start: int) -> list[tuple[Run, MessageState]]:
    """The oldest stored messages from offset `start` on, as parts of runs with their state, lowest offset first.

    Fresh messages count as visible runs. A part has no `visible_at` where its messages had no delay and were never
    received: they are visible since they were sent.
    """
    found: list[tuple[Run, MessageState]] = []
    unseen, released = max(start, state.head.head_offset), state.released
    held_from = max(unseen, released)
    fresh = state.fresh(unseen, min(unseen + limit, released) - 1)
    held = state.fresh(held_from, min(held_from + limit, state.log.end) - 1)
    for part in _first(chain(islice(state.runs.pieces_from(start), limit), fresh, held), limit):
        if part.state == MOVING:
            found.append((part, MessageState.MOVING))
        elif part.first >= released:
            found.append((part, MessageState.HELD))
        elif part.visible_at is not None:
            hidden = part.visible_at > state.now and part.state == IN_FLIGHT
            found.append((part, MessageState.IN_FLIGHT if hidden else MessageState.VISIBLE))
        else:
            for first, last, available_at in state.spans(part.first, part.last):
                shown = part._replace(first=first, last=last, visible_at=available_at or None)
                found.append((shown, MessageState.DELAYED if available_at > state.now else MessageState.VISIBLE))
    return found


def deleted_messages(state: ShardState, limit: int, start: int) -> list[tuple[Run, MessageState]]:
    """The oldest deleted messages from offset `start` on that can be rewound."""
    return [(run, MessageState.DELETED) for run in _first(state.history.pieces_from(start), limit)]


def _first(runs: Iterable[Run], limit: int) -> Iterator[Run]:
    """The first `limit` messages of runs."""
    for run in runs:
        if limit <= 0:
            return
        yield run._replace(last=min(run.last, run.first + limit - 1))
        limit -= run.size
