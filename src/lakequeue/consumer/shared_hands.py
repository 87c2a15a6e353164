"""The hands of a consumer, which its queues share in proportion to their weights (JOB-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import attrs

from lakequeue.consumer.async_handlers import Tasks
from lakequeue.consumer.handler import Handler, is_async
from lakequeue.consumer.hands import Hands, Threads
from lakequeue.consumer.held import HeldMessages, Totals
from lakequeue.consumer.jobs import Job
from lakequeue.consumer.workers import WorkerPool
from lakequeue.model.clock import Clock, Duration

STOP_TIMEOUT = 30
"""Seconds that running handlers get to end when a consumer stops, unless ``stop`` gets another timeout."""


@attrs.define
class Controls:
    """What a consumer was told; its loops and hands follow it."""

    concurrency: int
    stopping: bool = False
    paused: bool = False
    grace: Duration = STOP_TIMEOUT


@attrs.define(eq=False)
class _Share:
    """A queue's share of the hands.

    Attributes:
        taken: how many of its messages have begun, divided by its weight; the queue with the least is next.
    """

    pool: WorkerPool
    weight: int
    taken: float = 0

    @property
    def held(self) -> HeldMessages:
        return self.pool.held


class SharedHands:
    """The hands of one run of a consumer. Thread-safe.

    Args:
        clock: the consumer's clock.
        several: whether there are several queues.
        controls: how many hands there are, and whether they begin further messages.

    Attributes:
        totals: sums over the queues.
    """

    def __init__(self, clock: Clock, several: bool, controls: Controls) -> None:
        self._clock = clock
        self._controls = controls
        self.totals = Totals(several)
        self._shares: list[_Share] = []
        self._running: dict[HeldMessages, WorkerPool] = {}
        self._hands: Hands

    def add(self, pool: WorkerPool, weight: int) -> None:
        """Adds a queue; before ``start``."""
        self._shares.append(_Share(pool, weight))
        self._running[pool.held] = pool

    def start(self, handler: Handler, broken: Callable[[BaseException], None]) -> None:
        """Makes the hands: threads, or tasks in an event loop if the handler is ``async def``."""
        number, pool = self._controls.concurrency, self._shares[0].pool
        take: Callable[[], Any] = self._take if self.totals.several else pool.calls.take
        work: Callable[[Any], Any] = self._work if self.totals.several else pool.calls.work
        due = self._due if self.totals.several else pool.calls.due
        if is_async(handler):
            self._hands = Tasks(number, self._clock, take, work, broken, due)
        else:
            self._hands = Threads(number, self._clock, take, work, due)
        for share in self._shares:
            share.held.hands = self._hands

    def stop(self) -> None:
        self._hands.stop()

    # --- whose turn it is

    def _take(self) -> tuple[WorkerPool, list[Job]] | None:
        # else hands that one queue sets free begin what another has not handed back yet
        if self._controls.stopping:
            return None
        with self.totals.lock:
            found, waiting = self._next()
        for pool in waiting:
            pool.wake()
        return found

    def _next(self) -> tuple[tuple[WorkerPool, list[Job]] | None, list[WorkerPool]]:
        """What a hand is to handle next, and the queues that may claim messages now."""
        waiting: list[WorkerPool] = []
        while True:
            ready = [share for share in self._shares if share.held.begins() or share.held.wants_hand]
            for share in self._shares:
                if share not in ready:
                    waiting += self._run_dry(share)
            if not ready:
                return None, waiting
            # what was claimed for a free hand goes first
            last = next((share for share in ready if share.held.next_is_last), None)
            chosen = last or self._in_turn(ready)
            if last is None and chosen.held.wants_hand:
                chosen.held.keep_hand()
                waiting.append(chosen.pool)
            elif (jobs := chosen.held.take()) is not None:
                if not chosen.held.begins():
                    waiting += self._run_dry(chosen)
                return (chosen.pool, jobs), waiting

    @staticmethod
    def _work(taken: tuple[WorkerPool, list[Job]]) -> Any:
        pool, jobs = taken
        return pool.calls.work(jobs)

    def _run_dry(self, share: _Share) -> list[WorkerPool]:
        """Has a queue settle, and claim what a hand may begin now if it had no room for that before."""
        share.held.hungry.set()
        full, share.held.full = share.held.full, False
        return [share.pool] if full else []

    def _in_turn(self, shares: Sequence[_Share]) -> _Share:
        """The queue that is next; one that had no messages catches up by its share of the hands at most."""
        least = min(share.taken for share in shares)
        behind = self._controls.concurrency / sum(share.weight for share in self._shares)
        for share in self._shares:
            share.taken = max(share.taken, least - behind - 1 / share.weight)
        chosen = min(shares, key=lambda share: share.taken)
        chosen.taken += 1 / chosen.weight
        return chosen

    def _due(self) -> datetime | None:
        return min((due for share in self._shares if (due := share.pool.calls.due()) is not None), default=None)

    # --- whether all are empty

    @property
    def all_empty(self) -> bool:
        """Whether all queues were found to be empty while no message was active."""
        with self.totals.lock:
            return self._running.keys() <= self.totals.empty

    def may_be_empty(self, pool: WorkerPool) -> bool:
        """Whether no message is active, and the queue was not found to be empty since the last one was."""
        return not self.totals.held and pool.held not in self.totals.empty

    def found_empty(self, pool: WorkerPool) -> None:
        """Notes that a queue is empty; those that were found so before a message came are asked again."""
        with self.totals.lock:
            self.totals.empty.add(pool.held)
        self._wake()

    def leave(self, pool: WorkerPool) -> None:
        """Notes that nothing more of a queue is received."""
        with self.totals.lock:
            self._shares = [share for share in self._shares if share.pool is not pool]
            del self._running[pool.held]
        pool.held.end_claims()
        self._wake()

    def _wake(self) -> None:
        with self.totals.lock:
            done = self.all_empty
            waiting = [pool for held, pool in self._running.items() if done or held not in self.totals.empty]
        for pool in waiting:
            pool.wake()
