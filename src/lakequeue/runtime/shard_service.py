"""One shard in this process: its sender, its ledger and its readers, each behind a group commit.

There is one ``ShardService`` per root, queue, shard and engine in a process, shared by all objects, so
that threads never race each other for a commit, only other processes do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import attrs
import pyarrow as pa

from lakequeue.errors import QueueClientError, QueueDoesNotExist, QueueServiceError, RequestThrottled
from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime import calls
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.waiters import Waiters
from lakequeue.shard import (
    Claim,
    Command,
    Counts,
    Expire,
    Purge,
    Result,
    Rewrite,
    SetAttributes,
    ShardMachine,
)
from lakequeue.storage import layout
from lakequeue.storage.engines.commit import StaleAttributes, first_line
from lakequeue.storage.engines.interface import Engine, StaleSnapshot
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.retry import Races
from lakequeue.storage.engines.turns import Turns
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.append import Appended, Appender, NewMessage
from lakequeue.storage.messages.body_cache import BodyCache
from lakequeue.storage.messages.dedup_window import WINDOW, DedupWindow, Key, dedup_key
from lakequeue.storage.messages.merge_segments import MergeCounts, merge_all, merge_recent
from lakequeue.storage.messages.read import LogReader, ShardLog

PATIENCE = 1
"""Lost races after which a batch keeps other committers out: a Spark commit takes a second to decide, and
would never get in between those of a busy point engine."""
ALONE_PATIENCE = 2.0
"""Seconds that it waits for that: another one may be stopped in a commit, and those go on together with it."""
LOADS = 3
"""Tries to read the newest ledger that may fail before its caller learns of it."""
ATTEMPTS = 60
"""Lost races of one batch before its callers get RequestThrottled (ERR-9)."""

Now = Callable[[], int]
"""The caller's clock in microseconds, asked for each decision: a lost race may outlast a timeout (RCV-4)."""

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")


@attrs.frozen
class _Send:
    messages: Sequence[NewMessage]
    now: Now
    attributes: QueueAttributes
    attributes_version: int


@attrs.frozen
class _Commands:
    commands: Sequence[Command]
    now: Now


class Placed(NamedTuple):
    """Where a message lies: the one that was sent, or the one that it repeats (DDP-8)."""

    offset: int
    message_id: str


class ShardDepth(NamedTuple):
    """The depth of a shard at an instant, all from one snapshot."""

    counts: Counts
    oldest_sent_at: int | None
    """Instant at which the oldest stored message was sent."""
    sent: int
    """Messages that were ever sent."""

    @classmethod
    def of(cls, machine: ShardMachine, now: int) -> ShardDepth:
        counts = machine.counts(now)
        oldest = counts.oldest_offset
        return cls(counts, None if oldest is None else machine.log.sent_at(oldest), machine.log.end)


Sent = list[Placed | None]
"""A place for each message of a send; None for those that the cap on stored messages refused."""


@attrs.frozen
class Shared:
    """What the shards of a queue share in this process."""

    waiters: Waiters
    home: HomeShard

    @classmethod
    def of(cls, shards: int) -> Shared:
        return cls(Waiters(), HomeShard(shards))


def settle(shards: Sequence[ShardService]) -> Sequence[int]:
    """The order in which this process goes through the shards of a queue."""
    home = shards[0].shared.home
    with suppress(Exception):  # it is for speed alone, and whoever needs the other shards will see what it is
        home.settle(lambda shard: shards[shard].activity())
    return home.order()


