"""The ledger of a shard in this process: commands behind a group commit, and queries on fresh state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import attrs

from lakequeue.errors import QueueDoesNotExist, RequestThrottled
from lakequeue.runtime import calls, shard_races
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.shard_races import RaceCounts
from lakequeue.runtime.waiters import Waiters
from lakequeue.shard.commands import Claim, Command, Counts, Expire, Purge, Result, Rewrite, SetAttributes
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.commit import lost_races
from lakequeue.storage.engines.interface import Engine, StaleSnapshot, Table
from lakequeue.storage.engines.retry import LOADS, Races, repeated
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
        oldest = counts.oldest_offset
        age = None if oldest is None else max(now, machine.head.committed_at) - machine.log.sent_at(oldest)
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
    grow: Callable[[int], None] = lambda shards: None
    """Called with the number of shards that a ledger knows of."""

    @classmethod
    def of(cls, shards: int, queue: str = "", grow: Callable[[int], None] = lambda shards: None) -> Shared:
        home = HomeShard(shards)
        return cls(Waiters(), home, HomeShard(shards, home.current), RaceCounts(queue), grow)


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
        wanted = sum(command.max_messages for command in commands if isinstance(command, Claim))
        # these apply to every message sent before the call
        whole = any(isinstance(command, (Purge, SetAttributes, Expire)) for command in commands)
        rewrite = any(isinstance(command, Rewrite) for command in commands)
        self._claims += wanted > 0
        fresh, races = False, Races()
        newest = False  # whether the ledger's snapshot was loaded within this call
        for _ in races:
            if self._machine is None:
                self._load_machine(newest)
                newest = False
                fresh = True
            machine, ledger = self._machine, self._open_ledger()
            assert machine is not None
            machine.log = self._open_reader().advance()
            # groups: they may hide any number of messages, a delete searches for the group's next message, and
            # other groups may have sent
            overlooked = self._claims >= OVERLOOKED and machine.may_be_grouped
            reread = whole or overlooked or machine.grouped or machine.log.end - machine.head.head_offset < wanted
            if reread:
                machine.log = self._open_reader().refresh()
                self._claims = 0
            try:
                decision = machine.decide(commands, now())
            except OSError as error:
                if fresh and not isinstance(error, StaleSnapshot):
                    raise
                self._machine = None  # files of its log were merged, dropped or erased, and removed, since
                continue
            if not reread and _short(commands, decision.results):
                # the known log has enough messages, but some are hidden: newer ones may be visible
                log = self._open_reader().refresh()
                if log.end != machine.log.end:
                    if decision.commit:
                        self._machine = None
                    else:
                        machine.log = log
                    continue
            if not fresh and not all(result.changed for result in decision.results):
                # an answer without a commit must come from a snapshot at least as new as the call
                ledger.table.refresh()
                fresh = True
                if ledger.epoch != machine.head.epoch:
                    self._machine = None
                    continue
            if not decision.commit:
                return decision.results
            with self._command_turns.commit():
                done = ledger.commit(decision, machine, rewrite)
            if done:
                self._command_turns.end()
                lost = races.lost + self._command_turns.moved
                self.shared.races.committed(self.shard, races.lost, self._command_turns.moved)
                calls.committed(self.shard, races.lost)
                machine.committed()
                if wanted:
                    self.shared.home.committed(self.shard, lost)
                return decision.results
            races.lose()
            # a lost race loads it
            self._machine, newest = None, not self._command_turns.lose(ledger.table, races.lost)
        calls.gave_up(races.lost)
        return None

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
            if ledger.epoch != self._machine.head.epoch:
                self._machine = None
        if self._machine is None:
            self._load_machine()
            assert self._machine is not None
        else:
            self._machine.log = self._newest_log()
        return self._machine

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

    def _committed_floor(self) -> int:
        with self._at_ledger():
            ledger = self._open_ledger()
            ledger.table.refresh()
            return ledger.head().floor_offset

    def wake(self) -> None:
        """Wakes a long poll; called after every change that this process makes."""
        self.shared.waiters.wake()


def _short(commands: Sequence[Command], results: Sequence[Result]) -> bool:
    """Whether a claim got fewer messages than it requested."""
    return any(
        isinstance(command, Claim) and result.error is None and result.value.message_count < command.max_messages
        for command, result in zip(commands, results, strict=True)
    )
