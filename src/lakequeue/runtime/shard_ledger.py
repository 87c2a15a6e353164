"""The ledger of a shard in this process: commands behind a group commit, and queries on fresh state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import attrs

from lakequeue.errors import QueueDoesNotExist, RequestThrottled
from lakequeue.model.clock import MICROS
from lakequeue.runtime import calls, shard_races
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.shard_races import RaceCounts
from lakequeue.runtime.waiters import Waiters
from lakequeue.shard.commands import (
    Claim,
    Command,
    Counts,
    Decision,
    Expire,
    Purge,
    Result,
    Rewrite,
    SetAttributes,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.clock_guard import ClockGuard
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.commit import LOADS, Races, is_based, lost_races, repeated
from lakequeue.storage.engines.interface import StaleSnapshot
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.turns import turns_at
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import LogReader, ShardLog

OVERLOOKED = 16
"""Claims from a shard without message groups after which the next one learns whether messages with groups came."""
READ_COMMITS_EVERY = 8
"""Every n-th call of ``is_unattended`` reads the commits to distinguish claims."""
Now = Callable[[], int]
"""The caller's clock in microseconds, read for each decision: a lost race may outlast a timeout (RCV-4)."""

_T = TypeVar("_T")


@attrs.frozen
class _Commands:
    commands: Sequence[Command]
    now: Now


@attrs.define
class _Call:
    """Commands on their way into one commit."""

    commands: Sequence[Command]
    now: Now
    wanted: int
    """Messages that claims ask for."""
    whole: bool
    """Whether some apply to every message that was sent before."""
    rewrite: bool
    races: Races = attrs.field(factory=Races, init=False)
    fresh: bool = attrs.field(default=False, init=False)
    """Whether the state was loaded within the call."""
    newest: bool = attrs.field(default=False, init=False)
    """Whether the ledger's snapshot was, by the race that was lost last."""

    @classmethod
    def of(cls, commands: Sequence[Command], now: Now) -> _Call:
        wanted = sum(command.max_messages for command in commands if isinstance(command, Claim))
        whole = any(isinstance(command, (Purge, SetAttributes, Expire)) for command in commands)
        return cls(commands, now, wanted, whole, any(isinstance(command, Rewrite) for command in commands))


class ShardDepth(NamedTuple):
    """The depth of a shard at an instant, from one snapshot."""

    counts: Counts
    oldest_age: int | None
    """Microseconds since the oldest stored message was sent."""
    sent: int
    """Number of messages ever sent."""

    @classmethod
    def of(cls, machine: ShardMachine, now: int) -> ShardDepth:
        counts = machine.counts(now)
        oldest = machine.oldest_sent_at(now)
        age = None if oldest is None else max(now, machine.head.committed_at) - oldest
        return cls(counts, age, machine.log.end)


@attrs.frozen
class Shared:
    """State that the shards of a queue share in this process."""

    waiters: Waiters
    home: HomeShard
    """Where receives begin."""
    sends: HomeShard
    """Where sends begin; at first the same shard."""
    races: RaceCounts
    guard: ClockGuard
    grow: Callable[[int], None]
    """Called with the number of shards that a ledger knows of."""

    @classmethod
    def of(cls, shards: int, queue: str, guard: ClockGuard, grow: Callable[[int], None]) -> Shared:
        home = HomeShard(shards)
        return cls(Waiters(), home, HomeShard(shards, home.current), RaceCounts(queue), guard, grow)


