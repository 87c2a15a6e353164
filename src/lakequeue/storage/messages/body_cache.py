"""Caches messages by offset. A read loads further messages ahead. The cache is cleared after a restore."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedDict

from lakequeue.errors import DamagedTable
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages.read import BUDGET, CacheBudget, LogFile, ShardLog

TABLE_BYTES = 32 * 1024
"""Bytes of memory that a cached table takes, besides the bytes of its values."""
READ_AHEAD_BYTES = 2 * 1024 * 1024
READ_AHEAD_ROWS = 4096
_NAMED = 10
"""Maximum number of damaged messages that an error names."""

_UNREAD = {"position", "send_id", "first_received_at", "emptied", "only_for"}
"""Columns that are not cached, because receivers do not need these columns or find them in the ledger."""
_COLUMNS = [name for name in layout.FILES["messages"].names if name not in _UNREAD]


class BodyCache:
    """Cache for the messages of a shard. All caches of the process share one memory budget. Thread-safe."""

    def __init__(self, budget: CacheBudget = BUDGET) -> None:
        self._budget = budget
        # A second lock, because a send must not wait for a read. Its receiver would not find the message cached.
        self._fetching = threading.Lock()
        self._chunks: SortedDict[int, pa.Table] = SortedDict()
        self._lineage: object = None

    def remember(self, first: int, rows: pa.Table) -> None:
        """Caches rows with offsets from ``first`` on, unless the message at ``first`` is cached already."""
        if not len(rows):
            return
        chunk, most = rows.select(_COLUMNS), self._budget.limit // 4
        size = layout.buffer_bytes(chunk)
        if size > min(most, TABLE_BYTES):  # For smaller tables, skipping `nbytes` saves 3 % of a send.
            needed = chunk.nbytes
            if needed > most:
                return
            if size > max(2 * needed, TABLE_BYTES):  # A slice keeps its whole row group in memory.
                chunk = chunk.take(np.arange(len(chunk)))
                size = layout.buffer_bytes(chunk)
        with self._budget.lock:
            if self._chunk_of(first) is None:
                self._budget.put(self._chunks, first, chunk, TABLE_BYTES + size)

    def clear(self) -> None:
        self._budget.drop(self._chunks)

    def load(self, table: Table, log: ShardLog, spans: Sequence[tuple[int, int]]) -> None:
        """Caches messages from several files of an object store concurrently. Does nothing on a local disk."""
        if table.folder.local is None and len(self._missing(log, spans)) > 1:
            self._follow(table)
            with self._fetching:  # Another thread may have read them while this one waited.
                missing = self._missing(log, spans)
                table.folder.for_each(lambda each: self._fetch(table, log, *each), missing)

    def _missing(self, log: ShardLog, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns uncached ranges: at most one for each file, in total at most a quarter of the memory budget."""
        found: dict[int, tuple[int, int]] = {}
        size = 0
        for first, last in spans:
            for file in log.overlapping(first, last):
                start, stop = max(first, file.first), min(last, file.last)
                if file.first not in found and self._known(start) is None and size < self._budget.limit // 4:
                    found[file.first] = start, stop
                    size += file.size // file.rows * (stop - start + 1)
        return list(found.values())

    def _follow(self, table: Table) -> None:
        if table.lineage is not self._lineage:  # After a restore, the offsets may have other messages.
            self.clear()
            self._lineage = table.lineage

    def rows(self, table: Table, log: ShardLog, first: int, last: int) -> pa.Table | None:
        """Returns messages from ``first`` to ``last``, or fewer. None if the log no longer has ``first``."""
        self._follow(table)
        found = self._known(first)
        if found is None:
            with self._fetching:  # Another thread may have read it while this one waited.
                found = self._known(first) or self._fetch(table, log, first, last)
        if found is None:
            return None
        start, chunk = found
        return chunk.slice(first - start, last - first + 1)

    def _known(self, offset: int) -> tuple[int, pa.Table] | None:
        with self._budget.lock:
            return self._chunk_of(offset)

    def _chunk_of(self, offset: int) -> tuple[int, pa.Table] | None:
        index = self._chunks.bisect_right(offset) - 1
        if index < 0:
            return None
        start, chunk = self._chunks.peekitem(index)
        return (start, chunk) if offset < start + len(chunk) else None

    def _fetch(self, table: Table, log: ShardLog, offset: int, last: int) -> tuple[int, pa.Table] | None:
        file = log.file_of(offset)
        if file is None:
            return None
        row_bytes = max(1, file.size // file.rows)
        ahead = offset + min(READ_AHEAD_ROWS, max(1, READ_AHEAD_BYTES // row_bytes))
        stop = min(file.last, max(last, ahead))
        with self._budget.lock:
            following = self._chunks.bisect_right(offset)
            if following < len(self._chunks):
                stop = min(stop, self._chunks.keys()[following] - 1)
        rows = _read(table, file, offset, last, stop)
        rows = rows.select(_COLUMNS)
        if file.bulk:
            sent_at = pa.array([file.opened_at] * len(rows), layout.INSTANT)
            rows = layout.with_column(rows, "sent_at", sent_at)
        self.remember(offset, rows)
        return offset, rows


def _read(table: Table, file: LogFile, first: int, last: int, ahead: int) -> pa.Table:
    """Reads rows from ``first`` to ``ahead``. If a row after ``last`` is damaged, stops at ``last`` (DUR-8)."""
    try:
        return file.rows_of(table, _COLUMNS, first, ahead)
    except DamagedTable as error:
        if ahead > last:
            return _read(table, file, first, last, last)
        try:
            ids = file.rows_of(table, ["message_id"], first, last)["message_id"]
        except DamagedTable:
            raise error from None
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        reason = f"{error.reason}; it holds {', '.join(ids[:_NAMED].to_pylist())}{more}"
        raise DamagedTable(error.table, error.file, reason) from error
