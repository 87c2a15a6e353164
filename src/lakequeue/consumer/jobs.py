"""A message from its receive until its end, as the pool of a consumer knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from lakequeue.consumer.handler import Context
    from lakequeue.entry_verbs import FreeHands
    from lakequeue.renewal.policies import Hold, Renewal


class State(Enum):
    """Where a message of a pool is. ``docs/guides/consumers.md`` has a diagram of these transitions:

    - waiting -> running: a hand takes it
    - waiting -> returning: it is given back unseen
    - waiting -> ended: its receipt is lost, or a later receive was deleted with an earlier one
    - running -> finished: its handler has ended, or gets no more time
    - running -> returning: its receipt ended before its handler began
    - running -> ended: its receipt is lost, or it is left to its timeout
    - finished -> settling: a round begins
    - finished -> ended: its receipt is lost
    - settling -> finished: storage failed
    - settling -> ended: the round has settled it, or never will
    - returning -> ended: the loop gives it back
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    SETTLING = "settling"
    RETURNING = "returning"
    ENDED = "ended"


@attrs.frozen
class Rules:
    """The options of a consumer that its pool obeys.

    Attributes:
        renewal: when to extend receipts.
        longest: how long a receipt lasts.
        prefetch: messages to claim ahead; None: by how long handlers and rounds took lately.
        batch: maximum number of messages of a call.
        batch_wait: how long a message waits for others of its batch.
        waits: whether a batch waits for its messages.
        fifo: whether messages of a group are handled in their order.
        largest: maximum number of messages of a claim; None: any.
        weight: that of the queue.
        linger: how long what was handled may wait for the next claim.
        pause: returns how long to wait after so many failures of storage.
        claims: makes the ``FreeHands`` of a claim.
    """

    renewal: Renewal
    longest: int
    prefetch: int | None
    batch: int
    batch_wait: int
    waits: bool
    fifo: bool
    largest: int | None
    weight: int
    linger: int
    pause: Callable[[int], int]
    claims: Callable[[Callable[[], int]], FreeHands]


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

    @property
    def is_last(self) -> bool:
        """Whether its next message is a last receive."""
        return bool(self.jobs) and self.jobs[0].context.message.last_receive


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
    due: int | None = None
    until: int = 0
    settled: bool = False
    handle: str = attrs.field(default=attrs.Factory(lambda done: done.job.handle, takes_self=True))


def newest(jobs: Sequence[Job], number: int) -> Sequence[Job]:
    """The last ones, of jobs in the order of their receive."""
    return jobs[max(0, len(jobs) - number) :] if number > 0 else []
