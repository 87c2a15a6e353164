"""Message move tasks: redrives in the background, stored with their dead-letter queue (DLQ-8)."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import attrs

from lakequeue import Queue
from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import all_move_tasks, move_tasks, redrive_checked, update_move_tasks
from lakequeue.errors import (
    InvalidParameterValue,
    LakeQueueError,
    QueueClientError,
    QueueDoesNotExist,
    ResourceNotFoundException,
)
from lakequeue.model import redrive_policies
from lakequeue.model.clock import to_micros
from lakequeue.serve.auth import AnonymousCaller, Caller, access_denied
from lakequeue.serve.errors import ErrorResponse, RequestError
from lakequeue.serve.sqs.queue_urls import is_own, queue_arn


@attrs.frozen(kw_only=True)
class MoveTask:
    """The state of a message move task. Instants are milliseconds since the epoch.

    Attributes:
        server: id of the server that runs the task.
        written: when the server last stored the task.
        rate: maximum number of messages per second; None for no limit.
        sources: names of the queues that messages may return to; None for any queue.
    """

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
    sources: Sequence[str] | None = None

    @property
    def active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")

    @property
    def handle(self) -> str:
        """The handle by which CancelMessageMoveTask names the task."""
        return base64.urlsafe_b64encode(
            json.dumps({"taskId": self.id, "sourceArn": self.source}).encode()
        ).decode()

    def description(self) -> dict[str, Any]:
        """Returns the task in the form that ListMessageMoveTasks returns."""
        members = {
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
        return {name: value for name, value in members.items() if value is not None}

    def check_source(self, name: str) -> None:
        """Raises RequestError if the task may not return messages to the queue ``name``."""
        if self.sources is not None and name not in self.sources:
            raise RequestError("AccessDenied", f"The task must not send to {name}.", 403)

    def after_step(self, moved: int, more: bool, failure: str | None) -> MoveTask:
        """Returns the task after a step that moved messages. ``failure`` is the reason if the task has failed."""
        if failure is not None:
            return attrs.evolve(self, moved=self.moved + moved, status="FAILED", reason=failure)
        status = {"CANCELLING": "CANCELLED", "RUNNING": "RUNNING" if more else "COMPLETED"}[self.status]
        return attrs.evolve(self, moved=self.moved + moved, status=status)


def parse_task_handle(handle: str) -> tuple[str, str]:
    """Returns the task id and the source queue's ARN. Raises InvalidParameterValue for any other text."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(handle))
        id, arn = parts["taskId"], parts["sourceArn"]
    except (ValueError, binascii.Error, KeyError, TypeError, RecursionError):
        id = arn = None
    if not isinstance(id, str) or not isinstance(arn, str):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.")
    return id, arn


def load_tasks(text: str | None) -> list[MoveTask]:
    """Parses the stored tasks of a queue, newest first."""
    return [MoveTask(**task) for task in json.loads(text or "[]")]


def dump_tasks(tasks: Iterable[MoveTask]) -> str:
    return json.dumps([attrs.asdict(task, filter=lambda field, value: value != field.default) for task in tasks])


MAX_RATE = 500
MAX_TASKS = 10
STEP = 1_000
"""Number of messages that a task without a rate moves between two updates of its state."""
STALE_MILLIS = 30_000
"""Milliseconds without an update after which another server takes over a task."""

_log = logging.getLogger("lakequeue.serve")


