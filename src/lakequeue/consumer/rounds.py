"""The rounds of a consumer: what handlers finished is settled, and new messages are claimed in the same commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from time import monotonic

import attrs

from lakequeue.consumer.handler import Outcome
from lakequeue.consumer.held import HeldMessages
from lakequeue.consumer.jobs import Done, Job, Run
from lakequeue.entry_verbs import Exchanged, Request, exchange, give_back, linger, settings
from lakequeue.errors import QueueClientError, QueueDoesNotExist, QueueServiceError, RequestThrottled
from lakequeue.model.clock import MICROS, Duration, from_micros, seconds
from lakequeue.model.failures import DeadLetterReason
from lakequeue.renewal.heartbeat import HeartbeatScheduler
from lakequeue.renewal.policies import Hold

_log = logging.getLogger("lakequeue")


class Rounds:
    """Settles the messages of one queue whose handlers have ended, or which none has begun. Thread-safe.

    Args:
        run: the run of the consumer.
        held: the messages.
        heartbeat: extends their receipts.
    """

    def __init__(self, run: Run, held: HeldMessages, heartbeat: HeartbeatScheduler[str]) -> None:
        self._run = run
        self._queue = run.options.queue
        self._held = held
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._done: list[Done] = []
        self._behind: list[Job] = []  # what waited behind messages that failed, or too long
        self._failures: dict[str, DeadLetterReason] = {}

    # --- what becomes of a message

    def add_failure(self, handle: str, reason: DeadLetterReason) -> None:
        """Has the next round record why a message failed (JOB-10)."""
        with self._lock:
            self._failures[handle] = reason

    def ended(self, job: Job, outcome: Outcome, took: int) -> None:
        """Decides what becomes of a message whose handler has ended after so many microseconds."""
        if not self._held.end(job, took):
            return  # a stop took it back
        hold = self._heartbeat.drop(job.handle)
        if job.context.lost:
            _log.warning("%s: the receipt was lost while the handler ran", job)
            return self.finish([job, *self._held.end_rest(job)])
        if outcome is Outcome.SUCCESS:
            return self._settle_later(self._deletion(job, hold))
        with self._lock:  # for the next round: this may be the thread of an event loop
            self._behind += self._held.end_rest(job)
        # if its renewal failed, another consumer may have it by now (HNS-14)
        again_in = self._again_in(job, outcome, in_doubt=hold is not None and hold.failed)
        if again_in is None:
            return self.finish([job])
        self._settle_later(Done(job, again_in))

    def _deletion(self, job: Job, hold: Hold | None) -> Done:
        """The deletion of a handled message: by its newest receipt if it was received again and not begun."""
        now = self._run.now()
        if hold is None or not hold.is_over(now):
            return Done(job, hold=hold, until=self._until(hold, now))
        again = self._held.end_again(job)
        self.forget(again)
        return Done(job, handle=again[-1].handle) if again else Done(job, hold=hold)

    def _until(self, hold: Hold | None, now: int) -> int:
        """Returns until when the deletion of a message may wait for the next claim; 0: not at all."""
        if hold is None or hold.failed or hold.timeout <= 0:
            return 0
        longest = min(linger(self._queue), (hold.visible_at - now) // 3)
        return now + longest if longest > 0 else 0

    def is_over(self, job: Job) -> bool:
        """Returns True if the receipt of a message has ended, by the queue's clock."""
        hold = self._heartbeat.get(job.handle)
        return hold is not None and hold.is_over(self._run.now())

    def return_late(self, job: Job) -> None:
        """Has the next round give back a message whose receipt ended before its handler began.

        So does what waits behind the message, which keeps the order of its group.
        """
        _log.warning("%s: its receipt ended before a handler began, so it is given back", job)
        with self._lock:
            self._behind += self._held.end_late(job)
        self._held.go_on(job.turn)
        self._run.wake()

    def _again_in(self, job: Job, outcome: Outcome, in_doubt: bool) -> int | None:
        """Microseconds until a message that failed comes again; None: at its timeout."""
        options = self._run.options
        if outcome is Outcome.FAILED_RETRY_NOW:
            return 0
        if in_doubt:
            return None
        if job.context.message.last_receive:
            return 0  # for the move to the dead-letter queue, which nothing else waits for
        if options.retry_delay is None:
            return 0 if options.hands_back else None
        try:
            return options.retry_micros(job.context.message, self._run.now())
        except Exception:
            _log.exception("%s: no retry delay, so it comes again at its timeout", job)
            return None

    def finish(self, jobs: Sequence[Job]) -> None:
        """Ends messages for which nothing is left to do; their groups go on."""
        self.forget(jobs)
        for turn in dict.fromkeys(job.turn for job in jobs):
            self._held.go_on(turn)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Ends messages; their groups do not go on."""
        for job in jobs:
            self._heartbeat.drop(job.handle)
        self._held.forget(jobs)
        self._run.wake()

    # --- rounds

    @property
    def unsettled(self) -> bool:
        """Whether the next round has something to settle that was not tried yet."""
        return bool(self._failures) or any(done.due is None for done in self._done)

    def next_retry(self) -> datetime | None:
        """When a settlement is tried again."""
        with self._lock:
            return min((done.due for done in self._done if done.due is not None), default=None)

    def lingers_until(self) -> datetime | None:
        """Until when all that handlers finished may wait for the next claim; None: there is nothing that may."""
        with self._lock:
            if self._failures or self._behind or any(done.due is not None for done in self._done):
                return None
            until = min((done.until for done in self._done if not done.job.context.lost), default=0)
        return from_micros(until) if until > self._run.now() else None

    def run(self, may_claim: bool) -> Exchanged | None:
        """Settles what is due, and claims messages for free places; None if there is nothing to do.

        Args:
            may_claim: whether messages are wanted.
        """
        due, failures, behind = self._due()
        try:
            # before the one that failed: the group stays blocked, which keeps its order
            self.give_back(behind)
            if not due and not failures:
                return None
            # what failed is tried alone: the claim may be what fails
            room = self._held.room(due) if may_claim and not any(done.failures for done in due) else 0
            hands = self._held.free_hands(due)
            options = self._run.options
            timeout = options.renewal.receive_timeout
            asked = Request(room, timeout, consumer=options.name, hands=hands, enough=self._held.concurrency)
            wanted = [(done.handle, self._timeout(done.again_in)) for done in due]
            began = monotonic()
            found = exchange(self._queue, wanted, asked if room else None, failures)
        except BaseException:
            with self._lock:
                self._done, self._failures = due + self._done, failures | self._failures
                self._behind = behind + self._behind
            raise
        self._held.ahead.round(int((monotonic() - began) * MICROS))
        self._held.keep_free(hands if room else None, bool(found.messages))
        for done, error in zip(due, found.errors, strict=True):
            done.settled = error is None
        if good := [done.job for done in due if done.settled]:
            self._run.outages.worked("deleting")
            self.finish(good)
        for done, error in zip(due, found.errors, strict=True):
            if error is not None:
                self._unsettled(done, error)
        return found if room else attrs.evolve(found, refused=None)

    def _due(self) -> tuple[list[Done], dict[str, DeadLetterReason], list[Job]]:
        """What the next round settles, the failures that it records, and what it gives back."""
        now, due = self._run.clock.now(), list[Done]()
        with self._lock:
            known, self._done = self._done, []
            behind, self._behind = self._behind, []
            failures, self._failures = self._failures, {}
        for done in known:
            if done.job.context.lost:
                _log.warning("%s: handled, but its receipt was lost before that was settled", done.job)
                self.finish([done.job, *self._held.end_rest(done.job)])
            elif done.due is None or done.due <= now:
                due.append(done)
            else:
                self._add(done)
        return due, failures, behind

    def _settle_later(self, done: Done) -> None:
        if self._add(done):
            self._run.wake()

    def _add(self, done: Done) -> bool:
        """Has a message settled; returns whether nothing waits for the next round that is as urgent."""
        with self._lock:
            first = all(each.due is not None or each.until > done.until for each in self._done)
            self._done.append(done)
        return first

    def _unsettled(self, done: Done, error: Exception) -> None:
        """Decides what becomes of a message that the last round could not settle."""
        job = done.job
        if done.again_in is not None:
            _log.warning("%s: handing it back failed: %s", job, error)
            return self.finish([job])
        if isinstance(error, RequestThrottled):
            _log.warning("%s: deleting failed: %s", job, error)
            return self._try_again(done)
        if isinstance(error, QueueClientError):
            if self._run.outages.failed("deleting", error):
                return self._try_again(done)
            self._run.broken(error)
        elif isinstance(error, QueueDoesNotExist):
            self._run.broken(error)
        else:
            _log.warning("%s: handled, but not deleted: %s", job, error)
        self.finish([job, *self._held.end_rest(job)])

    def _try_again(self, done: Done) -> None:
        """Keeps the receipt of a message whose delete failed, and has that tried again."""
        done.failures += 1
        if done.hold is not None and done.failures == 1:
            self._heartbeat.keep({done.handle: done.hold})
        done.due = self._run.clock.now() + self._run.outages.policy.pause(done.failures)
        self._add(done)

    # --- giving back

    def _timeout(self, again_in: int | None) -> Duration | None:
        if again_in is None:
            return None
        return seconds(max(again_in, 0 if settings(self._queue).allow_zero_visibility else MICROS))

    def release(self, jobs: Sequence[Job]) -> list[Done]:
        """Has the next round make messages visible whose handlers did not end in time.

        Returns:
            Those whose receipts are not lost; ``settled`` says after the round which are visible.
        """
        self.forget([job for job in jobs if job.context.lost])
        released = [Done(job, again_in=0) for job in jobs if not job.context.lost]
        for done in released:
            self._heartbeat.drop(done.job.handle)
            self._add(done)
        return released

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Ends messages that no handler has begun, and makes them visible."""
        if jobs:
            for job in jobs:
                self._heartbeat.drop(job.handle)
            self.return_unseen([job.handle for job in jobs if not job.context.lost])
            self.forget(jobs)

    def return_unseen(self, handles: Sequence[str]) -> None:
        """Makes messages visible that no handler has begun, and which so were not received."""
        try:
            give_back(self._queue, handles)
        except (QueueServiceError, QueueClientError) as error:
            _log.warning("handing back %s messages failed: %s", len(handles), error)
