"""State machine of one shard: takes commands and an instant, returns answers and changed rows. Reads no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from lakequeue.errors import QueueDoesNotExist, QueueServiceError
from lakequeue.model.deliveries import DeliveryTarget, Mark, Undecided
from lakequeue.shard import admin, deliver, move, settle
from lakequeue.shard.claim.standard import attempt_lives, charge, claim, quote
from lakequeue.shard.commands import (
    ChangeVisibility,
    Charge,
    Claim,
    ClaimResult,
    Close,
    Command,
    Decide,
    Decision,
    Delete,
    Discard,
    Erase,
    Expire,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    MakeVisible,
    MarkEmptying,
    Move,
    MoveBack,
    Moved,
    Purge,
    RecordFailure,
    RecordTable,
    Remark,
    Result,
    Rewind,
    Rewrite,
    SetAttributes,
    StateCounts,
)
from lakequeue.shard.expire import advance, next_expiry, oldest_sent_at
from lakequeue.shard.peek import Holding, deleted_runs, holdings, stored_runs
from lakequeue.shard.runs import Head, MessageLog, Outgoing, Run
from lakequeue.shard.state import ShardState

_NEAR = 10
"""Factor. A shard with a cap on messages in flight counts as drained only if the cap exceeds this factor times the
number of messages in flight: a cap that is nearly reached may have limited the last claim.
"""


class ShardMachine:
    """Applies a shard's rules. Not thread-safe. Its time never goes back. Discard it after a failed commit."""

    def __init__(self, head: Head, runs: Iterable[Run], log: MessageLog, history: Iterable[Run] = ()) -> None:
        """Starts from committed rows. ``runs`` and ``history`` must be disjoint, with equal neighbours joined."""
        self._state = ShardState(head, list(runs), log, history)
        self._pending = False
        self._decided: Head | None = None
        self._expired = 0
        self._drained: tuple[int, int | None] | None = None  # the end of the log, and the next event

    @property
    def head(self) -> Head:
        """The head row with uncommitted changes. Its ``epoch`` is the last committed epoch."""
        return self._state.current_head()

    @property
    def epoch(self) -> int:
        return self._state.head.epoch

    @property
    def now(self) -> int:
        """Latest instant that a caller passed to the machine."""
        return self._state.now

    @property
    def expired(self) -> int:
        return self._state.expired

    @property
    def attributes_version(self) -> int:
        return self._state.head.attributes_version

    @property
    def runs(self) -> list[Run]:
        """Runs of the stored messages, by offset. Builds a new list in O(n)."""
        return list(self._state.runs)

    @property
    def run_count(self) -> int:
        return len(self._state.runs) + len(self._state.history)

    @property
    def history(self) -> list[Run]:
        """The deleted messages that a rewind can restore, as contiguous ranges in order of offset. Takes O(n)."""
        return list(self._state.history)

    @property
    def log(self) -> MessageLog:
        """The log with the shard's messages. Can be replaced by a longer log of the same shard."""
        return self._state.log

    @log.setter
    def log(self, log: MessageLog) -> None:
        self._state.log = log

    @property
    def blocks(self) -> bool:
        """True if messages in flight may block other messages of their group."""
        return self._state.attributes.by_group

    @property
    def may_be_grouped(self) -> bool:
        """True if the attributes let claims take recent messages before older messages."""
        attributes = self._state.attributes
        return self.blocks or bool(attributes.fair_groups or attributes.reasons)

    @property
    def grouped(self) -> bool:
        """True if claims may take messages out of order: the attributes allow it, and messages may have groups."""
        return self.blocks or (self.may_be_grouped and self.log.only_group(0) != "")

    def decide(self, commands: Sequence[Command], now: int) -> Decision:
        """Applies commands in order; a refused command changes nothing (ERR-8). The caller must commit the
        decision and call ``committed``, or discard the machine.
        """
        state = self._at(now)
        results, counts = [], Counter[str]()
        for command in commands:
            try:
                value, changed = self._apply(command)
            except QueueServiceError as error:
                results.append(Result(error=error, changed=self._pending))
            else:
                self._pending = self._pending or changed
                if changed:
                    counts[_RULES[type(command)].__name__.removeprefix("lease_")] += _messages(value)
                results.append(Result(value=value, changed=self._pending))
            self._note(command, results[-1])
        head = attrs.evolve(state.current_head(), epoch=state.head.epoch + 1, committed_at=state.now)
        if not self._pending:
            return Decision(results, False, [], [], head)
        self._decided = head
        self._expired = state.expired
        return Decision(results, True, *state.runs.changes(), head, *state.history.changes(), counts)

    def committed(self) -> None:
        """Marks the last decision as committed. Raises RuntimeError if that decision needed no commit."""
        if self._decided is None:
            raise RuntimeError("nothing to commit was decided")
        state = self._state
        state.head = attrs.evolve(state.head, epoch=self._decided.epoch, committed_at=self._decided.committed_at)
        state.runs.committed()
        state.history.committed()
        state.expired -= self._expired
        self._decided = None
        self._pending = False

    def counts(self, now: int) -> StateCounts:
        """Returns the number of messages in each state (QUE-23, INF-1, INF-9, DLY-12)."""
        state = self._at(now)
        state.scan_all()
        visible, in_flight = state.available.size, state.in_flight + state.moving.size
        held = state.log.end - state.scanned
        undecided = state.undecided.size
        delayed = state.stored - visible - in_flight - held - undecided
        return StateCounts(visible, in_flight, delayed, state.history.size, held, undecided)

    def oldest_sent_at(self, now: int) -> int | None:
        """Returns the send instant of the oldest stored message; None if no message is stored."""
        return oldest_sent_at(self._at(now))

    def receives_of_lowest(self, now: int) -> int:
        """Returns the number of receives in this queue of the stored message with the lowest offset, or 0."""
        state = self._at(now)
        lowest = state.lowest
        return 0 if lowest is None else next(state.known(lowest, lowest)).deliveries

    def outgoing(self) -> Outgoing:
        """Returns the runs of the unfinished move to another queue; empty if there is no such move."""
        return self._state.moving_runs()

    def undecided(self, now: int) -> list[Undecided]:
        """Returns the undecided deliveries: deliveries whose receipts have ended, oldest first (TAB-5)."""
        return deliver.undecided(self._at(now))

    def marked(self, now: int) -> int:
        """Returns the number of messages with the mark of a delivery, even if their receipts have ended."""
        return self._at(now).marked.size

    def marks(self, now: int) -> list[Mark]:
        """Returns the marks of all deliveries that have messages, even if the messages' receipts have ended."""
        return deliver.marks(self._at(now))

    @property
    def target(self) -> DeliveryTarget:
        return deliver.target(self._state)

    def stored(self, now: int) -> int:
        """Returns the number of stored messages (STA-10, QUE-21)."""
        return self._at(now).stored

    def next_event(self, now: int) -> int | None:
        """Returns the earliest instant after ``now`` at which a claim may find more messages (LPL-4).

        Such an instant is the end of a timeout, a delay, a rate-limit wait (JOB-11) or a delivery attempt (TAB-5),
        or the expiry of a message that blocks others (INF-9, RET-10, FAI-4).
        """
        change, state = self._next_change(now), self._state
        if state.undecided.size:
            again = state.now + deliver.DECIDE_EVERY
            change = again if change is None else min(change, again)
        pace = state.attributes.pace
        several = state.attributes.shards > 1  # the messages of other shards are charged here, too
        if pace is None or state.pace_left or not (several or state.available.size):
            return change
        let_through = pace.next_at(state.head.paced_to, state.now)
        return let_through if change is None else min(let_through, change)

    def _next_change(self, now: int) -> int | None:
        state = self._at(now)
        instant = state.next_arrival()
        blocking = self.blocks and (instant is not None or state.moving.size > 0)
        instants = [instant, next_expiry(state) if state.room == 0 or blocking else None]
        if state.released < state.log.end:
            oldest = next(first for first, _ in state.delayed)
            instants.append(state.log.sent_at(oldest) + state.attributes.retention_micros)
        return min((known for known in instants if known is not None), default=None)

    def next_change(self, now: int) -> int | None:
        """Returns the next instant at which ``counts`` may change without a commit; None if there is none."""
        if self._at(now).history.size or self._state.undecided.size:
            return now
        instants = (self._next_change(now), next_expiry(self._state))
        return min((known for known in instants if known is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """True if the shard has no stored messages, and no deleted messages in its history."""
        return not self.run_count and self.head.head_offset == self.log.end

    def is_drained(self, now: int) -> bool:
        """True if a claim would find no message: the last claim took all available messages, only deletes
        followed, and no timeout or delay has ended since.
        """
        if self._drained is None or not self.took_all:
            return False
        event = self._drained[1]
        return event is None or max(now, self.now) < event

    @property
    def took_all(self) -> bool:
        """True if the last claim took all available messages, and only deletes followed."""
        return self._drained is not None and self._drained[0] == self.log.end

    def _note(self, command: Command, result: Result) -> None:
        """Called after each command. Notes whether the last claim left nothing, for ``is_drained``."""
        if isinstance(command, Claim):
            left_nothing = result.error is None and result.value.left_nothing(command)
            drained = left_nothing and not self._frees_others()
            self._drained = (self.log.end, self.next_event(self.now)) if drained else None
        elif not isinstance(command, (Delete, RecordFailure)) and not (
            isinstance(command, LeaseDelete) and not command.except_offsets
        ):
            self._drained = None

    def _frees_others(self) -> bool:
        attributes, in_flight = self._state.attributes, self._state.in_flight
        cap = attributes.inflight_limit
        return self.blocks or attributes.pace is not None or (cap is not None and cap <= _NEAR * in_flight)

    def attempt_lives(self, attempt_id: str, now: int) -> bool:
        """True if a claim with this attempt id would repeat an earlier claim (ATT-3)."""
        return attempt_lives(self._at(now), attempt_id)

    def stores(self, offset: int) -> bool:
        """True if the message was received and is still stored."""
        return self._state.runs.at(offset) is not None

    def tokens(self, now: int) -> int | None:
        """Returns how many messages the rate limit allows now (JOB-11); None without a rate limit."""
        return self._at(now).pace_left

    def quote(self, command: Claim, now: int) -> int:
        """Returns how many messages a claim would take without the rate limit (JOB-11); 0 if there is no limit."""
        return quote(self._at(now), command).unpaid

    def check_rewind(self, command: Rewind, now: int) -> None:
        """Raises the error with which a rewind would be refused now (RWD-11, RWD-15, RWD-19). Changes nothing."""
        admin.check_rewind(self._at(now), command)

    def rewindable(self, command: Rewind, now: int) -> int:
        """Returns the number of messages that a rewind would restore. Raises the errors of ``check_rewind``."""
        self.check_rewind(command, now)
        state = self._state
        if command.to == state.now:
            return 0
        first = state.log.first_sent_at_or_after(command.to)
        return sum(run.size for run in state.history.pieces(first, state.log.end))

    def check_purge(self, command: Purge, now: int) -> None:
        """Raises PurgeQueueInProgress if a purge would be refused now (PUR-2)."""
        admin.check_purge(self._at(now), command)

    def held_from(self, now: int) -> int:
        """Returns the first offset that the cap on delayed messages holds back, or the log's end (INF-9)."""
        return self._at(now).released

    def peek(self, now: int, limit: int, start: int = 0, history: bool = False, newest: bool = False) -> list[Run]:
        """Returns at most ``limit`` stored messages in total, as runs. With ``history``, returns deleted messages
        that a rewind can restore. For ``start`` and ``newest``, see ``shard.peek``.
        """
        return (deleted_runs if history else stored_runs)(self._at(now), limit, start, newest)

    def holdings(self, now: int) -> dict[str | None, Holding]:
        """Returns the messages in flight by name of the consumer. See ``shard.peek``."""
        return holdings(self._at(now))

    def _at(self, now: int) -> ShardState:
        advance(self._state, now)
        return self._state

    def _apply(self, command: Command) -> tuple[Any, bool]:
        if self._state.head.closed:
            raise QueueDoesNotExist()
        try:
            rule = _RULES[type(command)]
        except KeyError:
            raise TypeError(f"not a command of a shard: {command!r}") from None
        return rule(self._state, command)


def _messages(value: Any) -> int:
    match value:
        case ClaimResult():
            return value.message_count
        case LeaseCounts():
            return value.done + value.released
        case int(count) | (int(count), _):
            return int(count)
    return 1


_RULES: dict[type, Callable[[ShardState, Any], tuple[Any, bool]]] = {
    Claim: claim,
    Charge: charge,
    Delete: settle.delete,
    ChangeVisibility: settle.change_visibility,
    RecordFailure: settle.record_failure,
    LeaseDelete: settle.lease_delete,
    LeaseExtend: settle.lease_extend,
    LeaseRelease: settle.lease_release,
    Move: move.move,
    Moved: move.moved,
    MoveBack: move.move_back,
    Discard: admin.discard,
    Erase: admin.erase,
    MakeVisible: admin.make_visible,
    Purge: admin.purge,
    Rewind: admin.rewind,
    SetAttributes: admin.set_attributes,
    Close: admin.close,
    Expire: admin.expire,
    Rewrite: admin.rewrite,
    MarkEmptying: admin.mark_emptying,
    Decide: deliver.decide,
    Remark: deliver.remark,
    RecordTable: deliver.record_table,
}
