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

from lakequeue import Queue
from lakequeue.client import LakeQueue
from lakequeue.errors import (
    InvalidParameterValue,
    LakeQueueError,
    QueueClientError,
    QueueDoesNotExist,
    ResourceNotFoundException,
)
from lakequeue.model import redrive_policies
from lakequeue.model.clock import to_micros
from lakequeue.operations import attributes
from lakequeue.runtime.open_queue import OpenQueue

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
        self._lock = threading.Lock()
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

        attributes.update_move_tasks(source.runtime, added)
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
        return [
            task.told()
            for task in _read(attributes.move_tasks(self._queue(source_arn, "SourceArn").runtime))[:most]
        ]

    def adopt(self) -> None:
        """Takes up the tasks whose server is silent; to be called now and then."""
        for row in self._lake.runtime.rows():
            if row.region != self._lake.region or row.deleted_at is not None:
                continue
            try:
                for task in _read(row.move_tasks):
                    if task.active and task.written + SILENCE < self._now():
                        self._take_up(Queue(OpenQueue(self._lake.runtime, row)), task)
            except Exception as error:  # of this queue; others may have tasks too
                _log.warning("message move tasks of %s cannot be taken up: %s", row.name, error)

    def stop(self) -> None:
        """Ends this server's work after the step it is in; other servers, or the next one, take the rest up."""
        self._stopped.set()
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _take_up(self, source: Queue, task: Task) -> None:
        def mine(known: Task) -> Task:
            return attrs.evolve(known, server=self._server, written=self._now()) if known == task else known

        taken = self._change(source, task.id, mine)
        if taken is not None and taken.server == self._server and taken != task:
            self._begin(source, taken)

    def _begin(self, source: Queue, task: Task) -> None:
        thread = threading.Thread(target=self._run, args=(source, task), name=f"move-{source.name}", daemon=True)
        with self._lock:
            if self._stopped.is_set():
                self._let_go(source, task)
                return
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

    def _run(self, source: Queue, task: Task) -> None:
        try:
            with self._lake.clock.participant():
                self._carry_out(source, task)
        except LakeQueueError as error:
            reason = "The storage failed." if isinstance(error, QueueClientError) else str(error)
            self._fail(source, task, reason)
        except Exception:
            _log.error("a message move task of %s failed", source.name, exc_info=True)
            self._fail(source, task, "The server failed.")

    def _carry_out(self, source: Queue, task: Task) -> None:
        step, left = task.rate or STEP, True
        while left:
            due = self._lake.clock.now() + timedelta(seconds=1)
            if not self._goes_on(source, task):
                return
            moved = source.redrive(step, destination=self._destination(task))
            left = moved == step
            if not left:
                self._destination(task)  # deleted meanwhile, it took nothing, and the task is not done
            if not self._active(self._mine(source, task, partial(_stepped, moved=moved, left=left))):
                return
            if task.rate is not None and left:
                self._lake.clock.wait(due, self._stopped)
            if self._stopped.is_set():
                self._let_go(source, task)
                return

    def _destination(self, task: Task) -> Queue | None:
        return None if task.destination is None else self._queue(task.destination, "DestinationArn")

    def _goes_on(self, source: Queue, task: Task) -> bool:
        """Whether a task is still this server's and wanted; ends one that was cancelled meanwhile."""
        known = next(
            (known for known in _read(attributes.move_tasks(source.runtime)) if known.id == task.id), None
        )
        if known is not None and known.status == "CANCELLING":
            known = self._mine(source, task, lambda known: attrs.evolve(known, status="CANCELLED"))
        return self._active(known)

    def _active(self, task: Task | None) -> bool:
        return task is not None and task.active and task.server == self._server

    def _let_go(self, source: Queue, task: Task) -> None:
        # whoever looks next takes it up at once
        self._mine(source, task, lambda known: attrs.evolve(known, written=0))

    def _mine(self, source: Queue, task: Task, change: Callable[[Task], Task]) -> Task | None:
        """Writes a task anew unless another server has it by now."""

        def changed(known: Task) -> Task:
            if known.server != self._server:
                return known
            return change(attrs.evolve(known, written=self._now()))

        return self._change(source, task.id, changed)

    def _fail(self, source: Queue, task: Task, reason: str) -> None:
        try:
            self._mine(source, task, lambda known: attrs.evolve(known, status="FAILED", reason=reason))
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

        attributes.update_move_tasks(source.runtime, changed)
        return found

    def _queue(self, arn: str, parameter: str) -> Queue:
        place = redrive_policies.place(arn)
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


def _stepped(task: Task, moved: int, left: bool) -> Task:
    status = {"CANCELLING": "CANCELLED", "RUNNING": "RUNNING" if left else "COMPLETED"}[task.status]
    return attrs.evolve(task, moved=task.moved + moved, status=status)


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
