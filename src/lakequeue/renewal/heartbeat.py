"""The heartbeat scheduler (HNS-21). Its thread extends all receipts of a consumer or lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from lakequeue.errors import (
    InvalidParameterValue,
    LeaseLost,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
)
from lakequeue.model.clock import NEVER, Clock, Duration, Interrupt, from_micros, seconds, to_micros
from lakequeue.model.thread_pools import ThreadPool
from lakequeue.model.waiting_work import WaitingThreads, Waits
from lakequeue.renewal import holds
from lakequeue.renewal.holds import Event, Extend, Holds, Verdict
from lakequeue.renewal.policies import Hold, Renewal

_IN_TURN = 4
"""Maximum number of batches that are extended in sequence. If there are more, all are extended in parallel."""
_AT_ONCE = 32
_LEASE = "lease"

_log = logging.getLogger("lakequeue")


class HeartbeatScheduler:
    """Performs the actions of ``Holds``, a state machine of receipts.

    Args:
        clock: the queue's clock.
        report: passes an event to the state machine, and returns the machine's actions.
        extend: called with the new timeout of each receipt, in microseconds. Returns the verdicts in the order of
            the receipts.
        broken: called with the error that ended the scheduler.
        gone: called with keys of receipts. Returns the keys of receipts whose messages were deleted.
    """

    def __init__(
        self,
        clock: Clock,
        report: Callable[[Event], Sequence[Any]],
        extend: Callable[[Mapping[str, int]], Sequence[Verdict]],
        broken: Callable[[BaseException], None],
        gone: Callable[[Sequence[str]], Collection[str]] = lambda keys: (),
    ) -> None:
        self._clock = clock
        self._report = report
        self._extend = extend
        self._broken = broken
        self._gone = gone
        self._wake = Interrupt()
        self._stopped = threading.Event()
        self._beating = threading.RLock()

    def start(self, threads: WaitingThreads | None = None) -> None:
        """Starts the scheduler. Uses the shared ``threads``, or its own thread."""
        threads = threads or WaitingThreads(self._clock, 1, "lakequeue heartbeat", late=True)
        threads.add(self._run(), self._wake)

    def wake(self) -> None:
        """Makes the scheduler check now which receipts are due."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the scheduler. Extends and reports nothing after this method returns."""
        self._stopped.set()
        self._wake.set()
        with self._beating:  # waits for an extension that is in progress
            pass

    def beat(self) -> datetime:
        """Extends the receipts that are due. Returns when to extend receipts again."""
        actions = self._report(holds.Due())
        attempts = [action for action in actions if isinstance(action, Extend)]
        if len(attempts) <= _IN_TURN:
            for attempt in attempts:
                self._renew(attempt)
        else:  # in parallel: the batches share commits, and none delays another
            with ThreadPool(min(len(attempts), _AT_ONCE)) as pool:
                list(pool.map(self._renew, attempts))
        until = self._clock.now()
        for action in actions:
            if isinstance(action, holds.FindGone):
                self._report(holds.Gone(self._gone(action.keys)))
            elif isinstance(action, holds.WaitUntil):
                until = NEVER if action.until is None else from_micros(action.until)
        return until

    def _renew(self, attempt: Extend) -> None:
        if self._stopped.is_set():
            return
        ended = holds.Extended(attempt, self._extend(attempt.wanted))
        for action in () if self._stopped.is_set() else self._report(ended):
            if isinstance(action, Extend):
                self._renew(action)

    def _run(self) -> Waits[None]:
        try:
            while not self._stopped.is_set():
                with self._beating:
                    until = self.beat()
                yield until
                self._wake.clear()
                # waits that end at this very instant end first (HBN-10), no matter what woke this thread
                self._clock.wait(self._clock.now(), self._stopped)
        except GeneratorExit:
            raise
        except BaseException as error:
            _log.exception("the heartbeat ended")
            self._broken(error)


class LeaseHeartbeat(HeartbeatScheduler):
    """Extends one lease by a policy, from ``keep`` until ``drop`` or ``stop``.

    Args:
        name: the lease, for the log.
        clock: the queue's clock.
        policy: decides when to extend the lease, and by how much.
        extend: makes the lease end in this many seconds. Raises the errors of the queue.
        lost: called once the lease is lost.
        broken: called with the error if the queue was deleted, or if the scheduler ended.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        policy: Renewal,
        extend: Callable[[Duration], object],
        lost: Callable[[], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        super().__init__(clock, self._on, lambda wanted: [self._verdict(seconds(wanted[_LEASE]))], broken)
        self._name = name
        self._extend_lease = extend
        self._holds = Holds(policy)
        self._lock = threading.Lock()
        self._lost = lost

    def keep(self, hold: Hold) -> None:
        """Begins to extend the lease, or replaces its state."""
        with self._lock:
            actions = self._holds.keep({_LEASE: hold}, to_micros(self._clock.now()))
        if actions:
            self.wake()

    def drop(self) -> Hold | None:
        """Stops extending the lease. Returns the lease's last state; None if the lease was not being extended."""
        with self._lock:
            return self._holds.drop(_LEASE)

    @property
    def hold(self) -> Hold | None:
        """State of the lease that is being extended; None before ``keep`` and after ``drop``."""
        return self._holds.get(_LEASE)

    def _verdict(self, timeout: Duration) -> Verdict:
        try:
            self._extend_lease(timeout)
        except (LeaseLost, InvalidParameterValue):
            return Verdict.LOST
        except QueueDoesNotExist as error:
            self._broken(error)
            return Verdict.LOST
        except (QueueServiceError, QueueClientError) as error:
            _log.warning("extending %s failed: %s", self._name, error)
            return Verdict.FAILED
        return Verdict.EXTENDED

    def _on(self, event: Event) -> Sequence[Any]:
        with self._lock:
            actions = self._holds.on(event, to_micros(self._clock.now()))
        if any(isinstance(action, holds.ReceiptsLost) for action in actions):
            self._lost()
        return actions
