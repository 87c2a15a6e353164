"""Checks of arguments, and the error of one that is refused."""

from __future__ import annotations

from datetime import datetime

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.clock import to_micros


def invalid(parameter: str, value: object, reason: str) -> InvalidParameterValue:
    """The error of a value that a parameter does not take."""
    return InvalidParameterValue(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def check_instant(parameter: str, value: object) -> int:
    """Microseconds since the epoch of an aware instant; InvalidParameterValue if it is none."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return to_micros(value)
    raise invalid(parameter, value, "Must be an instant with a time zone.")


def check_whole(parameter: str, value: object) -> None:
    """InvalidParameterValue unless a value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(parameter, value, "Must be a whole number of at least 1.")
