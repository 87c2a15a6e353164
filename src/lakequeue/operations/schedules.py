"""Adds, changes and runs schedules. Sends each due message exactly once (JOB-7).

For the queue's log, a schedule is a stream, and each due time is the number of a batch. The log records the last
batch of the stream in the commit that adds the message. A repeated batch therefore adds nothing. One commit sends
all due messages of a queue. Another commit advances the schedules.
"""

from __future__ import annotations

import logging
import shlex
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import accumulate, chain, groupby
from operator import attrgetter

import attrs

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.model.clock import format_instant, from_micros, start_thread, to_micros
from lakequeue.model.messages import SendEntry, SendResult
from lakequeue.model.redrive_policies import QueueLocation
from lakequeue.model.schedules import Schedule
from lakequeue.model.validation import validate_entry
from lakequeue.operations.advice import Concern, Remedy
from lakequeue.operations.pool import concurrently
from lakequeue.operations.queues import find
from lakequeue.operations.send import send, send_once
from lakequeue.operations.send_dataframe import last_version
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage.layout import stream_id
from lakequeue.storage.schedules import ScheduleTable
from lakequeue.storage.store_failures import first_line

MOST = 1_000
"""Maximum number of schedules of a root. More would be slow, because each change writes the whole table."""
_LONGEST_ERROR = 500
_PATIENCE = 5
"""Seconds that the end of ``running()`` waits for sends. The next start sends the messages that were not sent."""
_TOGETHER, _BYTES = 1_000, 8 * 2**20
"""Approximate maximums of one commit: number of messages, and bytes of the messages' bodies."""

_log = logging.getLogger("lakequeue")

_BRIEF = {"schedule fails": "fails", "schedule overdue": "is overdue"}


