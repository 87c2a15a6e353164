"""The state of one shard: its index, and the transitions that commands make."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import attrs

from lakequeue.model.failures import DeadLetterReason
from lakequeue.shard.index import ShardIndex
from lakequeue.shard.runs import DELETED, IN_FLIGHT, MOVING, VISIBLE, Head, Outgoing, Run, joined_runs
from lakequeue.shard.spans import Span, SpanSet, apart

TIMED_RUNS = 1000
"""Maximum runs in the history with an instant of deletion. A maximum of 8,000 slows deletes by 25 %."""


class ShardState(ShardIndex):
    """Changes the runs and the head of a shard, and keeps the indexes consistent with them."""

    _history_limit = TIMED_RUNS

    def take(self, spans: Iterable[tuple[int, int]]) -> list[Run]:
        """Returns runs, and moves ``head_offset`` past them (DLY-1). The caller must store or remove the runs."""
        taken: list[Run] = []
        for first, last in spans:
            taken.extend(self.known(first, last))
            if last >= self.head.head_offset:
                self.pass_head(first, last)
        return taken

    def set_runs(self, runs: list[Run]) -> None:
        """Stores runs, and adds their messages to the indexes. The messages must be in no index before."""
        for run in runs:
            self.runs.put(run)
            assert run.visible_at is not None
            if run.mark is not None:
                self.marked.add(run.first, run.last)
            if run.visible_at <= self.now and run.mark is not None:
                self.undecided.add(run.first, run.last)
            elif run.visible_at <= self.now:
                self.available.add(run.first, run.last)
                self._arrived(run.first, run.last)
            else:
                heapq.heappush(self._coming, (run.visible_at, run.first, run.last))
                if run.state == IN_FLIGHT:
                    self.count_in_flight(run.first, run.last, 1)

    def hide(self, run: Run, visible_at: int) -> bool:
        """Makes the receipt of a run end at ``visible_at``. Returns False if this changes nothing."""
        if run.visible_at == visible_at and run.attempt_id is None:
            return False
        self.leave(run)
        hidden = run._replace(visible_at=visible_at, attempt_id=None, attempted_at=None, attempt_place=None)
        self.set_runs([hidden])
        return True

    def group_room(self, run: Run) -> list[Run]:
        """Returns the parts of a run that the group limit allows in flight again (FAI-4)."""
        if self.attributes.group_in_flight_limit is None:
            return [run]
        return [run._replace(first=first, last=last) for first, last in self.tenants.room(run.first, run.last)]

    def hand_back(self, run: Run, failure: DeadLetterReason | None = None, together: int | None = None) -> None:
        """Makes a run visible, or undecided if it has a mark (TAB-6). Keeps the receive count (VIS-4, VIS-16)."""
        self.leave(run)
        self._set_back(run, [(run.first, run.last)], failure, together)

    def _set_back(
        self, run: Run, spans: Sequence[Span], failure: DeadLetterReason | None, together: int | None = None
    ) -> None:
        """Makes parts of a run visible now. ``spans`` are ascending ranges of messages that are in no index."""
        back = run._replace(state=VISIBLE if run.mark is None else IN_FLIGHT, visible_at=self.now)
        # a failure that was reported before stays: it may be reported again
        kept = back.unattempted()._replace(failure=run.failure, failed_together=together)
        back = kept if failure is None else back.failed(failure, together)
        runs = [back._replace(first=first, last=last) for first, last in spans]
        if run.mark is not None:
            self.set_runs(runs)
            return
        self.set_runs(runs[:1])  # only the first and the last part can touch runs outside of this run
        self.runs.put_apart(runs[1:-1])
        self.available.add_apart(spans[1:-1])
        for first, last in spans[1:-1]:
            self._arrived(first, last)
        self.set_runs(runs[1:][-1:])

    def set_aside(self, run: Run) -> None:
        """Adds a run that moves to another queue. Its messages must be neither available nor in flight."""
        self.runs.put(run)
        self.moving.add(run.first, run.last)

    def moving_runs(self) -> Outgoing:
        """Returns the runs that are moving to another queue. All belong to the same move."""
        return [(run, run.move) for span in self.moving for run in self.runs.pieces(*span) if run.move is not None]

    def remove(self, run: Run, kept: Sequence[Span] = (), failure: DeadLetterReason | None = None) -> None:
        """Deletes a run, but makes its ranges ``kept`` visible (DEL-3, RWD-4). Call ``serve_groups`` next."""
        groups = self.groups if self.attributes.fifo else None  # as they are with the messages still there
        self.leave(run)
        self.runs.cut(run.first, run.last)
        if kept:
            self._set_back(run, kept, failure)
        rewindable = self.attributes.rewind_micros and run.state != MOVING
        earliest = self.log.first_sent_at_or_after(self.earliest_rewind) if rewindable else 0
        for first, last in apart(run.first, run.last, kept):
            if rewindable and last >= earliest:
                self.history.put(run._replace(first=max(first, earliest), last=last).deleted(self.now))
                self._limit_history()
            if groups is not None:
                groups.removed(first, last)

    def _limit_history(self) -> None:
        """Drops the deletion instants of the oldest runs of the history, so that these runs can be joined."""
        if len(self.history) > self._history_limit:
            timed = [run for run in self.history if run.visible_at is not None]
            for run in timed[: -TIMED_RUNS // 2]:
                self.history.put(Run(run.first, run.last, DELETED))
            self._history_limit = len(self.history) + TIMED_RUNS // 2

    def serve_groups(self) -> None:
        """Lets the groups of removed messages wait for a turn, behind groups that already wait (DEL-5)."""
        if self._groups is not None:
            self._groups.serve(behind=True)

    def forget(self, below: int) -> None:
        """Removes the messages below an offset, except marked ones (TAB-5). Moves the head up to this offset."""
        self.head = attrs.evolve(self.head, head_offset=max(self.head.head_offset, below))
        self.scanned = max(self.scanned, below)
        self.delayed.discard(0, below - 1)
        start = self.runs.first
        if start is not None and start < below:
            for first, last in self.marked.missing(start, below - 1):
                for run in list(self.runs.pieces(first, last)):
                    if self.live(run):
                        self.in_flight -= run.size
                        self._tenants = None  # the log may not have their groups any more
                self.runs.cut(first, last)
            self.moving.discard(start, below - 1)
        lowest = next(iter(self.available), None)
        if lowest is not None and lowest[0] < below:
            self.withdraw(lowest[0], below - 1)
        if self._groups is not None:
            self._groups.removed(0, below - 1)
            self._groups.serve(behind=False)

    def remove_all(self) -> None:
        """Removes all messages, even marked messages (TAB-8), and the history (RWD-23)."""
        self.marked, self.undecided = SpanSet(), SpanSet()
        self.forget(self.log.end)
        self.forget_history()

    def forget_history(self) -> None:
        """Empties the history, so that no deletion can be undone (RWD-8)."""
        self.history.cut(0, self.log.end)

    def rewind(self, first: int) -> int:
        """Restores the deleted messages from ``first`` on as never received. Returns their number (RWD-20)."""
        again = list(self.history.pieces(first, self.log.end))
        if again:
            self.history.cut(first, self.log.end)
            self.keep_released()
            # no longer delayed, though an operator ended their delay early or their queue got one meanwhile
            visible = (
                Run(first, last, visible_at=self.now if instant > self.now else None)
                for run in again
                for first, last, instant in self.spans(run.first, run.last)
            )
            for run in joined_runs(visible):
                self.runs.put(run)
            self._index(self.runs)  # heap entries refer to old receipts, and groups now begin further back
        return sum(run.size for run in again)

    @property
    def earliest_rewind(self) -> int:
        """Earliest send instant of messages that a rewind can restore (RWD-6, RWD-11, RWD-24)."""
        attributes = self.attributes
        return max(self.now - attributes.rewind_micros, self.now - attributes.retention_micros + 1)

    def leave(self, run: Run) -> None:
        """Removes a run from the indexes. A repeated attempt will no longer get the run's messages (ATT-5)."""
        self.withdraw(run.first, run.last)
        self.moving.discard(run.first, run.last)
        if self.marked.size:
            self.marked.discard(run.first, run.last)
            self.undecided.discard(run.first, run.last)
        if self.live(run):
            self.count_in_flight(run.first, run.last, -1)
        if run.attempt_id is not None:
            self.forget_attempt(run.attempt_id)

    def attempt(self, attempt_id: str) -> list[Run]:
        """Returns the runs that a receive attempt got, without messages that are no longer stored."""
        spans = self.attempts.get(attempt_id, [])
        return [run for span in spans for run in self.runs.pieces(*span) if run.attempt_id == attempt_id]

    def forget_attempt(self, attempt_id: str) -> None:
        for run in self.attempt(attempt_id):
            self.runs.put(run.unattempted())
        self.attempts.pop(attempt_id, None)

    @property
    def pace_left(self) -> int | None:
        """Number of messages that the rate limit allows now (JOB-11); None if the queue has no rate limit."""
        pace = self.attributes.pace
        return None if pace is None else pace.left(self.head.paced_to, self.now)

    def pass_pace(self, count: int) -> None:
        pace = self.attributes.pace
        if pace is not None and count:
            self.head = attrs.evolve(self.head, paced_to=pace.taking(count, self.head.paced_to, self.now))

    def change_pace(self) -> None:
        pace = self.attributes.pace
        if pace is not None:
            self.head = attrs.evolve(self.head, paced_to=pace.bounded(self.head.paced_to, self.now))

    def keep_released(self) -> None:
        """Records in the head the first offset that the cap on delayed messages holds back (INF-9)."""
        self.head = attrs.evolve(self.head, released_offset=self.released)

    def forget_tenants(self) -> None:
        """Drops the index of message groups, so that the next claim builds a new index."""
        self._tenants = None

    def index_anew(self) -> None:
        """Rebuilds all indexes after a change of the cap, the paused groups or the held messages."""
        self._index(self.runs)

    def change_delay(self) -> None:
        """Applies the new delay of a FIFO queue to messages that were never received (DLY-10)."""
        for run in list(self.runs):
            if run.received_at is None and run.visible_at is not None:
                self.runs.put(run._replace(visible_at=None))
        self._index(self.runs)

    def current_head(self) -> Head:
        """Returns a copy of the head whose ``floor_offset`` is the lowest offset that is still kept."""
        known = [first for first in (self.runs.first, self.history.first) if first is not None]
        return attrs.evolve(self.head, floor_offset=min([*known, self.head.head_offset]))
