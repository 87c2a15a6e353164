"""The four profiles: defaults, ranges and behaviour (PRF-1, PRF-2). Durations are seconds, sizes bytes."""

from __future__ import annotations

from typing import Literal

import attrs

from lakequeue.errors import InvalidAttributeValue

HOUR = 3_600
DAY = 24 * HOUR


@attrs.frozen
class Limits:
    """Default value, minimum and maximum of an attribute."""

    default: float | None
    low: float
    high: float | None

    def contain(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)

    @property
    def described(self) -> str:
        """The range in words: ``0 to 43,200`` or ``1 or more``."""
        return f"{self.low:,} or more" if self.high is None else f"{self.low:,} to {self.high:,}"

    def union(self, other: Limits) -> Limits:
        """Returns the smallest range that contains ``self`` and ``other``, with the default value of ``self``."""
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Limits(self.default, min(self.low, other.low), high)


@attrs.frozen(kw_only=True)
class Profile:
    """Defaults, ranges and behaviour of the queues of a profile. Fields with ``_fifo`` apply to FIFO queues."""

    name: str
    visibility_timeout: Limits
    message_retention_period: Limits
    delay: Limits
    receive_wait_time: Limits
    maximum_message_size: Limits
    max_inflight_messages: Limits
    max_inflight_messages_fifo: Limits
    max_delayed_messages: Limits = Limits(None, 1, None)
    max_stored_messages: Limits = Limits(None, 1, None)
    group_in_flight_limit: Limits = Limits(None, 1, 120_000)
    rewind_range: Limits = Limits(0, 0, 15 * DAY)
    fractional_seconds: bool = False
    fractional_wait: bool = False
    max_batch: int | None
    batch_bytes: int | None
    name_rule: Literal["sqs", "cmq"] = "sqs"
    fifo_queues: bool = True
    recreate_cooldown: int = 60
    existing_name: Literal["compare", "error"] = "compare"
    inflight_limit_behavior: Literal["error", "empty"] = "error"
    inflight_limit_behavior_fifo: Literal["error", "empty"] = "empty"
    over_limit_on: Literal["short_poll", "end_of_wait"] = "short_poll"
    receipt_policy: Literal["lenient", "strict"] = "lenient"
    receipt_policy_fifo: Literal["lenient", "strict"] = "strict"
    allow_zero_visibility: bool = True
    message_id_format: Literal["uuid", "cmq"] = "uuid"
    fair_groups: bool | None = True
    """Default of ``fair_groups`` for standard queues. None if standard queues accept no group ids."""
    attributes_count_in_size: bool = True


_SQS = Profile(
    name="sqs",
    visibility_timeout=Limits(30, 0, 12 * HOUR),
    message_retention_period=Limits(4 * DAY, 60, 14 * DAY),
    delay=Limits(0, 0, 900),
    receive_wait_time=Limits(0, 0, 20),
    maximum_message_size=Limits(1_048_576, 1_024, 1_048_576),
    max_inflight_messages=Limits(120_000, 1, None),
    max_inflight_messages_fifo=Limits(120_000, 1, None),
    max_batch=10,
    batch_bytes=1_048_576,
)

_SQS_2018 = attrs.evolve(
    _SQS,
    name="sqs-2018",
    maximum_message_size=Limits(262_144, 1_024, 262_144),
    max_inflight_messages_fifo=Limits(20_000, 1, None),
    batch_bytes=262_144,
    over_limit_on="end_of_wait",
    fair_groups=None,
)

_CMQ = Profile(
    name="cmq",
    visibility_timeout=Limits(30, 1, 12 * HOUR),
    message_retention_period=Limits(4 * DAY, 60, 15 * DAY),
    delay=Limits(0, 0, HOUR),
    receive_wait_time=Limits(0.2, 0.2, 30),
    maximum_message_size=Limits(65_536, 1_024, 65_536),
    max_inflight_messages=Limits(None, 1, None),
    max_inflight_messages_fifo=Limits(None, 1, None),
    max_delayed_messages=Limits(20_000, 1, None),
    max_stored_messages=Limits(100_000_000, 1_000_000, 100_000_000),
    fractional_wait=True,
    max_batch=16,
    batch_bytes=65_536,
    name_rule="cmq",
    fifo_queues=False,
    recreate_cooldown=0,
    existing_name="error",
    receipt_policy="strict",
    allow_zero_visibility=False,
    message_id_format="cmq",
    fair_groups=False,
    attributes_count_in_size=False,
)

_LAKE = attrs.evolve(
    _SQS,
    name="lake",
    delay=Limits(0, 0, None),
    max_inflight_messages=Limits(None, 1, None),
    max_inflight_messages_fifo=Limits(None, 1, None),
    fractional_seconds=True,
    fractional_wait=True,
    max_batch=None,
    batch_bytes=None,
    recreate_cooldown=0,
)

DEFAULT_PROFILE = "lake"
PROFILES: dict[str, Profile] = {p.name: p for p in (_LAKE, _SQS, _SQS_2018, _CMQ)}


def profile(name: str | Profile) -> Profile:
    """Returns a profile by name. Raises InvalidAttributeValue for an unknown name (PRF-1)."""
    if isinstance(name, Profile):
        return name
    try:
        return PROFILES[name]
    except (KeyError, TypeError):
        hint = f"profiles are {', '.join(PROFILES)}, not {name!r}"
        raise InvalidAttributeValue("Invalid value for the parameter {}.", names=["profile"], hint=hint) from None


def widest(attribute: str) -> Limits:
    """Returns an attribute's widest range over all profiles, for queues without ``ProfileStrict`` (PRF-2)."""
    limits: Limits | None = None
    for each in PROFILES.values():
        own: Limits = getattr(each, attribute)
        limits = own if limits is None else limits.union(own)
    assert limits is not None
    return limits
