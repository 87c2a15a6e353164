"""Decides which messages of a send are new, and which are repetitions. Gives new messages their offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import attrs

from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_table import Now
from lakequeue.storage.messages.append import Appender, NewMessage
from lakequeue.storage.messages.dedup_window import DedupWindow, Key, dedup_key


@attrs.frozen
class ShardSend:
    """Messages of one send, and the queue's attributes that were used to validate the messages."""

    messages: Sequence[NewMessage]
    now: Now
    attributes: QueueAttributes
    attributes_version: int


class Placed(NamedTuple):
    """Place of a sent message, or of the earlier message that it repeats (DDP-8)."""

    offset: int
    """Offset of the message. The offset is -1 if an earlier batch sent the message at an unknown offset."""
    message_id: str


Sent = list[Placed | None]
"""Place of each message of a send. The place is None if the cap on stored messages refused the message."""


class Places:
    """Gives the messages of one commit their offsets, in the order of sending."""

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
        """Returns the place of a message, or of the message that it repeats. None if the cap is reached."""
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


class PlaceFinder:
    """Finds out from a shard's log and ledger which messages of sends are new."""

    def __init__(self, ledger: ShardLedger, reader: ShardReader) -> None:
        self._ledger = ledger
        self._reader = reader

    def places(
        self, appender: Appender, sends: Sequence[ShardSend], attributes: QueueAttributes, now: int
    ) -> Places:
        """Returns a ``Places`` for these attributes. Its offsets begin at the end of the loaded log."""
        room, known = self.room(attributes, now, appender.end), appender.table.transaction
        if attributes.dedup_window is None:
            return Places(appender.end, room, known)
        window = appender.window(attributes.dedup_by_group, attributes.dedup_window, now)
        stored = self._stored(window, sends, attributes, now) if attributes.deduplication_until_deleted else None
        return Places(appender.end, room, known, window, partial(self._original, stored))

    def _stored(
        self, window: DedupWindow, sends: Sequence[ShardSend], attributes: QueueAttributes, now: int
    ) -> Collection[int]:
        """Returns the offsets of stored messages that have a deduplication id of these sends (JOB-6)."""
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
        """Finds the message with ``key``. If ``stored`` is given, ``stored`` must contain the message's offset."""
        for offset in window.find(key):
            if stored is None and offset < (purged := self._ledger.purged_offset()):
                window.forget_below(purged)
            elif stored is None or offset in stored:
                [row] = self._reader.messages(offset, offset)
                if row is not None and dedup_key(row["group_id"], row["dedup_id"], window.by_group) == key:
                    return Placed(offset, row["message_id"])
        return None

    def room(self, attributes: QueueAttributes, now: int, end: int) -> int | None:
        """Returns how many more messages the cap allows in a log with this ``end``. None means no cap."""
        limit = attributes.stored_limit
        if limit is None:
            return None
        return self._ledger.query(lambda machine: limit - machine.stored(now) - (end - machine.log.end))
