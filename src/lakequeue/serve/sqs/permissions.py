"""The policy of a queue, as AddPermission and RemovePermission change it.

The server stores it for tools that manage policies, but does not enforce it: the key file says who may do what.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lakequeue.errors import InvalidParameterValue, MissingParameter, OverLimit

MAX_ACTIONS = 7
ACTIONS = frozenset(
    {
        *("*", "SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"),
        *("GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "PurgeQueue"),
    }
)
"""Actions that a permission can allow."""


def add_permission(
    policy: str | None, arn: str, label: str, accounts: Sequence[str], actions: Sequence[str]
) -> str:
    """Adds a permission to a policy; returns the policy as JSON.

    Raises:
        MissingParameter: no account or no action.
        OverLimit: more than seven actions (ERR-6).
        InvalidParameterValue: an action is unknown, or the label is taken.
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
    return json.dumps(document)


def remove_permission(policy: str | None, label: str) -> str:
    """Removes a permission from a policy; returns the policy as JSON, or "" without permissions.

    Raises:
        InvalidParameterValue: no permission has this label.
    """
    document = _document(policy, "")
    left = [statement for statement in document["Statement"] if statement.get("Sid") != label]
    if len(left) == len(document["Statement"]):
        raise InvalidParameterValue.of(label, "Label", "can't find label.")
    return json.dumps(document | {"Statement": left}) if left else ""


def _document(policy: str | None, arn: str) -> dict[str, Any]:
    if policy is None:
        return {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    document: dict[str, Any] = json.loads(policy)
    statements = document.get("Statement", [])
    return document | {"Statement": [statements] if isinstance(statements, dict) else list(statements)}


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
