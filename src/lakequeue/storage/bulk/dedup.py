"""Deduplication of bulk sends to FIFO queues (DDP-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.attributes import FIFO_DEDUP_MICROS as WINDOW
from lakequeue.storage import layout
from lakequeue.storage.bulk import staged_files
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.messages.dedup_window import sent_after

_KEY = ["group_id", "dedup_id"]
_SENT = pa.schema([("key", pa.large_string()), ("sent_at", pa.int64()), ("offset", pa.int64())])
_NO_KEYS = pa.chunked_array([], pa.large_string())

Mask = npt.NDArray[np.bool_]


def opened_at(table: Table, now: int) -> int:
    """Returns the send time for a commit at ``now``. It is at least the send time of all stored messages."""
    return max(now, table.transaction(layout.CLOCK_ID))


def without_repeats(messages: Folder, files: Sequence[DataFile], by_group: bool) -> list[DataFile]:
    """Rewrites files that repeat a deduplication id, so that only the first message of each id is left."""
    keys = [_keys(messages.rows(file.path, file.size, _KEY), by_group) for file in files]
    if not keys:
        return []
    parts = pa.chunked_array([chunk for part in keys for chunk in part.chunks]).dictionary_encode().chunks
    # ids are numbered as they appear, so the first of each is larger than all before it
    numbers = np.concatenate([part.indices.to_numpy() for part in parts])
    first = numbers > np.concatenate([[-1], np.maximum.accumulate(numbers)[:-1]])
    left = []
    for file, kept in zip(files, np.split(first, np.cumsum([file.rows for file in files])[:-1]), strict=True):
        if kept.any():
            left.append(file if kept.all() else staged_files.rewrite(messages, file, kept))
        if not kept.all():
            messages.remove([file.path])
    return left


class Duplicates:
    """Removes staged messages if their deduplication id was sent to the queue in the last five minutes."""

    def __init__(
        self, messages: Folder, staged: Sequence[DataFile], by_group: bool, purged: Callable[[], int]
    ) -> None:
        """Reads the ids of the staged files. ``purged`` returns the first offset after the last purge. A message
        that was purged makes no other message a duplicate (DDP-13).
        """
        self._messages = messages
        self._by_group = by_group
        self._purged = purged
        self._staged = [(file, _keys(messages.rows(file.path, file.size, _KEY), by_group)) for file in staged]
        self._sent = _SENT.empty_table()  # messages of the log with a key of the staged files
        self._known = 0  # offset up to which the log was read
        self._taken = _NO_KEYS
        self._left: list[DataFile] | None = None
        self._written: dict[str, tuple[Mask, DataFile]] = {}

    def check(self, table: Table, now: int) -> bool:
        """Reads messages sent since the last call. Returns True if the last result of ``files`` still holds."""
        instant = opened_at(table, now)
        self._follow(table, instant - WINDOW)
        sent = self._sent.filter(pc.greater(self._sent["sent_at"], instant - WINDOW))
        if len(sent):
            sent = sent.filter(pc.greater_equal(sent["offset"], self._purged()))
        if not sent["key"].equals(self._taken):
            self._taken, self._left = sent["key"], None
        return self._left is not None

    def files(self) -> list[DataFile]:
        """Returns the files to commit, without the duplicate messages."""
        if self._left is None:
            self._left = list(self._remaining())
        return self._left

    def _follow(self, table: Table, horizon: int) -> None:
        end = layout.end_of(table.transaction(layout.SEND_ID))
        if end == self._known:
            return
        sent = _sent_after(table, self._known, horizon, self._by_group)
        ours = [keys.filter(pc.is_in(keys, value_set=sent["key"])) for _, keys in self._staged]
        ours = pa.chunked_array([chunk for keys in ours for chunk in keys.chunks], pa.large_string())
        self._sent = pa.concat_tables([self._sent, sent.filter(pc.is_in(sent["key"], value_set=ours))])
        self._known = end

    def _remaining(self) -> Iterator[DataFile]:
        for file, keys in self._staged:
            kept = pc.invert(pc.is_in(keys, value_set=self._taken)).to_numpy()
            if kept.all():
                yield file
            elif kept.any():
                mask, written = self._written.get(file.path, (None, file))
                if mask is None or not np.array_equal(mask, kept):
                    written = staged_files.rewrite(self._messages, file, kept)
                    self._written[file.path] = kept, written
                yield written


def _keys(rows: pa.Table, by_group: bool) -> pa.ChunkedArray:
    """Returns deduplication ids. If ``by_group`` is True, the message group is part of the id (DDP-2, DDP-14)."""
    ids = rows["dedup_id"].cast(pa.large_string())
    if not by_group:
        return ids
    # neither can hold a space
    return pc.binary_join_element_wise(rows["group_id"].cast(pa.large_string()), ids, pa.scalar(" ", ids.type))


def _sent_after(table: Table, first: int, horizon: int, by_group: bool) -> pa.Table:
    parts = [_SENT.empty_table()]
    for begin, sent, rows in sent_after(table, first, horizon):
        offsets = np.arange(begin, begin + len(sent))
        parts.append(pa.table([_keys(rows, by_group), pa.array(sent), pa.array(offsets)], schema=_SENT))
    found = pa.concat_tables(parts)
    return found.filter(pc.is_valid(found["key"]))
