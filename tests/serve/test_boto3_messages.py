"""Messages through boto3: sending, receiving, deleting, keeping, in batches too, on both kinds of queues."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakequeue.model.digests import md5_of_attributes
from lakequeue.testing import ManualClock
from serve.serving import Running, sqs

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


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["All"], ["foo.a", "foo.b", "other"]),
        ([".*"], ["foo.a", "foo.b", "other"]),
        (["foo.*"], ["foo.a", "foo.b"]),
        (["foo.a", "other", "unknown"], ["foo.a", "other"]),
        (["unknown"], []),
        ([], []),
    ],
)
@pytest.mark.spec("MSA-4")
def test_message_attributes_are_chosen_by_name_and_prefix(
    client: Any, create: Create, names: list[str], found: list[str]
) -> None:
    url = create()
    value = {"DataType": "String.tag", "StringValue": "x"}
    client.send_message(
        QueueUrl=url, MessageBody="x", MessageAttributes=dict.fromkeys(["foo.a", "foo.b", "other"], value)
    )
    [message] = receive(client, url, MessageAttributeNames=names)
    assert message.get("MessageAttributes", {}) == dict.fromkeys(found, value)
    expected = md5_of_attributes(dict.fromkeys(found, ("String.tag", "x")))
    assert message.get("MD5OfMessageAttributes") == expected


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


@pytest.mark.spec("VIS-1", "VIS-4", "RCV-5", "RCV-12")
def test_visibility_is_that_of_the_queue_of_the_receive_or_of_a_change(timed: Running, clock: ManualClock) -> None:
    client = sqs(timed.url)
    url = client.create_queue(QueueName="visibility", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    [first] = receive(client, url)
    clock.advance(15)
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=10)
    clock.advance(9)
    assert not receive(client, url)
    clock.advance(1)
    [second] = receive(client, url, VisibilityTimeout=5)
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    clock.advance(5)
    [third] = receive(client, url, VisibilityTimeout=0)
    [fourth] = receive(client, url)
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=fourth["ReceiptHandle"], VisibilityTimeout=0)
    [fifth] = receive(client, url, AttributeNames=["ApproximateReceiveCount"])
    assert fifth["Attributes"] == {"ApproximateReceiveCount": "5"}
    clock.advance(59)
    assert not receive(client, url)
    client.delete_message(QueueUrl=url, ReceiptHandle=fifth["ReceiptHandle"])
    clock.advance(60)
    assert not receive(client, url)


@pytest.mark.spec("DLY-1", "DLY-9")
def test_delays_are_those_of_the_queue_or_of_the_message(timed: Running, clock: ManualClock) -> None:
    client = sqs(timed.url)
    url = client.create_queue(QueueName="delayed", Attributes={"DelaySeconds": "10"})["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="queue")
    client.send_message(QueueUrl=url, MessageBody="none", DelaySeconds=0)
    client.send_message(QueueUrl=url, MessageBody="own", DelaySeconds=20)
    assert bodies(client, url, MaxNumberOfMessages=10) == ["none"]
    clock.advance(9)
    assert not receive(client, url)
    clock.advance(1)
    assert bodies(client, url, MaxNumberOfMessages=10) == ["queue"]
    clock.advance(10)
    assert bodies(client, url, MaxNumberOfMessages=10) == ["own"]


@pytest.mark.spec("SND-4", "SND-7", "SEQ-1", "SEQ-2", "SEQ-4", "FIF-1", "FIF-4", "DDP-1", "DDP-8", "DDP-12")
def test_a_fifo_queue_keeps_order_and_knows_repeated_sends(timed: Running, clock: ManualClock) -> None:
    client = sqs(timed.url)
    url = client.create_queue(QueueName="order.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    def send(body: str, group: str, dedup: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=dedup
        )
        return answer

    sent = [send(body, body[0], body) for body in ("a1", "a2", "b1")]
    numbers = [int(answer["SequenceNumber"]) for answer in sent]
    assert numbers == sorted(numbers) and len({*numbers}) == 3 and numbers[0] > 10**18
    clock.advance(299)
    again = send("other", "c", "a1")
    assert (again["MessageId"], again["SequenceNumber"]) == (sent[0]["MessageId"], sent[0]["SequenceNumber"])
    assert again["MD5OfMessageBody"] == hashlib.md5(b"other").hexdigest()

    [first] = receive(client, url, AttributeNames=["All"])
    shown = first["Attributes"]
    assert first["Body"] == "a1" and shown["SequenceNumber"] == sent[0]["SequenceNumber"]
    assert (shown["MessageGroupId"], shown["MessageDeduplicationId"]) == ("a", "a1")
    assert bodies(client, url, MaxNumberOfMessages=10) == ["b1"]
    client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert bodies(client, url, MaxNumberOfMessages=10) == ["a2"]
    clock.advance(1)
    assert send("a1", "d", "a1")["MessageId"] != sent[0]["MessageId"]


@pytest.mark.spec("ATT-1", "ATT-3", "ATT-6", "ATT-10", "ATT-11")
def test_a_receive_with_an_attempt_id_may_be_repeated(timed: Running, clock: ManualClock) -> None:
    client = sqs(timed.url)
    url = client.create_queue(
        QueueName="attempts.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    )["QueueUrl"]
    for body in ("1", "2"):
        client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    first = receive(client, url, MaxNumberOfMessages=10, ReceiveRequestAttemptId="a")
    clock.advance(20)
    assert receive(client, url, MaxNumberOfMessages=10, ReceiveRequestAttemptId="a") == first
    assert not receive(client, url) and not receive(client, url, ReceiveRequestAttemptId="b")
    clock.advance(30)
    later = receive(client, url, MaxNumberOfMessages=10, ReceiveRequestAttemptId="a")
    assert [message["Body"] for message in later] == ["1", "2"]
    assert later[0]["ReceiptHandle"] != first[0]["ReceiptHandle"]


@pytest.mark.spec("FAI-1", "FAI-2", "FAI-4", "SND-14")
def test_message_groups_of_standard_queues_over_the_wire(client: Any) -> None:
    url = client.create_queue(QueueName="tenants", Attributes={"GroupInFlightLimit": "3"})["QueueUrl"]
    shown = client.get_queue_attributes(QueueUrl=url, AttributeNames=["FairGroups", "GroupInFlightLimit"])[
        "Attributes"
    ]
    assert (shown["FairGroups"], shown["GroupInFlightLimit"]) == ("true", "3")
    entries = [{"Id": str(n), "MessageBody": "x", "MessageGroupId": "noisy"} for n in range(10)]
    client.send_message_batch(QueueUrl=url, Entries=entries)
    client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="quiet")
    names = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["MessageGroupId"]}
    found = client.receive_message(QueueUrl=url, **names)["Messages"]
    groups = [message["Attributes"]["MessageGroupId"] for message in found]
    assert sorted(groups) == ["noisy"] * 3 + ["quiet"]
    assert "Messages" not in client.receive_message(QueueUrl=url, **names)
    for group in ("a b", "x" * 129):
        with pytest.raises(ClientError) as refused:
            client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId=group)
        assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
    for limit in ("0", "120001", "1.5", "x"):
        with pytest.raises(ClientError) as refused:
            client.set_queue_attributes(QueueUrl=url, Attributes={"GroupInFlightLimit": limit})
        assert refused.value.response["Error"]["Code"] == "InvalidAttributeValue"
    with pytest.raises(ClientError) as refused:
        attributes = {"FifoQueue": "true", "GroupInFlightLimit": "1"}
        client.create_queue(QueueName="tenants.fifo", Attributes=attributes)
    assert refused.value.response["Error"]["Code"] == "InvalidAttributeName"
