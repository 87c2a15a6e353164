"""A process's handles on a shard's ledger and log. Answers queries from the newest state of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import TypeVar

from lakequeue.errors import DamagedTable, QueueDoesNotExist
from lakequeue.model.clock import MICROS
from lakequeue.runtime import shard_races
from lakequeue.runtime.group_commit import Answer, Request
from lakequeue.runtime.shard_table import ShardTable
from lakequeue.runtime.shared_state import ShardTables, Shared
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Head
from lakequeue.storage import layout
from lakequeue.storage.delta_log import has_entry
from lakequeue.storage.engines.commit_failures import StaleSnapshot
from lakequeue.storage.engines.commit_tokens import lost_races
from lakequeue.storage.engines.point import Table
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import LogReader, ShardLog

READ_COMMITS_EVERY = 8
"""One in this many calls of ``is_unattended`` reads new commits. The other calls assume that these are claims."""
LATELY = MICROS // 2
"""Maximum age, in microseconds, of the read of the ledger on which ``are_stored`` relies."""
TRUSTED = 10 * MICROS
"""After a read found a shard on an object store empty, a wait assumes so for this many microseconds."""
_looks = count(1)
_T = TypeVar("_T")


def new_look() -> int:
    """Returns the sequence number of a new read by ``look_at``. Later reads have higher numbers."""
    return next(_looks)


class ShardQueries(ShardTable[Request, Answer]):
    """Answers queries about a shard from its ledger and log. Keeps the shard's state machine. Thread-safe."""

    def __init__(self, tables: ShardTables, shared: Shared) -> None:
        super().__init__(tables, shared, tables.receipts)
        self._ledger: Ledger | None = None
        self._log: LogReader | None = None
        self._machine: ShardMachine | None = None
        self._unattended_calls = 0
        self._looked = 0
        """Sequence number of the last read of this shard by ``look``."""
        self._committed_since_look = False
        self._read_at: int | None = None  # when the ledger was read for the last answer, by the caller's clock

    def look(self, number: int) -> None:
        """Reads the newest ledger and log. Later calls that pass ``number`` as ``look`` may use this state."""
        with self._held():
            sure, self._committed_since_look = self._committed_since_look, False
            self._fresh_machine(sure)
            self._looked = max(number, self._looked)

    def next_event(self, now: int) -> int | None:
        """The instant from which a claim may find more messages, judged by state in memory. None if unknown."""
        with self._held():
            try:
                return None if self._machine is None else self._machine.next_event(now)
            except StaleSnapshot:
                self._machine = None  # its log has files that were removed
                return None

    def known_tokens(self, now: int) -> int | None:
        """Returns how many messages the rate limit allows, by the state in memory. Returns None if unknown."""
        with self._held():
            return None if self._machine is None else self._machine.tokens(now)

    def took_all(self) -> bool:
        """True if the last claim took all messages, by the state in memory."""
        with self._held():
            return self._machine is not None and self._machine.took_all

    def is_drained(self, now: int) -> bool:
        """True if a claim would find nothing: the last claim took all messages, and nothing has changed since."""
        with self._held():
            machine, log = self._machine, self._open_log()
            if machine is None or log.advance().end != machine.log.end or not machine.is_drained(now):
                return False
            return not any(_has_news(table) for table in (self._open_ledger().table, log.table))

    def is_left_empty(self, now: int) -> bool:
        """True if a recent read found the shard empty, and the log is unchanged. Always False on local disks."""
        with self._held():
            machine, log, read_at = self._machine, self._open_log(), self._read_at
            if log.table.folder.local is not None or machine is None or read_at is None:
                return False
            if not 0 <= now - read_at < TRUSTED:
                return False
            return log.advance().end == machine.log.end and machine.is_empty and not _has_news(log.table)

    def is_unattended(self) -> bool:
        """True if certainly no other process has claimed messages since the last read. May wrongly be False."""
        with self._held():
            table = self._open_ledger().table
            self._unattended_calls += 1
            if self._unattended_calls % READ_COMMITS_EVERY and has_entry(table.folder, table.version + 1):
                return False
            known = self._machine and self._machine.head.head_offset
            return self._fresh_machine().head.head_offset == known

    def activity(self) -> list[int]:
        """Returns the newest versions of the ledger and the log. Every commit changes one of these versions."""
        with self._held():
            return [table.version for table in self._newest_tables()]

    def newest_races(self, most: int) -> tuple[int, int]:
        """Counts commits and lost races in the newest ``most`` Delta log entries of the ledger and of the log."""
        with self._held():
            found = [lost_races(table.folder, table.version, most) for table in self._newest_tables()]
        commits, lost = zip(*found, strict=True)
        return sum(commits), sum(lost)

    def size(self) -> tuple[int, int, int]:
        """Returns the ledger's number of runs, its number of files, and its last commit in microseconds."""
        with self._held():
            machine = self._fresh_machine()
            return machine.run_count, len(self._open_ledger().table.files()), machine.head.committed_at

    def query(self, query: Callable[[ShardMachine], _T], look: float = inf) -> _T:
        """Returns the result of the function ``query`` on the newest state. ``look`` is the number of a read by
        ``look_at``: the state may be as old as that read.

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
        """True for each offset whose message is stored. The state may be 0.5 s old. Raises QueueDoesNotExist."""
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
        """Returns the newest head, and a function that raises ReplacedLog if called after the log was restored."""
        with self._held():
            ledger = self._open_ledger()
            ledger.table.refresh()
            head = ledger.head()

        def confirm() -> None:
            with self._held():
                ledger.table.confirm()

        return head, confirm

    def log(self) -> ShardLog:
        with self._held():
            return self._newest_log()

    @contextmanager
    def reading(self) -> Iterator[LogReader]:
        """Yields the handle on the log. Inside the block, the caller reads the log's files without the lock."""
        log = self._log  # read once: another thread may set it to None
        if log is None:
            with self._held():
                log = self._open_log()
        with shard_races.dropping(self._drop_log):
            yield log

    def confirm(self) -> None:
        """Raises ReplacedLog if the ledger or the log was restored or repaired since this process read it."""
        with self._held():
            self._open_ledger().table.confirm()
            self._open_log().table.confirm()

    def learn(self, table: Table) -> None:
        """Adopts the last commit of ``table``, another handle on the log. The commit need not be read again."""
        log = self._log
        if log is not None:
            log.table.learn(table)

    def check_clock(self, instant: int, last: int, table: Table) -> Mapping[str, int]:
        """Checks the clock before a commit at ``instant`` (DUR-82). ``last`` is the instant of the shard's last
        commit. A clock that is behind matters, too, because messages would get the send time ``last``. Returns
        application ids that the commit must also set.

        Raises:
            QueueClientError: the clock is behind, or ahead by more than the shard's longest pause between commits.
        """
        if self._is_usual(instant, last, 0):
            return {}
        last, pause = self._last_commit(last, table)
        if self._is_usual(instant, last, pause):
            return {}
        self._shared.guard.check(instant, last, self._tables.messages)
        return {layout.PAUSE_ID: -(-(instant - last) // MICROS)} if instant > last else {}

    def _check_expiry(self, machine: ShardMachine) -> None:
        """Raises QueueClientError if messages count as expired only because the clock is wrong."""
        guard, now, last = self._shared.guard, machine.now, machine.head.committed_at
        if not machine.expired or self._is_usual(now, last, 0) or not guard.is_doubted():
            return
        last, pause = self._last_commit(last, self._open_ledger().table)
        if not self._is_usual(now, last, pause):
            guard.check_expiry(now, last, self._tables.messages)

    def _is_usual(self, instant: int, last: int, pause: int) -> bool:
        """True if ``instant`` is neither unusually long after ``last`` nor clearly before ``last``."""
        guard = self._shared.guard
        return instant - last <= max(guard.ahead, pause) and not guard.is_behind(instant, last)

    def _last_commit(self, last: int, table: Table) -> tuple[int, int]:
        """Returns the last commit's instant, and the longest pause between commits, in microseconds."""
        with self._held():
            ledger, reader = self._open_ledger(), self._open_log()
            reader.refresh()  # others may have sent: what this process knows may be old
            log = reader.table
            last = max(last, ledger.head().committed_at, log.transaction(layout.CLOCK_ID))
            pauses = [each.transaction(layout.PAUSE_ID) for each in (ledger.table, log, table)]
        return last, max(pauses) * MICROS

    def _known(self) -> tuple[Table | None, bool]:
        ledger = self._ledger  # read once: another thread may set it to None
        return None if ledger is None else ledger.table, False

    def _catch_up(self, stale: bool) -> None:
        if stale:
            with self._held():
                self._fresh_machine()

    def _drop(self) -> None:
        self._machine = self._ledger = self._log = None

    def _drop_log(self) -> None:
        self._log = None

    def _is_known(self) -> bool:
        machine = self._machine
        return machine is not None and not self._is_ahead(machine) and self._open_ledger().is_current(machine)

    def _is_ahead(self, machine: ShardMachine) -> bool:
        """True if the clock was set back after the last decision of the state machine, without a commit since."""
        return self._shared.guard.was_set_back(machine.now) and machine.now > machine.head.committed_at

    def _load_machine(self, log: Callable[[], ShardLog] | None = None) -> ShardMachine:
        """Builds the state machine from the loaded ledger and the result of ``log``, by default the newest log."""
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

    def _fresh_machine(self, sure: bool = False) -> ShardMachine:
        """Returns the newest state machine. If ``sure``, checks that neither table was replaced."""
        ledger, machine = self._ledger, self._machine
        if ledger is not None:
            (ledger.table.confirm if sure else ledger.table.refresh)()
        if ledger is None or machine is None or self._is_ahead(machine) or not ledger.is_current(machine):
            return self._load_machine()
        machine.log = self._newest_log(sure)
        return machine

    def _newest_log(self, sure: bool = False) -> ShardLog:
        return self._open_log().log if self._log is None else self._log.refresh(sure)

    def _newest_tables(self) -> list[Table]:
        tables = [self._open_ledger().table, self._open_log().table]
        for table in tables:
            table.refresh()
        return tables

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._tables.engine.open(self._tables.receipts))
        return self._ledger

    def _open_log(self) -> LogReader:
        if self._log is None:
            self._log = LogReader(self._tables.engine.open(self._tables.messages))
        return self._log


def _has_news(table: Table) -> bool:
    """True if a table's Delta log has an unread entry. Takes one request on an object store."""
    if table.folder.local is not None:
        return has_entry(table.folder, table.version + 1)
    try:
        table.state.next()
    except FileNotFoundError:
        return False
    return True
