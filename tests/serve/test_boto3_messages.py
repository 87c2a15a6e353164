"""Messages through boto3: sending, receiving, deleting, keeping, in batches too, on both kinds of queues."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from lakequeue.model.messages import md5_of_attributes

Create = Callable[..., str]

TEXT = "This is my message text."
ATTRIBUTES = {
    "a": {"DataType": "String", "StringValue": "x"},
    "n": {"DataType": "Number", "StringValue": "42"},
    "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
MD5_OF_ATTRIBUTES = "1fe88e4d2f79f54876ff8f1d00671b3e"
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"
TRACE_ATTRIBUTE = {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}}


def receive(client: Any, url: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.receive_message(QueueUrl=url, **more).get("Messages", [])
    return found


def bodies(client: Any, url: str, **more: Any) -> list[str]:
    return [message["Body"] for message in receive(client, url, **more)]


@pytest.mark.spec("MSA-1", "MSA-2", "SND-3", "SND-15", "RCV-10")
def test_a_message_comes_as_it_was_sent(client: Any, create: Create) -> None:
    url = create()
    sent = client.send_message(
        QueueUrl=url,
        MessageBody=TEXT,
        MessageAttributes=ATTRIBUTES,
        MessageSystemAttributes=TRACE_ATTRIBUTE,
    )
    assert sent["MD5OfMessageBody"] == "6a1559560f67c5e7a7d5d838bf0272ee"
    assert sent["MD5OfMessageAttributes"] == MD5_OF_ATTRIBUTES
    assert sent["MD5OfMessageSystemAttributes"] == md5_of_attributes({"AWSTraceHeader": ("String", TRACE)})
    assert "SequenceNumber" not in sent
    [message] = receive(client, url, MessageAttributeNames=["All"])
    handle = message.pop("ReceiptHandle")
    assert message == {
        "MessageId": sent["MessageId"],
        "MD5OfBody": sent["MD5OfMessageBody"],
        "Body": TEXT,
        "MD5OfMessageAttributes": MD5_OF_ATTRIBUTES,
        "MessageAttributes": ATTRIBUTES,
    }
    client.delete_message(QueueUrl=url, ReceiptHandle=handle)
    client.delete_message(QueueUrl=url, ReceiptHandle=handle)


@pytest.mark.parametrize(
    "body", ["x", "ä\U0001f9c0\ufffd", "\t\r\n \u2028", "\"\\/<&>'", "x" * 1_048_576], ids=lambda body: body[:4]
)
@pytest.mark.spec("SND-12", "SND-2")
def test_any_allowed_text_survives(client: Any, create: Create, body: str) -> None:
    url = create()
    sent = client.send_message(QueueUrl=url, MessageBody=body)
    assert sent["MD5OfMessageBody"] == hashlib.md5(body.encode()).hexdigest()
    assert bodies(client, url) == [body]


@pytest.mark.parametrize("asked", ["AttributeNames", "MessageSystemAttributeNames"])
@pytest.mark.spec("RCV-11")
def test_system_attributes_come_if_they_are_asked_for(client: Any, create: Create, asked: str) -> None:
    url = create(VisibilityTimeout="0")
    before = int(time.time() * 1_000)
    client.send_message(
        QueueUrl=url, MessageBody="x", MessageGroupId="fair", MessageSystemAttributes=TRACE_ATTRIBUTE
    )
    [plain] = receive(client, url)
    assert "Attributes" not in plain
    [full] = receive(client, url, **{asked: ["All"]})
    shown = full["Attributes"]
    first = int(shown.pop("ApproximateFirstReceiveTimestamp"))
    assert before <= int(shown.pop("SentTimestamp")) <= first <= time.time() * 1_000 + 1
    assert shown == {
        "ApproximateReceiveCount": "2",
        "AWSTraceHeader": TRACE,
        "MessageGroupId": "fair",
        "SenderId": "000000000000",
    }
    [some] = receive(client, url, **{asked: ["ApproximateReceiveCount", "SequenceNumber"]})
    assert some["Attributes"] == {"ApproximateReceiveCount": "3"}


@pytest.mark.spec("BAT-2", "BAT-4", "BAT-6")
def test_a_batch_tells_for_each_entry_what_became_of_it(client: Any, create: Create) -> None:
    url = create()
    result = client.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "plain", "MessageBody": "plain"},
            {"Id": "full", "MessageBody": TEXT, "MessageAttributes": ATTRIBUTES}
            | {"MessageSystemAttributes": TRACE_ATTRIBUTE, "DelaySeconds": 0},
            {"Id": "late", "MessageBody": "late", "DelaySeconds": 900},
            {"Id": "bad", "MessageBody": "\x01"},
            {"Id": "slow", "MessageBody": "x", "DelaySeconds": 901},
        ],
    )
    full = {entry["Id"]: entry for entry in result["Successful"]}["full"]
    assert [entry["Id"] for entry in result["Successful"]] == ["plain", "full", "late"]
    assert full["MD5OfMessageBody"] == hashlib.md5(TEXT.encode()).hexdigest()
    assert full["MD5OfMessageAttributes"] == MD5_OF_ATTRIBUTES and full["MD5OfMessageSystemAttributes"]
    failed = [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in result["Failed"]]
    assert failed == [("bad", "InvalidMessageContents", True), ("slow", "InvalidParameterValue", True)]
    assert all(entry["Message"] for entry in result["Failed"])
    messages = receive(client, url, MaxNumberOfMessages=10)
    assert [message["Body"] for message in messages] == ["plain", TEXT]

    handles = [message["ReceiptHandle"] for message in messages]
    changed = client.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "back", "ReceiptHandle": handles[0], "VisibilityTimeout": 0},
            {"Id": "kept", "ReceiptHandle": handles[1], "VisibilityTimeout": 60},
            {"Id": "long", "ReceiptHandle": handles[1], "VisibilityTimeout": 43_201},
            {"Id": "garbage", "ReceiptHandle": "garbage", "VisibilityTimeout": 60},
        ],
    )
    assert [entry["Id"] for entry in changed["Successful"]] == ["back", "kept"]
    assert [(entry["Id"], entry["Code"]) for entry in changed["Failed"]] == [
        ("long", "InvalidParameterValue"),
        ("garbage", "ReceiptHandleIsInvalid"),
    ]
    [again] = receive(client, url, MaxNumberOfMessages=10)
    assert again["Body"] == "plain"

    deleted = client.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "one", "ReceiptHandle": again["ReceiptHandle"]},
            {"Id": "two", "ReceiptHandle": "garbage"},
            {"Id": "three", "ReceiptHandle": handles[1]},
        ],
    )
    assert [entry["Id"] for entry in deleted["Successful"]] == ["one", "three"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in deleted["Failed"]] == [
        ("two", "ReceiptHandleIsInvalid", True)
    ]


@pytest.mark.spec("BAT-4")
def test_a_batch_tells_nothing_of_what_there_was_not(client: Any, create: Create) -> None:
    url = create()
    good, bad = {"Id": "good", "MessageBody": "x"}, {"Id": "bad", "MessageBody": "\x01"}
    shown = [
        {"Successful", "Failed"} & {*client.send_message_batch(QueueUrl=url, Entries=entries)}
        for entries in ([good], [bad], [good, bad])
    ]
    assert shown == [{"Successful"}, {"Failed"}, {"Successful", "Failed"}]
