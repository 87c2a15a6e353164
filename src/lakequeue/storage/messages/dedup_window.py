"""The deduplication window of a shard (DDP-1, JOB-6): ids that were sent recently, with their offsets."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages.read import Integers, log_files

Key = str | tuple[str, str]
_LEAST = 1_024
"""Number of slots in the smallest hash table. A power of two."""
_EMPTY, _DROPPED = -2, -1
"""Values of a slot without an offset: never used, and used for a message that was dropped."""
_JUDGED = ["sent_at", "source_queue"]
_ROWS = 65_536
"""Maximum number of rows for which keys are built at once."""


def dedup_key(group_id: str | None, dedup_id: str | None, by_group: bool) -> Key:
    """Returns the id that must not repeat. With ``by_group``, the group is part of the id (DDP-2, DDP-14)."""
    return (group_id or "", dedup_id or "") if by_group else dedup_id or ""


def sent_after(table: Table, first: int, horizon: int) -> Iterator[tuple[int, Integers, pa.Table]]:
    """Yields for each file the messages sent after ``horizon``, from offset ``first`` on: the offset of the first
    of these messages, their send times, and their rows.

    The rows have the group and the deduplication id, which is NULL if the message was moved from another queue
    (DDP-16).
    """
    files = log_files(table)
    # A segment has no messages sent after the next segment was opened.
    ends = {file.base: later.opened_at for file, later in pairwise(files) if later.base != file.base}
    recent = [
        file
        for file in files
        if file.last >= first
        and (file.opened_at > horizon if file.bulk else ends.get(file.base, horizon + 1) > horizon)
    ]
    names = ["group_id", "dedup_id", *_JUDGED]
    tables = table.folder.for_each(lambda file: file.rows_of(table, names), recent)
    for file, rows in zip(recent, tables, strict=True):
        sent = file.sent_at(rows).to_numpy()
        begin = max(first - file.first, int(np.searchsorted(sent, horizon, side="right")))
        rows = rows.slice(begin)
        ids = pc.if_else(pc.is_null(rows["source_queue"]), rows["dedup_id"], None)
        yield file.first + begin, sent[begin:], layout.with_column(rows, "dedup_id", ids)


class DedupWindow:
    """Finds messages of the last ``micros`` microseconds by the hash of their key. Two keys may have one hash."""

    def __init__(self, by_group: bool, micros: int) -> None:
        self.by_group = by_group
        self.micros = micros
        self.end = 0
        """Offset after the last added message."""
        self._begin = 0  # Offsets below it no longer count.
        # Time and first offset of each send in the window, and maybe of earlier sends.
        self._instants, self._firsts = array("q"), array("q")
        self._offsets = _Offsets()

    def find(self, key: Key) -> list[int]:
        """Returns offsets of messages that may have this key. Check them, as two keys may have one hash."""
        return self._offsets.find(hash(key), self._begin)

    def drop(self, key: Key, offset: int) -> None:
        """Removes a message that ``find`` has returned."""
        self._offsets.drop(hash(key), offset)

    def advance(self, now: int) -> None:
        """Drops messages that are at least ``micros`` microseconds old at ``now`` (DDP-9, DDP-11)."""
        gone = bisect_right(self._instants, now - self.micros)
        if gone:
            self.forget_below(self._firsts[gone] if gone < len(self._firsts) else self.end)
        if 2 * gone > len(self._instants):  # Moves each entry once on average, instead of at each call.
            del self._instants[:gone], self._firsts[:gone]

    def forget_below(self, offset: int) -> None:
        """Drops messages below ``offset``, for example after a purge (DDP-13)."""
        self._begin = max(self._begin, offset)

    def add(self, first: int, keys: Sequence[Key | None], sent_at: int) -> None:
        """Adds messages sent at one instant, from offset ``first`` on. Skips messages with the key None."""
        self._instants.append(sent_at)
        self._firsts.append(first)
        self._add_keys(first, keys)

    def _add_keys(self, first: int, keys: Sequence[Key | None]) -> None:
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        offsets = np.arange(first, first + len(keys))
        if None in keys:
            known = np.array([key is not None for key in keys])
            hashes, offsets = hashes[known], offsets[known]
        self._offsets.add(hashes, offsets, self._begin)
        self.end = first + len(keys)

    def follow(self, table: Table, end: int, now: int) -> None:
        """Adds the messages that were appended since the last call, unless they are too old for the window."""
        for first, sent, rows in sent_after(table, self.end, now - self.micros):
            self._add_rows(first, sent, rows)
        self.end = end

    def _add_rows(self, first: int, sent: Integers, rows: pa.Table) -> None:
        starts = np.flatnonzero(np.diff(sent, prepend=-1))  # First row of each send.
        self._instants.frombytes(sent[starts].astype(np.int64).tobytes())
        self._firsts.frombytes((first + starts).astype(np.int64).tobytes())
        for start in range(0, len(sent), _ROWS):
            keys: list[Key | None] = rows["dedup_id"].slice(start, _ROWS).to_pylist()
            if self.by_group:
                groups = rows["group_id"].slice(start, _ROWS).to_pylist()
                keys = [
                    None if key is None else dedup_key(group, str(key), True)
                    for group, key in zip(groups, keys, strict=True)
                ]
            self._add_keys(first + start, keys)


class _Offsets:
    """Hash table of offsets. A slot takes 16 bytes. A dictionary would take 100 to 200 bytes for an offset."""

    def __init__(self) -> None:
        self._hashes, self._offsets = _empty(_LEAST)
        self._taken = 0

    def find(self, hashed: int, begin: int) -> list[int]:
        """Returns the offsets that were added with this hash and are ``begin`` or greater."""
        found = []
        mask, hashes, offsets = len(self._offsets) - 1, self._hashes, self._offsets
        slot = hashed & mask
        while (offset := offsets.item(slot)) != _EMPTY:
            if hashes.item(slot) == hashed and offset >= begin:
                found.append(offset)
            slot = (slot + 1) & mask
        return found

    def drop(self, hashed: int, offset: int) -> None:
        mask = len(self._offsets) - 1
        slot = hashed & mask
        while self._offsets.item(slot) not in (offset, _EMPTY):
            slot = (slot + 1) & mask
        self._offsets[slot] = _DROPPED

    def add(self, hashes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], begin: int) -> None:
        """Adds offsets, each with a hash. May drop offsets below ``begin`` to make room."""
        self._taken += len(hashes)
        if 2 * self._taken > len(self._offsets):
            live = self._offsets >= begin
            kept = self._hashes[live], self._offsets[live]
            self._taken = len(kept[0]) + len(hashes)
            self._hashes, self._offsets = _empty(max(_LEAST, 1 << (2 * self._taken - 1).bit_length()))
            self._put(*kept, begin)
        self._put(hashes, offsets, begin)

    def _put(self, hashes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], begin: int) -> None:
        mask = len(self._offsets) - 1
        slots = hashes & mask
        # Each offset takes its slot if that is free. Of several offsets with one slot, one wins and the others try
        # the next slot.
        while len(slots):
            free = self._offsets[slots] < begin
            self._offsets[slots[free]], self._hashes[slots[free]] = offsets[free], hashes[free]
            left = self._offsets[slots] != offsets
            slots, hashes, offsets = (slots[left] + 1) & mask, hashes[left], offsets[left]


def _empty(size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.zeros(size, np.int64), np.full(size, _EMPTY, np.int64)
