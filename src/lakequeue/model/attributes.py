"""Queue attributes: parsing, checks, wire format, and defaults by profile (PRF-2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import attrs

from lakequeue.errors import InvalidAttributeName, InvalidAttributeValue, QueueClientError, coded_for, one_line
from lakequeue.model.attribute_values import MAX_TEXT_BYTES, PARSERS, Seconds, as_text, parse_choice
from lakequeue.model.clock import MICROS, duration_micros
from lakequeue.model.pauses import Pause, pauses
from lakequeue.model.profiles import DEFAULT_PROFILE, HOUR, Limits, Profile, profile, widest
from lakequeue.model.rates import MOST_RATE, Pace, burst_problem
from lakequeue.model.redrive_policies import (
    RedriveAllowPolicy,
    RedrivePolicy,
    redrive_allow_policy,
    redrive_policy,
)


class _Attribute(NamedTuple):
    """Declaration of an attribute: names, kind, default, range, and the kind of queue that has the attribute."""

    wire: str
    kind: str  # see PARSERS; a choice has its own values
    default: Any = attrs.NOTHING
    cmq: str = ""  # name in CMQ's own interface, accepted on cmq queues only
    choices: Mapping[str, str] | None = None  # wire value by allowed value
    limits: Limits | None = None  # range, unless each profile has its own
    only: str = ""  # kind of queues that have it: fifo, standard, or lake (standard queues of that profile)
    fixed: bool = False  # only set at creation
    per_shard: bool = False  # at least one for each shard
    field: str = ""

    @property
    def can_be_unset(self) -> bool:
        return self.default is None and (self.limits is not None or self.only == _LAKE)


def _of(*args: Any, **more: Any) -> Any:
    declared = _Attribute(*args, **more)
    return attrs.field(default=declared.default, metadata={_Attribute: declared})


Scope = Literal["queue", "message_group"]
_SCOPES = {"queue": "queue", "message_group": "messageGroup"}
ThroughputLimit = Literal["per_queue", "per_message_group_id"]
_THROUGHPUT_LIMITS = {"per_queue": "perQueue", "per_message_group_id": "perMessageGroupId"}
_LAKE = DEFAULT_PROFILE
HIDDEN = frozenset({"CreatedDeduplicationScope", "PausedSince", "DeliveryId"})
"""Wire names of attributes that users can neither set nor see."""

MOST_PRIORITIES = 10
FIFO_DEDUP_MICROS = 300 * MICROS
_UNIQUE = ("deduplication_interval", "deduplication_until_deleted")


@attrs.frozen(kw_only=True)
class QueueAttributes:
    """All settable attributes of a queue. Durations are seconds. A cap of None means unlimited. A FIFO queue keeps
    the deduplication scope of its creation, even if a changed scope is shown (DDP-15).
    """

    profile: str = _of("Profile", "text", fixed=True)
    fifo: bool = _of("FifoQueue", "flag")
    visibility_timeout: Seconds = _of("VisibilityTimeout", "seconds")
    message_retention_period: Seconds = _of("MessageRetentionPeriod", "seconds", cmq="msgRetentionSeconds")
    delay: Seconds = _of("DelaySeconds", "seconds")
    receive_wait_time: Seconds = _of("ReceiveMessageWaitTimeSeconds", "seconds", cmq="PollingWaitSeconds")
    maximum_message_size: int = _of("MaximumMessageSize", "count", cmq="MaxMsgSize")
    content_based_deduplication: bool | None = _of("ContentBasedDeduplication", "flag", None, only="fifo")
    deduplication_scope: Scope | None = _of("DeduplicationScope", "choice", None, choices=_SCOPES, only="fifo")
    created_deduplication_scope: Scope | None = _of("CreatedDeduplicationScope", "choice", None, choices=_SCOPES)
    fifo_throughput_limit: ThroughputLimit | None = _of(
        "FifoThroughputLimit", "choice", None, choices=_THROUGHPUT_LIMITS, only="fifo"
    )
    rewind_range: Seconds = _of("RewindSeconds", "seconds", 0)
    max_inflight_messages: int | None = _of("MaxInflightMessages", "cap", None, per_shard=True)
    max_delayed_messages: int | None = _of("MaxDelayedMessages", "cap", None, per_shard=True)
    max_stored_messages: int | None = _of("MaxStoredMessages", "cap", None, per_shard=True)
    # None on FIFO queues and where standard queues take no group ids
    fair_groups: bool | None = _of("FairGroups", "flag", None, only="standard")
    group_in_flight_limit: int | None = _of("GroupInFlightLimit", "cap", None, only="standard")
    # JSON, as on the wire; a policy is stored for tools that manage it, and grants nothing here
    redrive_policy: str | None = _of("RedrivePolicy", "redrive", None)
    redrive_allow_policy: str | None = _of("RedriveAllowPolicy", "redrive allow", None)
    policy: str | None = _of("Policy", "policy", None)
    # stored like the policy, they encrypt nothing
    sqs_managed_sse_enabled: bool | None = _of("SqsManagedSseEnabled", "mark", None)
    kms_master_key_id: str | None = _of("KmsMasterKeyId", "text", None)
    kms_data_key_reuse_period_seconds: str | None = _of("KmsDataKeyReusePeriodSeconds", "text", None)
    allow_zero_visibility: bool = _of("AllowZeroVisibility", "flag", True)
    profile_strict: bool = _of("ProfileStrict", "flag", True)
    shards: int = _of("Shards", "count", 1, limits=Limits(1, 1, 1_024))
    priorities: int | None = _of(
        "Priorities", "count", None, limits=Limits(1, 1, MOST_PRIORITIES), only=_LAKE, fixed=True
    )
    """Number of priorities, each with its own shards (JOB-5). None without priorities."""
    priorities_strict: bool | None = _of("PrioritiesStrict", "mark", None, only=_LAKE)
    """True if every receive begins with the highest priority."""
    deduplication_interval: Seconds | None = _of(
        "DeduplicationInterval", "seconds", None, limits=Limits(1, 1, 24 * HOUR), only=_LAKE
    )
    """Seconds for which a standard queue refuses duplicates by deduplication id (JOB-6). None if not set."""
    deduplication_until_deleted: bool | None = _of("DeduplicationUntilDeleted", "mark", None, only=_LAKE)
    """True if a deduplication id can be used again as soon as its message is deleted."""
    paused: str | None = _of("Paused", "text", None)
    """Reason why the queue is paused (JOB-1). None if the queue is not paused."""
    paused_groups: str | None = _of("PausedGroups", "reasons", None)
    """JSON object that maps each paused message group to the reason of its pause."""
    paused_since: str | None = _of("PausedSince", "text", None)
    """JSON object: start of each group's pause, in microseconds. The group "" stands for the whole queue."""
    rate_limit: str | None = _of("RateLimit", "rate", None)
    """Rate limit, such as ``100/s`` (JOB-11)."""
    rate_burst: int | None = _of("RateBurst", "count", None, limits=Limits(1, 1, MOST_RATE))
    """Maximum number of messages received at once. Default: as many as ``rate_limit`` allows in a second."""
    table: str | None = _of("Table", "table", None)
    """Delta table for deliveries (TAB-1): an absolute path, a URI, or a catalog name."""
    delivery_id: str | None = _of("DeliveryId", "text", None)
    """Random id that identifies the queue in the log of its delivery table. Each new table gets a new id."""

    @classmethod
    def create(
        cls, profile_name: str = DEFAULT_PROFILE, fifo: bool | str = False, **arguments: Any
    ) -> QueueAttributes:
        """Builds the attributes of a new queue. Defaults come from the profile (PRF-2).

        Names may be snake_case or wire names. None or "unlimited" lifts a cap. Raises InvalidAttributeName,
        InvalidAttributeValue, or InvalidParameterValue for a malformed redrive policy (DLQ-2, DLQ-6).
        """
        arguments = {"profile": profile_name, "fifo": fifo} | arguments
        if "Profile" in arguments:
            arguments["profile"] = arguments.pop("Profile")
        rules = profile(arguments["profile"])
        with coded_for(rules.name):
            fields = _fields(arguments, rules)
            _check_kind(fields, _parsed({"fifo": fields["fifo"]})["fifo"], rules)
            values = _parsed(fields)
            settings = _defaults(rules, values) | {"shards": values.get("priorities", 1)} | values
            settings = _with_whole_range(settings)
            checked = cls(**settings, created_deduplication_scope=settings["deduplication_scope"])
            checked._check(values)
        return checked

    def with_changes(self, **arguments: Any) -> QueueAttributes:
        """Returns a copy with changed attributes (PRF-1, QUE-2, QUE-34). Raises the errors of ``create``."""
        with coded_for(self.profile):
            fields = _fields(arguments, self.profile_rules)
            for name in sorted(fields.keys() & FIXED - {"fifo"}):
                only = "Attribute {} can only be set when a queue is created."
                raise InvalidAttributeName(only, names=[name])
            if "fifo" in fields and not self.fifo:
                hint = "whether a queue is FIFO is fixed at its creation"
                raise InvalidAttributeName("Unknown Attribute {}.", names=["fifo"], hint=hint)
            _check_kind(fields, self.fifo, self.profile_rules)
            values = _parsed(fields)
            if "rate_limit" in values and values["rate_limit"] is None:
                values.setdefault("rate_burst", None)
            if not values.pop("fifo", True):
                raise InvalidAttributeValue("Modifying queue type is not supported.")
            changed = type(self)(**_with_whole_range(attrs.asdict(self) | values))
            changed._check(values)
            if changed.shards < self.shards or (self.fifo and changed.shards > self.shards):
                hint = "must stay" if self.fifo else "must be at least"
                raise _invalid(_BY_FIELD["shards"], hint=f"{hint} {self.shards}, as many as there are")
            changed._check_homes(self)
        return changed

    def _check_homes(self, before: QueueAttributes) -> None:
        """Refuses changes that would spread a group or deduplication id over several shards (FAI-5, JOB-6)."""
        limit = "group_in_flight_limit"
        homed = [field for field in (*_UNIQUE, limit) if getattr(self, field) is not None]
        if homed and self.shards > before.shards:
            why = "a group lives on" if homed[0] == limit else "an id belongs to"
            hint = f"must stay {before.shards} while {homed[0]} is set: {why} one shard"
            raise _invalid(_BY_FIELD["shards"], hint=hint)
        if limit in homed and before.group_in_flight_limit is None and self.shards > 1:
            hint = "a queue with several shards gets its limit when it is created: its groups live on all of them"
            raise _invalid(_BY_FIELD[limit], hint=hint)

    def differences(self, arguments: Mapping[str, Any]) -> list[str]:
        """Returns names of arguments that differ from these attributes (QUE-15). Raises as ``create`` does."""
        other = self.create(**{"profile": self.profile, "fifo": self.fifo, **arguments})
        return [f for f in _fields(arguments, self.profile_rules) if getattr(self, f) != getattr(other, f)]

    def changes(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that differ from these attributes (QUE-36). Raises the errors of ``create``."""
        differing = self.differences(arguments)
        return {n: v for n, v in arguments.items() if _attribute(n, self.profile_rules).field in differing}

    def values(self) -> dict[str, Any]:
        """Returns all settable attributes that this kind of queue has, by name. A cap of None means unlimited."""
        absent = _absent(self.fifo, self.profile_rules)
        shown = [(each, getattr(self, each.field)) for each in _SETTABLE if each.only not in absent]
        found = {each.field: bool(value) if each.kind == "mark" else value for each, value in shown}
        found |= {"redrive_policy": self.redrive, "paused_groups": self.reasons}
        return found | {"redrive_allow_policy": redrive_allow_policy(self.redrive_allow_policy)}

    def to_wire(self) -> dict[str, str]:
        """Returns every set attribute as text by wire name (QUE-23)."""
        wire = {}
        for attribute in _ATTRIBUTES:
            value = getattr(self, attribute.field)
            if value is None or (attribute.field == "fifo" and not value):
                continue
            wire[self._wire_name(attribute)] = (attribute.choices or {}).get(value) or as_text(value)
        return wire

    def to_stored(self) -> dict[str, str]:
        """Returns the wire form. Omits ``FairGroups`` if default, because older versions cannot read it."""
        wire = self.to_wire()
        if self.fair_groups == self.profile_rules.fair_groups:
            wire.pop("FairGroups", None)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, str]) -> QueueAttributes:
        """Parses stored attributes. Raises QueueClientError for attributes of a newer lakequeue (DUR-71)."""
        return _from_wire(tuple(wire.items()))

    @classmethod
    def check_stored(cls, wire: Mapping[str, str]) -> None:
        """Raises KeyError, ValueError or QueueServiceError if stored attributes are invalid (DUR-71)."""
        found = cls.from_wire({name: text for name, text in wire.items() if name in _BY_WIRE})
        _ = found.profile_rules, found.redrive, found.redrive_allow

    @property
    def profile_rules(self) -> Profile:
        return profile(self.profile)

    @property
    def strict_receipts(self) -> bool:
        """True if the queue refuses a receipt handle whose visibility timeout has ended (RCP-7, RCP-8)."""
        rules = self.profile_rules
        return (rules.receipt_policy_fifo if self.fifo else rules.receipt_policy) == "strict"

    @property
    def dedup_by_group(self) -> bool:
        """True if each message group has its own deduplication ids (DDP-14)."""
        return self.created_deduplication_scope == "message_group"

    @property
    def dedup_micros(self) -> int | None:
        """Microseconds for which a message's deduplication id marks duplicates. None if unset (DDP-9, JOB-6)."""
        if self.fifo:
            return FIFO_DEDUP_MICROS
        return None if self.deduplication_interval is None else duration_micros(self.deduplication_interval)

    @property
    def dedup_window(self) -> int | None:
        """Microseconds after a send during which its deduplication id marks duplicates. None without these ids."""
        return self.retention_micros if self.deduplication_until_deleted else self.dedup_micros

    @property
    def by_group(self) -> bool:
        """True if the group of a message determines the shard of the message."""
        return self.fifo or self.group_in_flight_limit is not None

    @cached_property
    def reasons(self) -> dict[str, str] | None:
        return None if self.paused_groups is None else json.loads(self.paused_groups)

    @cached_property
    def pauses(self) -> list[Pause]:
        """Pauses of the queue and of its message groups (JOB-1)."""
        return pauses(self.paused, self.reasons, self.paused_since)

    @cached_property
    def pace(self) -> Pace | None:
        """The rate limit (JOB-11). The ledger of shard 0 stores the state of the token bucket."""
        return None if self.rate_limit is None else Pace.of(self.rate_limit, self.rate_burst)

    @property
    def classes(self) -> int:
        """Number of priorities, at least 1. A shard's number modulo this number is its priority (JOB-5)."""
        return self.priorities or 1

    @property
    def groups_are_tenants(self) -> bool:
        """True if message groups share receives fairly, or have their own in-flight limit (FAI-1, FAI-4)."""
        return bool(self.fair_groups or self.group_in_flight_limit)

    @cached_property
    def redrive(self) -> RedrivePolicy | None:
        """The redrive policy. Names the dead-letter queue by its ARN (DLQ-2)."""
        return redrive_policy(self.redrive_policy)

    @cached_property
    def redrive_allow(self) -> RedriveAllowPolicy:
        """The queues that may use this queue as dead-letter queue. Default: all (DLQ-6)."""
        return redrive_allow_policy(self.redrive_allow_policy) or RedriveAllowPolicy("allowAll")

    @property
    def inflight_limit_behavior(self) -> Literal["error", "empty"]:
        """What a claim at the in-flight cap does: raise an error, or return no messages (INF-3, INF-4)."""
        rules = self.profile_rules
        return rules.inflight_limit_behavior_fifo if self.fifo else rules.inflight_limit_behavior

    @property
    def inflight_limit(self) -> int | None:
        """Maximum number of messages in flight per shard: the queue's maximum divided by the number of shards."""
        return None if self.max_inflight_messages is None else self.max_inflight_messages // self.shards

    @property
    def delayed_limit(self) -> int | None:
        """Maximum number of delayed messages in one shard. Further delayed messages are held (INF-8)."""
        return None if self.max_delayed_messages is None else self.max_delayed_messages // self.shards

    @property
    def stored_limit(self) -> int | None:
        """Maximum number of stored messages in one shard (QUE-21)."""
        return None if self.max_stored_messages is None else self.max_stored_messages // self.shards

    @cached_property
    def visibility_timeout_micros(self) -> int:
        return duration_micros(self.visibility_timeout)

    @cached_property
    def retention_micros(self) -> int:
        return duration_micros(self.message_retention_period)

    @cached_property
    def rewind_micros(self) -> int:
        return duration_micros(self.rewind_range)

    @cached_property
    def delay_micros(self) -> int:
        return duration_micros(self.delay)

    @property
    def wait_micros(self) -> int:
        return duration_micros(self.receive_wait_time)

    def limits(self, field: str) -> Limits:
        """Returns the range of an attribute. The range may depend on other attributes of the queue."""
        if (limits := _BY_FIELD[field].limits) is not None:
            return limits
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
        """Returns True if durations may have fractions of a second."""
        rules = self.profile_rules
        return (
            not self.profile_strict
            or rules.fractional_seconds
            or (field == "receive_wait_time" and rules.fractional_wait)
        )

    def _check(self, arguments: Mapping[str, object]) -> None:
        """Raises InvalidAttributeValue for the first invalid attribute. Checks ``arguments`` first."""
        for attribute in sorted(_ATTRIBUTES, key=lambda a: a.field not in arguments):
            value = getattr(self, attribute.field)
            if attribute.kind not in ("seconds", "count", "cap") or value is None:
                continue
            limits = self.limits(attribute.field)
            whole = attribute.kind == "seconds" and not self.fractions_allowed(attribute.field)
            fits = limits.contain(value) and (not whole or value == int(value))
            if attribute.per_shard:
                fits = fits and value >= self.shards
            if not fits:
                beyond = attribute.field == "rewind_range" and value > self.message_retention_period
                hint = f"{limits.described}{' whole' * whole}{' seconds' * (attribute.kind == 'seconds')}"
                hint = f"must be {hint} in profile {self.profile}, not {as_text(value)}"
                raise _invalid(attribute, 10700 if beyond else None, hint)
        if self.fifo:
            self._check_fifo()
        if (problem := burst_problem(self.rate_limit, self.rate_burst)) is not None:
            raise _invalid(_BY_FIELD["rate_burst"], hint=problem)
        if self.shards % self.classes:
            raise _invalid(_BY_FIELD["shards"], hint=f"must be a multiple of the priorities, {self.priorities}")
        if self.priorities_strict and self.priorities is None:
            raise _invalid(_BY_FIELD["priorities_strict"], hint="the queue was created without priorities")
        # each of these chooses the shard of a message
        placing = ("priorities", "group_in_flight_limit", *_UNIQUE)
        one, *others = [field for field in placing if getattr(self, field) is not None] or [""]
        if others:
            why = "" if one in _UNIQUE else ": both choose the shard of a message"
            raise _invalid(_BY_FIELD[others[0]], hint=f"does not go with {one}{why}")

    def _check_fifo(self) -> None:
        """Checks that attributes of a FIFO queue fit together (DDP-14)."""
        if not self.profile_rules.fifo_queues:
            raise _invalid(_BY_FIELD["fifo"], hint=f"profile {self.profile} has no FIFO queues")
        if self.fifo_throughput_limit == "per_message_group_id" and self.deduplication_scope != "message_group":
            hint = f"needs deduplication_scope message_group, not {self.deduplication_scope}"
            raise _invalid(_BY_FIELD["fifo_throughput_limit"], hint=hint)
        if self.shards > 1 and not self.dedup_by_group:
            hint = "a FIFO queue has several only if it is created with deduplication_scope message_group"
            raise _invalid(_BY_FIELD["shards"], hint=hint)

    def _wire_name(self, attribute: _Attribute) -> str:
        if attribute.field == "receive_wait_time" and self.profile == "cmq":
            return attribute.cmq
        return attribute.wire


_ATTRIBUTES: tuple[_Attribute, ...] = tuple(
    each.metadata[_Attribute]._replace(field=each.name) for each in attrs.fields(QueueAttributes)
)
_BY_FIELD = {a.field: a for a in _ATTRIBUTES}
_BY_WIRE = {a.wire: a for a in _ATTRIBUTES} | {a.cmq: a for a in _ATTRIBUTES if a.cmq}
_SETTABLE = tuple(a for a in _ATTRIBUTES if a.wire not in HIDDEN)
FIXED = frozenset({"fifo"} | {a.field for a in _SETTABLE if a.fixed})
_BY_NAME = {name: a for a in _SETTABLE for name in (a.field, a.wire)}
_BY_CMQ_NAME = _BY_NAME | {a.cmq: a for a in _SETTABLE if a.cmq}


ATTRIBUTE_NAMES = {a.field: a.wire for a in _SETTABLE}
"""Maps the Python name of each settable attribute to the name on the wire."""


def _attribute(name: str, rules: Profile) -> _Attribute:
    names = _BY_CMQ_NAME if rules.name == "cmq" else _BY_NAME
    if name not in names:
        raise unknown(name)
    return names[name]


def _invalid(attribute: _Attribute, cmq_code: int | None = None, hint: str | None = None) -> InvalidAttributeValue:
    template = "Invalid value for the parameter {}."
    return InvalidAttributeValue(template, names=[attribute.field], hint=hint, cmq_code=cmq_code)


def _fields(arguments: Mapping[str, Any], rules: Profile) -> dict[str, Any]:
    """Returns the arguments by field name. Refuses numbers as text, except in arguments with SQS names."""
    found = {}
    for name, value in arguments.items():
        attribute = _attribute(name, rules)
        number = attribute.kind in ("seconds", "count") and (value != "" or not attribute.can_be_unset)
        if name == attribute.field and isinstance(value, str) and number:
            raise _invalid(attribute, hint=f"must be a number, not the text {value!r}")
        found[attribute.field] = value
    return found


def _parsed(fields: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for field, value in fields.items():
        try:
            values[field] = parsed = _parse(_BY_FIELD[field], value)
            if isinstance(parsed, str) and len(parsed.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
                raise ValueError(f"longer than {MAX_TEXT_BYTES:,} bytes")
        except (TypeError, ValueError) as error:
            raise _invalid(_BY_FIELD[field], hint=str(error)) from None
    return values


def _with_whole_range(settings: dict[str, Any]) -> dict[str, Any]:
    """Replaces a rewind range of True by the retention period (RWD-2)."""
    if settings["rewind_range"] is True:
        settings["rewind_range"] = settings["message_retention_period"]
    return settings


@lru_cache(maxsize=256)  # processes read the attributes with each commit of another process
def _from_wire(wire: tuple[tuple[str, str], ...]) -> QueueAttributes:
    values: dict[str, Any] = {}
    for name, text in wire:
        if (attribute := _BY_WIRE.get(name)) is None:
            raise QueueClientError(f"unknown attribute {one_line(name)} of a queue: install a newer lakequeue")
        values[attribute.field] = _parse(attribute, text)
    fair_groups = None if values.setdefault("fifo", False) else profile(values["profile"]).fair_groups
    return QueueAttributes(**({"fair_groups": fair_groups} | values))


def _parse(attribute: _Attribute, value: Any) -> Any:
    if value in (None, "") and attribute.can_be_unset:
        return None
    if value is True and attribute.field == "rewind_range":
        return True
    if attribute.choices is not None:
        return parse_choice(value, attribute.choices)
    return PARSERS[attribute.kind](value)


def _check_kind(fields: Mapping[str, Any], fifo: bool, rules: Profile) -> None:
    """Refuses attributes that this kind of queue does not have (QUE-9, DDP-14, FAI-1)."""
    wrong = [each for each in _SETTABLE if each.field in fields and each.only in _absent(fifo, rules)]
    for field, only in [(each.field, each.only) for each in wrong]:
        if field == "content_based_deduplication":
            raise InvalidAttributeName("Unknown Attribute {}.", names=[field])
        if only == "fifo":
            raise InvalidAttributeName(
                "You can specify the {} only when {} is set to true.", names=[field, "fifo"]
            )
        where = "on a standard queue of profile lake" if only == _LAKE else "on a standard queue"
        where = f"outside profile {rules.name}" if only == "standard" and not fifo else where
        raise InvalidAttributeName(f"You can specify the {{}} only {where}.", names=[field])


def _absent(fifo: bool, rules: Profile) -> set[str]:
    kinds = {"standard": not fifo and rules.fair_groups is not None, _LAKE: not fifo and rules.name == _LAKE}
    return {kind for kind, fits in (kinds | {"fifo": fifo}).items() if not fits}


def _defaults(rules: Profile, arguments: Mapping[str, Any]) -> dict[str, Any]:
    fifo, strict = arguments["fifo"], arguments.get("profile_strict", True)
    ranges = {a.field: getattr(rules, a.field) for a in _ATTRIBUTES if hasattr(rules, a.field)}
    defaults = {field: limits.default for field, limits in ranges.items() if isinstance(limits, Limits)}
    if fifo:
        defaults |= {"max_inflight_messages": rules.max_inflight_messages_fifo.default}
    return defaults | {
        "content_based_deduplication": False if fifo else None,
        "deduplication_scope": "queue" if fifo else None,
        "fifo_throughput_limit": "per_queue" if fifo else None,
        "fair_groups": None if fifo else rules.fair_groups,
        "allow_zero_visibility": rules.allow_zero_visibility or not strict,
    }


def kind_of(name: str) -> str | None:
    """Returns the kind of an attribute, such as ``seconds``; None for an unknown name."""
    attribute = _BY_CMQ_NAME.get(name)
    return None if attribute is None else attribute.kind


def unknown(name: str, names: Iterable[str] = ()) -> InvalidAttributeName:
    """Builds the error for an unknown attribute. The hint suggests the most similar name in ``names``."""
    known = [*(names or _BY_NAME)]
    nearest = [each for each in known if len(name) > 3 and name in each] or get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else None
    return InvalidAttributeName(f"Unknown Attribute {name}.", hint=hint)


def selected(known: Mapping[str, Any], names: Sequence[str], wire: bool) -> dict[str, Any]:
    """Returns the requested attributes. Raises InvalidAttributeName for an unknown name (QUE-23)."""
    if "All" in names:
        return dict(known)
    settable = [each.wire if wire else each.field for each in _SETTABLE]
    for name in names:
        if name not in known and name not in settable:
            raise unknown(name, settable)
    return {name: known[name] for name in names if name in known}
