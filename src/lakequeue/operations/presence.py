"""Keeps the file that shows a running consumer to other processes. Idle consumers have a file, too (JOB-14)."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from lakequeue.model import stack_dumps
from lakequeue.model.clock import from_micros, start_thread, to_micros
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.operations.consumers import forget_consumer, report_consumer
from lakequeue.runtime.open_queue import OpenQueue

FIRST, INTERVAL = timedelta(seconds=1), timedelta(seconds=60)
"""A run first reports after ``FIRST``, then every ``INTERVAL``, and upon damage or an outage. A run shorter than
``FIRST`` never reports.
"""
_LONGEST_END = 5.0
"""Maximum seconds that the end of a run waits for the removal of its file, because storage may fail."""

_LONGEST_REASON = 300  # characters

_log = logging.getLogger("lakequeue")


class Presence:
    """Reports a consumer's run in a thread of its own, until ``stop``. The run goes on if storage fails.

    Args:
        queues: the queues from which the consumer receives. The root of each queue gets a file.
        began: returns when each running call of the handler began, in microseconds.
        outage: returns since when storage or a delivery table fails, the error, and the table if it is the table.
    """

    def __init__(
        self,
        name: str,
        queues: Sequence[OpenQueue],
        began: Callable[[], Collection[int]],
        outage: Callable[[], tuple[datetime | None, str | None, str | None]],
    ) -> None:
        self._name = name
        self._consumed, self._reported_at = [*queues], 0
        self._queues = {queue.root.path: queue for queue in queues}
        self._damage = {queue.key: queue.damage for queue in queues}
        self._began, self._outage = began, outage
        self._clock = queues[0].root.clock
        self._number = uuid.uuid4().hex
        self._ended, self._woken = threading.Event(), threading.Event()
        for damage in self._damage.values():
            damage.listeners.append(self._woken.set)
        self._started_at = self._clock.now()
        self._thread = start_thread(self._clock, self._run, "lakequeue presence")

    def wake(self) -> None:
        """Reports soon. Does not wait for the report."""
        self._woken.set()

    def stop(self) -> None:
        """Ends the reports, and removes the consumer's file from each root."""
        for damage in self._damage.values():
            damage.listeners.remove(self._woken.set)
        self._ended.set()
        self._woken.set()
        self._thread.join(_LONGEST_END)

    def _run(self) -> None:
        due = self._started_at + FIRST
        self._clock.wait(due, self._ended)
        if self._ended.is_set():
            return
        while not self._ended.is_set():
            for queue in self._consumed:
                self._forget_repaired(queue)
            self._reported_at = to_micros(self._clock.now())
            self._each(lambda queue: report_consumer(queue, self._number, self._content()))
            self._clock.wait(self._clock.now() + INTERVAL, self._woken)
            self._woken.clear()
        self._each(lambda queue: forget_consumer(queue, self._number))

    def _forget_repaired(self, queue: OpenQueue) -> None:
        if queue.damage.error is None or queue.damage.last >= self._reported_at:
            return  # a receive met it since the last report
        from lakequeue.operations.check import repaired  # most consumers meet no damage

        queue.damage.forget(repaired(queue))
        if queue.damage.error is None:
            _log.info("the damage of %s is gone", queue.name)

    def _each(self, call: Callable[[OpenQueue], None]) -> None:
        for queue in self._queues.values():
            try:
                call(queue)
            except Exception as error:  # nothing depends on the file
                _log.debug("the file of the consumer %s: %s", self._name, error)

    def _content(self) -> ConsumerFile:
        began = self._began()
        oldest = from_micros(min(began)) if began else None
        since, reason, table = self._outage()
        process = ConsumerProcess(
            *(socket.gethostname(), os.getpid(), self._started_at, self._clock.now(), len(began), oldest),
            dumps=stack_dumps.answers(),
            outage_since=since,
            outage_reason=reason and " ".join(reason.split())[:_LONGEST_REASON],
            failing_table=table,
        )
        now = to_micros(process.seen_at)
        met = {key: at for key, each in self._damage.items() if (at := each.last_met(now)) is not None}
        damaged = {key: from_micros(at) for key, at in met.items()}
        return ConsumerFile(self._name, [*self._damage], process, damaged=damaged)
