"""The sequences of tools that keep infrastructure as it was declared, as Terraform does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakequeue.serve.sqs.queue_attributes import Encryption
from serve.serving import client_of, serving

ARN = "arn:aws:sqs:local:000000000000:"
POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Sid": "s", "Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": f"{ARN}any"}
    ],
}
COMMON = {
    "DelaySeconds": "7",
    "MaximumMessageSize": "2048",
    "MessageRetentionPeriod": "86400",
    "ReceiveMessageWaitTimeSeconds": "3",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "77",
}
FIFO = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


def declared(kind: str) -> tuple[str, dict[str, Any]]:
    """The end of the queues' names, and all attributes of one of them; those that are JSON as values."""
    end = ".fifo" if kind == "fifo" else ""
    given: dict[str, Any] = COMMON | {
        "Policy": POLICY,
        "RedrivePolicy": {"deadLetterTargetArn": f"{ARN}{kind}-dead{end}", "maxReceiveCount": 4},
        "RedriveAllowPolicy": {"redrivePermission": "denyAll"},
    }
    return end, given | (FIFO if kind == "fifo" else {})


def texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def shown(client: Any, url: str) -> dict[str, Any]:
    """The attributes as such tools compare them: policies by their value."""
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {name: json.loads(value) if value.startswith("{") else value for name, value in found.items()}


@pytest.mark.spec("QUE-1")
@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_a_queue_is_declared_read_back_changed_tagged_and_deleted(client: Any, kind: str) -> None:
    end, given = declared(kind)
    dead_attributes = {"FifoQueue": "true"} if end else {}
    dead = client.create_queue(QueueName=f"{kind}-dead{end}", Attributes=dead_attributes)["QueueUrl"]
    name, attributes, tags = f"{kind}-declared{end}", texts(given), {"team": "lake", "stage": "test"}
    url = client.create_queue(QueueName=name, Attributes=attributes, tags=tags)["QueueUrl"]
    first = shown(client, url)
    assert {key: first.get(key) for key in given} == given
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == tags
    assert (
        client.create_queue(QueueName=name, Attributes=attributes, tags=tags)["QueueUrl"] == url
    )  # applied again

    # each attribute alone changes nothing else
    changes: dict[str, Any] = {
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": "30",
        "RedriveAllowPolicy": {"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}other{end}"]},
        "RedrivePolicy": {"deadLetterTargetArn": f"{ARN}{kind}-dead{end}", "maxReceiveCount": 5},
        "Policy": POLICY | {"Id": "changed"},
    }
    changes |= {"ContentBasedDeduplication": "false"} if end else {}
    before = first
    for key, value in changes.items():
        client.set_queue_attributes(QueueUrl=url, Attributes=texts({key: value}))
        after = shown(client, url)
        assert after == before | {key: value, "LastModifiedTimestamp": after["LastModifiedTimestamp"]}
        before = after

    # what is no longer declared is set to nothing
    for key in ("Policy", "RedrivePolicy", "RedriveAllowPolicy"):
        client.set_queue_attributes(QueueUrl=url, Attributes={key: ""})
        assert key not in shown(client, url)

    client.untag_queue(QueueUrl=url, TagKeys=["stage"])
    client.tag_queue(QueueUrl=url, Tags={"team": "queue", "cost": "1"})
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "queue", "cost": "1"}

    for each in (url, dead):
        client.delete_queue(QueueUrl=each)
        with pytest.raises(ClientError) as gone:
            client.get_queue_attributes(QueueUrl=each, AttributeNames=["All"])
        assert gone.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


@pytest.mark.spec("QUE-1")
def test_keys_of_kms_are_kept_where_the_operator_ignores_them(tmp_path: Path) -> None:
    """Elsewhere they are refused: their promise cannot be kept here."""
    given = {"KmsMasterKeyId": "alias/lake", "KmsDataKeyReusePeriodSeconds": "600"}
    create = {"QueueName": "sealed", "Attributes": given}
    encryption = Encryption(ignore_kms=True, sse_managed=True)
    with serving(tmp_path / "root", encryption=encryption) as server, client_of(server.url) as client:
        url = client("CreateQueue", **create)["QueueUrl"]
        assert client("CreateQueue", **create)["QueueUrl"] == url  # applied again
        asked = {"QueueUrl": url, "AttributeNames": ["All"]}
        found = client("GetQueueAttributes", **asked)["Attributes"]
        assert found.items() >= given.items() and found["SqsManagedSseEnabled"] == "false"
        alone = client("GetQueueAttributes", QueueUrl=url, AttributeNames=["SqsManagedSseEnabled"])
        assert alone["Attributes"] == {"SqsManagedSseEnabled": "false"}
        client("SetQueueAttributes", QueueUrl=url, Attributes={"KmsMasterKeyId": ""})
        named = {"QueueUrl": url, "AttributeNames": ["KmsDataKeyReusePeriodSeconds"]}
        for more in {}, {"KmsDataKeyReusePeriodSeconds": "900"}:
            client("SetQueueAttributes", QueueUrl=url, Attributes={"KmsMasterKeyId": ""} | more)
            found = client("GetQueueAttributes", **asked)["Attributes"]
            assert not given.keys() & found.keys() and found["SqsManagedSseEnabled"] == "true"
            assert client("GetQueueAttributes", **named) == {}
        client("SetQueueAttributes", QueueUrl=url, Attributes={"KmsMasterKeyId": "k"})
        assert client("GetQueueAttributes", **named)["Attributes"] == {"KmsDataKeyReusePeriodSeconds": "900"}
        for period in "59", "86401", "x", "-1", "300.0", "٣٠٠":
            for call in ("SetQueueAttributes", {"QueueUrl": url}), ("CreateQueue", {"QueueName": "other"}):
                refused = client.post(call[0], **call[1], Attributes={"KmsDataKeyReusePeriodSeconds": period})
                assert refused.status_code == 400 and "InvalidAttributeValue" in refused.text, refused.text
                assert "KmsDataKeyReusePeriodSeconds: must be from 60 to 86400." in refused.text
        for period in "60", "86400":
            client("SetQueueAttributes", QueueUrl=url, Attributes={"KmsDataKeyReusePeriodSeconds": period})
            assert client("GetQueueAttributes", **named)["Attributes"] == {"KmsDataKeyReusePeriodSeconds": period}
        both = {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}
        refused = client.post("SetQueueAttributes", QueueUrl=url, Attributes=both)
        assert refused.status_code == 400 and "You can use one type of server-side encryption" in refused.text
        client("SetQueueAttributes", QueueUrl=url, Attributes={"SqsManagedSseEnabled": "true"})
        found = client("GetQueueAttributes", **asked)["Attributes"]
        assert not given.keys() & found.keys() and found["SqsManagedSseEnabled"] == "true"
        client("SetQueueAttributes", QueueUrl=url, Attributes={"KmsMasterKeyId": "k"})
        found = client("GetQueueAttributes", **asked)["Attributes"]
        assert (found["KmsMasterKeyId"], found["SqsManagedSseEnabled"]) == ("k", "false")
        url = client("CreateQueue", QueueName="default", Attributes={"KmsMasterKeyId": "k"})["QueueUrl"]
        found = client("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert found["KmsDataKeyReusePeriodSeconds"] == "300"
