"""The messages that a consumer holds, and the order in which its hands take them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import attrs

from lakequeue.consumer.ahead import MOST, Ahead
from lakequeue.consumer.hands import Hands
from lakequeue.consumer.jobs import Done, Job, State, Turn, newest
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.entry_verbs import FreeHands, settings
from lakequeue.model.clock import MICROS, duration_micros, from_micros, to_micros


@attrs.define
class Totals:
    """Sums over the queues of a consumer, which share its hands; read and changed under the lock.

    Attributes:
        parts: what is held of each queue.
        held: active messages.
        busy: hands that handle some.
        kept: hands that stay free for last receives, see ``FreeHands``.
        empty: queues that were found to be empty since a message was last received; then there is a new set.
    """

    lock: threading.RLock = attrs.field(factory=threading.RLock)
    parts: list[HeldMessages] = attrs.field(factory=list)
    held: int = 0
    busy: int = 0
    kept: int = 0
    empty: set[HeldMessages] = attrs.field(factory=set)

    @property
    def several(self) -> bool:
        """Whether there are several queues."""
        return len(self.parts) > 1


class HeldMessages:
    """The active messages of one queue of a consumer. Thread-safe.

    Args:
        options: those of the consumer, for this queue.
        totals: sums over all queues of the consumer.
        wake: wakes what receives messages, and settles them.

    Attributes:
        hands: what handles the messages; set before the first one is added.
        ahead: chooses how many to hold.
        largest_batch: maximum number of messages of a call of the queue; None: any.
        busy: messages that hands handle.
        hungry: set when a hand finds nothing to do.
        full: whether there was no room when it was last asked for.
        weight: that of the queue.
        taken: how many messages have begun, divided by the weight; the queue with the least is next.
    """

    hands: Hands[Any]

    def __init__(self, options: ConsumerOptions, totals: Totals, wake: Callable[[], None]) -> None:
        known, timeout = settings(options.queue), options.renewal.receive_timeout
        longest = known.visibility_timeout_micros if timeout is None else duration_micros(timeout)
        self._clock = options.queue.clock
        self.wake, self.weight, self.taken = wake, options.weight, 0.0
        self._hands, self._batch = options.concurrency, options.batch or 1
        self._waits = options.batch is not None
        self._batch_wait = duration_micros(1 if options.batch_wait is None else options.batch_wait)
        self._prefetch, self._fifo = options.prefetch, options.queue.fifo
        self.largest_batch = known.profile_rules.max_batch
        self.ahead = Ahead(self.concurrency, options.prefetch, longest // 3)
        self._totals = totals
        totals.parts.append(self)
        self._lock = totals.lock
        self._active: dict[str, Job] = {}
        self._ready: deque[Turn] = deque()
        self._groups: dict[str, deque[Turn]] = {}
        self._claim: FreeHands | None = None  # the last one
        self._kept = self._asked = 0  # hands that stay free for last receives; of them, until the next begins
        self.busy = self._busy_hands = 0
        self.full = False
        self.hungry = threading.Event()
        self.hungry.set()

    def __len__(self) -> int:
        return len(self._active)

    @property
    def concurrency(self) -> int:
        """Maximum number of messages that are handled at a time."""
        return self._hands * self._batch

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

    def resize(self, hands: int) -> None:
        """Changes the maximum number of hands, if it is another."""
        if hands == self._hands:
            return
        with self._lock:
            self._hands = hands
            self.ahead.resize(self.concurrency)
        self.hands.resize(hands)

    def add(self, turns: Sequence[Turn]) -> list[Job]:
        """Adds received messages; those of a group wait for those that came before.

        Returns:
            Last receives that it does not add: other queues have the hands for which they were claimed by now.
        """
        with self._lock:
            refused = self._refused(turns)
            added = [turn for turn in turns if turn not in refused]
            jobs = [job for turn in added for job in turn.jobs]
            if jobs:
                self.ahead.received([job.context.message for job in jobs])
                self._active |= {job.handle: job for job in jobs}
                self._totals.held += len(jobs)
                self._totals.empty = set()
                self.hungry.clear()
            for turn in added:
                if turn.group is not None:
                    before = self._groups.setdefault(turn.group, deque())
                    before.append(turn)
                    if len(before) > 1:
                        continue
                if _is_last(turn) or self._is_again(turn):
                    self._ready.appendleft(turn)
                else:
                    self._ready.append(turn)
        self.hands.wake(len(turns))
        return [job for turn in refused for job in turn.jobs]

    def _refused(self, turns: Sequence[Turn]) -> list[Turn]:
        if not self._totals.several or self._prefetch:
            return []
        last = [turn for turn in turns if _is_last(turn)]
        refused = last[max(0, self._hands - self._begun()) :] if last else []
        if self._claim is not None:
            self._claim.passed += len(refused)
        return refused

    def take(self) -> list[Job] | None:
        """The messages of the next call of the handler; None if there are none yet.

        Of batches, a message that was received before is one of its own: if it is what made its batch fail, it
        fails alone.
        """
        jobs: list[Job] = []
        with self._lock:
            if not self._is_due():
                self.hungry.set()
                return None
            while len(jobs) < self._batch and (job := self._next(first=not jobs)) is not None:
                jobs.append(job)
                if job.context.message.receive_count > 1:
                    break
            self._count_busy(len(jobs), int(bool(jobs)))
        return jobs or None

    def _next(self, first: bool) -> Job | None:
        """The next message that may begin as the first of a batch, or as a further one."""
        while self._ready and not self._keeps_back(self._ready[0]):
            if not first and self._is_again(self._ready[0]):
                return None
            turn = self._ready.popleft()
            while turn.jobs:
                job = turn.jobs.popleft()
                if job.state is State.WAITING:  # else it was handed back
                    job.state = State.RUNNING
                    return job
            self._leave(turn)
        self.hungry.set()
        return None

    def left(self, messages: int) -> None:
        """Notes that a hand has left the messages of a call."""
        with self._lock:
            self._count_busy(-messages, -1)

    def _count_busy(self, messages: int, hands: int) -> None:
        self.busy += messages
        self._busy_hands += hands
        self._totals.busy += hands

    @property
    def any_busy(self) -> bool:
        """Returns True if a handler runs, of whichever queue."""
        return self._totals.busy > 0

    def _is_due(self) -> bool:
        """Whether a batch may begin."""
        if len(self._ready) >= self._batch:
            return True
        due = self._batch_due()
        return due is not None and to_micros(self._clock.now()) >= due

    def begins(self) -> bool:
        """Whether a hand has something to begin; with the lock."""
        return bool(self._ready) and not self._keeps_back(self._ready[0]) and self._is_due()

    @property
    def next_is_last(self) -> bool:
        """Whether what begins next is a last receive, which was claimed for a free hand."""
        return bool(self._ready) and _is_last(self._ready[0])

    @property
    def wants_hand(self) -> bool:
        """Whether a last receive waits for a hand that becomes free, and one could be kept for it."""
        waits = self._claim is not None and self._claim.passed > self._kept
        return waits and self._totals.busy + self._totals.kept < self._hands

    def keep_hand(self) -> None:
        """Keeps a hand free for a last receive."""
        self._kept += 1
        self._totals.kept += 1

    def _usable(self) -> int:
        """Number of messages that are handled at a time by the hands that this queue can count on.

        All, if nothing is held of other queues; else its own, the idle ones, and at least one more: a message
        waits for the next hand that becomes free, or none of the queue would ever begin.
        """
        if not self._totals.several or self._totals.held == len(self._active):
            return self.concurrency
        return (self._busy_hands + max(1, self._hands - self._totals.busy)) * self._batch

    def due(self) -> datetime | None:
        """When a batch begins though it is not full; None: nothing waits, or no batches are wanted."""
        due = self._batch_due() if self._waits else None
        return None if due is None else from_micros(due)

    def _batch_due(self) -> int | None:
        with self._lock:
            if not self._ready or self._keeps_back(self._ready[0]):
                return None
            if self._is_again(self._ready[0]):
                return 0
            return min((job.since for turn in self._ready for job in turn.jobs), default=0) + self._batch_wait

    def _keeps_back(self, turn: Turn) -> bool:
        """Whether the hands that are free are for last receives, of which the turn is none."""
        return self._totals.busy + self._totals.kept >= self._hands and not _is_last(turn)

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

    def go_on(self, turn: Turn) -> None:
        """Lets the group of a message that has ended go on, if it has one."""
        if turn.group is None:
            return
        with self._lock:
            self._ready.append(turn)
            self.hungry.clear()
        self.hands.wake(1)

    def end(self, job: Job, took: int) -> bool:
        """Ends a message whose handler returned after ``took`` microseconds; False if it was taken back before."""
        with self._lock:
            self.ahead.took(took)
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

    def end_late(self, job: Job) -> list[Job]:
        """Ends a message that is too late to be begun, and what waits behind it in its group."""
        with self._lock:
            job.state = State.ENDED
            return [job, *self.end_rest(job)]

    def end_again(self, job: Job) -> list[Job]:
        """Ends later receives of a message that no handler has begun; the newest is the last."""
        with self._lock:
            message_id, again = job.context.message.message_id, list[Job]()
            for other in self._active.values():
                if other.state is State.WAITING and other.context.message.message_id == message_id:
                    other.state = State.ENDED
                    again.append(other)
        return again

    def end_all(self, state: State) -> list[Job]:
        """Ends all messages that wait, or that are handled."""
        with self._lock:
            jobs = [job for job in self._active.values() if job.state is state]
            for job in jobs:
                job.state = State.ENDED
        return jobs

    def end_ahead(self) -> Sequence[Job]:
        """Ends what is held ahead, the newest first, and returns it; keeps no hand free any more."""
        with self._lock:
            back = self._ahead()
            for job in back:
                job.state = State.ENDED
            self.ahead.fell_behind()
        self.end_claims()
        return back

    def forget(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                job.state = State.ENDED
                self._totals.held -= self._active.pop(job.handle, None) is not None

    def given_back_at(self) -> int | None:
        """When what nobody has begun is given back, in microseconds; None: nothing is held ahead unasked."""
        with self._lock:
            if self._prefetch is not None or not (waiting := self._ahead()):
                return None
            return waiting[0].since + self.ahead.behind

    def _ahead(self) -> Sequence[Job]:
        """What is held ahead, the newest of what waits, in the order of receives."""
        number = len(self._active) - self._usable()
        return (
            newest([job for job in self._active.values() if job.state is State.WAITING], number)
            if number > 0
            else ()
        )

    def room(self, done: Sequence[Done] = ()) -> int:
        """Number of messages to ask for, when some are done."""
        with self._lock:
            usable, held = self._usable(), len(self._active)
            room = max(0, self.ahead.capacity(usable) - held + len(done), self._kept)
            if self._fifo:  # what waits behind others of its group needs no hand: for further groups
                room = max(room, min(usable - len(self._groups), MOST - held))
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
        """Number of hands that are busy, or have a last receive to begin."""
        active = (job for part in self._totals.parts for job in part._active.values())
        last = sum(job.state is State.WAITING and job.context.message.last_receive for job in active)
        return self._totals.busy + last

    def keep_free(self, hands: FreeHands | None, claimed: bool) -> None:
        """After a claim: keeps hands free for the last receives that it left, which would wait for ever.

        If it ``claimed`` messages, hands that were kept before stay free for these until ``release_hands``.
        Among several queues it keeps those that become free in its turn (``keep_hand``).
        """
        if hands is None or self._totals.several:
            return
        with self._lock:
            wanted = min(hands.passed, self._hands)
            self._totals.kept = self._kept = max(self._kept, wanted)
            self._asked = self._kept - wanted
        if not claimed:
            self.release_hands()

    def release_hands(self) -> None:
        """Lets kept hands do other work again, once the messages that were claimed for them have begun."""
        with self._lock:
            released, self._asked = self._asked, 0
            self._kept -= released
            self._totals.kept -= released
        if released:
            self.hands.wake(released)

    def end_claims(self) -> None:
        """Keeps no hand any more, as nothing is claimed for now."""
        with self._lock:
            self._claim, self._asked = None, self._kept
        self.release_hands()


def _is_last(turn: Turn) -> bool:
    return bool(turn.jobs) and turn.jobs[0].context.message.last_receive
