"""A consumer of a queue with a delivery table: appends the rows that its handler returns, each row once (TAB-29).

A batch has the messages of one claim in one shard, and runs in a thread of its own. Messages that failed are
released before the append. If the table refuses the rows, the handler gets each half of the batch again, until the
refused message is alone. While the table fails, one batch is tried after each pause, and handed back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from lakequeue.consumer.handler import Context, Lost, Outcome, checked_outcome, hold_of, is_async, results_of
from lakequeue.consumer.observers import Observer, handling
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.run_loop import BETWEEN_RECEIVES, RunLoop
from lakequeue.consumer.shared_hands import Controls
from lakequeue.entry_verbs import claim_delivery, settings, wait_for_more
from lakequeue.errors import (
    LakeQueueError,
    LeaseLost,
    MissingPackage,
    OverLimit,
    QueueClientError,
    RequestThrottled,
    RowsRefused,
    TableUnavailable,
    UnsupportedOperation,
)
from lakequeue.model.clock import MICROS, Duration, duration_micros, from_micros, start_thread, to_micros
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.messages import Message
from lakequeue.model.waiting_work import Waits
from lakequeue.renewal.heartbeat import LeaseHeartbeat

if TYPE_CHECKING:
    from lakequeue.entry_verbs import Delivering

_LONGEST_WAIT = 20 * MICROS
_TRIES_UNTIL_EMPTY = 3  # in a row, of a table that fails
_NO_DELAY_KNOWN = 30 * MICROS
"""Microseconds until a failed message becomes visible if the function ``retry_delay`` raised."""
_log = logging.getLogger("lakequeue")

_Ends = dict[str, tuple[Outcome | None, BaseException | None]]
"""Outcome and error of each message, by receipt handle. The outcome is None if the message failed in a batch, and
is handled again in a half of the batch. The error is None if there was no error.
"""


@attrs.define(eq=False)
class _Batch:
    delivering: Delivering
    began: int
    """Instant before the claim of the batch, in microseconds."""
    contexts: list[Context] = attrs.field(factory=list)
    """Contexts of the batch's messages, which share one ``lost`` event."""
    parts: list[tuple[Delivering, Sequence[Context]]] = attrs.field(factory=list)
    """The messages that are left, in order: the whole batch, or parts of it after the table refused rows."""
    broken: set[str | None] = attrs.field(factory=set)
    """FIFO groups in which a message failed. Later messages of these groups are not delivered in this batch."""
    thread: int = 0
    coroutine: Any = None
    """Always None, because the stack of ``thread`` shows the handler, even an ``async def`` handler."""


