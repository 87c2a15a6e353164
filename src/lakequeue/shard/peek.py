"""Functions that read the runs of a shard without changing the shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from lakequeue.shard.runs import Run
from lakequeue.shard.state import ShardState


def stored_runs(state: ShardState, limit: int, start: int, newest: bool = False) -> list[Run]:
    """Returns at most ``limit`` stored messages in total, as runs by rising offset: the messages with the lowest
    offsets from ``start`` on. With ``newest``, the messages with the highest offsets up to ``start``.
    """
    if newest:
        last = min(start, state.log.end - 1)
        newest_ones = list(state.fresh(max(state.head.head_offset, last - limit + 1), last))
        return _last(chain(reversed(newest_ones), state.runs.pieces_down_from(last)), limit)
    unseen = max(start, state.head.head_offset)
    fresh = state.fresh(unseen, min(unseen + limit, state.log.end) - 1)
    return list(_first(chain(islice(state.runs.pieces_from(start), limit), fresh), limit))


def deleted_runs(state: ShardState, limit: int, start: int, newest: bool = False) -> list[Run]:
    """Returns at most ``limit`` deleted messages that a rewind can restore. Chooses them like ``stored_runs``."""
    if newest:
        return _last(state.history.pieces_down_from(start), limit)
    return list(_first(state.history.pieces_from(start), limit))


class Holding(NamedTuple):
    """A consumer's messages in flight: their number, the instants of the earliest and the latest receive, and the
    latest end of a visibility timeout. ``spent`` counts messages that become dead letters at their next receive.
    """

    messages: int
    first_received_at: int
    last_received_at: int
    last_visible_at: int
    spent: int

    def with_(self, other: Holding | None) -> Holding:
        if other is None:
            return self
        messages, firsts, lasts, ends, spent = zip(self, other, strict=True)
        return Holding(sum(messages), min(firsts), max(lasts), max(ends), sum(spent))


def holdings(state: ShardState) -> dict[str | None, Holding]:
    """Returns the messages in flight by name of the consumer. The key None is for consumers without a name."""
    found: dict[str | None, Holding] = {}
    policy = state.attributes.redrive
    for run in state.runs:
        if state.live(run) and run.received_at is not None:
            spent = run.size if policy is not None and run.deliveries >= policy.max_receive_count else 0
            held = Holding(run.size, run.received_at, run.received_at, run.visible_at or 0, spent)
            found[run.consumer] = held.with_(found.get(run.consumer))
    return found


def _first(runs: Iterable[Run], limit: int) -> Iterator[Run]:
    for run in runs:
        if limit <= 0:
            return
        yield run._replace(last=min(run.last, run.first + limit - 1))
        limit -= run.size


def _last(runs: Iterable[Run], limit: int) -> list[Run]:
    """Returns the ``limit`` highest messages, in rising order. The argument ``runs`` is in falling order."""
    found: list[Run] = []
    for run in runs:
        if limit <= 0:
            break
        found.append(run._replace(first=max(run.first, run.last - limit + 1)))
        limit -= run.size
    return found[::-1]
