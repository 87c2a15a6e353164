"""The hands of a consumer, shared by its queues in proportion to the weights of the queues (JOB-9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import attrs

from lakequeue.consumer.handler import Handler, is_async
from lakequeue.consumer.hands import Tasks, Threads
from lakequeue.consumer.jobs import Job
from lakequeue.consumer.pool import Pool
from lakequeue.consumer.totals import Totals
from lakequeue.model.clock import Clock, Duration, from_micros, to_micros
from lakequeue.model.waiting_work import WaitingThreads

_Work: TypeAlias = Callable[[Sequence[Job]], Any]
MOST_THREADS = 8
"""Maximum number of threads that receive from several queues, and of threads that extend receipts."""
STOP_TIMEOUT = 30
"""Seconds that running handlers get to end when a consumer stops, unless ``stop`` gets another timeout."""


@attrs.define
class Controls:
    """Settings of a consumer that its user may change during a run."""

    concurrency: int
    stopping: bool = False
    paused: bool = False
    grace: Duration = STOP_TIMEOUT


class SharedHands:
    """The hands of one run of a consumer. Thread-safe.

    Attributes:
        totals: sums over the queues.
        lock: protects the totals, and the pools of all queues.
        receiving: the ``QueueLoop`` of each queue that still receives, by pool. Add all before ``start``.
        heartbeats: threads that extend the receipts of all queues.
        hands: the threads or tasks, after ``start``.
    """

    def __init__(self, clock: Clock, controls: Controls) -> None:
        self._clock = clock
        self._controls = controls
        self.totals = Totals(controls.concurrency)
        self.lock = threading.RLock()
        self._least = 0.0
        """Highest ``Pool.taken`` at which a queue was chosen. A queue that was empty resumes near this value."""
        self.receiving: dict[Pool, Any] = {}
        self.heartbeats = WaitingThreads(clock, MOST_THREADS, "lakequeue heartbeat", late=True)
        self.hands: Threads | Tasks

    def start(self, handler: Handler, broken: Callable[[BaseException], None]) -> None:
        """Makes the hands: threads, or tasks in an event loop if the handler is ``async def``."""
        kind = Tasks if is_async(handler) else Threads
        take: Callable[[], Any] = self._take
        work: Callable[[Any], Any] = self._work
        if not self.totals.several:  # choosing whose turn it is costs 4 % of a message's time
            [served] = self.receiving.values()
            take, work = served.take, served.work
        self.hands = kind(self._controls.concurrency, self._clock, take, work, self._due, broken)

    # --- whose turn it is

    def _take(self) -> tuple[_Work, Sequence[Job]] | None:
        with self.lock:
            # once stopping, hands that one queue sets free would begin what another has not handed back yet
            return None if self._controls.stopping else self._next(to_micros(self._clock.now()))

    def _next(self, now: int) -> tuple[_Work, Sequence[Job]] | None:
        """Returns messages for a hand, and the function that handles them; None if no message may begin."""
        while True:
            asked = [pool for pool in self.receiving if not pool.is_idle]  # thousands of others are not asked
            ready = [pool for pool in asked if pool.begins(now) or pool.wants_hand]
            for pool in asked:
                if pool not in ready:
                    self._run_dry(pool)
            if not ready:
                return None
            # what was claimed for a free hand goes first
            last = next((pool for pool in ready if pool.next_is_last and pool.begins(now)), None)
            chosen = last or self._in_turn(ready)
            if (jobs := self.receiving[chosen].take()) is not None:
                if not chosen.begins(now):
                    self._run_dry(chosen)
                return self.receiving[chosen].work, jobs

    @staticmethod
    def _work(taken: tuple[_Work, Sequence[Job]]) -> Any:
        work, jobs = taken
        return work(jobs)

    def _run_dry(self, pool: Pool) -> None:
        """Records that a hand found no message of a queue. If the pool was ``full``, wakes the loop to claim."""
        pool.hungry = True
        self.receiving[pool].show_hunger()
        if pool.full:
            pool.full = False
            self.receiving[pool].interrupt.set()

    def _in_turn(self, ready: Sequence[Pool]) -> Pool:
        """Returns the queue whose turn is next, by the weights. A queue misses turns while it has no messages.
        Later it gets missed turns back, but at most as many turns as it has hands by its weight.
        """
        behind = self._controls.concurrency / sum(pool.rules.weight for pool in self.receiving)
        for pool in ready:
            pool.taken = max(pool.taken, self._least - behind - 1 / pool.rules.weight)
        chosen = min(ready, key=lambda pool: pool.taken)
        self._least = max(self._least, chosen.taken)
        chosen.taken += 1 / chosen.rules.weight
        return chosen

    def _due(self) -> datetime | None:
        with self.lock:
            instants = [due for pool in self.receiving if pool.active and (due := pool.due()) is not None]
        return from_micros(min(instants)) if instants else None

    # --- whether all are empty

    @property
    def all_empty(self) -> bool:
        """True if all queues were found empty while no message was active."""
        with self.lock:
            return self.receiving.keys() <= self.totals.empty

    def may_be_empty(self, pool: Pool) -> set[Pool] | None:
        """Returns the set of queues found empty, so that ``found_empty`` can add this queue to the set. Returns
        None if a message is active or the set already has this queue.
        """
        with self.lock:
            return None if self.totals.held or pool in self.totals.empty else self.totals.empty

    def found_empty(self, pool: Pool, known: set[Pool]) -> None:
        """Adds a queue to the set ``known`` that ``may_be_empty`` returned. Has no effect if a message was
        received since then, because a receive replaces the set.
        """
        with self.lock:
            known.add(pool)
            self._wake()

    def leave(self, pool: Pool) -> None:
        """Records that the consumer no longer receives from a queue."""
        with self.lock:
            self.receiving = {each: served for each, served in self.receiving.items() if each is not pool}
            if self.totals.empty:
                self._wake()

    def _wake(self) -> None:
        done = self.all_empty
        for pool, served in self.receiving.items():
            if done or pool not in self.totals.empty:
                served.interrupt.set()
