"""The log of a shard in this process: sends behind a group commit, and merges of its segments."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import NamedTuple

import attrs

from lakequeue.errors import DamagedTable, QueueDoesNotExist, QueueServiceError, RequestThrottled
from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime import calls, shard_races
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.shard_ledger import Now, Shared
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.storage import layout
from lakequeue.storage.engines.commit import Races, StaleAttributes, repeated, retried
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.turns import turns_at
from lakequeue.storage.ledger import Ledger, check_head
from lakequeue.storage.messages import erase
from lakequeue.storage.messages.append import Appended, Appender, NewMessage
from lakequeue.storage.messages.dedup_window import DedupWindow, Key, dedup_key
from lakequeue.storage.messages.deliver_moved import Cells, Source, deliver
from lakequeue.storage.messages.forgotten import Forgotten
from lakequeue.storage.messages.merge_segments import MergeCounts, merge_all, merge_recent
from lakequeue.storage.messages.staged_sends import StagedSend, unknown
from lakequeue.storage.store_failures import first_line

LOOKS = 3
"""Commits of others in which a sender looks for its messages, before it waits for its own turn."""

_log = logging.getLogger("lakequeue")


@attrs.frozen
class _Send:
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


class ShardSender(ShardReader):
    """Appends messages to the log. Thread-safe."""

    def __init__(self, engine: Engine, root: str, key: str, shard: int, shared: Shared) -> None:
        super().__init__(engine, root, key, shard, shared)
        self._sending = GroupCommit(self._run_sends, self._send_in_turn)
        self._send_turns = turns_at(self._messages, engine.commits_alone)
        self._send_lock = threading.RLock()
        self._appender: Appender | None = None

    def send(
        self,
        messages: Sequence[NewMessage],
        now: Now,
        attributes: QueueAttributes,
        attributes_version: int,
    ) -> Sent:
        """Appends messages validated under a version of the attributes, except duplicates.

        Raises:
            StaleAttributes: the queue has newer attributes.
            QueueDoesNotExist: it was deleted.
            RequestThrottled: too many lost races; nothing was sent.
        """
        return self._sending.submit(_Send(messages, now, attributes, attributes_version))

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
        self, known: Callable[[Appender], bool], announce: Callable[[Appender], bool], checked: bool = True
    ) -> None:
        with self._at_log():
            appender = self._open_appender(checked)

            def announced() -> bool | None:
                appender.refresh()
                return known(appender) or announce(appender) or None

            retried(announced, "the log of the queue is too busy")

    def closed(self) -> bool:
        """Whether the log is closed now."""
        with self._at_log():
            appender = self._open_appender()
            appender.refresh()
            return appender.closed

    @contextmanager
    def _send_in_turn(self) -> Iterator[None]:
        appender = self._appender  # read once: another thread may let go of it
        table, later = (None, False) if appender is None else (appender.table, appender.stages)
        with self._send_turns.taken(table, later) as stale:
            if appender is not None and stale:
                with self._at_log():
                    appender.look()
            if appender is not None and self._send_turns.waited:
                appender.stage_next()
            yield

    def _run_sends(self, sends: Sequence[_Send]) -> list[Sent | BaseException]:
        with self._at_log():
            answers, appended = self._append(sends)
            if appended is not None:
                self.wake()
                if appended.closed_segment:
                    self.shared.sends.leave(self.shard)
                    self._merge_segments(sends[0].now(), sends[0].attributes.dedup_micros)
            return answers

    def _append(self, sends: Sequence[_Send]) -> tuple[list[Sent | BaseException], Appended | None]:
        batch = _Batch(sends)
        try:
            return self._append_batch(batch)
        except (QueueServiceError, StaleAttributes):
            raise
        except DamagedTable as error:
            error.outcome_unknown = batch.shared is not None
            raise
        except Exception as error:
            if batch.shared is None or getattr(error, "outcome_unknown", False):
                raise
            raise unknown(error) from error

    def _append_batch(self, batch: _Batch) -> tuple[list[Sent | BaseException], Appended | None]:
        appender, sends = self._open_appender(), batch.sends
        fresh, races = False, Races()
        for _ in races:
            if batch.shared is not None and (done := appender.find(batch.shared)) is not None:
                return self._appended(batch, done, races)
            now = max(send.now() for send in sends)
            appender.check_open()
            try:
                version = appender.attributes_version
                attributes = batch.attributes(version)
                places = self._places(sends, attributes, now)
            except OSError:
                if fresh:
                    raise
                appender.refresh()  # files of this snapshot were merged or trimmed, and removed
                fresh = True
                continue
            answers = batch.answers(version, places)
            stale = any(isinstance(answer, StaleAttributes) for answer in answers)
            if not fresh and (stale or not places.new):
                appender.refresh()  # an answer without a commit must come from fresh state
                fresh = True
                continue
            if not places.new:
                return answers, None
            ids = self.settle_clock(now, appender.last_sent_at, appender.table)
            if appender.stages and not batch.has_staged(places.new, appender):
                if batch.shared is not None and batch.shared.attributes_version == version:
                    raise unknown("it is too old")
                # of these messages, a later decision may leave some out
                alone = attributes.dedup_window is not None or attributes.stored_limit is not None
                batch.staged = appender.stage(places.new, version, alone=alone)
            if batch.staged is not None and self._send_turns.take(appender.table, patient=batch.is_patient()):
                appender.look()  # maybe others have committed it
                continue
            with self._send_turns.commit():
                if batch.staged is None:
                    done = appender.append(places.new, now, version, ids)
                else:
                    done = appender.append_staged(batch.staged, now, ids)
            if done is not None:
                return self._appended(batch, done, races, answers)
            races.lose()
            if batch.staged is None and self._send_turns.lose(appender.table, races.lost):
                appender.refresh()
        calls.gave_up(races.lost)
        if batch.shared is not None:
            raise unknown("too many lost races")
        return [RequestThrottled("too many lost races; nothing was sent") for _ in sends], None

    def _appended(
        self, batch: _Batch, done: Appended, races: Races, answers: list[Sent | BaseException] | None = None
    ) -> tuple[list[Sent | BaseException], Appended]:
        self._send_turns.end()
        if batch.shared is not None:  # maybe at another place, by another process
            answers = batch.answers(batch.shared.attributes_version, _Places(done.first, None))
        assert answers is not None and self._appender is not None
        lost = races.lost + self._send_turns.moved
        self.shared.races.committed(self.shard, races.lost, self._send_turns.moved)
        calls.committed(self.shard, races.lost)
        if not batch.sends[0].attributes.fifo:  # on FIFO queues the group determines the shard
            self.shared.sends.committed(self.shard, lost)
        self._bodies.remember(done.first, done.rows)
        self.announce_append(self._appender.table)
        return answers, done

    def _places(self, sends: Sequence[_Send], attributes: QueueAttributes, now: int) -> _Places:
        appender = self._open_appender()
        room = self._room(attributes, now, appender.end)
        if attributes.dedup_window is None:
            return _Places(appender.end, room)
        window = appender.window(attributes.dedup_by_group, attributes.dedup_window, now)
        stored = self._stored(window, sends, attributes, now) if attributes.deduplication_until_deleted else None
        return _Places(appender.end, room, window, partial(self._original, stored))

    def _stored(
        self, window: DedupWindow, sends: Sequence[_Send], attributes: QueueAttributes, now: int
    ) -> Collection[int]:
        """Offsets of messages that are neither deleted nor expired nor moved away, of those with the ids of sends.

        The ledger is read within the call, and what it lacks comes back by a rewind only. So the fence of the log
        suffices: a message that is deleted meanwhile was there during the call (JOB-6).
        """
        ids = {message.entry.dedup_id for send in sends for message in send.messages}
        found = {offset: id for id in ids if id is not None for offset in window.find(id)}
        if not found:
            return ()
        stored = self.query(
            lambda machine: {at for at in found if any(run.first == at for run in machine.peek(now, 1, at))}
        )
        if not attributes.rewind_micros:
            for offset in found.keys() - stored:
                window.drop(found[offset], offset)
        return stored

    def _original(self, stored: Collection[int] | None, window: DedupWindow, key: Key) -> Placed | None:
        """The message that has a deduplication id, unless it was purged, or is none of the stored ones."""
        for offset in window.find(key):
            if stored is None and offset < (purged := self.purged_offset()):
                window.forget_below(purged)
            elif stored is None or offset in stored:
                [row] = self.messages(offset, offset)
                if row is not None and dedup_key(row["group_id"], row["dedup_id"], window.by_group) == key:
                    return Placed(offset, row["message_id"])
        return None

    def purged_offset(self) -> int:
        """The offset below which all messages are purged now."""
        return self.query(lambda machine: machine.head.purged_offset)

    def room(self, attributes: QueueAttributes, now: int) -> int | None:
        """Number of messages that the cap on stored messages still allows; None without a cap (QUE-21)."""
        with self._at_log():
            appender = self._open_appender()
            appender.refresh()
            return self._room(attributes, now, appender.end)

    @contextmanager
    def holding_sends(self) -> Iterator[None]:
        """Makes this process's sends to the shard wait during the block."""
        with self._send_lock:
            yield

    def _room(self, attributes: QueueAttributes, now: int, end: int) -> int | None:
        limit = attributes.stored_limit
        if limit is None:
            return None
        return self.query(lambda machine: limit - machine.stored(now) - (end - machine.log.end))

    def _merge_segments(self, now: int, dedup: int | None) -> None:
        try:
            floor, confirm = self._committed_floor()
            appender = self._open_appender()
            if dedup is None:
                appender.forget_ids_below(floor)
            merge_recent(appender.table, floor, None if dedup is None else now - dedup, confirm)
            appender.refresh()
        except Exception as error:  # a failed merge never fails a send; the next one tries again
            _log.warning("merging files of %s failed: %s", self._messages, first_line(error))
            self._appender = None

    def deliver(self, source: Source, messages: Sequence[Cells], now: Now, dedup: int | None) -> bool:
        """Appends messages that are moved here, unless they arrived before; False if the log is closed.

        Raises:
            RequestThrottled: too many lost races; nothing was appended.
            DamagedTable: the ledger's head lies beyond the end of the log; as for sends, nothing is appended.
        """
        with self._at_log():
            self._open_appender().refresh()
        # a handle of its own, as in `compact`
        closes = deliver(self._engine.open(self._messages), source, messages, now, self.settle_clock)
        if closes is None:
            return False
        if closes:
            with self._at_log():
                self._merge_segments(now(), dedup)
        self.wake()
        return True

    def compact(self, now: int, dedup: int | None, empties: bool) -> MergeCounts:
        """Drops the part of the log below the floor, merges small files, and may empty rows of settled messages.

        Args:
            now: the instant, in microseconds.
            dedup: for how long deduplication ids count, in microseconds; None: they do not.
            empties: whether it may empty rows.

        Raises:
            QueueDoesNotExist: the log is closed.
        """
        # a separate handle, so that sends need not wait; the fences separate its commits from theirs
        table = self._engine.open(self._messages)
        if table.transaction(layout.SEND_ID) >= layout.CLOSED:
            raise QueueDoesNotExist()
        floor, confirm = self._committed_floor()
        drop_before = None if dedup is None else self._window_start(table, now, dedup)
        return merge_all(table, floor, now, drop_before, confirm, cache(self._forgotten) if empties else None)

    def _forgotten(self) -> Forgotten:
        """What the ledger has forgotten, as storage has it.

        It is read after the log was opened, and not from memory: one that a repair takes back cannot be read, or
        was read before the repair raised the log's fence.
        """
        ledger = Ledger(self._engine.open(self._receipts))
        return repeated(ledger.table, lambda: ledger.forgotten(self.log))

    def offsets_of(self, message_id: str, sent: tuple[int, int] | None = None) -> list[int]:
        """Offsets of the messages with an id in the newest log; ``sent``: only of files from then to then."""
        return erase.offsets_of(self._engine.open(self._messages), message_id, sent)

    def erase(self, message_id: str, offsets: Sequence[int], now: int, dedup: int | None) -> bool:
        """Clears a message in the log and removes the local files that held it; returns whether any was left."""
        table = self._engine.open(self._messages)  # a handle of its own, as in `compact`
        # to a clock that is far ahead the message is gone, and its run would stay
        window_start = self._window_start(table, now, dedup)
        cleared = erase.erase(table, message_id, offsets, layout.CLOSED if window_start is None else window_start)
        self._bodies.clear()
        return bool(erase.remove_former(table, message_id).files) or cleared

    def _window_start(self, table: Table, now: int, dedup: int | None) -> int | None:
        """The instant from which on deduplication ids count, for whom removes older ones."""
        self.settle_clock(now, table.transaction(layout.CLOCK_ID), table)
        return None if dedup is None else now - dedup

    @contextmanager
    def _at_log(self) -> Iterator[None]:
        """Holds the writing handle."""
        with self._send_lock, shard_races.dropping(self._drop_appender):
            yield

    def _drop_appender(self) -> None:
        self._appender = None

    def _open_appender(self, checked: bool = True) -> Appender:
        """The writing handle; unless ``checked`` it may be one that was not compared with the ledger."""
        if self._appender is None:
            appender = Appender(self._engine.open(self._messages))
            if not checked:
                return appender
            with self._at_ledger():
                ledger = self._open_ledger()
                ledger.table.refresh()
                head = ledger.head()
            if head.head_offset > appender.end:
                appender.refresh()  # others may have sent and received meanwhile
            check_head(head, appender.end, self._receipts)
            self._appender = appender
        return self._appender


@attrs.define
class _Batch:
    """Sends of one commit."""

    sends: Sequence[_Send]
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
