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


def attribute(client: Any, url: str, name: str) -> str:
    found: str = client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]
    return found


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


# --- queues


def test_what_is_removed_makes_room_for_more(client: Any, create: Create) -> None:
    url = create()
    client.tag_queue(QueueUrl=url, Tags={str(n): "" for n in range(50)})
    client.tag_queue(QueueUrl=url, Tags={"0": "changed"})
    client.untag_queue(QueueUrl=url, TagKeys=["absent", "0"])
    client.tag_queue(QueueUrl=url, Tags={"one": "more"})
    assert len(client.list_queue_tags(QueueUrl=url)["Tags"]) == 50
    permitted = {"QueueUrl": url, "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
    for number in range(20):
        client.add_permission(Label=str(number), **permitted)
    client.remove_permission(QueueUrl=url, Label="0")
    client.add_permission(Label="more", **permitted)


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


@pytest.mark.spec("SND-15")
def test_the_longest_trace_header_is_taken(client: Any, create: Create) -> None:
    given = {"AWSTraceHeader": text("x" * 1_024)}
    client.send_message(QueueUrl=create(), MessageBody="x", MessageSystemAttributes=given)


def test_a_client_may_name_the_shards_that_a_queue_has(client: Any, create: Create, server: Running) -> None:
    """More than sixteen of them only Python can make."""
    url = create(Shards="2")
    queue = server.lake.queue(url.rpartition("/")[2])
    assert queue.attributes()["shards"] == 2
    client.set_queue_attributes(QueueUrl=url, Attributes={"Shards": "3"})
    assert queue.attributes()["shards"] == 3
    queue.set_attributes(shards=17)
    assert client.create_queue(QueueName=queue.name, Attributes={"Shards": "17"})["QueueUrl"] == url
    client.set_queue_attributes(QueueUrl=url, Attributes={"Shards": "17", "DelaySeconds": "1"})
    refused = refusal(client.set_queue_attributes, QueueUrl=url, Attributes={"Shards": "18"})
    assert refused[0] == "InvalidAttributeValue"
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
    client.cancel_message_move_task(TaskHandle=handle)
    while client.list_message_move_tasks(SourceArn=letters)["Results"][0]["Status"] != "CANCELLED":
        timed.lake.clock.advance(1)
    assert refusal(client.cancel_message_move_task, TaskHandle=handle) == (
        "ResourceNotFoundException",
        "Task does not exist.",
    )


# --- messages


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
