"""The state machine of one shard: commands and an instant in, answers and changed rows out.

Pure: it reads no clock, does no I/O, and knows messages only by offset and instant of sending. One instance
lives as long as its commits succeed; after a failed one it is thrown away and built again from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    PurgeQueueInProgress,
    QueueDoesNotExist,
    QueueServiceError,
    UnsupportedOperation,
)
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.shard import move, settle
from lakequeue.shard.claim import attempt_lives, claim
from lakequeue.shard.commands import (
    ChangeVisibility,
    Claim,
    Close,
    Command,
    Counts,
    Decision,
    Delete,
    Expire,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    Move,
    MoveBack,
    Moved,
    Outgoing,
    Purge,
    Result,
    Rewind,
    Rewrite,
    SetAttributes,
)
from lakequeue.shard.runs import IN_FLIGHT, MOVING, Head, Log, Run
from lakequeue.shard.state import ShardState

PURGE_INTERVAL = 60 * 1_000_000  # PUR-2


class ShardMachine:
    """All rules of one shard.

    Time never goes backwards in it: an instant before the last one, or before the head's last commit,
    counts as that one. Not safe for use by several threads at once.
    """

    def __init__(self, head: Head, runs: Iterable[Run], log: Log, history: Iterable[Run] = ()) -> None:
        """Start from committed rows.

        Args:
            head: the head row of the shard.
            runs: its unsettled runs in any order, disjoint, equal neighbours joined.
            log: its messages.
            history: its settled runs, likewise.
        """
        self._state = ShardState(head, list(runs), log, history)
        self._pending = False
        self._decided: Head | None = None
        self._expired = 0

    @property
    def head(self) -> Head:
        """The head as it is now, with what was not committed yet; `epoch` is the last committed one."""
        return self._state.current_head()

    @property
    def attributes_version(self) -> int:
        """That of the head, without the work of bringing the rest of it up to date."""
        return self._state.head.attributes_version

    @property
    def runs(self) -> list[Run]:
        """Every run in order of offset (a copy, O(n))."""
        return list(self._state.runs)

    @property
    def run_count(self) -> int:
        """How many runs there are, those of the history too."""
        return len(self._state.runs) + len(self._state.history)

    @property
    def history(self) -> list[Run]:
        """Every settled run in order of offset (a copy, O(n))."""
        return list(self._state.history)

    @property
    def log(self) -> Log:
        """The shard's messages; may be replaced by a longer log of the same shard."""
        return self._state.log

    @log.setter
    def log(self, log: Log) -> None:
        self._state.log = log

    @property
    def fifo(self) -> bool:
        """Whether claims go by message group."""
        return self._state.attributes.fifo

    def decide(self, commands: Sequence[Command], now: int) -> Decision:
        """Apply commands in order at one instant.

        A refused command changes nothing (ERR-8) and the ones after it go on. The machine keeps the new
        state: the caller commits it and calls `committed`, or drops the machine.
        """
        state = self._state
        state.advance(now)
        results = []
        for command in commands:
            try:
                value, changed = self._apply(command)
            except QueueServiceError as error:
                results.append(Result(error=error, changed=self._pending))
            else:
                self._pending = self._pending or changed
                results.append(Result(value=value, changed=self._pending))
        head = attrs.evolve(state.current_head(), epoch=state.head.epoch + 1, committed_at=state.now)
        if not self._pending:
            return Decision(results, False, [], [], head)
        self._decided = head
        self._expired = state.expired
        return Decision(results, True, *state.runs.changes(), head, *state.history.changes())

    def committed(self) -> None:
        """Adopt the last decision as committed; expiry that a read applied since then stays pending.

        Raises:
            RuntimeError: the last decision asked for no commit.
        """
        if self._decided is None:
            raise RuntimeError("nothing to commit was decided")
        state = self._state
        state.head = attrs.evolve(state.head, epoch=self._decided.epoch, committed_at=self._decided.committed_at)
        state.runs.settle()
        state.history.settle()
        state.expired -= self._expired
        self._decided = None
        self._pending = False

    def counts(self, now: int) -> Counts:
        """Messages by state (QUE-23, INF-1, INF-9, DLY-12)."""
        state = self._state
        state.advance(now)
        state.look_at_all()
        visible, in_flight = state.available.size, state.in_flight + state.moving.size
        held = state.log.end - state.scanned
        delayed = state.stored - visible - in_flight - held
        return Counts(visible, in_flight, delayed, state.history.size, state.lowest, held)

    def outgoing(self) -> Outgoing | None:
        """The move to another queue that is not finished, if there is one."""
        runs = self._state.moving_runs()
        if not runs:
            return None
        return Outgoing(
            runs[0].move_number or 0,
            runs[0].target_key or "",
            tuple((run.first, run.last, run.receive_count) for run in runs),
        )

    def stored(self, now: int) -> int:
        """Messages neither deleted nor expired (STA-10, QUE-21)."""
        self._state.advance(now)
        return self._state.stored

    def next_event(self, now: int) -> int | None:
        """Earliest instant after `now` at which a claim may find more than it does now (LPL-4).

        That is the end of a visibility timeout or of a delay; and the expiry of the oldest message, while the
        shard is at its cap, or is a FIFO shard with hidden messages, as those may block others (RET-10); and of
        the oldest delayed one, while others are held behind it (INF-9).
        """
        state = self._state
        state.advance(now)
        instant = state.next_arrival()
        blocking = self.fifo and (instant is not None or state.moving.size > 0)
        instants = [instant, state.next_expiry() if state.room == 0 or blocking else None]
        if state.released < state.log.end:
            oldest = next(first for first, _ in state.delayed)
            instants.append(state.log.sent_at(oldest) + state.attributes.retention_micros)
        return min((known for known in instants if known is not None), default=None)

    def attempt_lives(self, attempt_id: str, now: int) -> bool:
        """Whether a claim with this attempt id would repeat an earlier one (ATT-3)."""
        self._state.advance(now)
        return attempt_lives(self._state, attempt_id)

    def check_rewind(self, command: Rewind, now: int) -> None:
        """Raise what a rewind would be refused with now (RWD-11, RWD-15, RWD-19)."""
        self._state.advance(now)
        check_rewind(self._state, command)

    def rewindable(self, command: Rewind, now: int) -> int:
        """How many messages a rewind would bring back now; raises what it would be refused with."""
        self.check_rewind(command, now)
        state = self._state
        if command.to == state.now:
            return 0
        first = state.log.first_sent_at_or_after(command.to)
        return sum(run.size for run in state.history.pieces(first, state.log.end))

    def check_purge(self, command: Purge, now: int) -> None:
        """Raise PurgeQueueInProgress if this purge would be refused now (PUR-2)."""
        self._state.advance(now)
        check_purge(self._state, command)

    def expired_below(self, now: int) -> int:
        """First offset that retention still keeps (RET-1, RET-9)."""
        self._state.advance(now)
        return self._state.expired_below()

    def peek(self, now: int, limit: int, start: int = 0) -> list[tuple[Run, str]]:
        """The oldest stored messages from an offset on, as parts of runs with their state, lowest offset first.

        The state is `visible`, `in_flight`, `delayed` or `held`; messages never looked at count as ready runs.
        """
        state = self._state
        state.advance(now)
        found: list[tuple[Run, str]] = []
        unseen, released = max(start, state.head.head_offset), state.released
        held_from = max(unseen, released)
        fresh = state.fresh(unseen, min(unseen + limit, released) - 1)
        held = state.fresh(held_from, min(held_from + limit, state.log.end) - 1)
        for run in chain(islice(state.runs.pieces_from(start), limit), fresh, held):
            left = limit - sum(part.size for part, _ in found)
            if left <= 0:
                break
            part = run._replace(last=min(run.last, run.first + left - 1))
            if part.state == MOVING:
                found.append((part, "in_flight"))
                continue
            if part.first >= released:
                found.append((part, "held"))
                continue
            if part.visible_at is not None:
                hidden = part.visible_at > state.now
                found.append((part, "in_flight" if hidden and part.state == IN_FLIGHT else "visible"))
                continue
            for first, last, available_at in state.spans(part.first, part.last):
                delayed = available_at > state.now
                shown = part._replace(first=first, last=last, visible_at=available_at if delayed else None)
                found.append((shown, "delayed" if delayed else "visible"))
        return found

    def peek_history(self, now: int, limit: int, start: int = 0) -> list[tuple[Run, str]]:
        """The oldest deleted messages from an offset on that can be rewound, as `peek` answers; their state is
        `deleted`.
        """
        state = self._state
        state.advance(now)
        found: list[tuple[Run, str]] = []
        for run in state.history.pieces_from(start):
            left = limit - sum(part.size for part, _ in found)
            if left <= 0:
                break
            found.append((run._replace(last=min(run.last, run.first + left - 1)), "deleted"))
        return found

    def _apply(self, command: Command) -> tuple[Any, bool]:
        if self._state.head.closed:
            raise QueueDoesNotExist("The specified queue does not exist.")
        try:
            rule = _RULES[type(command)]
        except KeyError:
            raise TypeError(f"not a command of a shard: {command!r}") from None
        return rule(self._state, command)


