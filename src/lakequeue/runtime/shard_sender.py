"""The log of a shard in this process: sends behind a group commit, and merges of its segments."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import attrs

from lakequeue.errors import DamagedTable, QueueDoesNotExist, QueueServiceError, RequestThrottled
from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime import calls, shard_races
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.shard_ledger import Now, ShardLedger, ShardTables, Shared
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.storage import layout
from lakequeue.storage.engines.commit import Races, StaleAttributes
from lakequeue.storage.engines.transaction import Answer, Change, Decision, transact
from lakequeue.storage.engines.turns import turns_at
from lakequeue.storage.ledger import check_head
from lakequeue.storage.messages.append import Appended, Appender, NewMessage
from lakequeue.storage.messages.dedup_window import DedupWindow, Key, dedup_key
from lakequeue.storage.messages.deliver_moved import Cells, Source, deliver
from lakequeue.storage.messages.merge_segments import merge_recent
from lakequeue.storage.messages.staged_sends import StagedSend, unknown
from lakequeue.storage.snapshot import OtherHistory
from lakequeue.storage.store_failures import first_line

LOOKS = 3
"""Commits of others in which a sender looks for its messages, before it waits for its own turn."""

_log = logging.getLogger("lakequeue")


@attrs.frozen
class ShardSend:
    """Messages that are valid under a version of the queue's attributes."""

    messages: Sequence[NewMessage]
    now: Now
    attributes: QueueAttributes
    attributes_version: int


class Placed(NamedTuple):
    """The place of a sent message, or of the message that it repeats (DDP-8)."""

    offset: int
    message_id: str


Sent = list[Placed | None]
"""A place for each message of a send; None if the cap on stored messages refused it."""


