"""The state of one shard at one instant, indexed by when messages become available.

A message is in flight, delayed or available. The available ones are kept as ranges, lowest first; for the
others a heap holds `(instant, first, last)`. Entries are never taken out when a message changes before
its instant: what they point at is checked against the runs when the instant comes. So extending a lease of
a million messages costs one entry, and nothing is ever scanned per command.

With a cap on delayed messages the last ones of the log may be held (INF-9). Which, follows from the instant
alone: those behind the one that fills the cap, as delays end in any order, but none begins after the send. So
they are simply not looked at yet, and `released_offset` is needed only where the cap or the delays change.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import attrs

from lakequeue.model.attributes import QueueAttributes
from lakequeue.shard.groups import Groups
from lakequeue.shard.runmap import RunMap
from lakequeue.shard.runs import IN_FLIGHT, MOVING, READY, SETTLED, Head, Log, Run
from lakequeue.shard.spans import SpanSet

_CHUNK = 4096  # fresh messages asked of the log at a time, so that a small claim reads little of it
_MANY = 1000  # entries due at once that are handled one by one; beyond that both indexes are built anew
_STALE = 10_000  # outdated entries that the heap may hold before the same


class ShardState:
    """Runs, head and log with the two indexes over them; the rules live in `claim` and `settle`."""

    def __init__(self, head: Head, runs: list[Run], log: Log, history: Iterable[Run] = ()) -> None:
        self.head = head
        self.history = RunMap(history)
        self.log = log
        self.now = head.committed_at
        self.attributes = QueueAttributes.from_wire(head.attributes)
        self.expired = 0  # messages that retention removed since the last commit, from the history too
        self.scanned = 0
        self._groups: Groups | None = None
        # dead letters by the instant that their retention counts from: (instant, first, last)
        self._aging: list[tuple[int, int, int]] = []
        self._aging_to = head.floor_offset
        self._index(RunMap(runs))

    @property
    def delay(self) -> int | None:
        """The delay of all messages on a FIFO queue (DLY-10); None where each has its own."""
        return self.attributes.delay_micros if self.attributes.fifo else None

    @property
    def groups(self) -> Groups:
        """The message groups, which only claims and deletes on FIFO queues ask for."""
        if self._groups is None:
            self._groups = Groups(self)
            known = [(run.first, run.last) for run in self.runs]
            if self.scanned > self.head.head_offset:
                known.append((self.head.head_offset, self.scanned - 1))
            self._groups.add(known)
        return self._groups

    def _index(self, runs: RunMap) -> None:
        """Build the indexes from the runs alone; fresh messages join them as they are looked at."""
        now = self.now
        self.runs = runs
        self.attempts: dict[str, list[tuple[int, int]]] = {}
        self._groups = None
        self.in_flight = 0
        self.delayed = SpanSet()  # never received, looked at, and their delay is not over; only with a cap on them
        self.scanned = self.head.head_offset
        available: list[tuple[int, int]] = []
        coming: list[tuple[int, int, int]] = []
        never_received: list[Run] = []
        moving: list[tuple[int, int]] = []
        for run in runs:
            if run.state == MOVING:
                moving.append((run.first, run.last))
                continue
            if run.attempt_id is not None:
                self.attempts.setdefault(run.attempt_id, []).append((run.first, run.last))
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
        self.moving = SpanSet(moving)
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
            if self.delayed.size:
                self.delayed.discard(first, last)
            self._arrive(first, last)
        if len(self._coming) > self._heap_limit:
            self._index(self.runs)
        self.expire()

    def _arrive(self, first: int, last: int) -> None:
        """Make available what is due in a range that an entry of the heap named."""
        for run in self.runs.overlapping(first, last):
            if run.state != MOVING and (run.visible_at is None or run.visible_at <= self.now):
                added = self.available.add(max(run.first, first), min(run.last, last))
                if run.state == IN_FLIGHT:
                    self.in_flight -= added
        if last >= self.head.head_offset:
            self.available.add(max(first, self.head.head_offset), last)
        if self._groups is not None:
            self._groups.arrived(first, last)

    def expired_below(self) -> int:
        """First offset that retention still keeps: gone is what is exactly as old or older (RET-1)."""
        return self.log.first_sent_at_or_after(self.now - self.attributes.retention_micros + 1)

    def expire(self) -> None:
        """Remove what is past retention, from whatever state (STA-5, RET-2, RET-3)."""
        below = self.expired_below()
        lowest = self.lowest
        before = self.stored + self.history.size
        if lowest is not None and lowest < below:
            self._forget(below)
        overdue = list(self._overdue())
        for letters in overdue:
            if not self._drop(*letters[1:]):
                heapq.heappush(self._aging, letters)  # goes once it is not held any more
        first = self.history.first
        if first is not None:
            rewindable = self.log.first_sent_at_or_after(self.earliest_rewind)
            if first < rewindable:
                self.history.cut(first, rewindable - 1)
        self.expired += before - self.stored - self.history.size

    def _overdue(self) -> Iterator[tuple[int, int, int]]:
        """Dead letters that are past retention since they were first sent (RET-7): the instant, and ranges."""
        end = self.log.end
        if self._aging_to < end:
            for letters in self.log.dead_letters(self._aging_to, end - 1):
                if letters.first_sent_at is not None:
                    heapq.heappush(self._aging, (letters.first_sent_at, letters.first, letters.last))
            self._aging_to = end
        horizon = self.now - self.attributes.retention_micros
        while self._aging and self._aging[0][0] <= horizon:
            yield heapq.heappop(self._aging)

    def next_expiry(self) -> int | None:
        """Instant at which the next stored message expires."""
        lowest = self.lowest
        if lowest is None:
            return None
        since = self.log.sent_at(lowest)
        while self._aging:
            first_sent_at, first, last = self._aging[0]
            if self.stored_from(first) <= last:
                since = min(since, first_sent_at)
                break
            heapq.heappop(self._aging)
        return since + self.attributes.retention_micros

    @property
    def earliest_rewind(self) -> int:
        """Instant before which nothing was sent that can still be rewound (RWD-6, RWD-11, RWD-24)."""
        attributes = self.attributes
        return max(self.now - attributes.rewind_micros, self.now - attributes.retention_micros + 1)

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

    @property
    def released(self) -> int:
        """Offset from which on messages are held: accepted, but neither visible nor delayed (INF-9)."""
        if self.attributes.delayed_limit is None:
            return self.log.end
        self.look_at_all()
        return self.scanned

    def live(self, run: Run) -> bool:
        """Whether the receipt of a run still hides it."""
        return run.state == IN_FLIGHT and run.visible_at is not None and run.visible_at > self.now

    def current_head(self) -> Head:
        """The head with its floor brought up to date."""
        known = [first for first in (self.runs.first, self.history.first) if first is not None]
        return attrs.evolve(self.head, floor_offset=min([*known, self.head.head_offset]))

    def next_arrival(self) -> int | None:
        """Earliest instant after now at which a hidden message becomes available."""
        self.look_at_all()
        while self._coming:
            instant, first, last = self._coming[0]
            if last >= self.head.head_offset or any(
                run.state != MOVING and (run.visible_at is None or run.visible_at == instant)
                for run in self.runs.overlapping(first, last)
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
            if not self.look_up_to(self.scanned + chunk):
                break

    def look_before(self, place: tuple[int, int] | None) -> bool:
        """Look at some fresh messages if the next could be served before `place`: (visible since, offset).

        False: it could not, or is not visible yet or held, and then so are those after it.
        """
        if self.scanned >= self.log.end:
            return False
        since = self.visible_since(self.scanned)
        if (self.delay and since > self.now) or (place is not None and place < (since, self.scanned)):
            return False
        # twice as many each time, so that a long backlog of one group is passed in few steps
        count = max(_CHUNK, self.scanned - self.head.head_offset)
        return self.look_up_to(self.scanned + count)

    def look_at_all(self) -> None:
        """Look at every fresh message that is not held."""
        self.look_up_to(self.log.end)

    def look_up_to(self, end: int) -> bool:
        """Look at the fresh messages below an offset that are not held; whether there were any."""
        first, end = self.scanned, min(end, self.log.end)
        cap = self.attributes.delayed_limit
        if first >= end or (cap is not None and self._held_from(cap, first, end, 0) == first):
            return False
        self.scanned = self._scan(first, end - 1)
        if self.scanned == first:
            return False
        if self._groups is not None:
            self._groups.add([(first, self.scanned - 1)])
        return True

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """What the log says of messages that were never received, see `Log.spans`."""
        return self.log.spans(first, last, self.delay)

    def visible_since(self, offset: int) -> int:
        """Instant at which a message of a FIFO queue becomes or became visible."""
        run = self.runs.at(offset)
        if run is not None and run.visible_at is not None:
            return run.visible_at
        return self.log.sent_at(offset) + (self.delay or 0)

    def stored_from(self, offset: int) -> int:
        """Lowest offset from this one on that is stored, or was not looked at."""
        if offset >= self.head.head_offset:
            return offset
        first = self.runs.first_from(offset)
        return self.head.head_offset if first is None else first

    def _scan(self, first: int, last: int) -> int:
        """Take messages into the indexes that were never received; the offset from which on they are held."""
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
        """First offset that is held of those that become available at an instant, `end` if none is.

        Everything before `start` was looked at: a message is released once fewer of those are delayed than may be.
        """
        room = max(0, cap - self.delayed.size)
        reached = start + room if instant > self.now else end if room else start
        return min(end, max(reached, self.head.head_offset, self.head.released_offset))

    # -- transitions --------------------------------------------------------------------------------------

    def take(self, spans: Iterable[tuple[int, int]]) -> list[Run]:
        """The runs of messages that were taken off the available ones, for `set_runs`.

        Fresh ones become part of the map: the head passes them, and what it passes before them turns into
        `ready` runs (DLY-1).

        Returns:
            Parts of runs, in the order of the spans.
        """
        taken: list[Run] = []
        for first, last in spans:
            taken.extend(self.known(first, last))
            head = self.head.head_offset
            if last >= head:
                self._pass(max(first, head))
                self.head = attrs.evolve(self.head, head_offset=last + 1)
        return taken

    def known(self, first: int, last: int) -> Iterator[Run]:
        """The runs of stored messages, of fresh ones too."""
        head = self.head.head_offset
        if first < head:
            yield from self.runs.pieces(first, min(last, head - 1))
        if last >= head:
            yield from self.fresh(max(first, head), last)

    def _pass(self, offset: int) -> None:
        """Let the head pass the fresh messages below an offset."""
        head = self.head.head_offset
        if offset > head:
            for run in self.fresh(head, offset - 1):
                self.runs.put(run)
            self.head = attrs.evolve(self.head, head_offset=offset)

    def fresh(self, first: int, last: int) -> Iterator[Run]:
        """Runs of messages that were never received here; dead letters bring their receive count (DLQ-4)."""
        if first > last:
            return
        for letters in self.log.dead_letters(first, last):
            if first < letters.first:
                yield Run(first, letters.first - 1)
            yield Run(letters.first, letters.last, receive_count=letters.receive_count)
            first = letters.last + 1
        if first <= last:
            yield Run(first, last)

    def stamp(self, offset: int) -> None:
        """Count a visible message as visible from now on: its group has just been served (FIF-14)."""
        if offset >= self.head.head_offset:
            self._pass(offset)
            self.head = attrs.evolve(self.head, head_offset=offset + 1)
        run = self.runs.at(offset) or next(self.fresh(offset, offset))
        self.runs.put(run._replace(first=offset, last=offset, visible_at=self.now))

    def keep_released(self) -> None:
        """Note what is not held now, before something changes that would hold it again (INF-9)."""
        self.head = attrs.evolve(self.head, released_offset=self.released)

    def change_cap(self) -> None:
        """Judge what is delayed by a new cap, or count it from now on."""
        self._index(self.runs)

    def change_delay(self) -> None:
        """Judge messages that were never received by the queue's new delay (DLY-10); for FIFO queues."""
        for run in list(self.runs):
            if run.received_at is None and run.visible_at is not None:
                self.runs.put(run._replace(visible_at=None))
        self._index(self.runs)

    def set_runs(self, runs: list[Run]) -> None:
        """Give messages that are known to be neither available nor in flight a new state."""
        for run in runs:
            self.runs.put(run)
            assert run.visible_at is not None
            if run.visible_at <= self.now:
                self.available.add(run.first, run.last)
                if self._groups is not None:
                    self._groups.arrived(run.first, run.last)
            else:
                heapq.heappush(self._coming, (run.visible_at, run.first, run.last))
                if run.state == IN_FLIGHT:
                    self.in_flight += run.size

    def hide(self, run: Run, visible_at: int) -> bool:
        """Let the receipt of a run (or part of one) last until `visible_at`; False if it does so already."""
        if run.visible_at == visible_at and run.attempt_id is None:
            return False
        self.leave(run)
        self.set_runs([_unattempted(run)._replace(visible_at=visible_at)])
        return True

    def hand_back(self, run: Run) -> None:
        """Make a run visible now; lease and receive count stay with it (VIS-4, VIS-16)."""
        self.leave(run)
        back = run._replace(state=READY, visible_at=self.now, move_number=None, target_key=None)
        self.set_runs([_unattempted(back)])

    def set_aside(self, run: Run) -> None:
        """Give messages that are known to be neither available nor in flight a `moving` run."""
        self.runs.put(run)
        self.moving.add(run.first, run.last)

    def moving_runs(self) -> list[Run]:
        """The runs that are on their way to another queue; they are of one move."""
        return [run for first, last in self.moving for run in self.runs.pieces(first, last)]

    def remove(self, run: Run) -> None:
        """Delete a run, or part of one (DEL-3), into the history if that is kept (RWD-4).

        One that moved elsewhere was not deleted, so it has no history. `serve_groups` must follow.
        """
        groups = self.groups if self.attributes.fifo else None  # as they are with the messages still there
        self.leave(run)
        self.runs.cut(run.first, run.last)
        if self.attributes.rewind_micros and run.state != MOVING:
            first = max(run.first, self.log.first_sent_at_or_after(self.earliest_rewind))
            if first <= run.last:
                self.history.put(Run(first, run.last, SETTLED))
        if groups is not None:
            groups.removed(run.first, run.last)

    def serve_groups(self) -> None:
        """Unblock the message groups of what was removed (DEL-5), behind those that wait."""
        if self._groups is not None:
            self._groups.serve(behind=True)

    def remove_all(self) -> None:
        """Remove every message up to the end of the log, and the history (RWD-23)."""
        self._forget(self.log.end)
        self.forget_history()

    def forget_history(self) -> None:
        """Make deletions final (RWD-8)."""
        self.history.cut(0, self.log.end)

    def rewind(self, first: int) -> int:
        """Bring back what was deleted from an offset on, as if never received; how many that are (RWD-20)."""
        again = list(self.history.pieces(first, self.log.end))
        self.history.cut(first, self.log.end)
        if again:
            self.keep_released()
        for run in again:
            self.runs.put(Run(run.first, run.last))
        if again:
            self._index(self.runs)  # entries of the heap speak of old receipts, and groups begin further back now
        return sum(run.size for run in again)

    def leave(self, run: Run) -> None:
        """End the state that a run, or part of one, is in; an attempt that it belongs to is over (ATT-5)."""
        self.available.discard(run.first, run.last)
        self.moving.discard(run.first, run.last)
        if self.live(run):
            self.in_flight -= run.size
        if run.attempt_id is not None:
            self.forget_attempt(run.attempt_id)

    def attempt(self, attempt_id: str) -> list[Run]:
        """What is stored of the messages that an attempt received."""
        spans = self.attempts.get(attempt_id, [])
        return [run for span in spans for run in self.runs.pieces(*span) if run.attempt_id == attempt_id]

    def forget_attempt(self, attempt_id: str) -> None:
        """Let a retry of an attempt be a new receive."""
        for run in self.attempt(attempt_id):
            self.runs.put(_unattempted(run))
        self.attempts.pop(attempt_id, None)

    def _forget(self, below: int) -> None:
        """Remove every message below an offset, and move the head there."""
        self.head = attrs.evolve(self.head, head_offset=max(self.head.head_offset, below))
        self.scanned = max(self.scanned, below)
        self.delayed.discard(0, below - 1)
        first = self.runs.first
        if first is not None and first < below:
            for run in list(self.runs.pieces(first, below - 1)):
                if self.live(run):
                    self.in_flight -= run.size
            self.runs.cut(first, below - 1)
            self.moving.discard(first, below - 1)
        lowest = next(iter(self.available), None)
        if lowest is not None and lowest[0] < below:
            self.available.discard(lowest[0], below - 1)
        if self._groups is not None:
            self._groups.removed(0, below - 1)
            self._groups.serve(behind=False)

    def _drop(self, first: int, last: int) -> bool:
        """Remove messages anywhere in the shard, the history included; False if they are held."""
        head = self.head.head_offset
        if last >= head:
            self.look_up_to(last + 1)
            if self.scanned <= last:
                return False
            self._pass(max(first, head))
            self.head = attrs.evolve(self.head, head_offset=last + 1)
        for run in list(self.runs.pieces(first, last)):
            self.leave(run)
        self.available.discard(first, last)
        self.delayed.discard(first, last)
        self.runs.cut(first, last)
        self.history.cut(first, last)
        return True


def _unattempted(run: Run) -> Run:
    return run._replace(attempt_id=None, attempted_at=None, attempt_place=None)