class DeliveryLoop(RunLoop):
    """Receives batches of one queue during a run, and delivers their rows. Takes the arguments of ``RunLoop``."""

    def __init__(
        self,
        options: ConsumerOptions,
        controls: Controls,
        observers: Sequence[Observer],
        fatal: Callable[[RunLoop], None],
    ) -> None:
        super().__init__(options, controls, observers, fatal)
        self._counting = threading.Lock()
        self.table_outages = self._monitor(
            lambda: f"the delivery table of {self.queue.name} at {settings(self.queue).table}"
        )
        self.monitors.append(self.table_outages)
        self._tries, self._try_at = 0, 0  # failures of the table in a row; when to claim again
        self.handled = self.failed = 0
        self._last_failed = False  # no message of the batch that was handled last succeeded
        self.running = set[_Batch]()

    def _load(self) -> tuple[int, int, float]:
        active = sum(len(batch.contexts) for batch in list(self.running))
        return active, active, 0.0

    def _consume(self, until_empty: bool) -> Waits[None]:
        while self._begins_pass():
            now = self._now()
            idle = not self.running
            failing = self.table_outages.since is not None
            if failing and until_empty and idle and self._tries >= _TRIES_UNTIL_EMPTY:
                return
            if self._controls.paused or len(self.running) >= (1 if failing else self._controls.concurrency):
                yield from self._wait_until(None)
                continue
            if failing and now < self._try_at:
                yield from self._wait_until(self._try_at)
                continue
            try:
                timeout = self._options.renewal.receive_timeout
                found = claim_delivery(self.queue, self._options.size, timeout, self._options.name)
                if found is None and failing and idle and self._is_delivered():
                    self._table_works()
            except (OverLimit, RequestThrottled, QueueClientError) as error:
                yield from self._wait_until(self._next_try(error))
                continue
            self._failures = 0
            self.outages.worked("receiving", committed=found is not None)
            if found is not None:
                batch = _Batch(found, now)
                self.running.add(batch)
                start_thread(self._clock, partial(self._work, batch), f"lakequeue {self.queue.name}")
                if found.leased.count < self._options.size and not until_empty:
                    yield from self._gather(now, found)
                continue
            if until_empty and idle:
                return
            yield from self._wait_until(now + BETWEEN_RECEIVES)
            if not until_empty:
                until = from_micros(now + _LONGEST_WAIT)
                yield from wait_for_more(self.queue, until, self.interrupt, self.woken, idle)

    def _is_delivered(self) -> bool:
        counts = self.queue.counts()
        return not counts.visible + counts.in_flight + counts.undecided

    def _table_works(self) -> None:
        with self._counting:
            self._tries = self._try_at = 0
        self.table_outages.worked("delivering")

    def _table_fails(self, batch: _Batch, error: QueueClientError | UnsupportedOperation) -> None:
        waits = isinstance(error, TableUnavailable) and self.table_outages.failed("delivering", error)
        with self._counting:
            if self._now() >= self._try_at:  # batches that fail at the same time count once
                self._tries += 1
                self._try_at = to_micros(self.table_outages.next_try(self._tries))
        self._hand_back(batch)
        if not waits:
            self.fail(error)

    def _hand_back(self, batch: _Batch) -> None:
        for part, contexts in batch.parts:
            try:
                part.hand_back()
            except LakeQueueError as error:
                _log.warning("handing back %s messages failed: %s", len(contexts), error)
        batch.parts.clear()

    def _gather(self, since: int, found: Delivering) -> Waits[None]:
        """Waits until ``batch_wait`` after ``since``, so that a claim gets more messages. A stop ends the wait."""
        until = since + self._options.batch_wait_micros
        halved, alone = found.leased.parts[0].claimed.halved, found.leased.count == 1
        while self._now() < until and not self._stopping:
            # a wait brings no more to a part of a failed batch, and the next part can be claimed now
            if halved and not (alone and self._last_failed):
                return
            yield from self._wait_until(until)
            self.interrupt.clear()

    def _wind_down(self) -> Waits[None]:
        """Waits for running batches. Marks the receipts of batches that do not end in time as lost."""
        began = self._now()
        while self.running and self._now() < (until := began + duration_micros(self._controls.grace)):
            yield from self._wait_until(until)
            self.interrupt.clear()
        left = list(self.running)
        self.unended = sum(len(batch.contexts) for batch in left)
        for batch in left:
            self._lose(batch)
        if self.unended:
            _log.warning(
                "%s: the delivery of %s messages did not end in time; the table will say if their rows arrived",
                *(self.queue.name, self.unended),
            )

    # --- one batch

    def _work(self, batch: _Batch) -> None:
        batch.thread = threading.get_ident()
        delivering, name, policy = batch.delivering, f"a batch of {self.queue.name}", self._options.renewal
        extend, lose = partial(self._extend, batch), partial(self._lose, batch)
        heartbeat = LeaseHeartbeat(name, self._clock, policy, extend, lose, self.fail)
        heartbeat.start()
        try:
            messages = delivering.messages()
            now = self._clock.now()
            for observer in self._observers:
                observer.received(messages, now)
            if messages:
                heartbeat.keep(hold_of(messages[0], to_micros(now)))
                lost = Lost()
                batch.contexts = [Context(each, self.queue, lambda: heartbeat.hold, lost) for each in messages]
                batch.parts = [(delivering, batch.contexts)]
                while batch.parts:
                    part, contexts = batch.parts[0]
                    batch.parts[:1] = self._deliver(batch, part, contexts)
                    if part.has_opened_table:
                        self._table_works()
                    if self._stopping:  # the halves of a refused batch
                        self._hand_back(batch)
            self.outages.worked("delivering")
        except (TableUnavailable, UnsupportedOperation, MissingPackage) as error:
            _log.warning("a batch of %s was not delivered: %s", self.queue.name, error)
            self._table_fails(batch, error)
        except (LeaseLost, RequestThrottled) as error:
            _log.warning("a batch of %s was not delivered: %s", self.queue.name, error)
            self._lose(batch)
        except QueueClientError as error:
            _log.warning("a batch of %s was not delivered: %s", self.queue.name, error)
            if not self.outages.failed("delivering", error):
                self.fail(error)
        except BaseException as error:
            self.fail(error)
        finally:
            heartbeat.stop()
            self.running.discard(batch)
            self.interrupt.set()

    def _deliver(
        self, batch: _Batch, delivering: Delivering, contexts: Sequence[Context]
    ) -> Iterable[tuple[Delivering, Sequence[Context]]]:
        """Calls the handler with messages, and appends the rows that it returns to the table. If the table refuses
        the rows, returns each half of the messages, which the caller must deliver.
        """
        done = dict[str, Context]()
        left = [context for context in contexts if context.message.group_id not in batch.broken]
        delays = dict[str, int]()
        with self._handling(left) as ends:
            rows, outcomes, raised = self._handled(left)
            for context, outcome in zip(left, outcomes, strict=True):
                if raised is None and context.message.group_id in batch.broken:
                    continue
                if outcome is Outcome.SUCCESS:
                    done[context.message.receipt_handle] = context
                    continue
                alone = raised is None or len(left) == 1
                if alone:
                    delays[context.message.receipt_handle] = self._delay(context.message, outcome)
                self._fails(batch, context.message, raised, ends, alone)
            handles, reason = [context.message.receipt_handle for context in contexts], self._reason(raised)
            # no reason: an earlier message of the group failed
            failed = {each: reason if each in ends else None for each in handles if each not in done}
            if failed:
                delivering.release_failed(failed, raised is not None, delays)
            return self._append(batch, delivering, [*done.values()], rows, ends) if done else ()

    def _append(
        self, batch: _Batch, delivering: Delivering, done: Sequence[Context], rows: Any, ends: _Ends
    ) -> Iterable[tuple[Delivering, Sequence[Context]]]:
        """Appends rows, and deletes their messages. If the table refuses the rows, returns each half."""
        receipts = [each.message.receipt_handle for each in done]
        try:
            delivering.append(() if rows is None else rows, self._options.merge_schema)
        except (RowsRefused, TypeError) as error:
            half = len(done) // 2
            parts = delivering.anew([receipts[:half], receipts[half:]] if half else None)
            if parts is not None:  # the rows did not arrive
                messages = [each.message for each in done]
                refused = isinstance(error, RowsRefused)
                what = (
                    "the table refuses the rows of"
                    if refused
                    else f"the handler returned a {type(rows).__name__} for"
                )
                whose = (
                    f"{self._batch_of(messages)}, tried again in halves"
                    if half
                    else f"message {messages[0].message_id}"
                )
                _log.error("%s: %s %s: %s", self.queue.name, what, whose, error, extra=self._fields(messages))
                if half:
                    ends.update(dict.fromkeys(receipts, (None, error)))
                    return zip(parts, (done[:half], done[half:]), strict=True)
                [message] = messages
                delays = {receipts[0]: self._delay(message, Outcome.FAILED)}
                parts[0].release_failed({receipts[0]: self._reason(error)}, together=True, delays=delays)
                self._fails(batch, message, error, ends)
                return ()
        ends.update(dict.fromkeys(receipts, (Outcome.SUCCESS, None)))
        return ()

    def _handled(self, contexts: Sequence[Context]) -> tuple[Any, list[Outcome], BaseException | None]:
        """Calls the handler. Returns the rows, an outcome for each message, and the handler's error or None."""
        messages = [each.message for each in contexts]
        if not messages:
            return None, [], None
        try:
            result = self._options.handler(self._options.shown(messages), list(contexts))
            if is_async(self._options.handler):
                result = asyncio.run(result)
            rows, found = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
            return rows, [checked_outcome(each) for each in results_of(found, len(messages))], None
        except BaseException as error:
            if isinstance(error, Exception):
                self._log_failure(messages, error)
            else:
                self.fail(error)
            return None, [Outcome.FAILED] * len(messages), error

    @contextmanager
    def _handling(self, contexts: Sequence[Context]) -> Iterator[_Ends]:
        """Yields a dict in which the caller notes how messages ended. After the block, informs the observers."""
        began, ends = self._now(), _Ends()

        def report(message: Message) -> None:
            if message.receipt_handle in ends:
                took = (self._now() - began) / MICROS
                outcome, error = ends[message.receipt_handle]
                for observer in self._observers:
                    if outcome is None:
                        observer.halved(message, took, error)
                    else:
                        observer.handled(message, took, outcome, error)

        try:
            with ExitStack() as spans:
                for context in reversed(contexts) if self._observers else ():  # they end in order
                    spans.enter_context(handling(self._observers, context.message))
                    spans.callback(report, context.message)
                yield ends
        finally:
            outcomes = [outcome for outcome, _ in ends.values()]
            with self._counting:
                self._last_failed = Outcome.SUCCESS not in outcomes
                self.handled += outcomes.count(Outcome.SUCCESS)
                self.failed += outcomes.count(Outcome.FAILED)
                self.halved += outcomes.count(None)

    def _fails(
        self, batch: _Batch, message: Message, error: BaseException | None, ends: _Ends, alone: bool = True
    ) -> None:
        """Records that a message failed. This batch then delivers no later message of the same FIFO group."""
        ends[message.receipt_handle] = (Outcome.FAILED if alone else None, error)
        if self.queue.fifo:
            batch.broken.add(message.group_id)

    def _log_failure(self, messages: Sequence[Message], error: Exception) -> None:
        """Logs an error of the handler. The log has the stack of a batch's first failure, and of a message that
        failed alone, but not of the halves in between.
        """
        queue, fields = self.queue.name, self._fields(messages)
        if len(messages) == 1:
            where = f"{queue}: the handler failed with message {messages[0].message_id}"
            _log.error("%s", where, exc_info=error, extra=fields)
        elif all(message.receive_count > 1 for message in messages):
            what = f"{queue}: the handler failed again, with {self._batch_of(messages)}"
            _log.error("%s: %s: %s", what, type(error).__name__, error, extra=fields)
        else:
            what = f"{queue}: the handler failed with {self._batch_of(messages)}, tried again in halves"
            _log.error("%s", what, exc_info=error, extra=fields)

    def _batch_of(self, messages: Sequence[Message]) -> str:
        return f"a batch of {len(messages):,} messages for {settings(self.queue).table}"

    def _fields(self, messages: Sequence[Message]) -> dict[str, Any]:
        first = {"message_id": messages[0].message_id, "receive_count": messages[0].receive_count}
        return first | {"queue": self.queue.name, "messages": len(messages), "consumer": self._options.name}

    def _delay(self, message: Message, outcome: Outcome) -> int:
        """Returns the microseconds until a message that failed alone becomes visible.

        With a dead-letter queue, which the message soon reaches, it becomes visible at once by default.
        """
        if self._options.retry_delay is None and settings(self.queue).redrive is not None:
            return 0
        delay = self._options.again_in(message, outcome, self._now())
        return _NO_DELAY_KNOWN if delay is None else delay

    def _reason(self, error: BaseException | None) -> DeadLetterReason:
        return DeadLetterReason.of(error, self._clock.now(), self._options.name)

    # --- renewal

    def _extend(self, batch: _Batch, timeout: Duration) -> None:
        batch.delivering.extend(timeout)  # of all its messages, also those in halves
        for observer in self._observers:
            observer.extended(1)

    def _lose(self, batch: _Batch) -> None:
        lost = batch.contexts[0].lost if batch.contexts else Lost()
        if not lost:
            for observer in self._observers:
                observer.lost(len(batch.contexts))
            lost.set()
