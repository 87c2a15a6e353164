"""Message groups of a FIFO shard: which messages may be delivered, and which group is served next.

Claims take messages of a group up to the group's first hidden message (FIF-9). Groups whose oldest message is
visible wait in a heap. The group whose oldest message has been visible longest is served first (FIF-14).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from sortedcontainers import SortedDict

from lakequeue.model.attributes import QueueAttributes
from lakequeue.shard.runs import Head, MessageLog
from lakequeue.shard.spans import SpanSet, joined

LOOK_AHEAD = 4096
"""Number of offsets, the same in all processes, that a claim or delete searches for a group's messages (FIF-5)."""


class FifoShard(Protocol):
    """The parts of ``ShardIndex`` that FIFO message groups need."""

    head: Head
    log: MessageLog
    available: SpanSet
    attributes: QueueAttributes

    def stored_from(self, offset: int) -> int:
        """Returns the lowest stored offset at or above ``offset``. Never-received messages count as stored."""

    def visible_since(self, offset: int) -> int:
        """Returns the instant at which a message becomes visible, or has become visible."""

    def scan_before(self, place: tuple[int, int] | None) -> bool:
        """See ``ShardIndex.scan_before``."""

    def scan_to(self, end: int) -> bool:
        """See ``ShardIndex.scan_to``."""

    def stamp(self, offset: int) -> None: ...


class _GroupOffsets:
    """Ascending offsets of a message group, in pieces. ``at``: index of the next offset in the first piece."""

    __slots__ = ("at", "pieces")

    def __init__(self, offsets: Sequence[int]) -> None:
        self.pieces: deque[Sequence[int]] = deque([offsets])
        self.at = 0

    def head(self, shard: FifoShard) -> int | None:
        while self.pieces:
            piece = self.pieces[0]
            if self.at < len(piece):
                offset = int(piece[self.at])
                stored = shard.stored_from(offset)
                if stored == offset:
                    return offset
                self.at = bisect_left(piece, stored, self.at)
            else:
                self.pieces.popleft()
                self.at = 0
        return None

    def deliverable(self, shard: FifoShard, start: int, end: int, count: int) -> _Deliverable:
        """Returns up to ``count`` messages of the group. Stops before the first hidden message (FIF-9)."""
        part = _Deliverable()
        for piece in self.pieces:
            at = bisect_left(piece, start)
            while at < len(piece) and count > 0:
                offset = int(piece[at])
                last = shard.available.end_of(offset)
                if last is None:
                    stored = shard.stored_from(offset)
                    if stored == offset:
                        return part
                    at = bisect_left(piece, stored, at)
                elif offset >= end:
                    part.next = offset
                    return part
                else:
                    stop = min(at + count, bisect_right(piece, min(last, end - 1), at))
                    part.pieces.append(piece[at:stop])
                    count -= stop - at
                    at = stop
        part.all_known = True
        return part


class _Deliverable:
    def __init__(self) -> None:
        self.pieces: list[Sequence[int]] = []
        self.next: int | None = None  # the next message, which is visible but too far ahead
        self.all_known = False  # no hidden message was met, so the claim may go on with later messages of the log


