"""Base of the loops that receive from a queue: keeps the error that ends a run, and reports the loop's health."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from lakequeue.consumer.observers import Observers
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import Health, OutageMonitor
from lakequeue.consumer.shared_hands import Controls
from lakequeue.errors import LakeQueueError, QueueClientError, QueueServiceError
from lakequeue.model.clock import Interrupt

_log = logging.getLogger("lakequeue")
_REFUSED_PAUSE = timedelta(seconds=0.5)
"""Pause after a receive that the queue refused for now."""
BETWEEN_RECEIVES = timedelta(seconds=0.2)
"""Minimum time from one empty receive to the next, if receives do not wait."""


class RunLoop:
    """Base of the loops that receive from one queue during a run.

    Args:
        options: the consumer's options for this queue.
        controls: requests to the consumer, such as to stop.
        observers: record the events of messages.
        fatal: stops all loops of the consumer.

    Attributes:
        interrupt: set when something changed that the loop must act on.
        outages: follows outages of storage.
        unended: number of messages whose handlers had not ended when the run ended.
        handed_back: number of these messages that were made visible.
    """

    def __init__(
        self, options: ConsumerOptions, controls: Controls, observers: Observers, fatal: Callable[[], None]
    ) -> None:
        self._options = options
        self.queue = queue = options.queue
        self._clock = queue.clock
        self._controls = controls
        self._observers = observers
        self._fatal = fatal
        self._error: BaseException | None = None
        self._failures = 0
        self.unended = self.handed_back = 0
        self.interrupt = Interrupt()
        self.outages = OutageMonitor(options.outage, queue.name, self._clock, self.interrupt.set)

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error, which ``run`` raises. Ends all loops if it is no LakeQueueError."""
        self._error = self._error or error
        if not isinstance(error, LakeQueueError):
            self._fatal()
        self.interrupt.set()

    def _next_try(self, error: QueueServiceError | QueueClientError) -> datetime:
        """Returns when to receive again after an error. Raises the error if waiting cannot fix it."""
        if isinstance(error, QueueServiceError):
            _log.warning("receiving from %s failed, it is tried again: %s", self.queue.name, error)
            return self._clock.now() + _REFUSED_PAUSE
        if not self.outages.failed("receiving", error):
            raise error
        self._failures += 1
        return self.outages.next_try(self._failures)

    @property
    def _stopping(self) -> bool:
        return self._controls.stopping or self._error is not None

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def _health(self, active: int, begun: int, round_seconds: float = 0.0) -> Health:
        error = self.outages.error
        reason = None if error is None else error.message
        return Health(True, self._controls.paused, active, self.outages.since, reason, begun, round_seconds)
