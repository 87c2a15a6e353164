"""The messages of one shard at one instant, indexed by the instant at which they become available.

Messages in flight or delayed are entries ``(instant, first, last)`` of a heap. If a receipt is extended, the heap
gets a new entry and also keeps the old entry. When the instant of an entry has come, the runs therefore decide
which of its messages are available. Messages beyond the cap on delayed messages are held back from becoming
available, and the index omits them (INF-9).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import attrs

from lakequeue.model.attributes import QueueAttributes
from lakequeue.shard.claim.fifo import Groups
from lakequeue.shard.claim.tenants import Tenants
from lakequeue.shard.runs import IN_FLIGHT, MOVING, Head, MessageLog, Run, RunMap
from lakequeue.shard.spans import SpanSet

_CHUNK = 4096  # fresh messages read from the log at a time, so that a small claim reads little
_MANY = 1000  # entries due at once that are handled one by one; above that the index is rebuilt
_STALE = 10_000  # outdated heap entries above which the index is rebuilt


class ShardIndex:
    """Runs, head and log of a shard. The index covers messages with offsets below ``scanned``. Messages from
    ``head.head_offset`` on were never received, and have no run.
    """

    def __init__(self, head: Head, runs: list[Run], log: MessageLog, history: Iterable[Run] = ()) -> None:
        self.head = head
        self.history = RunMap(history)
        self.log = log
        self.now = head.committed_at
        self.attributes = QueueAttributes.from_wire(head.attributes)
        self.expired = 0  # messages that retention removed since the last commit, history included
        self.scanned = 0
        self._groups: Groups | None = None
        self._tenants: Tenants | None = None
        # dead letters by the instant that their retention counts from: (instant, first, last)
        self.aging: list[tuple[int, int, int]] = []
        self.aging_end = head.floor_offset
        self._index(RunMap(runs))

    @property
    def delay(self) -> int | None:
        """Delay in microseconds of all messages of a FIFO queue (DLY-10). None on standard queues."""
        return self.attributes.delay_micros if self.attributes.fifo else None

    @property
    def groups(self) -> Groups:
        """The message groups of a FIFO queue. A claim or a delete builds them on first use."""
        if self._groups is None:
            self._groups = Groups(self)
            known = [(run.first, run.last) for run in self.runs]
            if self.scanned > self.head.head_offset:
                known.append((self.head.head_offset, self.scanned - 1))
            self._groups.add(known)
        return self._groups

    @property
    def by_tenant(self) -> bool:
        """True if claims of this standard queue choose a message group first (FAI-1)."""
        attributes = self.attributes
        some = attributes.group_in_flight_limit is not None or attributes.reasons is not None
        if attributes.fifo or not (attributes.fair_groups or some):
            return False
        lowest = self.lowest
        return lowest is not None and (some or self.log.only_group(lowest) is None)

    @property
    def tenants(self) -> Tenants:
        """The message groups of a standard queue. A claim or a late extension builds them on first use."""
        if self._tenants is None:
            self._tenants = Tenants(self)
            self._tenants.count([(run.first, run.last) for run in self.runs if self.live(run)], 1)
            self._tenants.add(list(self.available))
        return self._tenants

    def withdraw(self, first: int, last: int) -> list[tuple[int, int]]:
        """Removes a range of offsets from the available messages. Returns the removed ranges."""
        found = self.available.take_within(first, last)
        if self._tenants is not None and found:
            self._tenants.withdrawn(first, last)
        return found

    def count_in_flight(self, first: int, last: int, sign: int) -> None:
        """Counts a range of messages as in flight if ``sign`` is 1. Subtracts the range if ``sign`` is -1."""
        self.in_flight += sign * (last - first + 1)
        if self._tenants is not None:
            self._tenants.count([(first, last)], sign)

    def _index(self, runs: RunMap) -> None:
        now = self.now
        self.runs = runs
        self.attempts: dict[str, list[tuple[int, int]]] = {}
        self._groups = self._tenants = None
        self.in_flight = 0
        self.delayed = SpanSet()
        self.scanned = self.head.head_offset
        available: list[tuple[int, int]] = []
        coming: list[tuple[int, int, int]] = []
        never_received: list[Run] = []
        moving: list[tuple[int, int]] = []
        marked: list[tuple[int, int]] = []
        undecided: list[tuple[int, int]] = []
        for run in runs:
            if run.state == MOVING:
                moving.append((run.first, run.last))
                continue
            if run.attempt_id is not None:
                self.attempts.setdefault(run.attempt_id, []).append((run.first, run.last))
            if run.mark is not None:
                marked.append((run.first, run.last))
            if run.visible_at is None:
                never_received.append(run)
            elif run.visible_at <= now:
                (available if run.mark is None else undecided).append((run.first, run.last))
            else:
                coming.append((run.visible_at, run.first, run.last))
                if run.state == IN_FLIGHT:
                    self.in_flight += run.size
        heapq.heapify(coming)
        self.available = SpanSet(available)
        self.moving = SpanSet(moving)
        self.marked = SpanSet(marked)
        self.undecided = SpanSet(undecided)
        self._coming = coming
        self._heap_limit = 2 * len(coming) + _STALE
        for run in never_received:
            self._scan(run.first, run.last)

    def advance(self, now: int) -> None:
        """Advances the shard's time to ``now``, never back. Ended timeouts and delays make messages available."""
        self.now = max(self.now, now)
        due = 0
        while self._coming and self._coming[0][0] <= self.now:
            due += 1
            if due > _MANY:
                self._index(self.runs)
                break
            _, first, last = heapq.heappop(self._coming)
            if self.delayed.size:
                self.delayed.discard(first, last)
            self._arrive(first, last)
        if len(self._coming) > self._heap_limit:
            self._index(self.runs)

    def _arrive(self, first: int, last: int) -> None:
        for run in self.runs.overlapping(first, last):
            if run.state != MOVING and (run.visible_at is None or run.visible_at <= self.now):
                start, end = max(run.first, first), min(run.last, last)
                arrived = self.available if run.mark is None else self.undecided
                if run.state == IN_FLIGHT:
                    for gap in arrived.missing(start, end):
                        self.count_in_flight(*gap, -1)
                arrived.add(start, end)
        if last >= self.head.head_offset:
            self.available.add(max(first, self.head.head_offset), last)
        self._arrived(first, last)

    def _arrived(self, first: int, last: int) -> None:
        if self._groups is not None:
            self._groups.arrived(first, last)
        if self._tenants is not None:
            self._tenants.arrived(first, last)

    @property
    def lowest(self) -> int | None:
        """Lowest offset of a stored message; None if no message is stored."""
        first = self.runs.first
        if first is None and self.head.head_offset < self.log.end:
            return self.head.head_offset
        return first

    @property
    def stored(self) -> int:
        return self.runs.size + max(0, self.log.end - self.head.head_offset)

    @property
    def room(self) -> int | None:
        """Number of further messages that the cap allows in flight (INF-6). None if the queue has no cap."""
        cap = self.attributes.inflight_limit
        return None if cap is None else max(0, cap - self.in_flight)

    @property
    def released(self) -> int:
        """The first offset that the cap on delayed messages holds back, or the end of the log (INF-9)."""
        if self.attributes.delayed_limit is None:
            return self.log.end
        self.scan_all()
        return self.scanned

    def live(self, run: Run) -> bool:
        """True if a valid receipt hides the messages of the run."""
        return run.state == IN_FLIGHT and run.visible_at is not None and run.visible_at > self.now

    def next_arrival(self) -> int | None:
        """Returns the instant at which the next hidden message becomes available; None if there is none."""
        self.scan_all()
        while self._coming:
            instant, first, last = self._coming[0]
            if last >= self.head.head_offset or any(
                run.state != MOVING and (run.visible_at is None or run.visible_at == instant)
                for run in self.runs.overlapping(first, last)
            ):
                return instant
            heapq.heappop(self._coming)
        return None

    def scan_for(self, count: int) -> None:
        """Adds never-received messages to the index until ``count`` messages are available, or all are added."""
        chunk = _CHUNK
        while self.available.size < count and self.scanned < self.log.end:
            chunk = max(chunk * 2, count - self.available.size)
            if not self.scan_to(self.scanned + chunk):
                break

    def scan_before(self, place: tuple[int, int] | None) -> bool:
        """Adds further never-received messages to the index. Adds none if the message at ``place`` (instant,
        offset) is to be delivered before them. Returns True if messages were added.
        """
        if self.scanned >= self.log.end:
            return False
        since = self.visible_since(self.scanned)
        if (self.delay and since > self.now) or (place is not None and place < (since, self.scanned)):
            return False
        # doubles each time, so that a long backlog of one group takes few steps
        count = max(_CHUNK, self.scanned - self.head.head_offset)
        return self.scan_to(self.scanned + count)

    def scan_all(self) -> None:
        self.scan_to(self.log.end)

    def scan_to(self, end: int) -> bool:
        """Adds the never-received messages below offset ``end`` to the index, until the cap on delayed messages is
        reached. Returns True if messages were added.
        """
        first, end = self.scanned, min(end, self.log.end)
        cap = self.attributes.delayed_limit
        if first >= end or (cap is not None and self._held_from(cap, first, end, 0) == first):
            return False
        self.scanned = self._scan(first, end - 1)
        if self.scanned == first:
            return False
        if self._groups is not None:
            self._groups.add([(first, self.scanned - 1)])
        if self._tenants is not None:
            self._tenants.arrived(first, self.scanned - 1)
        return True

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yields ranges of never-received messages as (first, last, instant of availability)."""
        return self.log.spans(first, last, self.delay)

    def visible_since(self, offset: int) -> int:
        """Returns the instant at which a message becomes visible, or has become visible."""
        run = None if offset >= self.head.head_offset else self.runs.at(offset)
        if run is not None and run.visible_at is not None:
            return run.visible_at
        if self.delay is None:
            _, _, instant = next(self.spans(offset, offset))
            return instant or self.log.sent_at(offset)
        return self.log.sent_at(offset) + self.delay

    def stored_from(self, offset: int) -> int:
        """Returns the lowest stored offset at or above ``offset``. Never-received messages count as stored."""
        if offset >= self.head.head_offset:
            return offset
        first = self.runs.first_from(offset)
        return self.head.head_offset if first is None else first

    def _scan(self, first: int, last: int) -> int:
        """Adds a range of messages to the index, up to the cap on delayed messages. Returns the next offset."""
        cap = self.attributes.delayed_limit
        for start, end, instant in self.spans(first, last):
            stop = end + 1 if cap is None else self._held_from(cap, start, end + 1, instant)
            if start < stop and instant <= self.now:
                self.available.add(start, stop - 1)
            elif start < stop:
                heapq.heappush(self._coming, (instant, start, stop - 1))
                self._heap_limit += 2
                if cap is not None:
                    self.delayed.add(start, stop - 1)
            if stop <= end:
                return stop
        return last + 1

    def _held_from(self, cap: int, start: int, end: int, instant: int) -> int:
        """Returns the first offset in a range that the cap on delayed messages holds back, else ``end``."""
        room = max(0, cap - self.delayed.size)
        reached = start + room if instant > self.now else end if room else start
        return min(end, max(reached, self.head.head_offset, self.head.released_offset))

    def known(self, first: int, last: int) -> Iterator[Run]:
        """Yields the runs of the stored messages in a range. Makes runs for never-received messages."""
        head = self.head.head_offset
        if first < head:
            yield from self.runs.pieces(first, min(last, head - 1))
        if last >= head:
            yield from self.fresh(max(first, head), last)

    def fresh(self, first: int, last: int) -> Iterator[Run]:
        """Makes and yields runs for never-received messages. Dead letters keep their receive counts (DLQ-4)."""
        if first > last:
            return
        for start, end, count, _, received_at in self.log.dead_letters(first, last):
            if first < start:
                yield Run(first, start - 1)
            yield Run(start, end, receive_count=count, first_received_at=received_at, receives_before=count)
            first = end + 1
        if first <= last:
            yield Run(first, last)

    def pass_head(self, first: int, last: int) -> None:
        """Moves the head to the offset after ``last``. Never-received messages below ``first`` become ``visible``
        runs. The caller adds the runs from ``first`` to ``last``.
        """
        for run in self.fresh(self.head.head_offset, first - 1):
            self.runs.put(run)
        self.head = attrs.evolve(self.head, head_offset=last + 1)

    def stamp(self, offset: int) -> None:
        """Lets the waiting time of a message begin again, because its group was just served (FIF-14)."""
        if offset >= self.head.head_offset:
            self.pass_head(offset, offset)
        run = self.runs.at(offset) or next(self.fresh(offset, offset))
        self.runs.put(run._replace(first=offset, last=offset, visible_at=self.now))
