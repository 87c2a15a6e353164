"""The log of a shard in this process: sends behind a group commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import attrs

from lakequeue.errors import (
    DamagedTable,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_table import Now, ShardTable, ShardTables, Shared
from lakequeue.storage import layout
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Answer, Change, Decision, FoundChange, Ids, transact
from lakequeue.storage.ledger import check_head
from lakequeue.storage.messages.append import Appended, Appender, NewMessage
from lakequeue.storage.messages.dedup_window import DedupWindow, Key, dedup_key
from lakequeue.storage.messages.deliver_moved import Cells, MoveSource, deliver
from lakequeue.storage.messages.merge_segments import merge_recent
from lakequeue.storage.messages.staged_sends import StagedSend, unknown
from lakequeue.storage.snapshot import ReplacedLog
from lakequeue.storage.store_failures import first_line

LOOKS = 3
"""Number of other processes' commits that a sender searches for its messages, before it waits for its own turn."""

_log = logging.getLogger("lakequeue")


@attrs.frozen
class ShardSend:
    """Messages that were validated under a version of the queue's attributes."""

    messages: Sequence[NewMessage]
    now: Now
    attributes: QueueAttributes
    attributes_version: int


class Placed(NamedTuple):
    """Offset of a sent message, or of the message that it repeats (DDP-8)."""

    offset: int
    """Offset; -1 if the message belongs to a batch that was sent before, whose offsets are unknown."""
    message_id: str


Sent = list[Placed | None]
"""Places of the messages of a send; None for a message that the cap on stored messages refused."""


