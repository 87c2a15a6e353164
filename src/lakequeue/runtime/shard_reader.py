"""Reads the messages of a shard in this process, with a cache of bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from lakequeue.errors import QueueClientError
from lakequeue.runtime import shard_races
from lakequeue.runtime.shard_ledger import ShardLedger, Shared
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.messages.body_cache import BodyCache
from lakequeue.storage.messages.read import LogReader, ShardLog

_T = TypeVar("_T")


class ShardReader(ShardLedger):
    """Reads messages by offset. Thread-safe."""

    def __init__(self, engine: Engine, root: str, key: str, shard: int, shared: Shared) -> None:
        super().__init__(engine, root, key, shard, shared)
        self._bodies = BodyCache()

    def messages(self, first: int, last: int) -> list[dict[str, Any] | None]:
        """The messages of a range of offsets, column -> value; None for one that was removed from the log.

        Raises:
            QueueClientError: a message is missing that nothing removed.
        """
        try:
            found = self._read(first, last)
        except Exception:  # its file was merged and removed since this process last read the log
            found = [None]
        if None in found:
            self.log()
            found = self._read(first, last)
        missing = [first + index for index, message in enumerate(found) if message is None]
        if missing:
            gone_below = self.query(lambda machine: machine.head.floor_offset)
            if missing[-1] >= gone_below:
                raise QueueClientError(f"{self._messages} lacks offset {missing[-1]}")
        return found

    def log(self) -> ShardLog:
        """The newest snapshot of the log."""
        with self._at_ledger():
            return self._newest_log()

    def rows(self, first: int, last: int) -> tuple[int, pa.Table]:
        """The offset and rows of the next messages of a range, as many as one read returns.

        Removed messages are skipped, so the offset may be beyond ``last``; then there are no rows.

        Raises:
            QueueClientError: a message is missing that nothing removed.
        """
        try:
            found = self._from_log(lambda bodies, reader: bodies.rows(reader.table, reader.log, first, last))
        except Exception:  # as in `messages`
            found = None
        if found is None:
            self.log()
            found = self._from_log(lambda bodies, reader: bodies.rows(reader.table, reader.log, first, last))
        if found is not None:
            return first, found
        gone_below = self.query(lambda machine: machine.head.floor_offset)
        if first >= gone_below:
            raise QueueClientError(f"{self._messages} lacks offset {first}")
        return self.rows(gone_below, last) if gone_below <= last else (gone_below, layout.MESSAGES.empty_table())

    def size(self, first: int, last: int) -> int:
        """Bytes of bodies and attributes of a range of offsets, which it reads without keeping them."""
        size = 0
        while first <= last:
            first, rows = self.rows(first, last)
            size += rows["body"].nbytes + rows["message_attributes"].nbytes
            first += len(rows)
        return size

    def _read(self, first: int, last: int) -> list[dict[str, Any] | None]:
        return self._from_log(lambda bodies, reader: bodies.read(reader.table, reader.log, first, last))

    def _from_log(self, read: Callable[[BodyCache, LogReader], _T]) -> _T:
        reader = self._reader
        if reader is None:
            with self._at_ledger():
                reader = self._open_reader()
        # not under the ledger's lock: the receivers of one commit would wait for the end of the next
        with shard_races.dropping(self._drop_reader):
            return read(self._bodies, reader)

    def _drop_reader(self) -> None:
        self._reader = None
