"""One shard in this process: its ledger, its readers and its sender, each behind a lock of its own.

There is one ``ShardService`` per root, queue, shard and engine in a process, shared by all objects, so
that threads never race each other for a commit, only other processes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_sender import ShardSender
from lakequeue.storage.messages.body_cache import BodyCache


def settle(shards: Sequence[ShardService]) -> Sequence[int]:
    """The order in which this process goes through the shards of a queue."""
    home = shards[0].shared.home
    with suppress(Exception):  # it is for speed alone; a call that needs the other shards reports the failure
        home.settle(lambda shard: shards[shard].activity())
    return home.order()


class ShardService(ShardSender, ShardReader, ShardLedger):
    """Everything this process does with one shard. Thread-safe."""

    def release(self) -> None:
        """Closes the handles and forgets what was read; the next call opens them again."""
        with self._send_lock:
            self._drop_appender()
        with self._ledger_lock:
            self._drop_ledger()
        with self._body_lock:
            self._bodies = BodyCache()
