"""The ledger of a shard in this process. Commands to the ledger go through a group commit."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf

import attrs

from lakequeue.errors import RequestThrottled
from lakequeue.runtime.ledger_calls import CommandCommit, PendingCommands
from lakequeue.runtime.ledger_requests import CommonCommit, LedgerRequests, OthersMet, answers
from lakequeue.runtime.shard_queries import ShardQueries
from lakequeue.runtime.shard_table import Now
from lakequeue.runtime.shared_state import ShardTables, Shared
from lakequeue.shard.commands import Claim, ClaimResult, Command, MarkEmptying, Result, Rewrite
from lakequeue.shard.commands import Decision as Decided
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import layout, requests
from lakequeue.storage.cleaning import vacuum_if_busy
from lakequeue.storage.engines.commit import is_base_in_log
from lakequeue.storage.engines.transaction import (
    Answer,
    Answered,
    Committed,
    Decision,
    FoundChange,
    Stale,
    assert_never,
)
from lakequeue.storage.requests import PostedRequest
from lakequeue.storage.store_failures import first_line

OVERLOOKED = 16
"""Maximum number of claims in a row that do not read the log. Applies only if messages can have groups."""
_log = logging.getLogger("lakequeue")


class ShardLedger(ShardQueries[PendingCommands, list[Result]]):
    """Decides commands on the newest ledger and log of a shard, and commits the changes. Thread-safe."""

    def __init__(self, tables: ShardTables, shared: Shared) -> None:
        super().__init__(tables, shared)
        self._claims = 0  # since the log was refreshed
        self._requests = LedgerRequests(tables.receipts, tables.engine.commits_alone)
        if self._requests.possible:
            self._turns = self._requests.turns

    def command(self, commands: Sequence[Command], now: Now, look: float = inf) -> list[Result]:
        """Applies commands, in one commit with the commands of concurrent calls. Reads the shard first, unless a
        call of ``look_at`` has already read it; ``look`` is the number that this call returned. Raises
        RequestThrottled after too many lost races.
        """
        return self._group.submit(PendingCommands(commands, now, look))

    @property
    def attributes_version(self) -> int:
        """Version of the queue's attributes that this shard used for the last decision."""
        machine = self._machine
        return self._requests.attributes_version if machine is None else machine.attributes_version

    def announce_emptying(self, now: Now, known: int) -> int:
        """Announces in the ledger that bodies will be removed from the log. Returns a random number that
        identifies the removal. ``known`` is the number of the log's previous removal, or 0 if there was none.
        """
        mark = 1 + random.getrandbits(62)
        [result] = self.command([MarkEmptying(mark, known)], now)
        if result.error is not None:
            raise result.error
        return mark

    def rewrite(self, now: Now) -> bool:
        """Rewrites the ledger if the ledger has too many files. Returns True if the ledger was rewritten."""
        with self._held():
            machine = self._fresh_machine()
            if not self._open_ledger().has_excess_files(machine):
                return False
        return self.command([Rewrite()], now)[0].error is None

    def _run(self, groups: Sequence[PendingCommands]) -> list[list[Result] | BaseException]:
        with self._held():
            call = CommandCommit.of(groups, self._looked)
            self._claims += call.wanted > 0
            results = iter(self._results(call))
        return [list(islice(results, len(group.commands))) for group in groups]

    def _results(self, call: CommandCommit) -> list[Result]:
        if self._ledger is not None:
            self._requests.heed(self._ledger.table)
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

    def _requested(self, call: CommandCommit) -> list[Result]:
        """Posts commands as a request. Any process may commit the request, together with other requests."""
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
            self._committed_since_look = True
        self._read_at = None if self._machine is None else self._machine.now
        return done.value[: len(call.commands)]

    def _decide_for_all(self, call: CommandCommit, posted: PostedRequest, lost: int) -> Decision[list[Result]]:
        """Returns the results of the request ``posted`` if another process has committed it. Otherwise decides the
        commands of ``posted``, together with the requests of other processes.
        """
        ledger, log = self._open_ledger(), self._open_log()
        if lost:
            self._machine = None  # it has changes that were not committed
            self._requests.ask(ledger.table)

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

    def _decided_here(self, call: CommandCommit) -> list[Result]:
        """Commits the commands of this process, without requests of other processes."""
        fresh, home = call.looked or self._ledger is None, self._shared.home if call.wanted else None
        ledger, busy = self._open_ledger(), "too many lost races; nothing was changed"
        try:
            outcome = self._transact(ledger.table, partial(self._decide, call), busy=busy, fresh=fresh, home=home)
        except RequestThrottled:
            self._machine = None  # it has changes that were not committed
            raise
        machine = self._machine
        assert machine is not None
        match outcome:
            case Committed(results):
                machine.committed()
                self._committed_since_look = True
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
        """Decides commands on the ledger, after reading the log if it may be old. ``lost`` counts lost races."""
        if lost:
            self._machine = None  # it has changes that were not committed
            self._requests.lost(self._open_ledger().table, call.commands)
        machine, opens = self._machine, self._machine is None and self._log is None
        if machine is None or not self._is_known():
            machine = self._load_machine()
        reread = opens or self._read_log(call, machine)
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
        if not reread and not is_base_in_log(self._open_log().table):
            self._machine = None  # the log has other messages now
            return Stale()
        if any(isinstance(result.value, ClaimResult) and result.value.moving for result in decision.results):
            self._shared.guard.check_now(self._tables.messages)  # else the dead letters could not be sent
        ids = self.check_clock(decision.head.committed_at, machine.head.committed_at, self._open_ledger().table)
        told = answers(call.asked, decision.results, machine.attributes_version) if call.asked else None
        return self._open_ledger().change(decision, machine, call.rewrite, ids, told)

    def _read_log(self, call: CommandCommit, machine: ShardMachine) -> bool:
        """Gives the machine the known log. If this log may be too old, reads the newest log, and returns True."""
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
        """Reads the log. Returns True if the log has grown, so that a claim may find new messages."""
        log = self._open_log().refresh()
        if log.end == machine.log.end:
            return False
        if decision.commit:
            self._machine = None
        else:
            machine.log = log
        return True

    def _drop(self) -> None:
        super()._drop()
        self._requests.attributes_version = 0


def _short(commands: Sequence[Command], results: Sequence[Result]) -> bool:
    return any(
        isinstance(command, Claim) and result.error is None and result.value.message_count < command.max_messages
        for command, result in zip(commands, results, strict=True)
    )
