"""One queue in one run of a consumer: receives messages, has them handled and kept, and settles them.

A message is *active* from its receive until it is deleted, handed back, left to its timeout, or lost. Messages of
one group are handled one after another, all others as soon as a hand is free (HBN-19). What handlers finished is
settled by the next round of the consumer, which claims new messages in the same commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from lakequeue.consumer.calls import Calls
from lakequeue.consumer.handler import Context
from lakequeue.consumer.held import HeldMessages
from lakequeue.consumer.jobs import Done, Job, Run, State, Turn, hold_of
from lakequeue.consumer.observers import Observers
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import Health
from lakequeue.consumer.rounds import Rounds
from lakequeue.consumer.run_loop import BETWEEN_RECEIVES, REFUSED_PAUSE, RunLoop
from lakequeue.consumer.shared_hands import Controls, SharedHands
from lakequeue.entry_verbs import (
    FreeHands,
    Request,
    gone,
    is_held_back,
    receive_for_hands,
    settings,
    wait_for_more,
)
from lakequeue.errors import (
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.clock import NEVER, Duration, Interrupt, duration_micros, from_micros, seconds, to_micros
from lakequeue.model.messages import UNAVAILABLE, Message
from lakequeue.model.pauses import Pause
from lakequeue.model.waiting_work import WaitingThreads, Waits
from lakequeue.renewal.heartbeat import HeartbeatScheduler, Verdict

_LONGEST_GATHER = 1.0
"""Seconds for which what was handled waits for the next commit at most, and no longer than a round took lately.
With 0.25 s eight processes on one shard of an object store did 0.74 of their work, with 1 s 0.92."""
_HELD_BACK_WAIT = 1
"""Seconds that a receive waits for a rate limit where the run ends with the last message: another process may have
it first."""

_log = logging.getLogger("lakequeue")


class QueueLoop(RunLoop):
    """Receives from one queue of a consumer, and settles, during a run.

    Args:
        options, controls, observers, fatal: see ``RunLoop``.
        hands: what handles the messages of all queues.

    Attributes:
        wake: ends the waits of ``run``, with ``interrupt`` or when there may be messages.
        held: the active messages, and which of them hands take next.
        rounds: settles them, and claims others.
        calls: the calls of the handler with them.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        controls: Controls,
        observers: Observers,
        hands: SharedHands,
        fatal: Callable[[], None],
    ) -> None:
        super().__init__(options, controls, observers, fatal)
        self._hands = hands
        self._pauses = list[Pause]()
        self.wake = Interrupt()
        run = Run(options, self.outages, observers, self.interrupt.set, self.fail)
        self.held = HeldMessages(options, hands.totals, self.interrupt.set)
        self._heartbeat: HeartbeatScheduler[str] = HeartbeatScheduler(
            self._clock, options.renewal, self._extend, self._lost, self.fail, self.held.largest_batch, self._gone
        )
        self.rounds = Rounds(run, self.held, self._heartbeat)
        self.calls = Calls(run, self.held, self.rounds)
        hands.add(self.held, self.calls.work)

    def run(self, until_empty: bool, heartbeats: WaitingThreads | None = None) -> Waits[None]:
        """Consumes until stopped, see ``Consumer.run``; ``wake`` ends its waits."""
        self._heartbeat.start(heartbeats)
        with self.interrupt.waking(self.wake.set):
            try:
                yield from self._consume(until_empty)
            finally:
                self._hands.leave(self.held)
                yield from self._wind_down()
        self._raise_failure()

    def health(self) -> Health:
        """How the run is doing on this queue."""
        return self._health(len(self.held), self.held.busy, self.held.round_seconds)

    def _consume(self, until_empty: bool) -> Waits[None]:
        failures, not_before = 0, self._clock.now()
        while True:
            self.interrupt.clear()
            if self._stopping or self._hands.all_empty:
                return
            now = self._clock.now()
            if (yield from self._prepare(may_linger=not until_empty and now >= not_before)):
                continue
            try:
                empty = self._hands.may_be_empty(self.held) if until_empty else None
                last = empty is not None
                held_back = last and is_held_back(self.queue)
                found = self.rounds.run(may_claim=not self._controls.paused and now >= not_before)
                if found is None:
                    room, event = 0 if self._controls.paused else self.held.room(), self._next_event()
                    if not room or now < not_before:
                        yield from self._wait_until(event, not_before if room else None)
                        continue
                    hands = self.held.free_hands()
                    at_once = last or event is not None
                    messages = yield from self._receive(room, hands, at_once, held_back)
                    self.held.keep_free(hands, bool(messages))
                else:
                    messages = found.messages
                    if found.refused is not None:
                        raise found.refused
            except QueueDoesNotExist:
                self._lose(self.held.jobs())
                raise
            except (OverLimit, RequestThrottled) as error:
                _log.warning("receiving from %s failed, it is tried again: %s", self.queue.name, error)
                not_before = self._clock.now() + REFUSED_PAUSE
                continue
            except QueueClientError as error:
                if not self.outages.failed("receiving", error):
                    raise
                failures += 1
                not_before = self.outages.next_try(failures)
                continue
            if found is None or messages:
                failures = 0
            if found is None:
                self.outages.worked("receiving", committed=bool(messages) or not self.held)
            if messages and (self._stopping or self._controls.paused):
                self.rounds.return_unseen([message.receipt_handle for message in messages])
            elif messages:
                self._begin(messages)
            elif found is None and empty is not None and not held_back:
                self._hands.found_empty(self.held, empty)
            elif found is None:
                yield from self._wait_until(event or now + BETWEEN_RECEIVES)

    def _log_pauses(self) -> None:
        """Logs each pause of the queue or of a group once, and its end."""
        name, pauses = self.queue.name, settings(self.queue).pauses
        for pause in pauses:
            if pause not in self._pauses:
                _log.warning("%s", pause.advice(name))
        if self._pauses and not pauses:
            _log.info("%s is no longer paused", name)
        self._pauses = pauses

    def _prepare(self, may_linger: bool) -> Waits[bool]:
        """Adapts what the pool holds before a round, and logs new pauses of the queue.

        Lets what was handled wait for messages to claim in the same commit.

        Returns:
            True if it waited for such messages.

        Raises:
            QueueClientError: storage failed for too long.
        """
        if (error := self.outages.final) is not None:
            raise error
        self._log_pauses()
        self.held.release_hands()
        self.held.resize(self._controls.concurrency)
        due = self.held.given_back_at()
        if self._controls.paused or (due is not None and to_micros(self._clock.now()) >= due):
            self.rounds.give_back(self.held.end_ahead())  # also if hands did not come to it in time
        if self.rounds.unsettled:  # while all hands are busy, what they finish meanwhile goes into the same commit
            self.held.hungry.wait(min(self.held.round_seconds, _LONGEST_GATHER))
        until = self.rounds.lingers_until() if may_linger and not self._controls.paused else None
        if until is None:
            return False
        idle = not self.held.any_busy
        return (yield from wait_for_more(self.queue, until, self.interrupt, self.wake, idle))

    def _wait_until(self, *instants: datetime | None) -> Waits[None]:
        """Waits until the first of these, or until there is something to do."""
        self.wake.clear()
        if not self.interrupt.is_set():
            yield min((each for each in instants if each is not None), default=NEVER)

    def _receive(
        self, room: int, hands: FreeHands | None, at_once: bool, held_back: bool
    ) -> Waits[Sequence[Message]]:
        shortest = settings(self.queue).limits("receive_wait_time").low
        request = Request(
            max_messages=room,
            visibility_timeout=self._options.renewal.receive_timeout,
            wait_time=_HELD_BACK_WAIT if held_back else shortest if at_once else self._options.wait_time,
            interrupt=self.interrupt,
            consumer=self._options.name,
            hands=hands,
            idle=not self.held.any_busy,
        )
        return (yield from receive_for_hands(self.queue, request, self.wake))

    def _next_event(self) -> datetime | None:
        """When a settlement is tried again, or work that was not begun is given back."""
        retry, back = self.rounds.next_retry(), self.held.given_back_at()
        known = (retry, None if back is None else from_micros(back))
        return min((instant for instant in known if instant is not None), default=None)

    def _begin(self, messages: Sequence[Message]) -> None:
        """Has received messages handled, one at a time in each group."""
        received_at = self._clock.now()
        self._observers.received(messages, received_at)
        now = to_micros(received_at)
        turns = self._turns(messages, now)
        jobs = [job for turn in turns for job in turn.jobs]
        self._heartbeat.keep({job.handle: hold_of(job.context.message, now) for job in jobs})
        self.rounds.give_back(self.held.add(turns))

    def _turns(self, messages: Sequence[Message], now: int) -> list[Turn]:
        turns: dict[str, Turn] = {}
        for message in messages:
            group, held = message.group_id, partial(self._heartbeat.get, message.receipt_handle)
            turn = Turn(group if self.queue.fifo else None)
            turn = turns.setdefault(turn.group or message.receipt_handle, turn)
            turn.jobs.append(Job(Context(message, self.queue, held), turn, now))
        return list(turns.values())

    # --- renewal

    def _extend(self, wanted: Sequence[tuple[str, int]]) -> list[Verdict]:
        changes: list[tuple[str, Duration]] = [(handle, seconds(timeout)) for handle, timeout in wanted]
        try:
            result = self.queue.change_visibility_batch(changes)
        except QueueDoesNotExist as error:
            self.fail(error)
            return [Verdict.LOST] * len(wanted)
        except QueueClientError as error:
            if not self.outages.failed("extending", error):
                self.fail(error)
            return [Verdict.FAILED] * len(wanted)
        except QueueServiceError as error:
            _log.warning("extending %s messages failed: %s", len(wanted), error)
            return [Verdict.FAILED] * len(wanted)
        self.outages.worked("extending")
        verdicts = [Verdict.EXTENDED] * len(wanted)
        for failure in result.failed:
            _log.warning("extending a message of %s failed: %s", self.queue.name, failure.code)
            if failure.code == QueueDoesNotExist.code:
                self.fail(QueueDoesNotExist(failure.message))
            waits = failure.code in (RequestThrottled.code, OverLimit.code, UNAVAILABLE)
            verdicts[int(failure.id)] = Verdict.FAILED if waits else Verdict.LOST
        self._observers.extended(verdicts.count(Verdict.EXTENDED))
        return verdicts

    def _gone(self, handles: Sequence[str]) -> Sequence[str]:
        """Returns the receipts whose messages others deleted, in one read of each ledger."""
        try:
            return gone(self.queue, handles)
        except QueueDoesNotExist as error:
            self.fail(error)
            return handles
        except (QueueServiceError, QueueClientError) as error:  # the next receive or extension reports an outage
            _log.debug("looking for deleted messages of %s failed: %s", self.queue.name, error)
            return ()

    def _lost(self, handle: str) -> None:
        job = self.held.get(handle)
        if job is not None:
            self._observers.lost(1)
            job.context.lost.set()
            self.interrupt.set()  # if its delete is being tried again, that ends

    # --- the end

    def _wind_down(self) -> Waits[None]:
        """Hands back what was not begun, waits for the handlers, then hands back what they did not finish."""
        began = to_micros(self._clock.now())
        try:
            self.rounds.give_back(self.held.end_all(State.WAITING))
            while True:
                self.interrupt.clear()
                self.rounds.run(may_claim=False)
                until = from_micros(began + duration_micros(self._controls.grace))
                if not self.held or self._clock.now() >= until:
                    break
                yield from self._wait_until(until, self._next_event())
        finally:
            self._stop()

    def _stop(self) -> None:
        """Ends the heartbeat. Messages still being handled become visible, and are lost to their handlers."""
        released = list[Done]()
        try:
            running = self.held.end_all(State.RUNNING)
            self.unended = len(running)
            released = self.rounds.release(running)
            self.rounds.run(may_claim=False)
            self._lose([*running, *self.held.jobs()])  # also those whose delete would be tried again
            self.rounds.run(may_claim=False)
        finally:
            self._heartbeat.stop()
            self.handed_back = sum(done.settled for done in released)
            if self.unended:
                _log.warning(
                    "%s: the handlers of %s messages did not end within %s s; %s of these were handed back",
                    *(self.queue.name, self.unended, seconds(duration_micros(self._controls.grace))),
                    self.handed_back,
                )

    def _lose(self, jobs: Sequence[Job]) -> None:
        """Marks the receipts of handlers as lost."""
        for job in jobs:
            job.context.lost.set()
