"""Checks of arguments that do not depend on queue attributes."""

from __future__ import annotations

from datetime import datetime

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.clock import to_micros


def check_instant(parameter: str, value: object) -> int:
    """An aware instant in microseconds since the epoch; InvalidParameterValue for anything else."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return to_micros(value)
    raise InvalidParameterValue.of(value, parameter, "Must be an instant with a time zone.")


def check_whole(parameter: str, value: object) -> None:
    """Raises InvalidParameterValue unless the value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidParameterValue.of(value, parameter, "Must be a whole number of at least 1.")