class ShardSender(ShardTable[ShardSend, Sent]):
    """Appends messages to the log. Thread-safe: its lock guards its handle on the log."""

    def __init__(self, tables: ShardTables, shared: Shared, ledger: ShardLedger, reader: ShardReader) -> None:
        super().__init__(tables, shared, tables.messages)
        self._ledger = ledger
        self._reader = reader
        self._appender: Appender | None = None
        self._compared: object = None
        """Lineage of the log at the last comparison of its end with the ledger's head."""
        self._delivers: Table | None = None
        """Handle that the last delivery of moved messages used; None while a delivery uses it."""

    def send(self, send: ShardSend) -> Sent:
        """Appends the messages except duplicates, and returns their places.

        Raises:
            StaleAttributes: the queue has newer attributes.
            QueueDoesNotExist: the queue was deleted.
            RequestThrottled: too many lost races; nothing was sent.
        """
        return self._group.submit(send)

    def close(self) -> None:
        """Closes the log permanently, even if the ledger is damaged. Does nothing on a closed log."""
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
        """Returns the version of the attributes that the log requires senders to know."""
        with self._held():
            return self._open_appender().table.transaction(layout.ATTRIBUTES_ID)

    def closed(self) -> bool:
        with self._held():
            appender = self._open_appender()
            appender.refresh()
            return appender.closed

    def _known(self) -> tuple[Table | None, bool]:
        appender = self._appender  # read once: another thread may let go of it
        return (None, False) if appender is None else (appender.table, appender.stages)

    def _catch_up(self, stale: bool) -> None:
        appender = self._appender
        if appender is not None and stale:
            with self._held():
                appender.look()
        if appender is not None and self._turns.waited:
            appender.stage_next()

    def _run(self, sends: Sequence[ShardSend]) -> list[Sent | BaseException]:
        batch = _SendBatch(sends)
        # on FIFO queues the group determines the shard
        home = None if sends[0].attributes.fifo else self._shared.sends
        with self._held():
            appender, busy = self._open_appender(), "too many lost races; nothing was sent"
            try:
                outcome = self._transact(appender.table, partial(self._decide, batch), busy=busy, home=home)
                done = outcome.value()
            except Exception as error:
                failure = batch.way.failure(error)
                if failure is not error:
                    raise failure from error
                raise
            if done is None:
                return batch.answers
            self._reader.bodies.remember(done.first, done.rows)
            self._ledger.learn(appender.table)
            if done.closed_segment:
                self._shared.sends.leave(self._tables.number)
                self._merge_segments(sends[0].now(), sends[0].attributes.dedup_micros)
            return batch.way.answers(batch, done.first)

    def _decide(self, batch: _SendBatch, lost: int) -> Decision[Callable[[], Appended | None]]:
        """Decides on the loaded snapshot of the log, and the state of the newest ledger."""
        appender = self._open_appender()
        if lost:
            batch.way.lost(appender)
        if (found := batch.way.find(appender)) is not None:
            return FoundChange(lambda: found)
        now = max(send.now() for send in batch.sends)
        appender.check_open()
        version = appender.attributes_version
        attributes = batch.attributes(version)
        places = self._places(batch.sends, attributes, now)
        batch.answers = batch.answers_of(version, places)
        if not places.new:
            return Answer(lambda: None)
        batches = dict(message.entry.batch for message in places.new if message.entry.batch is not None)
        ids = {**self._ledger.settle_clock(now, appender.last_sent_at, appender.table), **batches}
        if appender.stages:
            # of these messages, a later decision may leave some out
            limited = attributes.dedup_window is not None or attributes.stored_limit is not None or bool(batches)
            batch.way = batch.way.stage(appender, places.new, version, alone=limited)
        return batch.way.change(appender, places.new, now, version, ids)

    def _places(self, sends: Sequence[ShardSend], attributes: QueueAttributes, now: int) -> _Places:
        appender = self._open_appender()
        room, known = self._room(attributes, now, appender.end), appender.table.transaction
        if attributes.dedup_window is None:
            return _Places(appender.end, room, known)
        window = appender.window(attributes.dedup_by_group, attributes.dedup_window, now)
        stored = self._stored(window, sends, attributes, now) if attributes.deduplication_until_deleted else None
        return _Places(appender.end, room, known, window, partial(self._original, stored))

    def _stored(
        self, window: DedupWindow, sends: Sequence[ShardSend], attributes: QueueAttributes, now: int
    ) -> Collection[int]:
        """Returns the offsets of stored messages that have the deduplication ids of sends.

        The ledger is read within the call, and only a rewind brings removed messages back. So the log's fence
        suffices: a message that is deleted meanwhile existed during the call (JOB-6).
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
        """Returns the earlier message with a deduplication id, unless it was purged, or is not in ``stored``."""
        for offset in window.find(key):
            if stored is None and offset < (purged := self._ledger.purged_offset()):
                window.forget_below(purged)
            elif stored is None or offset in stored:
                [row] = self._reader.messages(offset, offset)
                if row is not None and dedup_key(row["group_id"], row["dedup_id"], window.by_group) == key:
                    return Placed(offset, row["message_id"])
        return None

    def room(self, attributes: QueueAttributes, now: int) -> int | None:
        """Returns how many messages the cap on stored messages still allows; None without a cap (QUE-21)."""
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
            if isinstance(error, ReplacedLog) and sent_by is not None:
                self._check_place(sent_by)

    @staticmethod
    def _check_place(appender: Appender) -> None:
        """Raises ReplacedLog with ``outcome_unknown`` if an older log was restored after the send.

        The next handle would not notice the restore.
        """
        try:
            appender.table.confirm()
        except ReplacedLog as error:
            raise error.unknown() from error

    def deliver(self, source: MoveSource, messages: Sequence[Cells], now: Now, dedup: int | None) -> bool:
        """Appends moved messages, unless they arrived before. False if the log is closed.

        Raises:
            RequestThrottled: too many lost races; nothing was appended.
            DamagedTable: the ledger's head is beyond the end of the log; as for sends, nothing is appended.
        """
        try:
            with self._delivering() as table:
                closes = deliver(table, source, messages, now, self._ledger.settle_clock)
        except QueueDoesNotExist:
            return False
        if closes:
            with self._held():
                self._merge_segments(now(), dedup)
        self._shared.waiters.wake()
        return True

    @contextmanager
    def _delivering(self) -> Iterator[Table]:
        """Yields the newest log on a handle of its own, so that sends need not wait for a delivery.

        The fences separate the commits of both handles. The next delivery uses the handle again, unless this
        delivery fails. A new handle would read the whole log.
        """
        with self._held():
            self._open_appender().refresh()
            table, self._delivers = self._delivers, None  # another delivery meanwhile opens another handle
        try:
            if table is not None:
                table.refresh()
        except ReplacedLog:
            table = None
        table = table or self._tables.engine.open(self._tables.messages)
        yield table
        with self._lock:
            self._delivers = table

    def _drop(self) -> None:
        self._appender = self._delivers = None

    def _open_appender(self, checked: bool = True) -> Appender:
        """Returns the writing handle. Without ``checked``, it may not have been compared with the ledger."""
        appender = self._appender
        if appender is None or appender.table.lineage is not self._compared:
            appender = appender or Appender(self._tables.engine.open(self._tables.messages))
            if not checked:
                return appender
            head, _ = self._ledger.head()
            if head.head_offset > appender.end:
                appender.refresh()  # others may have sent and received meanwhile
            check_head(head, appender.end, self._tables.receipts)
            self._appender, self._compared = appender, appender.table.lineage
        return appender


@attrs.define
class _SendBatch:
    sends: Sequence[ShardSend]
    answers: list[Sent | BaseException] = attrs.field(factory=list)
    way: _Plain = attrs.field(factory=lambda: _Plain())

    def attributes(self, version: int) -> QueueAttributes:
        """Returns the attributes with this version if a sender has them, else the attributes of the first send."""
        return next((send for send in self.sends if send.attributes_version == version), self.sends[0]).attributes

    def answers_of(self, version: int, places: _Places) -> list[Sent | BaseException]:
        """Returns the places of each send that is valid under this version of the attributes, else an error."""
        return [
            [places.put(message) for message in send.messages]
            if send.attributes_version == version
            else StaleAttributes()
            for send in self.sends
        ]


class _Plain:
    """Writes messages in their own commit."""

    def lost(self, appender: Appender) -> None:
        if appender.table.folder.local is None:  # on a disk other senders show in the wait for a turn
            appender.stage_next()

    def find(self, appender: Appender) -> Appended | None:
        """Returns the messages in the loaded snapshot; None if no other process has committed them."""
        return None

    def stage(self, appender: Appender, messages: Sequence[NewMessage], version: int, *, alone: bool) -> _OwnFile:
        """Returns how messages in a staged file are committed. See ``staged_sends.stage``."""
        staged = appender.stage(messages, version, alone=alone)
        return _OwnFile(staged) if alone else _SharedFile(staged)

    def change(
        self, appender: Appender, messages: Sequence[NewMessage], now: int, version: int, ids: Ids
    ) -> Change[Callable[[], Appended]]:
        return appender.append(messages, now, version, ids)

    def answers(self, batch: _SendBatch, first: int) -> list[Sent | BaseException]:
        """Returns the answers for messages at offset ``first`` and after."""
        return batch.answers

    def failure(self, error: Exception) -> Exception:
        return error


@attrs.define
class _OwnFile(_Plain):
    """Messages in a staged file that only their sender commits."""

    staged: StagedSend

    def lost(self, appender: Appender) -> None:
        appender.stage_next()

    def stage(self, appender: Appender, messages: Sequence[NewMessage], version: int, *, alone: bool) -> _OwnFile:
        ids = [message.message_id for message in messages]
        if appender.can_commit(self.staged) and self.staged.rows["message_id"].to_pylist() == ids:
            return self
        self.give_up(version)
        return super().stage(appender, messages, version, alone=alone)

    def change(
        self, appender: Appender, messages: Sequence[NewMessage], now: int, version: int, ids: Ids
    ) -> Change[Callable[[], Appended]]:
        return appender.append_staged(self.staged, now, ids, self.is_patient())

    def is_patient(self) -> bool:
        """True to keep waiting for a turn after the next commit of another process."""
        return True

    def give_up(self, version: int) -> None:
        """Drops the file. Messages that are valid under this version of the attributes need a new file."""


@attrs.define
class _SharedFile(_OwnFile):
    """Messages in a staged file that any process may commit."""

    looks: int = 0
    """Number of other processes' commits that were already searched for this file."""

    def find(self, appender: Appender) -> Appended | None:
        return appender.find(self.staged)

    def give_up(self, version: int) -> None:
        if self.staged.attributes_version == version:
            raise unknown("it is too old")

    def is_patient(self) -> bool:
        self.looks += 1
        return self.looks > LOOKS

    def answers(self, batch: _SendBatch, first: int) -> list[Sent | BaseException]:
        return batch.answers_of(self.staged.attributes_version, _Places(first, None))

    def failure(self, error: Exception) -> Exception:
        """Returns an error of unknown outcome, because other processes may still commit the file."""
        match error:
            case QueueClientError(outcome_unknown=True):
                return error
            case RequestThrottled():
                return unknown("too many lost races")
            case QueueServiceError() | StaleAttributes():
                return error
            case DamagedTable():
                return error.unknown()
            case _:
                return unknown(error)


class _Places:
    """Assigns places to the messages of one commit, in the order of sending."""

    def __init__(
        self,
        end: int,
        room: int | None,
        known: Callable[[str], int] = lambda app_id: 0,
        window: DedupWindow | None = None,
        original: Callable[[DedupWindow, Key], Placed | None] = lambda window, key: None,
    ) -> None:
        self.new: list[NewMessage] = []
        self._end = end
        self._room = room
        self._known = known
        self._batches: dict[str, int] = {}
        self._window = window
        self._original = original
        self._by_key: dict[Key, Placed] = {}

    def put(self, message: NewMessage) -> Placed | None:
        """Returns the place of a message, or of the message that it repeats; None if the cap is reached."""
        if message.entry.batch is None:
            return self._put(message)
        app_id, version = message.entry.batch
        if version <= self._batches.get(app_id, self._known(app_id)):
            return Placed(-1, message.message_id)
        if (placed := self._put(message)) is not None:
            self._batches[app_id] = version
        return placed

    def _put(self, message: NewMessage) -> Placed | None:
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
