"""What queues do for a client of boto3 that no table of answers shows, and where the service model comes from."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.model import OperationModel

from lakequeue.serve.sqs.model import VERSION, operations
from serve.protocols import Json, Refused
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


# --- the service model


def test_a_newer_service_model_in_the_home_directory_is_ignored(tmp_path: Path) -> None:
    newer = tmp_path / ".aws" / "models" / "sqs" / VERSION / "service-2.json"
    newer.parent.mkdir(parents=True)
    model = Loader().load_service_model("sqs", "service-2", VERSION)
    model["operations"]["Haunt"] = dict(model["operations"]["ListQueues"], name="Haunt")
    newer.write_text(json.dumps(model))
    asked = """
import boto3, json
from lakequeue.serve.sqs.model import operations
client = boto3.client("sqs", region_name="local", aws_access_key_id="a", aws_secret_access_key="b")
print(json.dumps([client.meta.service_model.operation_names, [*operations()]]))
"""
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, check=True)
    theirs, ours = json.loads(done.stdout)
    assert "Haunt" in theirs and "Haunt" not in ours and "ListQueues" in ours


def test_every_action_of_the_service_model_is_there(client: Any) -> None:
    assert {*client.meta.service_model.operation_names} == {*operations()}
    assert len(operations()) == 23


def test_what_only_a_newer_botocore_knows_is_refused(
    server: Running, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    purge, url = operations()["PurgeQueue"], create()
    named = OperationModel(purge._operation_model, purge._service_model, "PurgeQueues")
    newer = {**operations(), "PurgeQueues": named}
    monkeypatch.setattr("lakequeue.serve.sqs.model.operations", lambda: newer)
    ask = Json(server.url)
    with pytest.raises(Refused) as refused:
        ask("PurgeQueues", QueueUrl=url)
    assert (refused.value.status, refused.value.name) == (400, "UnsupportedOperation")
    monkeypatch.setitem(purge.input_shape.members, "Gently", purge.input_shape.members["QueueUrl"])
    with pytest.raises(Refused, match="Gently is not a member"):
        ask("PurgeQueue", QueueUrl=url, Gently="yes")


# --- queues


def test_a_queue_that_was_made_through_python_is_the_same_queue(server: Running, client: Any) -> None:
    server.lake.create_queue("made-in-python", max_inflight_messages=5)
    url = client.create_queue(QueueName="made-in-python")["QueueUrl"]
    assert client.get_queue_url(QueueName="made-in-python")["QueueUrl"] == url
    assert server.lake.queue("made-in-python").attributes()["profile"] == "lake"


@pytest.mark.spec("QUE-3")
def test_a_queue_that_another_process_deleted_and_made_again_is_found(timed: Running) -> None:
    client = sqs(timed.url)
    timed.lake.create_queue("again")
    url = client.get_queue_url(QueueName="again")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="before")
    timed.lake.delete_queue("again")
    timed.lake.create_queue("again").send("after")
    received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in received] == ["after"]


def test_urls_name_the_host_that_the_client_knows(server: Running, create: Create) -> None:
    name = create().rpartition("/")[2]
    known = server.url.replace("127.0.0.1", "localhost")
    assert sqs(known).get_queue_url(QueueName=name)["QueueUrl"] == f"{known}/000000000000/{name}"


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


@pytest.mark.spec("SND-15")
def test_the_longest_trace_header_is_taken(client: Any, create: Create) -> None:
    given = {"AWSTraceHeader": {"DataType": "String", "StringValue": "x" * 1_024}}
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


@pytest.mark.spec("DLQ-3")
def test_a_queue_cannot_become_its_own_dead_letter_queue(server: Running, create: Create) -> None:
    client, url = sqs(server.url), create()
    target = attribute(client, url, "QueueArn")
    policy = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 2})
    code, message = refusal(client.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert code == "InvalidParameterValue" and "deadLetterTargetArn must name another queue." in message


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
