"""Rows of the ledger, and the protocol of the message log. Instants and durations are microseconds; instants count
from the epoch, in UTC. Ranges of offsets include both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import attrs
from sortedcontainers import SortedDict

from lakequeue.model.deliveries import Mark
from lakequeue.model.failures import MOST_ATTEMPTS, Attempts, DeadLetterReason
from lakequeue.model.states import MessageState

VISIBLE = MessageState.VISIBLE.value
IN_FLIGHT = MessageState.IN_FLIGHT.value
DELETED = MessageState.DELETED.value
MOVING = MessageState.MOVING.value


class Destination(NamedTuple):
    """The queue that messages move to, and its number of shards. Both are fixed during a move."""

    key: str
    shards: int
    by_group: bool  # the message group chooses the shard


class MovePart(NamedTuple):
    """The move to which a ``moving`` run belongs."""

    number: int
    target: Destination
    note: str | None  # why and how often handlers failed, for dead letters; see `model.failures`
    redrive: bool  # whether the messages arrive as if never received (DLQ-8)


class Run(NamedTuple):
    """Consecutive messages in the same state: one row of ``receipts``.

    ``visible_at`` is None if the messages were never received. A ``visible`` run with a ``lease_id`` was handed
    back by that lease (VIS-4). An ``in_flight`` run past its ``visible_at`` may be claimed again, or is undecided
    if it has a ``mark`` (TAB-5). Until the next claim, its lease stays the latest one (RCP-8).

    In a ``deleted`` run, ``visible_at`` is the instant of deletion; None for the oldest runs. No receipt is valid
    for a ``moving`` run.
    """

    first: int
    last: int
    state: str = VISIBLE
    lease_id: str | None = None
    receive_count: int = 0
    visible_at: int | None = None
    received_at: int | None = None
    first_received_at: int | None = None
    receives_before: int = 0  # receives before the messages came here as dead letters, or before a move failed
    failed_attempts: Attempts = ()  # the last ones (JOB-10)
    move: MovePart | None = None  # of a `moving` run
    mark: Mark | None = None  # of a run in flight that a lease delivers into a table (TAB-2)
    attempt_id: str | None = None  # the receive request attempt that returned the run (ATT-3)
    attempted_at: int | None = None
    attempt_place: int | None = None  # rank of the run among the runs that the attempt returned
    consumer: str | None = None  # name of the consumer that has the messages in flight; None with an attempt id
    failure: DeadLetterReason | None = None  # why the last handler of the messages failed
    failed_together: int | None = None  # number of messages of the failed batch, if a batch failed

    @property
    def deliveries(self) -> int:
        """Number of receives in this queue, which the redrive policy counts (DLQ-13)."""
        return self.receive_count - self.receives_before

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def failed(self, failure: DeadLetterReason, together: int | None = None) -> Run:
        """Returns the run with a handler's failure added. A failure that is recorded twice counts once."""
        attempts = self.failed_attempts
        if failure != self.failure:
            attempts = (*attempts, failure)[-MOST_ATTEMPTS:]
        return self.unattempted()._replace(
            consumer=failure.consumer if self.state == IN_FLIGHT else None,
            failure=failure,
            failed_together=together,
            failed_attempts=attempts,
        )

    def unattempted(self) -> Run:
        """Returns the run without its attempt, consumer and failure."""
        return Run._make([*self[:_RECEIVED], *[None] * (len(self) - _RECEIVED)])

    def deleted(self, now: int) -> Run:
        return Run(self.first, self.last, DELETED, None, self.receive_count, now, None, self.first_received_at)

    def alike(self, other: Run) -> bool:
        """True if the runs are equal except for their range of offsets."""
        return self[2:] == other[2:]


Outgoing = list[tuple[Run, MovePart]]  # an unfinished move, lowest offset first
_RECEIVED = Run._fields.index("attempt_id")  # the next receive replaces the fields from here on


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """Joins adjacent runs that are equal except for their range. Returns the runs in the given order."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].last + 1 == run.first and found[-1].alike(run):
            found[-1] = found[-1]._replace(last=run.last)
        else:
            found.append(run)
    return found


@attrs.frozen
class Head:
    """The row of a shard that is not a run: the epoch, offsets, and a copy of the attributes.

    Messages below ``floor_offset`` are gone; from ``head_offset`` on, they were never received. Between the two,
    messages without a run are deleted.

    Attributes:
        attributes: string values by wire name.
        released_offset: messages below it are not held, even under a lower cap on delayed messages (INF-9).
        paced_to: instant at which the bucket of the rate limit is full again (``model.rates``).
        emptying: random ids of removals of bodies from the log, separated by spaces: the log's last removal, then
            the removals that this ledger has announced since.
        delivery_table: delivery table for which messages are marked (``shard.deliver``).
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
    paced_to: int = 0
    emptying: str | None = None
    delivery_table: str | None = None

    def knows(self, mark: int) -> bool:
        """True if ``mark`` is 0 (no removal), or if this ledger announced the removal of bodies with this mark."""
        return not mark or str(mark) in (self.emptying or "").split()


class DeadLetterSpan(NamedTuple):
    """A range of dead letters (DLQ-4, RET-7). ``receive_count`` counts the receives in the source queue."""

    first: int
    last: int
    receive_count: int
    first_sent_at: int | None
    """Instant of the first send, at which retention begins; None if retention begins at the arrival."""
    first_received_at: int | None = None


