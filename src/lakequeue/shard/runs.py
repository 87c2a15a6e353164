"""Rows of the ledger as the state machine sees them, and the log they lie over.

Instants and durations are whole microseconds (instants since the epoch, UTC); offsets are dense per
shard; ranges of offsets include both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import attrs

from lakequeue.model.states import MessageState

VISIBLE = MessageState.VISIBLE.value
IN_FLIGHT = MessageState.IN_FLIGHT.value
DELETED = MessageState.DELETED.value
MOVING = MessageState.MOVING.value


class Run(NamedTuple):
    """Consecutive messages in the same state: one row of `receipts`.

    `visible_at` None means delayed and never received: each message of the run then becomes available
    when the log says so, and the run is `visible` before that too. A `visible` run with a `lease_id` was handed
    back by the holder of that lease (VIS-4); an `in_flight` run whose `visible_at` has passed may be claimed again, but its lease stays
    the latest one until then (RCP-8). A `deleted` run lies in the history: deleted messages that a rewind may
    bring back; nothing else is kept of them, so that neighbours are one run. A `moving` run is on its way to
    another queue: nobody holds it any more, and whoever finds it finishes the move.
    """

    first: int
    last: int
    state: str = VISIBLE
    lease_id: str | None = None
    receive_count: int = 0
    visible_at: int | None = None
    received_at: int | None = None
    first_received_at: int | None = None
    attempt_id: str | None = None
    attempted_at: int | None = None
    attempt_place: int | None = None  # rank of the run in the answer to its attempt
    move_number: int | None = None
    target_key: str | None = None

    @property
    def size(self) -> int:
        """Messages in the run."""
        return self.last - self.first + 1

    def alike(self, other: Run) -> bool:
        """Whether everything but the range is equal, so that neighbours are one run."""
        return self[2:] == other[2:]


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """The runs in the order given, each joined with the one before it where they are neighbours and alike."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].last + 1 == run.first and found[-1].alike(run):
            found[-1] = found[-1]._replace(last=run.last)
        else:
            found.append(run)
    return found


@attrs.frozen
class Head:
    """The one row of a shard that is not a run: the fence, the marks, and a copy of the attributes.

    Messages below `floor_offset` are gone; from `head_offset` on none was looked at yet; in between, a
    message without a run is deleted. Those below `released_offset` are not held, whatever the cap on delayed
    ones is now (INF-9). `attributes` holds wire names and string values.
    """

    epoch: int = 0
    head_offset: int = 0
    floor_offset: int = 0
    purged_offset: int = 0
    purged_at: int | None = None
    closed: bool = False
    move_number: int = 0
    committed_at: int = 0
    attributes: dict[str, str] = attrs.field(factory=dict)
    attributes_version: int = 0
    released_offset: int = 0


class DeadLetters(NamedTuple):
    """Messages that were received too often in another queue: what they bring from there (DLQ-4, RET-7)."""

    first: int
    last: int
    receive_count: int
    first_sent_at: int | None
    """Where retention counts from, if not from the instant that they came."""


class Log(Protocol):
    """What the rules need to know of a shard's messages; it only ever grows at its end."""

    @property
    def end(self) -> int:
        """Offset after the last message."""

    def sent_at(self, offset: int) -> int:
        """Instant at which a message was sent; never decreases with the offset."""

    def first_sent_at_or_after(self, instant: int) -> int:
        """Smallest offset sent at or after `instant`, else `end`."""

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Ranges `(first, last, available_at)` in order, without gaps.

        `available_at` is 0 for messages without a delay, else the instant sent plus the delay: each
        message's own, or `delay` for all.
        """

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetters]:
        """Those in a range, in order."""

    def groups(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Sequence[int]]]:
        """Offsets by message group in ascending ranges; a group may come again with higher offsets."""