def check_purge(state: ShardState, command: Purge) -> None:
    """Raise PurgeQueueInProgress if the last purge is less than 60 seconds old (PUR-2)."""
    purged_at = state.head.purged_at
    if not command.at_any_time and purged_at is not None and state.now - purged_at < PURGE_INTERVAL:
        raise PurgeQueueInProgress(
            f"Only one PurgeQueue operation on {command.queue_name or 'a queue'} is allowed every 60 seconds."
        )


def purge(state: ShardState, command: Purge) -> tuple[None, bool]:
    """Remove everything sent so far: waiting, in flight and delayed (PUR-1, PUR-3, PUR-4).

    Raises:
        PurgeQueueInProgress: the last purge is less than 60 seconds old (PUR-2).
    """
    check_purge(state, command)
    state.remove_all()
    state.head = attrs.evolve(state.head, purged_offset=state.log.end, purged_at=state.now)
    return None, True


def check_rewind(state: ShardState, command: Rewind) -> None:
    """Raise UnsupportedOperation without rewind, InvalidParameterValue too early or in the future."""
    if not state.attributes.rewind_micros:
        raise UnsupportedOperation("The queue cannot be rewound: its RewindSeconds is 0.", cmq_code=6050)
    earliest = state.now - state.attributes.rewind_micros
    if not earliest <= command.to <= state.now:
        raise InvalidParameterValue(
            f"Value {_text(command.to)} for parameter RewindTime is invalid. Reason: Must be between "
            f"{_text(earliest)} and {_text(state.now)}.",
            cmq_code=10680,
        )


