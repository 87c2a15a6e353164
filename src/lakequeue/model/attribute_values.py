"""Parses and formats values of queue attributes. Also declares the types of the attributes."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, TypedDict

from lakequeue.model.clock import Duration, duration_micros, seconds
from lakequeue.model.deliveries import parse_table
from lakequeue.model.rates import parse_rate
from lakequeue.model.redrive_policies import (
    RedriveAllowPolicy,
    RedrivePolicy,
    redrive_allow_policy,
    redrive_policy,
)

Seconds = int | float

MAX_TEXT_BYTES = 8_192
"""Maximum length of a text attribute in bytes."""
MAX_STATEMENTS = 20
"""Maximum number of statements in a policy."""

_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")


def parse_micros(value: Any) -> int:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"not a number: {value!r}")
        value = Decimal(value)
    return duration_micros(value)


def parse_whole(value: Any) -> int:
    if isinstance(value, (str, numbers.Real, Decimal)) and not isinstance(value, bool):
        number = seconds(parse_micros(value))
        if isinstance(number, int):
            return number
    raise ValueError(f"not a whole number: {value!r}")


def parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError(f"neither true nor false: {value!r}")


def parse_policy(value: Any) -> str | None:
    if value is None or value == "":
        return None
    policy = _loaded(value)
    if not isinstance(policy, dict):
        raise ValueError("not an object")
    statements = policy.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    if not all(isinstance(one, dict) for one in statements):
        raise ValueError("statements are objects")
    if len(statements) > MAX_STATEMENTS:
        raise ValueError(f"more than {MAX_STATEMENTS} statements")
    str(value).encode()  # UnicodeEncodeError, a ValueError: half a surrogate pair cannot be stored
    return str(value)


def _loaded(value: str) -> Any:
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_reasons(value: Any) -> str | None:
    wrong = 'must map message groups to reasons, both as non-empty texts, such as {"acme": "it is down"}'
    try:
        reasons = _loaded(value) if isinstance(value, str) and value else value
        texts = isinstance(reasons, dict) and [*reasons, *reasons.values()]
        fit = texts and all(isinstance(text, str) and text.encode() for text in texts)
    except ValueError:
        raise ValueError(wrong) from None
    if not reasons:
        return None
    if not fit:
        raise ValueError(wrong)
    return json.dumps(reasons, sort_keys=True)


def parse_choice(value: Any, choices: Mapping[str, str]) -> str:
    for choice, wire in choices.items():
        if value in (choice, wire):
            return choice
    raise ValueError(f"none of {[*choices]}: {value!r}")


def _wire(policy: RedrivePolicy | RedriveAllowPolicy | None) -> str | None:
    return None if policy is None else policy.wire()


PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "seconds": lambda value: seconds(parse_micros(value)),
    "count": parse_whole,
    "cap": lambda value: None if value in (None, "", "unlimited") else parse_whole(value),
    "flag": parse_flag,
    "mark": lambda value: parse_flag(value) or None,
    "text": lambda value: str(value).encode().decode() if value else None,  # ValueError for half a surrogate pair
    "redrive": lambda value: _wire(redrive_policy(value)),
    "redrive allow": lambda value: _wire(redrive_allow_policy(value)),
    "policy": parse_policy,
    "reasons": parse_reasons,
    "table": lambda value: parse_table(value) if value else None,
    "rate": lambda value: parse_rate(value) if value else None,
}
"""Parsers of attribute values, by kind of attribute. They raise TypeError or ValueError for other values."""


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0")
    return str(value)


class ChangeableAttributes(TypedDict, total=False):
    """Keyword arguments of ``Queue.set_attributes``."""

    visibility_timeout: Duration
    message_retention_period: Duration
    delay: Duration
    receive_wait_time: Duration
    maximum_message_size: int
    content_based_deduplication: bool
    deduplication_scope: Literal["queue", "message_group"]
    fifo_throughput_limit: Literal["per_queue", "per_message_group_id"]
    rewind_range: Duration | bool
    max_inflight_messages: int | None
    max_delayed_messages: int | None
    max_stored_messages: int | None
    fair_groups: bool
    group_in_flight_limit: int | None
    dead_letter_queue: str
    max_receive_count: int
    redrive_policy: RedrivePolicy | Mapping[str, Any] | str | None
    redrive_allow_policy: RedriveAllowPolicy | Mapping[str, Any] | str | None
    policy: str | None
    sqs_managed_sse_enabled: bool
    kms_master_key_id: str | None
    kms_data_key_reuse_period_seconds: str | None
    allow_zero_visibility: bool
    profile_strict: bool
    shards: int
    priorities_strict: bool
    deduplication_interval: Duration | None
    deduplication_until_deleted: bool
    paused: str | None
    paused_groups: Mapping[str, str] | str | None
    rate_limit: str | None
    rate_burst: int | None
    table: str | None
    VisibilityTimeout: Any
    MessageRetentionPeriod: Any
    DelaySeconds: Any
    ReceiveMessageWaitTimeSeconds: Any
    MaximumMessageSize: Any
    ContentBasedDeduplication: Any
    DeduplicationScope: Any
    FifoThroughputLimit: Any
    RewindSeconds: Any
    MaxInflightMessages: Any
    MaxDelayedMessages: Any
    MaxStoredMessages: Any
    FairGroups: Any
    GroupInFlightLimit: Any
    RedrivePolicy: Any
    RedriveAllowPolicy: Any
    Policy: Any
    SqsManagedSseEnabled: Any
    KmsMasterKeyId: Any
    KmsDataKeyReusePeriodSeconds: Any
    AllowZeroVisibility: Any
    ProfileStrict: Any
    Shards: Any
    PrioritiesStrict: Any
    DeduplicationInterval: Any
    DeduplicationUntilDeleted: Any
    Paused: Any
    PausedGroups: Any
    RateLimit: Any
    RateBurst: Any
    Table: Any
    PollingWaitSeconds: Any
    MaxMsgSize: Any
    msgRetentionSeconds: Any


class NewQueueAttributes(ChangeableAttributes, total=False):
    """Keyword arguments of ``LakeQueue.create_queue``. The arguments declared here cannot be changed later."""

    profile: Literal["lake", "sqs", "sqs-2018", "cmq"]
    priorities: int
    Profile: Any
    FifoQueue: Any
    Priorities: Any
