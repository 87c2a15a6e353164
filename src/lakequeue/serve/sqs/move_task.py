"""A message move task, and how it is stored with its dead-letter queue."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from lakequeue.errors import InvalidParameterValue
from lakequeue.serve.errors import RequestError


@attrs.frozen(kw_only=True)
class MoveTask:
    """State of a message move task; instants are milliseconds since the epoch.

    Attributes:
        server: id of the server that runs the task.
        written: when that server last stored the task.
        rate: maximum number of messages per second; None: no limit.
        sources: without a destination, the only queues to which messages may go back; None: any.
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
        """The task handle, for CancelMessageMoveTask."""
        return base64.urlsafe_b64encode(
            json.dumps({"taskId": self.id, "sourceArn": self.source}).encode()
        ).decode()

    def description(self) -> dict[str, Any]:
        """The task as ListMessageMoveTasks returns it."""
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
        """Raises RequestError if messages must not go back to a queue."""
        if self.sources is not None and name not in self.sources:
            raise RequestError("AccessDenied", f"The task must not send to {name}.", 403)

    def after_step(self, moved: int, more: bool, failure: str | None) -> MoveTask:
        """The task after it moved some messages; ``more``: others can be moved; ``failure``: why others cannot."""
        if failure is not None:
            return attrs.evolve(self, moved=self.moved + moved, status="FAILED", reason=failure)
        status = {"CANCELLING": "CANCELLED", "RUNNING": "RUNNING" if more else "COMPLETED"}[self.status]
        return attrs.evolve(self, moved=self.moved + moved, status=status)


def parse_task_handle(handle: str) -> tuple[str, str]:
    """Id of the task, and the ARN of its source queue.

    Raises:
        InvalidParameterValue: not a task handle.
    """
    try:
        parts = json.loads(base64.urlsafe_b64decode(handle))
        id, arn = parts["taskId"], parts["sourceArn"]
    except (ValueError, binascii.Error, KeyError, TypeError, RecursionError):
        id = arn = None
    if not isinstance(id, str) or not isinstance(arn, str):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.")
    return id, arn


def load_tasks(text: str | None) -> list[MoveTask]:
    """The tasks that are stored with a queue, newest first."""
    return [MoveTask(**task) for task in json.loads(text or "[]")]


def dump_tasks(tasks: Iterable[MoveTask]) -> str:
    # servers of 0.2 know no sources
    return json.dumps([attrs.asdict(task, filter=lambda field, value: value != field.default) for task in tasks])