class OpenSchedules:
    """The schedules of a root in one region. Thread-safe."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._table = ScheduleTable(root.engine, root.path)

    def listed(self) -> list[Schedule]:
        with self.root.storage_errors():
            rows = self._table.rows()
        return sorted((row for row in rows if row.region == self.root.region), key=lambda row: row.name)

    def add(self, wanted: Schedule, update: bool = False) -> Schedule:
        """Adds a schedule, or returns an equal schedule. With ``update``, replaces a schedule of this name."""
        wanted.check()
        wanted = attrs.evolve(wanted, next_due=wanted.first_after(wanted.created_at) or wanted.next_due)
        validate_entry(_entry(wanted, wanted.next_due), find(self.root, wanted.queue).attributes)

        def added(rows: Sequence[Schedule]) -> dict[str, Schedule | None]:
            there = self._named(rows, wanted.name)
            if there is not None and there.is_like(wanted):
                return {}
            if there is not None and update:
                self.root.check_clock(f"schedule {wanted.name}")
                new = there.replaced_by(wanted)
                return {there.id: None, new.id: new}
            if there is None and len(rows) < MOST:
                self.root.check_clock(f"schedule {wanted.name}")
                return {wanted.id: wanted}
            reason = "There is another schedule of this name; update=True (--update) replaces it."
            if there is None:
                reason = f"The root has {MOST:,} schedules; remove some."
            raise InvalidParameterValue.of(wanted.name, "name", reason)

        with self.root.storage_errors():
            rows = self._table.change(added)
        return self._found(rows, wanted.name)

    def change(self, name: str, change: Callable[[Schedule], Schedule | None]) -> None:
        """Replaces a schedule by the result of the function ``change``. If this is None, removes the schedule."""

        def changed(rows: Sequence[Schedule]) -> dict[str, Schedule | None]:
            row = self._found(rows, name)
            new = change(row)
            return {} if new == row else {row.id: new}

        with self.root.storage_errors():
            self._table.change(changed)

    def last_sent(self, row: Schedule) -> datetime | None:
        """Returns the due time of the last message that the schedule has sent. None if it has sent no message."""
        queue = self.root.living_at(QueueLocation(row.region, row.queue))
        if queue is None:
            return None
        version = last_version(OpenQueue(self.root, queue), stream_id(_stream(row)))
        return from_micros(version - 1) if version else None

    def concerns(self, thorough: bool = False) -> Iterator[Concern]:
        """Yields concerns about failing or overdue schedules. If ``thorough``, also reads their last due times."""
        now = self.root.clock.now()
        for row in (row for row in self.listed() if not row.paused):
            kind, problem, hint = "schedule fails", None, ""
            if row.last_error is not None:
                problem = f": {' '.join(row.last_error.split())}"
            elif row.is_ahead(now, self.last_sent(row) if thorough else None):
                problem = f": {row.why_silent()}"
            elif row.is_overdue(now):
                kind, problem, hint = (
                    "schedule overdue",
                    " is overdue",
                    "let lakequeue serve, consume or schedule run run",
                )
            if problem is not None:
                text, brief = f"schedule {row.name}{problem}", f"schedule {row.name} {_BRIEF[kind]}"
                exists = self.root.living_at(QueueLocation(row.region, row.queue)) is not None
                yield Concern(row.queue, kind, text, hint, [*_remedies(row, kind, exists)], brief)

    def set_back(self, queue: str | None, now: datetime) -> dict[str, Schedule]:
        """Returns changed copies of the schedules (only of ``queue``, if given), by the schedule's old id. In a
        copy, instants after ``now`` are set back to ``now`` (DUR-83). Writes nothing.
        """
        found = {}
        for row in self._table.rows():
            if queue is None or (row.region, row.queue) == (self.root.region, queue):
                new = row.set_back(now, self.last_sent(row))
                if new != row:
                    found[row.id] = new
        return found

    def replace(self, new: Mapping[str, Schedule]) -> None:
        removed = {id: None for id, row in new.items() if row.id != id}
        self._table.change(lambda rows: {row.id: row for row in new.values()} | removed)

    def run_now(self, name: str) -> SendResult:
        """Sends the message of a schedule now, in addition to the messages at the schedule's due times."""
        row = self._found(self.listed(), name)
        return send(find(self.root, row.queue), _entry(row, self.root.clock.now(), uuid.uuid4().hex))

    def run_due(self) -> int:
        """Sends all due messages, and advances their schedules. Returns the number of sent messages."""
        now, sent = self.root.clock.now(), 0
        rows = [row for row in self.listed() if not row.paused]
        due = [row for row in rows if row.next_due <= now]
        silent = [row for row in rows if row.is_ahead(now) and row.last_error != row.why_silent()]
        if not due and not silent:
            return 0
        self.root.check_clock("schedules")
        moved: dict[str, tuple[datetime, Schedule | None]] = {}
        for row in silent:
            _log.warning("schedule %s: %s", row.name, row.why_silent())
            moved[row.id] = row.next_due, attrs.evolve(row, last_error=row.why_silent())
        by_queue = [list(rows) for _, rows in groupby(sorted(due, key=_queue), key=_queue)]
        for row, added, after in chain.from_iterable(concurrently(lambda rows: [*self._run(rows, now)], by_queue)):
            sent, moved[row.id] = sent + added, (row.next_due, after)

        def advanced(rows: Sequence[Schedule]) -> dict[str, Schedule | None]:
            changes: dict[str, Schedule | None] = {}
            for row in rows:
                before, after = moved.get(row.id, (None, row))
                if before == row.next_due and (after := row.moved_on(after, now)) != row:
                    changes[row.id] = after  # else another process moved it on
            return changes

        with self.root.storage_errors():
            self._table.change(advanced)
        return sent

    @contextmanager
    def running(self) -> Iterator[None]:
        """During the block, sends due messages in a thread, at the start of each minute."""
        stop = threading.Event()
        thread = start_thread(self.root.clock, lambda: self._run_on(stop), "lakequeue schedules")
        try:
            yield
        finally:
            stop.set()
            thread.join(_PATIENCE)

    def _run_on(self, stop: threading.Event) -> None:
        clock, logged = self.root.clock, ""
        while not stop.is_set():
            try:
                self.run_due()
                logged = ""
            except Exception as error:
                if logged != (logged := first_line(error)):
                    _log.warning("the schedules of %s cannot be run: %s", self.root.path, logged)
            clock.wait(clock.now().replace(second=0, microsecond=0) + timedelta(minutes=1), stop)

    def _run(self, rows: Sequence[Schedule], now: datetime) -> Iterator[tuple[Schedule, int, Schedule | None]]:
        """Sends due messages. Yields schedule, number of sent messages, and new schedule (None to remove)."""
        times: dict[str, list[datetime]] = {}
        problems: dict[str, Exception] = {}
        for row in rows:
            try:
                times[row.id] = row.due(now)
            except Exception as error:
                problems[row.id] = error
        waiting = [(row, time) for row in rows for time in times.get(row.id, ())]
        outcomes: dict[tuple[str, datetime], object] = {}
        while waiting:
            size = sum(total <= _BYTES for total in accumulate(len(row.body) for row, _ in waiting[:_TOGETHER]))
            chunk, waiting = waiting[: max(1, size)], waiting[max(1, size) :]
            # a time after one that was not sent would take its place
            chunk = [(row, time) for row, time in chunk if row.id not in problems]
            for (row, time), outcome in zip(chunk, self._send(rows[0].queue, chunk), strict=True):
                outcomes[row.id, time] = outcome
                if isinstance(outcome, Exception):
                    problems.setdefault(row.id, outcome)
        for row in rows:
            if row.id in times:
                found = [(time, outcomes.get((row.id, time), problems.get(row.id))) for time in times[row.id]]
            else:
                found = [(row.next_due, problems[row.id])]
            yield row, *self._after(row, now, found)

    def _send(self, queue: str, due: Sequence[tuple[Schedule, datetime]]) -> Sequence[object]:
        """Sends due messages. Returns for each message its result or error, or None if it was sent before."""
        sends = [
            (_entry(row, time, f"{row.id}-{to_micros(time)}"), _stream(row), to_micros(time)) for row, time in due
        ]
        try:
            return send_once(find(self.root, queue), sends) if sends else []
        except Exception as error:
            return [error] * len(sends)

    def _after(
        self, row: Schedule, now: datetime, outcomes: Sequence[tuple[datetime, object]]
    ) -> tuple[int, Schedule | None]:
        """Returns the number of sent messages, and the schedule to store (None if it is to be removed)."""
        sent, after, time = 0, row, row.next_due
        try:
            for time, outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome is None and row.is_ahead(self.root.clock.now(), self.last_sent(row)):
                    raise QueueClientError(row.why_silent())
                sent += outcome is not None
                after = attrs.evolve(after, last_due=time, last_error=None)
            following = row.first_after(time if row.missed == "all" else now)
        except Exception as error:  # others go on; this one is tried again at the next look
            reason = first_line(error)[:_LONGEST_ERROR]
            if reason != row.last_error:
                _log.warning("schedule %s: %s", row.name, reason)
            return sent, attrs.evolve(after, next_due=time, last_error=reason)
        return sent, attrs.evolve(after, next_due=following) if following else None

    def _named(self, rows: Sequence[Schedule], name: str) -> Schedule | None:
        return next((row for row in rows if (row.region, row.name) == (self.root.region, name)), None)

    def _found(self, rows: Sequence[Schedule], name: str) -> Schedule:
        row = self._named(rows, name)
        if row is None:
            reason = f"Region {self.root.region} has no such schedule; `lakequeue schedule list` shows them."
            raise InvalidParameterValue.of(name, "name", reason)
        return row


