"""The messages that a consumer holds: who handles them, what becomes of them, and how they are kept.

A message is *active* from its receive until it is deleted, handed back, left to its timeout, or lost. Messages of
one group are handled one after another, all others as soon as a hand is free (HBN-19). What handlers finished is
settled by the next round of the consumer, which claims new messages in the same commit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from time import monotonic
from typing import Any

import attrs

from lakequeue.consumer.ahead import Ahead
from lakequeue.consumer.async_handlers import Tasks
from lakequeue.consumer.handler import Context, Outcome, checked_outcome, is_async
from lakequeue.consumer.hands import Hands, Threads
from lakequeue.consumer.jobs import Call, Done, Job, State, Turn, hold_of, newest
from lakequeue.consumer.observers import Observers
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import OutageMonitor
from lakequeue.consumer.retries import retry_micros
from lakequeue.entry_verbs import Exchanged, FreeHands, exchange, give_back, is_permanent, settings
from lakequeue.errors import (
    LeaseLost,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.clock import MICROS, Duration, duration_micros, from_micros, seconds, to_micros
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.messages import UNAVAILABLE, BatchFailure, Message
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.renewal.heartbeat import HeartbeatScheduler, Verdict

_log = logging.getLogger("lakequeue")


class WorkerPool:
    """The active messages of one run of a consumer. Thread-safe.

    Args:
        options: those of the consumer.
        outages: records whether storage works, and says when to try again.
        observers: record what becomes of messages.
        ended: called when there is something to settle, or messages stop being active.
        broken: called with errors that must end the consumer.
        name: of the consumer, kept with dead letters.

    Attributes:
        handled, failed: handlers that have ended, well or not.
        hungry: set when a hand finds nothing to do.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        outages: OutageMonitor,
        observers: Observers,
        ended: Callable[[], None],
        broken: Callable[[BaseException], None],
        name: str,
    ) -> None:
        self._options = options
        self._queue = queue = options.queue
        self._clock = queue.clock
        self._handler: Any = options.handler
        self._concurrency = options.concurrency
        self._outages = outages
        self._observers = observers
        self._ended = ended
        self._broken = broken
        self._name = name
        self.handled = self.failed = 0
        self._failures: dict[str, str] = {}
        self._largest_batch = settings(queue).profile_rules.max_batch
        self._heartbeat: HeartbeatScheduler[str] = HeartbeatScheduler(
            self._clock, options.renewal, self._extend, self._lose, broken, self._largest_batch
        )
        self._lock = threading.Lock()
        self._ahead = Ahead(self._concurrency, options.prefetch, self._receipt_micros() // 3)
        self._active: dict[str, Job] = {}
        self._ready: deque[Turn] = deque()
        self._groups: dict[str, deque[Turn]] = {}
        self._done: list[Done] = []
        self._busy = self._kept = 0
        """Hands that handle messages, and those that stay free for last receives, see ``FreeHands``."""
        self._hands: Hands
        self.hungry = threading.Event()
        self.hungry.set()

    def start(self) -> None:
        """Starts the heartbeat, and the event loop of an ``async def`` handler."""
        number, clock = self._concurrency, self._clock
        if is_async(self._handler):
            self._hands = Tasks(number, clock, self._take, self._work_async, self._broken)
        else:
            self._hands = Threads(number, clock, self._take, self._work)
        self._heartbeat.start()

    def resize(self, concurrency: int) -> None:
        """Changes the maximum number of handlers, if it is another."""
        if concurrency != self._concurrency:
            with self._lock:
                self._concurrency = concurrency
                self._ahead.resize(concurrency)
            self._hands.resize(concurrency)

    @property
    def active(self) -> int:
        """Number of active messages."""
        return len(self._active)

    @property
    def begun(self) -> int:
        """Number of those in a handler."""
        return self._busy

    @property
    def round_seconds(self) -> float:
        """How long the longest of the last rounds took."""
        return self._ahead.longest_round / MICROS

    def _receipt_micros(self) -> int:
        timeout = self._options.renewal.receive_timeout
        return settings(self._queue).visibility_timeout_micros if timeout is None else duration_micros(timeout)

    def begin(self, messages: Sequence[Message]) -> None:
        """Has received messages handled, one at a time in each group."""
        self._observers.received(messages, self._clock.now())
        now = to_micros(self._clock.now())
        turns = self._turns(messages, now)
        jobs = [job for turn in turns for job in turn.jobs]
        self._heartbeat.keep({job.handle: hold_of(job.context.message, now) for job in jobs})
        with self._lock:
            self._ahead.received(messages)
            self._active |= {job.handle: job for job in jobs}
            for turn in turns:
                if turn.group is not None:
                    before = self._groups.setdefault(turn.group, deque())
                    before.append(turn)
                    if len(before) > 1:
                        continue
                if self._is_last(turn.jobs[0].context.message):
                    self._ready.appendleft(turn)
                else:
                    self._ready.append(turn)
            self.hungry.clear()
        self._hands.wake(len(turns))

    def refuse(self, messages: Sequence[Message]) -> None:
        """Makes received messages visible again, as none of them is to be begun."""
        self._return_unseen([message.receipt_handle for message in messages])

    def _turns(self, messages: Sequence[Message], now: int) -> list[Turn]:
        turns: list[Turn] = []
        groups: dict[str, Turn] = {}
        for message in messages:
            group = message.group_id if self._queue.fifo else None
            turn = None if group is None else groups.get(group)
            if turn is None:
                turn = Turn(group)
                turns.append(turn)
                if group is not None:
                    groups[group] = turn
            turn.jobs.append(Job(self._context(message), turn, now))
        return turns

    def _is_last(self, message: Message) -> bool:
        """Whether a message becomes a dead letter when its handler fails."""
        policy = settings(self._queue).redrive
        return policy is not None and message.receive_count >= policy.max_receive_count

    def _context(self, message: Message) -> Context:
        heartbeat, handle = self._heartbeat, message.receipt_handle
        return Context(message, self._queue, lambda: heartbeat.get(handle))

    # --- handling

    def _take(self) -> Job | None:
        """The next message to handle; None if there is none."""
        with self._lock:
            while self._ready:
                jobs = self._ready[0].jobs
                kept = self._busy + self._kept >= self._concurrency
                if kept and not (jobs and self._is_last(jobs[0].context.message)):
                    break
                turn = self._ready.popleft()
                while turn.jobs:
                    job = turn.jobs.popleft()
                    if job.state is State.WAITING:  # else it was handed back
                        job.state = State.RUNNING
                        self._busy += 1
                        return job
                self._leave(turn)
            self.hungry.set()
        return None

    def _leave(self, turn: Turn) -> None:
        """Lets the next messages of a group begin, if there are any."""
        if turn.group is None:
            return
        turns = self._groups[turn.group]
        turns.popleft()
        if turns:
            self._ready.append(turns[0])
        else:
            del self._groups[turn.group]

    def _go_on(self, turn: Turn) -> None:
        """Lets the group of a message that has ended go on."""
        if turn.group is not None:
            with self._lock:
                self._ready.append(turn)
                self.hungry.clear()
            self._hands.wake(1)

    def _work(self, job: Job) -> None:
        with self._handling(job) as call:
            if call is not None:
                try:
                    call.result = self._handler(job.context.message, job.context)
                except BaseException as error:
                    call.raised = error

    async def _work_async(self, job: Job) -> None:
        with self._handling(job) as call:
            if call is not None:
                try:
                    call.result = await self._handler(job.context.message, job.context)
                except asyncio.CancelledError as error:
                    lost = job.context.lost
                    call.raised = LeaseLost(0, 1) if lost else RuntimeError("the handler was cancelled")
                    call.raised.__cause__ = error
                except BaseException as error:  # SystemExit would end the loop under the other handlers
                    call.raised = error

    @contextmanager
    def _handling(self, job: Job) -> Iterator[Call | None]:
        """Yields the call of a handler, to be filled in, and acts on its outcome; None if the receipt is lost."""
        try:
            if job.context.lost:
                yield None
                return self._finish([job, *self._rest(job)])
            with self._observers.handling(job.context.message):
                call = Call(to_micros(self._clock.now()))
                yield call
                outcome = self._outcome(job, call)
            self._handled(job, outcome)
        except BaseException as error:  # not from a handler
            self._fail(job, error)
        finally:
            with self._lock:
                self._busy -= 1

    def _fail(self, job: Job, error: BaseException) -> None:
        _log.error("the consumer of %s failed", self._queue.name, exc_info=error)
        self._broken(error)
        self._forget([job, *self._rest(job)])

    def _outcome(self, job: Job, call: Call) -> Outcome:
        outcome, raised = Outcome.FAILED, call.raised
        if raised is None:
            try:
                outcome = checked_outcome(call.result)
            except TypeError as error:
                raised = error
        if isinstance(raised, Exception):
            if not (isinstance(raised, LeaseLost) and job.context.lost):  # it ended as intended
                message = job.context.message
                fields = {"message_id": message.message_id, "receive_count": message.receive_count}
                where = {"queue": self._queue.name, "consumer": self._name}
                _log.error("%s: the handler failed", job, exc_info=raised, extra=where | fields)
        elif raised is not None:  # meant for the process: stop in an orderly way
            self._broken(raised)
            outcome = Outcome.FAILED_RETRY_NOW
        took = to_micros(self._clock.now()) - call.began
        with self._lock:
            self._ahead.took(took)
            if outcome is Outcome.SUCCESS:
                self.handled += 1
            else:
                self.failed += 1
                self._keep_reason(job.context, raised)
        self._observers.handled(job.context.message, took / MICROS, outcome, raised)
        return outcome

    def _keep_reason(self, context: Context, raised: BaseException | None) -> None:
        """Has the next round record why a message failed for the last time before it becomes a dead letter."""
        if self._is_last(context.message) and not context.lost:
            reason = DeadLetterReason.of(raised, self._clock.now(), self._name)
            self._failures[context.message.receipt_handle] = reason.json()

    def _handled(self, job: Job, outcome: Outcome) -> None:
        """Decides what becomes of a message whose handler has ended."""
        if not self._move(job, State.RUNNING, State.ENDED):
            return self._go_on(job.turn)  # a stop took it back
        hold = self._heartbeat.drop(job.handle)
        if job.context.lost:
            _log.warning("%s: the receipt was lost while the handler ran", job)
            return self._finish([job, *self._rest(job)])
        if outcome is Outcome.SUCCESS:
            return self._settle_later(Done(job, hold=hold))
        rest = self._rest(job)
        if rest:  # before the one that failed: the group stays blocked, which keeps its order
            self._return_unseen([other.handle for other in rest])
            self._forget(rest)
        # if its renewal failed, another consumer may have it by now (HNS-14)
        again_in = self._again_in(job, outcome, in_doubt=hold is not None and hold.failed)
        if again_in is None:
            return self._finish([job])
        self._settle_later(Done(job, again_in))

    def _again_in(self, job: Job, outcome: Outcome, in_doubt: bool) -> int | None:
        """Microseconds until a message that failed comes again; None: at its timeout."""
        if outcome is Outcome.FAILED_RETRY_NOW:
            return 0
        if self._is_last(job.context.message) and not in_doubt:
            return 0  # for the move to the dead-letter queue, which nothing else waits for
        if in_doubt or self._options.retry_delay is None:
            return 0 if self._options.hands_back and not in_doubt else None
        message, now = job.context.message, to_micros(self._clock.now())
        assert message.received_at is not None
        left = to_micros(message.received_at) + LONGEST_RECEIPT - now
        whole = not settings(self._queue).profile_rules.fractional_seconds
        try:
            return retry_micros(self._options.retry_delay, message.receive_count, left, whole)
        except Exception:
            _log.exception("%s: no retry delay, so it comes again at its timeout", job)
            return None

    def _move(self, job: Job, before: State, after: State) -> bool:
        with self._lock:
            if job.state is not before:
                return False
            job.state = after
            return True

    def _rest(self, job: Job) -> list[Job]:
        """Ends what waits behind a message in its group."""
        with self._lock:
            rest = [other for other in job.turn.jobs if other.state is State.WAITING]
            job.turn.jobs.clear()
            for other in rest:
                other.state = State.ENDED
        for other in rest:
            self._heartbeat.drop(other.handle)
        return rest

    def _finish(self, jobs: Sequence[Job]) -> None:
        """Ends messages for which nothing is left to do; their groups go on."""
        for job in jobs:
            self._heartbeat.drop(job.handle)
        self._forget(jobs)
        for turn in dict.fromkeys(job.turn for job in jobs if job.turn.group is not None):
            self._go_on(turn)

    # --- settling

    def _settle_later(self, done: Done) -> None:
        with self._lock:
            first = all(done.due is not None for done in self._done)
            self._done.append(done)
        if first:
            self._ended()

    @property
    def unsettled(self) -> bool:
        """Whether the next round has something to settle that was not tried yet."""
        return bool(self._failures) or any(done.due is None for done in self._done)

    def next_event(self) -> datetime | None:
        """When a settlement is tried again, or work that was not begun is given back."""
        with self._lock:
            instants = [done.due for done in self._done if done.due is not None]
            oldest = self._oldest_ahead()
            if oldest is not None:
                instants.append(from_micros(oldest + self._ahead.behind))
        return min(instants, default=None)

    def round(self, may_claim: bool) -> Exchanged | None:
        """Settles what was handled, and claims messages for free places; None if there is nothing to do.

        Args:
            may_claim: whether messages are wanted.
        """
        now, later = self._clock.now(), list[Done]()
        with self._lock:
            known, self._done = self._done, []
            failures, self._failures = self._failures, {}
        due: list[Done] = []
        for done in known:
            if done.job.context.lost:
                _log.warning("%s: handled, but its receipt was lost before that was settled", done.job)
                self._finish([done.job, *self._rest(done.job)])
            else:
                (due if done.due is None or done.due <= now else later).append(done)
        if later:
            with self._lock:
                self._done += later
        if not due and not failures:
            return None
        # what failed is tried alone: the claim may be what fails
        room = self.room(due) if may_claim and not any(done.failures for done in due) else 0
        wanted = [(done.job.handle, self._timeout(done.again_in)) for done in due]
        try:
            timeout, hands = self._options.renewal.receive_timeout, self.free_hands(due)
            began = monotonic()
            found = exchange(
                *(self._queue, wanted, room, self._concurrency, timeout, failures, self._options.name), hands
            )
            self._ahead.round(int((monotonic() - began) * MICROS))
            self.keep_free(hands if room else None)
        except BaseException:
            with self._lock:
                self._done, self._failures = due + self._done, failures | self._failures
            raise
        for done, error in zip(due, found.errors, strict=True):
            done.error = error
        good = [done.job for done in due if done.error is None]
        if good:
            self._outages.worked("deleting")
            self._finish(good)
        for done in due:
            if done.error is not None:
                self._unsettled(done)
        return found if room else attrs.evolve(found, refused=None)

    def room(self, done: Sequence[Done] = ()) -> int:
        """Number of messages to ask for."""
        with self._lock:
            held = len(self._active) - len(done)
            room = max(self._ahead.capacity() - held, self._kept)
        return max(0, min(room, self._largest_batch or room))

    def free_hands(self, done: Sequence[Done] = ()) -> FreeHands | None:
        """The handlers that can begin; None if messages are claimed ahead on request, whatever follows."""
        if self._options.prefetch:
            return None
        with self._lock:
            held = len(self._active) - len(done)
            return FreeHands(max(0, self._concurrency - held, min(self._kept, self._concurrency - self._busy)))

    def keep_free(self, hands: FreeHands | None) -> None:
        """After a claim: keeps hands free for the last receives that it left, which would wait for ever."""
        if hands is not None:
            with self._lock:
                before, self._kept = self._kept, min(hands.passed, self._concurrency)
            if self._kept < before:
                self._hands.wake(before)

    def _unsettled(self, done: Done) -> None:
        """Decides what becomes of a message that the last round could not settle."""
        job, error = done.job, done.error
        if done.again_in is not None:
            _log.warning("%s: handing it back failed: %s", job, error)
            return self._finish([job])
        if isinstance(error, RequestThrottled):
            _log.warning("%s: deleting failed: %s", job, error)
            return self._try_again(done)
        if isinstance(error, QueueClientError):
            if self._storage_failed("deleting", error):
                return self._try_again(done)
        elif isinstance(error, QueueDoesNotExist):
            self._broken(error)
        else:
            _log.warning("%s: handled, but not deleted: %s", job, error)
        self._finish([job, *self._rest(job)])

    def _try_again(self, done: Done) -> None:
        """Keeps the receipt of a message whose delete failed, and has that tried again."""
        done.failures += 1
        if done.hold is not None and done.failures == 1:
            self._heartbeat.keep({done.job.handle: done.hold})
        done.due = self._clock.now() + self._outages.policy.pause(done.failures)
        with self._lock:
            self._done.append(done)

    def _timeout(self, again_in: int | None) -> Duration | None:
        if again_in is None:
            return None
        return seconds(max(again_in, 0 if settings(self._queue).allow_zero_visibility else MICROS))

    def _release(self, jobs: Sequence[Job]) -> None:
        size = self._largest_batch or len(jobs) or 1
        timeout = self._timeout(0) or 0
        # last ones first: a group stays blocked until its first message is visible, which keeps its order
        for end in range(len(jobs), 0, -size):
            part = jobs[max(0, end - size) : end]
            try:
                result = self._queue.change_visibility_batch([(job.handle, timeout) for job in part])
            except (QueueServiceError, QueueClientError) as error:
                _log.warning("handing back %s messages failed: %s", len(part), error)
            else:
                for failure in result.failed:
                    _log.warning("%s: handing it back failed: %s", part[int(failure.id)], failure.code)

    def _return_unseen(self, handles: Sequence[str]) -> None:
        """Makes messages visible that no handler has begun, and which so were not received."""
        try:
            give_back(self._queue, handles)
        except (QueueServiceError, QueueClientError) as error:
            _log.warning("handing back %s messages failed: %s", len(handles), error)

    def _forget(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                job.state = State.ENDED
                self._active.pop(job.handle, None)
        self._ended()

    # --- giving back

    def give_back_if_behind(self) -> None:
        """Makes visible what is held ahead, if hands did not come to it in time."""
        now = to_micros(self._clock.now())
        with self._lock:
            oldest = self._oldest_ahead()
            if oldest is None or now < oldest + self._ahead.behind:
                return
        self.give_back()

    def give_back(self) -> None:
        """Makes visible what is held ahead, the newest first, so that the rest of each group keeps its order."""
        with self._lock:
            waiting = [job for job in self._active.values() if job.state is State.WAITING]
            back = newest(waiting, len(self._active) - self._concurrency)
            for job in back:
                job.state = State.ENDED
            self._ahead.fell_behind()
            kept, self._kept = self._kept, 0
        self._hands.wake(kept)  # a pause claims nothing for them
        if back:
            for job in back:
                self._heartbeat.drop(job.handle)
            self._return_unseen([job.handle for job in back])
            self._forget(back)

    def _oldest_ahead(self) -> int | None:
        """When the oldest message was received that nobody has begun, if some are held ahead unasked."""
        if self._options.prefetch is not None or len(self._active) <= self._concurrency:
            return None
        return next((job.since for job in self._active.values() if job.state is State.WAITING), None)

    # --- renewal

    def _extend(self, wanted: Sequence[tuple[str, int]]) -> list[Verdict]:
        changes: list[tuple[str, Duration]] = [(handle, seconds(timeout)) for handle, timeout in wanted]
        try:
            result = self._queue.change_visibility_batch(changes)
        except QueueDoesNotExist as error:
            self._broken(error)
            return [Verdict.LOST] * len(wanted)
        except QueueClientError as error:
            self._storage_failed("extending", error)
            return [Verdict.FAILED] * len(wanted)
        except QueueServiceError as error:
            _log.warning("extending %s messages failed: %s", len(wanted), error)
            return [Verdict.FAILED] * len(wanted)
        self._outages.worked("extending")
        verdicts = [Verdict.EXTENDED] * len(wanted)
        for failure in result.failed:
            _log.warning("extending a message of %s failed: %s", self._queue.name, failure.code)
            if failure.code == QueueDoesNotExist.code:
                self._broken(QueueDoesNotExist(failure.message))
            verdicts[int(failure.id)] = _verdict(failure)
        self._observers.extended(verdicts.count(Verdict.EXTENDED))
        return verdicts

    def _storage_failed(self, doing: str, error: QueueClientError) -> bool:
        """Takes note of a failure; returns whether waiting may mend it, else the consumer ends."""
        if is_permanent(error):
            self._broken(error)
            return False
        self._outages.failed(doing, error)
        return True

    def _lose(self, handle: str) -> None:
        with self._lock:
            job = self._active.get(handle)
        if job is not None:
            self._observers.lost(1)
            job.context.lost.set()
            self._ended()  # if its delete is being tried again, that ends

    # --- the end

    def hand_back_waiting(self) -> None:
        """Makes visible the messages that no handler has begun."""
        self._take_back(State.WAITING)

    def stop(self) -> None:
        """Ends the heartbeat. Messages still being handled are lost to their handlers and become visible."""
        try:
            self._take_back(State.RUNNING)
            self.round(may_claim=False)
            self.lose_all()  # those whose delete would be tried again
            self.round(may_claim=False)
        finally:
            self._heartbeat.stop()
            self._hands.stop()

    def lose_all(self) -> None:
        """Marks the receipts of all handlers as lost."""
        with self._lock:
            jobs = list(self._active.values())
        for job in jobs:
            job.context.lost.set()

    def _take_back(self, state: State) -> None:
        with self._lock:
            jobs = [job for job in self._active.values() if job.state is state]
            for job in jobs:
                job.state = State.ENDED
        held = [job for job in jobs if not job.context.lost]
        for job in jobs:
            self._heartbeat.drop(job.handle)
            job.context.lost.set()
        if state is State.WAITING:
            self._return_unseen([job.handle for job in held])
        else:
            self._release(held)
        self._forget(jobs)


def _verdict(failure: BatchFailure) -> Verdict:
    if failure.code in (RequestThrottled.code, OverLimit.code, UNAVAILABLE):
        return Verdict.FAILED
    # a deleted message and an older receipt have one code; only the text tells them apart (RCP-7, RCP-11)
    return Verdict.GONE if "Message does not exist" in failure.message else Verdict.LOST
