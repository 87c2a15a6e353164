"""A message from its receive to its end, as the pool of a consumer sees it."""

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
    """The state of a message of a pool. ``docs/guides/running-consumers.md`` has a diagram of these transitions:

    - waiting -> running: a hand takes it
    - waiting -> returning: it is given back unseen
    - waiting -> ended: its receipt is lost, or a handler succeeded after an earlier receive of the message
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
    """The options of a consumer that matter to its pool. Durations are in microseconds.

    Attributes:
        renewal, prefetch, batch, batch_wait, weight, claim_interval: see ``Consumer``.
        longest: visibility timeout of a receipt.
        largest: maximum number of messages of a claim; None for no maximum.
        linger: maximum time that handled messages wait for the next claim.
        gathers: True if messages that failed on their last allowed receive may wait, to be moved together.
        pause: returns the pause after a number of consecutive failures of storage.
        claims: builds the ``FreeHands`` of a claim from a function that returns the number of free hands.
    """

    renewal: Renewal
    longest: int
    prefetch: int | None
    batch: int
    batch_wait: int
    fifo: bool
    largest: int | None
    weight: int
    linger: int
    claim_interval: int
    gathers: bool
    pause: Callable[[int], int]
    claims: Callable[[Callable[[], int]], FreeHands]


@attrs.define(eq=False)
class Job:
    """A message that a consumer has received, and has neither settled nor lost."""

    context: Context
    turn: Turn
    since: int
    """Instant of the receive, in microseconds by the queue's clock."""
    state: State = State.WAITING
    handle: str = attrs.field(
        init=False, default=attrs.Factory(lambda job: job.context.message.receipt_handle, takes_self=True)
    )

    def __str__(self) -> str:
        return f"message {self.context.message.message_id}"


@attrs.define(eq=False)
class Turn:
    """Messages of one receive that are handled in sequence: the messages of a group, or a single message."""

    group: str | None
    jobs: deque[Job] = attrs.field(factory=deque)

    @property
    def is_last(self) -> bool:
        """True if the next message is on its last receive."""
        return bool(self.jobs) and self.jobs[0].context.message.last_receive

    @property
    def waits(self) -> bool:
        """True if a message of this turn still waits for its handler."""
        return any(job.state is State.WAITING for job in self.jobs)


@attrs.define(eq=False)
class Done:
    """A message that the next round deletes or makes visible.

    Attributes:
        again_in: microseconds until the message becomes visible; None to delete it.
        hold: state of the receipt when the handler ended.
        failures: number of failed attempts to settle the message.
        due: instant of the next attempt; None for the next round.
        until: instant until which the message may wait for the next claim, in microseconds; 0 if it may not wait.
        settled: True once a commit deleted the message, or made the message visible.
        handle: the message's receipt handle, or the handle of a later receive.
    """

    job: Job
    again_in: int | None = None
    hold: Hold | None = None
    failures: int = 0
    due: int | None = None
    until: int = 0
    settled: bool = False
    handle: str = attrs.field(default=attrs.Factory(lambda done: done.job.handle, takes_self=True))


def rests_until(finished: Sequence[Done], claims_again: int, event: int | None) -> int:
    """Returns the instant at which the loop must act next: claim, settle or handle ``event``; 0 to act at once."""
    if any(done.due is not None or done.job.context.lost for done in finished):
        return 0
    instants = [claims_again, *(done.until for done in finished)]
    return min(instants if event is None else [*instants, event])


def lingers_until(finished: Sequence[Done]) -> int:
    """Returns the instant until which handled messages may wait for the next claim; 0 if they may not wait."""
    if any(done.due is not None for done in finished):
        return 0
    return min((done.until for done in finished if not done.job.context.lost), default=0)