class MessageLog(Protocol):
    """The messages of a shard, as the rules need them."""

    @property
    def end(self) -> int:
        """Offset after the last message."""

    def sent_at(self, offset: int) -> int:
        """Returns the send instant of a message. Higher offsets never have earlier instants."""

    def load(self, offsets: Sequence[int]) -> None:
        """Loads send instants and delays of messages that are needed next. Reads them concurrently."""

    def first_sent_at_or_after(self, instant: int) -> int:
        """Returns the lowest offset of a message sent at or after ``instant``, or ``end``."""

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Yields ranges ``(first, last, available_at)`` in order; ``available_at`` is 0 without a delay. The
        argument ``delay`` replaces the messages' own delays, in microseconds.
        """

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetterSpan]:
        """Yields the dead letters of a range, in order."""

    def groups(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yields each message group of the ranges with its offsets, perhaps in several portions."""

    def group_sizes(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, int]]:
        """Yields each message group of the ranges with its number of messages. A group may be yielded again."""

    def only_group(self, first: int) -> str | None:
        """Returns the group of all messages from ``first`` on; "" for no group. None if the groups may differ."""


class RunMap:
    """A map of runs by their first offset. An operation costs O(log n + number of touched runs)."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs: SortedDict[int, Run] = SortedDict({run.first: run for run in runs})
        self._before: dict[int, Run | None] = {}  # by first offset: the run at the last `changes`, if any
        self._handed_out: dict[int, Run | None] = {}  # the same for changes that are being committed
        self.size = sum(run.last - run.first + 1 for run in self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    @property
    def first(self) -> int | None:
        """Lowest offset that is in a run; None if there are no runs."""
        return self._runs.peekitem(0)[0] if self._runs else None

    def at(self, offset: int) -> Run | None:
        """Returns the run that contains an offset; None if no run does."""
        for key in self._runs.irange(maximum=offset, reverse=True):
            run = self._runs[key]
            return run if run.last >= offset else None
        return None

    def first_from(self, offset: int) -> int | None:
        """Returns the lowest offset in a run at or above ``offset``; None if there is no such offset."""
        if self.at(offset) is not None:
            return offset
        return next(iter(self._runs.irange(minimum=offset)), None)

    def overlapping(self, first: int, last: int) -> list[Run]:
        """Returns the runs that overlap a range, in order. The runs may reach beyond the range."""
        runs = self._runs
        before = runs.get(first) or self.at(first)
        # without this, claims of many single messages take twice as long
        if before is not None and before.last >= last >= first:
            return [before]
        if first > last:  # no offset lies in it, though a run may lie around it
            return []
        found = [] if before is None or before.first == first else [before]
        found.extend(runs[key] for key in runs.irange(first, last))
        return found

    def pieces(self, first: int, last: int) -> Iterator[Run]:
        """Yields the parts of the runs that are in the range, in order."""
        for run in self.overlapping(first, last):
            if run.first >= first and run.last <= last:
                yield run
            else:
                yield run._replace(first=max(run.first, first), last=min(run.last, last))

    def pieces_from(self, first: int) -> Iterator[Run]:
        """Yields the runs from offset ``first`` on, in order. A run that begins earlier is cut."""
        run = self.at(first)
        if run is not None:
            yield run._replace(first=first)
        for key in self._runs.irange(minimum=first, inclusive=(run is None, True)):
            yield self._runs[key]

    def pieces_down_from(self, last: int) -> Iterator[Run]:
        """Yields the runs up to offset ``last``, highest first. A run that ends later is cut."""
        for key in self._runs.irange(maximum=last, reverse=True):
            run = self._runs[key]
            yield run._replace(last=min(run.last, last))

    def cut(self, first: int, last: int) -> None:
        """Removes a range of offsets. Splits the runs at both ends of the range."""
        for run in self.overlapping(first, last):
            self._drop(run)
            if run.first < first:
                self._add(run._replace(last=first - 1))
            if run.last > last:
                self._add(run._replace(first=last + 1))

    def put(self, run: Run) -> None:
        """Sets a run in place of the runs in its range. Joins the run with neighbours that are alike."""
        self.cut(run.first, run.last)
        left = self.at(run.first - 1)
        if left is not None and left.alike(run):
            self._drop(left)
            run = run._replace(first=left.first)
        right = self._runs.get(run.last + 1)
        if right is not None and right.alike(run):
            self._drop(right)
            run = run._replace(last=right.last)
        self._add(run)

    def put_apart(self, runs: Sequence[Run]) -> None:
        """Sets runs that neither overlap nor touch another run. Takes a tenth of the time of ``put``."""
        for run in runs:
            self._before.setdefault(run.first, None)
            self.size += run.size
        self._runs.update((run.first, run) for run in runs)

    def changes(self) -> tuple[list[Run], list[int]]:
        """Returns the changes since the last commit: runs to put, and first offsets of runs to delete."""
        self._before |= self._handed_out
        self._handed_out, self._before = self._before, {}
        puts: list[Run] = []
        deletes: list[int] = []
        for key in sorted(self._handed_out):
            old, new = self._handed_out[key], self._runs.get(key)
            if new is None:
                if old is not None:
                    deletes.append(key)
            elif new != old:
                puts.append(new)
        return puts, deletes

    def committed(self) -> None:
        """Forgets the changes that the last call of ``changes`` returned, because they are committed."""
        self._handed_out = {}

    def _drop(self, run: Run) -> None:
        del self._runs[run.first]
        self._before.setdefault(run.first, run)
        self.size -= run.size

    def _add(self, run: Run) -> None:
        self._before.setdefault(run.first, None)
        self._runs[run.first] = run
        self.size += run.size
