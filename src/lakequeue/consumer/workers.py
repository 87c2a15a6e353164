"""The workers of a consumer: they handle the messages that it holds, and apply what comes of it.

A message is *active* from its receive until it is deleted, handed back, left to its timeout, or lost. Messages of
one group are handled one after another, all others as soon as a hand is free (HBN-19). What handlers finished is
settled by the next round of the consumer, which claims new messages in the same commit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from lakequeue.consumer.handler import Context, Outcome, checked_outcome, is_async
from lakequeue.consumer.hands import Hands
from lakequeue.consumer.held import HeldMessages, Totals
from lakequeue.consumer.jobs import Call, Done, Job, State, Turn, hold_of, outcomes_of
from lakequeue.consumer.observers import Observers
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import OutageMonitor
from lakequeue.consumer.rounds import Rounds
from lakequeue.entry_verbs import Exchanged, FreeHands, is_permanent, settings
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
from lakequeue.model.messages import UNAVAILABLE, Message
from lakequeue.renewal.heartbeat import HeartbeatScheduler, Verdict

_log = logging.getLogger("lakequeue")


class WorkerPool:
    """The active messages of one queue in one run of a consumer. Thread-safe.

    Args:
        options: those of the consumer.
        outages: records whether storage works, and says when to try again.
        observers: record what becomes of messages.
        ended: called when there is something to settle, or messages stop being active.
        broken: called with errors that must end the consumer.
        name: of the consumer, kept with dead letters.
        totals: sums over all queues of the consumer.

    Attributes:
        handled, failed: handlers that have ended, well or not.
        held: the messages.
        rounds: what is to be settled.
        take: returns what a hand is to handle next; None if there is nothing.
        work: handles that; a coroutine function if the handler is one.
        ended: as given.
    """

    hands: Hands
    """What handles them; set before the first message begins."""

    def __init__(
        self,
        options: ConsumerOptions,
        outages: OutageMonitor,
        observers: Observers,
        ended: Callable[[], None],
        broken: Callable[[BaseException], None],
        name: str,
        totals: Totals,
    ) -> None:
        self._options = options
        self._queue = queue = options.queue
        self._clock = queue.clock
        self._handler: Any = options.handler
        self._outages = outages
        self._observers = observers
        self.ended = ended
        self._broken = broken
        self._name = name
        self.handled = self.failed = 0
        self._counting = threading.Lock()
        timeout = options.renewal.receive_timeout
        known = settings(queue)
        longest = known.visibility_timeout_micros if timeout is None else duration_micros(timeout)
        largest_batch = known.profile_rules.max_batch
        self.held = HeldMessages(
            options.concurrency * options.most,
            options.prefetch,
            longest // 3,
            largest_batch,
            options.most,
            duration_micros(1 if options.batch_wait is None else options.batch_wait),
            totals,
        )
        self.rounds = Rounds(options, self.held)
        self._heartbeat: HeartbeatScheduler[str] = HeartbeatScheduler(
            self._clock, options.renewal, self._extend, self._lose, broken, largest_batch
        )
        batch, self._awaited = options.batch is not None, is_async(self._handler)
        self.take: Callable[[], Any] = self._take_batch if batch else self.held.take
        self.work: Callable[[Any], Any] = self._work_async if self._awaited else self._work
        self._calling: Callable[[Any], Any] = self._handling_batch if batch else self._handling_one
        self._shown: Callable[[list[Message]], Any] = list
        if options.as_arrow:
            from lakequeue.consumer.arrow_batches import table_of  # imports what leases do

            self._shown = table_of

    def start(self) -> None:
        """Starts the heartbeat."""
        self._heartbeat.start()

    def resize(self, concurrency: int) -> None:
        """Changes the maximum number of handlers, if it is another."""
        if concurrency * self._options.most != self.held.concurrency:
            self.held.resize(concurrency * self._options.most)
            self.hands.resize(concurrency)

    def begin(self, messages: Sequence[Message]) -> None:
        """Has received messages handled, one at a time in each group."""
        self._observers.received(messages, self._clock.now())
        now = to_micros(self._clock.now())
        turns = self._turns(messages, now)
        jobs = [job for turn in turns for job in turn.jobs]
        self._heartbeat.keep({job.handle: hold_of(job.context.message, now) for job in jobs})
        if refused := [job for turn in self.held.add(turns) for job in turn.jobs]:
            for job in refused:
                self._heartbeat.drop(job.handle)
            self.rounds.return_unseen([job.handle for job in refused])
        self.hands.wake(len(turns))

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
            held = partial(self._heartbeat.get, message.receipt_handle)
            turn.jobs.append(Job(Context(message, self._queue, held), turn, now))
        return turns

    # --- handling

    def _go_on(self, turn: Turn) -> None:
        """Lets the group of a message that has ended go on."""
        if turn.group is not None:
            self.held.go_on(turn)
            self.hands.wake(1)

    def _work(self, taken: Any) -> None:
        with self._calling(taken) as (call, given):
            if given:
                call.result = self._handler(*given)

    async def _work_async(self, taken: Any) -> None:
        with self._calling(taken) as (call, given):
            if given:
                call.result = await self._handler(*given)

    def _raised(self, error: BaseException, lost: bool = False) -> BaseException:
        """What a handler raised; a task that was cancelled ends no consumer."""
        if not (self._awaited and isinstance(error, asyncio.CancelledError)):
            return error
        raised = LeaseLost(0, 1) if lost else RuntimeError("the handler was cancelled")
        raised.__cause__ = error
        return raised

    def _take_batch(self) -> list[Job] | None:
        return self.held.take_batch(to_micros(self._clock.now()))

    def batch_due(self) -> datetime | None:
        """When a batch begins though it is not full; None: nothing waits, or no batches are wanted."""
        due = None if self._options.batch is None else self.held.batch_due()
        return None if due is None else from_micros(due)

    @contextmanager
    def _handling_one(self, job: Job) -> Iterator[tuple[Call, Sequence[Any]]]:
        """Yields the call of a handler and what it gets, nothing if the receipt is lost; acts on the outcome."""
        with self._handling(job) as begun:
            call = begun or Call(0)
            try:
                yield call, (job.context.message, job.context) if begun else ()
            except BaseException as error:  # SystemExit would end an event loop under the other handlers
                call.raised = self._raised(error, lost=bool(job.context.lost))

    @contextmanager
    def _handling_batch(self, jobs: Sequence[Job]) -> Iterator[tuple[Call, Sequence[Any]]]:
        """The same for a batch: the handler gets those whose receipts are not lost."""
        with ExitStack() as ending:
            ending.callback(self.held.left_batch)
            # the last one first, so that they end in order
            calls = [(job.context, ending.enter_context(self._handling(job))) for job in reversed(jobs)]
            begun = [(context, each) for context, each in reversed(calls) if each is not None]
            call, contexts = Call(0), [context for context, _ in begun]
            try:
                yield call, (self._shown([each.message for each in contexts]), contexts) if contexts else ()
            except BaseException as error:  # as above
                call.raised = self._raised(error)
            results = outcomes_of(call, len(begun))
            for (_, each), result in zip(begun, results, strict=True):
                each.result, each.raised = result, call.raised

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
            _log.error("the consumer of %s failed", self._queue.name, exc_info=error)
            self._broken(error)
            self._forget([job, *self._rest(job)])
        finally:
            self.held.left()

    def _outcome(self, job: Job, call: Call) -> Outcome:
        outcome, raised, message = Outcome.FAILED, call.raised, job.context.message
        if raised is None:
            try:
                outcome = checked_outcome(call.result)
            except TypeError as error:
                raised = error
        if isinstance(raised, Exception):
            if not (isinstance(raised, LeaseLost) and job.context.lost):  # it ended as intended
                fields = {"message_id": message.message_id, "receive_count": message.receive_count}
                where = {"queue": self._queue.name, "consumer": self._name}
                _log.error("%s: the handler failed", job, exc_info=raised, extra=where | fields)
        elif raised is not None:  # meant for the process: stop in an orderly way
            self._broken(raised)
            outcome = Outcome.FAILED_RETRY_NOW
        took = to_micros(self._clock.now()) - call.began
        self.held.took(took)
        with self._counting:
            self.handled += outcome is Outcome.SUCCESS
            self.failed += outcome is not Outcome.SUCCESS
        if outcome is not Outcome.SUCCESS and not job.context.lost:
            reason = DeadLetterReason.of(raised, self._clock.now(), self._name)
            self.rounds.add_failure(message.receipt_handle, reason.json())
        self._observers.handled(message, took / MICROS, outcome, raised)
        return outcome

    def _handled(self, job: Job, outcome: Outcome) -> None:
        """Decides what becomes of a message whose handler has ended."""
        if not self.held.end(job):
            return self._go_on(job.turn)  # a stop took it back
        hold = self._heartbeat.drop(job.handle)
        if job.context.lost:
            _log.warning("%s: the receipt was lost while the handler ran", job)
            return self._finish([job, *self._rest(job)])
        if outcome is Outcome.SUCCESS:
            return self._settle_later(Done(job, hold=hold))
        rest = self._rest(job)
        if rest:  # before the one that failed: the group stays blocked, which keeps its order
            self.rounds.return_unseen([other.handle for other in rest])
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
        if job.context.message.last_receive and not in_doubt:
            return 0  # for the move to the dead-letter queue, which nothing else waits for
        if in_doubt or self._options.retry_delay is None:
            return 0 if self._options.hands_back and not in_doubt else None
        try:
            return self._options.retry_micros(job.context.message, to_micros(self._clock.now()))
        except Exception:
            _log.exception("%s: no retry delay, so it comes again at its timeout", job)
            return None

    def _rest(self, job: Job) -> list[Job]:
        """Ends what waits behind a message in its group."""
        rest = self.held.end_rest(job)
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
        if self.rounds.add(done):
            self.ended()

    def next_event(self) -> datetime | None:
        """When a settlement is tried again, or work that was not begun is given back."""
        retry, back = self.rounds.next_retry(), self.held.given_back_at()
        known = (retry, None if back is None else from_micros(back))
        return min((instant for instant in known if instant is not None), default=None)

    def round(self, may_claim: bool) -> Exchanged | None:
        """Settles what was handled, and claims messages for free places; None if there is nothing to do.

        Args:
            may_claim: whether messages are wanted.
        """

        def lose(done: Done) -> None:
            _log.warning("%s: handled, but its receipt was lost before that was settled", done.job)
            self._finish([done.job, *self._rest(done.job)])

        due, found, hands = self.rounds.run(may_claim, lose)
        self.keep_free(hands)
        good = [done.job for done in due if done.error is None]
        if good:
            self._outages.worked("deleting")
            self._finish(good)
        for done in due:
            if done.error is not None:
                self._unsettled(done)
        return found

    def keep_free(self, hands: FreeHands | None) -> None:
        """After a claim: keeps hands free for the last receives that it left."""
        if freed := self.held.keep_free(hands):
            self.hands.wake(freed)

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
        self.rounds.add(done)

    def _forget(self, jobs: Iterable[Job]) -> None:
        self.held.forget(jobs)
        self.ended()

    # --- giving back

    def refuse(self, messages: Sequence[Message]) -> None:
        """Makes received messages visible again, as none of them is to be begun."""
        self.rounds.return_unseen([message.receipt_handle for message in messages])

    def give_back(self) -> None:
        """Makes visible what is held ahead, the newest first, so that the rest of each group keeps its order."""
        back, kept = self.held.end_ahead()
        self.hands.wake(kept)  # a pause claims nothing for them
        if back:
            for job in back:
                self._heartbeat.drop(job.handle)
            self.rounds.return_unseen([job.handle for job in back])
            self._forget(back)

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
            waits = failure.code in (RequestThrottled.code, OverLimit.code, UNAVAILABLE)
            verdicts[int(failure.id)] = Verdict.FAILED if waits else Verdict.LOST
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
        job = self.held.get(handle)
        if job is not None:
            self._observers.lost(1)
            job.context.lost.set()
            self.ended()  # if its delete is being tried again, that ends

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

    def lose_all(self) -> None:
        """Marks the receipts of all handlers as lost."""
        for job in self.held.jobs():
            job.context.lost.set()

    def _take_back(self, state: State) -> None:
        jobs = self.held.end_all(state)
        held = [job for job in jobs if not job.context.lost]
        for job in jobs:
            self._heartbeat.drop(job.handle)
            job.context.lost.set()
        if state is State.WAITING:
            self.rounds.return_unseen([job.handle for job in held])
        else:
            self.rounds.release(held)
        self._forget(jobs)
