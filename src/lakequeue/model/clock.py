"""The clock that callers pass in, and conversions to whole microseconds.

This package reads time and waits only through a ``Clock``, except for locks and retries of commits (LPL-6, DLT-2).
Tests use ``lakequeue.testing.ManualClock``.
"""

from __future__ import annotations

import numbers
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import asyncio

Duration: TypeAlias = int | float | Decimal | timedelta
"""Seconds or a ``timedelta``."""

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NEVER = datetime.max.replace(tzinfo=timezone.utc)
"""The last instant."""
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_WAIT = 5.0  # seconds; a wait notices within this time that the wall clock was set forward


def shown_duration(seconds: float) -> str:
    """Formats seconds as all commands print them: ``6.2s``, ``1m30s``, ``3d4h``, in at most two units."""
    if seconds < 60:
        return f"{round(max(seconds, 0.0), 1):g}s"
    parts, left = list[str](), round(seconds)
    for unit, size in ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return "".join(parts[:2])


def to_micros(instant: datetime) -> int:
    """An aware instant in microseconds since the epoch; ValueError for a naive one."""
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The UTC instant of a number of microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=micros)


def parse_instant(text: str) -> datetime:
    """Parses an instant in ISO 8601, naive if the text has no time zone; ValueError for other texts."""
    return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))  # Python 3.10 does not parse Z


def format_instant(instant: datetime) -> str:
    """An instant in ISO 8601, in UTC with Z."""
    return instant.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def duration_micros(duration: Duration) -> int:
    """A duration in microseconds, rounded; TypeError or ValueError if it is not a finite duration."""
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    if isinstance(duration, bool) or not isinstance(duration, (numbers.Real, Decimal)):
        raise TypeError(f"not a duration: {duration!r}")
    try:
        return round(duration * MICROS)
    except (ArithmeticError, ValueError):
        raise ValueError(f"not a finite duration: {duration!r}") from None


def seconds(micros: int) -> int | float:
    """Microseconds as seconds; whole seconds as an int."""
    return micros // MICROS if micros % MICROS == 0 else micros / MICROS


class Clock(Protocol):
    """Source of time and of the waits that users see."""

    def now(self) -> datetime:
        """The current time as an aware UTC instant."""

    def wait(self, until: datetime, wake: threading.Event) -> None:
        """Blocks the thread until the instant ``until``, or until ``wake`` is set if that comes first."""

    async def wait_async(self, until: datetime, wake: asyncio.Event) -> None:
        """Like ``wait``, for a task; ``wake`` belongs to the running loop."""

    def participant(self, *, late: bool = False) -> AbstractContextManager[None]:
        """Registers the current thread or task: a manual clock waits for it to rest before time moves on.

        Args:
            late: for threads; when several waits end at one instant, this thread's wait ends after the other
                threads have come to rest again (HBN-10).
        """


class SystemClock:
    """The machine's UTC clock."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def wait(self, until: datetime, wake: threading.Event) -> None:
        while (left := self._left(until)) > 0:
            if wake.wait(left):
                return

    async def wait_async(self, until: datetime, wake: asyncio.Event) -> None:
        import asyncio

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


def start_thread(clock: Clock, work: Callable[[], None], name: str, *, late: bool = False) -> threading.Thread:
    """Starts a daemon thread; returns once it takes part in the clock, which could advance without it before."""
    begun = threading.Event()

    def run() -> None:
        with clock.participant(late=late):
            begun.set()
            work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    begun.wait()
    return thread


class Interrupt(threading.Event):
    """Ends the wait of a receive, which then polls once more; ends a search by a condition with an error."""

    def __init__(self) -> None:
        super().__init__()
        self._wakes: list[Callable[[], None]] = []

    def set(self) -> None:
        super().set()
        for wake in list(self._wakes):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Calls ``wake`` when the event is set during the block."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)
