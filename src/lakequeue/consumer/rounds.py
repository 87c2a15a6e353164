"""The rounds of a consumer: what handlers finished is settled, and new messages are claimed in the same commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic

import attrs

from lakequeue.consumer.held import HeldMessages
from lakequeue.consumer.jobs import Done, Job
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.entry_verbs import Exchanged, FreeHands, Request, exchange, give_back, settings
from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.model.clock import MICROS, Duration, seconds

_log = logging.getLogger("lakequeue")


class Rounds:
    """What is to be settled, and the calls of the queue that settle it. Thread-safe."""

    def __init__(self, options: ConsumerOptions, held: HeldMessages) -> None:
        self._options = options
        self._queue = options.queue
        self._held = held
        self._lock = threading.Lock()
        self._done: list[Done] = []
        self._failures: dict[str, str] = {}

    def add(self, done: Done) -> bool:
        """Has a message settled; returns whether it is the first that waits for the next round."""
        with self._lock:
            first = all(each.due is not None for each in self._done)
            self._done.append(done)
        return first

    def add_failure(self, handle: str, reason: str) -> None:
        """Has the next round record why a message failed (JOB-10)."""
        with self._lock:
            self._failures[handle] = reason

    @property
    def unsettled(self) -> bool:
        """Whether the next round has something to settle that was not tried yet."""
        return bool(self._failures) or any(done.due is None for done in self._done)

    def next_retry(self) -> datetime | None:
        """When a settlement is tried again."""
        with self._lock:
            return min((done.due for done in self._done if done.due is not None), default=None)

    def run(
        self, may_claim: bool, lose: Callable[[Done], None]
    ) -> tuple[list[Done], Exchanged | None, FreeHands | None]:
        """Settles what is due, and claims messages for free places if they are wanted.

        Args:
            may_claim: whether messages are wanted.
            lose: called with what cannot be settled, as its receipt is lost.

        Returns:
            What was to be settled, each with the error that it met; the round, None if there was nothing to do;
            and the hands for which it claimed.
        """
        now, due = self._queue.clock.now(), list[Done]()
        with self._lock:
            known, self._done = self._done, []
            failures, self._failures = self._failures, {}
        for done in known:
            if done.job.context.lost:
                lose(done)
            elif done.due is None or done.due <= now:
                due.append(done)
            else:
                self.add(done)
        if not due and not failures:
            return [], None, None
        # what failed is tried alone: the claim may be what fails
        room = self._held.room(due) if may_claim and not any(done.failures for done in due) else 0
        hands = self._held.free_hands(due)
        timeout = self._options.renewal.receive_timeout
        request = Request(room, timeout, consumer=self._options.name, hands=hands) if room else None
        wanted = [(done.job.handle, self._timeout(done.again_in)) for done in due]
        began = monotonic()
        try:
            found = exchange(self._queue, wanted, request, self._held.concurrency, failures)
        except BaseException:
            with self._lock:
                self._done, self._failures = due + self._done, failures | self._failures
            raise
        self._held.ahead.round(int((monotonic() - began) * MICROS))
        for done, error in zip(due, found.errors, strict=True):
            done.error = error
        return due, found if room else attrs.evolve(found, refused=None), hands if room else None

    def _timeout(self, again_in: int | None) -> Duration | None:
        if again_in is None:
            return None
        return seconds(max(again_in, 0 if settings(self._queue).allow_zero_visibility else MICROS))

    def release(self, jobs: Sequence[Job]) -> None:
        """Makes messages visible whose handlers did not end in time."""
        size = self._held.largest_batch or len(jobs) or 1
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

    def return_unseen(self, handles: Sequence[str]) -> None:
        """Makes messages visible that no handler has begun, and which so were not received."""
        try:
            give_back(self._queue, handles)
        except (QueueServiceError, QueueClientError) as error:
            _log.warning("handing back %s messages failed: %s", len(handles), error)
