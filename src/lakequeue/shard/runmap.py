"""The interval map of one shard: disjoint, maximal runs by first offset, with a record of changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict

from lakequeue.shard.runs import Run


class RunMap:
    """Runs by first offset. Every operation costs O(log n) plus the runs it touches."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs: SortedDict[int, Run] = SortedDict({run.first: run for run in runs})
        self._before: dict[int, Run | None] = {}  # by first offset: the run at the last `changes`, if any
        self._handed_out: dict[int, Run | None] = {}  # the same for changes that are being committed
        self.size = sum(run.last - run.first + 1 for run in self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    @property
    def first(self) -> int | None:
        """Lowest offset that lies in a run."""
        return self._runs.peekitem(0)[0] if self._runs else None

    def at(self, offset: int) -> Run | None:
        """The run that holds an offset."""
        for key in self._runs.irange(maximum=offset, reverse=True):
            run = self._runs[key]
            return run if run.last >= offset else None
        return None

    def first_from(self, offset: int) -> int | None:
        """Lowest offset in a run that is not below this one."""
        if self.at(offset) is not None:
            return offset
        return next(iter(self._runs.irange(minimum=offset)), None)

    def overlapping(self, first: int, last: int) -> list[Run]:
        """Runs with an offset in the range, uncut, in order."""
        found = []
        before = self.at(first)
        if before is not None and before.first < first:
            found.append(before)
        runs = self._runs
        found.extend(runs[key] for key in runs.irange(first, last))
        return found

    def pieces(self, first: int, last: int) -> Iterator[Run]:
        """The parts of runs that lie in the range, in order."""
        for run in self.overlapping(first, last):
            if run.first >= first and run.last <= last:
                yield run
            else:
                yield run._replace(first=max(run.first, first), last=min(run.last, last))

    def pieces_from(self, first: int) -> Iterator[Run]:
        """The parts of runs from an offset on, in order; lazy."""
        run = self.at(first)
        if run is not None:
            yield run._replace(first=first)
        for key in self._runs.irange(minimum=first, inclusive=(run is None, True)):
            yield self._runs[key]

    def pieces_down_from(self, last: int) -> Iterator[Run]:
        """The parts of runs up to an offset, the last one first; lazy."""
        for key in self._runs.irange(maximum=last, reverse=True):
            run = self._runs[key]
            yield run._replace(last=min(run.last, last))

    def cut(self, first: int, last: int) -> None:
        """Removes a range, splitting the runs at its ends."""
        for run in self.overlapping(first, last):
            self._drop(run)
            if run.first < first:
                self._add(run._replace(last=first - 1))
            if run.last > last:
                self._add(run._replace(first=last + 1))

    def put(self, run: Run) -> None:
        """Sets a run and joins it with neighbours that are alike."""
        self.cut(run.first, run.last)
        left = self.at(run.first - 1)
        if left is not None and left.alike(run):
            self._drop(left)
            run = run._replace(first=left.first)
        right = self._runs.get(run.last + 1)
        if right is not None and right.alike(run):
            self._drop(right)
            run = run._replace(last=right.last)
        self._add(run)

    def changes(self) -> tuple[list[Run], list[int]]:
        """Changes since the committed state: runs to put, and first offsets to delete."""
        self._before |= self._handed_out
        self._handed_out, self._before = self._before, {}
        puts: list[Run] = []
        deletes: list[int] = []
        for key in sorted(self._handed_out):
            old, new = self._handed_out[key], self._runs.get(key)
            if new is None:
                if old is not None:
                    deletes.append(key)
            elif new != old:
                puts.append(new)
        return puts, deletes

    def committed(self) -> None:
        """Takes the state at the last ``changes`` as committed; later changes stay recorded."""
        self._handed_out = {}

    def _drop(self, run: Run) -> None:
        del self._runs[run.first]
        self._before.setdefault(run.first, run)
        self.size -= run.size

    def _add(self, run: Run) -> None:
        self._before.setdefault(run.first, None)
        self._runs[run.first] = run
        self.size += run.size
