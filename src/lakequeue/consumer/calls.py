"""Calls a consumer's handler, and computes the outcome of each message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any

import attrs

from lakequeue.consumer.events import Fate, HandlerEnded
from lakequeue.consumer.handler import Context, Outcome, checked_outcome, is_async, results_of
from lakequeue.consumer.jobs import Job
from lakequeue.consumer.observers import Observer, handling
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.errors import LeaseLost
from lakequeue.model.clock import MICROS
from lakequeue.model.failures import DeadLetterReason

_log = logging.getLogger("lakequeue")


@attrs.define(eq=False)
class Call:
    """A call of the handler: its start and duration, its result or error, and why messages failed."""

    began: int
    jobs: Sequence[Job]
    thread: int = attrs.field(factory=get_ident)
    coroutine: Any = None
    """The coroutine of an ``async def`` handler. None for other handlers."""
    took: int = 0
    result: object = None
    raised: BaseException | None = None
    failures: dict[str, DeadLetterReason] = attrs.field(factory=dict)

    @property
    def contexts(self) -> Sequence[Context]:
        return [job.context for job in self.jobs]


@attrs.define(eq=False)
class Calls:
    """The calls of the handler with messages of one queue. Thread-safe.

    Args:
        now: returns the current instant, in microseconds.
        is_over: returns True if the receipt of a message has ended at an instant.
        report: called with the event and the instant at which a call ends.
        broken: called with errors that must end the consumer.

    Attributes:
        running: the calls that have not ended.
    """

    _options: ConsumerOptions
    _observers: Sequence[Observer]
    _now: Callable[[], int]
    _is_over: Callable[[Job, int], bool]
    _report: Callable[[HandlerEnded, int], object]
    _broken: Callable[[BaseException], None]
    running: set[Call] = attrs.field(factory=set, init=False)

    @property
    def work(self) -> Callable[[Sequence[Job]], Any]:
        """The function that calls the handler with messages. It is a coroutine function if the handler is."""
        return self._work_async if is_async(self._options.handler) else self._work

    def _work(self, jobs: Sequence[Job]) -> None:
        with self._calling(jobs) as (call, given):
            if given:
                call.result = self._options.handler(*given)

    async def _work_async(self, jobs: Sequence[Job]) -> None:
        with self._calling(jobs) as (call, given):
            if given:
                call.coroutine = self._options.handler(*given)
                call.result = await call.coroutine

    @contextmanager
    def _calling(self, jobs: Sequence[Job]) -> Iterator[tuple[Call, Sequence[Any]]]:
        """Yields a call and the arguments for the handler. The arguments are empty if all receipts have ended, so
        that the handler must not be called. Reports the end of the call after the block.
        """
        call, spans = Call(self._now(), jobs), dict[Job, AbstractContextManager[Any]]()
        fates: dict[Job, tuple[Fate, int | None]] = dict.fromkeys(jobs, (Fate.BROKEN, 0))
        self.running.add(call)
        try:
            for job in reversed(jobs):  # the last one first, so that they end in order
                if job.context.lost or self._is_over(job, call.began):
                    fates[job] = (Fate.LATE, 0)
                else:
                    spans[job] = handling(self._observers, job.context.message)
        except BaseException as error:
            self._fault(error)
        called = [*reversed(spans)]
        results: Sequence[object] = [None] * len(called)
        try:
            yield call, self._given(called)
            results = results_of(call.result, len(called)) if self._options.batch else [call.result]
        except BaseException as error:  # SystemExit would end an event loop under the other handlers
            call.raised = self._raised(error, called)
        call.took = self._now() - call.began
        for job, result in zip(called, results, strict=bool(called)):
            try:
                with spans[job]:
                    outcome = self._outcome(job, call, result)
                again_in = self._options.again_in(job.context.message, outcome, call.began + call.took)
                fates[job] = (Fate[outcome.name], again_in)
            except BaseException as error:
                self._fault(error)
        self.running.discard(call)
        ended = HandlerEnded(jobs, [*fates.values()], call.took, call.failures)
        try:
            self._report(ended, call.began + call.took)
        except BaseException as error:
            self._fault(error)
            self._report(attrs.evolve(ended, fates=[(Fate.BROKEN, 0)] * len(jobs)), call.began + call.took)

    def _given(self, jobs: Sequence[Job]) -> Sequence[Any]:
        contexts = [job.context for job in jobs]
        if not contexts:
            return ()
        messages = [context.message for context in contexts]
        if self._options.batch is None:
            return messages[0], contexts[0]
        return self._options.shown(messages), contexts

    def _raised(self, error: BaseException, jobs: Sequence[Job]) -> BaseException:
        """Returns the handler's error. Replaces CancelledError, because it would end the consumer."""
        if not isinstance(error, asyncio.CancelledError):
            return error
        lost = all(job.context.lost for job in jobs)
        raised = LeaseLost(0, len(jobs)) if lost else RuntimeError("the handler was cancelled")
        raised.__cause__ = error
        return raised

    def _fault(self, error: BaseException) -> None:
        _log.error("the consumer of %s failed", self._options.queue.name, exc_info=error)
        self._broken(error)

    def _outcome(self, job: Job, call: Call, result: object) -> Outcome:
        """Returns the outcome of a message. Logs a failure, adds its reason to the call, notifies observers."""
        outcome, raised, message = Outcome.FAILED, call.raised, job.context.message
        options = self._options
        if raised is None:
            try:
                outcome = checked_outcome(result)
            except TypeError as error:
                raised = error
        if isinstance(raised, Exception):
            if not (isinstance(raised, LeaseLost) and job.context.lost):  # it ended as intended
                fields = {"message_id": message.message_id, "receive_count": message.receive_count}
                where = {"queue": options.queue.name, "consumer": options.name}
                _log.error("%s: the handler failed", job, exc_info=raised, extra=where | fields)
        elif raised is not None:  # meant for the process: stop in an orderly way
            self._broken(raised)
            outcome = Outcome.FAILED_RETRY_NOW
        if outcome is not Outcome.SUCCESS and not job.context.lost:
            reason = DeadLetterReason.of(raised, options.queue.clock.now(), options.name)
            call.failures[message.receipt_handle] = reason  # the next round records it (JOB-10)
        for observer in self._observers:
            observer.handled(message, call.took / MICROS, outcome, raised)
        return outcome
