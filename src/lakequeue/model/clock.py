"""The clock for all waits, except waits for locks and commit retries (LPL-6, DLT-2). Also converts times."""

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
"""The latest possible instant."""
_MICROSECOND = timedelta(microseconds=1)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_TEXT = re.compile(rf"(?:{_PART.pattern})+")
_LONGEST_WAIT = 5.0  # seconds; a wait notices within this time that the wall clock was set forward


def shown_duration(seconds: float) -> str:
    """Formats seconds in at most two units: ``6.2s``, ``1m30s``, ``3d4h``."""
    if seconds < 60:
        return f"{round(max(seconds, 0.0), 1):g}s"
    parts, left = list[str](), round(seconds)
    for unit, size in ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return "".join(parts[:2])


def parse_duration(text: str) -> float:
    """Parses a duration such as ``100ms``, ``5m`` or ``1h30m`` to seconds. Raises ValueError for other texts."""
    compact = text.lower().replace(" ", "")
    if not _TEXT.fullmatch(compact):
        raise ValueError(f"not a duration: {text!r}")
    # rounded, because 0.1 + 0.2 is slightly more than 0.3
    return round(sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(compact)), 6)


def to_micros(instant: datetime) -> int:
    """Converts an aware instant to microseconds since the epoch. Raises ValueError for a naive instant."""
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def parse_instant(text: str) -> datetime:
    """Parses an ISO 8601 instant. Without a time zone, the result is naive. Raises ValueError for other texts."""
    return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))  # Python 3.10 does not parse Z


def format_instant(instant: datetime) -> str:
    """Formats an instant in ISO 8601, in UTC with Z."""
    return instant.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def duration_micros(duration: Duration) -> int:
    """Converts a duration to microseconds. Raises TypeError or ValueError unless the duration is finite."""
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    # int and float first: the check of an abstract class takes three times as long
    if isinstance(duration, bool) or not isinstance(duration, (int, float, Decimal, numbers.Real)):
        raise TypeError(f"not a duration: {duration!r}")
    try:
        return round(duration * MICROS)
    except (ArithmeticError, ValueError):
        raise ValueError(f"not a finite duration: {duration!r}") from None


def seconds(micros: int) -> int | float:
    """Converts microseconds to seconds. Whole seconds are an int."""
    return micros // MICROS if micros % MICROS == 0 else micros / MICROS


class Clock(Protocol):
    """Gives the time, and waits until an instant."""

    def now(self) -> datetime:
        """Returns the current time as an aware UTC instant."""

    def wait(self, until: datetime, wake: threading.Event) -> None:
        """Blocks the thread until the instant ``until``, or until the event ``wake`` is set."""

    async def wait_async(self, until: datetime, wake: asyncio.Event) -> None:
        """Suspends the task until the instant ``until``, or until the event ``wake`` is set."""

    def participant(self, *, late: bool = False) -> AbstractContextManager[None]:
        """Registers the current thread or task. A manual clock advances only while all participants wait. If
        ``late``, the participant is woken after all other threads that wait for the same instant (HBN-10).
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
    """Starts a daemon thread. Returns once the thread is registered as a participant of the clock."""
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
    """An event that cuts waiting short. A receive then polls once more. A search for messages raises an error."""

    def __init__(self) -> None:
        super().__init__()
        self._wakes: list[Callable[[], None]] = []

    def set(self) -> None:
        super().set()
        for wake in list(self._wakes):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Calls ``wake`` if the event is set during the block."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)
