"""One shard in this process: ledger, reader and sender, each with its own lock.

All objects of a process share one ``ShardService`` per root, queue, shard and engine, so threads never race each
other for a commit; only processes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_sender import ShardSender


def in_home_order(shards: Sequence[ShardService], home: HomeShard) -> Sequence[int]:
    """The order in which this process uses the shards of a queue; first moves its home shard if needed."""
    with suppress(Exception):  # only for speed; a call that needs the other shards reports the failure
        home.consider_moving(lambda others: shards[0].for_each(lambda other: shards[other].activity(), others))
    return home.order()


class ShardService(ShardSender, ShardReader, ShardLedger):
    """One shard. Thread-safe."""

    def release(self) -> None:
        """Closes the handles and clears the caches; the next call opens them again."""
        with self._send_lock:
            self._drop_appender()
        with self._ledger_lock:
            self._drop_ledger()
        self._bodies.clear()
