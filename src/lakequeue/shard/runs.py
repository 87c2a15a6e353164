"""Rows of the ledger as the state machine uses them, and the interface of the log below them.

Instants and durations are whole microseconds (instants since the epoch, UTC); offsets are dense per
shard; ranges of offsets include both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import attrs

from lakequeue.model.failures import reason_of
from lakequeue.model.states import MessageState

VISIBLE = MessageState.VISIBLE.value
IN_FLIGHT = MessageState.IN_FLIGHT.value
DELETED = MessageState.DELETED.value
MOVING = MessageState.MOVING.value


class Run(NamedTuple):
    """Consecutive messages in the same state: one row of ``receipts``.

    ``visible_at`` None: never received, so each message becomes available when the log says so. A ``visible`` run
    with a ``lease_id`` was handed back by that lease (VIS-4). An ``in_flight`` run whose ``visible_at`` has passed
    may be claimed again; until then its lease stays the latest one (RCP-8). A ``deleted`` run is history: deleted
    messages that a rewind may restore; nothing else is kept of them, so that neighbours are one run. A ``moving``
    run is on
    its way to another queue: no receipt holds it, and any process that finds it completes the move.
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
    attempt_place: int | None = None  # rank of the run in the answer to its attempt; `moving`: see `set_aside`
    move_number: int | None = None
    target_key: str | None = None

    @property
    def size(self) -> int:
        """Messages in the run."""
        return self.last - self.first + 1

    @property
    def attempt(self) -> str | None:
        """The receive request attempt id whose answer the run is a part of (ATT-3)."""
        return None if self.attempted_at is None else self.attempt_id

    @property
    def failure(self) -> str | None:
        """Why the handler failed that had the messages last, in JSON; see ``RecordFailure``."""
        return None if self.attempted_at is not None else reason_of(self.attempt_id)

    def alike(self, other: Run) -> bool:
        """Whether everything but the range is equal, so that neighbours form one run."""
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

    Messages below ``floor_offset`` are gone; those from ``head_offset`` on were never delivered; in between, a
    message without a run is deleted. Messages below ``released_offset`` are not held, whatever the cap on delayed
    ones is now (INF-9). ``attributes`` holds wire names and string values.
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
    """Messages that came from another queue as dead letters, with their receive count there (DLQ-4, RET-7)."""

    first: int
    last: int
    receive_count: int
    first_sent_at: int | None
    """First send instant, from which retention counts; None: it counts from their arrival."""


class Log(Protocol):
    """A shard's messages as the rules use them; it only grows at its end."""

    @property
    def end(self) -> int:
        """Offset after the last message."""

    def sent_at(self, offset: int) -> int:
        """Instant at which a message was sent; never decreases with the offset."""

    def first_sent_at_or_after(self, instant: int) -> int:
        """Smallest offset sent at or after ``instant``, else ``end``."""

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Ranges ``(first, last, available_at)`` in order, without gaps.

        ``available_at`` is 0 for messages without a delay, else the instant sent plus the delay: each
        message's own, or ``delay`` for all.
        """

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetters]:
        """Dead letters in a range, in order."""

    def groups(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Sequence[int]]]:
        """Offsets by message group in ascending ranges; a group may occur again with higher offsets."""

    def group_sizes(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, int]]:
        """Number of messages by message group in ascending ranges; a group may occur again."""

    def only_group(self, first: int) -> str | None:
        """The message group of all messages from an offset on, "" for none; None if there may be several."""
