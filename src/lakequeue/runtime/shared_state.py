"""Paths of a shard's tables, and the state that a queue's shards share in this process."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from lakequeue.runtime.home_shard import HomeShard
from lakequeue.runtime.shard_races import RaceCounts
from lakequeue.runtime.waiters import Waiters
from lakequeue.storage.clock_guard import ClockGuard
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.layout import messages_path, receipts_path


@attrs.frozen
class ShardTables:
    """The two tables of a shard."""

    engine: Engine
    number: int
    messages: str
    """Path of the log."""
    receipts: str
    """Path of the table ``receipts``, which is the shard's ledger."""

    @classmethod
    def of(cls, engine: Engine, root: str, key: str, number: int) -> ShardTables:
        return cls(engine, number, *(path(root, key, number) for path in (messages_path, receipts_path)))


@attrs.frozen
class Shared:
    """State that a queue's shards share in this process."""

    waiters: Waiters
    home: HomeShard
    """The shard where receives of this process begin."""
    sends: HomeShard
    """The shard where sends of this process begin. Initially, the shard is the same as for receives."""
    races: RaceCounts
    guard: ClockGuard
    grow: Callable[[], Callable[[int], None] | None]
    """Returns a function that adds shards up to a given number. Returns None if the queue is not in use."""

    @classmethod
    def of(
        cls, shards: int, queue: str, guard: ClockGuard, grow: Callable[[], Callable[[int], None] | None]
    ) -> Shared:
        home = HomeShard(shards)
        return cls(Waiters(), home, HomeShard(shards, home.current), RaceCounts(queue), guard, grow)
