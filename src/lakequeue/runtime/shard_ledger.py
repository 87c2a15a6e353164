"""The ledger of a shard in this process: commands behind a group commit, and queries on fresh state."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, islice
from math import inf
from typing import TypeVar

import attrs

from lakequeue.errors import DamagedTable, QueueDoesNotExist, RequestThrottled
from lakequeue.model.clock import MICROS
from lakequeue.runtime import shard_races
from lakequeue.runtime.ledger_calls import CommandCommit, PendingCommands
from lakequeue.runtime.ledger_requests import CommonCommit, LedgerRequests, OthersMet, answers
from lakequeue.runtime.shard_table import Now, ShardTable, ShardTables, Shared
from lakequeue.shard.commands import (
    Claim,
    ClaimResult,
    Command,
    MarkEmptying,
    Result,
    Rewrite,
)
from lakequeue.shard.commands import Decision as Decided
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Head
from lakequeue.storage import layout, requests
from lakequeue.storage.cleaning import vacuum_if_busy
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.commit import is_based, lost_races
from lakequeue.storage.engines.commit_failures import StaleSnapshot
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import (
    Answer,
    Answered,
    Committed,
    Decision,
    FoundChange,
    Stale,
    assert_never,
)
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import LogReader, ShardLog
from lakequeue.storage.requests import PostedRequest
from lakequeue.storage.store_failures import first_line

OVERLOOKED = 16
"""After this many claims from a shard without known message groups, a claim reads the log for new groups."""
READ_COMMITS_EVERY = 8
"""One in this many calls of ``is_unattended`` reads the commits, to see if they are claims."""
LATELY = MICROS // 2
"""Microseconds for which ``are_stored`` relies on the last read of the ledger."""
TRUSTED = 10 * MICROS
"""Microseconds for which a wait on an object store relies on its last read of the ledger of an empty shard.

