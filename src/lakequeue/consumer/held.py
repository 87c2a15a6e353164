"""The messages that a consumer holds, and the order in which its hands take them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from lakequeue.consumer.ahead import Ahead
from lakequeue.consumer.jobs import Done, Job, State, Turn, newest
from lakequeue.entry_verbs import FreeHands
from lakequeue.model.clock import MICROS


@attrs.define
class Totals:
    """Sums over the queues of a consumer, which share its hands; read and changed under the lock.

    Attributes:
        several: whether there are several queues.
        parts: what is held of each queue.
        held: active messages.
        busy: messages that hands handle.
        batches: batches that hands handle.
        kept: hands that stay free for last receives, see ``FreeHands``.
        empty: queues that were found to be empty since a message was last received.
    """

    several: bool
    lock: threading.RLock = attrs.field(factory=threading.RLock)
    parts: list[HeldMessages] = attrs.field(factory=list)
    held: int = 0
    busy: int = 0
    batches: int = 0
    kept: int = 0
    empty: set[HeldMessages] = attrs.field(factory=set)


class HeldMessages:
    """The active messages of a consumer, of one of its queues. Thread-safe.

    Args:
        concurrency: maximum number of messages that are handled at a time.
        prefetch: messages that are claimed ahead on request; None: as ``Ahead`` chooses.
        longest: microseconds after which what nobody began is given back at the latest.
        batch: maximum number of messages that a handler gets.
        batch_wait: microseconds for which a message waits for others of its batch.
        largest_batch: maximum number of messages of a call; None: any.
        totals: sums over all queues of the consumer.

    Attributes:
        busy: messages that hands handle.
        hungry: set when a hand finds nothing to do.
        full: whether there was no room when it was last asked for.
    """

    def __init__(
        self,
        concurrency: int,
        prefetch: int | None,
        longest: int,
        largest_batch: int | None,
        batch: int,
        batch_wait: int,
        totals: Totals,
    ) -> None:
        self.concurrency = concurrency
        self.largest_batch = largest_batch
        self.ahead = Ahead(concurrency, prefetch, longest)
        self._prefetch = prefetch
        self._batch, self._batch_wait = batch, batch_wait
        self._totals = totals
        totals.parts.append(self)
        self._lock = totals.lock
        self._active: dict[str, Job] = {}
        self._ready: deque[Turn] = deque()
        self._groups: dict[str, deque[Turn]] = {}
        self._claim: FreeHands | None = None  # the last one
        self._kept = self._asked = 0  # hands that stay free for last receives, and those of them that it knew
        self.busy = 0
        self._batches = 0  # that hands handle
        self.full = False
        self.hungry = threading.Event()
        self.hungry.set()

    def __len__(self) -> int:
        return len(self._active)

    @property
    def round_seconds(self) -> float:
        """How long the longest of the last rounds took."""
        return self.ahead.longest_round / MICROS

    def get(self, handle: str) -> Job | None:
        with self._lock:
            return self._active.get(handle)

    def jobs(self) -> list[Job]:
        with self._lock:
            return list(self._active.values())

    def resize(self, concurrency: int) -> None:
        """Changes the maximum number of handlers."""
        with self._lock:
            self.concurrency = concurrency
            self.ahead.resize(concurrency)

    def add(self, turns: Sequence[Turn]) -> list[Turn]:
        """Adds received messages; those of a group wait for those that came before.

        Returns:
            Last receives that it does not add: other queues have the hands for which they were claimed by now.
        """
        with self._lock:
            refused = self._refused(turns)
            turns = [turn for turn in turns if turn not in refused]
            jobs = [job for turn in turns for job in turn.jobs]
            if not jobs:
                return refused
            self.ahead.received([job.context.message for job in jobs])
            self._active |= {job.handle: job for job in jobs}
            self._totals.held += len(jobs)
            self._totals.empty.clear()
            for turn in turns:
                if turn.group is not None:
                    before = self._groups.setdefault(turn.group, deque())
                    before.append(turn)
                    if len(before) > 1:
                        continue
                if turn.jobs[0].context.message.last_receive or self._is_again(turn):
                    self._ready.appendleft(turn)
                else:
                    self._ready.append(turn)
            self.hungry.clear()
        return refused

    def _refused(self, turns: Sequence[Turn]) -> list[Turn]:
        if not self._totals.several or self._prefetch:
            return []
        last = [turn for turn in turns if _is_last(turn)]
        refused = last[max(0, self._hands - self._begun()) :] if last else []
        if self._claim is not None:
            self._claim.passed += len(refused)
        return refused

    def take(self, first: bool = True) -> Job | None:
        """The next message to handle, unless it is to be the first of a batch; None if there is none."""
        with self._lock:
            while self._ready:
                if self._keeps_back(self._ready[0]):
                    break
                if not first and self._is_again(self._ready[0]):
                    return None
                turn = self._ready.popleft()
                while turn.jobs:
                    job = turn.jobs.popleft()
                    if job.state is State.WAITING:  # else it was handed back
                        job.state = State.RUNNING
                        self.busy += 1
                        self._totals.busy += 1
                        return job
                self._leave(turn)
            self.hungry.set()
        return None

    def take_batch(self, now: int) -> list[Job] | None:
        """The next batch to handle; None if there is none yet.

        A message that was received before is one of its own: if it is what made its batch fail, it fails alone.
        """
        if not self._is_due(now):
            self.hungry.set()
            return None
        jobs: list[Job] = []
        while len(jobs) < self._batch and (job := self.take(first=not jobs)) is not None:
            jobs.append(job)
            if job.context.message.receive_count > 1:
                break
        with self._lock:
            self._batches += bool(jobs)
            self._totals.batches += bool(jobs)
        return jobs or None

    def _is_due(self, now: int) -> bool:
        """Whether a batch may begin."""
        return len(self._ready) >= self._batch or ((due := self.batch_due()) is not None and now >= due)

    def begins(self, now: int) -> bool:
        """Whether a hand has something to begin; with the lock."""
        return bool(self._ready) and not self._keeps_back(self._ready[0]) and self._is_due(now)

    @property
    def next_is_last(self) -> bool:
        """Whether what begins next is a last receive, which was claimed for a free hand."""
        return bool(self._ready) and _is_last(self._ready[0])

    @property
    def wants_hand(self) -> bool:
        """Whether a last receive waits for a hand that becomes free, and one could be kept for it."""
        waits = self._claim is not None and self._claim.passed > self._kept
        return waits and self._busy_hands + self._totals.kept < self._hands

    def keep_hand(self) -> None:
        """Keeps a hand free for a last receive."""
        self._kept += 1
        self._totals.kept += 1

    def left_batch(self) -> None:
        """Notes that a hand has left a batch."""
        with self._lock:
            self._batches -= 1
            self._totals.batches -= 1

    @property
    def _hands(self) -> int:
        return self.concurrency // self._batch

    @property
    def _busy_hands(self) -> int:
        return self._totals.busy if self._batch == 1 else self._totals.batches

    def _usable(self) -> int:
        """Number of messages that are handled at a time by the hands that this queue can count on.

        All, if nothing is held of other queues; else its own, the idle ones, and at least one more: a message
        waits for the next hand that becomes free, or none of the queue would ever begin.
        """
        if not self._totals.several or self._totals.held == len(self._active):
            return self.concurrency
        own = self.busy if self._batch == 1 else self._batches
        return (own + max(1, self._hands - self._busy_hands)) * self._batch

    def batch_due(self) -> int | None:
        """When the next batch is due though it is not full, in microseconds; None: nothing waits."""
        with self._lock:
            if not self._ready or self._keeps_back(self._ready[0]):
                return None
            if self._is_again(self._ready[0]):
                return 0
            return min((job.since for turn in self._ready for job in turn.jobs), default=0) + self._batch_wait

    def _keeps_back(self, turn: Turn) -> bool:
        """Whether the hands that are free are for last receives, of which the turn is none."""
        return self._busy_hands + self._totals.kept >= self._hands and not _is_last(turn)

    def _is_again(self, turn: Turn) -> bool:
        """Whether the next message of a turn was received before, and batches are wanted."""
        return self._batch > 1 and bool(turn.jobs) and turn.jobs[0].context.message.receive_count > 1

    def _leave(self, turn: Turn) -> None:
        """Lets the next messages of a group begin, if there are any."""
        if turn.group is None:
            return
        turns = self._groups[turn.group]
        turns.popleft()
        if turns:
            self._ready.append(turns[0])
        else:
            del self._groups[turn.group]

    def left(self) -> None:
        """Notes that a hand has left a message."""
        with self._lock:
            self.busy -= 1
            self._totals.busy -= 1

    def go_on(self, turn: Turn) -> None:
        """Lets the group of a message that has ended go on."""
        with self._lock:
            self._ready.append(turn)
            self.hungry.clear()

    def end(self, job: Job) -> bool:
        """Ends a message whose handler has returned; False if it was taken back before."""
        with self._lock:
            was_running, job.state = job.state is State.RUNNING, State.ENDED
            return was_running

    def end_rest(self, job: Job) -> list[Job]:
        """Ends what waits behind a message in its group."""
        with self._lock:
            rest = [other for other in job.turn.jobs if other.state is State.WAITING]
            job.turn.jobs.clear()
            for other in rest:
                other.state = State.ENDED
        return rest

    def end_all(self, state: State) -> list[Job]:
        """Ends all messages that wait, or that are handled."""
        with self._lock:
            jobs = [job for job in self._active.values() if job.state is state]
            for job in jobs:
                job.state = State.ENDED
        return jobs

    def end_ahead(self) -> tuple[Sequence[Job], int]:
        """Ends what is held ahead, the newest first; returns it, and the hands that were kept free."""
        with self._lock:
            waiting = [job for job in self._active.values() if job.state is State.WAITING]
            back = newest(waiting, len(self._active) - self._usable())
            for job in back:
                job.state = State.ENDED
            self.ahead.fell_behind()
            return back, self.end_claims()

    def forget(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                job.state = State.ENDED
                self._totals.held -= self._active.pop(job.handle, None) is not None

    def given_back_at(self) -> int | None:
        """When what nobody has begun is given back, in microseconds; None: nothing is held ahead unasked."""
        with self._lock:
            if self._prefetch is not None or len(self._active) <= self._usable():
                return None
            oldest = next((job.since for job in self._active.values() if job.state is State.WAITING), None)
            return None if oldest is None else oldest + self.ahead.behind

    def took(self, micros: int) -> None:
        """Notes how long a handler took."""
        with self._lock:
            self.ahead.took(micros)

    def room(self, done: Sequence[Done] = ()) -> int:
        """Number of messages to ask for, when some are done."""
        with self._lock:
            room = max(0, self.ahead.capacity(self._usable()) - len(self._active) + len(done), self._kept)
            self.full = not room
        return min(room, self.largest_batch or room)

    def free_hands(self, done: Sequence[Done] = ()) -> FreeHands | None:
        """The handlers that can begin; None if messages are claimed ahead on request, whatever follows."""
        if self._prefetch:
            return None
        self._claim = FreeHands(lambda: self._free(len(done)))
        return self._claim

    def _free(self, done: int) -> int:
        with self._lock:
            others, self._asked = self._totals.kept - self._kept, self._kept if self._totals.several else 0
            free = max(0, self._hands - self._totals.held + done - others)
            if self._kept:  # for last receives; those that are claimed, but not begun yet, have a hand each
                free = max(free, min(self._kept, self._hands - self._begun() - others))
            return free

    def _begun(self) -> int:
        """Hands that are busy, or have a last receive to begin."""
        active = (job for part in self._totals.parts for job in part._active.values())
        last = sum(job.state is State.WAITING and job.context.message.last_receive for job in active)
        return self._busy_hands + last

    def keep_free(self, hands: FreeHands | None) -> int:
        """After a claim: keeps hands free for the last receives that it left, which would wait for ever.

        Among several queues it keeps those that become free in its turn (``keep_hand``).

        Returns:
            Number of hands to wake.
        """
        if hands is None:
            return 0
        with self._lock:
            before = self._kept
            if not self._totals.several:
                self._kept = self._totals.kept = min(hands.passed, self._hands)
            return before if self._kept < before else 0

    def release_hands(self) -> int:
        """Once what was claimed has begun: hands that were kept for it do other work again; returns how many."""
        with self._lock:
            released, self._asked = self._asked, 0
            self._kept -= released
            self._totals.kept -= released
        return released

    def end_claims(self) -> int:
        """Keeps no hand any more, as nothing is claimed for now; returns how many were kept."""
        with self._lock:
            self._claim, self._asked = None, self._kept
            return self.release_hands()


def _is_last(turn: Turn) -> bool:
    return bool(turn.jobs) and turn.jobs[0].context.message.last_receive
