"""The worker pool of a consumer: runs handlers in threads, extends receipts, settles messages by their outcome.

A message is *active* from its receive until it is deleted, handed back, left to its timeout, or lost. Messages of
one group run one after another in one thread; all others run in a thread each (HBN-19).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

import attrs

from lakequeue.consumer.handler import Context, Handler, Outcome, checked_outcome
from lakequeue.consumer.observers import Observers
from lakequeue.consumer.outages import OutageMonitor
from lakequeue.consumer.retries import RetryDelay, retry_micros
from lakequeue.errors import (
    LeaseLost,
    OverLimit,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.clock import MICROS, Duration, seconds, to_micros
from lakequeue.model.messages import UNAVAILABLE, BatchFailure, Message
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.queue import Queue
from lakequeue.renewal.heartbeat import HeartbeatScheduler, Verdict
from lakequeue.renewal.policies import Hold, Renewal
from lakequeue.storage.store_failures import no_wait_mends

_log = logging.getLogger("lakequeue")


class _State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@attrs.define(eq=False)
class _Job:
    """An active message."""

    context: Context
    state: _State = _State.WAITING

    @property
    def handle(self) -> str:
        return self.context.message.receipt_handle

    def __str__(self) -> str:
        return f"message {self.context.message.message_id}"


class WorkerPool:
    """The active messages of one run of a consumer. Thread-safe.

    Args:
        queue: the queue of the messages.
        handler: called for each message.
        renewal: how receipts are extended.
        hand_back: whether failed messages become visible at once.
        retry_delay: when failed messages become visible instead; None: as ``hand_back`` says.
        outages: is told whether storage works, and says when to try again.
        observers: are told what becomes of messages.
        ended: called when messages stop being active.
        broken: called with errors that must end the consumer.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        renewal: Renewal,
        hand_back: bool,
        retry_delay: RetryDelay | None,
        outages: OutageMonitor,
        observers: Observers,
        ended: Callable[[], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._queue = queue
        self._clock = queue.runtime.root.clock
        self._handler = handler
        self._hand_back = hand_back
        self._retry_delay = retry_delay
        self._outages = outages
        self._observers = observers
        self._ended = ended
        self._broken = broken
        self._largest_batch = queue.runtime.attributes.profile_rules.max_batch
        self._heartbeat: HeartbeatScheduler[str] = HeartbeatScheduler(
            self._clock, renewal, self._extend, self._lose, broken, self._largest_batch
        )
        self._lock = threading.Lock()
        self._active: dict[str, _Job] = {}
        self._lanes: dict[str, deque[Sequence[_Job]]] = {}

    def start(self) -> None:
        """Starts the heartbeat."""
        self._heartbeat.start()

    @property
    def active(self) -> int:
        """Number of active messages."""
        return len(self._active)

    def begin(self, messages: Sequence[Message]) -> None:
        """Starts handlers for received messages, one at a time in each group."""
        self._observers.received(messages, self._clock.now())
        jobs = [_Job(self._context(message)) for message in messages]
        with self._lock:
            self._active |= {job.handle: job for job in jobs}
        now = to_micros(self._clock.now())
        self._heartbeat.keep({job.handle: _hold(job.context.message, now) for job in jobs})
        for lane, batch in self._by_lane(jobs).items():
            with self._lock:
                waits = lane in self._lanes
                self._lanes.setdefault(lane, deque()).append(batch)
            if not waits:
                begun = threading.Event()
                worker = threading.Thread(
                    target=self._work, args=(lane, begun), name="lakequeue handler", daemon=True
                )
                worker.start()
                begun.wait()  # else a manual clock could advance before the thread takes part in it

    def refuse(self, messages: Sequence[Message]) -> None:
        """Makes received messages visible again, as none of them is to be begun."""
        self._release([_Job(self._context(message)) for message in messages])

    def _context(self, message: Message) -> Context:
        heartbeat, handle = self._heartbeat, message.receipt_handle
        return Context(message, self._queue, lambda: heartbeat.get(handle))

    def _by_lane(self, jobs: Sequence[_Job]) -> dict[str, list[_Job]]:
        lanes: dict[str, list[_Job]] = {}
        for job in jobs:
            group = job.context.message.group_id if self._queue.fifo else None
            lanes.setdefault(job.handle if group is None else group, []).append(job)
        return lanes

    # --- handling

    def _work(self, lane: str, begun: threading.Event) -> None:
        with self._clock.participant():
            begun.set()
            while True:
                with self._lock:
                    waiting = self._lanes[lane]
                    if not waiting:
                        del self._lanes[lane]
                        return
                    batch = waiting.popleft()
                try:
                    self._run_in_turn(batch)
                except BaseException as error:  # not from a handler: `_handle` catches those
                    _log.exception("the consumer of %s failed", self._queue.name)
                    self._broken(error)
                    self._forget(batch)

    def _run_in_turn(self, jobs: Sequence[_Job]) -> None:
        for index, job in enumerate(jobs):
            if not self._move(job, _State.WAITING, _State.RUNNING):
                continue  # handed back by a stop
            if job.context.lost:
                return self._return(jobs[index:], None)
            with self._observers.handling(job.context.message):
                outcome = self._handle(job)
            if not self._move(job, _State.RUNNING, _State.ENDED):
                continue  # a stop took it back
            hold = self._heartbeat.drop(job.handle)
            if job.context.lost:
                _log.warning("%s: the receipt was lost while the handler ran", job)
                return self._return(jobs[index:], None)
            if outcome is Outcome.SUCCESS and self._delete(job, hold):
                self._forget([job])
                continue
            # if its renewal failed, another consumer may have it by now (HNS-14)
            in_doubt = outcome is Outcome.SUCCESS or (hold is not None and hold.failed)
            return self._return(jobs[index:], self._again_in(job, outcome, in_doubt))

    def _handle(self, job: _Job) -> Outcome:
        began = to_micros(self._clock.now())
        raised: BaseException | None = None
        try:
            outcome = checked_outcome(self._handler(job.context.message, job.context))
        except Exception as error:
            if not (isinstance(error, LeaseLost) and job.context.lost):  # it ended as intended
                _log.exception("%s: the handler failed", job)
            outcome, raised = Outcome.FAILED, error
        except BaseException as error:  # meant for the process: stop in an orderly way
            self._broken(error)
            outcome, raised = Outcome.FAILED_RETRY_NOW, error
        took = to_micros(self._clock.now()) - began
        self._observers.handled(job.context.message, took / MICROS, outcome, raised)
        return outcome

    def _again_in(self, job: _Job, outcome: Outcome, in_doubt: bool) -> int | None:
        """Microseconds until a message that failed comes again; None: at its timeout."""
        if outcome is Outcome.FAILED_RETRY_NOW:
            return 0
        if in_doubt or self._retry_delay is None:
            return 0 if self._hand_back and not in_doubt else None
        message, now = job.context.message, to_micros(self._clock.now())
        assert message.received_at is not None
        left = to_micros(message.received_at) + LONGEST_RECEIPT - now
        whole = not self._queue.runtime.attributes.profile_rules.fractional_seconds
        try:
            return retry_micros(self._retry_delay, message.receive_count, left, whole)
        except Exception:
            _log.exception("%s: no retry delay, so it comes again at its timeout", job)
            return None

    def _move(self, job: _Job, before: _State, after: _State) -> bool:
        with self._lock:
            if job.state is not before:
                return False
            job.state = after
            return True

    # --- settling

    def _delete(self, job: _Job, hold: Hold | None) -> bool:
        """Deletes a message; while storage fails, its receipt is kept and the delete tried again."""
        failures = 0
        while True:
            try:
                self._queue.delete(job.handle)
            except (RequestThrottled, QueueClientError) as error:
                failures += 1
                if isinstance(error, RequestThrottled):
                    _log.warning("%s: deleting failed: %s", job, error)
                elif not self._storage_failed("deleting", error):
                    break
                if hold is not None and failures == 1:
                    self._heartbeat.keep({job.handle: hold})
                self._clock.wait(self._clock.now() + self._outages.policy.pause(failures), job.context.lost)
                if not job.context.lost:
                    continue
                _log.warning("%s: handled, but its receipt was lost before it could be deleted", job)
            except QueueDoesNotExist as error:
                self._broken(error)
            except QueueServiceError as error:
                _log.warning("%s: handled, but not deleted: %s", job, error)
            else:
                self._outages.worked("deleting")
                self._heartbeat.drop(job.handle)
                return True
            break
        self._heartbeat.drop(job.handle)
        return False

    def _return(self, jobs: Sequence[_Job], again_in: int | None) -> None:
        """Ends messages unhandled: makes them visible then, in one commit, or leaves them to their timeout."""
        mine = [job for job in jobs if self._move(job, _State.WAITING, _State.ENDED) or job is jobs[0]]
        for job in mine:
            self._heartbeat.drop(job.handle)
        if again_in is not None:
            self._release([job for job in mine if not job.context.lost], again_in)
        self._forget(mine)

    def _release(self, jobs: Sequence[_Job], again_in: int = 0) -> None:
        rules = self._queue.runtime.attributes
        timeout = seconds(max(again_in, 0 if rules.allow_zero_visibility else MICROS))
        size = self._largest_batch or len(jobs) or 1
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

    def _forget(self, jobs: Iterable[_Job]) -> None:
        with self._lock:
            for job in jobs:
                job.state = _State.ENDED
                self._active.pop(job.handle, None)
        self._ended()

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
        if no_wait_mends(error):
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

    # --- the end

    def hand_back_waiting(self) -> None:
        """Makes visible the messages that no handler has begun."""
        self._take_back(_State.WAITING)

    def stop(self) -> None:
        """Ends the heartbeat. Messages still being handled are lost to their handlers and become visible."""
        self._take_back(_State.RUNNING)
        self.lose_all()  # those whose delete is still being tried again
        self._heartbeat.stop()

    def lose_all(self) -> None:
        """Tells every handler that its receipt is lost."""
        with self._lock:
            jobs = list(self._active.values())
        for job in jobs:
            job.context.lost.set()

    def _take_back(self, state: _State) -> None:
        with self._lock:
            jobs = [job for job in self._active.values() if job.state is state]
            for job in jobs:
                job.state = _State.ENDED
        held = [job for job in jobs if not job.context.lost]
        for job in jobs:
            self._heartbeat.drop(job.handle)
            job.context.lost.set()
        self._release(held)
        self._forget(jobs)


def _hold(message: Message, now: int) -> Hold:
    assert message.received_at is not None and message.visible_at is not None
    return Hold.fresh(to_micros(message.received_at), to_micros(message.visible_at), now)


def _verdict(failure: BatchFailure) -> Verdict:
    if failure.code in (RequestThrottled.code, OverLimit.code, UNAVAILABLE):
        return Verdict.FAILED
    # a deleted message and an older receipt have one code; only the text tells them apart (RCP-7, RCP-11)
    return Verdict.GONE if "Message does not exist" in failure.message else Verdict.LOST
