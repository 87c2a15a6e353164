"""The policy that AddPermission and RemovePermission write."""

from __future__ import annotations

import json

import pytest

from lakequeue.errors import InvalidParameterValue, MissingParameter, OverLimit
from lakequeue.serve.sqs.queue_attributes import add_permission, remove_permission

ARN = "arn:lakequeue:sqs:local:000000000000:orders"
ONE, TWO = "111111111111", "222222222222"


def test_permissions_are_statements_under_their_labels() -> None:
    policy = add_permission(None, ARN, "readers", [ONE, TWO], ["ReceiveMessage", "DeleteMessage"])
    policy = add_permission(policy, ARN, "all", [ONE], ["*"])
    first, second = json.loads(policy)["Statement"]
    assert first == {
        "Sid": "readers",
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:aws:iam::{ONE}:root", f"arn:aws:iam::{TWO}:root"]},
        "Action": ["SQS:ReceiveMessage", "SQS:DeleteMessage"],
        "Resource": ARN,
    }
    assert (second["Principal"], second["Action"]) == ({"AWS": f"arn:aws:iam::{ONE}:root"}, "SQS:*")
    left = remove_permission(policy, "readers")
    assert json.loads(left)["Statement"] == [second]
    assert remove_permission(left, "all") == ""


def test_a_policy_that_was_set_whole_is_added_to() -> None:
    own = json.dumps({"Version": "2008-10-17", "Statement": {"Sid": "own", "Effect": "Deny"}})
    policy = json.loads(add_permission(own, ARN, "more", [ONE], ["SendMessage"]))
    assert policy["Version"] == "2008-10-17"
    assert [statement["Sid"] for statement in policy["Statement"]] == ["own", "more"]


@pytest.mark.spec("ERR-6")
def test_permissions_that_cannot_be_are_refused() -> None:
    policy = add_permission(None, ARN, "a", [ONE], ["SendMessage"])
    with pytest.raises(InvalidParameterValue, match="Label.*exists"):
        add_permission(policy, ARN, "a", [ONE], ["SendMessage"])
    with pytest.raises(InvalidParameterValue, match="Label.*find"):
        remove_permission(policy, "b")
    with pytest.raises(InvalidParameterValue, match="ActionName"):
        add_permission(policy, ARN, "b", [ONE], ["Fly"])
    with pytest.raises(MissingParameter, match="AWSAccountIds"):
        add_permission(policy, ARN, "b", [], ["SendMessage"])
    with pytest.raises(MissingParameter, match="Actions"):
        add_permission(policy, ARN, "b", [ONE], [])
    with pytest.raises(OverLimit, match="8 Actions.*7"):
        add_permission(policy, ARN, "b", [ONE], ["SendMessage"] * 8)