class ShardService:
    """Everything this process does with one shard. Thread-safe."""

    def __init__(self, engine: Engine, root: str, key: str, shard: int, shared: Shared) -> None:
        self.shard = shard
        self.shared = shared
        self._engine = engine
        self._messages = layout.messages_path(root, key, shard)
        self._receipts = layout.receipts_path(root, key, shard)
        self._sending = GroupCommit(self._run_sends)
        self._settling = GroupCommit(self._run_commands)
        self._send_turns, self._settle_turns = Turns(), Turns()
        self._send_lock = threading.RLock()
        self._ledger_lock = threading.RLock()
        self._body_lock = threading.Lock()
        self._appender: Appender | None = None
        self._ledger: Ledger | None = None
        self._reader: LogReader | None = None
        self._machine: ShardMachine | None = None
        self._bodies = BodyCache()

    # --- sending

    def send(
        self,
        messages: Sequence[NewMessage],
        now: Now,
        attributes: QueueAttributes,
        attributes_version: int,
    ) -> Sent:
        """Appends messages validated under a version of the attributes, but for duplicates on FIFO queues.

        Raises:
            StaleAttributes: the queue has newer attributes.
            QueueDoesNotExist: it was deleted.
            RequestThrottled: too many lost races; nothing was sent.
        """
        return self._sending.submit(_Send(messages, now, attributes, attributes_version))

    def close(self) -> None:
        """Closes the log for good; does nothing if it is closed."""
        self._announce(lambda appender: appender.closed, Appender.close)

    def announce_attributes(self, version: int) -> None:
        """Announces a version of the queue's attributes to every sender, unless the log has it or is closed."""
        self._announce(
            lambda appender: appender.closed or appender.attributes_version >= version,
            lambda appender: appender.announce_attributes(version),
        )

    def _announce(self, known: Callable[[Appender], bool], announce: Callable[[Appender], bool]) -> None:
        with self._at_log():
            appender = self._open_appender()
            races = Races(ATTEMPTS)
            for _ in races:
                appender.refresh()
                if known(appender) or announce(appender):
                    return
                races.lose()
        raise RequestThrottled("the log of the queue is too busy")

    def closed(self) -> bool:
        """Whether the log takes no more messages, as of now."""
        with self._at_log():
            appender = self._open_appender()
            appender.refresh()
            return appender.closed

    def _run_sends(self, sends: Sequence[_Send]) -> list[Sent | BaseException]:
        self._send_turns.give(self._appender.table if self._appender else None)
        with self._at_log(), ExitStack() as alone:
            answers, appended = self._append_in_turn(sends, alone)
            if appended is not None:
                self.wake()
                if appended.closed_segment:
                    self._merge_segments(sends[0].now(), sends[0].attributes.fifo)
            return answers

    def _append_in_turn(
        self, sends: Sequence[_Send], alone: ExitStack
    ) -> tuple[list[Sent | BaseException], Appended | None]:
        appender = self._open_appender()
        fresh, races = False, Races(ATTEMPTS)
        for _ in races:
            now = max(send.now() for send in sends)
            appender.check_open()
            try:
                version = appender.attributes_version
                current = next((send for send in sends if send.attributes_version == version), sends[0])
                places = self._places(current.attributes, now)
            except (OSError, StaleSnapshot):
                if fresh:
                    raise
                appender.refresh()  # files were joined or trimmed, and removed, since this snapshot
                fresh = True
                continue
            answers: list[Sent | BaseException] = [
                [places.put(message) for message in send.messages]
                if send.attributes_version == version
                else StaleAttributes()
                for send in sends
            ]
            stale = any(isinstance(answer, StaleAttributes) for answer in answers)
            if not fresh and (stale or not places.new):
                appender.refresh()  # an answer that commits nothing is given from fresh state only
                fresh = True
                continue
            if not places.new:
                return answers, None
            with self._send_turns.timed():
                done = appender.append(places.new, now, version)
            if done is not None:
                calls.committed(self.shard, races.lost)
                if not sends[0].attributes.fifo:  # where the group says the shard
                    self.shared.home.committed(self.shard, races.lost)
                with self._body_lock:
                    self._bodies.remember(done.first, done.rows)
                return answers, done
            races.lose()
            self._send_turns.ask(appender.table, races.lost)
            if races.lost == PATIENCE:
                _alone(alone, appender.table.path)
                appender.refresh()
        calls.gave_up(races.lost)
        return [RequestThrottled("too many lost races; nothing was sent") for _ in sends], None

    def _places(self, attributes: QueueAttributes, now: int) -> _Places:
        appender = self._open_appender()
        room = self._room(attributes, now, appender.end)
        if not attributes.fifo:
            return _Places(appender.end, room)
        window = appender.window(attributes.dedup_by_group, now)
        return _Places(appender.end, room, window, self._original)

    def _original(self, window: DedupWindow, key: Key) -> Placed | None:
        """The message that holds a deduplication id, unless a purge took it."""
        offset = window.find(key)
        if offset is None:
            return None
        purged = self.purged_offset()
        if offset < purged:
            window.forget_below(purged)
            return None
        [row] = self.messages(offset, offset)
        return None if row is None else Placed(offset, row["message_id"])

    def purged_offset(self) -> int:
        """Everything below was purged, as of now."""
        return self.look(lambda machine: machine.head.purged_offset)

    def room(self, attributes: QueueAttributes, now: int) -> int | None:
        """Messages that the cap on stored ones leaves in the shard, None without a cap (QUE-21)."""
        with self._at_log():
            appender = self._open_appender()
            appender.refresh()
            return self._room(attributes, now, appender.end)

    @contextmanager
    def holding_sends(self) -> Iterator[None]:
        """Keeps this process's sends to the shard waiting."""
        with self._send_lock:
            yield

    def _room(self, attributes: QueueAttributes, now: int, end: int) -> int | None:
        limit = attributes.stored_limit
        if limit is None:
            return None
        return self.look(lambda machine: limit - machine.stored(now) - (end - machine.log.end))

    def _merge_segments(self, now: int, fifo: bool) -> None:
        try:
            floor = self._committed_floor()
            appender = self._open_appender()
            merge_recent(appender.table, floor, now - WINDOW if fifo else None)
            appender.refresh()
        except Exception as error:  # a failed merge never fails a send; the next one tries again
            _log.warning("merging files of %s failed: %s", self._messages, first_line(error))
            self._appender = None

    def merge_segments(self, now: int, fifo: bool) -> None:
        """Joins small files after a segment was closed by somebody who did not send through here."""
        with self._at_log():
            self._merge_segments(now, fifo)

    def compact(self, now: int, fifo: bool) -> MergeCounts:
        """Drops what lies below the floor, and joins small files, of the log.

        Raises:
            QueueDoesNotExist: the log is closed.
        """
        floor = self._committed_floor()
        # a handle of its own: the fences keep it apart from senders, who need not wait for it
        table = self._engine.open(self._messages)
        if (table.transaction(layout.SEND_ID) or 0) >= layout.CLOSED:
            raise QueueDoesNotExist("The specified queue does not exist.")
        return merge_all(table, floor, now, now - WINDOW if fifo else None)

    def rewrite_ledger(self, now: Now) -> bool:
        """Writes the ledger into as few files as it needs, if it has some more; whether it did."""
        with self._at_ledger():
            machine = self._fresh_machine()
            if not self._open_ledger().crowded(machine):
                return False
        return self.command([Rewrite()], now)[0].error is None

    def _committed_floor(self) -> int:
        with self._at_ledger():
            ledger = self._open_ledger()
            ledger.table.refresh()
            return ledger.floor()

    @contextmanager
    def _at_log(self) -> Iterator[None]:
        """Holds the writing handle."""
        with self._send_lock, _dropping(self._drop_appender):
            yield

    def _drop_appender(self) -> None:
        self._appender = None

    def _open_appender(self) -> Appender:
        if self._appender is None:
            self._appender = Appender(self._engine.open(self._messages))
        return self._appender

    # --- the ledger

    def command(self, commands: Sequence[Command], now: Now) -> list[Result]:
        """Applies commands in one commit, possibly with those of other callers.

        Raises:
            RequestThrottled: too many lost races; nothing was changed.
        """
        return self._settling.submit(_Commands(commands, now))

    def depth(self, now: int) -> ShardDepth:
        """Fresh counts."""
        return self.look(lambda machine: ShardDepth.of(machine, now))

    def next_event(self, now: int) -> int | None:
        """When a claim may find more than now, as far as this process knows."""
        with self._at_ledger():
            return None if self._machine is None else self._machine.next_event(now)

    def activity(self) -> object:
        """The newest versions of the tables, which every commit makes others."""
        with self._at_ledger():
            tables = self._open_ledger().table, self._open_reader().table
            for table in tables:
                table.refresh()
            return [table.version for table in tables]

    def forgotten(self) -> bool:
        """Whether nobody has claimed new messages since this process looked last; False at the first look."""
        with self._at_ledger():
            known = self._machine and self._machine.head.head_offset
            return self._fresh_machine().head.head_offset == known

    @property
    def attributes_version(self) -> int:
        """Version of the queue's attributes in the last snapshot of the ledger that was decided on."""
        machine = self._machine
        return 0 if machine is None else machine.attributes_version

    def look(self, question: Callable[[ShardMachine], _T]) -> _T:
        """Asks the machine something on a fresh snapshot.

        Raises:
            QueueDoesNotExist: the queue was deleted.
        """
        with self._at_ledger():
            machine = self._fresh_machine()
            if machine.head.closed:
                raise QueueDoesNotExist("The specified queue does not exist.")
            return question(machine)

    def _run_commands(self, groups: Sequence[_Commands]) -> list[list[Result] | BaseException]:
        commands = [command for group in groups for command in group.commands]
        self._settle_turns.give(self._ledger.table if self._ledger else None)
        with self._at_ledger(), ExitStack() as alone:
            results = self._decide_in_turn(commands, lambda: max(group.now() for group in groups), alone)
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

    def _decide_in_turn(self, commands: Sequence[Command], now: Now, alone: ExitStack) -> list[Result] | None:
        wanted = sum(command.max_messages for command in commands if isinstance(command, Claim))
        # these speak of every message sent before the call
        whole = any(isinstance(command, (Purge, SetAttributes, Expire)) for command in commands)
        rewrite = any(isinstance(command, Rewrite) for command in commands)
        fresh, races = False, Races(ATTEMPTS)
        for _ in races:
            if self._machine is None:
                self._load_machine()
                fresh = True
            machine, ledger = self._machine, self._open_ledger()
            assert machine is not None
            # FIFO: how much its groups hide is not known before, and a delete looks for the group's next message
            reread = whole or machine.fifo or machine.log.end - machine.head.head_offset < wanted
            if reread:
                machine.log = self._open_reader().refresh()
            try:
                decision = machine.decide(commands, now())
            except (OSError, StaleSnapshot):
                if fresh:
                    raise
                self._machine = None  # it knew of files that were joined with others, and removed, since then
                continue
            if not reread and _short(commands, decision.results):
                # enough lies in the log as it was known, but hidden: newer messages may be visible
                log = self._open_reader().refresh()
                if log.end != machine.log.end:
                    if decision.commit:
                        self._machine = None
                    else:
                        machine.log = log
                    continue
            if not fresh and not all(result.changed for result in decision.results):
                # an answer that rests on no commit is given from a snapshot as new as the call
                ledger.table.refresh()
                fresh = True
                if ledger.epoch != machine.head.epoch:
                    self._machine = None
                    continue
            if not decision.commit:
                return decision.results
            with self._settle_turns.timed():
                done = ledger.commit(decision, machine, rewrite)
            if done:
                calls.committed(self.shard, races.lost)
                machine.committed()
                if wanted:
                    self.shared.home.committed(self.shard, races.lost)
                return decision.results
            self._machine = None
            races.lose()
            self._settle_turns.ask(ledger.table, races.lost)
            if races.lost == PATIENCE:
                _alone(alone, ledger.table.path)
        calls.gave_up(races.lost)
        return None

    @contextmanager
    def _at_ledger(self) -> Iterator[None]:
        """Holds the ledger and the reader of the log."""
        with self._ledger_lock, _dropping(self._drop_ledger):
            yield

    def _drop_ledger(self) -> None:
        self._machine = self._ledger = self._reader = None

    def _load_machine(self) -> None:
        ledger = self._open_ledger()
        for attempt in range(LOADS + 1):
            ledger.table.refresh()
            try:
                head, runs, history = ledger.load()
                break
            except (OSError, StaleSnapshot):  # its files were written anew, and removed, since it was listed
                if attempt == LOADS:
                    raise
        # the ledger first: a log at least as new as the head that speaks of it
        log = self._open_reader().refresh()
        self._machine = ShardMachine(head, runs, log, history)

    def _fresh_machine(self) -> ShardMachine:
        if self._machine is not None:
            ledger = self._open_ledger()
            ledger.table.refresh()
            if ledger.epoch != self._machine.head.epoch:
                self._machine = None
        if self._machine is None:
            self._load_machine()
        assert self._machine is not None
        self._machine.log = self._open_reader().refresh()
        return self._machine

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._engine.open(self._receipts))
        return self._ledger

    def _open_reader(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self._engine.open(self._messages))
        return self._reader

    # --- reading

    def messages(self, first: int, last: int) -> list[dict[str, Any] | None]:
        """Messages by offset as column -> value; None for one that is gone from the log.

        Raises:
            QueueClientError: a message is missing that nothing removed.
        """
        try:
            found = self._read(first, last)
        except Exception:  # its file was joined with others, and removed, since this process last looked
            found = [None]
        if None in found:
            with self._at_ledger():
                self._open_reader().refresh()
            found = self._read(first, last)
        missing = [first + index for index, message in enumerate(found) if message is None]
        if missing:
            gone_below = self.look(lambda machine: machine.head.floor_offset)
            if missing[-1] >= gone_below:
                raise QueueClientError(f"{self._messages} lacks offset {missing[-1]}")
        return found

    def log(self) -> ShardLog:
        """The newest snapshot of the log."""
        with self._at_ledger():
            return self._open_reader().refresh()

    def rows(self, first: int, last: int) -> tuple[int, pa.Table]:
        """The next messages of a range as a table, as many as one reading gives, and the offset of the first.

        What is gone from the log is passed over, so the first may lie behind ``last``; then there are no rows.

        Raises:
            QueueClientError: a message is missing that nothing removed.
        """
        try:
            found = self._from_log(lambda bodies, reader: bodies.rows(reader.table, reader.log, first, last))
        except Exception:  # as in `messages`
            found = None
        if found is None:
            self.log()
            found = self._from_log(lambda bodies, reader: bodies.rows(reader.table, reader.log, first, last))
        if found is not None:
            return first, found
        gone_below = self.look(lambda machine: machine.head.floor_offset)
        if first >= gone_below:
            raise QueueClientError(f"{self._messages} lacks offset {first}")
        return self.rows(gone_below, last) if gone_below <= last else (gone_below, layout.MESSAGES.empty_table())

    def _read(self, first: int, last: int) -> list[dict[str, Any] | None]:
        return self._from_log(lambda bodies, reader: bodies.read(reader.table, reader.log, first, last))

    def _from_log(self, question: Callable[[BodyCache, LogReader], _T]) -> _T:
        reader = self._reader
        if reader is None:
            with self._at_ledger():
                reader = self._open_reader()
        # not under the lock of the ledger: there the receivers of one commit would wait for the next one to end
        with self._body_lock, _dropping(self._drop_reader):
            return question(self._bodies, reader)

    def _drop_reader(self) -> None:
        self._reader = None

    def release(self) -> None:
        """Closes the handles and forgets what was read; the next call opens them again."""
        with self._send_lock:
            self._drop_appender()
        with self._ledger_lock:
            self._drop_ledger()
        with self._body_lock:
            self._bodies = BodyCache()

    # --- waiting

    def wake(self) -> None:
        """Wakes a long poll; called after every change that this process makes."""
        self.shared.waiters.wake()


