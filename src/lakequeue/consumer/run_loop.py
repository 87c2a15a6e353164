"""Base of the loops that receive from a queue: runs them, keeps the error that ends a run, and reports health."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from lakequeue.consumer.observers import Observer
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import Health, OutageMonitor
from lakequeue.consumer.shared_hands import Controls
from lakequeue.entry_verbs import KILLED, met_damage, moved_without_error, repair_command, settings
from lakequeue.errors import LakeQueueError, QueueClientError, QueueServiceError, counted
from lakequeue.model.clock import NEVER, Interrupt, from_micros, to_micros
from lakequeue.model.waiting_work import Waits

_log = logging.getLogger("lakequeue")
_REFUSED_PAUSE = 500_000
"""Microseconds to pause after a receive that the queue refused for now."""
BETWEEN_RECEIVES = 200_000
"""Minimum microseconds from one empty receive to the next, if receives do not wait."""


class RunLoop(ABC):
    """Base of the loops that receive from one queue during a run.

    Args:
        controls: requests to the consumer, such as to stop.
        fatal: stops all loops of the run to which the given loop belongs.

    Attributes:
        interrupt: set when something changed that the loop must act on.
        woken: ends the waits of ``run``. Set with ``interrupt``, and when there may be messages.
        unended: number of messages whose handlers had not ended when the run ended.
        handed_back: number of ``unended`` messages that were made visible.
        halved: number of messages of failed batches that were handled again in halves.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        controls: Controls,
        observers: Sequence[Observer],
        fatal: Callable[[RunLoop], None],
    ) -> None:
        self._options = options
        self.queue = queue = options.queue
        self._clock = queue.clock
        self._controls = controls
        self._observers = observers
        self._fatal = fatal
        self._error: BaseException | None = None
        self._failures = 0
        self._moved_before, self._said_moves = moved_without_error(queue), False
        self.unended = self.handed_back = self.halved = 0
        self.interrupt, self.woken = Interrupt(), Interrupt()
        damage, repair = met_damage(queue), repair_command(queue)
        self._monitor = partial(
            OutageMonitor, options.outage, queue.name, self._clock, self.interrupt.set, damage, repair
        )
        self.outages = self._monitor()
        self.monitors = [self.outages]

    def run(self, until_empty: bool) -> Waits[None]:
        """Receives and handles messages until the run ends, see ``Consumer.run``. Yields the instant at which each
        of its waits ends; setting ``woken`` ends the wait earlier.
        """
        with self.interrupt.waking(self.woken.set):
            try:
                yield from self._consume(until_empty)
            finally:
                yield from self._wind_down()
        if self._error is not None:
            raise self._error

    @abstractmethod
    def _consume(self, until_empty: bool) -> Waits[None]: ...

    @abstractmethod
    def _wind_down(self) -> Waits[None]:
        """Waits for handlers, and gives up messages whose handlers do not end in time."""

    @abstractmethod
    def _load(self) -> tuple[int, int, float]:
        """Returns the number of active messages, the number of these in handlers, and ``Health.round_seconds``."""

    def health(self) -> Health:
        active, begun, round_seconds = self._load()
        first = min(self.monitors, key=lambda monitor: monitor.since or NEVER)
        reason = None if first.error is None else first.error.message
        table = None if first is self.outages else settings(self.queue).table
        return Health(True, self._controls.paused, active, first.since, reason, begun, round_seconds, table)

    def fail(self, error: BaseException) -> None:
        """Ends this loop with an error, which ``run`` raises. Unless it is a LakeQueueError, ends all loops."""
        self._error = self._error or error
        if not isinstance(error, LakeQueueError):
            self._fatal(self)
        self.interrupt.set()

    def _next_try(self, error: QueueServiceError | QueueClientError) -> int:
        """Returns when to receive again after an error. Raises the error if waiting cannot fix it."""
        if isinstance(error, QueueServiceError):
            _log.warning("receiving from %s failed, it is tried again: %s", self.queue.name, error)
            return self._now() + _REFUSED_PAUSE
        if not self.outages.failed("receiving", error):
            raise error
        self._failures += 1
        return to_micros(self.outages.next_try(self._failures))

    @property
    def _stopping(self) -> bool:
        return self._controls.stopping or self._error is not None

    def _begins_pass(self) -> bool:
        """Begins an iteration of ``_consume``. Returns False if the run must end. Raises a long outage's error."""
        self.interrupt.clear()
        self._log_moves()
        if self._stopping:
            return False
        for monitor in self.monitors:
            if monitor.final is not None:
                raise monitor.final
        return True

    @property
    def moved_unhandled(self) -> int:
        """Number of messages that went to the dead-letter queue in this run, and that no handler has failed."""
        return moved_without_error(self.queue) - self._moved_before

    def _log_moves(self) -> None:
        """Logs once that messages went to the dead-letter queue without being handled."""
        policy = settings(self.queue).redrive
        if self._said_moves or policy is None or not self.moved_unhandled:
            return
        self._said_moves = True
        times = counted(policy.max_receive_count, "receive")
        text = "messages of %s go to %s after %s without being handled: %s"
        _log.warning(text, self.queue.name, policy.dead_letter_queue.rpartition(":")[2], times, KILLED)

    def _wait_until(self, instant: int | None) -> Waits[None]:
        self.woken.clear()
        if not self.interrupt.is_set():
            yield NEVER if instant is None else from_micros(instant)

    def _now(self) -> int:
        return to_micros(self._clock.now())
