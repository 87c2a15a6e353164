"""The hands of a consumer, which its queues share in proportion to their weights (JOB-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import attrs

from lakequeue.consumer.handler import Handler, is_async
from lakequeue.consumer.hands import Hands, Tasks, Threads
from lakequeue.consumer.held import HeldMessages, Totals
from lakequeue.consumer.jobs import Job
from lakequeue.model.clock import Clock, Duration

_Work: TypeAlias = Callable[[list[Job]], Any]
STOP_TIMEOUT = 30
"""Seconds that running handlers get to end when a consumer stops, unless ``stop`` gets another timeout."""


@attrs.define
class Controls:
    """What a consumer was told; its loops and hands follow it."""

    concurrency: int
    stopping: bool = False
    paused: bool = False
    grace: Duration = STOP_TIMEOUT


class SharedHands:
    """The hands of one run of a consumer. Thread-safe.

    Args:
        clock: the consumer's clock.
        controls: how many hands there are, and whether they begin further messages.

    Attributes:
        totals: sums over the queues.
    """

    def __init__(self, clock: Clock, controls: Controls) -> None:
        self._clock = clock
        self._controls = controls
        self.totals = Totals()
        self._receiving: dict[HeldMessages, _Work] = {}
        """The queues that messages are received from, and what calls the handler with messages of each."""
        self._hands: Hands[Any]

    def add(self, held: HeldMessages, work: _Work) -> None:
        """Adds a queue; before ``start``."""
        self._receiving[held] = work

    def start(self, handler: Handler, broken: Callable[[BaseException], None]) -> None:
        """Makes the hands: threads, or tasks in an event loop if the handler is ``async def``."""
        kind = Tasks if is_async(handler) else Threads
        take: Callable[[], Any] = self._take
        work: Callable[[Any], Any] = self._work
        due = self._due
        if not self.totals.several:  # choosing whose turn it is would cost each message time
            [(held, work)] = self._receiving.items()
            take, due = held.take, held.due
        self._hands = kind(self._controls.concurrency, self._clock, take, work, due, broken)
        for held in self._receiving:
            held.hands = self._hands

    def stop(self) -> None:
        self._hands.stop()

    # --- whose turn it is

    def _take(self) -> tuple[_Work, list[Job]] | None:
        # else hands that one queue sets free begin what another has not handed back yet
        if self._controls.stopping:
            return None
        with self.totals.lock:
            found, waiting = self._next()
        for held in waiting:
            held.wake()
        return found

    def _next(self) -> tuple[tuple[_Work, list[Job]] | None, list[HeldMessages]]:
        """What a hand is to handle next, and the queues that may claim messages now."""
        waiting: list[HeldMessages] = []
        while True:
            ready = [held for held in self._receiving if held.begins() or held.wants_hand]
            for held in self._receiving:
                if held not in ready:
                    waiting += self._run_dry(held)
            if not ready:
                return None, waiting
            # what was claimed for a free hand goes first
            last = next((held for held in ready if held.next_is_last), None)
            chosen = last or self._in_turn(ready)
            if last is None and chosen.wants_hand:
                chosen.keep_hand()
                waiting.append(chosen)
            elif (jobs := chosen.take()) is not None:
                if not chosen.begins():
                    waiting += self._run_dry(chosen)
                return (self._receiving[chosen], jobs), waiting

    @staticmethod
    def _work(taken: tuple[_Work, list[Job]]) -> Any:
        work, jobs = taken
        return work(jobs)

    @staticmethod
    def _run_dry(held: HeldMessages) -> list[HeldMessages]:
        """Has a queue settle, and claim what a hand may begin now if it had no room for that before."""
        held.hungry.set()
        full, held.full = held.full, False
        return [held] if full else []

    def _in_turn(self, ready: Sequence[HeldMessages]) -> HeldMessages:
        """The queue that is next; one that had no messages catches up by its share of the hands at most."""
        least = min(held.taken for held in ready)
        behind = self._controls.concurrency / sum(held.weight for held in self._receiving)
        for held in self._receiving:
            held.taken = max(held.taken, least - behind - 1 / held.weight)
        chosen = min(ready, key=lambda held: held.taken)
        chosen.taken += 1 / chosen.weight
        return chosen

    def _due(self) -> datetime | None:
        return min((due for held in self._receiving if (due := held.due()) is not None), default=None)

    # --- whether all are empty

    @property
    def all_empty(self) -> bool:
        """Whether all queues were found to be empty while no message was active."""
        with self.totals.lock:
            return self._receiving.keys() <= self.totals.empty

    def may_be_empty(self, held: HeldMessages) -> set[HeldMessages] | None:
        """Where to note that the queue is empty; None while a message is active, or if that is known."""
        with self.totals.lock:
            return None if self.totals.held or held in self.totals.empty else self.totals.empty

    def found_empty(self, held: HeldMessages, known: set[HeldMessages]) -> None:
        """Notes that a queue was empty, which counts unless another has had a message since it was asked."""
        with self.totals.lock:
            known.add(held)
        self._wake()

    def leave(self, held: HeldMessages) -> None:
        """Notes that nothing more of a queue is received."""
        with self.totals.lock:
            self._receiving = {each: work for each, work in self._receiving.items() if each is not held}
        held.end_claims()
        self._wake()

    def _wake(self) -> None:
        with self.totals.lock:
            done = self.all_empty
            waiting = [held for held in self._receiving if done or held not in self.totals.empty]
        for held in waiting:
            held.wake()
