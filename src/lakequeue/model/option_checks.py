"""Checks of options, which report the problems of all options at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from lakequeue.model.clock import MICROS, duration_micros

Check: TypeAlias = Callable[[Any], "str | None"]
"""Function that returns why a value does not fit. Returns None if the value fits."""


def problems_of(options: object, **checks: Check) -> list[str]:
    """Checks attributes of ``options``. Returns name and problem of each attribute that does not fit."""
    found = {name: check(getattr(options, name)) for name, check in checks.items()}
    return [f"{name}: {problem}" for name, problem in found.items() if problem is not None]


def fits(wanted: str, test: Callable[[Any], bool]) -> Check:
    """Makes a check from a test. ``wanted`` describes the values that pass the test."""
    return lambda value: None if test(value) else f"must be {wanted}, not {value!r}"


def or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def whole_number(low: int, high: int | None = None) -> Check:
    wanted = f"a whole number of at least {low}" if high is None else f"a whole number of {low} to {high}"
    return fits(wanted, lambda value: type(value) is int and low <= value <= (high or value))


def number(wanted: str, test: Callable[[float], bool]) -> Check:
    plain = (int, float)
    return fits(wanted, lambda value: isinstance(value, plain) and not isinstance(value, bool) and test(value))


def duration(low: int | None = None, high: int | None = None) -> Check:
    """Returns a function that checks that a duration is within limits. The limits are in microseconds."""
    wanted = "more than 0 seconds" if high is None else f"{(low or 0) // MICROS} to {high // MICROS} seconds"

    def problem(value: Any) -> str | None:
        try:
            micros = duration_micros(value)
        except (TypeError, ValueError):
            return f"must be seconds or a timedelta, not {value!r}"
        inside = (low is None or low <= micros) and (high is None or micros <= high)
        return None if inside else f"must be {wanted}, not {value}"

    return problem
