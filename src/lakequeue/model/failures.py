"""Who has a message in flight, and why it became a dead letter: the error of the handler that had it last."""

from __future__ import annotations

import json
from datetime import datetime

import attrs

from lakequeue.model.clock import format_instant, parse_instant

LONGEST = 1_024
"""Bytes of a text, in UTF-8; the rest is cut off."""


@attrs.frozen
class DeadLetterReason:
    """Why the last handler of a message failed.

    Attributes:
        error: class of the error; ``Outcome.FAILED`` if the handler returned that.
        text: what the error says, up to 1 KiB.
        at: when the handler ended, by the queue's clock.
        consumer: name of its consumer.
    """

    error: str
    text: str
    at: datetime
    consumer: str

    @classmethod
    def of(cls, error: BaseException | None, at: datetime, consumer: str) -> DeadLetterReason:
        """The reason for an error; None: the handler returned that it failed."""
        if error is None:
            return cls("Outcome.FAILED", "", at, consumer)
        try:
            text = str(error)
        except Exception:  # of a class that cannot say it
            text = ""
        cut = text.encode("utf-8", "replace")[:LONGEST].decode("utf-8", "ignore")
        return cls(type(error).__name__, cut, at, consumer)

    def __str__(self) -> str:
        said = f"{self.error}: {self.text}" if self.text else self.error
        return f"{said} ({self.consumer}, {format_instant(self.at)})"

    def json(self) -> str:
        """The reason as it is stored, and as SQL shows it: an object with these four fields."""
        return json.dumps(attrs.asdict(self) | {"at": format_instant(self.at)})


_HELD = '{"consumer": '
_TOGETHER = '{"together": '


def held_by(consumer: str) -> str:
    """What is kept with the messages that a consumer has in flight, where the reason of a failure is later."""
    return f"{_HELD}{json.dumps(consumer)}}}"


def failed_together(reason: DeadLetterReason, count: int) -> str:
    """What is kept with ``count`` messages that failed as one batch, for a reason that one may have caused."""
    return f"{_TOGETHER}{count}, {reason.json()[1:]}"


def together_in(note: str | None) -> int | None:
    """How many messages failed as one batch, by the note of one; None if it did not fail so."""
    if note is None or not note.startswith(_TOGETHER):
        return None
    return int(note[len(_TOGETHER) : note.index(",")])


def reason_of(note: str | None) -> str | None:
    """The reason that is kept with a message, in JSON; None if there is only its consumer."""
    if note is not None and note.startswith(_TOGETHER):
        return "{" + note.partition(", ")[2]
    return None if note is None or note.startswith(_HELD) else note


def consumer_of(note: str | None) -> str | None:
    """The consumer of a note of either kind."""
    return None if note is None else json.loads(note).get("consumer")


def parse_reason(text: str | None) -> DeadLetterReason | None:
    """A reason from its JSON; None if there is none."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return DeadLetterReason(**fields | {"at": parse_instant(fields["at"])})
    except (ValueError, TypeError, KeyError):
        return None
