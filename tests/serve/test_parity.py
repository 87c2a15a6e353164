"""What SQS answers where the service model leaves it open: texts, values and names that AWS accepts or refuses.

Most answers were recorded from AWS by other projects' public tests.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from botocore.model import OperationModel

from lakequeue.serve.sqs.model import operations
from serve.serving import Running, sqs

Create = Callable[..., str]
TRACE = "Root=1-3152b799-8954dae64eda91bc9a23a7e8;Parent=7fa8c0f79203be72;Sampled=1"
_names = itertools.count()


def refusal(call: Callable[..., Any], **given: Any) -> tuple[str, str]:
    """Code and message of a refusal."""
    with pytest.raises(ClientError) as refused:
        call(**given)
    error = refused.value.response["Error"]
    return error["Code"], error["Message"]


@pytest.fixture(scope="module")
def unchecked(server: Running) -> Any:
    """A client that sends what boto3 would not let through."""
    return sqs(server.url, parameter_validation=False)


def attribute(client: Any, url: str, name: str) -> str:
    found: str = client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]
    return found


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


# --- queues


@pytest.mark.parametrize("true", ["True", "TRUE", "true"])
def test_flags_may_be_capitalized(client: Any, true: str) -> None:
    name = f"capital{next(_names)}.fifo"
    given = {"FifoQueue": true, "ContentBasedDeduplication": true}
    url = client.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    assert attribute(client, url, "FifoQueue") == attribute(client, url, "ContentBasedDeduplication") == "true"
    client.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "False"})
    assert attribute(client, url, "ContentBasedDeduplication") == "false"
    assert refusal(client.create_queue, QueueName=name, Attributes={"FifoQueue": "yes"}) == (
        "InvalidAttributeValue",
        "Invalid value for the parameter FifoQueue.",
    )


@pytest.mark.spec("QUE-2")
def test_a_standard_queue_has_no_attribute_fifo_queue(client: Any, create: Create) -> None:
    unknown = ("InvalidAttributeName", "Unknown Attribute FifoQueue.")
    for value in ("false", "False"):
        given = {"Attributes": {"FifoQueue": value}}
        assert refusal(client.create_queue, QueueName=f"standard{next(_names)}", **given) == unknown
        assert refusal(client.set_queue_attributes, QueueUrl=create(), **given) == unknown
    given = {"Attributes": {"FifoQueue": "false"}}
    assert refusal(client.create_queue, QueueName="named.fifo", **given)[0] == "InvalidParameterValue"


@pytest.mark.spec("QUE-2")
def test_the_kind_of_a_fifo_queue_is_fixed(client: Any, create: Create) -> None:
    url = create(FifoQueue="true")
    client.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"})
    assert refusal(client.set_queue_attributes, QueueUrl=url, Attributes={"FifoQueue": "false"}) == (
        "InvalidAttributeValue",
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    )


def test_a_missing_queue_has_no_attributes_not_even_none(client: Any, server: Running, create: Create) -> None:
    missing = ("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
    url = create()
    assert "Attributes" not in client.get_queue_attributes(QueueUrl=url)
    client.delete_queue(QueueUrl=url)
    for gone in (url, f"{server.url}/000000000000/never"):
        for asked in ({}, {"AttributeNames": ["SqsManagedSseEnabled"]}):
            assert refusal(client.get_queue_attributes, QueueUrl=gone, **asked) == missing


def test_permissions_have_the_version_that_aws_writes(client: Any, create: Create) -> None:
    url = create()
    client.add_permission(QueueUrl=url, Label="one", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    assert json.loads(attribute(client, url, "Policy"))["Version"] == "2008-10-17"


def test_tags_come_by_one_to_fifty(unchecked: Any, create: Create) -> None:
    url = create()
    assert refusal(unchecked.tag_queue, QueueUrl=url, Tags={}) == (
        "MissingParameter",
        "The request must contain the parameter Tags.",
    )
    name = url.rpartition("/")[2]
    assert refusal(unchecked.tag_queue, QueueUrl=url, Tags={str(n): "" for n in range(51)}) == (
        "InvalidParameterValue",
        f"Too many tags added for queue {name}.",
    )
    assert refusal(unchecked.untag_queue, QueueUrl=url, TagKeys=[]) == (
        "InvalidParameterValue",
        "Tag keys must be between 1 and 128 characters in length.",
    )
    unchecked.tag_queue(QueueUrl=url, Tags={str(n): "" for n in range(50)})
    assert len(unchecked.list_queue_tags(QueueUrl=url)["Tags"]) == 50
    assert refusal(unchecked.tag_queue, QueueUrl=url, Tags={"one": "more"})[0] == "InvalidParameterValue"
    unchecked.tag_queue(QueueUrl=url, Tags={"0": "changed"})
    unchecked.untag_queue(QueueUrl=url, TagKeys=["absent", "0"])
    unchecked.tag_queue(QueueUrl=url, Tags={"one": "more"})
    many = {str(n): "" for n in range(51)}
    assert refusal(unchecked.create_queue, QueueName="tagged", tags=many)[0] == "InvalidParameterValue"


def test_policies_have_twenty_statements_and_eight_kilobytes(client: Any, create: Create) -> None:
    url = create()

    def refused(**attributes: Any) -> str:
        given = {name: json.dumps(value) for name, value in attributes.items()}
        return refusal(client.set_queue_attributes, QueueUrl=url, Attributes=given)[0]

    statement = {"Effect": "Allow", "Action": "sqs:*"}
    assert refused(Policy={"Statement": [statement] * 21}) == "InvalidAttributeValue"
    assert refused(Policy={"Statement": [], "Id": "x" * 8_192}) == "InvalidAttributeValue"
    sources = {"redrivePermission": "byQueue", "sourceQueueArns": ["x" * 8_192]}
    assert refused(RedriveAllowPolicy=sources) == "InvalidAttributeValue"
    for number in range(20):
        client.add_permission(
            QueueUrl=url, Label=str(number), AWSAccountIds=["111122223333"], Actions=["SendMessage"]
        )
    more = {"QueueUrl": url, "Label": "more", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
    assert refusal(client.add_permission, **more)[0] == "InvalidAttributeValue"
    client.remove_permission(QueueUrl=url, Label="0")
    client.add_permission(**more)


def test_a_queue_of_another_account_is_not_there(client: Any, create: Create) -> None:
    name = create().rpartition("/")[2]
    refused = refusal(client.get_queue_url, QueueName=name, QueueOwnerAWSAccountId="111122223333")
    assert refused[0] == "AWS.SimpleQueueService.NonExistentQueue"


def test_an_action_that_only_a_newer_botocore_knows(
    client: Any, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = operations()["PurgeQueue"]
    named = OperationModel(known._operation_model, known._service_model, "PurgeQueues")
    newer = {**operations(), "PurgeQueues": named}
    monkeypatch.setattr("lakequeue.serve.sqs.model.operations", lambda: newer)
    url = create()
    target = {"X-Amz-Target": "AmazonSQS.PurgeQueues", "Content-Type": "application/x-amz-json-1.0"}
    answer = httpx.post(client.meta.endpoint_url, json={"QueueUrl": url}, headers=target, trust_env=False)
    assert answer.status_code == 400 and answer.json()["__type"].endswith("#UnsupportedOperation")


def test_a_member_that_only_a_newer_botocore_knows(
    client: Any, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, url = operations()["PurgeQueue"].input_shape, create()
    monkeypatch.setitem(shape.members, "Gently", shape.members["QueueUrl"])
    target = {"X-Amz-Target": "AmazonSQS.PurgeQueue", "Content-Type": "application/x-amz-json-1.0"}
    given = {"QueueUrl": url, "Gently": "yes"}
    answer = httpx.post(client.meta.endpoint_url, json=given, headers=target, trust_env=False)
    assert answer.status_code == 400 and "Gently is not a member" in answer.text


def test_an_entry_that_is_too_large_cannot_be_validated(client: Any, create: Create) -> None:
    url = create(MaximumMessageSize="1024")
    reason = "Reason: Message must be shorter than 1024 bytes."
    failed = client.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "x" * 1_025}])["Failed"]
    assert failed[0]["Message"] == f"One or more parameters cannot be validated. {reason}"
    refused = refusal(client.send_message, QueueUrl=url, MessageBody="x" * 1_025)
    assert refused[1] == f"One or more parameters are invalid. {reason}"


@pytest.mark.spec("SND-15")
def test_a_trace_header_has_a_limit(client: Any, create: Create) -> None:
    given = {"AWSTraceHeader": {"DataType": "String", "StringValue": "x" * 1_025}}
    sent = {"QueueUrl": create(), "MessageBody": "x", "MessageSystemAttributes": given}
    assert refusal(client.send_message, **sent)[0] == "InvalidParameterValue"
    given["AWSTraceHeader"]["StringValue"] = "x" * 1_024
    client.send_message(**sent)


def test_a_client_creates_queues_of_sixteen_shards_at_most(client: Any, server: Running) -> None:
    refused = refusal(client.create_queue, QueueName="wide", Attributes={"Shards": "17"})
    assert refused == (
        "InvalidAttributeValue",
        "Invalid value for the parameter Shards. Reason: Must be at most 16 here.",
    )
    refused = refusal(client.create_queue, QueueName="wide", Attributes={"Shards": "many"})
    assert refused[0] == "InvalidAttributeValue"
    server.lake.create_queue("wide", shards=17, profile="sqs")
    assert client.create_queue(QueueName="wide", Attributes={"Shards": "17"})["QueueUrl"].endswith("/wide")


def test_a_client_raises_shards_to_sixteen_at_most(client: Any, create: Create, server: Running) -> None:
    url = create()
    refused = refusal(client.set_queue_attributes, QueueUrl=url, Attributes={"Shards": "17"})
    assert refused == (
        "InvalidAttributeValue",
        "Invalid value for the parameter Shards. Reason: Must be at most 16 here.",
    )
    client.set_queue_attributes(QueueUrl=url, Attributes={"Shards": "2"})
    queue = server.lake.queue(url.rpartition("/")[2])
    assert queue.attributes()["shards"] == 2
    queue.set_attributes(shards=17)
    client.set_queue_attributes(QueueUrl=url, Attributes={"Shards": "17", "DelaySeconds": "1"})
    assert refusal(client.set_queue_attributes, QueueUrl=url, Attributes={"Shards": "18"}) == refused
    assert queue.attributes(["Shards", "DelaySeconds"], wire=True) == {"Shards": "17", "DelaySeconds": "1"}


# --- dead-letter queues


@pytest.mark.parametrize("fifo", [False, True])
def test_a_queue_that_is_its_own_dead_letter_queue_keeps_its_messages(timed: Running, fifo: bool) -> None:
    client = sqs(timed.url)
    more = {"Attributes": {"FifoQueue": "true"}} if fifo else {}
    url = client.create_queue(QueueName="own.fifo" if fifo else "own", **more)["QueueUrl"]
    arn = attribute(client, url, "QueueArn")
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert json.loads(attribute(client, url, "RedrivePolicy")) == json.loads(policy)
    assert client.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == [url]
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if fifo else {}
    client.send_message(QueueUrl=url, MessageBody="x", **ids)
    for count in ("1", "2", "3", "4"):
        asked = {"QueueUrl": url, "VisibilityTimeout": 30, "AttributeNames": ["ApproximateReceiveCount"]}
        [message] = client.receive_message(**asked)["Messages"]
        assert message["Attributes"] == {"ApproximateReceiveCount": count}
        timed.lake.clock.advance(31)
    client.start_message_move_task(SourceArn=arn)  # finds nothing to move


def test_move_tasks_are_refused_in_the_words_of_aws(timed: Running) -> None:
    client = sqs(timed.url)
    urls = [client.create_queue(QueueName=name)["QueueUrl"] for name in ("letters", "origin")]
    letters, origin = (attribute(client, url, "QueueArn") for url in urls)
    assert refusal(client.start_message_move_task, SourceArn=letters) == (
        "InvalidParameterValue",
        "Source queue must be configured as a Dead Letter Queue.",
    )
    policy = json.dumps({"deadLetterTargetArn": letters, "maxReceiveCount": 1})
    client.set_queue_attributes(QueueUrl=urls[1], Attributes={"RedrivePolicy": policy})
    for n in range(3):
        client.send_message(QueueUrl=urls[0], MessageBody=str(n))
    asked = {"SourceArn": letters, "DestinationArn": origin, "MaxNumberOfMessagesPerSecond": 1}
    handle = client.start_message_move_task(**asked)["TaskHandle"]  # one a second, and time stands still
    assert json.loads(base64.urlsafe_b64decode(handle))["sourceArn"] == letters
    assert letters.startswith("arn:aws:sqs:")
    assert refusal(client.start_message_move_task, **asked) == (
        "InvalidParameterValue",
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
    )
    assert refusal(client.cancel_message_move_task, TaskHandle="garbage") == (
        "InvalidParameterValue",
        "Value for parameter TaskHandle is invalid.",
    )
    client.cancel_message_move_task(TaskHandle=handle)
    while client.list_message_move_tasks(SourceArn=letters)["Results"][0]["Status"] != "CANCELLED":
        timed.lake.clock.advance(1)
    assert refusal(client.cancel_message_move_task, TaskHandle=handle) == (
        "ResourceNotFoundException",
        "Task does not exist.",
    )


# --- messages


@pytest.mark.parametrize("action", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
@pytest.mark.spec("BAT-5")
def test_an_empty_batch_is_refused_in_the_words_of_its_action(
    unchecked: Any, create: Create, server: Running, action: str
) -> None:
    call = {
        "SendMessageBatch": unchecked.send_message_batch,
        "DeleteMessageBatch": unchecked.delete_message_batch,
        "ChangeMessageVisibilityBatch": unchecked.change_message_visibility_batch,
    }[action]
    assert refusal(call, QueueUrl=create(), Entries=[]) == (
        "AWS.SimpleQueueService.EmptyBatchRequest",
        f"There should be at least one {action}RequestEntry in the request.",
    )
    missing = f"{server.url}/000000000000/never"
    assert refusal(call, QueueUrl=missing, Entries=[])[0] == "AWS.SimpleQueueService.NonExistentQueue"


@pytest.mark.spec("MSA-2")
def test_attribute_names_have_letters_and_digits_of_ascii(client: Any, create: Create) -> None:
    url = create()
    given = {"attr.1-A_z": text("Valid"), "_": text("x")}
    sent = client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=given)
    [message] = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"] == given
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


@pytest.mark.parametrize(
    "name", ["a!b", 'a"b', "a§b", "a(b", "a b", "a\u0007b", "€", "ä", "名前_1", "a١", ".a", "a.", "a..b", ""]
)
@pytest.mark.spec("MSA-3")
def test_attribute_names_may_have_no_other_characters(unchecked: Any, create: Create, name: str) -> None:
    given = {"QueueUrl": create(), "MessageBody": "x", "MessageAttributes": {name: text("x")}}
    assert refusal(unchecked.send_message, **given)[0] == "InvalidParameterValue"


@pytest.mark.parametrize("value", ["\b", "a\x0bb", "\uffff"])
@pytest.mark.spec("MSA-3")
def test_control_characters_in_the_value_of_an_attribute(client: Any, create: Create, value: str) -> None:
    url = create()
    given = {"MessageBody": "x", "MessageAttributes": {"Bad": text(value)}}
    code, message = refusal(client.send_message, QueueUrl=url, **given)
    assert code == "InvalidParameterValue" and "'Bad'" in message
    sent = client.send_message_batch(
        QueueUrl=url, Entries=[{"Id": "bad", **given}, {"Id": "good", "MessageBody": "y"}]
    )
    assert [done["Id"] for done in sent["Successful"]] == ["good"]
    assert [(failed["Id"], failed["Code"]) for failed in sent["Failed"]] == [("bad", "InvalidParameterValue")]


@pytest.mark.spec("MSA-3", "BAT-4")
def test_an_attribute_without_a_value(unchecked: Any, create: Create) -> None:
    url = create()
    for value in (text(""), {"DataType": "String"}):
        given = {"QueueUrl": url, "MessageBody": "x", "MessageAttributes": {"ErrorDetails": value}}
        assert refusal(unchecked.send_message, **given) == (
            "InvalidParameterValue",
            "Message (user) attribute 'ErrorDetails' must contain a non-empty value of type 'String'.",
        )
        bad = {"Id": "bad", "MessageBody": "x", "MessageAttributes": {"ErrorDetails": value}}
        sent = unchecked.send_message_batch(QueueUrl=url, Entries=[bad, {"Id": "good", "MessageBody": "y"}])
        assert [done["Id"] for done in sent["Successful"]] == ["good"]
        assert [(failed["Id"], failed["Code"]) for failed in sent["Failed"]] == [("bad", "InvalidParameterValue")]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], []),
        (["All"], ["General", "Hello", "Help.Me"]),
        (["*"], ["General", "Hello", "Help.Me"]),
        ([".*"], ["General", "Hello", "Help.Me"]),
        (["Hel.*"], ["Hello", "Help.Me"]),
        (["Help.*"], ["Help.Me"]),
        (["Help..*"], ["Help.Me"]),
        (["hel.*"], []),
        (["Hello", "Gen.*"], ["General", "Hello"]),
        (["Help", "AWS.", "..foo", "Hel*"], []),
        (["*", "Foo"], ["General", "Hello", "Help.Me"]),
    ],
    ids=str,
)
@pytest.mark.spec("MSA-4")
def test_message_attributes_are_chosen_as_aws_chooses_them(
    client: Any, create: Create, names: list[str], found: list[str]
) -> None:
    url = create()
    given = {"Help.Me": text("Me"), "Hello": text("There"), "General": text("Kenobi")}
    client.send_message(QueueUrl=url, MessageBody="msg", MessageAttributes=given)
    # boto3 compares the digest with what it received
    [message] = client.receive_message(QueueUrl=url, MessageAttributeNames=names)["Messages"]
    assert message.get("MessageAttributes", {}) == {name: given[name] for name in found}
    assert ("MD5OfMessageAttributes" in message) == bool(found)


@pytest.mark.spec("SND-15")
def test_the_header_of_x_ray_becomes_the_trace_header(server: Running, create: Create) -> None:
    client = sqs(server.url)

    def add_header(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = TRACE

    client.meta.events.register("before-send.sqs", add_header)
    url = create()
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2"}}
    for given in ({}, {"MessageSystemAttributes": own}):
        client.send_message(QueueUrl=url, MessageBody="x", **given)
    client.send_message_batch(QueueUrl=url, Entries=[{"Id": "0", "MessageBody": "x"}])
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["AWSTraceHeader"]}
    traces = [each.get("Attributes", {}) for each in client.receive_message(**asked)["Messages"]]
    assert traces == [{"AWSTraceHeader": TRACE}, {"AWSTraceHeader": "Root=1-2"}, {}]
