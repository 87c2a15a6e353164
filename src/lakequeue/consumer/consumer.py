"""The consumer: receives messages and calls a handler for each, until it is stopped."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

from lakequeue.consumer.handler import Handler
from lakequeue.consumer.workers import WorkerPool
from lakequeue.errors import (
    InvalidOptions,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.arguments import check_visibility_timeout, check_wait
from lakequeue.model.clock import Duration, duration_micros, from_micros, to_micros
from lakequeue.model.interrupts import Interrupt
from lakequeue.model.messages import Message
from lakequeue.queue import Queue
from lakequeue.renewal.policies import HeartbeatRenewal, Renewal

STOP_TIMEOUT = 30
"""Seconds that running handlers get to end when a consumer stops, unless `stop` gets another timeout."""

_PAUSES = (0.5, 1, 2, 4, 8)
"""Seconds between receives while storage fails; after as many failures in a row the consumer gives up."""
_BETWEEN_RECEIVES = timedelta(seconds=0.2)
"""Minimum time from one empty receive to the next, where receives do not wait."""
_DEFAULT_RENEWAL = HeartbeatRenewal()
_NEVER = datetime.max.replace(tzinfo=timezone.utc)

_log = logging.getLogger("lakequeue")


class Consumer:
    """Runs a handler for each message of a queue.

    Args:
        queue: the queue to receive from.
        handler: called with the message and its `Context`, in threads of the consumer.
        concurrency: maximum number of active messages (HBN-11, HBN-18).
        renewal: how receipts are extended while handlers run: `HeartbeatRenewal`, `ComputedRenewal` or
            `NoRenewal`.
        make_failed_messages_visible_immediately: whether failed messages become visible at once rather than at
            their timeout; None: at once with `ComputedRenewal`, else at the timeout (HBN-15).
        wait_time: seconds that a receive waits for messages; None: the queue's (HBN-17).

    Raises:
        InvalidOptions: names every option that is out of range (HBN-17).
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        concurrency: int = 10,
        renewal: Renewal = _DEFAULT_RENEWAL,
        make_failed_messages_visible_immediately: bool | None = None,
        wait_time: Duration | None = 20,
    ) -> None:
        _check(queue, handler, concurrency, renewal, make_failed_messages_visible_immediately, wait_time)
        self._queue = queue
        self._clock = queue.runtime.root.clock
        self._handler = handler
        self._concurrency = concurrency
        self._renewal = renewal
        at_once = make_failed_messages_visible_immediately
        self._hand_back = renewal.failed_visible_at_once if at_once is None else at_once
        self._wait_time = wait_time
        self._runs = threading.Lock()
        self._interrupt = Interrupt()
        self._stopping = False
        self._grace: Duration = STOP_TIMEOUT
        self._runner: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, until_empty: bool = False) -> None:
        """Consumes until stopped; then running handlers get time to end, and all other messages are handed back.

        Args:
            until_empty: end after an empty receive while no message is active; such receives do not wait.

        Raises:
            QueueDoesNotExist: the queue was deleted (HBN-20).
            QueueServiceError: the queue refuses to be received from.
            QueueClientError: storage kept failing.
            RuntimeError: it is already running.
            SystemExit, KeyboardInterrupt: a handler raised it.
        """
        if not self._runs.acquire(blocking=False):
            raise RuntimeError("the consumer is already running")
        self._runner, self._error = threading.current_thread(), None
        try:
            with self._clock.participant():
                pool = WorkerPool(
                    self._queue, self._handler, self._renewal, self._hand_back, self._interrupt.set, self._fail
                )
                pool.start()
                try:
                    self._consume(pool, until_empty)
                finally:
                    self._wind_down(pool)
            if self._error is not None:
                raise self._error
        finally:
            self._runner, self._stopping, self._grace = None, False, STOP_TIMEOUT
            self._runs.release()

    def stop(self, timeout: Duration = STOP_TIMEOUT) -> None:
        """Ends `run`: no further message is begun, and those not begun are handed back.

        Returns at once, so that a signal handler may call it.

        Args:
            timeout: seconds that running handlers get, by the queue's clock. Handlers that take longer lose their
                receipts, and their messages are handed back.
        """
        duration_micros(timeout)
        self._grace = timeout
        self._stopping = True
        if threading.current_thread() is self._runner:
            # in a signal handler this thread may hold the lock of the event
            threading.Thread(target=self._interrupt.set, daemon=True).start()
        else:
            self._interrupt.set()

    def _fail(self, error: BaseException) -> None:
        """Stops the consumer; `run` raises the error."""
        self._error = self._error or error
        self._stopping = True
        self._interrupt.set()

    def _consume(self, pool: WorkerPool, until_empty: bool) -> None:
        failures = 0
        while True:
            self._interrupt.clear()
            if self._stopping:
                return
            active = pool.active
            if active >= self._concurrency:
                self._clock.wait(_NEVER, self._interrupt)
                continue
            last, began = until_empty and not active, self._clock.now()
            try:
                messages = self._receive(self._concurrency - active, wait=not last)
            except QueueDoesNotExist:
                pool.lose_all()
                raise
            except (OverLimit, RequestThrottled) as error:
                self._pause(_PAUSES[0], error)
                continue
            except QueueClientError as error:
                if failures == len(_PAUSES):
                    raise
                self._pause(_PAUSES[failures], error)
                failures += 1
                continue
            failures = 0
            if messages:
                pool.begin(messages)
            elif last:
                return
            else:
                self._clock.wait(began + _BETWEEN_RECEIVES, self._interrupt)

    def _receive(self, room: int, wait: bool) -> list[Message]:
        rules = self._queue.runtime.attributes
        return self._queue.receive(
            max_messages=min(room, rules.profile_rules.max_batch or room),
            visibility_timeout=self._renewal.receive_timeout,
            wait_time=self._wait_time if wait else rules.limits("receive_wait_time").low,
            interrupt=self._interrupt,
        )

    def _pause(self, duration: float, error: Exception) -> None:
        _log.warning("receiving from %s failed, next try in %s s: %s", self._queue.name, duration, error)
        self._clock.wait(self._clock.now() + timedelta(seconds=duration), self._interrupt)

    def _wind_down(self, pool: WorkerPool) -> None:
        """Hands back what was not begun, waits for the handlers, then hands back what they did not finish."""
        self._stopping = True
        began = to_micros(self._clock.now())
        try:
            pool.hand_back_waiting()
            while True:
                self._interrupt.clear()
                until = from_micros(began + duration_micros(self._grace))
                if not pool.active or self._clock.now() >= until:
                    break
                self._clock.wait(until, self._interrupt)
        finally:
            pool.stop()


def _check(
    queue: Queue, handler: object, concurrency: Any, renewal: Any, hand_back: object, wait_time: Any
) -> None:
    problems = []
    if not callable(handler):
        problems.append(f"handler: must be callable, not {handler!r}")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        problems.append(f"concurrency: must be a whole number of at least 1, not {concurrency!r}")
    if not all(hasattr(renewal, name) for name in ("receive_timeout", "next_check", "extension")):
        problems.append(f"renewal: must be a renewal policy, not {renewal!r}")
    elif renewal.receive_timeout is not None:
        try:
            check_visibility_timeout(queue.runtime.attributes, renewal.receive_timeout)
        except QueueServiceError as error:
            problems.append(f"renewal: {error.message}")
    if hand_back not in (None, True, False):
        problems.append(
            f"make_failed_messages_visible_immediately: must be True, False or None, not {hand_back!r}"
        )
    try:
        check_wait(queue.runtime.attributes, wait_time)
    except QueueServiceError as error:
        problems.append(f"wait_time: {error.message}")
    if problems:
        raise InvalidOptions(problems)
