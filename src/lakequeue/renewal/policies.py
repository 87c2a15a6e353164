"""Renewal policies: arithmetic that says when to extend a receipt, and by how much.

``HeartbeatRenewal`` checks every receipt at regular ticks, and extends receipts about to end (HBN).
``ComputedRenewal`` computes for each receipt when to extend it next (HNS). Both are pure: one scheduler serves
both (PRF-5, HNS-21). Instants and durations without a unit are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import attrs

from lakequeue.errors import InvalidOptions
from lakequeue.model.clock import MICROS, Duration, duration_micros
from lakequeue.model.option_checks import duration, or_none, problems_of
from lakequeue.model.receipt_handles import LONGEST_RECEIPT

_ANY, _UP_TO_TWELVE_HOURS = duration(), duration(0, LONGEST_RECEIPT)
_LONGEST_BUFFER = 10 * MICROS
_TOO_LITTLE_LEFT = 400_000
_PAUSE = 50_000
"""Minimum microseconds between two attempts to extend a receipt."""
_PAUSE_AFTER_EXPIRY = MICROS
"""Minimum microseconds between two attempts to extend an ended receipt, whose handle may still work (RCP-8)."""


@attrs.frozen
class Hold:
    """The state of one receipt, as policies need it.

    Attributes:
        received_at: start of the receipt.
        visible_at: end of the receipt unless it is extended.
        timeout: visibility timeout of the receipt.
        attempted_at: instant of the last attempt to extend the receipt. None without an attempt.
        failed: True if the last attempt failed and may be repeated.
        exhausted: True if the receipt reaches its limit of twelve hours. No policy extends an exhausted receipt
            (HBN-22).
    """

    received_at: int
    visible_at: int
    timeout: int
    attempted_at: int | None = None
    failed: bool = False
    exhausted: bool = False

    @classmethod
    def fresh(cls, received_at: int, visible_at: int, now: int | None = None) -> Hold:
        """Builds the state of a new receipt. Its start and end are by the queue's clock.

        Args:
            now: the present by the holder's clock. None if the holder uses the queue's clock. If the receipt
                starts after ``now``, its start and end are moved earlier, so that it starts at ``now``.
        """
        ahead = 0 if now is None else max(0, received_at - now)
        return cls(received_at - ahead, visible_at - ahead, visible_at - received_at)

    @property
    def attempted(self) -> int:
        """Instant of the last attempt to extend the receipt. Without an attempt, the start of the receipt."""
        return self.received_at if self.attempted_at is None else self.attempted_at

    def is_over(self, now: int) -> bool:
        """Returns True if the receipt has ended. A receipt with a timeout of 0 never ends."""
        return self.timeout > 0 and self.visible_at <= now

    def extended(self, now: int, timeout: int) -> Hold:
        """Returns the state after an extension to ``timeout`` from now."""
        exhausted = self.received_at + LONGEST_RECEIPT - (now + timeout) < MICROS
        return attrs.evolve(self, visible_at=now + timeout, attempted_at=now, failed=False, exhausted=exhausted)

    def refused(self, now: int) -> Hold:
        """Returns the state after an attempt that failed."""
        return attrs.evolve(self, attempted_at=now, failed=True)


class Renewal(Protocol):
    """A renewal policy, for consumers and ``Lease.keep_alive``. Any object with these members is a policy.

    A policy is arithmetic: it reads no clock and extends nothing. Instants are microseconds since the epoch, by
    the queue's clock. Instants and durations without a unit are whole microseconds.
    """

    @property
    def receive_timeout(self) -> Duration | None:
        """The visibility timeout for every receive; None for the queue's timeout (PRF-6)."""
        ...

    @property
    def failed_visible_at_once(self) -> bool:
        """Default of the consumer's ``retry_failed_at_once``."""
        ...

    def next_check(self, hold: Hold, since: int) -> int | None:
        """Returns when to extend a receipt next, or None if never.

        Args:
            hold: the receipt.
            since: when the scheduler began to hold receipts. Regular ticks count from this instant.
        """
        ...

    def extension(self, hold: Hold, now: int) -> int:
        """Returns the new timeout of a receipt. Returns 0 if the receipt has reached twelve hours."""
        ...


@attrs.frozen
class NoRenewal:
    """Extends nothing: a handler has only the queue's visibility timeout (HBN-16)."""

    receive_timeout: ClassVar[None] = None
    failed_visible_at_once: ClassVar[bool] = False

    def next_check(self, hold: Hold, since: int) -> int | None:
        return None

    def extension(self, hold: Hold, now: int) -> int:
        return 0


