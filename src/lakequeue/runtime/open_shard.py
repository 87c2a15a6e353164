"""One shard in this process: a ledger, a reader and a sender, each with its own lock.

A process has only one ``OpenShard`` for each shard. Threads of one process therefore never race for commits. A
thread that needs the locks of sender and ledger takes the sender's lock first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf

from lakequeue.errors import QueueDoesNotExist
from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_queries import new_look
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_sender import ShardSender
from lakequeue.runtime.shared_state import ShardTables, Shared
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages import erase
from lakequeue.storage.messages.emptied_rows import ForgottenMessages
from lakequeue.storage.messages.merge_segments import MergeCounts, merge_all


def in_home_order(shards: Sequence[OpenShard], home: HomeShard) -> Sequence[int]:
    """Returns the order in which this process tries the queue's shards. First, may choose another home shard."""

    def activity(others: Sequence[int]) -> list[list[int]]:
        tables = shards[0].tables
        folder = tables.engine.store.folder(tables.messages)  # asks at once where that saves waiting
        return folder.for_each(lambda other: shards[other].ledger.activity(), others)

    with suppress(Exception):  # only for speed; a call that needs the other shards reports the failure
        home.consider_moving(activity)
    return home.order()


def look_at(shards: Sequence[OpenShard]) -> float:
    """If the shards are on an object store, reads all of them concurrently, and returns the sequence number of
    this read. Commands and queries that get the number need no read of their own. On a local disk, or for a single
    shard, reads nothing, and returns infinity.
    """
    folder = shards[0].tables.engine.store.folder(shards[0].tables.receipts) if len(shards) > 1 else None
    if folder is None or folder.local is not None:
        return inf
    number = new_look()

    def look(shard: OpenShard) -> None:
        with suppress(Exception):  # the claim reports what fails
            shard.ledger.look(number)

    folder.for_each(look, shards)
    return number


class OpenShard:
    """One shard. Thread-safe."""

    def __init__(self, engine: Engine, root: str, key: str, number: int, shared: Shared) -> None:
        self.number = number
        self.shared = shared
        self.tables = tables = ShardTables.of(engine, root, key, number)
        self.ledger = ShardLedger(tables, shared)
        self.reader = ShardReader(tables, self.ledger)
        self.sender = ShardSender(tables, shared, self.ledger, self.reader)

    def release(self) -> None:
        """Closes the shard's tables, and clears the caches. The next call opens the tables again."""
        self.sender.release()
        self.ledger.release()
        self.reader.bodies.clear()

    def compact(self, now: int, dedup: int | None) -> MergeCounts:
        """Compacts the log. Returns the numbers of dropped, merged and cut segments. Raises QueueDoesNotExist.
        Deduplication ids count for ``dedup`` microseconds, or not at all if None. ``now`` is in microseconds.
        """
        # a separate handle, so that sends need not wait; the fences separate its commits from theirs
        table = self.tables.engine.open(self.tables.messages)
        if table.transaction(layout.SEND_ID) >= layout.CLOSED:
            raise QueueDoesNotExist()
        head, confirm = self.ledger.head()
        drop_before = None if dedup is None else self._window_start(table, now, dedup)
        announce = partial(self.ledger.announce_emptying, lambda: now)
        return merge_all(table, head.floor_offset, now, drop_before, confirm, announce, self._forgotten)

    def _forgotten(self) -> ForgottenMessages:
        """Reads from storage which messages the ledger has forgotten. Called only after the log was opened."""
        ledger = Ledger(self.tables.engine.open(self.tables.receipts))
        return ledger.table.repeated(lambda: ledger.forgotten(self.ledger.log))

    def erase(self, message_id: str, offsets: Sequence[int], now: int, dedup: int | None) -> bool:
        """Removes a message's content from the log and from local files. Returns True if there was content."""
        table = self.tables.engine.open(self.tables.messages)  # a handle of its own, as in `compact`
        # to a clock that is far ahead the message is gone, and its run would stay
        window_start = self._window_start(table, now, dedup)
        cleared = erase.erase(table, message_id, offsets, layout.CLOSED if window_start is None else window_start)
        self.reader.bodies.clear()
        return bool(erase.remove_former(table, message_id).files) or cleared

    def _window_start(self, table: Table, now: int, dedup: int | None) -> int | None:
        """Checks the clock. Returns the start of the deduplication window in microseconds, or None."""
        self.ledger.check_clock(now, table.transaction(layout.CLOCK_ID), table)
        return None if dedup is None else now - dedup