def rewind(state: ShardState, command: Rewind) -> tuple[int, bool]:
    """Make visible again what was deleted and sent at an instant or later (RWD-9, RWD-10, RWD-19).

    Raises:
        UnsupportedOperation: the queue keeps no history (RWD-15).
        InvalidParameterValue: the instant is earlier than the range allows (RWD-11), or in the future.
    """
    if not command.checked:
        check_rewind(state, command)
    count = 0 if command.to == state.now else state.rewind(state.log.first_sent_at_or_after(command.to))
    return count, count > 0


def set_attributes(state: ShardState, command: SetAttributes) -> tuple[bool, bool]:
    """Adopt newer attributes at once (QUE-25); what the old retention had expired stays gone (RET-6)."""
    if command.version <= state.head.attributes_version:
        return False, False
    delay, cap = state.delay, state.attributes.delayed_limit
    state.keep_released()
    state.attributes = QueueAttributes.from_wire(command.attributes)
    state.head = attrs.evolve(state.head, attributes=dict(command.attributes), attributes_version=command.version)
    if state.delay != delay:
        state.change_delay()
    elif state.attributes.delayed_limit != cap:
        state.change_cap()
    if not state.attributes.rewind_micros:
        state.forget_history()
    state.expire()
    return True, True


def close(state: ShardState, command: Close) -> tuple[None, bool]:
    """Refuse every later command (QUE-13)."""
    state.head = attrs.evolve(state.head, closed=True)
    return None, True


def expire(state: ShardState, command: Expire) -> tuple[int, bool]:
    """Report what retention removed since the last commit, which asks for one if that is anything (RET-9)."""
    return state.expired, state.expired > 0


def rewrite(state: ShardState, command: Rewrite) -> tuple[None, bool]:
    """Ask for a commit of what there is."""
    return None, True


def _text(instant: int) -> str:
    return from_micros(instant).isoformat()


_RULES: dict[type, Callable[[ShardState, Any], tuple[Any, bool]]] = {
    Claim: claim,
    Delete: settle.delete,
    ChangeVisibility: settle.change_visibility,
    LeaseDelete: settle.lease_delete,
    LeaseExtend: settle.lease_extend,
    LeaseRelease: settle.lease_release,
    Move: move.move,
    Moved: move.moved,
    MoveBack: move.move_back,
    Purge: purge,
    Rewind: rewind,
    SetAttributes: set_attributes,
    Close: close,
    Expire: expire,
    Rewrite: rewrite,
}