@attrs.frozen
class HeartbeatRenewal:
    """Checks every receipt at each heartbeat, and extends receipts about to end (HBN-4 to HBN-8).

    While the handler runs, each heartbeat tries a failed renewal again. These attempts continue after the timeout
    has ended. The handle works until another consumer receives the message (RCP-8).

    Args:
        visibility_timeout: timeout of every receive and of each extension. Replaces the queue's timeout.
        extension_threshold: remaining time of a receipt at which it is extended.
        heartbeat_interval: time between two checks. 0 or less switches extension off (PRF-9).
        disable_extension: True to switch extension off. Preferred over an interval of 0 (HBN-16).
        strict_options: True to refuse intervals of 0 or less. True also checks the options if nothing is extended.
        initial: timeout of every receive, if it differs from the timeout of extensions. ``HeartbeatRenewal(180,
            extension_threshold=60, initial=120)`` receives for two minutes. After one minute, the policy extends
            the receipt to three minutes (VIS-8).

    Raises:
        InvalidOptions: an option is out of range. Names all such options (HBN-17).
    """

    visibility_timeout: Duration = 30
    extension_threshold: Duration = 5
    heartbeat_interval: Duration = 1
    disable_extension: bool = False
    strict_options: bool = False
    initial: Duration | None = None

    failed_visible_at_once: ClassVar[bool] = False  # HBN-3

    def __attrs_post_init__(self) -> None:
        interval = self.heartbeat_interval
        off = self.disable_extension or (_ANY(interval) is None and duration_micros(interval) <= 0)
        checked = self.strict_options or not off
        problems = problems_of(
            self,
            visibility_timeout=_UP_TO_TWELVE_HOURS,
            initial=or_none(_UP_TO_TWELVE_HOURS),
            heartbeat_interval=duration(1) if self.strict_options else _ANY,
            extension_threshold=duration(1) if checked else _ANY,
        )
        if checked:
            for name, limit in (
                ("extension_threshold", "visibility_timeout"),
                ("extension_threshold", "initial"),
                ("heartbeat_interval", "extension_threshold"),
            ):
                problems += _not_below(self, name, limit)
        if problems:
            raise InvalidOptions(problems)

    @property
    def receive_timeout(self) -> Duration | None:
        return self.visibility_timeout if self.initial is None else self.initial

    def next_check(self, hold: Hold, since: int) -> int | None:
        interval = duration_micros(self.heartbeat_interval)
        if self.disable_extension or interval <= 0 or hold.exhausted:
            return None
        due = max(hold.visible_at - duration_micros(self.extension_threshold), hold.attempted + 1)
        return since - (since - due) // interval * interval  # the first tick at or after it

    def extension(self, hold: Hold, now: int) -> int:
        return _within_twelve_hours(hold, now, duration_micros(self.visibility_timeout))


@attrs.frozen
class ComputedRenewal:
    """Extends each receipt late in its timeout (HNS-2 to HNS-5). The new timeout is the old timeout plus the time
    that was left.

    A failed renewal is tried again in the time that is left. After the timeout has ended, the policy tries again
    every second. The handle works until another consumer receives the message (RCP-8).

    Args:
        message_visibility_timeout: timeout of every receive; None for the queue's timeout (HNS-10, HNS-11).
        max_auto_renewal_duration: time after the receive in which receipts are extended. 0: never (HNS-8, HNS-9).

    Raises:
        InvalidOptions: an option is out of range. Names all such options.
    """

    message_visibility_timeout: Duration | None = None
    max_auto_renewal_duration: Duration = 300

    failed_visible_at_once: ClassVar[bool] = True  # HNS-14

    def __attrs_post_init__(self) -> None:
        problems = problems_of(
            self,
            message_visibility_timeout=or_none(_UP_TO_TWELVE_HOURS),
            max_auto_renewal_duration=_UP_TO_TWELVE_HOURS,
        )
        if problems:
            raise InvalidOptions(problems)

    @property
    def receive_timeout(self) -> Duration | None:
        return self.message_visibility_timeout

    def next_check(self, hold: Hold, since: int) -> int | None:
        longest = duration_micros(self.max_auto_renewal_duration)
        if hold.timeout == 0 or hold.exhausted:
            return None
        wait = renew_after(hold.visible_at - hold.attempted)
        if hold.attempted_at is not None:  # HNS-13
            wait = max(wait, _PAUSE if hold.attempted < hold.visible_at else _PAUSE_AFTER_EXPIRY)
        due = hold.attempted + wait
        return due if due - hold.received_at < longest else None  # HNS-16

    def extension(self, hold: Hold, now: int) -> int:
        return _within_twelve_hours(hold, now, renewed_timeout(hold.visible_at - now, hold.timeout))


def renew_after(remaining: int) -> int:
    """Returns how long to wait before an extension, for a receipt with ``remaining`` time left (HNS-2, HNS-4)."""
    if remaining < _TOO_LITTLE_LEFT:
        return 0
    return remaining - min(remaining // 2, _LONGEST_BUFFER)


def renewed_timeout(remaining: int, timeout: int) -> int:
    """Returns the timeout of an extension in whole seconds. A late extension is longer (HNS-5, HNS-6)."""
    return max((abs(remaining) + timeout) // MICROS * MICROS, timeout)


def _within_twelve_hours(hold: Hold, now: int, timeout: int) -> int:
    """Limits ``timeout`` to twelve hours after the receive (HBN-22, HNS-18), rounded down to whole seconds."""
    left = hold.received_at + LONGEST_RECEIPT - now
    return timeout if timeout <= left else max(0, left // MICROS * MICROS)


def _not_below(options: object, name: str, other: str) -> Sequence[str]:
    value, limit = getattr(options, name), getattr(options, other)
    if _ANY(value) or _ANY(limit) or duration_micros(value) < duration_micros(limit):
        return ()
    return (f"{name}: must be less than {other} ({limit}), not {value}",)
