"""The log of a shard in this process. Sends to the log go through a group commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime.send_places import PlaceFinder, Sent, ShardSend
from lakequeue.runtime.send_strategies import SendBatch
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_table import Now, ShardTable
from lakequeue.runtime.shared_state import ShardTables, Shared
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Answer, Change, Decision, FoundChange, transact
from lakequeue.storage.ledger import check_head
from lakequeue.storage.messages import append
from lakequeue.storage.messages.append import Appended, Appender
from lakequeue.storage.messages.deliver_moved import Cells, MoveSource, deliver
from lakequeue.storage.messages.merge_segments import merge_recent
from lakequeue.storage.snapshot import ReplacedLog
from lakequeue.storage.store_failures import first_line

_log = logging.getLogger("lakequeue")

GATHER = 0.5
"""A commit waits for the threads that shared the previous commit to send again, for at most this fraction of the
previous commit's duration.
"""


class ShardSender(ShardTable[ShardSend, Sent]):
    """Appends messages to the log. Thread-safe, because a lock guards the handle on the log."""

    def __init__(self, tables: ShardTables, shared: Shared, ledger: ShardLedger, reader: ShardReader) -> None:
        super().__init__(tables, shared, tables.messages)
        self._ledger = ledger
        self._reader = reader
        self._finder = PlaceFinder(ledger, reader)
        self._appender: Appender | None = None
        self._combines = False
        """True if, on an object store, other processes may commit this process's last staged send."""
        self._merging = threading.Lock()
        self._compared: object = None
        """Lineage of the log when the log's end was last compared with the ledger."""
        self._delivers: Table | None = None
        """Handle on the log for deliveries of moved messages; None while a delivery uses it."""

    def send(self, send: ShardSend) -> Sent:
        """Appends all messages except duplicates. Returns the place of each message, or None for a message beyond
        the cap.

        Raises:
            StaleAttributes: the queue has newer attributes.
            QueueDoesNotExist: the queue was deleted.
            RequestThrottled: too many races were lost; nothing was sent.
        """
        return self._group.submit(send)

    def close(self) -> None:
        """Closes the log permanently, even if the ledger is damaged. Does nothing on a closed log."""
        self._announce(lambda appender: appender.closed, Appender.close, checked=False)

    def announce_attributes(self, version: int) -> None:
        """Announces a version of the attributes, unless the log is closed or has the version."""
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
        """Returns the version of the queue's attributes that the log requires of senders."""
        with self._held():
            return self._open_appender().table.transaction(layout.ATTRIBUTES_ID)

    def closed(self) -> bool:
        with self._held():
            appender = self._open_appender()
            appender.refresh()
            return appender.closed

    def _known(self) -> tuple[Table | None, bool]:
        appender = self._appender  # read once: another thread may set it to None
        if appender is None:
            return None, False
        # on a store, who waits for the sender of the oldest file needs no pauses
        return None if self._combines and appender.stages else appender.table, appender.stages

    def _catch_up(self, stale: bool) -> None:
        appender = self._appender
        if appender is not None and stale:
            with self._held():
                appender.look()
        if appender is not None and self._turns.waited:
            appender.stage_next()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        with super()._in_turn():
            appender = self._appender
            # Without this wait, threads in a loop form two groups that take turns, each with half of the rate.
            if appender is not None and not appender.stages:
                self._group.gather(GATHER)
            yield

    def _run(self, sends: Sequence[ShardSend]) -> list[Sent | BaseException]:
        batch = SendBatch(sends)
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
                now, dedup = sends[0].now(), sends[0].attributes.dedup_micros
                if not self._combines:
                    self._merge_segments(now, dedup)
                elif self._merging.acquire(blocking=False):
                    merge = partial(self._merge_beside, None if dedup is None else now - dedup)
                    threading.Thread(target=merge, name="lakequeue-merge").start()
            return batch.way.answers(batch, done.first)

    def _decide(self, batch: SendBatch, lost: int) -> Decision[Callable[[], Appended | None]]:
        """Decides a batch of sends on the loaded snapshot of the log and on the newest ledger."""
        appender = self._open_appender()
        if lost:
            batch.way.lost(appender)
        if (found := batch.way.find(appender)) is not None:
            return FoundChange(lambda: found)
        now = max(send.now() for send in batch.sends)
        appender.check_open()
        version = appender.attributes_version
        attributes = batch.attributes(version)
        places = self._finder.places(appender, batch.sends, attributes, now)
        batch.answers = batch.answers_of(version, places)
        if not places.new:
            return Answer(lambda: None)
        batches = dict(message.entry.batch for message in places.new if message.entry.batch is not None)
        ids = {**self._ledger.check_clock(now, appender.last_sent_at, appender.table), **batches}
        if appender.stages:
            # of these messages, a later decision may leave some out
            limited = attributes.dedup_window is not None or attributes.stored_limit is not None or bool(batches)
            before, batch.way = batch.way, batch.way.stage(appender, places.new, version, alone=limited)
            self._combines = not limited and appender.table.folder.local is None
            if self._combines and batch.way is not before:
                return self._decide(batch, 0)  # once this process has its turn, or another one has added the file
        return batch.way.change(appender, places.new, now, version, ids)

    def room(self, attributes: QueueAttributes, now: int) -> int | None:
        """Returns how many more messages the cap allows (QUE-21), or None if there is no cap."""
        with self._held():
            appender = self._open_appender()
            appender.refresh()
            return self._finder.room(attributes, now, appender.end)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Makes sends of this process to the shard wait until the block ends."""
        with self._lock:
            yield

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

    def _merge_beside(self, drop_before: int | None) -> None:
        """Merges segments through another handle, so that sends need not wait."""
        # sends may win many races against a merge: 13 s at 100 ms per storage request
        try:
            head, confirm = self._ledger.head()
            with self._delivering() as table:
                merge_recent(table, head.floor_offset, drop_before, confirm, append.SEGMENT_COMMITS)
        except Exception as error:  # the next merge tries again
            _log.warning("merging files of %s failed: %s", self._tables.messages, first_line(error))
        finally:
            self._merging.release()

    @staticmethod
    def _check_place(appender: Appender) -> None:
        """Raises ReplacedLog with ``outcome_unknown`` if an older log was restored during the send."""
        try:
            appender.table.confirm()
        except ReplacedLog as error:
            raise error.unknown() from error

    def deliver(self, source: MoveSource, messages: Sequence[Cells], now: Now, dedup: int | None) -> bool:
        """Appends moved messages, only once even if the call is repeated. Returns False if the log is closed.
        Raises RequestThrottled or DamagedTable.
        """
        try:
            with self._delivering() as table:
                closes = deliver(table, source, messages, now, self._ledger.check_clock)
        except QueueDoesNotExist:
            return False
        if closes:
            with self._held():
                self._merge_segments(now(), dedup)
        self._shared.waiters.wake()
        return True

    @contextmanager
    def _delivering(self) -> Iterator[Table]:
        """Yields a handle on the newest log. Sends use another handle, so that they need not wait."""
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
        """Returns the handle for sends. If ``checked``, first compares the log's end with the ledger."""
        appender = self._appender
        if appender is None or appender.table.lineage is not self._compared:
            appender = appender or Appender(self._tables.engine.open(self._tables.messages))
            if not checked:
                return appender
            head, _ = self._ledger.head()
            if head.head_offset > appender.end:
                appender.refresh()  # others may have sent and received meanwhile
            check_head(head, appender.end, self._tables.receipts)
            # it may hold what this process has sent to a log that a restore replaced since
            self._reader.bodies.clear()
            self._appender, self._compared = appender, appender.table.lineage
        return appender
