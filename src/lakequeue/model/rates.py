"""Rate limits as token buckets (JOB-11), stored as the instant when the bucket will be full. A bucket holds the
tokens of ``burst`` messages, and gains one token every ``step`` nanoseconds. Therefore at most ``burst + w /
step`` messages pass in any ``w`` nanoseconds.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_RATE = re.compile(r"([1-9][0-9]{0,6})/(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_RATE = 1_000_000
"""Maximum rate limit, in messages a second. One shard cannot deliver more, so a higher limit has no effect."""


def parse_rate(value: Any) -> str:
    """Parses a rate limit such as ``100/s`` or ``5/m``. Raises ValueError for other values."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1]) > MOST_RATE:
        raise ValueError(f"must be 1 to {MOST_RATE:,} messages per s, m, h or d, such as 100/s, not {value!r}")
    return found[0]


def _parts(rate: str) -> tuple[int, int]:
    count, unit = rate.split("/")
    return int(count), _SECONDS[unit]


class Pace(NamedTuple):
    """A rate limit of a queue. ``full_at`` is when the token bucket will be full. Instants are microseconds."""

    step: int
    """Nanoseconds between two messages."""
    burst: int
    """Number of messages that may pass at once."""

    @classmethod
    def of(cls, rate: str, burst: int | None) -> Pace:
        """Builds a rate limit. If ``burst`` is None, uses the number of messages per second, but at least 1."""
        count, time = _parts(rate)
        return cls(-(-time * 10**9 // count), burst or max(1, count // time))

    @property
    def holds(self) -> float:
        """Seconds that an empty bucket takes to become full."""
        return self.burst * self.step / 1e9

    def burst_for(self, seconds: int) -> int:
        """Returns how many messages the rate limit allows in this number of seconds, rounded up."""
        return -(-seconds * 10**9 // self.step)

    def left(self, full_at: int, now: int) -> int:
        """Returns the number of messages that may pass at ``now``."""
        return max(0, self.burst * self.step - 1_000 * max(0, full_at - now)) // self.step

    def taking(self, count: int, full_at: int, now: int) -> int:
        """Takes the tokens of ``count`` messages. Returns the instant (microseconds) when the bucket is full."""
        return max(full_at, now) - (-count * self.step // 1_000)  # rounded up: never faster

    def next_at(self, full_at: int, now: int) -> int:
        """Returns when the next message may pass, in microseconds."""
        return max(now, full_at - (self.burst - 1) * self.step // 1_000)

    def bounded(self, full_at: int, now: int) -> int:
        """Returns ``full_at``, but no later than the instant when a bucket that is empty now will be full."""
        return min(full_at, now - (-self.burst * self.step // 1_000))


def burst_problem(rate: str | None, burst: int | None) -> str | None:
    """Returns why the burst is invalid; None if it is valid."""
    if burst is None:
        return None
    if rate is None:
        return "needs rate_limit"
    count, time = _parts(rate)
    most = count * 86_400 // time
    return None if burst <= most else f"must be at most the messages of a day at {rate}, {most:,}"
