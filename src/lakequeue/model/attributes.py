"""Queue attributes: parsed, checked against the queue's profile, and written to the wire.

A value counts as given only if the caller named it; the profile supplies the rest (PRF-2). The check functions
at the end judge arguments of single calls against the attributes of the queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, NamedTuple

import attrs

from lakequeue.errors import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    MissingParameter,
    coded_for,
)
from lakequeue.model.arguments import check_text
from lakequeue.model.clock import MICROS, duration_micros
from lakequeue.model.profiles import DEFAULT_PROFILE, HOUR, Limits, Profile, profile, widest
from lakequeue.model.redrive_policies import (
    RedriveAllowPolicy,
    RedrivePolicy,
    redrive_allow_policy,
    redrive_policy,
)

Seconds = int | float

READ_ONLY = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
"""Wire names that can be read but never set (QUE-26)."""

_SHARDS = Limits(1, 1, 1_024)
_IDENTIFIER = re.compile(r"[!-~]{1,128}")
_NOT_FOR_THIS_KIND = "The request include parameter that is not valid for this queue type."
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class _Attribute(NamedTuple):
    field: str
    wire: str
    kind: Literal["seconds", "count", "cap", "flag", "text", "choice", "redrive", "redrive allow", "policy"]
    cmq: str = ""  # the name in CMQ's own interface, understood on cmq queues only
    choices: Mapping[str, str] = {}  # what may be chosen, and how that is written on the wire


_SCOPES = {"queue": "queue", "message_group": "messageGroup"}
_THROUGHPUT_LIMITS = {"per_queue": "perQueue", "per_message_group_id": "perMessageGroupId"}


_ATTRIBUTES = (
    _Attribute("profile", "Profile", "text"),
    _Attribute("fifo", "FifoQueue", "flag"),
    _Attribute("visibility_timeout", "VisibilityTimeout", "seconds"),
    _Attribute("message_retention_period", "MessageRetentionPeriod", "seconds", "msgRetentionSeconds"),
    _Attribute("delay", "DelaySeconds", "seconds"),
    _Attribute("receive_wait_time", "ReceiveMessageWaitTimeSeconds", "seconds", "PollingWaitSeconds"),
    _Attribute("maximum_message_size", "MaximumMessageSize", "count", "MaxMsgSize"),
    _Attribute("content_based_deduplication", "ContentBasedDeduplication", "flag"),
    _Attribute("deduplication_scope", "DeduplicationScope", "choice", choices=_SCOPES),
    _Attribute("created_deduplication_scope", "CreatedDeduplicationScope", "choice", choices=_SCOPES),
    _Attribute("fifo_throughput_limit", "FifoThroughputLimit", "choice", choices=_THROUGHPUT_LIMITS),
    _Attribute("rewind_range", "RewindSeconds", "seconds"),
    _Attribute("max_inflight_messages", "MaxInflightMessages", "cap"),
    _Attribute("max_delayed_messages", "MaxDelayedMessages", "cap"),
    _Attribute("max_stored_messages", "MaxStoredMessages", "cap"),
    _Attribute("redrive_policy", "RedrivePolicy", "redrive"),
    _Attribute("redrive_allow_policy", "RedriveAllowPolicy", "redrive allow"),
    _Attribute("policy", "Policy", "policy"),
    _Attribute("allow_zero_visibility", "AllowZeroVisibility", "flag"),
    _Attribute("profile_strict", "ProfileStrict", "flag"),
    _Attribute("shards", "Shards", "count"),
)
HIDDEN = frozenset({"CreatedDeduplicationScope"})
"""Wire names of attributes that the tables keep, but that cannot be set and are not shown."""

_BY_FIELD = {a.field: a for a in _ATTRIBUTES}
_BY_WIRE = {a.wire: a for a in _ATTRIBUTES} | {a.cmq: a for a in _ATTRIBUTES if a.cmq}
_SETTABLE = tuple(a for a in _ATTRIBUTES if a.wire not in HIDDEN)
_BY_NAME = {name: a for a in _SETTABLE for name in (a.field, a.wire)}
_BY_CMQ_NAME = _BY_NAME | {a.cmq: a for a in _SETTABLE if a.cmq}


def settable_names() -> list[str]:
    """Every name of an attribute that a new queue may be given."""
    return list(_BY_CMQ_NAME)


ATTRIBUTE_NAMES = frozenset(a.wire for a in _SETTABLE)
"""Wire names of everything that a queue may have set."""
_PER_SHARD = ("max_inflight_messages", "max_delayed_messages", "max_stored_messages")
_FIXED = ("profile", "shards")


@attrs.frozen(kw_only=True)
class QueueAttributes:
    """All settable attributes of one queue; durations in seconds, None in a cap means unlimited.

    Build one with `create`, which checks, or `from_wire`, which trusts what the tables hold. The scope of
    deduplication that a FIFO queue was created with holds for good; a later one is only shown (DDP-15).
    """

    profile: str
    fifo: bool
    visibility_timeout: Seconds
    message_retention_period: Seconds
    delay: Seconds
    receive_wait_time: Seconds
    maximum_message_size: int
    content_based_deduplication: bool | None = None
    deduplication_scope: Literal["queue", "message_group"] | None = None
    created_deduplication_scope: Literal["queue", "message_group"] | None = None
    fifo_throughput_limit: Literal["per_queue", "per_message_group_id"] | None = None
    rewind_range: Seconds = 0
    max_inflight_messages: int | None = None
    max_delayed_messages: int | None = None
    max_stored_messages: int | None = None
    redrive_policy: str | None = None  # JSON, as on the wire
    redrive_allow_policy: str | None = None  # likewise
    policy: str | None = None  # likewise; kept for the tools that manage it, it grants nothing here
    allow_zero_visibility: bool = True
    profile_strict: bool = True
    shards: int = 1

    @classmethod
    def create(
        cls, profile_name: str = DEFAULT_PROFILE, fifo: bool | str = False, **given: Any
    ) -> QueueAttributes:
        """Attributes of a new queue: what is given, else the profile's defaults (PRF-2).

        Names may be snake_case or wire names. None in a cap, or the text "unlimited", lifts the cap.

        Raises:
            InvalidAttributeName: there is no such attribute, or not on this kind of queue.
            InvalidAttributeValue: a value is malformed or outside its range.
            InvalidParameterValue: a redrive policy is malformed (DLQ-2, DLQ-6).
        """
        given = {"profile": profile_name, "fifo": fifo} | given
        if "Profile" in given:
            given["profile"] = given.pop("Profile")
        rules = profile(given["profile"])
        with coded_for(rules.name):
            fields = _fields(given, rules)
            _check_kind(fields, _parsed({"fifo": fields["fifo"]})["fifo"])
            values = _parsed(fields)
            settings = _with_whole_range(_defaults(rules, values) | values)
            checked = cls(**settings, created_deduplication_scope=settings["deduplication_scope"])
            checked._check(values)
        return checked

    def with_changes(self, **given: Any) -> QueueAttributes:
        """These attributes after an update; errors as in `create`.

        Profile, shards and the kind of queue are fixed for good (PRF-1, QUE-2).
        """
        with coded_for(self.profile):
            fields = _fields(given, self.profile_rules)
            for fixed in _FIXED:
                if fixed in fields:
                    name = _BY_FIELD[fixed].wire
                    raise InvalidAttributeName(f"Attribute {name} can only be set when a queue is created.")
            if "fifo" in fields and not self.fifo:
                raise InvalidAttributeName("Unknown Attribute FifoQueue.")
            _check_kind(fields, self.fifo)
            values = _parsed(fields)
            if not values.pop("fifo", True):
                raise InvalidAttributeValue("Modifying queue type is not supported.")
            changed = type(self)(**_with_whole_range(attrs.asdict(self) | values))
            changed._check(values)
        return changed

    def differences(self, given: Mapping[str, Any]) -> list[str]:
        """Wire names of the given attributes that this queue has otherwise (QUE-15); errors as in `create`."""
        asked = _fields(given, self.profile_rules)
        kind: dict[str, Any] = {"profile": self.profile, "fifo": self.fifo}
        other = self.create(**(kind | asked))
        return [_BY_FIELD[f].wire for f in asked if getattr(self, f) != getattr(other, f)]

    def to_wire(self) -> dict[str, str]:
        """Every set attribute by its wire name, as a string (QUE-23)."""
        wire = {}
        for attribute in _ATTRIBUTES:
            value = getattr(self, attribute.field)
            if value is None or (attribute.field == "fifo" and not value):
                continue
            wire[self._wire_name(attribute)] = attribute.choices.get(value) or _text(value)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, str]) -> QueueAttributes:
        """The inverse of `to_wire`, without judging the values."""
        values = {}
        for name, text in wire.items():
            attribute = _BY_WIRE[name]
            values[attribute.field] = _parse(attribute, text)
        return cls(**({"fifo": False} | values))

    @property
    def profile_rules(self) -> Profile:
        return profile(self.profile)

    @property
    def strict_receipts(self) -> bool:
        """Whether handles stop working when their visibility timeout ends (RCP-7, RCP-8)."""
        rules = self.profile_rules
        return (rules.receipt_policy_fifo if self.fifo else rules.receipt_policy) == "strict"

    @property
    def dedup_by_group(self) -> bool:
        """Whether a deduplication id counts within its message group only (DDP-14), by the scope of creation."""
        return self.created_deduplication_scope == "message_group"

    @cached_property
    def redrive(self) -> RedrivePolicy | None:
        """Where messages go that were received too often (DLQ-2); the queue by its ARN."""
        return redrive_policy(self.redrive_policy)

    @cached_property
    def redrive_allow(self) -> RedriveAllowPolicy:
        """Which queues may move messages here; all unless it is said (DLQ-6)."""
        return redrive_allow_policy(self.redrive_allow_policy) or RedriveAllowPolicy("allowAll")

    @property
    def inflight_limit_behavior(self) -> Literal["error", "empty"]:
        """What a claim at the in-flight cap answers (INF-3, INF-4)."""
        rules = self.profile_rules
        return rules.inflight_limit_behavior_fifo if self.fifo else rules.inflight_limit_behavior

    @property
    def inflight_limit(self) -> int | None:
        """Messages in flight that one shard may hold: the cap divided among the shards, rounded down."""
        return None if self.max_inflight_messages is None else self.max_inflight_messages // self.shards

    @property
    def delayed_limit(self) -> int | None:
        """Delayed messages in one shard from which on new ones are held (INF-8), divided likewise."""
        return None if self.max_delayed_messages is None else self.max_delayed_messages // self.shards

    @property
    def stored_limit(self) -> int | None:
        """Undeleted messages that one shard may hold (QUE-21), divided likewise."""
        return None if self.max_stored_messages is None else self.max_stored_messages // self.shards

    @property
    def visibility_timeout_micros(self) -> int:
        return duration_micros(self.visibility_timeout)

    @property
    def retention_micros(self) -> int:
        return duration_micros(self.message_retention_period)

    @property
    def rewind_micros(self) -> int:
        return duration_micros(self.rewind_range)

    @property
    def delay_micros(self) -> int:
        return duration_micros(self.delay)

    @property
    def wait_micros(self) -> int:
        return duration_micros(self.receive_wait_time)

    def limits(self, field: str) -> Limits:
        """The range that an attribute may have on this queue, its other attributes considered."""
        if field == "shards":
            return _SHARDS
        if field == "max_inflight_messages" and self.fifo:
            field = "max_inflight_messages_fifo"
        own: Limits = getattr(self.profile_rules, field)
        limits = own if self.profile_strict else widest(field)
        retention = self.message_retention_period
        if field == "delay" and limits.high is None:
            return attrs.evolve(limits, high=retention if self.profile_strict else max(retention, HOUR))
        if field == "rewind_range":
            return attrs.evolve(limits, high=min(limits.high or retention, retention))
        return limits

    def fractions_allowed(self, field: str) -> bool:
        """Whether a duration may have a fraction of a second (`lake`, and waits on `cmq`)."""
        rules = self.profile_rules
        return (
            not self.profile_strict
            or rules.fractional_seconds
            or (field == "receive_wait_time" and rules.fractional_wait)
        )

    def _check(self, given: Mapping[str, object]) -> None:
        """Judges all ranges, those of the given attributes first: one change can push another out of range."""
        for attribute in sorted(_ATTRIBUTES, key=lambda a: a.field not in given):
            value = getattr(self, attribute.field)
            if attribute.kind not in ("seconds", "count", "cap") or value is None:
                continue
            fits = self.limits(attribute.field).contain(value)
            if attribute.kind == "seconds" and not self.fractions_allowed(attribute.field):
                fits = fits and value == int(value)
            if attribute.field in _PER_SHARD:
                fits = fits and value >= self.shards
            if not fits:
                beyond = attribute.field == "rewind_range" and value > self.message_retention_period
                raise _invalid(attribute, 10700 if beyond else None)
        if self.fifo:
            self._check_fifo()

    def _check_fifo(self) -> None:
        """What the attributes of a FIFO queue ask of each other (DDP-14); a group never spans shards."""
        if not self.profile_rules.fifo_queues:
            raise _invalid(_BY_FIELD["fifo"])
        if self.fifo_throughput_limit == "per_message_group_id" and self.deduplication_scope != "message_group":
            raise _invalid(_BY_FIELD["fifo_throughput_limit"])
        if self.shards > 1 and not self.dedup_by_group:
            raise _invalid(_BY_FIELD["shards"])

    def _wire_name(self, attribute: _Attribute) -> str:
        if attribute.field == "receive_wait_time" and self.profile == "cmq":
            return attribute.cmq
        return attribute.wire


def _attribute(name: str, rules: Profile) -> _Attribute:
    names = _BY_CMQ_NAME if rules.name == "cmq" else _BY_NAME
    if name not in names:
        raise InvalidAttributeName(f"Unknown Attribute {name}.")
    return names[name]


def _invalid(attribute: _Attribute, cmq_code: int | None = None) -> InvalidAttributeValue:
    return InvalidAttributeValue(f"Invalid value for the parameter {attribute.wire}.", cmq_code=cmq_code)


def _fields(given: Mapping[str, Any], rules: Profile) -> dict[str, Any]:
    """Given values by field name, as they are."""
    return {_attribute(name, rules).field: value for name, value in given.items()}


def _parsed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values in their Python types; ranges are judged later."""
    values = {}
    for field, value in fields.items():
        try:
            values[field] = _parse(_BY_FIELD[field], value)
        except (TypeError, ValueError):
            raise _invalid(_BY_FIELD[field]) from None
    return values


