"""Who has a message in flight, which handlers failed with it, and why it became a dead letter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import attrs

from lakequeue.model.causes import cause_of
from lakequeue.model.clock import format_instant, parse_instant

LONGEST = 1_024
"""Bytes of a text, in UTF-8; the rest is cut off."""
MOST_ATTEMPTS = 10
"""Failed attempts that are kept of a message, the last ones (JOB-10)."""


def shortened(text: str) -> str:
    """The text as far as it is kept."""
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

    def __str__(self) -> str:
        said = f"{self.error}: {self.text}" if self.text else self.error
        return f"{said} ({self.consumer}, {format_instant(self.at)})"

    def json(self) -> str:
        """The reason as it is stored, and as SQL shows it: an object with these four fields."""
        return json.dumps(attrs.asdict(self) | {"at": format_instant(self.at)})


@lru_cache(maxsize=256)  # messages that a consumer has often have the same
def consumer_of(text: str | None) -> str | None:
    """The consumer that JSON names, such as a reason; None if it is damaged."""
    try:
        consumer: str | None = None if text is None else json.loads(text)["consumer"]
        str.encode(consumer or "")
        return consumer
    except _NO_JSON:
        return None


def parse_reason(text: str | None) -> DeadLetterReason | None:
    """A reason from its JSON; None if there is none."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return _reason(fields, fields["at"])
    except _NO_JSON:
        return None


def _reason(fields: dict[str, str], at: str) -> DeadLetterReason:
    error, said, consumer = fields["error"], fields["text"], fields["consumer"]
    for each in (error, said, consumer):
        str.encode(each)  # TypeError if it is no text, ValueError if it cannot be stored
    return DeadLetterReason(error, said[:LONGEST], parse_instant(at).astimezone(timezone.utc), consumer)


# --- failed attempts: reasons in a JSON list; neighbours that differ in time alone are one, with ``earlier`` times

_NO_JSON = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
_LETTER = '{"attempts":'


@lru_cache(maxsize=256)  # those of messages that fail together are equal
def with_attempt(attempts: str | None, failure: str) -> str | None:
    """The last failed attempts once there is one more."""
    known, reason = list(parse_attempts(attempts)), parse_reason(failure)
    if reason is not None and reason not in known[-1:]:  # a repeated commit brings it again
        known.append(reason)
    return _json(known[-MOST_ATTEMPTS:]) if known else None


def letter_note(failure: str | None, attempts: str | None) -> str | None:
    """What a dead letter keeps: why its last handler failed, and its failed attempts if there were others."""
    known = parse_attempts(attempts)
    if not known or (len(known) == 1 and known[0] == parse_reason(failure)):
        return failure
    listed = f'"attempts":{_json(known)}}}'
    return f"{{{listed}" if failure is None else f"{failure[:-1]}, {listed}"


def reason_in(letter: str | None) -> str | None:
    """The reason in what a dead letter keeps; None if its last consumer was killed."""
    return None if letter is None or letter.startswith(_LETTER) else letter


def attempts_in(letter: str | None) -> str | None:
    """The failed attempts in what a dead letter keeps."""
    if letter is None:
        return None
    _, found, listed = letter.rpartition('"attempts":')
    return listed[:-1] if found else f"[{letter}]"


def parse_attempts(text: str | None) -> tuple[DeadLetterReason, ...]:
    """Failed attempts from their JSON, the first one first; none if it is damaged."""
    if text is None:
        return ()
    try:
        found = [
            _reason(entry, at) for entry in json.loads(text) for at in (*entry.get("earlier", ()), entry["at"])
        ]
    except _NO_JSON:
        return ()
    return tuple(found[-MOST_ATTEMPTS:])


def _json(attempts: Sequence[DeadLetterReason]) -> str:
    entries: list[dict[str, Any]] = []
    for each in attempts:
        entry = attrs.asdict(each) | {"at": format_instant(each.at)}
        before = entries[-1] if entries else {}
        if all(before.get(name) == entry[name] for name in ("error", "text", "consumer")):
            entry["earlier"] = [*before.get("earlier", ()), before["at"]]
            entries.pop()
        entries.append(entry)
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False)  # as Spark writes it
