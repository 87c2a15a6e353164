"""What a consumer knows of a message from its receive until it is deleted, handed back, left, or lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum

import attrs

from lakequeue.consumer.handler import Context
from lakequeue.consumer.observers import Observers
from lakequeue.consumer.options import ConsumerOptions
from lakequeue.consumer.outages import OutageMonitor
from lakequeue.model.clock import Clock, to_micros
from lakequeue.model.messages import Message
from lakequeue.renewal.policies import Hold


@attrs.frozen
class Run:
    """A run of a consumer on one of its queues.

    Attributes:
        options: those of the consumer, for this queue.
        outages: knows whether storage works, and when to try again.
        observers: record what becomes of messages.
        wake: called when there is something to settle, or messages stop being active.
        broken: called with errors that must end the consumer.
        clock: the queue's.
    """

    options: ConsumerOptions
    outages: OutageMonitor
    observers: Observers
    wake: Callable[[], None]
    broken: Callable[[BaseException], None]
    clock: Clock = attrs.field(init=False, default=attrs.Factory(lambda run: run.options.queue.clock, True))

    def now(self) -> int:
        """The time by the queue's clock, in microseconds."""
        return to_micros(self.clock.now())


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
        until: until when it may wait for the next claim, in microseconds; 0: not at all.
        settled: True once a commit deleted it, or made it visible.
        handle: its receipt handle, or the handle of a later receive.
    """

    job: Job
    again_in: int | None = None
    hold: Hold | None = None
    failures: int = 0
    due: datetime | None = None
    until: int = 0
    settled: bool = False
    handle: str = attrs.field(default=attrs.Factory(lambda done: done.job.handle, takes_self=True))


@attrs.define(eq=False)
class Call:
    """A call of the handler: when it began, its messages, what it returned, and what it raised."""

    began: int
    jobs: deque[Job] = attrs.field(factory=deque)
    result: object = None
    raised: BaseException | None = None

    def results(self) -> Sequence[object]:
        """What it returned for each message of a batch: one outcome for all, or a list of them."""
        count = len(self.jobs)
        if not isinstance(self.result, list | tuple):
            return [self.result] * count
        if len(self.result) == count:
            return self.result
        wanted = f"a handler of {count} messages returns an Outcome for all or a list of {count}"
        self.raised = TypeError(f"{wanted}, not a list of {len(self.result)}")
        return [None] * count


def newest(jobs: Sequence[Job], number: int) -> Sequence[Job]:
    """The last ones, of jobs in the order of their receive."""
    return jobs[max(0, len(jobs) - number) :] if number > 0 else []


def hold_of(message: Message, now: int) -> Hold:
    """How the receipt of a message that was just received stands."""
    assert message.received_at is not None and message.visible_at is not None
    return Hold.fresh(to_micros(message.received_at), to_micros(message.visible_at), now)
