"""JSON Lines of messages: ``export`` writes them, ``send --jsonl`` reads them; see docs/reference/cli.md."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from lakequeue.cli.documents import attributes
from lakequeue.cli.values import duration
from lakequeue.errors import InvalidParameterValue, MissingParameter, QueueServiceError
from lakequeue.model.messages import BatchFailure, SendEntry
from lakequeue.model.validation import TRACE_HEADER

if TYPE_CHECKING:
    from lakequeue import PeekedMessage, Queue

_FIELDS = ("body", "attributes", "group_id", "dedup_id", "delay", "priority", "trace_header")
"""What a line says to the queue."""
_TOLD = ("message_id", "state", "sent_at", "visible_at", "receive_count", "source_queue", "moved_at")
"""What an export tells beside; a send skips it."""


def document(message: PeekedMessage, now: datetime, fifo: bool) -> dict[str, Any]:
    """A message as a line of an export; a delayed message has the rest of its delay, in seconds."""
    left = None
    if message.state.value == "delayed" and message.visible_at is not None and not fifo:
        left = max(0, math.ceil((message.visible_at - now).total_seconds()))  # not every profile takes fractions
    own: dict[str, Any] = {"delay": left, "priority": message.priority or None, "state": message.state.value}
    own |= {"attributes": attributes(message.message_attributes) or None}
    shown = {name: own[name] if name in own else getattr(message, name) for name in (*_FIELDS, *_TOLD)}
    return {name: value for name, value in shown.items() if value is not None}


class Reader:
    """Reads lines as entries for a queue.

    Args:
        queue: the queue.
        options: what lines without such a field have, as in ``SendEntry``.
    """

    def __init__(self, queue: Queue, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._fifo = queue.fifo
        self._needs_dedup = queue.fifo and not queue.attributes()["content_based_deduplication"]

    def entry(self, number: int, line: str) -> SendEntry | BatchFailure:
        """The message of a line, or why there is none; the id is the number of the line."""
        try:
            return SendEntry(id=str(number), **self._options | self._arguments(line))
        except QueueServiceError as error:
            return BatchFailure.of(str(number), error)

    def _arguments(self, line: str) -> dict[str, Any]:
        try:
            given = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InvalidParameterValue(f"The line is not JSON: {reason}.") from None
        if not isinstance(given, dict):
            raise InvalidParameterValue('The line is not a JSON object, such as {"body": "…"}.')
        for name in given:
            if name not in _FIELDS and name not in _TOLD:
                raise InvalidParameterValue(f"Unknown field {name!r}; fields are {', '.join(_FIELDS)}.")
        found = {name: given[name] for name in _FIELDS if given.get(name) is not None}
        for name in ("body", "group_id", "dedup_id", "trace_header"):
            if not isinstance(found.get(name, ""), str):
                raise InvalidParameterValue(f"Field {name} must be a text, not {json.dumps(found[name])[:40]}.")
        if not found.get("body"):
            raise MissingParameter("Field body is missing or empty.")
        if self._fifo and not (found.get("group_id") or self._options.get("group_id")):
            raise MissingParameter(
                "Field group_id is missing, which a FIFO queue needs; --group gives one to all."
            )
        if self._needs_dedup and not found.get("dedup_id"):
            raise MissingParameter(
                "Field dedup_id is missing, which a FIFO queue without content-based deduplication needs."
            )
        if "delay" in found:
            found["delay"] = _delay(found["delay"])
        if "attributes" in found:
            found["attributes"] = (self._options.get("attributes") or {}) | _attributes(found["attributes"])
        if "trace_header" in found:
            found["system_attributes"] = {TRACE_HEADER: found.pop("trace_header")}
        return found


def _delay(given: object) -> float:
    try:
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise typer.BadParameter(f"{json.dumps(given)[:40]} is not a duration")
        return duration(given)
    except typer.BadParameter as error:
        raise InvalidParameterValue(f"Field delay: {error.message}.") from None


def _attributes(given: object) -> dict[str, Any]:
    """Attributes as a text, a number, or a type and a value; binary values are in base64."""
    if not isinstance(given, dict):
        raise InvalidParameterValue("Field attributes must be an object of names and values.")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            if value.keys() != {"type", "value"} or not all(isinstance(each, str) for each in value.values()):
                raise InvalidParameterValue(f"Attribute {name!r} must have a type and a value, both texts.")
            found[name] = (value["type"], _value(name, value["type"], value["value"]))
        elif isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            found[name] = value
        else:
            raise InvalidParameterValue(f"Attribute {name!r} must be a text, a number, or a type and a value.")
    return found


def _value(name: str, type_: str, value: str) -> str | bytes:
    if not type_.startswith("Binary"):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise InvalidParameterValue(f"The value of attribute {name!r} is not base64.") from None