def _with_whole_range(settings: dict[str, Any]) -> dict[str, Any]:
    """Rewind that is switched on without a range reaches as far back as messages are kept (RWD-2)."""
    if settings["rewind_range"] is True:
        settings["rewind_range"] = settings["message_retention_period"]
    return settings


def _parse(attribute: _Attribute, value: Any) -> Any:
    match attribute.kind:
        case "seconds" if value is True and attribute.field == "rewind_range":
            return True
        case "seconds":
            return _seconds(_micros(value))
        case "count":
            return _whole(value)
        case "cap":
            return None if value is None or value == "unlimited" else _whole(value)
        case "flag":
            return _flag(value)
        case "text":
            return str(value) if value else None
        case "redrive":
            policy = redrive_policy(value)
            return policy and policy.wire()
        case "redrive allow":
            allowed = redrive_allow_policy(value)
            return allowed and allowed.wire()
        case "policy":
            return _policy(value)
        case "choice":
            return _chosen(value, attribute.choices)


def _check_kind(fields: Mapping[str, Any], fifo: bool) -> None:
    """Attributes of FIFO queues are refused on others, whatever their value (QUE-9, DDP-14)."""
    if fifo:
        return
    if "content_based_deduplication" in fields:
        raise InvalidAttributeName("Unknown Attribute ContentBasedDeduplication.")
    for field in ("deduplication_scope", "fifo_throughput_limit"):
        if field in fields:
            wire = _BY_FIELD[field].wire
            raise InvalidAttributeName(f"You can specify the {wire} only when FifoQueue is set to true.")


