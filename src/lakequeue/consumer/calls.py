"""The calls of a consumer's handler: what each gets, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from lakequeue.consumer.handler import Outcome, checked_outcome, is_async
from lakequeue.consumer.held import HeldMessages
from lakequeue.consumer.jobs import Call, Job, Run, State
from lakequeue.consumer.rounds import Rounds
from lakequeue.errors import LeaseLost
from lakequeue.model.clock import MICROS
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.messages import Message

_log = logging.getLogger("lakequeue")


class Calls:
    """The calls of the handler with messages of one queue. Thread-safe.

    Args:
        run: the run of the consumer.
        held: the messages.
        rounds: settles those that handlers have ended with.

    Attributes:
        handled, failed: messages whose handlers have ended, well or not.
        running: the calls that have not ended.
        work: calls the handler with messages that a hand took; a coroutine function if the handler is one.
    """

    def __init__(self, run: Run, held: HeldMessages, rounds: Rounds) -> None:
        self._run = run
        self._held = held
        self._rounds = rounds
        self._handler: Any = run.options.handler
        self._batches = run.options.batch is not None
        self._shown: Callable[[list[Message]], Any] = list
        if run.options.as_arrow:
            from lakequeue.consumer.arrow_batches import table_of  # imports what leases do

            self._shown = table_of
        self.handled = self.failed = 0
        self.running = set[Call]()
        self._counting = threading.Lock()
        awaited = is_async(self._handler)
        self.work: Callable[[list[Job]], Any] = self._work_async if awaited else self._work

    def _work(self, jobs: list[Job]) -> None:
        with self._calling(jobs) as (call, given):
            if given:
                call.result = self._handler(*given)

    async def _work_async(self, jobs: list[Job]) -> None:
        with self._calling(jobs) as (call, given):
            if given:
                call.result = await self._handler(*given)

    @contextmanager
    def _calling(self, jobs: Sequence[Job]) -> Iterator[tuple[Call, Sequence[Any]]]:
        """Yields a call and what the handler gets: the messages whose receipts are not lost or over, if any."""
        call, spans = Call(self._run.now()), dict[Job, ExitStack | None]()
        self.running.add(call)
        try:
            for job in reversed(jobs):  # the last one first, so that they end in order
                with self._breaking(job):
                    takes_part = not (job.context.lost or self._rounds.is_over(job))
                    spans[job] = self._run.observers.handling(job.context.message) if takes_part else None
                    if takes_part:
                        call.jobs.appendleft(job)
            try:
                yield call, self._given(call.jobs)
            except BaseException as error:  # SystemExit would end an event loop under the other handlers
                call.raised = self._raised(error, call.jobs)
            results = dict(zip(call.jobs, call.results() if self._batches else [call.result], strict=False))
            for job, span in reversed(spans.items()):
                with self._breaking(job):
                    self._end(job, call, span, results.get(job))
        finally:
            self.running.discard(call)
            self._held.left(len(jobs))

    def _given(self, jobs: Sequence[Job]) -> Sequence[Any]:
        contexts = [job.context for job in jobs]
        if not contexts:
            return ()
        messages = [context.message for context in contexts]
        return (self._shown(messages), contexts) if self._batches else (messages[0], contexts[0])

    def _raised(self, error: BaseException, jobs: Sequence[Job]) -> BaseException:
        """What a handler raised; a task that was cancelled, maybe in a loop of its own, ends no consumer."""
        if not isinstance(error, asyncio.CancelledError):
            return error
        lost = all(job.context.lost for job in jobs)
        raised = LeaseLost(0, len(jobs)) if lost else RuntimeError("the handler was cancelled")
        raised.__cause__ = error
        return raised

    @contextmanager
    def _breaking(self, job: Job) -> Iterator[None]:
        """Ends the consumer after an error that is not from a handler."""
        try:
            yield
        except BaseException as error:
            _log.error("the consumer of %s failed", self._run.options.queue.name, exc_info=error)
            self._run.broken(error)
            self._rounds.forget([job, *self._held.end_rest(job)])

    def _end(self, job: Job, call: Call, span: ExitStack | None, result: object) -> None:
        """Acts on the result of a message, or gives it up as its receipt was lost or over before the call."""
        if span is not None:
            with span:
                took = self._run.now() - call.began
                outcome = self._outcome(job, call, result, took)
            self._rounds.ended(job, outcome, took)
        elif job.context.lost:
            self._rounds.finish([job, *self._held.end_rest(job)])
        else:
            self._rounds.return_late(job)

    def _outcome(self, job: Job, call: Call, result: object, took: int) -> Outcome:
        outcome, raised, message = Outcome.FAILED, call.raised, job.context.message
        options = self._run.options
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
            self._run.broken(raised)
            outcome = Outcome.FAILED_RETRY_NOW
        if job.state is State.RUNNING:  # else a stop took it back
            with self._counting:
                self.handled += outcome is Outcome.SUCCESS
                self.failed += outcome is not Outcome.SUCCESS
        if outcome is not Outcome.SUCCESS and not job.context.lost:
            reason = DeadLetterReason.of(raised, self._run.clock.now(), options.name)
            self._rounds.add_failure(message.receipt_handle, reason)
        self._run.observers.handled(message, took / MICROS, outcome, raised)
        return outcome
