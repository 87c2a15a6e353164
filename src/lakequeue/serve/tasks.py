"""Message move tasks: redrives that go on after the request that asked for them (DLQ-8).

A task is written down with its dead-letter queue, so that every server of the root knows it, only one is active,
and one whose server has died is taken up by another.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import attrs

from lakequeue import Queue, redrive
from lakequeue.clock import to_micros
from lakequeue.errors import (
    InvalidParameterValue,
    LakeQueueError,
    QueueClientError,
    QueueDoesNotExist,
    ResourceNotFoundException,
)
from lakequeue.serve.faults import log_failure
from lakequeue.service import LakeQueue

FASTEST = 500
"""Messages a second that a task may be held to."""
MOST_LISTED = 10
STEP = 1_000
"""Messages that are moved before a task without a speed is written down again."""
SILENCE = 30_000
"""Milliseconds after which a task that nobody wrote down belongs to whoever takes it up."""

_ACTIVE = ("RUNNING", "CANCELLING")
_log = logging.getLogger("lakequeue.serve")


@attrs.frozen(kw_only=True)
class Task:
    """A redrive as it stands; instants in milliseconds since the epoch."""

    id: str
    server: str
    started: int
    written: int
    source: str
    destination: str | None
    rate: int | None
    to_move: int
    moved: int = 0
    status: str = "RUNNING"
    reason: str | None = None

    @property
    def active(self) -> bool:
        return self.status in _ACTIVE

    @property
    def handle(self) -> str:
        """What cancels it."""
        return base64.urlsafe_b64encode(
            json.dumps({"taskId": self.id, "sourceArn": self.source}).encode()
        ).decode()

    def told(self) -> dict[str, Any]:
        """The task as ListMessageMoveTasks tells it."""
        known = {
            "TaskHandle": self.handle if self.active else None,
            "Status": self.status,
            "SourceArn": self.source,
            "DestinationArn": self.destination,
            "MaxNumberOfMessagesPerSecond": self.rate,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "FailureReason": self.reason,
            "StartedTimestamp": self.started,
        }
        return {name: value for name, value in known.items() if value is not None}


class MoveTasks:
    """The tasks of a root, some of which this server carries out, each in a thread. Thread-safe."""

    def __init__(self, lake: LakeQueue) -> None:
        self._lake = lake
        self._server = str(uuid.uuid4())
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, source_arn: str, destination_arn: str | None, rate: int | None) -> str:
        """Begins a task; its handle.

        Raises:
            ResourceNotFoundException: there is no such queue.
            InvalidParameterValue: the source is no dead-letter queue, the destination is of another kind, the
                speed is out of range, or a task of the queue is active.
        """
        if rate is not None and not 1 <= rate <= FASTEST:
            raise _refused(rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {FASTEST}.")
        source = self._queue(source_arn, "SourceArn")
        if not source.dead_letter_sources():
            raise _refused(source_arn, "SourceArn", "The queue is not the dead-letter queue of any other.")
        if destination_arn is not None:
            destination = self._queue(destination_arn, "DestinationArn")
            if destination.fifo != source.fifo or destination.key == source.key:
                raise _refused(destination_arn, "DestinationArn", "Must be another queue of the same kind.")
        now = self._now()
        task = Task(
            id=str(uuid.uuid4()),
            server=self._server,
            started=now,
            written=now,
            source=source.arn,
            destination=destination_arn,
            rate=rate,
            to_move=source.counts().visible,
        )

        def added(text: str | None) -> str:
            tasks = _read(text)
            if any(known.active for known in tasks):
                raise _refused(source_arn, "SourceArn", "There is already a task running for this queue.")
            return _written([task, *tasks][:MOST_LISTED])

        source.update_move_tasks(added)
        self._begin(source, task)
        return task.handle

    def cancel(self, handle: str) -> int:
        """Has a task end before its next step; how many messages it had moved.

        Raises:
            InvalidParameterValue: not a handle of a task.
            ResourceNotFoundException: no such task is active.
        """
        id, arn = task_of(handle)
        source = self._queue(arn, "SourceArn")
        change: Callable[[Task], Task] = lambda task: attrs.evolve(task, status="CANCELLING")  # noqa: E731
        task = self._change(source, id, change)
        if task is None:
            raise ResourceNotFoundException("The task does not exist, or has ended.")
        return task.moved

    def listed(self, source_arn: str, most: int) -> list[dict[str, Any]]:
        """The latest tasks of a queue, newest first.

        Raises:
            ResourceNotFoundException: there is no such queue.
            InvalidParameterValue: `most` is out of range.
        """
        if not 1 <= most <= MOST_LISTED:
            raise _refused(most, "MaxResults", f"Must be between 1 and {MOST_LISTED}.")
        return [task.told() for task in _read(self._queue(source_arn, "SourceArn").move_tasks)[:most]]

    def adopt(self) -> None:
        """Takes up the tasks whose server is silent; to be called now and then."""
        for row in self._lake.rows():
            if row.region != self._lake.region or row.deleted_at is not None:
                continue
            for task in _read(row.move_tasks):
                if task.active and task.written + SILENCE < self._now():
                    self._take_up(self._lake.open(row), task)

    def stop(self) -> None:
        """Ends this server's work after the step it is in; other servers, or the next one, take the rest up."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _take_up(self, source: Queue, task: Task) -> None:
        def mine(known: Task) -> Task:
            return attrs.evolve(known, server=self._server, written=self._now()) if known == task else known

        taken = self._change(source, task.id, mine)
        if taken is not None and taken.server == self._server and taken != task:
            self._begin(source, taken)

    def _begin(self, source: Queue, task: Task) -> None:
        thread = threading.Thread(target=self._run, args=(source, task), name=f"move-{source.name}", daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def _run(self, source: Queue, task: Task) -> None:
        try:
            with self._lake.clock.participant():
                self._carry_out(source, task)
        except LakeQueueError as error:
            reason = "The storage failed." if isinstance(error, QueueClientError) else str(error)
            self._fail(source, task, reason)
        except Exception as error:
            log_failure(_log, f"a message move task of {source.name}", error)
            self._fail(source, task, "The server failed.")

    def _carry_out(self, source: Queue, task: Task) -> None:
        destination = None if task.destination is None else self._queue(task.destination, "DestinationArn")
        step, left = task.rate or STEP, True
        while left:
            due = self._lake.clock.now() + timedelta(seconds=1)
            moved = source.redrive(step, destination=destination)
            left = moved == step
            now = self._change(source, task.id, partial(self._went_on, moved=moved, left=left))
            if now is None or not now.active or now.server != self._server:
                return
            if task.rate is not None:
                self._lake.clock.wait(due, self._stopped)
            if self._stopped.is_set():
                # whoever looks next takes it up at once
                self._change(source, task.id, lambda known: attrs.evolve(known, written=0))
                return

    def _went_on(self, task: Task, moved: int, left: bool) -> Task:
        if task.server != self._server:
            return task  # somebody else's by now
        status = {"CANCELLING": "CANCELLED", "RUNNING": "RUNNING" if left else "COMPLETED"}[task.status]
        return attrs.evolve(task, moved=task.moved + moved, status=status, written=self._now())

    def _fail(self, source: Queue, task: Task, reason: str) -> None:
        try:
            self._change(source, task.id, lambda known: attrs.evolve(known, status="FAILED", reason=reason))
        except LakeQueueError as error:
            _log.warning("a failed message move task of %s could not be marked so: %a", source.name, str(error))

    def _change(self, source: Queue, id: str, change: Callable[[Task], Task]) -> Task | None:
        """Writes an active task anew; as it is then, or None if there is none."""
        found: Task | None = None

        def changed(text: str | None) -> str:
            nonlocal found
            found = None
            tasks = _read(text)
            for place, task in enumerate(tasks):
                if task.id == id and task.active:
                    found = tasks[place] = change(task)
            return _written(tasks)

        source.update_move_tasks(changed)
        return found

    def _queue(self, arn: str, parameter: str) -> Queue:
        place = redrive.place(arn)
        if place is not None and place.region == self._lake.region:
            try:
                return self._lake.queue(place.name)
            except QueueDoesNotExist:
                pass
        raise ResourceNotFoundException(
            f"The resource that you specified for the {parameter} parameter doesn't exist."
        )

    def _now(self) -> int:
        return to_micros(self._lake.clock.now()) // 1_000


def task_of(handle: str) -> tuple[str, str]:
    """Id of the task that a handle is of, and the ARN of its queue.

    Raises:
        InvalidParameterValue: not a handle of a task.
    """
    try:
        known = json.loads(base64.urlsafe_b64decode(handle))
        id, arn = known["taskId"], known["sourceArn"]
    except (ValueError, binascii.Error, KeyError, TypeError, RecursionError):
        id = arn = None
    if not isinstance(id, str) or not isinstance(arn, str):
        raise _refused(handle, "TaskHandle", "It is no handle of a task.")
    return id, arn


def _read(text: str | None) -> list[Task]:
    return [Task(**task) for task in json.loads(text or "[]")]


def _written(tasks: list[Task]) -> str:
    return json.dumps([attrs.asdict(task) for task in tasks])


def _refused(value: object, parameter: str, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")
