"""Redrive policies as they are given, and as they are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.redrive_policies import (
    QueueLocation,
    RedriveAllowPolicy,
    RedrivePolicy,
    arn,
    located,
    parse_arn,
    redrive_allow_policy,
    redrive_policy,
)

DEAD = arn("local", "dead")


@pytest.mark.spec("DLQ-2")
@pytest.mark.parametrize(
    "given",
    [
        RedrivePolicy(DEAD, 5),
        {"deadLetterTargetArn": DEAD, "maxReceiveCount": 5},
        {"deadLetterTargetArn": DEAD, "maxReceiveCount": "5"},
        {"dead_letter_queue": DEAD, "max_receive_count": 5},
        json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 5}),
    ],
)
def test_a_redrive_policy_may_be_given_in_several_ways(given: Any):
    assert redrive_policy(given) == RedrivePolicy(DEAD, 5)
    attributes = QueueAttributes.create(redrive_policy=given)
    assert attributes.redrive == RedrivePolicy(DEAD, 5)
    wire = attributes.to_wire()
    assert json.loads(wire["RedrivePolicy"]) == {"deadLetterTargetArn": DEAD, "maxReceiveCount": 5}
    assert QueueAttributes.from_wire(wire) == attributes
    assert attributes.with_changes(RedrivePolicy="").redrive is None


@pytest.mark.spec("DLQ-2")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("no json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        (7, "not a JSON object"),
        ({"maxReceiveCount": 5}, "dead_letter_queue"),
        (json.dumps({"dead_letter_queue": DEAD, "max_receive_count": 5}), "no member dead_letter_queue"),
        ({"deadLetterTargetArn": 7, "maxReceiveCount": 5}, "dead_letter_queue"),
        ({"deadLetterTargetArn": DEAD}, "max_receive_count: None"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": 0}, "1 to 1000"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1001}, "1 to 1000"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": True}, "max_receive_count"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1.5}, "max_receive_count"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": "-1"}, "max_receive_count"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": "9" * 5_000}, "1 to 1000"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": "\u0661"}, "1 to 1000"),
        ({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1, "more": 1}, "more"),
    ],
)
def test_a_malformed_redrive_policy_is_refused(given: Any, reason: str):
    for call in (redrive_policy, lambda policy: QueueAttributes.create(redrive_policy=policy)):
        with pytest.raises(InvalidParameterValue, match="parameter redrive_policy") as caught:
            call(given)
        assert reason in caught.value.message


@pytest.mark.spec("DLQ-2")
@pytest.mark.parametrize(
    ("queue", "most", "reason"), [(DEAD, 0, "1 to 1000"), (DEAD, "5", "1 to 1000"), ("", 1, "dead_letter_queue")]
)
def test_a_malformed_policy_cannot_be_made(queue: Any, most: Any, reason: str):
    with pytest.raises(InvalidParameterValue, match="parameter redrive_policy") as caught:
        RedrivePolicy(queue, most)
    assert reason in caught.value.message


@pytest.mark.spec("DLQ-2")
@pytest.mark.parametrize("most", [1, 1000])
def test_the_maximum_of_receives_has_both_its_ends(most: int):
    assert redrive_policy(RedrivePolicy(DEAD, most)) == RedrivePolicy(DEAD, most)


@pytest.mark.spec("DLQ-6")
def test_an_allow_policy_says_which_queues_may_name_this_one():
    everyone, nobody = RedriveAllowPolicy("allowAll"), redrive_allow_policy({"redrivePermission": "denyAll"})
    assert nobody is not None
    some = redrive_allow_policy({"redrivePermission": "byQueue", "sourceQueueArns": [arn("local", "a")]})
    assert some == RedriveAllowPolicy("byQueue", (arn("local", "a"),))
    assert everyone.allows(arn("local", "a")) and some.allows(arn("local", "a"))
    assert not nobody.allows(arn("local", "a")) and not some.allows(arn("local", "b"))
    attributes = QueueAttributes.create(redrive_allow_policy=some)
    assert QueueAttributes.from_wire(attributes.to_wire()).redrive_allow == some
    assert QueueAttributes.create().redrive_allow == everyone


@pytest.mark.spec("DLQ-2", "DLQ-6")
@pytest.mark.parametrize("sources", [{}, {"sourceQueueArns": None}, {"sourceQueueArns": []}])
@pytest.mark.parametrize("permission", ["allowAll", "denyAll"])
def test_policies_are_stored_without_spaces_and_empty_members(permission: str, sources: Any):
    allowed = QueueAttributes.create(RedriveAllowPolicy=json.dumps({"redrivePermission": permission} | sources))
    assert allowed.redrive_allow_policy == f'{{"redrivePermission":"{permission}"}}'
    redrive = QueueAttributes.create(redrive_policy=RedrivePolicy(DEAD, 5))
    assert redrive.redrive_policy == f'{{"deadLetterTargetArn":"{DEAD}","maxReceiveCount":5}}'


@pytest.mark.spec("DLQ-6")
@pytest.mark.parametrize(
    "given",
    [
        "denyAll",
        {"redrivePermission": "sometimes"},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": DEAD},
        {"redrivePermission": "byQueue", "sourceQueueArns": [7]},
        {"redrivePermission": "byQueue", "sourceQueueArns": 7},
        {"redrivePermission": "byQueue", "sourceQueueArns": {DEAD: 1}},
        {"redrivePermission": "byQueue", "sourceQueueArns": None},
        {"redrivePermission": "denyAll", "sourceQueueArns": 0},
        {"redrivePermission": "allowAll", "sourceQueueArns": [DEAD]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn("local", f"q{n}") for n in range(11)]},
    ],
)
def test_a_malformed_allow_policy_is_refused(given: Any):
    with pytest.raises(InvalidParameterValue, match="parameter redrive_allow_policy"):
        redrive_allow_policy(given)


def test_names_become_arns_of_the_region():
    given = {
        "redrive_policy": RedrivePolicy("dead", 5),
        "redrive_allow_policy": RedriveAllowPolicy("byQueue", ["a", arn("r2", "b")]),
        "visibility_timeout": 7,
    }
    found = located(given, "r1")
    assert redrive_policy(found["redrive_policy"]) == RedrivePolicy(arn("r1", "dead"), 5)
    allowed = redrive_allow_policy(found["redrive_allow_policy"])
    assert allowed is not None and allowed.source_queues == (arn("r1", "a"), arn("r2", "b"))
    assert found["visibility_timeout"] == 7
    unset: Mapping[str, Any] = {"RedrivePolicy": ""}
    assert located(unset, "r1") == unset


def test_an_arn_names_a_queue_by_region_and_name():
    assert parse_arn(arn("r1", "q")) == parse_arn("arn:aws:sqs:r1:123456789012:q") == QueueLocation("r1", "q")
    assert [parse_arn(text) for text in ("q", "arn:aws:sns:r1:1:q", "arn:aws:sqs::1:q", "arn:aws:sqs:r1:1:")] == [
        None
    ] * 4
