"""The state machine of one shard: commands and an instant in, answers and changed rows out.

It is pure: it reads no clock, does no I/O, and knows messages only by their offset and send instant. An instance
lives as long as its commits succeed; after a failed commit it is discarded and rebuilt from the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from lakequeue.errors import QueueDoesNotExist, QueueServiceError
from lakequeue.model.deliveries import Mark, Target, Undecided
from lakequeue.shard import admin, deliver, move, settle
from lakequeue.shard.claim.standard import attempt_lives, charge, claim, quote
from lakequeue.shard.commands import (
    ChangeVisibility,
    Charge,
    Claim,
    ClaimResult,
    Close,
    Command,
    Counts,
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
)
from lakequeue.shard.expire import advance, next_expiry, oldest_sent_at
from lakequeue.shard.peek import Holding, deleted_runs, holdings, stored_runs
from lakequeue.shard.runs import Head, Log, Outgoing, Run
from lakequeue.shard.state import ShardState

_NEAR = 10
"""A cap on messages in flight counts as near if it is no more than this many times their number."""


class ShardMachine:
    """All rules of one shard.

    Time never goes backwards: an instant before the last one, or before the head's last commit, counts as that
    one. Not thread-safe.
    """

    def __init__(self, head: Head, runs: Iterable[Run], log: Log, history: Iterable[Run] = ()) -> None:
        """Starts from committed rows.

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
        self._drained: tuple[int, int | None] | None = None  # the end of the log, and the next event

    @property
    def head(self) -> Head:
        """The current head, uncommitted changes included; ``epoch`` is the last committed one."""
        return self._state.current_head()

    @property
    def epoch(self) -> int:
        """The epoch of the last commit."""
        return self._state.head.epoch

    @property
    def now(self) -> int:
        """The instant that it has reached."""
        return self._state.now

    @property
    def expired(self) -> int:
        """Number of messages that retention has removed since the last commit."""
        return self._state.expired

    @property
    def attributes_version(self) -> int:
        """Version of the attributes in the head."""
        return self._state.head.attributes_version

    @property
    def runs(self) -> list[Run]:
        """Unsettled runs by offset (a copy, O(n))."""
        return list(self._state.runs)

    @property
    def run_count(self) -> int:
        """Number of runs, history included."""
        return len(self._state.runs) + len(self._state.history)

    @property
    def history(self) -> list[Run]:
        """Settled runs by offset (a copy, O(n))."""
        return list(self._state.history)

    @property
    def log(self) -> Log:
        """The shard's messages; may be replaced by a longer log of the same shard."""
        return self._state.log

    @log.setter
    def log(self, log: Log) -> None:
        self._state.log = log

    @property
    def blocks(self) -> bool:
        """Whether messages in flight may keep others of their group from being claimed."""
        return self._state.attributes.by_group

    @property
    def may_be_grouped(self) -> bool:
        """Whether a message that was sent lately may come before those that are known."""
        attributes = self._state.attributes
        return self.blocks or bool(attributes.fair_groups or attributes.reasons)

    @property
    def grouped(self) -> bool:
        """Whether one may, and there are messages with groups."""
        return self.blocks or (self.may_be_grouped and self.log.only_group(0) != "")

    def decide(self, commands: Sequence[Command], now: int) -> Decision:
        """Applies commands in order at one instant.

        A refused command changes nothing (ERR-8) and those after it still apply. The machine keeps the new
        state: the caller commits it and calls ``committed``, or discards the machine.
        """
        state = self._at(now)
        results, told = [], Counter[str]()
        for command in commands:
            try:
                value, changed = self._apply(command)
            except QueueServiceError as error:
                results.append(Result(error=error, changed=self._pending))
            else:
                self._pending = self._pending or changed
                if changed:
                    told[_RULES[type(command)].__name__.removeprefix("lease_")] += _messages(value)
                results.append(Result(value=value, changed=self._pending))
            self._note(command, results[-1])
        head = attrs.evolve(state.current_head(), epoch=state.head.epoch + 1, committed_at=state.now)
        if not self._pending:
            return Decision(results, False, [], [], head)
        self._decided = head
        self._expired = state.expired
        return Decision(results, True, *state.runs.changes(), head, *state.history.changes(), told)

    def committed(self) -> None:
        """Takes the last decision as committed; expiry applied by reads since then stays pending.

        Raises:
            RuntimeError: the last decision asked for no commit.
        """
        if self._decided is None:
            raise RuntimeError("nothing to commit was decided")
        state = self._state
        state.head = attrs.evolve(state.head, epoch=self._decided.epoch, committed_at=self._decided.committed_at)
        state.runs.committed()
        state.history.committed()
        state.expired -= self._expired
        self._decided = None
        self._pending = False

    def counts(self, now: int) -> Counts:
        """Messages by state (QUE-23, INF-1, INF-9, DLY-12)."""
        state = self._at(now)
        state.scan_all()
        visible, in_flight = state.available.size, state.in_flight + state.moving.size
        held = state.log.end - state.scanned
        undecided = state.undecided.size
        delayed = state.stored - visible - in_flight - held - undecided
        return Counts(visible, in_flight, delayed, state.history.size, held, undecided)

    def oldest_sent_at(self, now: int) -> int | None:
        """When the oldest stored message was sent; None if nothing is stored."""
        return oldest_sent_at(self._at(now))

    def outgoing(self) -> Outgoing:
        """The unfinished move to another queue, if there is one."""
        return self._state.moving_runs()

    def undecided(self, now: int) -> list[Undecided]:
        """The deliveries whose receipts have ended, oldest first (TAB-5)."""
        return deliver.undecided(self._at(now))

    def marked(self, now: int) -> int:
        """Number of messages with a mark, whether their receipts have ended or not."""
        return self._at(now).marked.size

    def marks(self, now: int) -> list[Mark]:
        """The marks of all deliveries, whether their receipts have ended or not."""
        return deliver.marks(self._at(now))

    @property
    def target(self) -> Target:
        """The delivery table."""
        return deliver.target(self._state)

    def stored(self, now: int) -> int:
        """Messages neither deleted nor expired (STA-10, QUE-21)."""
        return self._at(now).stored

    def next_event(self, now: int) -> int | None:
        """Earliest instant after ``now`` at which a claim may find more than it does now (LPL-4).

        A visibility timeout or a delay ends; or the oldest message expires while the shard is at its cap, or while
        hidden messages may block others (RET-10, FAI-4); or the oldest delayed message expires while
        others are held behind it (INF-9); or the rate limit lets the next message through (JOB-11); or it is time
        to try again to decide a delivery (TAB-5).
        """
        change, state = self._next_change(now), self._state
        if state.undecided.size:
            again = state.now + deliver.DECIDE_EVERY
            change = again if change is None else min(change, again)
        pace = state.attributes.pace
        several = state.attributes.shards > 1  # whose messages are charged here, too
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
        """Earliest instant from ``now`` on at which counts change without a commit, or something expires."""
        if self._at(now).history.size or self._state.undecided.size:
            return now
        instants = (self._next_change(now), next_expiry(self._state))
        return min((known for known in instants if known is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """True if the shard stores no message, and remembers none that a rewind could bring back."""
        return not self.run_count and self.head.head_offset == self.log.end

    def is_drained(self, now: int) -> bool:
        """Returns True if a claim would find nothing: the last claim left nothing, and only deletes followed.

        False on queues where deleting a message may let a claim find another one.
        """
        if self._drained is None:
            return False
        end, event = self._drained
        return end == self.log.end and (event is None or max(now, self.now) < event)

    def _note(self, command: Command, result: Result) -> None:
        """Keeps for ``is_drained`` whether a claim left nothing."""
        if isinstance(command, Claim):
            left_nothing = result.error is None and result.value.left_nothing(command)
            drained = left_nothing and not self._frees_others()
            self._drained = (self.log.end, self.next_event(self.now)) if drained else None
        elif not isinstance(command, (Delete, RecordFailure)) and not (
            isinstance(command, LeaseDelete) and not command.except_offsets
        ):
            self._drained = None

    def _frees_others(self) -> bool:
        """Whether deleting a message may let a claim find another one."""
        attributes, in_flight = self._state.attributes, self._state.in_flight
        cap = attributes.inflight_limit
        return self.blocks or attributes.pace is not None or (cap is not None and cap <= _NEAR * in_flight)

    def attempt_lives(self, attempt_id: str, now: int) -> bool:
        """Whether a claim with this attempt id would repeat an earlier one (ATT-3)."""
        return attempt_lives(self._at(now), attempt_id)

    def stores(self, offset: int) -> bool:
        """Returns True if a message that was received is stored: neither deleted, purged, expired nor moved."""
        return self._state.runs.at(offset) is not None

    def tokens(self, now: int) -> int | None:
        """How many messages the rate limit lets through now; None without a limit (JOB-11)."""
        return self._at(now).pace_left

    def quote(self, command: Claim, now: int) -> int:
        """Returns how many messages a claim would take if the rate limit let them through (JOB-11)."""
        return quote(self._at(now), command).unpaid

    def check_rewind(self, command: Rewind, now: int) -> None:
        """Raises what a rewind would raise now (RWD-11, RWD-15, RWD-19)."""
        admin.check_rewind(self._at(now), command)

    def rewindable(self, command: Rewind, now: int) -> int:
        """Number of messages that a rewind would restore now; raises what the rewind would."""
        self.check_rewind(command, now)
        state = self._state
        if command.to == state.now:
            return 0
        first = state.log.first_sent_at_or_after(command.to)
        return sum(run.size for run in state.history.pieces(first, state.log.end))

    def check_purge(self, command: Purge, now: int) -> None:
        """Raises PurgeQueueInProgress if this purge would be refused now (PUR-2)."""
        admin.check_purge(self._at(now), command)

    def held_from(self, now: int) -> int:
        """First held offset; the end of the log if there is none (INF-9)."""
        return self._at(now).released

    def peek(self, now: int, limit: int, start: int = 0, history: bool = False, newest: bool = False) -> list[Run]:
        """The next stored messages from offset ``start`` on, or those in the history, see ``shard.peek``."""
        return (deleted_runs if history else stored_runs)(self._at(now), limit, start, newest)

    def holdings(self, now: int) -> dict[str | None, Holding]:
        """What each consumer has in flight by its name, see ``shard.peek``."""
        return holdings(self._at(now))

    def _at(self, now: int) -> ShardState:
        """The state, moved to ``now``."""
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
    """The number of messages that a rule changed, as its answer says; 1 if it does not."""
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
