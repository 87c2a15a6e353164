"""The events that a pool of messages handles, and the actions that a pool returns. Instants are microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import attrs

from lakequeue.consumer.jobs import Done, Job, Turn
from lakequeue.model.failures import DeadLetterReason
from lakequeue.renewal import holds
from lakequeue.renewal.policies import Hold


class Fate(Enum):
    """How a call of the handler ended for a message."""

    SUCCESS = "it is deleted"
    FAILED = "it comes again as the options say, but at its timeout if its renewal failed"
    FAILED_RETRY_NOW = "it comes again at once"
    LATE = "its receipt ended before the call"
    BROKEN = "an error that is not the handler's ends the consumer"


class Settlement(Enum):
    """The result of a round for a message."""

    SETTLED = "it was deleted, or made visible"
    AGAIN = "storage failed, and may work later"
    NEVER = "no repetition can succeed"


# --- events


@attrs.define
class Tick:
    """The loop of a queue begins an iteration, with at most ``hands`` hands. A paused loop receives nothing."""

    hands: int
    paused: bool


@attrs.define
class RoundDue:
    """The loop can begin a round: settle messages, and claim messages unless paused.

    Attributes:
        not_before: earliest instant of the next claim, after a refused claim.
        may_linger: True if handled messages may wait until there are messages to claim.
    """

    paused: bool
    not_before: int
    may_linger: bool


@attrs.define
class MessagesReceived:
    """A receive has ended. ``took_all_at`` is the instant of the claim if no message was left, else None."""

    turns: Sequence[Turn]
    holds: Mapping[str, Hold]
    took_all_at: int | None = None


@attrs.define
class Settled:
    """A round has ended after ``took`` microseconds. ``results`` has a result for each message of ``done``."""

    done: Sequence[Done]
    results: Sequence[Settlement]
    took: int


@attrs.define
class RoundFailed:
    """A round raised an error, so its results are unknown."""

    round: Round


@attrs.define
class HandFree:
    """A hand is free to begin a call."""


@attrs.define
class HandlerEnded:
    """A call of the handler has ended.

    Attributes:
        fates: for each message, how the call ended, and microseconds until the message is visible again; None if
            the message stays hidden until its visibility timeout.
        took: duration of the call, in microseconds.
        failures: why messages failed, by receipt handle.
    """

    jobs: Sequence[Job]
    fates: Sequence[tuple[Fate, int | None]]
    took: int
    failures: Mapping[str, DeadLetterReason]


@attrs.define
class RunEnds:
    """The consumer begins to end: no message is received, and no handler begins. Running handlers continue."""


@attrs.define
class GraceOver:
    """Running handlers had a limited time to end. This time is over, and the renewal of receipts has stopped."""


@attrs.define
class RunOver:
    """The consumer has ended. Nothing more is settled."""


Event: TypeAlias = (
    Tick
    | RoundDue
    | MessagesReceived
    | Settled
    | RoundFailed
    | HandFree
    | HandlerEnded
    | holds.Event
    | RunEnds
    | GraceOver
    | RunOver
)

# --- actions


@attrs.define
class Wake:
    """Make the loop of the queue begin its next iteration."""


@attrs.define
class WakeHands:
    """Wake at most ``number`` idle hands, so that the hands ask for work."""

    number: int


@attrs.define
class Resize:
    """Change the number of hands."""

    number: int


@attrs.define
class Start:
    """Call the handler with messages."""

    jobs: Sequence[Job]


@attrs.define
class GiveBack:
    """Make messages visible that no handler has begun, as if they had not been received."""

    handles: Sequence[str]


@attrs.define
class Gather:
    """Wait until a hand finds nothing to do, but at most ``longest`` microseconds."""

    longest: int


@attrs.define
class Linger:
    """Wait until there are messages to claim, at most until an instant."""

    until: int


@attrs.define
class Round:
    """Settle messages, and claim up to ``room`` messages in the same commit. With nothing to settle, only receive.

    Attributes:
        failures: why messages failed, by receipt handle.
        event: instant at which a receive stops waiting, because the pool has something to do; None if never.
    """

    done: Sequence[Done]
    failures: Mapping[str, DeadLetterReason]
    room: int
    event: int | None = None

    @property
    def settles(self) -> bool:
        return bool(self.done or self.failures)


@attrs.define
class Lose:
    """Mark receipts as lost: discovered losses if ``found``, else receipts that are given up as the run ends."""

    jobs: Sequence[Job]
    found: bool


@attrs.define
class Warn:
    """Log a warning about a message."""

    text: str
    job: Job


_Pass: TypeAlias = Gather | Linger | Round
Action: TypeAlias = Wake | WakeHands | Resize | Start | GiveBack | Lose | Warn | _Pass | holds.Action