class ShardSender:
    """Appends messages to the log. Thread-safe; its lock guards its handle on the log."""

    def __init__(self, tables: ShardTables, shared: Shared, ledger: ShardLedger, reader: ShardReader) -> None:
        self._tables = tables
        self._shared = shared
        self._ledger = ledger
        self._reader = reader
        self._group = GroupCommit(self._run, self._in_turn)
        self._turns = turns_at(tables.messages, tables.engine.commits_alone)
        self._lock = threading.RLock()
        self._appender: Appender | None = None
        self._compared: object = None
        """History of the log when its end was compared with the head of the ledger."""

    def send(self, send: ShardSend) -> Sent:
        """Appends the messages except duplicates.

        Raises:
            StaleAttributes: the queue has newer attributes.
            QueueDoesNotExist: it was deleted.
            RequestThrottled: too many lost races; nothing was sent.
        """
        return self._group.submit(send)

    def close(self) -> None:
        """Closes the log permanently, also beside a damaged ledger; does nothing if it is closed."""
        self._announce(lambda appender: appender.closed, Appender.close, checked=False)

    def announce_attributes(self, version: int) -> None:
        """Announces a version of the queue's attributes to all senders, unless the log has it or is closed."""
        self._announce(
            lambda appender: appender.closed or appender.attributes_version >= version,
            lambda appender: appender.announce_attributes(version),
        )

    def _announce(
        self, known: Callable[[Appender], bool], announce: Callable[[Appender], Change[None]], checked: bool = True
    ) -> None:
        with self._held():
            appender = self._open_appender(checked)
            appender.refresh()

            def announced(_: int) -> Decision[None]:
                return Answer(None) if known(appender) else announce(appender)

            transact(appender.table, announced, busy="the log of the queue is too busy")

    def attributes_version(self) -> int:
        """Version of the attributes that the log asks senders to know."""
        with self._held():
            return self._open_appender().table.transaction(layout.ATTRIBUTES_ID)

    def closed(self) -> bool:
        """Whether the log is closed now."""
        with self._held():
            appender = self._open_appender()
            appender.refresh()
            return appender.closed

    def release(self) -> None:
        """Closes the handle; the next call opens it again."""
        with self._lock:
            self._drop()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        appender = self._appender  # read once: another thread may let go of it
        table, later = (None, False) if appender is None else (appender.table, appender.stages)
        with self._turns.taken(table, later) as stale:
            if appender is not None and stale:
                with self._held():
                    appender.look()
            if appender is not None and self._turns.waited:
                appender.stage_next()
            yield

    def _run(self, sends: Sequence[ShardSend]) -> list[Sent | BaseException]:
        with self._held():
            answers, appended = self._append(sends)
            if appended is not None:
                self._shared.waiters.wake()
                if appended.closed_segment:
                    self._shared.sends.leave(self._tables.number)
                    self._merge_segments(sends[0].now(), sends[0].attributes.dedup_micros)
            return answers

    def _append(self, sends: Sequence[ShardSend]) -> tuple[list[Sent | BaseException], Appended | None]:
        batch = _Batch(sends)
        try:
            return self._append_batch(batch)
        except (QueueServiceError, StaleAttributes):
            raise
        except DamagedTable as error:
            error.outcome_unknown |= batch.shared is not None
            raise
        except Exception as error:
            if batch.shared is None or getattr(error, "outcome_unknown", False):
                raise
            raise unknown(error) from error

    def _append_batch(self, batch: _Batch) -> tuple[list[Sent | BaseException], Appended | None]:
        appender, races, fresh = self._open_appender(), Races(), False
        for _ in races:
            if batch.shared is not None and (done := appender.find(batch.shared)) is not None:
                return self._appended(batch, done, races)
            decided = self._decide(batch, appender, fresh)
            if decided is None:
                appender.refresh()
                fresh = True
            elif not decided.new:
                return decided.answers, None
            elif (done := self._commit(batch, appender, decided, races)) is not None:
                return self._appended(batch, done, races, decided.answers)
        calls.gave_up(races.lost)
        if batch.shared is not None:
            raise unknown("too many lost races")
        return [RequestThrottled("too many lost races; nothing was sent") for _ in batch.sends], None

    def _decide(self, batch: _Batch, appender: Appender, fresh: bool) -> _Decided | None:
        """What the sends come to on the loaded snapshot; None if it must be fresh and is not."""
        now = max(send.now() for send in batch.sends)
        appender.check_open()
        try:
            version = appender.attributes_version
            attributes = batch.attributes(version)
            places = self._places(batch.sends, attributes, now)
        except OSError:  # files of this snapshot were merged or trimmed, and removed
            if fresh:
                raise
            return None
        answers = batch.answers(version, places)
        # an answer without a commit must come from fresh state
        without = not places.new or any(isinstance(answer, StaleAttributes) for answer in answers)
        return _Decided(now, version, attributes, places.new, answers) if fresh or not without else None

    def _commit(self, batch: _Batch, appender: Appender, decided: _Decided, races: Races) -> Appended | None:
        """Appends the new messages; None if a race is lost, or others have committed what is staged, maybe."""
        ids = self._ledger.settle_clock(decided.now, appender.last_sent_at, appender.table)
        if appender.stages and not batch.has_staged(decided.new, appender):
            if batch.shared is not None and batch.shared.attributes_version == decided.version:
                raise unknown("it is too old")
            # of these messages, a later decision may leave some out
            limited = decided.attributes.dedup_window is not None or decided.attributes.stored_limit is not None
            batch.staged = appender.stage(decided.new, decided.version, alone=limited)
        if batch.staged is not None and self._turns.take(appender.table, patient=batch.is_patient()):
            appender.look()
            return None
        with self._turns.commit():
            if batch.staged is None:
                done = appender.append(decided.new, decided.now, decided.version, ids)
            else:
                done = appender.append_staged(batch.staged, decided.now, ids)
        if done is None:
            races.lose()
            if batch.staged is None and self._turns.lose(appender.table, races.lost):
                appender.refresh()
        return done

    def _appended(
        self, batch: _Batch, done: Appended, races: Races, answers: list[Sent | BaseException] | None = None
    ) -> tuple[list[Sent | BaseException], Appended]:
        self._turns.end()
        if batch.shared is not None:  # maybe at another place, by another process
            answers = batch.answers(batch.shared.attributes_version, _Places(done.first, None))
        assert answers is not None and self._appender is not None
        # on FIFO queues the group determines the shard
        home = None if batch.sends[0].attributes.fifo else self._shared.sends
        self._shared.races.committed(self._tables.number, races.lost, self._turns.moved, home)
        self._reader.bodies.remember(done.first, done.rows)
        self._ledger.learn(self._appender.table)
        return answers, done

    def _places(self, sends: Sequence[ShardSend], attributes: QueueAttributes, now: int) -> _Places:
        appender = self._open_appender()
        room = self._room(attributes, now, appender.end)
        if attributes.dedup_window is None:
            return _Places(appender.end, room)
        window = appender.window(attributes.dedup_by_group, attributes.dedup_window, now)
        stored = self._stored(window, sends, attributes, now) if attributes.deduplication_until_deleted else None
        return _Places(appender.end, room, window, partial(self._original, stored))

    def _stored(
        self, window: DedupWindow, sends: Sequence[ShardSend], attributes: QueueAttributes, now: int
    ) -> Collection[int]:
        """Offsets of messages that are neither deleted nor expired nor moved away, of those with the ids of sends.

        The ledger is read within the call, and what it lacks comes back by a rewind only. So the fence of the log
        suffices: a message that is deleted meanwhile was there during the call (JOB-6).
        """
        ids = {message.entry.dedup_id for send in sends for message in send.messages}
        found = {offset: id for id in ids if id is not None for offset in window.find(id)}
        if not found:
            return ()
        stored = self._ledger.query(
            lambda machine: {at for at in found if any(run.first == at for run in machine.peek(now, 1, at))}
        )
        if not attributes.rewind_micros:
            for offset in found.keys() - stored:
                window.drop(found[offset], offset)
        return stored

    def _original(self, stored: Collection[int] | None, window: DedupWindow, key: Key) -> Placed | None:
        """The message that has a deduplication id, unless it was purged, or is none of the stored ones."""
        for offset in window.find(key):
            if stored is None and offset < (purged := self._ledger.purged_offset()):
                window.forget_below(purged)
            elif stored is None or offset in stored:
                [row] = self._reader.messages(offset, offset)
                if row is not None and dedup_key(row["group_id"], row["dedup_id"], window.by_group) == key:
                    return Placed(offset, row["message_id"])
        return None

    def room(self, attributes: QueueAttributes, now: int) -> int | None:
        """Number of messages that the cap on stored messages still allows; None without a cap (QUE-21)."""
        with self._held():
            appender = self._open_appender()
            appender.refresh()
            return self._room(attributes, now, appender.end)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Makes this process's sends to the shard wait during the block."""
        with self._lock:
            yield

    def _room(self, attributes: QueueAttributes, now: int, end: int) -> int | None:
        limit = attributes.stored_limit
        if limit is None:
            return None
        return self._ledger.query(lambda machine: limit - machine.stored(now) - (end - machine.log.end))

    def _merge_segments(self, now: int, dedup: int | None) -> None:
        try:
            head, confirm = self._ledger.head()
            appender = self._open_appender()
            if dedup is None:
                appender.forget_ids_below(head.floor_offset)
            merge_recent(appender.table, head.floor_offset, None if dedup is None else now - dedup, confirm)
            appender.forget_rows()
            appender.refresh()
        except Exception as error:  # a failed merge never fails a send; the next one tries again
            _log.warning("merging files of %s failed: %s", self._tables.messages, first_line(error))
            sent_by, self._appender = self._appender, None
            if isinstance(error, OtherHistory) and sent_by is not None:
                self._check_place(sent_by)

    @staticmethod
    def _check_place(appender: Appender) -> None:
        """Raises OtherHistory, ``outcome_unknown``, if the log was put back after it took the messages just sent.

        The next handle would no longer know it.
        """
        try:
            appender.table.confirm()
        except OtherHistory as error:
            error.outcome_unknown = True
            raise

    def deliver(self, source: Source, messages: Sequence[Cells], now: Now, dedup: int | None) -> bool:
        """Appends messages that are moved here, unless they arrived before; False if the log is closed.

        Raises:
            RequestThrottled: too many lost races; nothing was appended.
            DamagedTable: the ledger's head lies beyond the end of the log; as for sends, nothing is appended.
        """
        with self._held():
            self._open_appender().refresh()
        # a handle of its own, so that sends need not wait; the fences separate its commits from theirs
        table = self._tables.engine.open(self._tables.messages)
        try:
            closes = deliver(table, source, messages, now, self._ledger.settle_clock)
        except QueueDoesNotExist:
            return False
        if closes:
            with self._held():
                self._merge_segments(now(), dedup)
        self._shared.waiters.wake()
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Holds the writing handle."""
        with self._lock, shard_races.dropping(self._drop):
            yield

    def _drop(self) -> None:
        self._appender = None

    def _open_appender(self, checked: bool = True) -> Appender:
        """The writing handle; unless ``checked`` it may be one that was not compared with the ledger."""
        appender = self._appender
        if appender is None or appender.table.history is not self._compared:
            appender = appender or Appender(self._tables.engine.open(self._tables.messages))
            if not checked:
                return appender
            head, _ = self._ledger.head()
            if head.head_offset > appender.end:
                appender.refresh()  # others may have sent and received meanwhile
            check_head(head, appender.end, self._tables.receipts)
            self._appender, self._compared = appender, appender.table.history
        return appender


class _Decided(NamedTuple):
    """What sends come to on one snapshot of the log."""

    now: int
    version: int
    attributes: QueueAttributes
    new: Sequence[NewMessage]
    answers: list[Sent | BaseException]


@attrs.define
class _Batch:
    """Sends of one commit."""

    sends: Sequence[ShardSend]
    staged: StagedSend | None = None
    looks: int = 0
    """Commits of others in which it was looked for instead of waiting on."""

    @property
    def shared(self) -> StagedSend | None:
        """The staged file, if other processes may commit it."""
        return None if self.staged is None or self.staged.alone else self.staged

    def has_staged(self, messages: Sequence[NewMessage], appender: Appender) -> bool:
        """Whether the file that is staged, if any, is of these messages and can be committed."""
        ids = [message.message_id for message in messages]
        staged = self.staged
        return staged is not None and appender.can_commit(staged) and staged.rows["message_id"].to_pylist() == ids

    def is_patient(self) -> bool:
        """Whether to wait for a turn beyond the next commit, which may be one of these messages, too."""
        self.looks += 1
        return self.shared is None or self.looks > LOOKS

    def attributes(self, version: int) -> QueueAttributes:
        """The attributes of this version, if a sender knows them."""
        return next((send for send in self.sends if send.attributes_version == version), self.sends[0]).attributes

    def answers(self, version: int, places: _Places) -> list[Sent | BaseException]:
        """A place for each message that is valid under the newest attributes, which have this version."""
        return [
            [places.put(message) for message in send.messages]
            if send.attributes_version == version
            else StaleAttributes()
            for send in self.sends
        ]


class _Places:
    """Assigns places to the messages of one commit, in the order of sending."""

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
        """The place of a message or of the message that it repeats; None if there is no room."""
        if self._window is None or message.entry.dedup_id is None:
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
