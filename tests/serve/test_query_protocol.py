"""The Query protocol in its own words: forms as older SDKs send them, and the XML that they read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from urllib.parse import quote
from xml.etree.ElementTree import Element

import pytest

from serve.queries import Queries, pairs, texts
from serve.serving import Running, wait_until

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"
_names = itertools.count()


@pytest.fixture
def path(query: Queries, server: Running) -> str:
    """The path of a new queue's URL."""
    name = f"queue{next(_names)}"
    url = query("CreateQueue", {"QueueName": name}).findtext("QueueUrl")
    assert url == f"{server.url}/000000000000/{name}"
    return f"/000000000000/{name}"


def test_queues_attributes_and_tags_are_spelled_out(query: Queries, server: Running) -> None:
    fields = {
        "QueueName": "spelled.fifo",
        "Attribute.1.Name": "FifoQueue",
        "Attribute.1.Value": "true",
        "Attribute.2.Name": "VisibilityTimeout",
        "Attribute.2.Value": "45",
        "Tag.1.Key": "team",
        "Tag.1.Value": "ä & <b>",
        "Tag.2.Key": "stage",
        "Tag.2.Value": "",
    }
    query("CreateQueue", fields)
    path = "/000000000000/spelled.fifo"
    assert query("GetQueueUrl", {"QueueName": "spelled.fifo"}).findtext("QueueUrl") == server.url + path
    asked = {"AttributeName.1": "FifoQueue", "AttributeName.2": "VisibilityTimeout"}
    assert pairs(query("GetQueueAttributes", asked, path), "Attribute") == {
        "FifoQueue": "true",
        "VisibilityTimeout": "45",
    }
    query("SetQueueAttributes", {"Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "7"}, path)
    assert pairs(query("GetQueueAttributes", {"AttributeName.1": "All"}, path), "Attribute")["DelaySeconds"] == "7"
    assert pairs(query("ListQueueTags", path=path), "Tag", "Key") == {"team": "ä & <b>", "stage": ""}
    query("TagQueue", {"Tag.1.Key": "new", "Tag.1.Value": "x"}, path)
    query("UntagQueue", {"TagKey.1": "team", "TagKey.2": "stage"}, path)
    assert pairs(query("ListQueueTags", path=path), "Tag", "Key") == {"new": "x"}
    query("DeleteQueue", path=path)
    assert query.refused("ListQueueTags", path=path) == (400, "AWS.SimpleQueueService.NonExistentQueue")


def test_lists_of_queues_come_in_pages(query: Queries, server: Running) -> None:
    for number in range(3):
        server.lake.create_queue(f"paged{number}")
    urls = [f"{server.url}/000000000000/paged{number}" for number in range(3)]
    asked = {"QueueNamePrefix": "paged", "MaxResults": "2"}
    first = query("ListQueues", asked)
    assert texts(first, "QueueUrl") == urls[:2]
    last = query("ListQueues", asked | {"NextToken": first.findtext("NextToken") or ""})
    assert texts(last, "QueueUrl") == urls[2:] and last.find("NextToken") is None


def test_permissions_are_spelled_out(query: Queries, path: str) -> None:
    fields = {
        "Label": "one",
        "AWSAccountId.1": "111122223333",
        "AWSAccountId.2": "444455556666",
        "ActionName.1": "SendMessage",
        "ActionName.2": "ReceiveMessage",
    }
    query("AddPermission", fields, path)
    asked = {"AttributeName.1": "Policy"}
    policy = json.loads(pairs(query("GetQueueAttributes", asked, path), "Attribute")["Policy"])
    [statement] = policy["Statement"]
    assert statement["Action"] == ["SQS:SendMessage", "SQS:ReceiveMessage"]
    assert len(statement["Principal"]["AWS"]) == 2
    query("RemovePermission", {"Label": "one"}, path)
    assert pairs(query("GetQueueAttributes", asked, path), "Attribute") == {}


@pytest.mark.spec("MSA-1", "MSA-2", "RCV-11", "SND-15")
def test_a_message_with_attributes_of_each_type_is_spelled_out(query: Queries, path: str) -> None:
    body = "käse\r\n\t<&>\"' \U0001f9c0 "
    fields = {
        "MessageBody": body,
        "DelaySeconds": "0",
        "MessageAttribute.1.Name": "a",
        "MessageAttribute.1.Value.DataType": "String",
        "MessageAttribute.1.Value.StringValue": "x",
        "MessageAttribute.2.Name": "n",
        "MessageAttribute.2.Value.DataType": "Number",
        "MessageAttribute.2.Value.StringValue": "42",
        "MessageAttribute.3.Name": "b",
        "MessageAttribute.3.Value.DataType": "Binary",
        "MessageAttribute.3.Value.BinaryValue": "AP8=",
        "MessageSystemAttribute.1.Name": "AWSTraceHeader",
        "MessageSystemAttribute.1.Value.DataType": "String",
        "MessageSystemAttribute.1.Value.StringValue": TRACE,
    }
    sent = query("SendMessage", fields, path)
    assert sent.findtext("MD5OfMessageAttributes") == "1fe88e4d2f79f54876ff8f1d00671b3e"
    assert sent.find("MD5OfMessageSystemAttributes") is not None
    asked = {
        "MaxNumberOfMessages": "10",
        "VisibilityTimeout": "60",
        "WaitTimeSeconds": "1",
        "AttributeName.1": "All",
        "MessageAttributeName.1": "a",
        "MessageAttributeName.2": "b",
        "MessageAttributeName.3": "n",
    }
    [message] = query("ReceiveMessage", asked, path).findall("Message")
    for name, as_sent in (("MessageId", "MessageId"), ("MD5OfBody", "MD5OfMessageBody")):
        assert message.findtext(name) == sent.findtext(as_sent)
    assert message.findtext("Body") == body
    assert message.findtext("MD5OfMessageAttributes") == sent.findtext("MD5OfMessageAttributes")
    shown = pairs(message, "Attribute")
    assert shown["AWSTraceHeader"] == TRACE and shown["ApproximateReceiveCount"] == "1"
    own = {
        each.findtext("Name"): [(part.tag, part.text) for part in each.findall("Value/*")]
        for each in message.findall("MessageAttribute")
    }
    assert own == {
        "a": [("StringValue", "x"), ("DataType", "String")],
        "n": [("StringValue", "42"), ("DataType", "Number")],
        "b": [("BinaryValue", "AP8="), ("DataType", "Binary")],
    }


def test_system_attributes_may_be_asked_for_by_their_newer_name(query: Queries, path: str) -> None:
    query("SendMessage", {"MessageBody": "x"}, path)
    asked = {"MessageSystemAttributeName.1": "ApproximateReceiveCount"}
    [message] = query("ReceiveMessage", asked, path).findall("Message")
    assert pairs(message, "Attribute") == {"ApproximateReceiveCount": "1"}


@pytest.mark.spec("BAT-4")
def test_batches_are_spelled_out(query: Queries, path: str) -> None:
    entry = "SendMessageBatchRequestEntry"
    sent = query(
        "SendMessageBatch",
        {
            f"{entry}.1.Id": "one",
            f"{entry}.1.MessageBody": "first",
            f"{entry}.1.MessageAttribute.1.Name": "MyAttribute",
            f"{entry}.1.MessageAttribute.1.Value.DataType": "String",
            f"{entry}.1.MessageAttribute.1.Value.StringValue": "foobar",
            f"{entry}.2.Id": "two",
            f"{entry}.2.MessageBody": "second",
            f"{entry}.2.DelaySeconds": "901",
            f"{entry}.10.Id": "ten",
            f"{entry}.10.MessageBody": "last",
        },
        path,
    )
    results = sent.findall("SendMessageBatchResultEntry")
    assert [result.findtext("Id") for result in results] == ["one", "ten"]  # 10 comes after 2
    assert results[0].findtext("MD5OfMessageAttributes") == "adb59cd4678ea5a855436b949cd07ab6"
    assert failures(sent) == [("two", "InvalidParameterValue", "true")]

    received = query("ReceiveMessage", {"MaxNumberOfMessages": "10"}, path)
    assert texts(received, "Message/Body") == ["first", "last"]
    handles = texts(received, "Message/ReceiptHandle")
    entry = "ChangeMessageVisibilityBatchRequestEntry"
    fields = {f"{entry}.1.Id": "a", f"{entry}.1.ReceiptHandle": handles[0], f"{entry}.1.VisibilityTimeout": "99"}
    fields |= {f"{entry}.2.Id": "b", f"{entry}.2.ReceiptHandle": "x", f"{entry}.2.VisibilityTimeout": "99"}
    changed = query("ChangeMessageVisibilityBatch", fields, path)
    assert texts(changed, "ChangeMessageVisibilityBatchResultEntry/Id") == ["a"]
    assert failures(changed) == [("b", "ReceiptHandleIsInvalid", "true")]

    query("ChangeMessageVisibility", {"ReceiptHandle": handles[1], "VisibilityTimeout": "0"}, path)
    [again] = texts(query("ReceiveMessage", path=path), "Message/ReceiptHandle")
    query("DeleteMessage", {"ReceiptHandle": again}, path)
    entry = "DeleteMessageBatchRequestEntry"
    fields = {f"{entry}.1.Id": "a", f"{entry}.1.ReceiptHandle": handles[0]}
    fields |= {f"{entry}.2.Id": "b", f"{entry}.2.ReceiptHandle": "x"}
    deleted = query("DeleteMessageBatch", fields, path)
    assert texts(deleted, "DeleteMessageBatchResultEntry/Id") == ["a"]
    assert failures(deleted) == [("b", "ReceiptHandleIsInvalid", "true")]
    query("PurgeQueue", path=path)


def failures(found: Element) -> list[tuple[str | None, ...]]:
    parts = ("Id", "Code", "SenderFault")
    assert all(failure.findtext("Message") for failure in found.findall("BatchResultErrorEntry"))
    return [tuple(map(failure.findtext, parts)) for failure in found.findall("BatchResultErrorEntry")]


@pytest.mark.spec("DDP-8", "ATT-3", "SEQ-2")
def test_fifo_parameters_are_spelled_out(query: Queries) -> None:
    query("CreateQueue", {"QueueName": "x.fifo", "Attribute.1.Name": "FifoQueue", "Attribute.1.Value": "true"})
    path = "/000000000000/x.fifo"
    fields = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first, second = (query("SendMessage", fields, path) for _ in range(2))
    assert first.findtext("SequenceNumber") == second.findtext("SequenceNumber") != ""
    asked = {"ReceiveRequestAttemptId": "a"}
    received = [texts(query("ReceiveMessage", asked, path), "Message/ReceiptHandle") for _ in range(2)]
    assert received[0] == received[1] and len(received[0]) == 1


@pytest.mark.spec("DLQ-7", "DLQ-8")
def test_dead_letters_and_move_tasks_are_spelled_out(query: Queries, server: Running, path: str) -> None:
    arn = pairs(query("GetQueueAttributes", {"AttributeName.1": "QueueArn"}, path), "Attribute")["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    source = f"source{next(_names)}"
    fields = {"QueueName": source, "Attribute.1.Name": "RedrivePolicy", "Attribute.1.Value": policy}
    query("CreateQueue", fields)
    sources = query("ListDeadLetterSourceQueues", path=path)
    assert texts(sources, "QueueUrl") == [f"{server.url}/000000000000/{source}"]
    handle = query("StartMessageMoveTask", {"SourceArn": arn}).findtext("TaskHandle")
    assert handle

    def tasks() -> list[Element]:
        asked = {"SourceArn": arn, "MaxResults": "10"}
        return query("ListMessageMoveTasks", asked).findall("ListMessageMoveTasksResultEntry")

    wait_until(lambda: tasks()[0].findtext("Status") == "COMPLETED")
    [task] = tasks()
    assert task.findtext("ApproximateNumberOfMessagesMoved") == "0" and task.findtext("SourceArn") == arn
    assert query.refused("CancelMessageMoveTask", {"TaskHandle": handle}) == (404, "ResourceNotFoundException")


@pytest.mark.parametrize("place", ["path", "field", "legacy path", "quoted path"])
def test_the_queue_is_named_by_the_path_or_by_a_field(
    query: Queries, server: Running, path: str, place: str
) -> None:
    name = path.rpartition("/")[2]
    where: dict[str, Callable[[str, dict[str, str]], Element]] = {
        "path": lambda action, fields: query(action, fields, path),
        "field": lambda action, fields: query(action, fields | {"QueueUrl": f"http://elsewhere:1/2/{name}"}),
        "legacy path": lambda action, fields: query(action, fields, f"/queue/{name}"),
        "quoted path": lambda action, fields: query(action, fields, f"/000000000000/%{ord(name[0]):x}{name[1:]}"),
    }
    where[place]("SendMessage", {"MessageBody": place})
    assert texts(where[place]("ReceiveMessage", {}), "Message/Body") == [place]


def test_a_field_wins_over_the_path(query: Queries, path: str) -> None:
    query("SendMessage", {"MessageBody": "x", "QueueUrl": path}, "/000000000000/no-such-queue")
    assert texts(query("ReceiveMessage", path=path), "Message/Body") == ["x"]


def test_a_list_of_one_needs_no_number(query: Queries, path: str) -> None:
    """As in the sample of the ReceiveMessage reference."""
    value = "MessageAttribute.1.Value"
    attribute = {"MessageAttribute.1.Name": "a", f"{value}.DataType": "String", f"{value}.StringValue": "b"}
    query("SendMessage", {"MessageBody": "x"} | attribute, path)
    asked = {"MaxNumberOfMessages": "5", "VisibilityTimeout": "15", "AttributeName": "All"}
    [message] = query("ReceiveMessage", asked | {"MessageAttributeName": "a"}, path).findall("Message")
    assert pairs(message, "Attribute")["ApproximateReceiveCount"] == "1"
    assert message.findtext("MessageAttribute/Name") == "a"
    shown = pairs(query("GetQueueAttributes", {"AttributeName": "All"}, path), "Attribute")
    assert shown["QueueArn"].endswith(path.rpartition("/")[2])
    query("TagQueue", {"Tag.1.Key": "k", "Tag.1.Value": "v"}, path)
    query("UntagQueue", {"TagKey": "k"}, path)
    assert pairs(query("ListQueueTags", path=path), "Tag", "Key") == {}
    both = {"AttributeName": "All", "AttributeName.1": "All"}
    assert query.refused("GetQueueAttributes", both, path) == (400, "SerializationException")
    assert query.refused("SendMessageBatch", {"Entries": "x"}, path) == (400, "SerializationException")


def test_unknown_parameters_are_ignored(query: Queries, path: str) -> None:
    """As in AWS's "Making query API requests", where CreateQueue has a DefaultVisibilityTimeout."""
    name = f"unknown{next(_names)}"
    query("CreateQueue", {"QueueName": name, "DefaultVisibilityTimeout": "40"})
    shown = query("GetQueueAttributes", {"AttributeName": "VisibilityTimeout"}, f"/000000000000/{name}")
    assert pairs(shown, "Attribute") == {"VisibilityTimeout": "30"}
    entry = "SendMessageBatchRequestEntry.1"
    sent = {f"{entry}.Id": "a", f"{entry}.MessageBody": "x", f"{entry}.More.1": "y", "tags": "z"}
    assert texts(query("SendMessageBatch", sent, path), "SendMessageBatchResultEntry/Id") == ["a"]


def test_text_that_xml_cannot_hold_is_shown_as_unknown(query: Queries, path: str) -> None:
    """An error repeats what it refuses, here a control character."""
    fields = {"ReceiptHandle": "a\x01b"}
    assert query.refused("DeleteMessage", fields, path) == (404, "ReceiptHandleIsInvalid")
    assert "a\ufffdb" in query.send("DeleteMessage", fields, path).text


def test_a_name_is_quoted_in_no_url(server: Running, query: Queries) -> None:
    """The names that queues may have need no quoting."""
    name = "A-z_09.fifo"
    fields = {"QueueName": name, "Attribute.1.Name": "FifoQueue", "Attribute.1.Value": "true"}
    url = query("CreateQueue", fields).findtext("QueueUrl") or ""
    assert url == quote(url, safe=":/")
