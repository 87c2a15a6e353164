"""Ranges of offsets, which include both ends, and sets of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sortedcontainers import SortedDict

Span = tuple[int, int]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Joins each range with the next range if there is no gap between them."""
    found: list[Span] = []
    for first, last in spans:
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def ranges(offsets: Iterable[int]) -> list[Span]:
    return joined((offset, offset) for offset in offsets)


def apart(first: int, last: int, spans: Iterable[Span]) -> list[Span]:
    """Returns the gaps between ascending ranges, within the range from ``first`` to ``last``."""
    found = []
    for start, end in spans:
        if first < start:
            found.append((first, start - 1))
        first = end + 1
    return [*found, (first, last)] if first <= last else found


class SpanSet:
    """A set of offsets, kept as ranges that have gaps between them."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        """Creates the set from ascending, disjoint ranges."""
        self._spans: SortedDict[int, int] = SortedDict(joined(spans))
        self.size = sum(last - first + 1 for first, last in self._spans.items())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._spans.items())

    def __contains__(self, offset: int) -> bool:
        return self.end_of(offset) is not None

    def end_of(self, offset: int) -> int | None:
        """Returns the last offset of the range that contains ``offset``; None if there is no such range."""
        for first in self._spans.irange(maximum=offset, reverse=True):
            last = self._spans[first]
            return last if last >= offset else None
        return None

    def add(self, first: int, last: int) -> int:
        """Adds a range of offsets. Returns the number of offsets that were not in the set before."""
        known = self.discard(first, last)
        size = last - first + 1
        self.size += size
        spans = self._spans
        right = spans.pop(last + 1, None)
        if right is not None:
            last = right
        for key in spans.irange(maximum=first - 1, reverse=True):
            if spans[key] == first - 1:
                first = key
            break
        spans[first] = last
        return size - known

    def add_apart(self, spans: Sequence[Span]) -> None:
        """Adds ranges that neither overlap nor touch another range. Takes a tenth of the time of ``add``."""
        self._spans.update(spans)
        self.size += sum(last - first + 1 for first, last in spans)

    def discard(self, first: int, last: int) -> int:
        """Removes a range of offsets. Returns the number of removed offsets."""
        spans = self._spans
        found = list(spans.irange(first, last))
        for key in spans.irange(maximum=first - 1, reverse=True):
            if spans[key] >= first:
                found.append(key)
            break
        removed = 0
        for key in found:
            end = spans.pop(key)
            removed += min(end, last) - max(key, first) + 1
            if key < first:
                spans[key] = first - 1
            if end > last:
                spans[last + 1] = end
        self.size -= removed
        return removed

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        end = self.end_of(first - 1)
        found = [] if end is None or end < first else [(first, min(end, last))]
        return found + [(start, min(self._spans[start], last)) for start in self._spans.irange(first, last)]

    def take_within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Removes the offsets within a range. Returns the removed offsets as ranges."""
        found = self.within(first, last)
        self.discard(first, last)
        return found

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the offsets of a range that are not in the set, as ranges."""
        return apart(first, last, self.within(first, last))

    def next_from(self, offset: int) -> int | None:
        """Returns the lowest offset of the set from ``offset`` on. Returns None if there is no such offset."""
        if offset in self:
            return offset
        return next(self._spans.irange(offset), None)

    def take(self, count: int) -> list[tuple[int, int]]:
        """Removes up to ``count`` offsets, lowest first. Returns the removed offsets as ranges."""
        taken = []
        spans = self._spans
        while count > 0 and spans:
            first, last = spans.popitem(0)
            if last - first + 1 > count:
                spans[first + count] = last
                last = first + count - 1
            taken.append((first, last))
            count -= last - first + 1
            self.size -= last - first + 1
        return taken
