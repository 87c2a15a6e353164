"""When a failed message comes again: delays by the number of its receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from lakequeue.errors import InvalidOptions
from lakequeue.model.clock import MICROS, Duration, duration_micros, seconds
from lakequeue.model.receipt_handles import LONGEST_RECEIPT


@attrs.frozen
class RetryBackoff:
    """Delays of a failing message that grow with every receive: first, first × factor, first × factor² …

    Args:
        first: seconds after the first receive.
        factor: each further delay is so many times the one before, 1 or more.
        longest: seconds of the longest delay, up to twelve hours.

    Raises:
        InvalidOptions: names every option that is out of range.
    """

    first: Duration = 1
    factor: float = 2
    longest: Duration = 900

    def __attrs_post_init__(self) -> None:
        problems = []
        for name in ("first", "longest"):
            value = getattr(self, name)
            try:
                fits = 0 <= duration_micros(value) <= LONGEST_RECEIPT
            except (TypeError, ValueError):
                fits = False
            if not fits:
                problems.append(f"{name}: must be 0 to {LONGEST_RECEIPT // MICROS} seconds, not {value!r}")
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)) or not self.factor >= 1:
            problems.append(f"factor: must be a number of at least 1, not {self.factor!r}")
        if problems:
            raise InvalidOptions(problems)

    def __call__(self, receive_count: int) -> Duration:
        """The delay after so many receives."""
        delay, longest = duration_micros(self.first), duration_micros(self.longest)
        for _ in range(receive_count - 1):
            if delay >= longest or self.factor == 1:
                break
            delay = min(round(delay * self.factor), longest)
        return seconds(min(delay, longest))


RetryDelay: TypeAlias = "Duration | Callable[[int], Duration]"
"""Seconds, or a function from the number of receives to seconds, such as ``RetryBackoff``."""


def retry_delay_problem(given: object) -> str | None:
    """Why a value cannot be a retry delay; None if it can."""
    if given is None or callable(given):
        return None
    try:
        micros = duration_micros(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return f"must be seconds, a timedelta or a function from a receive count to seconds, not {given!r}"
    fits = 0 <= micros <= LONGEST_RECEIPT
    return None if fits else f"must be 0 to {LONGEST_RECEIPT // MICROS} seconds, not {given}"


def retry_micros(delay: RetryDelay, receive_count: int, left: int, whole: bool) -> int:
    """The delay of a message, in microseconds.

    Args:
        left: microseconds until its receipt reaches twelve hours, which no delay exceeds.
        whole: round up to whole seconds.

    Raises:
        Exception: the function raised it, or returned no duration.
    """
    micros = max(0, duration_micros(delay(receive_count) if callable(delay) else delay))
    if whole:
        micros = -(-micros // MICROS) * MICROS
    return micros if micros <= left else max(0, left // MICROS * MICROS)
