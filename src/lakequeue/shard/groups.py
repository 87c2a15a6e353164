"""Message groups of a FIFO shard: which messages may be delivered, and which group's turn it is.

A group is served from its oldest stored message, its head, up to its first hidden one (FIF-9). The groups whose
head is visible stand in a heap by how long it has been so (FIF-14); all are found by the offset of their head
when that becomes visible or is removed. Entries of the heap are checked when they come up, never taken out.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from lakequeue.shard.state import ShardState

LOOK_AHEAD = 4096
"""Messages, from the shard's head or the group's on, among which a claim looks for more of the same group before
it turns to the next, and a delete for a group's next message: the same for a process that has read the whole log
and one that has not."""


class _Line:
    """Offsets of one group in order, in the pieces that the log gave; those before `at` are behind us."""

    __slots__ = ("at", "pieces")

    def __init__(self, offsets: Sequence[int]) -> None:
        self.pieces: deque[Sequence[int]] = deque([offsets])
        self.at = 0

    def head(self, state: ShardState) -> int | None:
        """The oldest stored message; what is before it is left behind."""
        while self.pieces:
            piece = self.pieces[0]
            if self.at < len(piece):
                offset = int(piece[self.at])
                stored = state.stored_from(offset)
                if stored == offset:
                    return offset
                self.at = bisect_left(piece, stored, self.at)
            else:
                self.pieces.popleft()
                self.at = 0
        return None

    def deliverable(self, state: ShardState, start: int, end: int, count: int) -> _Part:
        """Up to `count` messages from `start` on, before the first that is stored and hidden (FIF-9)."""
        part = _Part()
        for piece in self.pieces:
            at = bisect_left(piece, start)
            while at < len(piece) and count > 0:
                offset = int(piece[at])
                last = state.available.end_of(offset)
                if last is None:
                    stored = state.stored_from(offset)
                    if stored == offset:
                        return part
                    at = bisect_left(piece, stored, at)
                elif offset >= end:
                    part.go_on = offset
                    return part
                else:
                    stop = min(at + count, bisect_right(piece, min(last, end - 1), at))
                    part.offsets.append(piece[at:stop])
                    count -= stop - at
                    at = stop
        part.all_known = True
        return part


class _Part:
    """What a group gives to a claim."""

    def __init__(self) -> None:
        self.offsets: list[Sequence[int]] = []
        self.go_on: int | None = None  # the next message, which is visible but too far ahead
        self.all_known = False  # nothing hidden was met: what the log still holds of the group may follow


class Groups:
    """The groups of a shard, over everything that its state has looked at."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._lines: dict[str, _Line] = {}
        self._heads: SortedDict[int, str] = SortedDict()
        self._waiting: list[tuple[int, int, str]] = []  # heads that are visible: (since when, offset, group)
        self._served: list[str] = []  # groups that lost their head and are not in line again yet
        self._picked: list[str] = []  # groups that a claim has taken from
        self._open: dict[str, int | None] = {}  # those of them that may give more: the next offset, if known

    def add(self, spans: Sequence[tuple[int, int]]) -> None:
        """Take in messages behind all those known so far."""
        begun = []
        for group, offsets in self._state.log.groups(spans):
            line = self._lines.get(group)
            if line is None:
                self._lines[group] = _Line(offsets)
                begun.append(group)
                continue
            line.pieces.append(offsets)
            if group in self._open and self._open[group] is None:
                self._go_on(group, int(offsets[0]))
        for group in begun:
            self._place(group)

    def pick(self, count: int) -> list[tuple[int, int]]:
        """Take up to `count` messages off the available ones; ranges in the order of delivery (FIF-5, FIF-6).

        `placed` must follow once the caller has given them their new state.
        """
        state = self._state
        found: list[tuple[int, int]] = []
        while count > 0:
            turn = self._next()
            if turn is None:
                break
            group, start = turn
            end = max(state.head.head_offset, start) + LOOK_AHEAD
            state.look_up_to(end)
            part = self._lines[group].deliverable(state, start, end, count)
            self._picked.append(group)
            self._open.pop(group, None)
            for first, last in _ranges(offset for offsets in part.offsets for offset in offsets):
                count -= last - first + 1
                state.available.discard(first, last)
                if found and found[-1][1] + 1 == first:
                    found[-1] = (found[-1][0], last)
                else:
                    found.append((first, last))
            if part.go_on is not None:
                self._go_on(group, part.go_on)
            elif part.all_known:
                self._open[group] = None
        return found

    def placed(self) -> None:
        """Put the groups of the last `pick` back in line."""
        for group in self._picked:
            self._place(group)
        self._picked, self._open = [], {}

    def arrived(self, first: int, last: int) -> None:
        """Messages of a range may have become visible."""
        for group in self._headed(first, last):
            self._place(group)

    def removed(self, first: int, last: int) -> None:
        """A range is gone from the map; `serve` must follow."""
        self._served += self._headed(first, last)

    def serve(self, *, behind: bool) -> None:
        """Put the groups that lost their head back in line, `behind` those that wait (FIF-14)."""
        state, served = self._state, dict.fromkeys(self._served)
        self._served = []
        if not served:
            return
        end = state.head.head_offset + LOOK_AHEAD
        if behind:
            state.look_up_to(end)
        for group in served:
            head = self._lines[group].head(state)
            if behind and head is not None and head < end and head in state.available:
                state.stamp(head)
            self._place(group)

    def _headed(self, first: int, last: int) -> list[str]:
        """Groups whose head is in a range; they have none until they are placed again."""
        return [self._heads.pop(offset) for offset in list(self._heads.irange(first, last))]

    def _place(self, group: str) -> None:
        """Stand a group in line by its head, or forget it if nothing of it is left."""
        line = self._lines.get(group)
        head = None if line is None else line.head(self._state)
        if head is None:
            self._lines.pop(group, None)
            return
        self._heads[head] = group
        if head in self._state.available:
            self._wait(group, head)

    def _go_on(self, group: str, offset: int) -> None:
        """Let a group that a claim has taken from give it more when its turn comes again."""
        if offset in self._state.available:
            self._open[group] = offset
            self._wait(group, offset)
        else:
            del self._open[group]

    def _wait(self, group: str, offset: int) -> None:
        heapq.heappush(self._waiting, (self._state.visible_since(offset), offset, group))

    def _next(self) -> tuple[str, int] | None:
        """The group that has waited longest and where to go on with it, looking at fresh messages for others."""
        state = self._state
        while True:
            known = self._waiting[0] if self._waiting else None
            if state.look_before(None if known is None else known[:2]):
                continue
            if known is None:
                return None
            since, offset, group = heapq.heappop(self._waiting)
            line = self._lines.get(group)
            if line is None:
                continue
            place = self._open[group] if group in self._open else line.head(state)
            if offset == place and offset in state.available and state.visible_since(offset) == since:
                return group, offset


def _ranges(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as ranges."""
    first = last = -2
    for offset in map(int, offsets):
        if offset != last + 1:
            if first >= 0:
                yield first, last
            first = offset
        last = offset
    if first >= 0:
        yield first, last