def _defaults(rules: Profile, given: Mapping[str, Any]) -> dict[str, Any]:
    fifo, strict = given["fifo"], given.get("profile_strict", True)
    inflight = rules.max_inflight_messages_fifo if fifo else rules.max_inflight_messages
    return {
        "visibility_timeout": rules.visibility_timeout.default,
        "message_retention_period": rules.message_retention_period.default,
        "delay": rules.delay.default,
        "receive_wait_time": rules.receive_wait_time.default,
        "maximum_message_size": rules.maximum_message_size.default,
        "content_based_deduplication": False if fifo else None,
        "deduplication_scope": "queue" if fifo else None,
        "fifo_throughput_limit": "per_queue" if fifo else None,
        "rewind_range": rules.rewind_range.default,
        "max_inflight_messages": inflight.default,
        "max_delayed_messages": rules.max_delayed_messages.default,
        "max_stored_messages": rules.max_stored_messages.default,
        "allow_zero_visibility": rules.allow_zero_visibility or not strict,
    }


def _micros(value: Any) -> int:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"not a number: {value!r}")
        value = Decimal(value)
    return duration_micros(value)


def _seconds(micros: int) -> Seconds:
    return micros / MICROS if micros % MICROS else micros // MICROS


def _whole(value: Any) -> int:
    number = None if isinstance(value, timedelta) else _seconds(_micros(value))
    if isinstance(number, int):
        return number
    raise ValueError(f"not a whole number: {value!r}")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError(f"neither true nor false: {value!r}")