class Groups:
    """The message groups of a FIFO shard. ``add`` adds messages, and ``pick`` takes messages for a claim."""

    def __init__(self, shard: FifoShard) -> None:
        self._shard = shard
        self._groups: dict[str, _GroupOffsets] = {}
        self._heads: SortedDict[int, str] = SortedDict()
        self._waiting: list[tuple[int, int, str]] = []  # visible heads: (visible since, offset, group)
        self._served: list[str] = []  # groups that lost their head and are not queued again yet
        self._picked: list[str] = []  # groups that the current claim has taken from
        self._open: dict[str, int | None] = {}  # those that may give more: their next offset, if known

    def add(self, spans: Sequence[tuple[int, int]]) -> None:
        """Adds messages to their groups. The offsets must be higher than in all earlier calls."""
        begun = {}
        for group, piece in self._shard.log.groups(spans):
            known = self._groups.get(group)
            if known is None:
                self._groups[group] = _GroupOffsets(piece)
                begun[group] = int(piece[0])
                continue
            known.pieces.append(piece)
            if group in self._open and self._open[group] is None:
                self._resume(group, int(piece[0]))
        self._shard.log.load(list(begun.values()))
        for group in begun:
            self._place(group)

    def pick(self, count: int, one_each: bool = False) -> list[tuple[int, int]]:
        """Takes messages for a claim, in delivery order (FIF-5, FIF-6). The caller must call ``placed`` next."""
        shard = self._shard
        found: list[tuple[int, int]] = []
        while count > 0:
            turn = self._next()
            if turn is None:
                break
            group, start = turn
            end = max(shard.head.head_offset, start) + LOOK_AHEAD
            shard.scan_to(end)
            part = self._groups[group].deliverable(shard, start, end, 1 if one_each else count)
            self._picked.append(group)
            self._open.pop(group, None)
            for first, last in joined((int(offset),) * 2 for piece in part.pieces for offset in piece):
                count -= last - first + 1
                shard.available.discard(first, last)
                found.append((first, last))
            if one_each:
                continue
            if part.next is not None:
                self._resume(group, part.next)
            elif part.all_known:
                self._open[group] = None
        return joined(found)

    def placed(self) -> None:
        """Puts groups back into the heap after ``pick`` has taken messages from them."""
        for group in self._picked:
            self._place(group)
        self._picked, self._open = [], {}

    def arrived(self, first: int, last: int) -> None:
        for group in self._headed(first, last):
            self._place(group)

    def removed(self, first: int, last: int) -> None:
        """Records that the messages of a range were removed. The caller must call ``serve`` next."""
        self._served += self._headed(first, last)

    def serve(self, *, behind: bool) -> None:
        """Puts groups back into the heap after removals. With ``behind``, these groups come last (FIF-14)."""
        shard, served = self._shard, dict.fromkeys(self._served)
        self._served = []
        if not served:
            return
        end = shard.head.head_offset + LOOK_AHEAD
        if behind:
            shard.scan_to(end)
        for group in served:
            head = self._groups[group].head(shard)
            if behind and head is not None and head < end and head in shard.available:
                shard.stamp(head)
            self._place(group)

    def _headed(self, first: int, last: int) -> list[str]:
        return [self._heads.pop(offset) for offset in list(self._heads.irange(first, last))]

    def _place(self, group: str) -> None:
        """Puts a group into the heap if its first message is available and the group is not paused."""
        offsets = self._groups.get(group)
        head = None if offsets is None else offsets.head(self._shard)
        if head is None:
            self._groups.pop(group, None)
            return
        self._heads[head] = group
        if head in self._shard.available and group not in (self._shard.attributes.reasons or ()):
            self._wait(group, head)

    def _resume(self, group: str, offset: int) -> None:
        """Continues a group in the current claim if the message at ``offset`` is available. Else ends its turn."""
        if offset in self._shard.available:
            self._open[group] = offset
            self._wait(group, offset)
        else:
            del self._open[group]

    def _wait(self, group: str, offset: int) -> None:
        heapq.heappush(self._waiting, (self._shard.visible_since(offset), offset, group))

    def _next(self) -> tuple[str, int] | None:
        """Takes the longest waiting group. Returns the group and its next offset; None if no group waits."""
        shard = self._shard
        while True:
            known = self._waiting[0] if self._waiting else None
            if shard.scan_before(None if known is None else known[:2]):
                continue
            if known is None:
                return None
            since, offset, group = heapq.heappop(self._waiting)
            offsets = self._groups.get(group)
            if offsets is None:
                continue
            place = self._open[group] if group in self._open else offsets.head(shard)
            if offset == place and offset in shard.available and shard.visible_since(offset) == since:
                return group, offset