def _remedies(row: Schedule, kind: str, exists: bool) -> Iterator[Remedy]:
    """Yields the commands that help with a schedule. ``exists`` is True if its queue exists."""
    yield Remedy("lakequeue schedule list", "shows all schedules")
    if kind == "schedule fails":
        name, changes = shlex.quote(row.name), "--body BODY"
        if not exists:
            changes = "--queue QUEUE"
            made = f"lakequeue create {shlex.quote(row.queue)}{' --fifo' * row.queue.endswith('.fifo')}"
            yield Remedy(made, "makes the queue that it sends to")
        yield Remedy(f"lakequeue schedule add {name} {changes} --update", "changes this, and keeps the rest")
        yield Remedy(f"lakequeue schedule pause {name}", "sends nothing until it is resumed")
        yield Remedy(f"lakequeue schedule remove {name}", "ends it; the messages that it sent stay")


_queue = attrgetter("queue")


def _stream(row: Schedule) -> str:
    return f"schedule-{row.id}"


def _entry(row: Schedule, due: datetime, dedup_id: str = "-") -> SendEntry:
    fifo = row.queue.endswith(".fifo")
    return SendEntry(
        row.body,
        attributes={"schedule": row.name, "scheduled_at": format_instant(due)},
        group_id=row.group_id,
        dedup_id=dedup_id if fifo else None,
        priority=row.priority or None,
    )
