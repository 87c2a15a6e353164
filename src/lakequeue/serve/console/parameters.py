"""Parameters of the console API, and the condition that a page's filters make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TypeVar

from lakequeue.entry_verbs import predicate
from lakequeue.errors import InvalidParameterValue, MissingParameter, QueueNameExists, QueueServiceError
from lakequeue.model.arguments import Condition
from lakequeue.model.clock import Interrupt, parse_instant
from lakequeue.model.states import STORED
from lakequeue.serve.errors import malformed, wire_message
from lakequeue.serve.sqs.model import operation, validated

MAX_IDS = 200
"""Maximum number of messages that one request can choose by id."""
_FIELD = "console_field"
_CONTAINS = (
    "(contains(lower(body), lower(?)) OR contains(lower(message_id), lower(?)) "
    "OR coalesce(contains(lower(group_id), lower(?)), false))"
)
_ERROR, _SOURCE = "dead_letter_reason->>'$.error' = ?", "source_queue = ?"
_Error = TypeVar("_Error", bound=Exception)
_STRING = operation("SendMessage").input_shape.members["MessageBody"]


class Parameters:
    """Parameters of a request. Raises InvalidParameterValue or RequestError for a wrong type."""

    def __init__(self, members: Mapping[str, Any], interrupt: Interrupt | None = None) -> None:
        self._left = dict(members)
        self.interrupt = interrupt

    def string(self, name: str) -> str | None:
        """Returns the parameter as a string. Returns None if the parameter is missing or empty."""
        value = self._left.pop(name, None)
        return None if value is None else validated(_STRING, value, name) or None

    def integer(self, name: str, default: int, maximum: int) -> int:
        """Returns the parameter as an integer from 1 to ``maximum``, or ``default`` if it is missing."""
        value = self._left.pop(name, default)
        if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise refusal(value, name, f"Must be a whole number between 1 and {maximum}.")
        return value

    def priority(self) -> int | None:
        """Returns the parameter ``Priority``, or None. The queue checks the range of the priority."""
        value = self._left.pop("Priority", None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise refusal(str(value), "Priority", "Must be a whole number.")
        return value

    def places(self) -> list[int] | None:
        """Parses the place at which a page of messages starts. Returns None for the first page."""
        text = self.string("after")
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})*", text):
            raise refusal(text, "after", "Must be the next of a page.")
        return [int(part) for part in text.split(".")]

    def choice(self, name: str, *values: str) -> str:
        """Returns a parameter that must be one of ``values``. If it is missing, returns the first value."""
        value = self.string(name) or values[0]
        if value not in values:
            raise refusal(value, name, f"Must be one of {', '.join(filter(None, values))}.")
        return value

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise refusal(str(value), name, "Must be true or false.")
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._left

    def message_ids(self) -> list[str]:
        value = self._left.pop("ids", None)
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_IDS:
            raise refusal(type(value).__name__, "ids", f"Must be a list of 1 to {MAX_IDS} ids.")
        return [str(validated(_STRING, each, "ids")) for each in value]

    def instant(self, name: str) -> datetime | None:
        text = self.string(name)
        if text is None:
            return None
        try:
            instant = parse_instant(text)
            if instant.tzinfo is None:
                raise ValueError
            return instant.astimezone(timezone.utc)
        except (ValueError, OverflowError):
            raise refusal(text, name, "Must be an instant with a time zone.") from None

    def required_instant(self, name: str) -> datetime:
        instant = self.instant(name)
        if instant is None:
            error = MissingParameter(f"The request must contain the parameter {name}.")
            raise _of_field(error, name)
        return instant

    def message_id(self) -> Condition:
        """Returns a condition that selects the message with the id in the parameter ``id``."""
        return Condition("message_id = ?", [self.string("id") or ""])

    def condition(self) -> Condition | None:
        """Returns all filters of a page of messages as one condition, or None. The filters are ``state``, ``text``
        and ``where``; for dead letters also ``error``, ``no_error`` and ``source``.
        """
        state, text, where = self.choice("state", "", *STORED), self.string("text"), self.string("where")
        parts, values = list[str](), list[str]()
        for value, part in (state, "state = ?"), (self.string("error"), _ERROR), (self.string("source"), _SOURCE):
            if value:
                parts.append(part)
                values.append(value)
        if self.choice("no_error", "", "1"):
            parts.append("dead_letter_reason IS NULL")
        if text is not None:
            parts.append(_CONTAINS)
            values += [text] * _CONTAINS.count("?")
        if where is not None and parts:
            with about("where"):
                predicate(where, self.interrupt)  # an error then shows what was typed
            where = f"(({where}\n))"  # double: inside single brackets "true) OR (true" would be valid
        return Condition(" AND ".join([*parts, *([where] if where else [])]), values) if parts or where else None

    def rest(self) -> dict[str, Any]:
        rest, self._left = self._left, {}
        return rest

    def end(self) -> None:
        for name in self._left:
            raise malformed(f"{name} is not a member of this request.")


def refusal(value: object, field: str, reason: str) -> InvalidParameterValue:
    return _of_field(InvalidParameterValue.of(value, field, reason), field)


@contextmanager
def about(field: str) -> Iterator[None]:
    """If the block raises an error about a wrong value, records ``field`` as the cause of this error."""
    try:
        yield
    except (InvalidParameterValue, QueueNameExists) as error:
        raise _of_field(error, field) from None


@contextmanager
def about_one_of(*fields: str) -> Iterator[None]:
    """If an error in the block contains one of ``fields``, records this field as the cause of the error."""
    try:
        yield
    except QueueServiceError as error:
        for field in fields:
            if field in wire_message(error):
                _of_field(error, field)
        raise


def field_of(error: Exception) -> str | None:
    """Returns the name of the field that caused an error; None if no field is known."""
    return getattr(error, _FIELD, None)


def _of_field(error: _Error, field: str) -> _Error:
    if field_of(error) is None:
        setattr(error, _FIELD, field)
    return error