class MoveTasks:
    """The message move tasks of a root. Runs each task of this server in a thread. Thread-safe."""

    def __init__(self, lake: LakeQueue, account: str) -> None:
        self._lake = lake
        self._account = account
        self._server = str(uuid.uuid4())
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(
        self,
        source_arn: str,
        destination_arn: str | None,
        rate: int | None,
        caller: Caller = AnonymousCaller(),  # noqa: B008
    ) -> str:
        """Starts a task and returns its handle.

        Raises:
            RequestError: messages would return to a queue to which the caller may not send.
            ResourceNotFoundException: a queue does not exist.
            InvalidParameterValue: the source is not a dead-letter queue; the destination is the source, or a queue
                of the other kind (standard or FIFO); the rate is out of range; or the queue has an active task.
        """
        if rate is not None and not 1 <= rate <= MAX_RATE:
            raise InvalidParameterValue.of(
                rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {MAX_RATE}."
            )
        source = self._queue(source_arn, "SourceArn")
        sources = [queue.name for queue in source.dead_letter_sources()]
        if not sources:
            raise InvalidParameterValue("Source queue must be configured as a Dead Letter Queue.")
        destination = None if destination_arn is None else self._queue(destination_arn, "DestinationArn")
        if destination is not None and (destination.fifo != source.fifo or destination.key == source.key):
            raise InvalidParameterValue.of(
                destination_arn, "DestinationArn", "Must be another queue of the same kind."
            )
        if destination_arn is None and not all(caller.may("SendMessage", name) for name in sources):
            raise access_denied(caller, "SendMessage", f"each source of {source.name}")
        now = self._now()
        task = MoveTask(
            id=str(uuid.uuid4()),
            server=self._server,
            started=now,
            written=now,
            source=queue_arn(source.arn, self._account),
            destination=None if destination is None else destination.arn,  # the given text may be long
            rate=rate,
            to_move=source.counts().visible,
            sources=None if caller.may("SendMessage", None) else sources,
        )

        def with_new_task(text: str | None) -> str:
            tasks = load_tasks(text)
            if any(other.active for other in tasks):
                raise InvalidParameterValue(
                    "There is already a task running. "
                    "Only one active task is allowed for a source queue arn at a given time."
                )
            return dump_tasks([task, *tasks][:MAX_TASKS])

        update_move_tasks(source, with_new_task)
        self._run_in_thread(source, task)
        return task.handle

    def cancel(self, handle: str) -> int:
        """Ends a task before its next step. Returns the number of messages that the task has moved so far.

        Raises InvalidParameterValue for a wrong handle, and ResourceNotFoundException if the task is not active.
        """
        id, arn = parse_task_handle(handle)
        task = self._update(
            self._queue(arn, "SourceArn"), id, lambda task: attrs.evolve(task, status="CANCELLING")
        )
        if task is None:
            raise ResourceNotFoundException("Task does not exist.")
        return task.moved

    def listed(self, source_arn: str, limit: int) -> list[dict[str, Any]]:
        """Returns the latest tasks of a source queue, newest first. Raises ResourceNotFoundException if there is
        no such queue, and InvalidParameterValue if the limit is out of range.
        """
        if not 1 <= limit <= MAX_TASKS:
            raise InvalidParameterValue.of(limit, "MaxResults", f"Must be between 1 and {MAX_TASKS}.")
        return [task.description() for task in _stored(self._queue(source_arn, "SourceArn"))[:limit]]

    def adopt(self) -> None:
        """Takes over the tasks that no server has updated for ``STALE_MILLIS``. Call this method regularly."""
        for name, stored in all_move_tasks(self._lake).items():
            try:
                for task in load_tasks(stored):
                    if task.active and task.written + STALE_MILLIS < self._now():
                        self._take_over(self._lake.queue(name), task)
            except Exception as error:  # other queues may have tasks, too
                _log.warning("cannot take over message move tasks of %s: %s", name, error)

    def stop(self) -> None:
        """Stops this server's tasks after their current steps. Another server takes over the tasks later."""
        self._stopped.set()
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _take_over(self, source: Queue, task: MoveTask) -> None:
        taken = attrs.evolve(task, server=self._server, written=self._now())
        if self._update(source, task.id, lambda stored: taken if stored == task else stored) == taken:
            self._run_in_thread(source, taken)

    def _run_in_thread(self, source: Queue, task: MoveTask) -> None:
        thread = threading.Thread(target=self._run, args=(source, task), name=f"move-{source.name}", daemon=True)
        with self._lock:
            if self._stopped.is_set():
                self._release(source, task)
                return
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

    def _run(self, source: Queue, task: MoveTask) -> None:
        try:
            with self._lake.clock.participant():
                self._move(source, task)
        except RequestError as error:
            self._fail(source, task, error.code)
        except LakeQueueError as error:
            failed = isinstance(error, QueueClientError)
            reason = ErrorResponse.of(error, source.name).message if failed else str(error)
            self._fail(source, task, reason)
        except Exception:
            _log.error("a message move task of %s failed", source.name, exc_info=True)
            self._fail(source, task, "The server failed.")

    def _move(self, source: Queue, task: MoveTask) -> None:
        step, more = task.rate or STEP, True
        while more:
            due = self._lake.clock.now() + timedelta(seconds=1)
            if not self._continues(source, task):
                return
            moved = redrive_checked(source, step, task.check_source, destination=self._destination(task))
            more = moved == step
            left = None
            if not more:
                self._destination(task)  # raises if it was deleted meanwhile: the task is not complete
                left = None if task.destination else self._why_left(source)
            step_taken = partial(MoveTask.after_step, moved=moved, more=more, failure=left)
            if not self._is_mine(self._update_mine(source, task, step_taken)):
                return
            if task.rate is not None and more:
                self._lake.clock.wait(due, self._stopped)
            if self._stopped.is_set():
                self._release(source, task)
                return

    def _destination(self, task: MoveTask) -> Queue | None:
        return None if task.destination is None else self._queue(task.destination, "DestinationArn")

    def _why_left(self, source: Queue) -> str | None:
        """Returns AWS's reason why the oldest messages cannot return to their sources; None if none is known."""
        for message in source.peek(limit=10):
            if message.state == "visible":
                if message.source_queue is None:
                    return "CouldNotDetermineMessageSource"
                try:
                    self._lake.queue(message.source_queue)
                except QueueDoesNotExist as error:
                    return error.legacy_code
        return None

    def _continues(self, source: Queue, task: MoveTask) -> bool:
        stored = next((stored for stored in _stored(source) if stored.id == task.id), None)
        if stored is not None and stored.status == "CANCELLING":
            stored = self._update_mine(source, task, lambda stored: attrs.evolve(stored, status="CANCELLED"))
        return self._is_mine(stored)

    def _is_mine(self, task: MoveTask | None) -> bool:
        return task is not None and task.active and task.server == self._server

    def _release(self, source: Queue, task: MoveTask) -> None:
        self._update_mine(source, task, lambda stored: attrs.evolve(stored, written=0))

    def _fail(self, source: Queue, task: MoveTask, reason: str) -> None:
        try:
            self._update_mine(source, task, lambda stored: attrs.evolve(stored, status="FAILED", reason=reason))
        except LakeQueueError as error:
            _log.warning("cannot store that a message move task of %s failed: %a", source.name, str(error))

    def _update_mine(
        self, source: Queue, task: MoveTask, change: Callable[[MoveTask], MoveTask]
    ) -> MoveTask | None:

        def changed(stored: MoveTask) -> MoveTask:
            if stored.server != self._server:
                return stored
            return change(attrs.evolve(stored, written=self._now()))

        return self._update(source, task.id, changed)

    def _update(self, source: Queue, id: str, change: Callable[[MoveTask], MoveTask]) -> MoveTask | None:
        """Applies ``change`` to a task's stored state. Returns the new state; None if the task is not active."""
        found: MoveTask | None = None

        def changed(text: str | None) -> str:
            nonlocal found
            found = None
            tasks = load_tasks(text)
            for index, task in enumerate(tasks):
                if task.id == id and task.active:
                    found = tasks[index] = change(task)
            return dump_tasks(tasks)

        update_move_tasks(source, changed)
        return found

    def _queue(self, arn: str, parameter: str) -> Queue:
        parsed = redrive_policies.parse_arn(arn)
        if parsed is not None and parsed.region == self._lake.region and is_own(arn, self._account):
            try:
                return self._lake.queue(parsed.name)
            except QueueDoesNotExist:
                pass
        raise ResourceNotFoundException(
            f"The resource that you specified for the {parameter} parameter doesn't exist."
        )

    def _now(self) -> int:
        return to_micros(self._lake.clock.now()) // 1_000


def _stored(source: Queue) -> list[MoveTask]:
    return load_tasks(move_tasks(source))
