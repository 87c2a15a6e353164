"""Checks of arguments that belong to no attribute of a queue."""

from __future__ import annotations

from datetime import datetime

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.clock import to_micros


def check_instant(parameter: str, value: object) -> int:
    """Microseconds since the epoch of an aware instant; InvalidParameterValue if it is none."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return to_micros(value)
    raise InvalidParameterValue.of(value, parameter, "Must be an instant with a time zone.")


def check_text(parameter: str, value: object) -> None:
    """InvalidParameterValue unless a value is a text that can be stored: half a surrogate pair cannot."""
    try:
        stored = isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        stored = False
    if not stored:
        raise InvalidParameterValue.of(repr(value), parameter, "Must be a text of Unicode characters.")


def check_whole(parameter: str, value: object) -> None:
    """InvalidParameterValue unless a value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidParameterValue.of(value, parameter, "Must be a whole number of at least 1.")
