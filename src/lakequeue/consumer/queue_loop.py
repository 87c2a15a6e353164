"""The loop of a consumer over one of its queues: receives messages, has them handled, and settles them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from lakequeue.consumer.jobs import Run
from lakequeue.consumer.observers import Observer, Observers, installed
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import Health, OutageMonitor
from lakequeue.consumer.shared_hands import Controls, SharedHands
from lakequeue.consumer.workers import WorkerPool
from lakequeue.entry_verbs import FreeHands, Request, is_held_back, receive_for_hands, settings
from lakequeue.errors import LakeQueueError, OverLimit, QueueClientError, QueueDoesNotExist, RequestThrottled
from lakequeue.model.clock import NEVER, Interrupt, duration_micros, from_micros, to_micros
from lakequeue.model.messages import Message

_REFUSED_PAUSE = timedelta(seconds=0.5)
"""Time between receives while the queue refuses them for now."""
_LONGEST_GATHER = 1.0
"""Seconds for which what was handled waits for the next commit at most, and no longer than a round took lately.
With 0.25 s eight processes on one shard of an object store did 0.74 of their work, with 1 s 0.92."""
_BETWEEN_RECEIVES = timedelta(seconds=0.2)
"""Minimum time from one empty receive to the next, where receives do not wait."""
_HELD_BACK_WAIT = 1
"""Seconds that a receive waits for a rate limit where the run ends with the last message: another process may have
it first."""

_log = logging.getLogger("lakequeue")


class QueueLoop:
    """What a consumer does with one queue.

    Args:
        options: those of the consumer, for this queue.
        controls: what the consumer was told.
        fatal: stops all loops of the consumer.

    Attributes:
        interrupt: wakes the loop.
        pool: the messages of the current or last run; None before the first.
    """

    def __init__(self, options: ConsumerOptions, controls: Controls, fatal: Callable[[], None]) -> None:
        self._options = options
        self.queue = queue = options.queue
        self._clock = queue.clock
        self._controls = controls
        self._fatal = fatal
        self.interrupt = Interrupt()
        self.pool: WorkerPool | None = None
        self._error: BaseException | None = None
        self.outages = OutageMonitor(options.outage, queue.name, self._clock, self.interrupt.set)
        self.observers: list[Observer] = [make(queue) for make in installed]

    def open(self, hands: SharedHands) -> None:
        """Begins a run."""
        self._error, self._hands = None, hands
        run = Run(self._options, self.outages, Observers(self.observers), self.interrupt.set, self.fail)
        self.pool = WorkerPool(run, hands.totals)
        hands.add(self.pool.held, self.pool.calls.work)

    def run(self, until_empty: bool) -> None:
        """Consumes until stopped, see ``Consumer.run``."""
        pool = self.pool
        assert pool is not None
        pool.start()
        try:
            self._consume(pool, until_empty)
        finally:
            self._hands.leave(pool.held)
            self._wind_down(pool)
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Ends the run, which raises the error; unless it is one of the queue, all loops of the consumer end."""
        self._error = self._error or error
        if not isinstance(error, LakeQueueError):
            self._fatal()
        self.interrupt.set()

    def health(self) -> Health:
        """The state of the consumer, as far as this queue goes."""
        since, error, pool = self.outages.since, self.outages.error, self.pool
        held = None if pool is None else pool.held
        active, begun, took = (0, 0, 0.0) if held is None else (len(held), held.busy, held.round_seconds)
        reason = None if error is None else error.message
        return Health(pool is not None, self._controls.paused, active, since, reason, begun, took)

    @property
    def _stopping(self) -> bool:
        return self._controls.stopping or self._error is not None

    def _consume(self, pool: WorkerPool, until_empty: bool) -> None:
        failures, not_before = 0, self._clock.now()
        while True:
            self.interrupt.clear()
            if self._stopping or self._hands.all_empty:
                return
            now, gives_up_at = self._clock.now(), self.outages.gives_up_at
            if gives_up_at is not None and now >= gives_up_at and self.outages.error is not None:
                raise self.outages.error
            self._prepare(pool)
            try:
                last = until_empty and self._hands.may_be_empty(pool.held)
                held_back = last and is_held_back(self.queue)
                found = pool.rounds.run(may_claim=not self._controls.paused and now >= not_before)
                if found is None:
                    room, event = 0 if self._controls.paused else pool.held.room(), pool.next_event()
                    if not room or now < not_before:
                        self._wait_until(gives_up_at, event, not_before if room else None)
                        continue
                    hands = pool.held.free_hands()
                    messages = self._receive(room, hands, last or event is not None, held_back)
                    pool.held.keep_free(hands)
                else:
                    messages = found.messages
                    if found.refused is not None:
                        raise found.refused
            except QueueDoesNotExist:
                pool.lose_all()
                raise
            except (OverLimit, RequestThrottled) as error:
                _log.warning("receiving from %s failed, it is tried again: %s", self.queue.name, error)
                not_before = self._clock.now() + _REFUSED_PAUSE
                continue
            except QueueClientError as error:
                if not self.outages.failed("receiving", error):
                    raise
                failures += 1
                not_before = self._clock.now() + self.outages.policy.pause(failures)
                continue
            if found is None or messages:
                failures = 0
            if found is None:
                self.outages.worked("receiving", committed=bool(messages))
            if messages and (self._stopping or self._controls.paused):
                pool.rounds.return_unseen([message.receipt_handle for message in messages])
            elif messages:
                pool.begin(messages)
            elif found is None and last and not held_back:
                self._hands.found_empty(pool.held)
            elif found is None:
                self._clock.wait(event or now + _BETWEEN_RECEIVES, self.interrupt)

    def _prepare(self, pool: WorkerPool) -> None:
        """Adapts what the pool holds before a round."""
        pool.held.release_hands()
        pool.held.resize(self._controls.concurrency)
        due = pool.held.given_back_at()
        if self._controls.paused or (due is not None and to_micros(self._clock.now()) >= due):
            pool.give_back()  # also if hands did not come to it in time
        if pool.rounds.unsettled:  # while all hands are busy, what they finish meanwhile goes into the same commit
            pool.held.hungry.wait(min(pool.held.round_seconds, _LONGEST_GATHER))

    def _wait_until(self, *instants: datetime | None) -> None:
        """Waits until the first of these, or until there is something to do."""
        self._clock.wait(min((each for each in instants if each is not None), default=NEVER), self.interrupt)

    def _receive(self, room: int, hands: FreeHands | None, at_once: bool, held_back: bool) -> Sequence[Message]:
        shortest = settings(self.queue).limits("receive_wait_time").low
        request = Request(
            max_messages=room,
            visibility_timeout=self._options.renewal.receive_timeout,
            wait_time=_HELD_BACK_WAIT if held_back else shortest if at_once else self._options.wait_time,
            interrupt=self.interrupt,
            consumer=self._options.name,
            hands=hands,
        )
        return receive_for_hands(self.queue, request)

    def _wind_down(self, pool: WorkerPool) -> None:
        """Hands back what was not begun, waits for the handlers, then hands back what they did not finish."""
        began = to_micros(self._clock.now())
        try:
            pool.hand_back_waiting()
            while True:
                self.interrupt.clear()
                pool.rounds.run(may_claim=False)
                until = from_micros(began + duration_micros(self._controls.grace))
                if not pool.held or self._clock.now() >= until:
                    break
                self._clock.wait(min(until, pool.next_event() or until), self.interrupt)
        finally:
            pool.stop()
