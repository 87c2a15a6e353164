"""The consumer: receives messages and calls a handler for each, until it is stopped."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from lakequeue.consumer.deliveries import DeliveryLoop
from lakequeue.consumer.handler import Handler
from lakequeue.consumer.observers import installed
from lakequeue.consumer.options import CONCURRENCY, ConsumerOptions, RetryDelay, checked_queues
from lakequeue.consumer.outages import Health, Outage
from lakequeue.consumer.queue_loop import QueueLoop
from lakequeue.consumer.run_loop import RunLoop
from lakequeue.consumer.shared_hands import MOST_THREADS, STOP_TIMEOUT, Controls, SharedHands
from lakequeue.entry_verbs import presence, races
from lakequeue.errors import InvalidOptions, LakeQueueError, MissingPackage
from lakequeue.model.clock import NEVER, Duration, duration_micros
from lakequeue.model.waiting_work import WaitingThreads, Waits
from lakequeue.model.waiting_work import run as run_work
from lakequeue.queue import Queue
from lakequeue.renewal.policies import HeartbeatRenewal, Renewal

if TYPE_CHECKING:
    from lakequeue.consumer.prometheus import Endpoint

_DEFAULT_RENEWAL = HeartbeatRenewal()
_DEFAULT_OUTAGE = Outage()

_log = logging.getLogger("lakequeue")


class Consumer:
    """Runs a handler for each message of a queue, or of several queues.

    Args:
        queue: the queue to receive from, or a list of queues that share the handlers (JOB-9).
        handler: called with the message and its ``Context``. Returns an ``Outcome``, or None for success. The
            consumer runs a function in its threads, and an ``async def`` in an event loop in a thread of its own.
        concurrency: maximum number of handlers at a time (HBN-18).
        batch: maximum number of messages in one call, 1 to 10,000. The handler then gets a list of messages and a
            list of their contexts, and returns one outcome for all or a list of outcomes. Without a delivery
            table, a message that was received before comes alone, and a batch has at most one message of a FIFO
            group. None for calls with one message and its context (JOB-4). A queue with a delivery table needs a
            batch. The handler then returns the rows to append: an Arrow table, a frame of polars or pandas, or a
            list of dicts. It may return a tuple instead: the rows, and the outcomes of the messages. Without rows
            the messages are only deleted (TAB-29).
        batch_wait: seconds for which a message waits for its batch to fill, 0 to 60; None for one second. With a
            delivery table: seconds from a claim of fewer messages than ``batch`` to the next claim.
        claim_interval: seconds from a claim that took all messages to the next claim, 0 to 60. The next claim then
            takes more messages with one commit. None for one second on an object store, 0 on a disk (HBN-29).
        as_arrow: True to pass a batch as an Arrow table instead of a list of messages. The table has the columns
            of ``Lease.arrow`` except ``delay_seconds``, ``shard`` and ``offset``.
        merge_schema: True to add missing columns to the queue's delivery table.
        renewal: how receipts are extended while handlers run: ``HeartbeatRenewal``, ``ComputedRenewal``,
            ``NoRenewal``, or your own ``Renewal``.
        retry_failed_at_once: True to make failed messages visible at once, False to make them visible at their
            timeout. None means at once with ``ComputedRenewal``, and otherwise at the timeout (HBN-15).
        wait_time: seconds that a receive waits for messages; None for the queue's wait time (HBN-17).
        prefetch: maximum number of messages to claim ahead, 0 to 10,000. None for as many as the handlers finish
            during three commits; messages that no handler began after twelve commits are then given back (HBN-23).
        outage: what to do while storage fails; by default, wait until storage works again.
        metrics_port: port at which ``run`` answers Prometheus; None for no port. Needs the extra ``metrics``.
        metrics_host: address of that port; ``0.0.0.0`` if the scrapes come from other machines.
        retry_delay: seconds until failed messages become visible again, or a function that returns the seconds for
            a number of receives, such as ``RetryBackoff``. With None, ``retry_failed_at_once`` decides. With
            neither, a consumer that delivers into a table uses ``RetryBackoff(longest=30)``.
        name: name of the consumer in the log, in the reasons of dead letters, and at messages in flight; None for
            the names of host and process: ``HOST-PID``.
        make_failed_messages_visible_immediately: another name of ``retry_failed_at_once``.
        weights: shares of several queues, 1 to 1,000 each. While all queues have messages, free handlers take
            messages in these proportions; None for equal shares.

    Attributes:
        name: the name of the consumer.

    Raises:
        InvalidOptions: an option is out of range (HBN-17), or the handler is unsuitable. Names all problems.
        MissingPackage: ``metrics_port`` is given, and the package for it is not installed.
    """

    def __init__(
        self,
        queue: Queue | Sequence[Queue],
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
        batch_wait: Duration | None = None,
        as_arrow: bool = False,
        merge_schema: bool = False,
        weights: Sequence[int] | None = None,
        claim_interval: Duration | None = None,
    ) -> None:
        failed_at_once = make_failed_messages_visible_immediately
        if failed_at_once is not None and retry_failed_at_once is not None:
            reason = "is the same as make_failed_messages_visible_immediately; give one of the two"
            raise InvalidOptions([f"retry_failed_at_once: {reason}"])
        self.name = f"{socket.gethostname()}-{os.getpid()}" if name is None else name
        options = [
            ConsumerOptions(
                each,
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
                weight,
                as_arrow,
                merge_schema,
                claim_interval,
            )
            for each, weight in checked_queues(queue, weights)
        ]
        if len(options) > 1 and any(each.delivers for each in options):
            raise InvalidOptions(["queue: a queue with a delivery table has a consumer of its own"])
        pa.array([])  # Arrow imports pandas for its first array, which takes 0.2 s: before a message waits
        self._clock = options[0].queue.clock
        self._controls = Controls(concurrency)
        self._runs = threading.Lock()
        self._runner: threading.Thread | None = None
        self._options = options
        self._observers = [[make(each.queue) for make in installed] for each in options]
        self._loops: list[QueueLoop | DeliveryLoop] = []
        self._endpoint = None if metrics_port is None else self._endpoint_at(metrics_host, metrics_port)

    def run(self, until_empty: bool = False) -> None:
        """Receives and handles messages until ``stop``. Then running handlers get time to end, and all other
        messages are handed back.

        If one of several queues can no longer be received from, the run continues with the other queues. The error
        is logged at once, and raised at the end of the run.

        Args:
            until_empty: True to end the run when a receive finds no message and all received messages are settled.
                Receives then do not wait.

        Raises:
            QueueDoesNotExist: the queue was deleted (HBN-20).
            QueueServiceError: the queue refuses receives.
            QueueClientError: storage failed for as long as ``Outage`` allows, or in a way that waiting cannot fix.
            OSError: the metrics port is in use.
            RuntimeError: the consumer is already running.
            SystemExit, KeyboardInterrupt: a handler raised this error.
        """
        if not self._runs.acquire(blocking=False):
            raise RuntimeError("the consumer is already running")
        self._runner = threading.current_thread()
        try:
            with self._clock.participant(), ExitStack() as running:
                if self._endpoint is not None:
                    running.enter_context(self._endpoint.serving())
                hands = SharedHands(self._clock, self._controls)
                delivers = self._options[0].delivers
                make: Callable[..., QueueLoop | DeliveryLoop]
                make = DeliveryLoop if delivers else partial(QueueLoop, hands)
                self._loops = loops = [
                    make(options, self._controls, observers, self._stop_run)
                    for options, observers in zip(self._options, self._observers, strict=True)
                ]
                if not delivers:
                    hands.start(self._options[0].handler, loops[0].fail)
                    running.callback(hands.hands.stop)
                queues = [options.queue for options in self._options]
                reports = presence(self.name, queues, self._began, self._outage)
                running.callback(reports.stop)
                for loop in loops:
                    for monitor in loop.monitors:
                        monitor.listeners.append(reports.wake)
                if len(loops) == 1:
                    run_work(loops[0].run(until_empty), self._clock, loops[0].woken)
                else:
                    self._run_each(loops, until_empty)
        finally:
            self._runner = None
            self._controls.stopping, self._controls.grace = False, STOP_TIMEOUT
            self._runs.release()

    def _began(self) -> list[int]:
        return [call.began for loop in self._loops for call in loop.running.copy()]

    def _run_each(self, queue_loops: Sequence[RunLoop], until_empty: bool) -> None:
        """Runs the loops of all queues in a few threads. Raises an error of a loop after all loops have ended."""
        errors: list[BaseException] = []
        loops = WaitingThreads(self._clock, MOST_THREADS, "lakequeue queues")

        def run(loop: RunLoop, ended: threading.Event) -> Waits[None]:
            try:
                yield from loop.run(until_empty)
            except BaseException as error:
                loop.fail(error)  # an error that is not about the queue ends the other loops, too
                errors.append(error)
                _log.error("nothing more is received from %s: %s", loop.queue.name, error)
            finally:
                ended.set()

        ends = []
        try:
            for loop in queue_loops:
                ended = threading.Event()
                loops.add(run(loop, ended), loop.woken)
                ends.append(ended)
            for ended in ends:
                self._clock.wait(NEVER, ended)
        except BaseException:  # Ctrl-C: the loops would go on without this thread
            self._stop_all()
            for ended in ends:
                self._clock.wait(NEVER, ended)
            raise
        if errors:
            raise min(errors, key=lambda error: isinstance(error, LakeQueueError))

    def stop(self, timeout: Duration = STOP_TIMEOUT) -> None:
        """Ends ``run``: no handler begins any more, and messages that no handler began are handed back.

        Returns at once, so that a signal handler may call it.

        Args:
            timeout: seconds that running handlers get to end, by the queue's clock. Handlers that take longer lose
                their receipts, and their messages are handed back.
        """
        duration_micros(timeout)
        self._controls.grace = timeout
        self._stop_all()

    def pause(self) -> None:
        """Stops receiving until ``resume``. Running handlers continue. Returns at once."""
        self._controls.paused = True
        self._wake()

    def resume(self) -> None:
        """Ends a pause."""
        self._controls.paused = False
        self._wake()

    @property
    def concurrency(self) -> int:
        """Maximum number of handlers at a time. May be changed during a run; running handlers continue."""
        return self._controls.concurrency

    @concurrency.setter
    def concurrency(self, number: int) -> None:
        if (problem := CONCURRENCY(number)) is not None:
            raise InvalidOptions([f"concurrency: {problem}"])
        self._controls.concurrency = number
        self._wake()

    @property
    def handled(self) -> int:
        """Number of messages of the current or last run whose handlers succeeded."""
        return sum(loop.handled for loop in self._loops)

    @property
    def failed(self) -> int:
        """Number of messages of the current or last run whose handlers failed. A message of a failed batch for a
        delivery table counts once it fails alone.
        """
        return sum(loop.failed for loop in self._loops)

    @property
    def halved(self) -> int:
        """Number of messages of failed batches that were handled again in halves, in the current or last run."""
        return sum(loop.halved for loop in self._loops)

    @property
    def moved_unhandled(self) -> int:
        """Number of messages that became dead letters in the current or last run without an error of a handler: a
        consumer was killed, or its timeout passed.
        """
        return sum(loop.moved_unhandled for loop in self._loops)

    @property
    def unended(self) -> int:
        """Number of messages whose handlers had not ended when the last run ended; 0 during a run."""
        return sum(loop.unended for loop in self._loops)

    @property
    def handed_back(self) -> int:
        """Number of ``unended`` messages that the run made visible. The rest become visible at their timeout."""
        return sum(loop.handed_back for loop in self._loops)

    def _outage(self) -> tuple[datetime | None, str | None, str | None]:
        health = self.health
        return health.outage_since, health.last_error, health.failing_table

    @property
    def health(self) -> Health:
        """Returns the state of the consumer. Reads no storage."""
        each = [self._health(place) for place in range(len(self._options))]
        first = min(each, key=lambda health: health.outage_since or NEVER)
        return attrs.evolve(
            first,
            running=self._runner is not None,
            active=sum(health.active for health in each),
            begun=sum(health.begun for health in each),
            round_seconds=max(health.round_seconds for health in each),
        )

    def _health(self, place: int) -> Health:
        return self._loops[place].health() if self._loops else Health(False, self._controls.paused, 0, None, None)

    def _stop_run(self, loop: RunLoop) -> None:
        if self._runner is not None and loop in self._loops:
            self._stop_all()

    def _stop_all(self) -> None:
        self._controls.stopping = True
        self._wake()

    def _wake(self) -> None:
        def wake() -> None:
            for loop in self._loops:
                loop.interrupt.set()

        if threading.current_thread() is self._runner:
            # in a signal handler this thread may hold the lock of the event
            threading.Thread(target=wake, daemon=True).start()
        else:
            wake()

    def _endpoint_at(self, host: str, port: int) -> Endpoint:
        try:
            from lakequeue.consumer.prometheus import Endpoint
        except ModuleNotFoundError as error:
            raise MissingPackage.of("metrics_port", "metrics", error) from error
        endpoint = Endpoint(host, port)
        for place, options in enumerate(self._options):
            queue = options.queue
            self._observers[place].append(
                endpoint.observer(queue.name, partial(self._health, place), partial(races, queue))
            )
        return endpoint
