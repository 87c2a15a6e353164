"""What a consumer knows of a message from its receive until it is deleted, handed back, left, or lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from enum import Enum

import attrs

from lakequeue.consumer.handler import Context
from lakequeue.model.clock import to_micros
from lakequeue.model.messages import Message
from lakequeue.renewal.policies import Hold


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@attrs.define(eq=False)
class Job:
    """An active message."""

    context: Context
    turn: Turn
    since: int
    """When it was received, in microseconds by the queue's clock."""
    state: State = State.WAITING

    @property
    def handle(self) -> str:
        return self.context.message.receipt_handle

    def __str__(self) -> str:
        return f"message {self.context.message.message_id}"


@attrs.define(eq=False)
class Turn:
    """Messages of one receive that are handled one after another: those of a group, or a single one."""

    group: str | None
    jobs: deque[Job] = attrs.field(factory=deque)


@attrs.define(eq=False)
class Done:
    """What the next round settles: a message to delete, or to make visible.

    Attributes:
        again_in: microseconds until it is visible; None: delete.
        hold: how the receipt stood when its handler ended.
        failures: attempts that failed.
        due: when to try again; None: at once.
        error: why the last attempt did not settle it.
    """

    job: Job
    again_in: int | None = None
    hold: Hold | None = None
    failures: int = 0
    due: datetime | None = None
    error: Exception | None = None


@attrs.define
class Call:
    """A call of a handler: when it began, what it returned, and what it raised."""

    began: int
    result: object = None
    raised: BaseException | None = None


def outcomes_of(call: Call, count: int) -> Sequence[object]:
    """What a handler returned for each message of a batch: one outcome for all, or a list of them."""
    if not isinstance(call.result, list | tuple):
        return [call.result] * count
    if len(call.result) == count:
        return call.result
    expected = f"an Outcome for all or a list of {count}"
    call.raised = TypeError(f"a handler of {count} messages returns {expected}, not a list of {len(call.result)}")
    return [None] * count


def newest(jobs: Sequence[Job], number: int) -> Sequence[Job]:
    """The last ones, of jobs in the order of their receive."""
    return jobs[max(0, len(jobs) - number) :] if number > 0 else []


def hold_of(message: Message, now: int) -> Hold:
    """How the receipt of a message that was just received stands."""
    assert message.received_at is not None and message.visible_at is not None
    return Hold.fresh(to_micros(message.received_at), to_micros(message.visible_at), now)
