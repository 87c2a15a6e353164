"""Commands and results as JSON, so that another process can commit them. Only known classes are read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from lakequeue.errors import SERVICE_ERRORS, QueueServiceError
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.model.deliveries import DeliveryTarget, Mark, Undecided
from lakequeue.model.failures import DeadLetterReason
from lakequeue.shard.commands import (
    ChangeVisibility,
    Charge,
    Claim,
    ClaimedSpan,
    ClaimResult,
    Command,
    Decide,
    Delete,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    Moved,
    RecordFailure,
    RecordTable,
    Remark,
    Result,
)
from lakequeue.shard.runs import Destination

_TYPE, _MAP, _AT, _ERROR = "!", "map", "at", "error"
_COMMANDS: tuple[type, ...] = (
    *(Claim, Charge, Delete, ChangeVisibility, RecordFailure, LeaseDelete, LeaseExtend, LeaseRelease),
    *(Moved, Decide, Remark, RecordTable),
)
_PARTS: tuple[type, ...] = (
    *(ClaimResult, ClaimedSpan, LeaseCounts, DeadLetterReason, Destination, Mark, DeliveryTarget, Undecided),
)
_CLASSES: dict[str, Any] = {each.__name__: each for each in (*_COMMANDS, *_PARTS)}
FORMAT = zlib.crc32(repr([(name, each.__match_args__) for name, each in _CLASSES.items()]).encode())
"""Hash of the classes and their fields. Processes with different hashes do not commit each other's commands."""


def has_text(command: Command) -> bool:
    """Returns True if the command can be written as text. Another process can then commit the command."""
    return isinstance(command, _COMMANDS)


def to_text(values: Any) -> str:
    """Returns a structure of commands and results as JSON."""
    return json.dumps(encoded(values), separators=(",", ":"))


def from_text(text: str | bytes) -> Any:
    """Reverses ``to_text``, but returns tuples in place of lists. Raises ValueError for any other text."""
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise ValueError("no request") from None
    return decoded(parsed)


def decoded(parsed: Any) -> Any:
    """Reverses the function ``encoded``: returns the original structure, with tuples in place of lists. Raises
    ValueError if the value is not a result of ``encoded``.
    """
    try:
        return _decoded(parsed)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no request: {error}") from None


def encoded(value: Any) -> Any:
    """Converts a structure to lists, dictionaries, texts and numbers, which JSON can represent."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Result():
            return encoded(value.error or value.value)
        case QueueServiceError():
            names = [name if isinstance(name, int) else str(name) for name in value.names]
            return {_TYPE: _ERROR, "of": [value.code, value.template, names, value.hint, value.cmq_code]}
        case datetime():
            return {_TYPE: _AT, "of": to_micros(value)}
        case Mapping():
            return {_TYPE: _MAP, "of": [[encoded(key), encoded(each)] for key, each in value.items()]}
    name = type(value).__name__
    if attrs.has(type(value)):
        fields = [encoded(getattr(value, field.name)) for field in attrs.fields(type(value))]
        return {_TYPE: name, "of": fields}
    parts = [encoded(each) for each in value]
    return {_TYPE: name, "of": parts} if name in _CLASSES else parts


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    kind, given = value[_TYPE], value["of"]
    if kind == _AT:
        return from_micros(given)
    if kind == _MAP:
        return {_decoded(key): _decoded(each) for key, each in given}
    if kind == _ERROR:
        code, template, names, hint, cmq_code = given
        return SERVICE_ERRORS[code](template, names=names, hint=hint, cmq_code=cmq_code)
    return _CLASSES[kind](*map(_decoded, given))


def result_of(value: Any) -> Result:
    if isinstance(value, QueueServiceError):
        return Result(error=value, changed=True)
    return Result(value=value, changed=True)
