"""One queue in one run of a consumer: performs the actions that the pool of its messages returns.

The loop, the hands and the renewal of receipts run in different threads. All report to the pool, under one lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import attrs

from lakequeue.consumer import events
from lakequeue.consumer.ahead import MOST
from lakequeue.consumer.calls import Calls
from lakequeue.consumer.handler import Context, hold_of
from lakequeue.consumer.jobs import Done, Job, Rules, State, Turn
from lakequeue.consumer.observers import Observer
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.pool import Pool
from lakequeue.consumer.run_loop import BETWEEN_RECEIVES, RunLoop
from lakequeue.consumer.shared_hands import Controls, SharedHands
from lakequeue.entry_verbs import (
    Exchanged,
    FreeHands,
    Request,
    exchange,
    give_back,
    gone,
    is_held_back,
    linger,
    receive_for_hands,
    settings,
    took_all,
    wait_for_more,
)
from lakequeue.errors import (
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
    counted,
)
from lakequeue.model.clock import MICROS, Duration, duration_micros, from_micros, seconds, to_micros
from lakequeue.model.messages import UNAVAILABLE, Message
from lakequeue.model.pauses import Pause
from lakequeue.model.waiting_work import Waits
from lakequeue.renewal import holds
from lakequeue.renewal.heartbeat import HeartbeatScheduler
from lakequeue.renewal.holds import Verdict

_HELD_BACK_WAIT = 1
"""Seconds that a receive waits while a rate limit holds messages back, in a run that ends at an empty queue."""

_HAND_FREE, _RECEIVED_NOTHING = events.HandFree(), events.MessagesReceived((), {})
_SETTLED = events.Settlement.SETTLED
_log = logging.getLogger("lakequeue")


class QueueLoop(RunLoop):
    """Receives and settles messages of one queue during a run."""

    def __init__(
        self,
        hands: SharedHands,
        options: ConsumerOptions,
        controls: Controls,
        observers: Sequence[Observer],
        fatal: Callable[[RunLoop], None],
    ) -> None:
        super().__init__(options, controls, observers, fatal)
        self._hands = hands
        self._lock = hands.lock
        self._pauses = list[Pause]()
        self._hungry = threading.Event()
        self._hungry.set()
        self.pool = pool = Pool(self._rules(), hands.totals)
        self._heartbeat = HeartbeatScheduler(self._clock, self.report, self._extend, self.fail, self._gone)
        self._calls = Calls(options, observers, self._now, pool.is_over, self.report, self.fail)
        self.work, self.running = self._calls.work, self._calls.running
        self._quick: dict[type, Callable[[Any], object]] = {
            events.Wake: lambda action: self.interrupt.set(),
            events.WakeHands: lambda action: hands.hands.wake(action.number),
            events.Resize: lambda action: hands.hands.resize(action.number),
            holds.WakeRenewal: lambda action: self._heartbeat.wake(),
            events.Lose: self._lose,
            events.Warn: lambda action: _log.warning(action.text, action.job),
            events.GiveBack: lambda action: self._return_unseen(action.handles),
        }
        hands.receiving[pool] = self

    def _rules(self) -> Rules:
        options, known, timeout = self._options, settings(self.queue), self._options.renewal.receive_timeout
        low_cap = known.inflight_limit is not None and known.inflight_limit < 2 * MOST
        return Rules(
            renewal=options.renewal,
            longest=known.visibility_timeout_micros if timeout is None else duration_micros(timeout),
            prefetch=options.prefetch,
            batch=options.size,
            batch_wait=options.batch_wait_micros,
            fifo=self.queue.fifo,
            largest=known.profile_rules.max_batch,
            weight=options.weight,
            linger=max(linger(self.queue), options.claim_interval_micros),
            claim_interval=options.claim_interval_micros,
            gathers=not (self.queue.fifo or known.pace or known.group_in_flight_limit or low_cap),
            pause=lambda failures: duration_micros(self.outages.policy.pause(failures)),
            claims=lambda free: FreeHands(partial(self._locked, free)),
        )

    def run(self, until_empty: bool) -> Waits[None]:
        self._heartbeat.start(self._hands.heartbeats)
        yield from super().run(until_empty)

    def _load(self) -> tuple[int, int, float]:
        return len(self.pool), self.pool.busy, self.pool.ahead.longest_round / MICROS

    @property
    def handled(self) -> int:
        return self.pool.handled

    @property
    def failed(self) -> int:
        return self.pool.failed

    # --- the pool

    def report(self, event: events.Event, now: int | None = None) -> list[events.Action]:
        """Passes an event to the pool. Performs the actions that do not wait, and returns the rest."""
        with self._lock:
            actions = self.pool.on(event, self._now() if now is None else now)
            if self.pool.hungry is not self._hungry.is_set():
                self.show_hunger()
        if not actions:
            return actions
        left = []
        for action in actions:
            perform = self._quick.get(type(action))
            if perform is None:
                left.append(action)
            else:
                perform(action)
        return left

    def take(self) -> Sequence[Job] | None:
        """Begins the next call of the handler, and returns its messages; None if no call may begin."""
        # what begins depends on the instant for batches only
        for action in self.report(_HAND_FREE, None if self.pool.rules.batch > 1 else 0):
            if isinstance(action, events.Start):
                return action.jobs
        return None

    def show_hunger(self) -> None:
        """Ends the waits of ``Gather`` if a hand finds nothing to do. Else these waits take their full time."""
        (self._hungry.set if self.pool.hungry else self._hungry.clear)()

    def _locked(self, free: Callable[[], int]) -> int:
        with self._lock:
            return free()

    # --- passes

    def _consume(self, until_empty: bool) -> Waits[None]:
        not_before = self._now()
        while self._begins_pass() and not self._hands.all_empty:
            self._log_pauses()
            try:
                action = yield from self._prepare(not_before, until_empty)
                if not isinstance(action, events.Round):
                    if isinstance(action, holds.WaitUntil):
                        yield from self._wait_until(action.until)
                    continue
                empty = self._hands.may_be_empty(self.pool) if until_empty else None
                held_back = empty is not None and is_held_back(self.queue)
                began = self._now()
                messages = yield from self._claim(action, empty is not None, held_back)
            except QueueDoesNotExist:
                self.report(holds.Gone(list(self.pool.active)))
                raise
            except (OverLimit, RequestThrottled, QueueClientError) as error:
                not_before = self._next_try(error)
                continue
            if messages or not action.settles:
                self._failures = 0
            if not action.settles:
                self.outages.worked("receiving", committed=bool(messages) or not len(self.pool))
            if messages and (self._stopping or self._controls.paused):
                self._return_unseen([message.receipt_handle for message in messages])
            elif messages:
                self._begin(messages)
            elif not action.settles and empty is not None and not held_back:
                self._hands.found_empty(self.pool, empty)
            elif not action.settles:
                self.report(_RECEIVED_NOTHING)
                yield from self._wait_until(action.event or began + BETWEEN_RECEIVES)

    def _claim(self, action: events.Round, last: bool, held_back: bool) -> Waits[Sequence[Message]]:
        """Performs a round. Returns the claimed messages. Raises the error if the queue refused the claim."""
        if not action.settles:
            return (yield from self._receive(action.room, last or action.event is not None, held_back))
        found = self._exchange(action)
        if found.refused is not None:
            raise found.refused
        return found.messages

    def _prepare(self, not_before: int, until_empty: bool) -> Waits[events.Action | None]:
        """Begins an iteration of the loop. Returns the action that the pool asks for; None if messages arrived
        during a wait, so that the caller must begin a new iteration.
        """
        for action in self.report(events.Tick(self._controls.concurrency, self._controls.paused)):
            if isinstance(action, events.Gather):
                self._hungry.wait(action.longest / MICROS)
        due = events.RoundDue(self._controls.paused, not_before, not until_empty)
        [action] = self.report(due)
        if not isinstance(action, events.Linger):
            return action
        until, idle = from_micros(action.until), not self._hands.totals.busy
        if (yield from wait_for_more(self.queue, until, self.interrupt, self.woken, idle)):
            return None
        [action] = self.report(attrs.evolve(due, may_linger=False))
        return action

    def _log_pauses(self) -> None:
        """Logs each pause of the queue or of a group once. Logs the end when no pause is left."""
        name, pauses = self.queue.name, settings(self.queue).pauses
        for pause in pauses:
            if pause not in self._pauses:
                _log.warning("%s", pause.advice(name))
        if self._pauses and not pauses:
            _log.info("%s is no longer paused", name)
        self._pauses = pauses

    def _receive(self, room: int, at_once: bool, held_back: bool) -> Waits[Sequence[Message]]:
        shortest = settings(self.queue).limits("receive_wait_time").low
        request = Request(
            max_messages=room,
            visibility_timeout=self._options.renewal.receive_timeout,
            wait_time=_HELD_BACK_WAIT if held_back else shortest if at_once else self._options.wait_time,
            interrupt=self.interrupt,
            consumer=self._options.name,
            hands=self.pool.claim,
            idle=not self._hands.totals.busy,
            one_each=not self._options.prefetch,
        )
        return (yield from receive_for_hands(self.queue, request, self.woken))

    def _begin(self, messages: Sequence[Message]) -> None:
        """Gives received messages to the pool: a turn for each FIFO group, or for each message without a group."""
        received_at = self._clock.now()
        for observer in self._observers:
            observer.received(messages, received_at)
        now = to_micros(received_at)
        kept = {message.receipt_handle: hold_of(message, now) for message in messages}
        claimed_at = messages[-1].received_at
        took_all_at = None
        if self.pool.rules.claim_interval and claimed_at is not None and took_all(self.queue):
            took_all_at = to_micros(claimed_at)
        self.report(events.MessagesReceived(self._turns(messages, now), kept, took_all_at))

    def _turns(self, messages: Sequence[Message], now: int) -> list[Turn]:
        turns: dict[str, Turn] = {}
        for message in messages:
            group, held = message.group_id, partial(self.pool.holds.get, message.receipt_handle)
            turn = Turn(group if self.queue.fifo else None)
            turn = turns.setdefault(turn.group or message.receipt_handle, turn)
            turn.jobs.append(Job(Context(message, self.queue, held), turn, now))
        return list(turns.values())

    # --- rounds

    def _exchange(self, action: events.Round) -> Exchanged:
        """Settles the messages of a round, and claims messages if the round asks for some."""
        options, room = self._options, action.room
        timeout, enough = options.renewal.receive_timeout, self.pool.concurrency
        name, hands, one_each = options.name, self.pool.claim, not options.prefetch
        asked = Request(room, timeout, consumer=name, hands=hands, enough=enough, one_each=one_each)
        wanted = [(done.handle, self._timeout(done.again_in)) for done in action.done]
        began = monotonic()
        try:
            found = exchange(self.queue, wanted, asked if room else None, action.failures)
        except BaseException:
            self.report(events.RoundFailed(action))
            raise
        took = int((monotonic() - began) * MICROS)
        if any(error is None for error in found.errors):
            self.outages.worked("deleting")
        each = zip(action.done, found.errors, strict=True)
        results = [_SETTLED if error is None else self._settled(done, error) for done, error in each]
        self.report(events.Settled(action.done, results, took))
        return found if room else attrs.evolve(found, refused=None)

    def _timeout(self, again_in: int | None) -> Duration | None:
        if again_in is None:
            return None
        return seconds(max(again_in, 0 if settings(self.queue).allow_zero_visibility else MICROS))

    def _settled(self, done: Done, error: Exception) -> events.Settlement:
        """Logs why a round could not settle a message, and decides if the next round tries again."""
        job = done.job
        if done.again_in is not None:
            _log.warning("%s: handing it back failed: %s", job, error)
        elif isinstance(error, RequestThrottled):
            _log.warning("%s: deleting failed: %s", job, error)
            return events.Settlement.AGAIN
        elif isinstance(error, QueueClientError):
            if self.outages.failed("deleting", error):
                return events.Settlement.AGAIN
            self.fail(error)
        elif isinstance(error, QueueDoesNotExist):
            self.fail(error)
        else:
            _log.warning("%s: handled, but not deleted: %s", job, error)
        return events.Settlement.NEVER

    def _return_unseen(self, handles: Sequence[str]) -> None:
        """Makes messages visible that no handler has begun, as if they had not been received."""
        try:
            give_back(self.queue, handles)
        except (QueueServiceError, QueueClientError) as error:
            _log.warning("handing back %s messages failed: %s", len(handles), error)

    # --- renewal

    def _extend(self, wanted: Mapping[str, int]) -> list[Verdict]:
        changes: list[tuple[str, Duration]] = [(handle, seconds(timeout)) for handle, timeout in wanted.items()]
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
            why, runs = failure.code, ""
            waits = failure.code in (RequestThrottled.code, OverLimit.code, UNAVAILABLE)
            job = self.pool.active.get(changes[int(failure.id)][0])
            if failure.code == QueueDoesNotExist.code:
                self.fail(QueueDoesNotExist(failure.message))
            elif not waits:
                why = "its timeout passed, or it was taken elsewhere"
                runs = "; its handler still runs" if job is not None and job.state is State.RUNNING else ""
            _log.warning("extending %s of %s failed: %s%s", job or "a message", self.queue.name, why, runs)
            verdicts[int(failure.id)] = Verdict.FAILED if waits else Verdict.LOST
        for observer in self._observers:
            observer.extended(verdicts.count(Verdict.EXTENDED))
        return verdicts

    def _gone(self, handles: Sequence[str]) -> Sequence[str]:
        """Returns the receipts whose messages other processes deleted; all of them if the queue was deleted."""
        try:
            return gone(self.queue, handles)
        except QueueDoesNotExist as error:
            self.fail(error)
            return handles
        except (QueueServiceError, QueueClientError) as error:  # the next receive or extension reports an outage
            _log.debug("looking for deleted messages of %s failed: %s", self.queue.name, error)
            return ()

    def _lose(self, action: events.Lose) -> None:
        for observer in self._observers if action.found and action.jobs else ():
            observer.lost(len(action.jobs))
        for job in action.jobs:
            job.context.lost.set()

    # --- the end

    def _wind_down(self) -> Waits[None]:
        """Hands back messages that have not begun, waits for handlers, then hands back unfinished messages."""
        began = self._now()
        self._hands.leave(self.pool)
        try:
            self.report(events.RunEnds())
            while True:
                self.interrupt.clear()
                event = self._settle()
                until = began + duration_micros(self._controls.grace)
                if not len(self.pool) or self._now() >= until:
                    break
                yield from self._wait_until(until if event is None else min(until, event))
        finally:
            self._stop()

    def _settle(self) -> int | None:
        """Settles due messages. Returns the instant at which more become due; None if a handler must end first."""
        for action in self.report(events.RoundDue(paused=True, not_before=0, may_linger=False)):
            if isinstance(action, events.Round):
                self._exchange(action)
        with self._lock:
            return self.pool.next_event()

    def _stop(self) -> None:
        """Ends the heartbeat. If handlers still run, makes their messages visible, and marks the receipts lost."""
        try:
            self._heartbeat.stop()
            self.report(events.GraceOver())
            self.unended = len(self.pool.unended)
            self._settle()
        finally:
            self.report(events.RunOver())
            self.handed_back = sum(done.settled for done in self.pool.released)
            if self.unended:
                _log.warning(
                    "%s: the handlers of %s did not end within %s s; %s of these were handed back",
                    *(
                        self.queue.name,
                        counted(self.unended, "message"),
                        seconds(duration_micros(self._controls.grace)),
                    ),
                    self.handed_back,
                )
