"""Fair receives of standard queues: which message group comes next, and which groups are noisy (FAI-2 to FAI-4).

A message group names a tenant; "" is the group of messages without one. A claim chooses the group of each message:

1. Skip a paused group, and a group with ``GroupInFlightLimit`` messages in flight.
2. For the first message, choose the longest waiting group if it waited for ``PATIENCE`` or longer.
3. Else choose the group with the fewest messages in flight or picked; then longest wait, then lowest offset.

A group that was served while another group waited begins to wait anew. After ``FAIR`` messages, a claim takes the
oldest messages; with a group limit, it takes as many of each group as the limit allows.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from sortedcontainers import SortedDict

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS
from lakequeue.shard.runs import Head, MessageLog
from lakequeue.shard.spans import Span, SpanSet, joined, ranges

FAIR = 1_000
"""Maximum number of messages that a claim picks by turns of groups. Further messages are picked by age."""
PATIENCE = 60 * MICROS
"""Microseconds. A group that has waited this long is served, however many messages it has in flight."""
NOISE = 4
"""Factor. A group is noisy if it has more messages than this factor times the median of all groups."""
NOISE_FROM = 10
"""Minimum number of messages that makes a group noisy."""


class GroupTurn(NamedTuple):
    """Place of a waiting group in the order of service. The group with the lowest place is served next."""

    in_flight: int
    since: int
    offset: int
    group: str


def is_overdue(since: int, now: int) -> bool:
    """True if a group has waited for ``PATIENCE``. An overdue group is served despite its messages in flight."""
    return now - since >= PATIENCE


class GroupLoad(NamedTuple):
    """Numbers of visible messages and of messages in flight of one message group, in a shard or in a queue."""

    group: str
    """Name of the message group; "" for messages without a group."""
    visible: int
    in_flight: int
    oldest_sent_at: int | None = None
    """Send instant of the oldest visible message, in microseconds; None if no message is visible."""


def noisy(loads: Sequence[GroupLoad]) -> set[str]:
    """Returns the noisy groups (FAI-3), which have too many messages in flight, or too many visible messages."""
    found: set[str] = set()
    for shares in ([load.in_flight for load in loads], [load.visible for load in loads]):
        usual = sorted(shares)[(len(shares) - 1) // 2] if shares else 0
        for load, share in zip(loads, shares, strict=True):
            if share >= NOISE_FROM and share > NOISE * usual:
                found.add(load.group)
    return found if len(loads) > 1 else set()


SCANNED = 1 << 24
"""Maximum number of available messages in the index of groups. Their offsets take at most 64 MiB."""
_STALE = 10_000  # with more outdated entries than this, the heaps are rebuilt


class TenantShard(Protocol):
    """The parts of ``ShardIndex`` that the message groups of standard queues need."""

    head: Head
    log: MessageLog
    now: int
    available: SpanSet
    attributes: QueueAttributes
    scanned: int

    def visible_since(self, offset: int) -> int: ...

    def scan_to(self, end: int) -> bool:
        """See ``ShardIndex.scan_to``."""

    def stamp(self, offset: int) -> None: ...


_Piece = tuple[int, int, Sequence[int], int]  # next offset, number, offsets, place of the next among them


class Tenants:
    """The message groups of a standard queue's shard, with the available messages of each group."""

    def __init__(self, shard: TenantShard) -> None:
        self._shard = shard
        self._fair = bool(shard.attributes.fair_groups)
        self._limit = shard.attributes.group_in_flight_limit
        self._paused = shard.attributes.reasons or {}
        self._any = self._limit is None and not self._paused
        self._pieces: dict[str, list[_Piece]] = {}
        self._count = 0  # of pieces
        self._in_flight: dict[str, int] = {}
        self._taken: dict[str, int] = {}  # of the current claim
        self._turns: dict[str, GroupTurn] = {}  # of the groups that wait
        self._heads: SortedDict[int, str] = SortedDict()  # those groups by the offset of their turn
        self._by_turn: list[GroupTurn] = []
        self._by_age: list[tuple[int, int, str]] = []

    def add(self, spans: Sequence[Span]) -> None:
        """Adds messages to their groups, because the messages may have become available."""
        changed = set()
        for group, piece in self._shard.log.groups(spans):
            self._count += 1
            entry = (int(piece[0]), self._count, piece, 0)
            heapq.heappush(self._pieces.setdefault(group, []), entry)
            changed.add(group)
        for group in changed:
            self._place(group)

    def arrived(self, first: int, last: int) -> None:
        self.add(self._shard.available.within(first, last))

    def withdrawn(self, first: int, last: int) -> None:
        for group in [self._heads[offset] for offset in self._heads.irange(first, last)]:
            self._place(group)

    def count(self, spans: Sequence[Span], sign: int) -> None:
        """Counts messages as in flight for their groups if ``sign`` is 1. Subtracts them if ``sign`` is -1."""
        for group, size in self._shard.log.group_sizes(spans):
            left = self._in_flight.get(group, 0) + sign * size
            if left:
                self._in_flight[group] = left
            else:
                self._in_flight.pop(group, None)
            if group not in self._taken:
                self._place(group)

    def pick(self, count: int) -> list[Span]:
        """Takes up to ``count`` messages for a claim. The caller must call ``placed`` next."""
        shard = self._shard
        most = max(count, SCANNED)
        while shard.available.size < most and shard.scan_to(shard.scanned + most - shard.available.size):
            pass
        found: list[Span] = []
        fair_left = FAIR
        while count > 0:
            if self._any and (fair_left <= 0 or not self._fair):
                rest = shard.available.take(count)
                for span in rest:
                    self.withdrawn(*span)
                found += rest
                break
            turn = self._first()
            if turn is None:
                break
            if self._fair and not self._taken:
                oldest = self._oldest()
                if oldest is not None and is_overdue(oldest.since, shard.now):
                    turn = oldest
            most = 1
            if fair_left <= 0 or self._is_alone(turn.group):
                most = min(count, fair_left) if self._any else count
            if self._limit is not None:
                most = min(most, self._limit - self._load(turn.group))
            taken = self._take(turn.group, most)
            size = sum(last - first + 1 for first, last in taken)
            found += taken
            count -= size
            fair_left -= size
            self._taken[turn.group] = self._taken.get(turn.group, 0) + size
            self._place(turn.group)
        return joined(sorted(found))

    def placed(self, put_back: Sequence[Span] = ()) -> None:
        """Lets the picked groups wait again. ``put_back`` lists picked ranges that were not claimed."""
        taken, self._taken = self._taken, {}
        for group in taken:
            self._place(group)
        if put_back:
            self.add(put_back)
        elif self._fair:
            behind = [group for group in taken if self._pieces.get(group) and not self._is_alone(group)]
            for group in behind:
                offset = self._next(group)
                if offset is not None:
                    self._shard.stamp(offset)
            for group in behind:
                self._place(group)

    def room(self, first: int, last: int) -> list[Span]:
        """Returns the messages of a range that a claim may take under the group limit, lowest offsets first."""
        if self._limit is None:
            return [(first, last)]
        room: dict[str, int] = {}
        found: list[int] = []
        for group, piece in self._shard.log.groups([(first, last)]):
            left = room.setdefault(group, max(0, self._limit - self._load(group)))
            found += [int(offset) for offset in piece[:left]]
            room[group] = left - len(piece[:left])
        return ranges(sorted(found))

    def _load(self, group: str) -> int:
        return self._in_flight.get(group, 0) + self._taken.get(group, 0)

    def _place(self, group: str) -> None:
        """Puts a group in line for claims, if it has available messages, is not paused, and is below its limit."""
        offset, load = self._next(group), self._load(group)
        before = self._turns.pop(group, None)
        if before is not None:
            del self._heads[before.offset]
        if offset is None or group in self._paused or (self._limit is not None and load >= self._limit):
            return
        weight = (load, self._shard.visible_since(offset)) if self._fair else (0, 0)
        turn = GroupTurn(*weight, offset, group)
        self._turns[group], self._heads[offset] = turn, group
        if turn != before:
            self._enter([turn])
            if len(self._by_turn) + len(self._by_age) > 4 * len(self._turns) + _STALE:
                self._by_turn, self._by_age = [], []
                self._enter(self._turns.values())

    def _enter(self, turns: Iterable[GroupTurn]) -> None:
        for turn in turns:
            heapq.heappush(self._by_turn, turn)
            if self._fair:
                heapq.heappush(self._by_age, turn[1:])

    def _first(self) -> GroupTurn | None:
        while self._by_turn:
            turn = self._by_turn[0]
            if self._turns.get(turn.group) == turn:
                return turn
            heapq.heappop(self._by_turn)
        return None

    def _oldest(self) -> GroupTurn | None:
        while self._by_age:
            oldest = self._by_age[0]
            turn = self._turns.get(oldest[2])
            if turn is not None and turn[1:] == oldest:
                return turn
            heapq.heappop(self._by_age)
        return None

    def _is_alone(self, group: str) -> bool:
        own: list[GroupTurn] = []
        while (turn := self._first()) is not None and turn.group == group:
            own.append(heapq.heappop(self._by_turn))
        for each in own[:1]:
            heapq.heappush(self._by_turn, each)
        return turn is None

    def _next(self, group: str) -> int | None:
        available, pieces = self._shard.available, self._pieces.get(group)
        while pieces:
            offset, number, piece, place = pieces[0]
            following = available.next_from(offset)
            if following == offset:
                return offset
            place = len(piece) if following is None else bisect_left(piece, following, place)
            self._move_on(pieces, number, piece, place)
        self._pieces.pop(group, None)
        return None

    @staticmethod
    def _move_on(pieces: list[_Piece], number: int, piece: Sequence[int], place: int) -> None:
        if place < len(piece):
            heapq.heapreplace(pieces, (int(piece[place]), number, piece, place))
        else:
            heapq.heappop(pieces)

    def _take(self, group: str, count: int) -> list[Span]:
        available, taken = self._shard.available, []
        while count > 0 and (offset := self._next(group)) is not None:
            pieces = self._pieces[group]
            _, number, piece, place = pieces[0]
            last = available.end_of(offset) or offset
            if len(pieces) > 1:  # not beyond where another piece begins
                last = max(offset, min(last, *(other[0] - 1 for other in pieces[1:3])))
            stop = place + 1 if count == 1 else min(place + count, bisect_right(piece, last, place))
            for span in joined((int(each), int(each)) for each in piece[place:stop]):
                available.discard(*span)
                taken.append(span)
            count -= stop - place
            self._move_on(pieces, number, piece, stop)
        return taken