def _policy(value: Any) -> str | None:
    if value is None or value == "":
        return None
    try:
        policy = json.loads(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(policy, dict):
        raise ValueError("not an object")
    statements = policy.get("Statement", [])
    if not all(isinstance(one, dict) for one in (statements if isinstance(statements, list) else [statements])):
        raise ValueError("statements are objects")
    str(value).encode()  # UnicodeEncodeError, a ValueError: half a surrogate pair cannot be stored
    return str(value)


def _chosen(value: Any, choices: Mapping[str, str]) -> str:
    for choice, wire in choices.items():
        if value in (choice, wire):
            return choice
    raise ValueError(f"none of {[*choices]}: {value!r}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0")
    return str(value)


def check_visibility_timeout(attributes: QueueAttributes, value: Any) -> int:
    """Microseconds of the visibility timeout given to a receive or a change (RCV-13, VIS-10, PRF-2)."""
    with coded_for(attributes.profile):
        if value is None:
            raise MissingParameter("The request must contain the parameter VisibilityTimeout.")
        limits = attributes.limits("visibility_timeout")
        low = "0" if attributes.allow_zero_visibility else f"{limits.low}" if limits.low else "a fraction"
        reason = f"Must be >= {low} and <= {limits.high}, if provided."
        micros = _argument(attributes, "visibility_timeout", value, "VisibilityTimeout", reason, zero=True)
        if micros == 0 and not attributes.allow_zero_visibility:
            raise _refused(value, "VisibilityTimeout", reason)
    return micros


def check_wait(attributes: QueueAttributes, value: Any) -> int:
    """Microseconds that a receive may wait; None means the queue's own wait time (LPL-2, LPL-3)."""
    if value is None:
        return attributes.wait_micros
    limits = attributes.limits("receive_wait_time")
    reason = f"Must be >= {limits.low} and <= {limits.high}, if provided."
    with coded_for(attributes.profile):
        return _argument(attributes, "receive_wait_time", value, "WaitTimeSeconds", reason)


def check_delay(attributes: QueueAttributes, value: Any) -> int | None:
    """Microseconds by which one message is delayed; None means the queue's own delay (DLY-3, DLY-4, DLY-9).

    On a FIFO queue only None and 0 are accepted, and both mean the delay that the queue has at the time: the
    result is None (SND-6, DLY-10).
    """
    if value is None:
        return None if attributes.fifo else attributes.delay_micros
    limits = attributes.limits("delay")
    reason = f"DelaySeconds must be >= {limits.low} and <= {limits.high}."
    with coded_for(attributes.profile):
        micros = _argument(attributes, "delay", value, "DelaySeconds", reason)
        if attributes.fifo and micros:
            raise _refused(value, "DelaySeconds", _NOT_FOR_THIS_KIND)
    return None if attributes.fifo else micros


def check_max_messages(attributes: QueueAttributes, value: Any = None) -> int:
    """Number of messages that a receive asks for; None means 1 (RCV-1)."""
    if value is None:
        return 1
    high = attributes.profile_rules.max_batch
    upper = "" if high is None else f" and {high}"
    reason = f"Must be between 1{upper}, if provided." if upper else "Must be at least 1, if provided."
    with coded_for(attributes.profile):
        try:
            number = _whole(value)
        except (TypeError, ValueError):
            number = 0
        if not Limits(1, 1, high).contain(number):
            raise _refused(value, "MaxNumberOfMessages", reason)
    return number


def check_attempt_id(attributes: QueueAttributes, value: Any) -> str | None:
    """The attempt id of a receive, on FIFO queues only; None means none (ATT-7)."""
    with coded_for(attributes.profile):
        if value is not None and not attributes.fifo:
            raise _refused(value, "ReceiveRequestAttemptId", _NOT_FOR_THIS_KIND)
        return check_identifier("ReceiveRequestAttemptId", value)


def check_identifier(parameter: str, value: Any) -> str | None:
    """An id that callers choose: 1 to 128 letters, digits and punctuation (SND-13, ATT-7); None means none."""
    if value is None or (isinstance(value, str) and _IDENTIFIER.fullmatch(value)):
        return value
    reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    raise _refused(value, parameter, reason)


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as they are stored: texts, keys of 1 to 128 characters, values of at most 256 (QUE-28)."""
    for key, value in tags.items():
        if not isinstance(key, str) or not 1 <= len(key) <= 128:
            raise InvalidParameterValue("Tag keys must be between 1 and 128 characters in length.")
        if not isinstance(value, str) or len(value) > 256:
            raise InvalidParameterValue("Tag values must be between 0 and 256 characters in length.")
        for text in (key, value):
            check_text("Tags", text)
    return dict(tags)


def _argument(
    attributes: QueueAttributes, field: str, value: Any, parameter: str, reason: str, zero: bool = False
) -> int:
    """Microseconds of a duration argument within the range of its attribute; `zero` lets 0 pass as well."""
    try:
        micros = _micros(value)
    except (TypeError, ValueError):
        raise _refused(value, parameter, reason) from None
    if micros % MICROS and not attributes.fractions_allowed(field):
        raise _refused(value, parameter, "Must be a whole number of seconds.")
    if not attributes.limits(field).contain(_seconds(micros)) and not (zero and micros == 0):
        raise _refused(value, parameter, reason)
    return micros


def _refused(value: Any, parameter: str, reason: str) -> InvalidParameterValue:
    shown = _text(_seconds(_micros(value))) if isinstance(value, timedelta) else value
    return InvalidParameterValue.of(shown, parameter, reason)


def selected(known: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The attributes that were asked for; InvalidAttributeName for a name that is none (QUE-23)."""
    if "All" in names:
        return dict(known)
    for name in names:
        if name not in known and name not in ATTRIBUTE_NAMES:
            raise InvalidAttributeName(f"Unknown Attribute {name}.")
    return {name: known[name] for name in names if name in known}
