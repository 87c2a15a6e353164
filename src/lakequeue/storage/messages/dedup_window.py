"""The deduplication window of a shard: ids sent within the last minutes, with their offsets (DDP-1, JOB-6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages.read import LogFile, stretches

Key = str | tuple[str, str]


def dedup_key(group_id: str | None, dedup_id: str | None, by_group: bool) -> Key:
    """Key that must not repeat: the deduplication id, within its group if that is the scope (DDP-2, DDP-14)."""
    return (group_id or "", dedup_id or "") if by_group else dedup_id or ""


class DedupWindow:
    """Offsets by key of messages sent less than ``micros`` ago; follows the log of a shard.

    Not thread-safe, its owner locks.
    """

    def __init__(self, by_group: bool, micros: int) -> None:
        self.by_group = by_group
        self.micros = micros
        self.end = 0
        """Offset after the last message that was added."""
        self._offsets: dict[Key, int] = {}
        self._sends: deque[tuple[int, int, Sequence[Key | None]]] = deque()  # instant, first offset, keys

    def find(self, key: Key) -> int | None:
        """Offset of the message with a key; None if there is none."""
        return self._offsets.get(key)

    def advance(self, now: int) -> None:
        """Forgets what was sent ``micros`` ago or earlier (DDP-9, DDP-11)."""
        while self._sends and self._sends[0][0] <= now - self.micros:
            _, first, keys = self._sends.popleft()
            for offset, key in enumerate(keys, first):
                if key is not None and self._offsets.get(key) == offset:
                    del self._offsets[key]

    def forget_below(self, offset: int) -> None:
        """Forgets what a purge removed (DDP-13)."""
        self._offsets = {key: at for key, at in self._offsets.items() if at >= offset}

    def add(self, first: int, keys: Sequence[Key | None], sent_at: int) -> None:
        """Adds messages that were sent at one instant, from offset ``first`` on; a key of None is not recorded."""
        self._sends.append((sent_at, first, keys))
        self._offsets.update((key, offset) for offset, key in enumerate(keys, first) if key is not None)
        self.end = first + len(keys)

    def follow(self, table: Table, files: Sequence[LogFile], end: int, now: int) -> None:
        """Reads what was added to the log since the last call, as far as it lies in the window."""
        recent: list[tuple[LogFile, pa.Table]] = []
        for file in reversed(files):
            if file.last < self.end:
                break
            rows = table.read([file.file], ["position", "sent_at", "group_id", "dedup_id", "source_queue"])[0]
            file.check(rows["position"], file.first, table.path)
            recent.append((file, rows))
            if file.sent_at(rows)[0].as_py() <= now - self.micros:
                break
        for file, rows in reversed(recent):
            self._add_rows(file, rows, now - self.micros)
        self.end = end

    def _add_rows(self, file: LogFile, rows: pa.Table, horizon: int) -> None:
        sent = file.sent_at(rows).to_numpy()
        begin = max(self.end - file.first, int(np.searchsorted(sent, horizon, side="right")))
        ids = pc.if_else(pc.is_null(rows["source_queue"]), rows["dedup_id"], None)  # moved messages do not count
        keys: list[Key | None] = ids.slice(begin).to_pylist()
        if self.by_group:
            groups = rows["group_id"].slice(begin).to_pylist()
            keys = [
                None if key is None else dedup_key(group, str(key), True)
                for group, key in zip(groups, keys, strict=True)
            ]
        for start, stop in stretches(sent[begin:]):
            if start < stop:
                self.add(file.first + begin + start, keys[start:stop], int(sent[begin + start]))
