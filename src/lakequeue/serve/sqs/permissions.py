"""The policy of a queue, as AddPermission and RemovePermission write it.

It is stored and returned for the tools that manage it; who may do what here is said by the server's file of keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lakequeue.errors import InvalidParameterValue, MissingParameter, OverLimit

MOST_ACTIONS = 7
ACTIONS = frozenset(
    {
        *("*", "SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"),
        *("GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "PurgeQueue"),
    }
)
"""What a permission may be for."""


def added(policy: str | None, arn: str, label: str, accounts: Sequence[str], actions: Sequence[str]) -> str:
    """The policy with one more permission, as JSON.

    Raises:
        MissingParameter: no account or no action.
        OverLimit: more than seven actions (ERR-6).
        InvalidParameterValue: an action is unknown, or the label is taken.
    """
    if not accounts:
        raise MissingParameter("The request must contain the parameter AWSAccountIds.")
    if not actions:
        raise MissingParameter("The request must contain the parameter Actions.")
    if len(actions) > MOST_ACTIONS:
        raise OverLimit(f"{len(actions)} Actions were found, maximum allowed is {MOST_ACTIONS}.")
    for action in actions:
        if action not in ACTIONS:
            raise _refused(f"SQS:{action}", "ActionName", f"Must be one of {', '.join(sorted(ACTIONS))}.")
    document = _document(policy, arn)
    if any(statement.get("Sid") == label for statement in document["Statement"]):
        raise _refused(label, "Label", "Already exists.")
    document["Statement"].append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in accounts])},
            "Action": _one_or_all([f"SQS:{action}" for action in actions]),
            "Resource": arn,
        }
    )
    return json.dumps(document)


def removed(policy: str | None, label: str) -> str:
    """The policy without a permission, as JSON; empty if it was the last.

    Raises:
        InvalidParameterValue: there is none of this label.
    """
    document = _document(policy, "")
    left = [statement for statement in document["Statement"] if statement.get("Sid") != label]
    if len(left) == len(document["Statement"]):
        raise _refused(label, "Label", "can't find label.")
    return json.dumps(document | {"Statement": left}) if left else ""


def _document(policy: str | None, arn: str) -> dict[str, Any]:
    if policy is None:
        return {"Version": "2012-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    document: dict[str, Any] = json.loads(policy)
    statements = document.get("Statement", [])
    return document | {"Statement": [statements] if isinstance(statements, dict) else list(statements)}


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _refused(value: str, parameter: str, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")
