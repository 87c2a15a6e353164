"""Why handlers failed with a message, and the note of it that a dead letter keeps."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import lru_cache

import attrs

from lakequeue.model.causes import cause_of
from lakequeue.model.clock import format_instant, from_micros, parse_instant

LONGEST = 1_024
"""Bytes of a text, in UTF-8; the rest is cut off."""
MOST_ATTEMPTS = 10
"""Failed attempts that are kept of a message, the last ones (JOB-10)."""


def shortened(text: str) -> str:
    """Returns the part of the text that is stored."""
    return text.encode("utf-8", "replace")[:LONGEST].decode("utf-8", "ignore")


@attrs.frozen
class DeadLetterReason:
    """Why a handler of a message failed; of a dead letter, the last one.

    Attributes:
        error: class of the error, or of the innermost cause of an error of Spark; ``Outcome.FAILED`` if the
            handler returned that.
        text: what the error says, or the reason that was returned, up to 1 KiB.
        at: the second in which the handler ended, by the queue's clock: neighbours that fail together for the same
            reason are one row of the ledger.
        consumer: name of its consumer.
    """

    error: str
    text: str
    at: datetime
    consumer: str

    @classmethod
    def of(cls, error: BaseException | None, at: datetime, consumer: str) -> DeadLetterReason:
        """The reason for an error; None: the handler returned that it failed."""
        at = at.replace(microsecond=0)
        if error is None:
            return cls("Outcome.FAILED", "", at, consumer)
        kind, text = cause_of(error)
        return cls(kind, shortened(text), at, consumer)

    def set_back(self, now: int) -> DeadLetterReason:
        """The reason as if the handler had ended now at the latest, in microseconds."""
        return attrs.evolve(self, at=min(self.at, from_micros(now)))

    def __str__(self) -> str:
        said = f"{self.error}: {self.text}" if self.text else self.error
        return f"{said} ({self.consumer}, {format_instant(self.at)})"

    def json(self) -> str:
        """The reason as SQL shows it: an object with these four fields, written as Spark does."""
        return json.dumps(_fields(self), separators=(",", ":"), ensure_ascii=False)


Attempts = tuple[DeadLetterReason, ...]
"""Failed attempts, the first one first."""


def dead_letter_note(reason: DeadLetterReason | None, attempts: Attempts) -> str | None:
    """JSON that a dead letter keeps: ``attempts``, and ``reason`` unless its last consumer was killed.

    None if no handler failed with it.
    """
    if not attempts:
        return None
    kept = ",".join(each.json() for each in attempts)
    return f'{{"attempts":[{kept}]}}' if reason is None else f'{{"reason":{reason.json()},"attempts":[{kept}]}}'


@lru_cache(maxsize=256)  # messages that fail together have the same
def parse_note(note: str | None) -> tuple[DeadLetterReason | None, Attempts]:
    """Reason and failed attempts of a ``dead_letter_note``; None and () if it is damaged."""
    try:
        found = {} if note is None else json.loads(note)
        reason, attempts = found.get("reason"), found.get("attempts", ())
        return None if reason is None else _parsed(**reason), tuple(_parsed(**each) for each in attempts)
    except _NO_JSON:
        return None, ()


def parse_reason(text: str | None) -> DeadLetterReason | None:
    """Parses a reason from its JSON; None if the text is missing or damaged."""
    return parse_note(text and f'{{"reason":{text}}}')[0]


def _fields(reason: DeadLetterReason) -> dict[str, str]:
    return attrs.asdict(reason) | {"at": format_instant(reason.at)}


def _parsed(error: str, text: str, at: str, consumer: str) -> DeadLetterReason:
    for each in (error, text, consumer):
        str.encode(each)  # TypeError if it is no text, ValueError if it cannot be stored
    return DeadLetterReason(error, text[:LONGEST], parse_instant(at).astimezone(timezone.utc), consumer)


_NO_JSON = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)
