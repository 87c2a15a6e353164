"""Reads the messages of a shard, and caches their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from lakequeue.errors import QueueClientError
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shared_state import ShardTables
from lakequeue.storage import layout
from lakequeue.storage.messages.body_cache import BodyCache


class ShardReader:
    """Reads messages by offset, and caches them in ``bodies``. Thread-safe."""

    def __init__(self, tables: ShardTables, ledger: ShardLedger) -> None:
        self._messages = tables.messages
        self._ledger = ledger
        self.bodies = BodyCache()

    def load(self, spans: Sequence[tuple[int, int]]) -> None:
        """Caches messages of an object store, many files at once. Suppresses errors, which later reads report."""
        with suppress(Exception), self._ledger.reading() as log:
            self.bodies.load(log.table, log.log, spans)

    def messages(self, first: int, last: int) -> list[dict[str, Any] | None]:
        """Returns a dict per message, None for a removed message. Raises QueueClientError for lost messages."""
        messages: list[dict[str, Any] | None] = []
        while (offset := first + len(messages)) <= last:
            found, rows = self.rows(offset, last)
            messages += [None] * (min(found, last + 1) - offset)
            messages += rows.to_pylist()
        return messages

    def rows(self, first: int, last: int) -> tuple[int, pa.Table]:
        """Returns the next messages in a range of offsets: the first offset, and as many rows as one read yields.

        Skips removed messages. If all messages are removed, returns no rows, and an offset beyond ``last``.

        Raises:
            ReplacedLog: a backup was restored meanwhile.
            QueueClientError: a message that was not removed is missing.
        """
        found = None
        with suppress(OSError):  # its file was merged and removed since this process last read the log
            found = self._known(first, last)
        if found is None:
            self._ledger.log()
            found = self._known(first, last)
        if found is not None:
            return first, found
        gone_below = self._ledger.query(lambda machine: machine.head.floor_offset)
        if first >= gone_below:
            self._ledger.confirm()  # of a ledger and a log from two backups, the restore is what went wrong
            raise QueueClientError(f"{self._messages} lacks offset {first}")
        return self.rows(gone_below, last) if gone_below <= last else (gone_below, layout.MESSAGES.empty_table())

    def size(self, first: int, last: int) -> int:
        """Returns the bytes of bodies and attributes of the messages in a range. Keeps no messages in memory."""
        size = 0
        while first <= last:
            first, rows = self.rows(first, last)
            size += rows["body"].nbytes + rows["message_attributes"].nbytes
            first += len(rows)
        return size

    def _known(self, first: int, last: int) -> pa.Table | None:
        with self._ledger.reading() as log:
            return self.bodies.rows(log.table, log.log, first, last)
