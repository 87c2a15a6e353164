"""Adds, changes and runs schedules: what is due is sent once, whoever looks and whoever is killed (JOB-7).

A message that is due is sent as a batch of a stream: the stream is the schedule's id, the batch its due time. The
queue's log has the last batch of each stream, in the same commit as the message, so whoever sends it again, or one
before, adds nothing. Then the schedule's row moves on, unless another process has moved it.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import attrs
import pyarrow as pa

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.model.clock import format_instant, from_micros, start_thread, to_micros
from lakequeue.model.messages import SendEntry, SendResult
from lakequeue.model.redrive_policies import Place
from lakequeue.model.schedules import Schedule
from lakequeue.model.validation import validate_entry
from lakequeue.operations.queues import find
from lakequeue.operations.send import send
from lakequeue.operations.send_dataframe import BulkSend, last_version, send_arrow
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.layout import MESSAGES, stream_id
from lakequeue.storage.schedules import ScheduleTable
from lakequeue.storage.store_failures import first_line

MOST = 1_000
"""Schedules of a root, as each change writes all of them."""
_LONGEST_ERROR = 500
_PATIENCE = 5
"""Seconds that a block waits for what its thread sends; who is killed meanwhile leaves it to the next look."""
_SPREAD = 2.0
"""Seconds over which the looks of all processes are spread, so that mostly one finds what is due."""

_log = logging.getLogger("lakequeue")


class OpenSchedules:
    """The schedules of a root. Thread-safe.

    Attributes:
        root: its region is that of the schedules.
    """

    def __init__(self, root: Root) -> None:
        self.root = root
        self._table = ScheduleTable(root.engine, root.path)

    def listed(self) -> list[Schedule]:
        """Those of the region, by name."""
        with self.root.storage_errors():
            rows = self._table.rows()
        return sorted((row for row in rows if row.region == self.root.region), key=lambda row: row.name)

    def add(self, wanted: Schedule) -> Schedule:
        """Adds a schedule, or returns the one that is the same."""
        wanted.check()
        wanted = attrs.evolve(wanted, next_due=wanted.first_after(wanted.created_at) or wanted.next_due)
        validate_entry(_entry(wanted, wanted.next_due), find(self.root, wanted.queue).attributes)

        def added(rows: Sequence[Schedule]) -> dict[str, Schedule | None]:
            there = self._named(rows, wanted.name)
            if there is not None and there.is_like(wanted):
                return {}
            if there is None and len(rows) < MOST:
                self.root.check_clock(f"schedule {wanted.name}")
                return {wanted.id: wanted}
            reason = "There is another schedule of this name; remove it first."
            if there is None:
                reason = f"The root has {MOST:,} schedules; remove some."
            raise InvalidParameterValue.of(wanted.name, "name", reason)

        with self.root.storage_errors():
            self._table.change(added)
        return self._found(self.listed(), wanted.name)

    def change(self, name: str, change: Callable[[Schedule], Schedule | None]) -> None:
        """Changes a schedule, or removes it: then the result is None."""

        def changed(rows: Sequence[Schedule]) -> dict[str, Schedule | None]:
            row = self._found(rows, name)
            new = change(row)
            return {} if new == row else {row.id: new}

        with self.root.storage_errors():
            self._table.change(changed)

    def last_sent(self, row: Schedule) -> datetime | None:
        """When a schedule's newest message in its queue was due; None if the queue has no such message."""
        queue = self.root.living_at(Place(row.region, row.queue))
        if queue is None:
            return None
        version = last_version(OpenQueue(self.root, queue), stream_id(_stream(row)))
        return from_micros(version - 1) if version else None

    def set_back(self, queue: str | None, now: datetime) -> dict[str, Schedule]:
        """Schedules as they are without instants yet to come, by their ids now; only those that change (DUR-83).

        Args:
            queue: only the schedules of this queue, in the region; None: all of the root.
            now: by the right clock.
        """
        found = {}
        for row in self._table.rows():
            if queue is None or (row.region, row.queue) == (self.root.region, queue):
                new = row.set_back(now, self.last_sent(row))
                if new != row:
                    found[row.id] = new
        return found

    def replace(self, new: Mapping[str, Schedule]) -> None:
        """Replaces schedules, by their ids, which may change."""
        removed = {id: None for id, row in new.items() if row.id != id}
        self._table.change(lambda rows: {row.id: row for row in new.values()} | removed)

    def run_now(self, name: str) -> SendResult:
        """Sends the message of a schedule at once; its times stay."""
        row = self._found(self.listed(), name)
        return send(find(self.root, row.queue), _entry(row, self.root.clock.now(), uuid.uuid4().hex))

    def run_due(self) -> int:
        """Sends what is due, and moves the schedules on; returns the number of messages that this call sent."""
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
        for row in due:
            added, after = self._run(row, now)
            sent, moved[row.id] = sent + added, (row.next_due, after)

        def advanced(rows: Sequence[Schedule]) -> dict[str, Schedule | None]:
            changes: dict[str, Schedule | None] = {}
            for row in rows:
                before, after = moved.get(row.id, (None, row))
                after = after and attrs.evolve(after, paused=row.paused)
                if before == row.next_due and after != row:  # else another process moved it on
                    changes[row.id] = after
            return changes

        with self.root.storage_errors():
            self._table.change(advanced)
        return sent

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sends what is due at the start of each minute, in a thread, during the block."""
        stop = threading.Event()
        thread = start_thread(self.root.clock, lambda: self._run_on(stop), "lakequeue schedules")
        try:
            yield
        finally:
            stop.set()
            thread.join(_PATIENCE)

    def _run_on(self, stop: threading.Event) -> None:
        clock, told, late = self.root.clock, "", timedelta(seconds=random.uniform(0, _SPREAD))
        while not stop.is_set():
            try:
                self.run_due()
                told = ""
            except Exception as error:
                if told != (told := first_line(error)):
                    _log.warning("the schedules of %s cannot be run: %s", self.root.path, told)
            minute = (clock.now() - late).replace(second=0, microsecond=0)
            clock.wait(minute + timedelta(minutes=1) + late, stop)

    def _run(self, row: Schedule, now: datetime) -> tuple[int, Schedule | None]:
        """The number of messages sent, and the row after that; None if its last message is sent."""
        sent, after, time = 0, row, row.next_due
        try:
            for time in (times := row.due(now)):
                sent += self._send(row, time)
                after = attrs.evolve(after, last_due=time, last_error=None)
            following = row.first_after(times[-1] if row.missed == "all" else now)
        except Exception as error:  # others go on; this one is tried again at the next look
            reason = first_line(error)[:_LONGEST_ERROR]
            if reason != row.last_error:
                _log.warning("schedule %s: %s", row.name, reason)
            return sent, attrs.evolve(after, next_due=time, last_error=reason)
        return sent, attrs.evolve(after, next_due=following) if following else None

    def _send(self, row: Schedule, due: datetime) -> int:
        """Sends the message that is due at an instant; 0 if it, or a later one, was sent before."""
        queue, number = find(self.root, row.queue), to_micros(due)
        entry = _entry(row, due, f"{row.id}-{number}")
        validate_entry(entry, queue.attributes)
        attributes = [
            (name, {"type": "String", "string_value": text}) for name, text in (entry.attributes or {}).items()
        ]
        cells = {"body": entry.body, "message_attributes": attributes, "group_id": entry.group_id}
        given = {name: cell for name, cell in (cells | {"dedup_id": entry.dedup_id}).items() if cell is not None}
        rows = pa.Table.from_pylist([given], schema=pa.schema([MESSAGES.field(name) for name in given]))
        key = SendKey.of_batch(_stream(row), number)
        # to the same shard in all attempts, as it alone knows whether the message was sent
        sent = send_arrow(queue, rows, BulkSend(key, priority=row.priority, in_home_order=False))
        if not sent and row.is_ahead(self.root.clock.now(), self.last_sent(row)):
            raise QueueClientError(row.why_silent())
        return sent

    def _named(self, rows: Sequence[Schedule], name: str) -> Schedule | None:
        return next((row for row in rows if (row.region, row.name) == (self.root.region, name)), None)

    def _found(self, rows: Sequence[Schedule], name: str) -> Schedule:
        row = self._named(rows, name)
        if row is None:
            reason = f"Region {self.root.region} has no such schedule; lakequeue schedule list shows them."
            raise InvalidParameterValue.of(name, "name", reason)
        return row


def _stream(row: Schedule) -> str:
    """The stream whose batches a schedule's messages are."""
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