class _Places:
    """Places for the messages of one commit, in the order of their sending."""

    def __init__(
        self,
        end: int,
        room: int | None,
        window: DedupWindow | None = None,
        original: Callable[[DedupWindow, Key], Placed | None] = lambda window, key: None,
    ) -> None:
        self.new: list[NewMessage] = []
        self._end = end
        self._room = room
        self._window = window
        self._original = original
        self._by_key: dict[Key, Placed] = {}

    def put(self, message: NewMessage) -> Placed | None:
        """The place of a message or of the one that it repeats; None if there is no room."""
        if self._window is None:
            return self._append(message)
        key = dedup_key(message.entry.group_id, message.entry.dedup_id, self._window.by_group)
        placed = self._by_key.get(key) or self._original(self._window, key) or self._append(message)
        if placed is not None:
            self._by_key[key] = placed
        return placed

    def _append(self, message: NewMessage) -> Placed | None:
        if self._room is not None and len(self.new) >= self._room:
            return None
        self.new.append(message)
        return Placed(self._end + len(self.new) - 1, message.message_id)


@contextmanager
def _dropping(drop: Callable[[], None]) -> Iterator[None]:
    """After an error or an interrupt at any line, lets go of the handles that it may have left half-way."""
    try:
        yield
    except (QueueServiceError, StaleAttributes):
        raise  # an answer
    except BaseException:
        drop()
        raise


def _alone(stack: ExitStack, table_path: str) -> None:
    """Keeps other committers out until the stack ends, unless one of them is stopped."""
    with suppress(LockHeld):
        stack.enter_context(committing(table_path, exclusive=True, patience=ALONE_PATIENCE))


def _short(commands: Sequence[Command], results: Sequence[Result]) -> bool:
    """Whether a claim was given less than it asked for."""
    return any(
        isinstance(command, Claim) and result.error is None and result.value.message_count < command.max_messages
        for command, result in zip(commands, results, strict=True)
    )
