"""The queue that gets a bulk send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import attrs

from lakequeue.errors import OverLimit
from lakequeue.model.attributes import QueueAttributes
from lakequeue.storage import layout
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.folder import Folder


class BulkShards(Protocol):
    """A queue's shards in this process. The methods take the number of a shard."""

    def now(self) -> int:
        """Returns the present instant, in microseconds, for a commit."""
        ...

    def room(self, shard: int) -> int | None:
        """Returns the number of messages that a shard can still take (QUE-21). None if there is no limit."""
        ...

    def holding(self, shard: int) -> AbstractContextManager[None]:
        """Makes small sends of this process to a shard wait until the block ends."""
        ...

    def purged(self, shard: int) -> int:
        """Returns the first offset of a shard after the shard's last purge (DDP-13)."""
        ...

    def committed(self, shard: int, lost_races: int) -> None:
        """Counts a commit to a shard, and the races that were lost before this commit."""
        ...

    def check_clock(self, shard: int, instant: int, last: int, table: Table) -> Mapping[str, int]:
        """Checks the clock before a commit, like ``ShardLedger.check_clock``."""
        ...


@attrs.frozen
class SendTarget:
    """The queue that gets a bulk send."""

    engine: Engine
    root: str
    key: str
    shards: Sequence[int]
    """Numbers of all shards. Files are assigned to the shards in this order."""
    attributes: QueueAttributes
    attributes_version: int
    here: BulkShards
    priority: int = 0
    """Priority for rows that have no priority."""

    @property
    def tables(self) -> Folder:
        return self.engine.store.folder(layout.tables_path(self.root, self.key))

    def open(self, shard: int) -> Table:
        return self.engine.open(layout.messages_path(self.root, self.key, shard))

    def check_room(self, shard: int, files: Sequence[DataFile]) -> None:
        """Raises OverLimit if the rows of ``files`` exceed the cap on stored messages (QUE-21)."""
        room, rows = self.here.room(shard), sum(file.rows for file in files)
        if room is not None and rows > max(0, room):
            where = "The queue" if len(self.shards) == 1 else f"Shard {shard} of the queue"
            raise OverLimit(f"{where} has room for {max(0, room)} messages, not for {rows}.")
