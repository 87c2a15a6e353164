"""Rate limits as token buckets, each of which is one instant: when what was taken from it is full again (JOB-11).

A message takes ``step`` nanoseconds of the bucket's time, and it holds ``burst`` of these steps. So nothing is
counted or refilled, and whoever reads the instant, in microseconds, knows what is left. In any time of ``w``
nanoseconds at most ``burst + w / step`` messages come through.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_RATE = re.compile(r"([1-9][0-9]{0,6})/(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_RATE = 1_000_000
"""Messages of a limit; more in a second than one shard can give out."""


def parse_rate(value: Any) -> str:
    """A limit such as ``100/s`` or ``5/m``; ValueError if it is none."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1]) > MOST_RATE:
        raise ValueError(f"must be 1 to {MOST_RATE:,} messages per s, m, h or d, such as 100/s, not {value!r}")
    return found[0]


def _parts(rate: str) -> tuple[int, int]:
    """The messages of a limit, and its seconds."""
    count, unit = rate.split("/")
    return int(count), _SECONDS[unit]


class Pace(NamedTuple):
    """A rate limit of a queue."""

    step: int
    """Nanoseconds between two messages."""
    burst: int
    """Messages that may come at once."""

    @classmethod
    def of(cls, rate: str, burst: int | None) -> Pace:
        """The bucket of a limit; the default for ``burst`` is a second's messages, at least one."""
        count, time = _parts(rate)
        return cls(-(-time * 10**9 // count), burst or max(1, count // time))

    @property
    def holds(self) -> float:
        """Seconds for which a bucket collects messages before it is full."""
        return self.burst * self.step / 1e9

    def burst_for(self, seconds: int) -> int:
        """Messages that the limit lets through in some seconds, rounded up."""
        return -(-seconds * 10**9 // self.step)

    def left(self, full_at: int, now: int) -> int:
        """Messages that may come at an instant."""
        return max(0, self.burst * self.step - 1_000 * max(0, full_at - now)) // self.step

    def taking(self, count: int, full_at: int, now: int) -> int:
        """When the bucket is full again once so many messages have come."""
        return max(full_at, now) - (-count * self.step // 1_000)  # rounded up: never faster

    def next_at(self, full_at: int, now: int) -> int:
        """When the next message may come."""
        return max(now, full_at - (self.burst - 1) * self.step // 1_000)

    def bounded(self, full_at: int, now: int) -> int:
        """When a bucket is full that was emptied by a lower limit: no emptier than empty."""
        return min(full_at, now - (-self.burst * self.step // 1_000))


def burst_problem(rate: str | None, burst: int | None) -> str | None:
    """What is wrong with how many messages of a limit may come at once; None if nothing is."""
    if burst is None:
        return None
    if rate is None:
        return "needs rate_limit"
    count, time = _parts(rate)
    most = count * 86_400 // time
    return None if burst <= most else f"must be at most what {rate} lets through in a day, {most:,}"
