"""Failures of handlers, and how a dead letter stores them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import lru_cache

import attrs

from lakequeue.model.causes import cause_of
from lakequeue.model.clock import format_instant, from_micros, parse_instant

LONGEST = 1_024
"""Maximum bytes of a stored text in UTF-8. Longer texts are cut."""
MOST_ATTEMPTS = 10
"""Number of latest failed attempts that a message keeps (JOB-10)."""


def shortened(text: str) -> str:
    """Cuts a text to ``LONGEST`` bytes."""
    return text.encode("utf-8", "replace")[:LONGEST].decode("utf-8", "ignore")


@attrs.frozen
class DeadLetterReason:
    """Why a handler failed with a message.

    Attributes:
        error: class of the error. For a Spark error, the class of its innermost cause. ``Outcome.FAILED`` if the
            handler returned it.
        text: message of the error, or the reason that the handler returned. At most 1 KiB.
        at: when the handler ended, in whole seconds of the queue's clock.
        consumer: name of the consumer.
    """

    error: str
    text: str
    at: datetime
    consumer: str

    @classmethod
    def of(cls, error: BaseException | None, at: datetime, consumer: str) -> DeadLetterReason:
        """Builds the reason from a handler's error. ``error`` is None if the handler returned a failure."""
        at = at.replace(microsecond=0)
        if error is None:
            return cls("Outcome.FAILED", "", at, consumer)
        kind, text = cause_of(error)
        return cls(kind, shortened(text), at, consumer)

    def set_back(self, now: int) -> DeadLetterReason:
        """Returns a copy of the reason. A time after ``now`` (microseconds) is replaced by ``now``."""
        return attrs.evolve(self, at=min(self.at, from_micros(now)))

    def __str__(self) -> str:
        said = f"{self.error}: {self.text}" if self.text else self.error
        return f"{said} ({self.consumer}, {format_instant(self.at)})"

    def json(self) -> str:
        """Returns the reason as JSON, in the same format that Spark writes."""
        return json.dumps(_fields(self), separators=(",", ":"), ensure_ascii=False)


Attempts = tuple[DeadLetterReason, ...]
"""Failed attempts, earliest first."""


def dead_letter_note(reason: DeadLetterReason | None, attempts: Attempts) -> str | None:
    """Returns the failed attempts, and the reason if known, as JSON. Returns None if there are no attempts."""
    if not attempts:
        return None
    kept = ",".join(each.json() for each in attempts)
    return f'{{"attempts":[{kept}]}}' if reason is None else f'{{"reason":{reason.json()},"attempts":[{kept}]}}'


@lru_cache(maxsize=256)  # messages that fail together share a note
def parse_note(note: str | None) -> tuple[DeadLetterReason | None, Attempts]:
    """Parses a ``dead_letter_note``. Returns the reason and the attempts: None and () for a damaged note."""
    try:
        found = {} if note is None else json.loads(note)
        reason, attempts = found.get("reason"), found.get("attempts", ())
        return None if reason is None else _parsed(**reason), tuple(_parsed(**each) for each in attempts)
    except _NO_JSON:
        return None, ()


def parse_reason(text: str | None) -> DeadLetterReason | None:
    """Parses a reason in JSON. Returns None if the reason is missing or damaged."""
    return parse_note(text and f'{{"reason":{text}}}')[0]


def _fields(reason: DeadLetterReason) -> dict[str, str]:
    return attrs.asdict(reason) | {"at": format_instant(reason.at)}


def _parsed(error: str, text: str, at: str, consumer: str) -> DeadLetterReason:
    for each in (error, text, consumer):
        str.encode(each)  # TypeError unless it is a text, ValueError if it cannot be stored
    return DeadLetterReason(error, text[:LONGEST], parse_instant(at).astimezone(timezone.utc), consumer)


_NO_JSON = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)
