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
    """A queue's shards in this process, by number."""

    def now(self) -> int:
        """Returns the instant of a commit, in microseconds."""
        ...

    def room(self, shard: int) -> int | None:
        """Returns how many more messages a shard may store (QUE-21); None if there is no limit."""
        ...

    def holding(self, shard: int) -> AbstractContextManager[None]:
        """Blocks this process's small sends to a shard."""
        ...

    def purged(self, shard: int) -> int:
        """Returns a shard's first offset after the last purge (DDP-13)."""
        ...

    def committed(self, shard: int, lost_races: int) -> None:
        """Counts a commit to a shard, and its lost races."""
        ...

    def check_clock(self, shard: int, instant: int, last: int, table: Table) -> Mapping[str, int]:
        """Checks the clock before a commit; see ``ShardLedger.check_clock``."""
        ...


@attrs.frozen
class SendTarget:
    """The queue that gets a bulk send."""

    engine: Engine
    root: str
    key: str
    shards: Sequence[int]
    """All shards, in the order in which they get files."""
    attributes: QueueAttributes
    attributes_version: int
    here: BulkShards
    priority: int = 0
    """Priority for rows that have none."""

    @property
    def tables(self) -> Folder:
        return self.engine.store.folder(layout.tables_path(self.root, self.key))

    def open(self, shard: int) -> Table:
        return self.engine.open(layout.messages_path(self.root, self.key, shard))

    def check_room(self, shard: int, files: Sequence[DataFile]) -> None:
        """Raises OverLimit if ``files`` exceed the message cap (QUE-21)."""
        room, rows = self.here.room(shard), sum(file.rows for file in files)
        if room is not None and rows > max(0, room):
            where = "The queue" if len(self.shards) == 1 else f"Shard {shard} of the queue"
            raise OverLimit(f"{where} has room for {max(0, room)} messages, not for {rows}.")
