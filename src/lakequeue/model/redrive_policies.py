"""Redrive policies, and permissions for dead-letter queues (DLQ-2, DLQ-6)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import attrs

from lakequeue.errors import InvalidParameterValue, MissingParameter, escaped

MOST_RECEIVES = 1_000
MOST_SOURCES = 10
ACCOUNT = "0" * 12
"""The account in the ARNs and URLs of all queues."""
MEMBERS = {
    "dead_letter_queue": "deadLetterTargetArn",
    "max_receive_count": "maxReceiveCount",
    "permission": "redrivePermission",
    "source_queues": "sourceQueueArns",
}
"""Maps the Python name of each field of a policy to its name in JSON."""
_NAMES = {wire: name for name, wire in MEMBERS.items()}
_PERMISSIONS = ("allowAll", "denyAll", "byQueue")
_COUNT = re.compile("[0-9]{1,9}")


_refused = InvalidParameterValue.of


class QueueLocation(NamedTuple):
    """The region and name in a queue's ARN."""

    region: str
    name: str


@attrs.frozen
class RedrivePolicy:
    """Policy that moves a message to a dead-letter queue if the message was received too often (DLQ-2).

    Attributes:
        dead_letter_queue: name or ARN.
        max_receive_count: 1 to 1,000. After this number of receives, the next receive moves the message.
    """

    dead_letter_queue: str
    max_receive_count: int

    def __attrs_post_init__(self) -> None:
        target, most = self.dead_letter_queue, self.max_receive_count
        if not isinstance(target, str) or not target:
            hint = "the name of a queue, as a text"
            raise _refused(self, "redrive_policy", "It must name {}.", "dead_letter_queue", hint=hint)
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_RECEIVES:
            bounds = f"valid values are from 1 to {MOST_RECEIVES} both inclusive."
            reason = f"Invalid value for {{}}: {escaped(most)}, {bounds}"
            raise _refused(self, "redrive_policy", reason, "max_receive_count")

    def wire(self) -> str:
        """Returns the policy as JSON."""
        return compact({"deadLetterTargetArn": self.dead_letter_queue, "maxReceiveCount": self.max_receive_count})


@attrs.frozen
class RedriveAllowPolicy:
    """The queues that may use this queue as their dead-letter queue (DLQ-6).

    Attributes:
        permission: ``allowAll``, ``denyAll`` or ``byQueue``.
        source_queues: with ``byQueue``, up to ten names or ARNs.
    """

    permission: Literal["allowAll", "denyAll", "byQueue"]
    source_queues: Sequence[str] = ()

    def wire(self) -> str:
        """Returns the policy as JSON."""
        policy: dict[str, Any] = {"redrivePermission": self.permission}
        if self.source_queues:
            policy["sourceQueueArns"] = list(self.source_queues)
        return compact(policy)

    def allows(self, source_arn: str) -> bool:
        """Returns True if the source queue may use this queue as its dead-letter queue."""
        return self.permission == "allowAll" or source_arn in self.source_queues


def compact(policy: Mapping[str, Any]) -> str:
    """Returns a policy as JSON in the form of SQS."""
    return json.dumps(policy, separators=(",", ":"), default=str)


def arn(region: str, name: str) -> str:
    return f"arn:lakequeue:sqs:{region}:{ACCOUNT}:{name}"


def parse_arn(text: str) -> QueueLocation | None:
    """Returns region and name in a queue's ARN. Accepts any account. Returns None for other texts."""
    parts = text.split(":")
    if len(parts) == 6 and parts[0] == "arn" and parts[2] == "sqs" and parts[3] and parts[5]:
        return QueueLocation(parts[3], parts[5])
    return None


def redrive_policy(given: Any) -> RedrivePolicy | None:
    """Parses a policy. Returns None, for no policy, if given None or "" (DLQ-9). Raises InvalidParameterValue."""
    if given is None or given == "":
        return None
    if isinstance(given, RedrivePolicy):
        return given
    fields = _fields(given, "redrive_policy", ("dead_letter_queue", "max_receive_count"))
    most = fields.get("max_receive_count")
    if isinstance(most, str) and _COUNT.fullmatch(most):
        most = int(most)
    return RedrivePolicy(fields.get("dead_letter_queue"), most)  # type: ignore[arg-type]  # checked there


def redrive_allow_policy(given: Any) -> RedriveAllowPolicy | None:
    """Parses a policy. Returns None, which allows all queues, for None or "". Raises InvalidParameterValue."""
    if given is None or given == "":
        return None
    name = "redrive_allow_policy"
    permission: Any
    if isinstance(given, RedriveAllowPolicy):
        permission, sources = given.permission, given.source_queues
    else:
        fields = _fields(given, name, ("permission", "source_queues"))
        permission, sources = fields.get("permission"), fields.get("source_queues", ())
    if permission not in _PERMISSIONS:
        raise _refused(given, name, f"{{}} must be one of {', '.join(_PERMISSIONS)}.", "permission")
    sources = () if sources is None else sources
    named = isinstance(sources, Sequence) and not isinstance(sources, str)
    if not named or not all(isinstance(source, str) and source for source in sources):
        raise _refused(given, name, "{} must be a list of ARNs.", "source_queues")
    if (permission == "byQueue") != bool(sources):
        reason = "{} goes with {} byQueue, and only with that."
        raise _refused(given, name, reason, "source_queues", "permission")
    if len(sources) > MOST_SOURCES:
        reason = f"{{}} may name {MOST_SOURCES} queues, not {len(sources)}."
        raise _refused(given, name, reason, "source_queues")
    return RedriveAllowPolicy(permission, tuple(sources))


def located(given: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Returns attributes with policies as JSON (DLQ-2). Replaces names of queues by ARNs in ``region``."""
    found = dict(given)
    pair = {name: found.pop(name) for name in ("dead_letter_queue", "max_receive_count") if name in found}
    if pair and (len(pair) < 2 or {"redrive_policy", "RedrivePolicy"} & found.keys()):
        raise MissingParameter("dead_letter_queue and max_receive_count go together, without a redrive_policy.")
    if pair:
        found["redrive_policy"] = RedrivePolicy(**pair)
    for name in ("redrive_policy", "RedrivePolicy"):
        policy = redrive_policy(found.get(name))
        if policy is not None:
            found[name] = attrs.evolve(policy, dead_letter_queue=_located(policy.dead_letter_queue, region)).wire()
    for name in ("redrive_allow_policy", "RedriveAllowPolicy"):
        allowed = redrive_allow_policy(found.get(name))
        if allowed is not None:
            sources = tuple(_located(source, region) for source in allowed.source_queues)
            found[name] = attrs.evolve(allowed, source_queues=sources).wire()
    return found


def _located(queue: str, region: str) -> str:
    return arn(*(parse_arn(queue) or QueueLocation(region, queue)))


def _fields(given: Any, attribute: str, known: Sequence[str]) -> Mapping[str, Any]:
    fields = given
    if isinstance(given, str):
        try:
            fields = json.loads(given)
        except (ValueError, RecursionError):
            raise _refused(given, attribute, "It is not JSON.") from None
    if not isinstance(fields, Mapping):
        raise _refused(given, attribute, "It is not a JSON object.")
    found = {}
    for name, value in fields.items():
        member = name if name in known and not isinstance(given, str) else _NAMES.get(name, "")
        if member not in known:
            raise _refused(given, attribute, f"It has no member {name}.")
        found[member] = value
    return found