In that time it looks only for new entries of the log. A deletion closes the log before the ledger, so a read of
the ledger in between does not show the deletion yet.
"""
_log = logging.getLogger("lakequeue")
_looks = count(1)
_T = TypeVar("_T")


def new_look() -> int:
    """Returns the number of a look at shards that begins now. Later looks have higher numbers."""
    return next(_looks)


class ShardLedger(ShardTable[PendingCommands, list[Result]]):
    """Decides commands on the newest ledger, and commits their changes. Thread-safe.

    Has handles on the ledger, and on the log that the ledger's runs refer to.
    """

    def __init__(self, tables: ShardTables, shared: Shared) -> None:
        super().__init__(tables, shared, tables.receipts)
        self._ledger: Ledger | None = None
        self._log: LogReader | None = None
        self._machine: ShardMachine | None = None
        self._unattended_calls = 0
        self._claims = 0  # since the log was refreshed
        self._looked, self._committed = 0, False
        self._requests = LedgerRequests(tables.receipts, tables.engine.commits_alone)
        if self._requests.possible:
            self._turns = self._requests.turns
        self._read_at: int | None = None  # when the ledger was read for the last answer, by the caller's clock

    def command(self, commands: Sequence[Command], now: Now, look: float = inf) -> list[Result]:
        """Applies commands in one commit, maybe together with commands of other callers. Returns the results.

        ``look``: number of a look. If that look has read this shard, the commands do not read it again.

        Raises:
            RequestThrottled: too many lost races; nothing was changed.
        """
        return self._group.submit(PendingCommands(commands, now, look))

    def look(self, number: int) -> None:
        """Reads the newest ledger and log, for later commands and queries with this number.

        If this process committed since the last look, the look also confirms both. The next commit then need not.
        """
        with self._held():
            sure, self._committed = self._committed, False
            self._fresh_machine(sure)
            self._looked = max(number, self._looked)

    def next_event(self, now: int) -> int | None:
        """Returns when a claim may find more messages, by the state in memory; None if no instant is known."""
        with self._held():
            return None if self._machine is None else self._machine.next_event(now)

    def is_drained(self, now: int) -> bool:
        """True if a claim would surely find nothing: the last claim took everything, and nothing came since.

        Reads no table. Checks only if ledger or log have newer entries.
        """
        with self._held():
            machine, log = self._machine, self._open_log()
            if machine is None or log.advance().end != machine.log.end or not machine.is_drained(now):
                return False
            return not any(_has_news(table) for table in (self._open_ledger().table, log.table))

    def is_left_empty(self, now: int) -> bool:
        """True if a shard on an object store was empty at a recent read of its ledger, and no message came since.

        Checks only for the next entry of the log, because only a send can bring messages to an empty shard.
        """
        with self._held():
            machine, log, read_at = self._machine, self._open_log(), self._read_at
            if log.table.folder.local is not None or machine is None or read_at is None:
                return False
            if not 0 <= now - read_at < TRUSTED:
                return False
            return log.advance().end == machine.log.end and machine.is_empty and not _has_news(log.table)

    def known_tokens(self, now: int) -> int | None:
        """Returns how many messages the rate limit allows, by the ledger in memory.

        None if the queue has no limit, or the ledger was not read.
        """
        with self._held():
            return None if self._machine is None else self._machine.tokens(now)

    def activity(self) -> list[int]:
        """Returns the newest versions of ledger and messages, which change with every commit."""
        with self._held():
            return [table.version for table in self._newest_tables()]

    def newest_races(self, most: int) -> tuple[int, int]:
        """Returns the number of newest commits of all processes to the shard, and of races lost before them.

        Reads up to ``most`` commits of ledger and log each.
        """
        with self._held():
            found = [lost_races(table.folder, table.version, most) for table in self._newest_tables()]
        commits, lost = zip(*found, strict=True)
        return sum(commits), sum(lost)

    def size(self) -> tuple[int, int, int]:
        """Returns the number of runs and of files of the newest ledger, and the instant of its last commit.

        The instant is in microseconds.
        """
        with self._held():
            machine = self._fresh_machine()
            return machine.run_count, len(self._open_ledger().table.files()), machine.head.committed_at

    def is_unattended(self) -> bool:
        """True if no process claimed new messages since this process last read the ledger. At first False.

        Most calls assume that any commit was a claim, because reading all commits of a busy shard took 0.3 s.
        """
        with self._held():
            table = self._open_ledger().table
            self._unattended_calls += 1
            if self._unattended_calls % READ_COMMITS_EVERY and table.folder.exists(entry_name(table.version + 1)):
                return False
            known = self._machine and self._machine.head.head_offset
            return self._fresh_machine().head.head_offset == known

    @property
    def attributes_version(self) -> int:
        """Version of the queue's attributes at the last decision."""
        machine = self._machine
        return self._requests.attributes_version if machine is None else machine.attributes_version

    def query(self, query: Callable[[ShardMachine], _T], look: float = inf) -> _T:
        """Returns the result of a query on a fresh snapshot of the state machine.

        ``look``: number of a look. If that look has read this shard, the snapshot of the look is fresh enough.

        Raises:
            QueueDoesNotExist: the queue was deleted.
            QueueClientError: messages have expired by a doubtful clock (DUR-82).
        """

        def answered() -> _T:
            looked = self._machine if self._looked >= look else None
            machine = self._fresh_machine() if looked is None or self._is_ahead(looked) else looked
            if machine.head.closed:
                raise QueueDoesNotExist()
            try:
                answer = query(machine)
            except StaleSnapshot:
                self._machine = None  # its log has files that were removed
                raise
            self._check_expiry(machine)
            return answer

        with self._held():
            return self._open_ledger().table.repeated(answered)

    def are_stored(self, offsets: Sequence[int], now: int) -> list[bool]:
        """Returns for each received message True if it is stored, False if it was deleted.

        Reads the ledger at most once, by one request on a store; not at all within half a second of the last read.

        Raises:
            QueueDoesNotExist: the queue was deleted.
        """
        with self._held():
            machine, ledger = self._machine, self._open_ledger()
            if machine is None or self._read_at is None or not 0 <= now - self._read_at < LATELY:
                ledger.table.look()
                self._read_at = now
            if machine is None or not ledger.is_current(machine):
                machine = self._load_machine()
            if machine.head.closed:
                raise QueueDoesNotExist()
            return [machine.stores(offset) for offset in offsets]

    def purged_offset(self) -> int:
        return self.query(lambda machine: machine.head.purged_offset)

    def head(self) -> tuple[Head, Callable[[], None]]:
        """Returns the newest head, and a check that raises ReplacedLog if an older ledger was restored since."""
        with self._held():
            ledger = self._open_ledger()
            ledger.table.refresh()
            head = ledger.head()

        def confirm() -> None:
            with self._held():
                ledger.table.confirm()

        return head, confirm

    def announce_emptying(self, now: Now, known: int) -> int:
        """Commits that the log will be emptied. Returns the mark that links the emptied log to this ledger.

        Args:
            now: the caller's clock.
            known: the mark of the log's last emptying.
        """
        mark = 1 + random.getrandbits(62)
        [result] = self.command([MarkEmptying(mark, known)], now)
        if result.error is not None:
            raise result.error
        return mark

    def log(self) -> ShardLog:
        with self._held():
            return self._newest_log()

    @contextmanager
    def reading(self) -> Iterator[LogReader]:
        """Yields the handle on the log, for reads of its files.

        Does not hold the lock while the caller reads. With the lock, receivers whose messages are already claimed
        would wait until the next commit ends.
        """
        log = self._log  # read once: another thread may let go of it
        if log is None:
            with self._held():
                log = self._open_log()
        with shard_races.dropping(self._drop_log):
            yield log

    def confirm(self) -> None:
        """Checks that ledger and log are still the tables that this process has read.

        Raises:
            ReplacedLog: a backup was restored since, or a repair was made.
        """
        with self._held():
            self._open_ledger().table.confirm()
            self._open_log().table.confirm()

    def learn(self, table: Table) -> None:
        """Passes a commit of another handle to this handle on the log, to save reading it."""
        log = self._log
        if log is not None:
            log.table.learn(table)

    def _known(self) -> tuple[Table | None, bool]:
        ledger = self._ledger  # read once: another thread may let go of it
        return None if ledger is None else ledger.table, False

    def _catch_up(self, stale: bool) -> None:
        if stale:
            with self._held():
                self._fresh_machine()

    def _run(self, groups: Sequence[PendingCommands]) -> list[list[Result] | BaseException]:
        with self._held():
            call = CommandCommit.of(groups, self._looked)
            self._claims += call.wanted > 0
            results = iter(self._results(call))
        return [list(islice(results, len(group.commands))) for group in groups]

    def _requested(self, call: CommandCommit) -> list[Result]:
        """Posts commands as a request, which this process or another process commits with further requests."""
        ledger, home = self._open_ledger(), self._shared.home if call.wanted else None
        posted = self._requests.post(ledger.table, call.commands)
        try:
            decide, busy = partial(self._decide_for_all, call, posted), "too many lost races"
            done = self._transact(ledger.table, decide, busy=busy, fresh=True, home=home)
        except Exception as error:
            failure = requests.failure(error)
            raise failure from (None if failure is error else error)
        # A closed shard only answers. Without a machine, another process committed them.
        if isinstance(done, Committed) and self._machine is not None:
            self._machine.committed()
            self._committed = True
        self._read_at = None if self._machine is None else self._machine.now
        return done.value[: len(call.commands)]

    def _decide_for_all(self, call: CommandCommit, posted: PostedRequest, lost: int) -> Decision[list[Result]]:
        """Returns the results of a posted request, or decides it with the requests of other processes."""
        if lost:
            self._machine = None  # it has what was not committed
        ledger, log = self._open_ledger(), self._open_log()

        def read() -> None:
            if not self._is_known():
                ledger.table.repeated(lambda: ledger.table.rows(ledger.table.files()))
            log.refresh(sure=True)

        turn = self._requests.turn(ledger.table, posted, read)
        if not isinstance(turn, CommonCommit):
            self._machine = None  # the ledger has moved on
            return FoundChange(turn)
        version = ledger.table.version
        if not self._is_known():
            self._load_machine(lambda: log.log if ledger.table.version == version else self._newest_log())
        if ledger.table.version != version:
            return Stale()
        try:
            return self._decide(call.with_others(posted, turn), 0)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            if not turn.others:
                raise
            _log.warning("requests to %s cannot be decided: %s", ledger.table.path, first_line(error))
            self._load_machine()
            return self._decide(call.with_others(posted, CommonCommit(())), 0)

    def _results(self, call: CommandCommit) -> list[Result]:
        requested = self._requests.takes(call.commands)
        if not requested:
            try:
                results = self._decided_here(call)
            except OthersMet:
                requested = True
        if requested:
            results = self._requested(call)
        self._requests.note(call.commands, results)
        if self._machine is None and self._requests.dry:
            with suppress(Exception):  # a receive that waits only wants to know the next event
                self._read_at = self._load_machine().now
        return results

    def _decided_here(self, call: CommandCommit) -> list[Result]:
        """Commits commands without requests of other processes."""
        fresh, home = call.looked or self._ledger is None, self._shared.home if call.wanted else None
        ledger, busy = self._open_ledger(), "too many lost races; nothing was changed"
        try:
            outcome = self._transact(ledger.table, partial(self._decide, call), busy=busy, fresh=fresh, home=home)
        except RequestThrottled:
            self._machine = None  # it has what was not committed
            raise
        machine = self._machine
        assert machine is not None
        match outcome:
            case Committed(results):
                machine.committed()
                self._committed = True
                if not outcome.lost:
                    self._requests.won()
                vacuum_if_busy(ledger.table, layout.RECEIPTS_RETENTION)
            case Answered(results):
                self._check_expiry(machine)
            case _:
                assert_never(outcome)
        self._read_at = machine.now
        return results

    def _decide(self, call: CommandCommit, lost: int) -> Decision[list[Result]]:
        """Decides on the loaded snapshot of the ledger, with a log that is new enough for it."""
        if lost:
            self._machine = None  # it has what was not committed
            self._requests.lost(call.commands)
        machine = self._machine
        if machine is None or not self._is_known():
            machine = self._load_machine()
        reread = self._read_log(call, machine)
        try:
            decision = machine.decide(call.commands, call.now())
        except OSError:
            self._machine = None
            raise
        known = reread or call.looked
        if not known and _short(call.commands, decision.results) and self._log_grew(machine, decision):
            return Stale()
        if call.asked and not decision.commit:  # or another process would apply the request later
            decision = attrs.evolve(machine.decide([Rewrite()], machine.now), results=decision.results)
        if not decision.commit:
            return Answer(decision.results)
        if not reread and not is_based(self._open_log().table):
            self._machine = None  # the log has other messages now
            return Stale()
        if any(isinstance(result.value, ClaimResult) and result.value.moving for result in decision.results):
            self._shared.guard.check_now(self._tables.messages)  # else the dead letters could not be sent
        ids = self.settle_clock(decision.head.committed_at, machine.head.committed_at, self._open_ledger().table)
        told = answers(call.asked, decision.results, machine.attributes_version) if call.asked else None
        return self._open_ledger().change(decision, machine, call.rewrite, ids, told)

    def _read_log(self, call: CommandCommit, machine: ShardMachine) -> bool:
        """Attaches the known log to a machine. If it may be too old, reads the newest log and returns True."""
        reader = self._open_log()
        machine.log = reader.advance()
        if call.looked:
            return False
        # groups: they may hide any number of messages, a delete searches for the group's next message, and
        # other groups may have sent
        overlooked = self._claims >= OVERLOOKED and machine.may_be_grouped
        few = machine.log.end - machine.head.head_offset < call.wanted
        if not (call.whole or overlooked or machine.grouped or few):
            return False
        machine.log = reader.refresh()
        self._claims = 0
        return True

    def _log_grew(self, machine: ShardMachine, decision: Decided) -> bool:
        """True if there are newer messages that may be visible while all known messages are hidden."""
        log = self._open_log().refresh()
        if log.end == machine.log.end:
            return False
        if decision.commit:
            self._machine = None
        else:
            machine.log = log
        return True

    def settle_clock(self, instant: int, last: int, table: Table) -> Mapping[str, int]:
        """Checks the clock before a commit to the shard at ``instant``, after one at ``last`` (DUR-82).

        An instant before ``last`` counts as ``last``, so new messages would get the send time of the last commit.

        Returns:
            Further application ids of the commit.

        Raises:
            QueueClientError: a doubtful clock is ahead by more than the shard's longest pause, or behind.
        """
        if self._is_usual(instant, last, 0):
            return {}
        last, pause = self._last_commit(last, table)
        if self._is_usual(instant, last, pause):
            return {}
        self._shared.guard.check(instant, last, self._tables.messages)
        return {layout.PAUSE_ID: -(-(instant - last) // MICROS)} if instant > last else {}

    def _check_expiry(self, machine: ShardMachine) -> None:
        """Raises the error of ``settle_clock`` if messages expired without a commit, by a doubtful clock."""
        guard, now, last = self._shared.guard, machine.now, machine.head.committed_at
        if not machine.expired or self._is_usual(now, last, 0) or not guard.is_doubted():
            return
        last, pause = self._last_commit(last, self._open_ledger().table)
        if not self._is_usual(now, last, pause):
            guard.check_expiry(now, last, self._tables.messages)

    def _is_usual(self, instant: int, last: int, pause: int) -> bool:
        """True if an instant is plausible after a commit at ``last``, given the longest pause between commits."""
        guard = self._shared.guard
        return instant - last <= max(guard.ahead, pause) and not guard.is_behind(instant, last)

    def _last_commit(self, last: int, table: Table) -> tuple[int, int]:
        """Returns the instant of the last commit, and the longest pause between two commits, in microseconds."""
        with self._held():
            ledger, reader = self._open_ledger(), self._open_log()
            reader.refresh()  # others may have sent: what this process knows may be old
            log = reader.table
            last = max(last, ledger.head().committed_at, log.transaction(layout.CLOCK_ID))
            pauses = [each.transaction(layout.PAUSE_ID) for each in (ledger.table, log, table)]
        return last, max(pauses) * MICROS

    def _drop(self) -> None:
        self._machine = self._ledger = self._log = None
        self._requests.attributes_version = 0

    def _drop_log(self) -> None:
        self._log = None

    def _is_known(self) -> bool:
        """Returns True if the machine has the state of the loaded snapshot."""
        machine = self._machine
        return machine is not None and not self._is_ahead(machine) and self._open_ledger().is_current(machine)

    def _load_machine(self, log: Callable[[], ShardLog] | None = None) -> ShardMachine:
        """Builds a machine from the loaded snapshot of the ledger. ``log``: the newest log, if it is known."""
        ledger = self._open_ledger()
        try:
            machine = ledger.table.repeated(lambda: ledger.machine(log or self._newest_log))
        except DamagedTable:
            ledger.table.confirm()  # a log that was put back may be shorter than the ledger read before that
            machine = ledger.table.repeated(lambda: ledger.machine(self._newest_log))
        self._machine = machine
        if (grow := self._shared.grow()) is not None:
            grow(int(machine.head.attributes.get("Shards", 1)))
        return machine

    def _newest_log(self, sure: bool = False) -> ShardLog:
        """Returns the newest log, read within this call."""
        return self._open_log().log if self._log is None else self._log.refresh(sure)

    def _fresh_machine(self, sure: bool = False) -> ShardMachine:
        """Returns a machine of the newest ledger and log. With ``sure``, also makes the checks of ``confirm``."""
        ledger, machine = self._ledger, self._machine
        if ledger is not None:
            (ledger.table.confirm if sure else ledger.table.refresh)()
        if ledger is None or machine is None or self._is_ahead(machine) or not ledger.is_current(machine):
            return self._load_machine()
        machine.log = self._newest_log(sure)
        return machine

    def _is_ahead(self, machine: ShardMachine) -> bool:
        """True if a machine has reached an uncommitted instant by a clock that was set back since."""
        return self._shared.guard.was_set_back(machine.now) and machine.now > machine.head.committed_at

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._tables.engine.open(self._tables.receipts))
        return self._ledger

    def _open_log(self) -> LogReader:
        if self._log is None:
            self._log = LogReader(self._tables.engine.open(self._tables.messages))
        return self._log

    def _newest_tables(self) -> list[Table]:
        tables = [self._open_ledger().table, self._open_log().table]
        for table in tables:
            table.refresh()
        return tables

    def rewrite(self, now: Now) -> bool:
        """Rewrites the ledger, and returns True, if it has too many files."""
        with self._held():
            machine = self._fresh_machine()
            if not self._open_ledger().has_excess_files(machine):
                return False
        return self.command([Rewrite()], now)[0].error is None


def _has_news(table: Table) -> bool:
    """True if a table's log has an entry after the known entries. Takes one request on an object store."""
    if table.folder.local is not None:
        return table.folder.exists(entry_name(table.version + 1))
    try:
        table.state.next()
    except FileNotFoundError:
        return False
    return True


def _short(commands: Sequence[Command], results: Sequence[Result]) -> bool:
    return any(
        isinstance(command, Claim) and result.error is None and result.value.message_count < command.max_messages
        for command, result in zip(commands, results, strict=True)
    )
