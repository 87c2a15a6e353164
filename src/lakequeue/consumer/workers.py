"""The workers of a consumer: they handle the messages that it holds, and apply what comes of it.

A message is *active* from its receive until it is deleted, handed back, left to its timeout, or lost. Messages of
one group are handled one after another, all others as soon as a hand is free (HBN-19). What handlers finished is
settled by the next round of the consumer, which claims new messages in the same commit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from lakequeue.consumer.calls import Calls
from lakequeue.consumer.handler import Context
from lakequeue.consumer.held import HeldMessages, Totals
from lakequeue.consumer.jobs import Job, Run, State, Turn, hold_of
from lakequeue.consumer.rounds import Rounds
from lakequeue.errors import OverLimit, QueueClientError, QueueDoesNotExist, QueueServiceError, RequestThrottled
from lakequeue.model.clock import Duration, from_micros, seconds, to_micros
from lakequeue.model.messages import UNAVAILABLE, Message
from lakequeue.renewal.heartbeat import HeartbeatScheduler, Verdict

_log = logging.getLogger("lakequeue")


class WorkerPool:
    """The active messages of one queue in one run of a consumer: receives them and keeps them. Thread-safe.

    Args:
        run: the run.
        totals: sums over all queues of the consumer.

    Attributes:
        held: the messages, and which of them hands take next.
        rounds: settles them, and claims others.
        calls: the calls of the handler with them.
    """

    def __init__(self, run: Run, totals: Totals) -> None:
        self._run = run
        self._queue = run.options.queue
        self.held = HeldMessages(run.options, totals, run.wake)
        self._heartbeat: HeartbeatScheduler[str] = HeartbeatScheduler(
            run.clock, run.options.renewal, self._extend, self._lose, run.broken, self.held.largest_batch
        )
        self.rounds = Rounds(run, self.held, self._heartbeat)
        self.calls = Calls(run, self.held, self.rounds)

    def start(self) -> None:
        """Starts the heartbeat."""
        self._heartbeat.start()

    def begin(self, messages: Sequence[Message]) -> None:
        """Has received messages handled, one at a time in each group."""
        received_at = self._run.clock.now()
        self._run.observers.received(messages, received_at)
        now = to_micros(received_at)
        turns = self._turns(messages, now)
        jobs = [job for turn in turns for job in turn.jobs]
        self._heartbeat.keep({job.handle: hold_of(job.context.message, now) for job in jobs})
        self.rounds.give_back(self.held.add(turns))

    def _turns(self, messages: Sequence[Message], now: int) -> list[Turn]:
        turns: dict[str, Turn] = {}
        for message in messages:
            group, held = message.group_id, partial(self._heartbeat.get, message.receipt_handle)
            turn = Turn(group if self._queue.fifo else None)
            turn = turns.setdefault(turn.group or message.receipt_handle, turn)
            turn.jobs.append(Job(Context(message, self._queue, held), turn, now))
        return list(turns.values())

    def next_event(self) -> datetime | None:
        """When a settlement is tried again, or work that was not begun is given back."""
        retry, back = self.rounds.next_retry(), self.held.given_back_at()
        known = (retry, None if back is None else from_micros(back))
        return min((instant for instant in known if instant is not None), default=None)

    def give_back(self) -> None:
        """Makes visible what is held ahead, the newest first, so that the rest of each group keeps its order."""
        self.rounds.give_back(self.held.end_ahead())

    # --- renewal

    def _extend(self, wanted: Sequence[tuple[str, int]]) -> list[Verdict]:
        changes: list[tuple[str, Duration]] = [(handle, seconds(timeout)) for handle, timeout in wanted]
        try:
            result = self._queue.change_visibility_batch(changes)
        except QueueDoesNotExist as error:
            self._run.broken(error)
            return [Verdict.LOST] * len(wanted)
        except QueueClientError as error:
            if not self._run.outages.failed("extending", error):
                self._run.broken(error)
            return [Verdict.FAILED] * len(wanted)
        except QueueServiceError as error:
            _log.warning("extending %s messages failed: %s", len(wanted), error)
            return [Verdict.FAILED] * len(wanted)
        self._run.outages.worked("extending")
        verdicts = [Verdict.EXTENDED] * len(wanted)
        for failure in result.failed:
            _log.warning("extending a message of %s failed: %s", self._queue.name, failure.code)
            if failure.code == QueueDoesNotExist.code:
                self._run.broken(QueueDoesNotExist(failure.message))
            waits = failure.code in (RequestThrottled.code, OverLimit.code, UNAVAILABLE)
            verdicts[int(failure.id)] = Verdict.FAILED if waits else Verdict.LOST
        self._run.observers.extended(verdicts.count(Verdict.EXTENDED))
        return verdicts

    def _lose(self, handle: str) -> None:
        job = self.held.get(handle)
        if job is not None:
            self._run.observers.lost(1)
            job.context.lost.set()
            self._run.wake()  # if its delete is being tried again, that ends

    # --- the end

    def hand_back_waiting(self) -> None:
        """Makes visible the messages that no handler has begun."""
        self.rounds.give_back(self.held.end_all(State.WAITING))

    def stop(self) -> None:
        """Ends the heartbeat. Messages still being handled are lost to their handlers and become visible."""
        try:
            self.rounds.release(self.held.end_all(State.RUNNING))
            self.rounds.run(may_claim=False)
            self.lose_all()  # those whose delete would be tried again
            self.rounds.run(may_claim=False)
        finally:
            self._heartbeat.stop()

    def lose_all(self) -> None:
        """Marks the receipts of all handlers as lost."""
        for job in self.held.jobs():
            job.context.lost.set()
