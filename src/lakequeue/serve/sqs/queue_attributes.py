"""Attributes and policies of queues, as SQS clients see them. Policies are stored, but not enforced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from lakequeue.errors import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    MissingParameter,
    OverLimit,
    UnsupportedOperation,
)
from lakequeue.model.redrive_policies import compact, redrive_allow_policy, redrive_policy
from lakequeue.serve.sqs.model import operations
from lakequeue.serve.sqs.queue_urls import is_own, queue_arn

_KEY, _PERIOD = "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"
_UNENCRYPTED: Mapping[str, tuple[str, ...]] = {
    _KEY: ("",),
    _PERIOD: ("", "300"),
}
"""Attributes for encryption with a client's key, each with the values that turn this encryption off."""
_SSE = "SqsManagedSseEnabled"
_FLAGS = ("FifoQueue", "ContentBasedDeduplication", _SSE)
_NAMES = frozenset(operations()["GetQueueAttributes"].input_shape.members["AttributeNames"].member.enum)


@attrs.frozen
class Encryption:
    """The encryption that the operator declares. Not lakequeue but the storage encrypts.

    Attributes:
        ignore_kms: True to store and show the names of clients' keys without effect. False to refuse these names.
        sse_managed: True if the storage encrypts everything. Queues without a client's key report this encryption.
    """

    ignore_kms: bool = False
    sse_managed: bool = False


def to_set(attributes: Mapping[str, str], account: str, encryption: Encryption) -> dict[str, Any]:
    """Checks the attributes that a client wants to set. Returns the attributes to set.

    Raises:
        InvalidAttributeName: no such attribute exists.
        InvalidAttributeValue: a key is combined with SQS's own encryption, or the reuse period is outside of 60 to
            86400 seconds.
        InvalidParameterValue: a policy is malformed, or contains an ARN of another account.
        UnsupportedOperation: an attribute requests encryption with a key.
    """
    for name, value in attributes.items():
        if not name[:1].isupper():  # arguments of the Python API, unknown to SQS
            raise InvalidAttributeName(f"Unknown Attribute {name}.")
        if value not in _UNENCRYPTED.get(name, (value,)) and not encryption.ignore_kms:
            raise UnsupportedOperation(f"The server cannot encrypt messages with a key; leave out {name}.")
        for arn in _arns(name, value):
            if not is_own(arn, account):
                raise InvalidParameterValue.of(
                    value, name, f"Queue {arn} is of another account; this one is {account}."
                )
    wanted = {
        name: value.lower() if name in _FLAGS else value
        for name, value in attributes.items()
        if name not in _UNENCRYPTED or encryption.ignore_kms
    }
    if not _is_period(wanted.get(_PERIOD, "")):
        raise InvalidAttributeValue(f"Invalid value for the parameter {_PERIOD}: must be from 60 to 86400.")
    if wanted.get(_KEY) and wanted.get(_SSE) == "true":
        raise InvalidAttributeValue(
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE."
        )
    return wanted


def with_one_encryption(changes: Mapping[str, Any], encryption: Encryption) -> dict[str, Any]:
    """Turns off SQS's own encryption if the changes turn on a client's key, and the other way round."""
    if changes.get(_KEY):
        return {**changes, _SSE: "false"}
    return {**changes, _KEY: ""} if encryption.ignore_kms and changes.get(_SSE) == "true" else {**changes}


def _is_period(value: str) -> bool:
    return value == "" or (value.isascii() and value.isdecimal() and len(value) < 6 and 60 <= int(value) <= 86_400)


def to_read(names: Sequence[str]) -> list[str]:
    """Returns the attributes that must be read to answer a request for ``names``."""
    return [*names, _KEY] if {_SSE, _PERIOD} & {*names} else [*names]


def shown(found: Mapping[str, str], names: Sequence[str], account: str, encryption: Encryption) -> dict[str, str]:
    """Selects the attributes that a client requested. ``All`` omits lakequeue's own attributes."""
    if "All" in names:
        found = {name: value for name, value in found.items() if name in _NAMES or name in names}
    result = {name: _with_arns(name, value, account) for name, value in found.items()}
    if {"All", _SSE} & {*names}:
        result.setdefault(_SSE, "true" if encryption.sse_managed and _KEY not in found else "false")
    if _KEY not in found:
        result.pop(_PERIOD, None)
    elif {"All", _PERIOD} & {*names}:
        result.setdefault(_PERIOD, "300")
    if not {"All", _KEY} & {*names}:
        result.pop(_KEY, None)
    return result


def _arns(name: str, value: str) -> Sequence[str]:
    if name == "RedrivePolicy":
        policy = redrive_policy(value)
        return () if policy is None else [policy.dead_letter_queue]
    allowed = redrive_allow_policy(value) if name == "RedriveAllowPolicy" else None
    return () if allowed is None else allowed.source_queues


def _with_arns(name: str, value: str, account: str) -> str:
    """Converts the ARNs in the value of an attribute to the form that SQS clients see."""
    match name:
        case "QueueArn":
            return queue_arn(value, account)
        case "RedrivePolicy":
            policy = json.loads(value)
            return compact(policy | {"deadLetterTargetArn": queue_arn(policy["deadLetterTargetArn"], account)})
        case "RedriveAllowPolicy" if "sourceQueueArns" in (policy := json.loads(value)):
            return compact(
                policy | {"sourceQueueArns": [queue_arn(arn, account) for arn in policy["sourceQueueArns"]]}
            )
    return value


MAX_ACTIONS = 7
ACTIONS = frozenset(
    {
        *("*", "SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"),
        *("GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "PurgeQueue"),
    }
)
"""Names of the actions that a permission can allow."""


def add_permission(
    policy: str | None, arn: str, label: str, accounts: Sequence[str], actions: Sequence[str]
) -> str:
    """Adds a permission to a policy. Returns the changed policy as JSON.

    Raises:
        MissingParameter: no account or no action is given.
        OverLimit: more than seven actions are given (ERR-6).
        InvalidParameterValue: an action is unknown, or the label exists already.
    """
    if not accounts:
        raise MissingParameter("The request must contain the parameter AWSAccountIds.")
    if not actions:
        raise MissingParameter("The request must contain the parameter Actions.")
    if len(actions) > MAX_ACTIONS:
        raise OverLimit(f"{len(actions)} Actions were found, maximum allowed is {MAX_ACTIONS}.")
    for action in actions:
        if action not in ACTIONS:
            raise InvalidParameterValue.of(
                f"SQS:{action}", "ActionName", f"Must be one of {', '.join(sorted(ACTIONS))}."
            )
    document = _document(policy, arn)
    if any(statement.get("Sid") == label for statement in document["Statement"]):
        raise InvalidParameterValue.of(label, "Label", "Already exists.")
    document["Statement"].append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in accounts])},
            "Action": _one_or_all([f"SQS:{action}" for action in actions]),
            "Resource": arn,
        }
    )
    return compact(document)


def remove_permission(policy: str | None, label: str) -> str:
    """Removes a permission from a policy. Returns JSON, or "" if none is left. Raises InvalidParameterValue."""
    document = _document(policy, "")
    left = [statement for statement in document["Statement"] if statement.get("Sid") != label]
    if len(left) == len(document["Statement"]):
        raise InvalidParameterValue.of(label, "Label", "can't find label.")
    return compact(document | {"Statement": left}) if left else ""


def _document(policy: str | None, arn: str) -> dict[str, Any]:
    if policy is None:
        return {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    document: dict[str, Any] = json.loads(policy)
    statements = document.get("Statement", [])
    return document | {"Statement": [statements] if isinstance(statements, dict) else list(statements)}


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
