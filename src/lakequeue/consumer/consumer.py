"""The consumer: receives messages and calls a handler for each, until it is stopped."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakequeue.consumer.handler import Handler
from lakequeue.consumer.observers import Observer, Observers, installed
from lakequeue.consumer.options import ConsumerOptions, RetryDelay, concurrency_problem
from lakequeue.consumer.outages import Health, Outage, OutageMonitor
from lakequeue.consumer.workers import WorkerPool
from lakequeue.entry_verbs import FreeHands, Request, is_permanent, races, receive_for_hands, settings
from lakequeue.errors import (
    InvalidOptions,
    MissingPackage,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    RequestThrottled,
)
from lakequeue.model.clock import NEVER, Duration, Interrupt, duration_micros, from_micros, to_micros
from lakequeue.model.messages import Message
from lakequeue.queue import Queue
from lakequeue.renewal.policies import HeartbeatRenewal, Renewal

if TYPE_CHECKING:
    from lakequeue.consumer.prometheus import Endpoint

STOP_TIMEOUT = 30
"""Seconds that running handlers get to end when a consumer stops, unless ``stop`` gets another timeout."""

_REFUSED_PAUSE = timedelta(seconds=0.5)
"""Time between receives while the queue refuses them for now."""
_LONGEST_GATHER = 1.0
"""Seconds for which what was handled waits for the next commit at most, and no longer than a round took lately.
With 0.25 s eight processes on one shard of an object store did 0.74 of their work, with 1 s 0.92."""
_BETWEEN_RECEIVES = timedelta(seconds=0.2)
"""Minimum time from one empty receive to the next, where receives do not wait."""
_DEFAULT_RENEWAL = HeartbeatRenewal()
_DEFAULT_OUTAGE = Outage()

_log = logging.getLogger("lakequeue")


class Consumer:
    """Runs a handler for each message of a queue.

    Args:
        queue: the queue to receive from.
        handler: called with the message and its ``Context``: a function in threads of the consumer, or an
            ``async def`` in one event loop of the consumer, in a thread of its own.
        concurrency: maximum number of handlers at a time (HBN-18).
        batch: maximum number of messages of one call, 1 to 10,000: the handler gets a list of messages and a list
            of their contexts, and returns an outcome for all or a list of outcomes. A message that was received
            before comes alone, and of a FIFO group one at a time. None: a message and its context (JOB-4).
        batch_wait: seconds for which a message waits for others of its batch, 0 to 60.
        renewal: how receipts are extended while handlers run: ``HeartbeatRenewal``, ``ComputedRenewal``,
            ``NoRenewal``, or a ``Renewal`` of your own.
        retry_failed_at_once: whether failed messages become visible at once rather than at their timeout; None: at
            once with ``ComputedRenewal``, else at the timeout (HBN-15).
        wait_time: seconds that a receive waits for messages; None: the queue's (HBN-17).
        prefetch: maximum number of messages to claim ahead, 0 to 10,000; None: as many as the handlers finish in
            three rounds; what has not begun after four times that long is given back (HBN-23).
        outage: what to do while storage fails; by default it waits until storage works again.
        metrics_port: port at which ``run`` answers Prometheus; None: none. Needs the extra ``metrics``.
        metrics_host: address of that port; ``0.0.0.0`` if the scrapes come from other machines.
        retry_delay: when failed messages come again: seconds, or a function from their number of receives to
            seconds, such as ``RetryBackoff``; None: as ``retry_failed_at_once`` says.
        name: what the log, the reasons of dead letters, and messages in flight call the consumer; None: host and
            process id.
        make_failed_messages_visible_immediately: the longer name of ``retry_failed_at_once``.

    Attributes:
        name: what the log, the reasons of dead letters, and messages in flight call the consumer.

    Raises:
        InvalidOptions: names every option that is out of range (HBN-17), and a handler that cannot be one.
        MissingPackage: ``metrics_port`` is given without the package that it needs.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        concurrency: int = 10,
        renewal: Renewal = _DEFAULT_RENEWAL,
        make_failed_messages_visible_immediately: bool | None = None,
        wait_time: Duration | None = 20,
        *,
        prefetch: int | None = None,
        outage: Outage = _DEFAULT_OUTAGE,
        retry_delay: RetryDelay | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        name: str | None = None,
        retry_failed_at_once: bool | None = None,
        batch: int | None = None,
        batch_wait: Duration = 1,
    ) -> None:
        failed_at_once = make_failed_messages_visible_immediately
        if failed_at_once is not None and retry_failed_at_once is not None:
            reason = "is the same as make_failed_messages_visible_immediately; give one of the two"
            raise InvalidOptions([f"retry_failed_at_once: {reason}"])
        self.name = f"{socket.gethostname()}-{os.getpid()}" if name is None else name
        self._options = options = ConsumerOptions(
            queue,
            handler,
            concurrency,
            renewal,
            retry_failed_at_once if failed_at_once is None else failed_at_once,
            wait_time,
            prefetch,
            outage,
            retry_delay,
            metrics_port,
            self.name,
            batch,
            batch_wait,
        )
        self._queue = queue
        self._clock = queue.clock
        self._concurrency = concurrency
        self._counted = 0, 0
        self._runs = threading.Lock()
        self._interrupt = Interrupt()
        self._stopping = False
        self._paused = False
        self._grace: Duration = STOP_TIMEOUT
        self._runner: threading.Thread | None = None
        self._pool: WorkerPool | None = None
        self._error: BaseException | None = None
        self._outages = OutageMonitor(options.outage, queue.name, self._clock, self._interrupt.set)
        self._observers: list[Observer] = [make(queue) for make in installed]
        self._endpoint = None if metrics_port is None else self._endpoint_at(metrics_host, metrics_port)

    def run(self, until_empty: bool = False) -> None:
        """Consumes until stopped; then running handlers get time to end, and all other messages are handed back.

        Args:
            until_empty: end after an empty receive while no message is active; such receives do not wait.

        Raises:
            QueueDoesNotExist: the queue was deleted (HBN-20).
            QueueServiceError: the queue refuses to be received from.
            QueueClientError: storage failed for as long as ``Outage`` allows, or in a way that waiting cannot fix.
            OSError: the metrics port is in use.
            RuntimeError: it is already running.
            SystemExit, KeyboardInterrupt: a handler raised it.
        """
        if not self._runs.acquire(blocking=False):
            raise RuntimeError("the consumer is already running")
        self._runner, self._error = threading.current_thread(), None
        try:
            with self._clock.participant(), ExitStack() as running:
                if self._endpoint is not None:
                    running.enter_context(self._endpoint.serving())
                observers = Observers(self._observers)
                pool = self._pool = WorkerPool(
                    self._options, self._outages, observers, self._interrupt.set, self._fail, self.name
                )
                pool.start()
                try:
                    self._consume(pool, until_empty)
                finally:
                    self._wind_down(pool)
                    self._counted = pool.handled, pool.failed
            if self._error is not None:
                raise self._error
        finally:
            self._runner, self._pool, self._stopping, self._grace = None, None, False, STOP_TIMEOUT
            self._runs.release()

    def stop(self, timeout: Duration = STOP_TIMEOUT) -> None:
        """Ends ``run``: no further message is begun, and those not begun are handed back.

        Returns at once, so that a signal handler may call it.

        Args:
            timeout: seconds that running handlers get, by the queue's clock. Handlers that take longer lose their
                receipts, and their messages are handed back.
        """
        duration_micros(timeout)
        self._grace = timeout
        self._stopping = True
        self._wake()

    def pause(self) -> None:
        """Receives no further messages until ``resume``; handlers that run go on. Returns at once."""
        self._paused = True
        self._wake()

    def resume(self) -> None:
        """Ends a pause."""
        self._paused = False
        self._wake()

    @property
    def concurrency(self) -> int:
        """Maximum number of handlers at a time; may be changed while it runs, and handlers that run go on."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, number: int) -> None:
        if (problem := concurrency_problem(number)) is not None:
            raise InvalidOptions([problem])
        self._concurrency = number
        self._wake()

    @property
    def handled(self) -> int:
        """Messages of the current or last run whose handlers succeeded."""
        return self._counted[0] if (pool := self._pool) is None else pool.handled

    @property
    def failed(self) -> int:
        """Messages of the current or last run whose handlers failed."""
        return self._counted[1] if (pool := self._pool) is None else pool.failed

    @property
    def health(self) -> Health:
        """The state of the consumer; reads no storage."""
        since, error, pool = self._outages.since, self._outages.error, self._pool
        held = None if pool is None else pool.held
        active, begun, took = (0, 0, 0.0) if held is None else (len(held), held.busy, held.round_seconds)
        reason = None if error is None else error.message
        return Health(pool is not None, self._paused, active, since, reason, begun, took)

    def _wake(self) -> None:
        if threading.current_thread() is self._runner:
            # in a signal handler this thread may hold the lock of the event
            threading.Thread(target=self._interrupt.set, daemon=True).start()
        else:
            self._interrupt.set()

    def _endpoint_at(self, host: str, port: int) -> Endpoint:
        try:
            from lakequeue.consumer.prometheus import Endpoint
        except ModuleNotFoundError as error:
            raise MissingPackage.of("metrics_port", "metrics", error) from error
        endpoint = Endpoint(host, port, self._queue.name, lambda: self.health, lambda: races(self._queue))
        self._observers.append(endpoint)
        return endpoint

    def _fail(self, error: BaseException) -> None:
        """Stops the consumer; ``run`` raises the error."""
        self._error = self._error or error
        self._stopping = True
        self._interrupt.set()

    def _consume(self, pool: WorkerPool, until_empty: bool) -> None:
        failures, not_before = 0, self._clock.now()
        while True:
            self._interrupt.clear()
            if self._stopping:
                return
            now, gives_up_at = self._clock.now(), self._outages.gives_up_at
            if gives_up_at is not None and now >= gives_up_at and self._outages.error is not None:
                raise self._outages.error
            self._prepare(pool)
            last = until_empty and not pool.held and not self._is_held_back()
            try:
                found = pool.round(may_claim=not self._paused and now >= not_before)
                if found is None:
                    room, event = 0 if self._paused else pool.held.room(), pool.next_event()
                    if not room or now < not_before:
                        self._wait_until(gives_up_at, event, not_before if room else None)
                        continue
                    hands = pool.held.free_hands()
                    messages = self._receive(room, hands, wait=not last and event is None)
                    pool.keep_free(hands)
                else:
                    messages = found.messages
                    if found.refused is not None:
                        raise found.refused
            except QueueDoesNotExist:
                pool.lose_all()
                raise
            except (OverLimit, RequestThrottled) as error:
                _log.warning("receiving from %s failed, it is tried again: %s", self._queue.name, error)
                not_before = self._clock.now() + _REFUSED_PAUSE
                continue
            except QueueClientError as error:
                if is_permanent(error):
                    raise
                failures += 1
                self._outages.failed("receiving", error)
                not_before = self._clock.now() + self._outages.policy.pause(failures)
                continue
            if found is None or messages:
                failures = 0
            if found is None:
                self._outages.worked("receiving", committed=bool(messages))
            if messages and (self._stopping or self._paused):
                pool.refuse(messages)
            elif messages:
                pool.begin(messages)
            elif found is None and last:
                return
            elif found is None:
                self._clock.wait(event or now + _BETWEEN_RECEIVES, self._interrupt)

    def _is_held_back(self) -> bool:
        """Whether only a rate limit keeps messages from being received (JOB-11)."""
        known = settings(self._queue)
        return known.pace is not None and known.paused is None and self._queue.counts().visible > 0

    def _prepare(self, pool: WorkerPool) -> None:
        """Adapts what the pool holds before a round."""
        pool.resize(self._concurrency)
        if self._paused:
            pool.give_back()
        pool.give_back_if_behind()
        if pool.rounds.unsettled:  # while all hands are busy, what they finish meanwhile goes into the same commit
            pool.held.hungry.wait(min(pool.held.round_seconds, _LONGEST_GATHER))

    def _wait_until(self, *instants: datetime | None) -> None:
        """Waits until the first of these, or until there is something to do."""
        self._clock.wait(min((each for each in instants if each is not None), default=NEVER), self._interrupt)

    def _receive(self, room: int, hands: FreeHands | None, wait: bool) -> Sequence[Message]:
        request = Request(
            max_messages=room,
            visibility_timeout=self._options.renewal.receive_timeout,
            wait_time=self._options.wait_time if wait else settings(self._queue).limits("receive_wait_time").low,
            interrupt=self._interrupt,
            consumer=self._options.name,
            hands=hands,
        )
        return receive_for_hands(self._queue, request)

    def _wind_down(self, pool: WorkerPool) -> None:
        """Hands back what was not begun, waits for the handlers, then hands back what they did not finish."""
        self._stopping = True
        began = to_micros(self._clock.now())
        try:
            pool.hand_back_waiting()
            while True:
                self._interrupt.clear()
                pool.round(may_claim=False)
                until = from_micros(began + duration_micros(self._grace))
                if not pool.held or self._clock.now() >= until:
                    break
                self._clock.wait(min(until, pool.next_event() or until), self._interrupt)
        finally:
            pool.stop()
