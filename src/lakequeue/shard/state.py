"""The state of one shard at one instant, indexed by when messages become available.

A message is in flight, delayed or available. The available ones are kept as ranges, lowest first; for the
others a heap holds `(instant, first, last)`. Entries are never taken out when a message changes before
its instant: what they point at is checked against the runs when the instant comes. So extending a lease of
a million messages costs one entry, and nothing is ever scanned per command.
"""

from __future__ import annotations

import heapq

import attrs

from lakequeue.attributes import QueueAttributes
from lakequeue.shard.runmap import RunMap
from lakequeue.shard.runs import IN_FLIGHT, READY, Head, Log, Run
from lakequeue.shard.spans import SpanSet

_CHUNK = 4096  # fresh messages asked of the log at a time, so that a small claim reads little of it
_MANY = 1000  # entries due at once that are handled one by one; beyond that both indexes are built anew
_STALE = 10_000  # outdated entries that the heap may hold before the same


class ShardState:
    """Runs, head and log with the two indexes over them; the rules live in `claim` and `settle`."""

    def __init__(self, head: Head, runs: list[Run], log: Log) -> None:
        self.head = head
        self.log = log
        self.now = head.committed_at
        self.attributes = QueueAttributes.from_wire(head.attributes)
        self.expired = 0  # messages that retention removed since the last commit
        self._index(RunMap(runs))

    def _index(self, runs: RunMap) -> None:
        """Build both indexes from the runs alone; fresh messages join them as they are looked at."""
        now = self.now
        self.runs = runs
        self.in_flight = 0
        self.scanned = self.head.head_offset
        available: list[tuple[int, int]] = []
        coming: list[tuple[int, int, int]] = []
        never_received: list[Run] = []
        for run in runs:
            if run.visible_at is None:
                never_received.append(run)
            elif run.visible_at <= now:
                available.append((run.first, run.last))
            else:
                coming.append((run.visible_at, run.first, run.last))
                if run.state == IN_FLIGHT:
                    self.in_flight += run.size
        heapq.heapify(coming)
        self.available = SpanSet(available)
        self._coming = coming
        self._heap_limit = 2 * len(coming) + _STALE
        for run in never_received:
            self._scan(run.first, run.last)

    # -- time ---------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Move to `now`, never backwards: end what has timed out, remove what has expired."""
        self.now = max(self.now, now)
        due = 0
        while self._coming and self._coming[0][0] <= self.now:
            due += 1
            if due > _MANY:
                self._index(self.runs)
                break
            _, first, last = heapq.heappop(self._coming)
            self._arrive(first, last)
        if len(self._coming) > self._heap_limit:
            self._index(self.runs)
        self.expire()

    def _arrive(self, first: int, last: int) -> None:
        """Make available what is due in a range that an entry of the heap named."""
        for run in self.runs.overlapping(first, last):
            if run.visible_at is None or run.visible_at <= self.now:
                added = self.available.add(max(run.first, first), min(run.last, last))
                if run.state == IN_FLIGHT:
                    self.in_flight -= added
        if last >= self.head.head_offset:
            self.available.add(max(first, self.head.head_offset), last)

    def expired_below(self) -> int:
        """First offset that retention still keeps: gone is what is exactly as old or older (RET-1)."""
        return self.log.first_sent_at_or_after(self.now - self.attributes.retention_micros + 1)

    def expire(self) -> None:
        """Remove what is past retention, from whatever state (STA-5, RET-2, RET-3)."""
        below = self.expired_below()
        lowest = self.lowest
        if lowest is not None and lowest < below:
            before = self.stored
            self._forget(below)
            self.expired += before - self.stored

    # -- what is there ------------------------------------------------------------------------------------

    @property
    def lowest(self) -> int | None:
        """Lowest offset that is stored."""
        first = self.runs.first
        if first is None and self.head.head_offset < self.log.end:
            return self.head.head_offset
        return first

    @property
    def stored(self) -> int:
        """Messages neither deleted nor removed."""
        return self.runs.size + max(0, self.log.end - self.head.head_offset)

    @property
    def room(self) -> int | None:
        """Messages that may still become in flight; None without a cap (INF-6)."""
        cap = self.attributes.inflight_limit
        return None if cap is None else max(0, cap - self.in_flight)

    def live(self, run: Run) -> bool:
        """Whether the receipt of a run still hides it."""
        return run.state == IN_FLIGHT and run.visible_at is not None and run.visible_at > self.now

    def current_head(self) -> Head:
        """The head with its floor brought up to date."""
        first = self.runs.first
        floor = self.head.head_offset if first is None else min(first, self.head.head_offset)
        return attrs.evolve(self.head, floor_offset=floor)

    def next_arrival(self) -> int | None:
        """Earliest instant after now at which a hidden message becomes available."""
        self.look_at_all()
        while self._coming:
            instant, first, last = self._coming[0]
            if last >= self.head.head_offset or any(
                run.visible_at is None or run.visible_at == instant for run in self.runs.overlapping(first, last)
            ):
                return instant
            heapq.heappop(self._coming)
        return None

    # -- looking at fresh messages ------------------------------------------------------------------------

    def look_for(self, count: int) -> None:
        """Look at fresh messages until `count` are available, or all were looked at."""
        chunk = _CHUNK
        while self.available.size < count and self.scanned < self.log.end:
            chunk = max(chunk * 2, count - self.available.size)
            last = min(self.log.end, self.scanned + chunk) - 1
            self._scan(self.scanned, last)
            self.scanned = last + 1

    def look_at_all(self) -> None:
        """Look at every fresh message."""
        if self.scanned < self.log.end:
            self._scan(self.scanned, self.log.end - 1)
            self.scanned = self.log.end

    def _scan(self, first: int, last: int) -> None:
        for start, end, instant in self.log.spans(first, last):
            if instant <= self.now:
                self.available.add(start, end)
            else:
                heapq.heappush(self._coming, (instant, start, end))
                self._heap_limit += 2

    # -- transitions --------------------------------------------------------------------------------------

    def take(self, count: int) -> list[Run]:
        """Pick up to `count` available messages, the lowest first, for `hide`.

        Fresh ones become part of the map: the head passes them, and delayed ones before them turn into
        `ready` runs (DLY-1).

        Returns:
            Parts of runs in order, neighbours joined.
        """
        taken: list[Run] = []
        for first, last in self.available.take(count):
            head = self.head.head_offset
            known = list(self.runs.pieces(first, min(last, head - 1))) if first < head else []
            if last >= head:
                if first > head:
                    self.runs.put(Run(head, first - 1))
                known.append(Run(max(first, head), last))
                self.head = attrs.evolve(self.head, head_offset=last + 1)
            taken.extend(known)
        return taken

    def set_runs(self, runs: list[Run]) -> None:
        """Give messages that are known to be neither available nor in flight a new state."""
        for run in runs:
            self.runs.put(run)
            assert run.visible_at is not None
            if run.visible_at <= self.now:
                self.available.add(run.first, run.last)
            else:
                heapq.heappush(self._coming, (run.visible_at, run.first, run.last))
                if run.state == IN_FLIGHT:
                    self.in_flight += run.size

    def hide(self, run: Run, visible_at: int) -> bool:
        """Let the receipt of a run (or part of one) last until `visible_at`; False if it does so already."""
        if run.visible_at == visible_at:
            return False
        self._leave(run)
        self.set_runs([run._replace(visible_at=visible_at)])
        return True

    def hand_back(self, run: Run) -> None:
        """Make a run visible now; lease and receive count stay with it (VIS-4, VIS-16)."""
        self._leave(run)
        self.set_runs([run._replace(state=READY, visible_at=self.now)])

    def remove(self, run: Run) -> None:
        """Delete a run, or part of one (DEL-3)."""
        self._leave(run)
        self.runs.cut(run.first, run.last)

    def remove_all(self) -> None:
        """Remove every message up to the end of the log."""
        self._forget(self.log.end)

    def _leave(self, run: Run) -> None:
        self.available.discard(run.first, run.last)
        if self.live(run):
            self.in_flight -= run.size

    def _forget(self, below: int) -> None:
        """Remove every message below an offset, and move the head there."""
        self.head = attrs.evolve(self.head, head_offset=max(self.head.head_offset, below))
        self.scanned = max(self.scanned, below)
        first = self.runs.first
        if first is not None and first < below:
            for run in list(self.runs.pieces(first, below - 1)):
                if self.live(run):
                    self.in_flight -= run.size
            self.runs.cut(first, below - 1)
        lowest = next(iter(self.available), None)
        if lowest is not None and lowest[0] < below:
            self.available.discard(lowest[0], below - 1)
