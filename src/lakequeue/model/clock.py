"""The clock that is passed in wherever time matters, and conversions to whole microseconds.

Code of this package reads time and waits only through a `Clock`; waits for locks and retries of commits are
not waits in this sense (LPL-6, DLT-2). Tests bring `lakequeue.testing.ManualClock`.
"""

from __future__ import annotations

import asyncio
import numbers
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Protocol, TypeAlias

Duration: TypeAlias = int | float | Decimal | timedelta
"""Seconds or a `timedelta`."""

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_WAIT = 5.0  # seconds; a wall clock that was set forward is noticed after at most this time


def to_micros(instant: datetime) -> int:
    """Microseconds since the epoch of an aware instant; ValueError for a naive one."""
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The UTC instant that many microseconds after the epoch."""
    return _EPOCH + timedelta(microseconds=micros)


def parse_instant(text: str) -> datetime:
    """An instant in ISO 8601; without a time zone in the text it is naive.

    Raises:
        ValueError: the text is no instant.
    """
    return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))  # Python 3.10 knows no Z


def format_instant(instant: datetime) -> str:
    """An instant in ISO 8601, in UTC with Z."""
    return instant.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def duration_micros(duration: Duration) -> int:
    """Whole microseconds of a duration, rounded to the nearest; TypeError or ValueError for what has none."""
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    if isinstance(duration, bool) or not isinstance(duration, (numbers.Real, Decimal)):
        raise TypeError(f"not a duration: {duration!r}")
    try:
        return round(duration * MICROS)
    except (ArithmeticError, ValueError):
        raise ValueError(f"not a finite duration: {duration!r}") from None


def seconds(micros: int) -> int | float:
    """Seconds as people write them: whole ones as an int."""
    return micros // MICROS if micros % MICROS == 0 else micros / MICROS


class Clock(Protocol):
    """Source of time and of the waits that users see."""

    def now(self) -> datetime:
        """The present as an aware UTC instant."""
        ...

    def wait(self, until: datetime, wake: threading.Event) -> None:
        """Blocks the thread until `until` has come or `wake` is set, whichever is first."""
        ...

    async def wait_async(self, until: datetime, wake: asyncio.Event) -> None:
        """Like `wait`, for a task; `wake` belongs to the running loop."""
        ...

    def participant(self, *, late: bool = False) -> AbstractContextManager[None]:
        """Marks the thread or task inside as one that a manual clock lets come to rest before it moves.

        Args:
            late: for threads; at an instant at which several waits end, this thread's end after the others have
                come to rest again (HBN-10).
        """
        ...


class SystemClock:
    """The machine's UTC clock."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def wait(self, until: datetime, wake: threading.Event) -> None:
        while (left := self._left(until)) > 0:
            if wake.wait(left):
                return

    async def wait_async(self, until: datetime, wake: asyncio.Event) -> None:
        while (left := self._left(until)) > 0:
            try:
                await asyncio.wait_for(wake.wait(), left)
                return
            except asyncio.TimeoutError:
                continue

    @contextmanager
    def participant(self, *, late: bool = False) -> Iterator[None]:
        yield

    def _left(self, until: datetime) -> float:
        return min((until - self.now()).total_seconds(), _LONGEST_WAIT)
