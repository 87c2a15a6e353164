"""Collects single sends of threads and tasks into common commits."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime, timedelta
from weakref import WeakSet

import attrs

from lakequeue.errors import LakeQueueError
from lakequeue.model.arguments import check_at
from lakequeue.model.clock import start_thread
from lakequeue.model.messages import SendEntry, SendResult
from lakequeue.model.validation import kept_entry
from lakequeue.operations import send
from lakequeue.runtime.open_queue import OpenQueue

MOST, MOST_SIZE = 1_000, 8 * 2**20
"""Maximum number and maximum characters of collected messages. Sends beyond a maximum wait."""

_log = logging.getLogger("lakequeue")


class Sent(Future[SendResult]):
    """The result of a collected send. If the caller drops the result unread, an error of the send is reported."""

    _report: Callable[[BaseException], None] | None

    def result(self, timeout: float | None = None) -> SendResult:
        self._report = None
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._report = None
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[SendResult]], object]) -> None:
        self._report = None
        super().add_done_callback(fn)

    def __del__(self) -> None:
        report = self._report
        if report is not None and self.done() and not self.cancelled() and (error := self.exception()):
            report(error)


@attrs.frozen
class _Waiting:
    entry: SendEntry
    at: datetime | None
    sent: Sent


class Collector:
    """Collects messages for a common commit (SND-19), until ``linger`` has passed or the buffer is full."""

    def __init__(self, queue: Callable[[], OpenQueue], linger: timedelta) -> None:
        self._queue = queue
        self._linger = linger
        self._unasked: BaseException | None = None
        self.reset()
        _collectors.add(self)

    def reset(self) -> None:
        """Empties the collector. Called in a forked process, because the parent process sends the messages."""
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._size = self._added = self._finished = 0
        self._due = datetime.max
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST or self._size >= MOST_SIZE

    def wait_for_space(self) -> None:
        with self._changed:
            if threading.current_thread() is not self._thread:  # which makes the space
                self._changed.wait_for(lambda: not self.full)

    def add(self, entry: SendEntry, at: datetime | None) -> Sent:
        """Adds a copy of a message, visible from ``at`` on. Waits while the buffer is full. Returns a future."""
        queue = self._queue()
        clock = queue.root.clock
        with self._changed:
            self.wait_for_space()
            with send.traced("send", queue, [kept_entry(entry)]) as [kept]:
                waiting = _Waiting(kept, at, Sent())
            waiting.sent._report = self._report
            if not self._waiting:
                self._due = clock.now() + self._linger
            self._waiting.append(waiting)
            self._size += _size(kept)
            self._added += 1
            if self.full:
                self._wake.set()
            if self._thread is None:
                self._thread = start_thread(clock, self._run, f"lakequeue sender of {queue.name}")
            return waiting.sent

    def flush(self) -> None:
        """Commits the collected messages, and waits for the commit; does not wait if a callback of a send calls
        this method. Raises the first error of a send whose result nobody read.
        """
        with self._changed:
            added = self._added
            if self._waiting:
                self._wake.set()
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._finished >= added)
        error, self._unasked = self._unasked, None
        if error is not None:
            raise error

    def _report(self, error: BaseException) -> None:
        """Keeps the first error for ``flush``. Takes no lock, because garbage collection may call this method."""
        if self._unasked is None:
            self._unasked = error
            _log.error("a collected send failed, and nobody asked for its result: %s", error)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                due = self._due
            self._queue().root.clock.wait(due, self._wake)
            count = self._commit()
            with self._changed:
                self._finished += count
                self._changed.notify_all()

    def _commit(self) -> int:
        with self._changed:
            taken, self._waiting, self._size = self._waiting, [], 0
            self._wake.clear()
            self._changed.notify_all()
        count = len(taken)
        wanted = deque(each for each in taken if each.sent.set_running_or_notify_cancel())
        taken.clear()
        for outcome in _outcomes(self._queue(), [(each.entry, each.at) for each in wanted]):
            # the traceback of an error keeps this frame, which must not keep futures that nobody else has
            _settle(wanted.popleft().sent, outcome)
        return count


def _settle(sent: Sent, outcome: SendResult | Exception) -> None:
    if isinstance(outcome, Exception):
        sent.set_exception(outcome)
    else:
        sent.set_result(outcome)


def _outcomes(
    queue: OpenQueue, messages: Sequence[tuple[SendEntry, datetime | None]]
) -> list[SendResult | Exception]:
    """Sends messages in one commit per shard. Returns a result or an error for each message."""
    found: dict[int, SendResult | Exception] = {}
    entries: dict[int, SendEntry] = {}
    for index, (entry, at) in enumerate(messages):
        try:
            entries[index] = entry if at is None else _delayed(queue, entry, at)
        except LakeQueueError as error:
            found[index] = error
    try:
        sent: Sequence[send.Outcome | Exception] = send.send_each(queue, list(entries.values())) if entries else []
    except Exception as error:
        sent = [error] * len(entries)
    found |= zip(entries, sent, strict=True)  # type: ignore[arg-type]  # a single send has no result of a batch
    return [found[index] for index in range(len(messages))]


def _delayed(queue: OpenQueue, entry: SendEntry, at: datetime) -> SendEntry:
    return attrs.evolve(entry, delay=check_at(queue.attributes, at, entry.delay, queue.root.clock.now()))


def _size(entry: SendEntry) -> int:
    given = entry.attributes.values() if isinstance(entry.attributes, Mapping) else ()
    values = [entry.body, *(value[-1] if isinstance(value, tuple) and value else value for value in given)]
    return sum(len(value) for value in values if isinstance(value, (str, bytes)))


_collectors: WeakSet[Collector] = WeakSet()


def _flush_all() -> None:
    for collector in list(_collectors):
        with suppress(Exception):  # it is in the log
            collector.flush()


def _reset_all() -> None:
    for collector in list(_collectors):
        collector.reset()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_reset_all)