class ShardLedger:
    """Decides commands on the newest ledger and commits what they change. Thread-safe."""

    def __init__(self, engine: Engine, root: str, key: str, shard: int, shared: Shared) -> None:
        self.shard = shard
        self.shared = shared
        self._engine = engine
        self._messages = layout.messages_path(root, key, shard)
        self._receipts = layout.receipts_path(root, key, shard)
        self._commanding = GroupCommit(self._run_commands, self._command_in_turn)
        self._command_turns = turns_at(self._receipts, engine.commits_alone)
        self._ledger_lock = threading.RLock()
        self._ledger: Ledger | None = None
        self._reader: LogReader | None = None
        self._machine: ShardMachine | None = None
        self._unattended_calls = 0
        self._claims = 0  # since the log was refreshed

    def command(self, commands: Sequence[Command], now: Now) -> list[Result]:
        """Applies commands in one commit, possibly with those of other callers.

        Raises:
            RequestThrottled: too many lost races; nothing was changed.
        """
        return self._commanding.submit(_Commands(commands, now))

    def depth(self, now: int) -> ShardDepth:
        """Fresh counts."""
        return self.query(lambda machine: ShardDepth.of(machine, now))

    def next_event(self, now: int) -> int | None:
        """When a claim may find more messages than now, as far as this process knows."""
        with self._at_ledger():
            return None if self._machine is None else self._machine.next_event(now)

    def next_change(self, now: int) -> int | None:
        """When the depth that ``depth`` has just returned changes without a commit; None: never."""
        return self.query(lambda machine: machine.next_change(now))

    def activity(self) -> list[int]:
        """The newest versions of ledger and messages, which change with every commit."""
        with self._at_ledger():
            tables = self._open_ledger().table, self._open_reader().table
            for table in tables:
                table.refresh()
            return [table.version for table in tables]

    def for_each(self, call: Callable[[int], _T], shards: Sequence[int]) -> list[_T]:
        """The results of a call for each shard, made at once where that saves waiting; see ``Folder.for_each``."""
        return self._engine.store.folder(self._messages).for_each(call, shards)

    def newest_races(self, most: int) -> tuple[int, int]:
        """The newest commits of all processes to the shard, at most twice this many, and the races lost before."""
        with self._at_ledger():
            found = []
            for table in self._open_ledger().table, self._open_reader().table:
                table.refresh()
                found.append(lost_races(table.folder, table.version, most))
        commits, lost = zip(*found, strict=True)
        return sum(commits), sum(lost)

    def ledger_size(self) -> tuple[int, int, int]:
        """Runs and files of the newest ledger, and the instant of its last commit in microseconds."""
        with self._at_ledger():
            machine = self._fresh_machine()
            return machine.run_count, len(self._open_ledger().table.files()), machine.head.committed_at

    def is_unattended(self) -> bool:
        """Whether no process claimed new messages since this process last read the ledger; at first False.

        Most calls take any commit for a claim: to read all those of a busy shard took 0.3 s.
        """
        with self._at_ledger():
            table = self._open_ledger().table
            self._unattended_calls += 1
            if self._unattended_calls % READ_COMMITS_EVERY and table.folder.exists(entry_name(table.version + 1)):
                return False
            known = self._machine and self._machine.head.head_offset
            return self._fresh_machine().head.head_offset == known

    @property
    def attributes_version(self) -> int:
        """Version of the queue's attributes in the ledger snapshot of the last decision."""
        machine = self._machine
        return 0 if machine is None else machine.attributes_version

    def query(self, query: Callable[[ShardMachine], _T]) -> _T:
        """Runs a query on a fresh snapshot of the state machine.

        Raises:
            QueueDoesNotExist: the queue was deleted.
        """
        with self._at_ledger():
            for _ in range(LOADS):
                machine = self._fresh_machine()
                if machine.head.closed:
                    raise QueueDoesNotExist()
                try:
                    return query(machine)
                except StaleSnapshot:  # files of its log were merged, dropped or erased, and removed, since
                    self._machine = None
            return query(self._fresh_machine())

    @contextmanager
    def _command_in_turn(self) -> Iterator[None]:
        ledger = self._ledger  # read once: another thread may let go of it
        with self._command_turns.taken(None if ledger is None else ledger.table) as stale:
            if stale:
                with self._at_ledger():
                    self._fresh_machine()
            yield

    def _run_commands(self, groups: Sequence[_Commands]) -> list[list[Result] | BaseException]:
        commands = [command for group in groups for command in group.commands]
        with self._at_ledger():
            results = self._decide(commands, lambda: max(group.now() for group in groups))
        if results is None:
            error = RequestThrottled("too many lost races; nothing was changed")
            return [error for _ in groups]
        if any(result.changed for result in results):
            self.wake()
        answers: list[list[Result] | BaseException] = []
        for group in groups:
            answers.append(results[: len(group.commands)])
            results = results[len(group.commands) :]
        return answers

    def _decide(self, commands: Sequence[Command], now: Now) -> list[Result] | None:
        call = _Call.of(commands, now)
        self._claims += call.wanted > 0
        for _ in call.races:
            results = self._attempt(call)
            if results is not None:
                return results
        calls.gave_up(call.races.lost)
        return None

    def _attempt(self, call: _Call) -> list[Result] | None:
        """Decides once; None: on what was too old, or another process was first."""
        machine = self._machine_for(call)
        reread = self._read_log(call, machine)
        decision = self._decision(call, machine)
        if decision is None:
            return None
        if not reread and _short(call.commands, decision.results) and self._log_grew(machine, decision):
            return None
        if not call.fresh and not all(result.changed for result in decision.results):
            # an answer without a commit must come from a snapshot at least as new as the call
            self._open_ledger().table.refresh()
            call.fresh = True
            if not self._open_ledger().is_current(machine):
                self._machine = None
                return None
        if not decision.commit:
            return decision.results
        if not reread and not is_based(self._open_reader().table):
            self._machine = None  # the log has other messages now
            return None
        return self._commit(call, machine, decision)

    def _machine_for(self, call: _Call) -> ShardMachine:
        if self._machine is None or self._is_ahead(self._machine):
            self._load_machine(call.newest)
            call.newest, call.fresh = False, True
        assert self._machine is not None
        return self._machine

    def _read_log(self, call: _Call, machine: ShardMachine) -> bool:
        """Gives a machine the log as far as it is known; if that may not be enough, reads it: then True."""
        reader = self._open_reader()
        machine.log = reader.advance()
        # groups: they may hide any number of messages, a delete searches for the group's next message, and
        # other groups may have sent
        overlooked = self._claims >= OVERLOOKED and machine.may_be_grouped
        few = machine.log.end - machine.head.head_offset < call.wanted
        if not (call.whole or overlooked or machine.grouped or few):
            return False
        machine.log = reader.refresh()
        self._claims = 0
        return True

    def _decision(self, call: _Call, machine: ShardMachine) -> Decision | None:
        try:
            return machine.decide(call.commands, call.now())
        except OSError as error:
            if call.fresh and not isinstance(error, StaleSnapshot):
                raise
            self._machine = None  # files of its log were merged, dropped or erased, and removed, since
            return None

    def _log_grew(self, machine: ShardMachine, decision: Decision) -> bool:
        """Whether there are newer messages, which may be visible where known ones are hidden."""
        log = self._open_reader().refresh()
        if log.end == machine.log.end:
            return False
        if decision.commit:
            self._machine = None
        else:
            machine.log = log
        return True

    def _commit(self, call: _Call, machine: ShardMachine, decision: Decision) -> list[Result] | None:
        ledger, races = self._open_ledger(), call.races
        ids = self.settle_clock(decision.head.committed_at, machine.head.committed_at, ledger.table)
        with self._command_turns.commit():
            done = ledger.commit(decision, machine, call.rewrite, ids)
        if not done:
            races.lose()
            # a lost race loads it
            self._machine, call.newest = None, not self._command_turns.lose(ledger.table, races.lost)
            return None
        self._command_turns.end()
        self.shared.races.committed(self.shard, races.lost, self._command_turns.moved)
        calls.committed(self.shard, races.lost)
        machine.committed()
        if call.wanted:
            self.shared.home.committed(self.shard, races.lost + self._command_turns.moved)
        return decision.results

    def settle_clock(self, instant: int, last: int, table: Table) -> Mapping[str, int]:
        """Checks the clock before a commit to a table of the shard at an instant, after one at ``last`` (DUR-82).

        An instant before ``last`` counts as that, and messages would have the age of the last commit.

        Returns:
            Further application ids of the commit.

        Raises:
            QueueClientError: it is further ahead than the shard ever paused, or behind, and the clock is not
                believed.
        """
        guard = self.shared.guard
        if instant - last <= guard.ahead and not guard.is_behind(instant, last):
            return {}
        with self._at_ledger():
            ledger, reader = self._open_ledger(), self._open_reader()
            reader.refresh()  # others may have sent: what this process knows may be old
            log = reader.table
            last = max(last, ledger.head().committed_at, log.transaction(layout.CLOCK_ID))
            pauses = [each.transaction(layout.PAUSE_ID) for each in (ledger.table, log, table)]
        if instant - last <= max(guard.ahead, max(pauses) * MICROS) and not guard.is_behind(instant, last):
            return {}
        guard.check(instant, last, self._messages)
        return {layout.PAUSE_ID: -(-(instant - last) // MICROS)} if instant > last else {}

    @contextmanager
    def _at_ledger(self) -> Iterator[None]:
        """Holds the ledger and the reader of the log."""
        with self._ledger_lock, shard_races.dropping(self._drop_ledger):
            yield

    def _drop_ledger(self) -> None:
        self._machine = self._ledger = self._reader = None

    def _load_machine(self, newest: bool = False) -> None:
        """Reads the ledger; with ``newest`` its snapshot was loaded within this call."""
        opened = self._ledger is not None and not newest
        ledger = self._open_ledger()
        if opened:
            ledger.table.refresh()
        machine = self._machine = repeated(ledger.table, lambda: ledger.machine(self._newest_log))
        self.shared.grow(int(machine.head.attributes.get("Shards", 1)))

    def _newest_log(self) -> ShardLog:
        """The newest log, read within the call."""
        return self._open_reader().log if self._reader is None else self._reader.refresh()

    def _fresh_machine(self) -> ShardMachine:
        if self._machine is not None:
            ledger = self._open_ledger()
            ledger.table.refresh()
            if not ledger.is_current(self._machine) or self._is_ahead(self._machine):
                self._machine = None
        if self._machine is None:
            self._load_machine()
            assert self._machine is not None
        else:
            self._machine.log = self._newest_log()
        return self._machine

    def _is_ahead(self, machine: ShardMachine) -> bool:
        """Whether a machine has reached an instant that nobody committed, by a clock that was set back since."""
        return self.shared.guard.was_set_back(machine.now) and machine.now > machine.head.committed_at

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._engine.open(self._receipts))
        return self._ledger

    def _open_reader(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self._engine.open(self._messages))
        return self._reader

    def rewrite_ledger(self, now: Now) -> bool:
        """Rewrites the ledger into fewer files if it has more than it needs; returns whether it did."""
        with self._at_ledger():
            machine = self._fresh_machine()
            if not self._open_ledger().has_excess_files(machine):
                return False
        return self.command([Rewrite()], now)[0].error is None

    def announce_append(self, table: Table) -> None:
        """Passes to the reader of the log what a handle of this process has just committed."""
        reader = self._reader
        if reader is not None:
            reader.table.learn(table)

    def _committed_floor(self) -> tuple[int, Callable[[], None]]:
        """The newest floor; and what raises OtherHistory if the ledger was put back since: its floor is lower."""
        with self._at_ledger():
            ledger = self._open_ledger()
            ledger.table.refresh()
            floor = ledger.head().floor_offset

        def confirm() -> None:
            with self._at_ledger():
                ledger.table.confirm()

        return floor, confirm

    def wake(self) -> None:
        """Wakes a long poll; called after every change that this process makes."""
        self.shared.waiters.wake()


def _short(commands: Sequence[Command], results: Sequence[Result]) -> bool:
    """Whether a claim got fewer messages than it requested."""
    return any(
        isinstance(command, Claim) and result.error is None and result.value.message_count < command.max_messages
        for command, result in zip(commands, results, strict=True)
    )
