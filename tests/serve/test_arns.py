"""ARNs, accounts and profiles as SQS clients see them, beside those of the Python API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakequeue import LakeQueue, RedriveAllowPolicy
from lakequeue.serve.keys import Key, Keys
from serve.serving import Running, serving, sqs

ACCOUNT = "123456789012"
REGION = "eu-west-1"
HERE = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"
PYTHON = f"arn:lakequeue:sqs:{REGION}:000000000000:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("account") / "root"
    with serving(root, region=REGION, account=ACCOUNT) as running:
        yield running


@pytest.fixture(scope="module")
def lake(server: Running) -> LakeQueue:
    return server.lake


def attributes(client: Any, url: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=[*names])["Attributes"]
    return found


def policy(arn: str) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})


def test_urls_and_arns_have_the_account_and_the_region(server: Running, client: Any, lake: LakeQueue) -> None:
    url = client.create_queue(QueueName="plain")["QueueUrl"]
    assert url == f"{server.url}/{ACCOUNT}/plain"
    assert client.get_queue_url(QueueName="plain")["QueueUrl"] == url
    assert url in client.list_queues()["QueueUrls"]
    for names in (["QueueArn"], ["All"]):
        assert attributes(client, url, *names)["QueueArn"] == f"{HERE}plain"
    assert lake.queue("plain").arn == f"{PYTHON}plain"
    client.add_permission(QueueUrl=url, Label="one", AWSAccountIds=["1" * 12], Actions=["*"])
    document = json.loads(attributes(client, url, "Policy")["Policy"])
    assert document["Id"] == f"{HERE}plain/SQSDefaultPolicy"
    assert document["Statement"][0]["Resource"] == f"{HERE}plain"


@pytest.mark.parametrize("form", [HERE, PYTHON, f"arn:aws-cn:sqs:{REGION}:000000000000:"])
@pytest.mark.spec("DLQ-2", "DLQ-6", "DLQ-7")
def test_policies_take_any_form_and_show_that_of_aws(client: Any, lake: LakeQueue, form: str) -> None:
    dead, source = (f"{name}{len(lake.list_queues())}" for name in ("dead", "source"))
    allowed = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [form + source]})
    dead_url = client.create_queue(QueueName=dead, Attributes={"RedriveAllowPolicy": allowed})["QueueUrl"]
    given = {"RedrivePolicy": policy(form + dead), "DelaySeconds": "0"}
    url = client.create_queue(QueueName=source, Attributes=given)["QueueUrl"]
    shown = json.loads(attributes(client, url, "RedrivePolicy")["RedrivePolicy"])
    assert shown == {"deadLetterTargetArn": HERE + dead, "maxReceiveCount": 1}
    shown = json.loads(attributes(client, dead_url, "All")["RedriveAllowPolicy"])
    assert shown == {"redrivePermission": "byQueue", "sourceQueueArns": [HERE + source]}
    assert client.list_dead_letter_source_queues(QueueUrl=dead_url)["queueUrls"] == [url]
    read = {name: value for name, value in attributes(client, url, "All").items() if name in given}
    assert client.create_queue(QueueName=source, Attributes=read)["QueueUrl"] == url  # what is read can be set
    assert (
        json.loads(lake.queue(source).attributes(wire=True)["RedrivePolicy"])["deadLetterTargetArn"]
        == PYTHON + dead
    )


def test_refusals_repeat_arns_in_the_form_of_aws(client: Any) -> None:
    url = client.create_queue(QueueName="strict")["QueueUrl"]
    client.create_queue(QueueName="ordered.fifo", Attributes={"FifoQueue": "true"})
    for form in (HERE, PYTHON):
        with pytest.raises(ClientError) as refused:
            client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy(f"{form}ordered.fifo")})
        message = refused.value.response["Error"]["Message"]
        assert f"{HERE}ordered.fifo" in message and "lakequeue" not in message


@pytest.mark.spec("DLQ-2", "DLQ-6", "DLQ-8")
def test_an_arn_of_another_account_is_refused(client: Any, lake: LakeQueue) -> None:
    for name in ("mine", "its-dead"):
        client.create_queue(QueueName=name)
    url = client.get_queue_url(QueueName="mine")["QueueUrl"]
    other = f"arn:aws:sqs:{REGION}:999999999999:its-dead"
    allowed = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [f"{HERE}mine", other]})
    for name, value in (("RedrivePolicy", policy(other)), ("RedriveAllowPolicy", allowed)):
        for call, given in (
            (client.set_queue_attributes, {"QueueUrl": url}),
            (client.create_queue, {"QueueName": f"new{name}"}),
        ):
            with pytest.raises(ClientError, match=f"Queue {other} is of another account") as refused:
                call(Attributes={name: value}, **given)
            assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert lake.queue("mine").attributes(wire=True).keys().isdisjoint({"RedrivePolicy", "RedriveAllowPolicy"})
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy(f"{HERE}its-dead")})
    for wrong in ({"SourceArn": other}, {"SourceArn": f"{HERE}its-dead", "DestinationArn": other}):
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.start_message_move_task(**wrong)


def test_other_allow_policies_are_shown_as_they_are(client: Any, lake: LakeQueue) -> None:
    lake.create_queue("closed", redrive_allow_policy=RedriveAllowPolicy("denyAll"))
    url = client.get_queue_url(QueueName="closed")["QueueUrl"]
    shown = attributes(client, url, "RedriveAllowPolicy")["RedriveAllowPolicy"]
    assert shown == '{"redrivePermission":"denyAll"}'
    wire = {"RedriveAllowPolicy": '{"redrivePermission": "denyAll", "sourceQueueArns": null}'}
    url = client.create_queue(QueueName="closed2", Attributes=wire)["QueueUrl"]
    assert attributes(client, url, "RedriveAllowPolicy") == {
        "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}'
    }


@pytest.mark.parametrize("form", [HERE, PYTHON])
@pytest.mark.spec("DLQ-4", "DLQ-8")
def test_dead_letters_and_their_tasks_show_the_form_of_aws(client: Any, lake: LakeQueue, form: str) -> None:
    name = f"task{len(lake.list_queues())}"
    dead = client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    given = {"RedrivePolicy": policy(f"{form}{name}-dead"), "VisibilityTimeout": "0"}
    source = client.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    client.send_message(QueueUrl=source, MessageBody="x")
    for _ in range(2):
        client.receive_message(QueueUrl=source)
    [letter] = client.receive_message(QueueUrl=dead, AttributeNames=["All"])["Messages"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == HERE + name
    assert letter["Attributes"]["SenderId"] == ACCOUNT
    client.start_message_move_task(SourceArn=f"{form}{name}-dead", DestinationArn=form + name)
    [task] = client.list_message_move_tasks(SourceArn=f"{form}{name}-dead")["Results"]
    assert (task["SourceArn"], task["DestinationArn"]) == (f"{HERE}{name}-dead", HERE + name)


def test_with_keys_the_sender_is_the_key_that_signed(tmp_path: Path) -> None:
    keys = Keys({"anybody": Key("anybody", "nothing")})
    with serving(tmp_path / "root", access=keys) as running:
        client = sqs(running.url)
        url = client.create_queue(QueueName="q")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="x")
        client.send_message_batch(QueueUrl=url, Entries=[{"Id": "0", "MessageBody": "y"}])
        running.application.actions.lake.queue("q").send("from Python")
        asked = {"MaxNumberOfMessages": 10, "AttributeNames": ["SenderId"]}
        received = client.receive_message(QueueUrl=url, **asked)["Messages"]
        assert [message.get("Attributes", {}) for message in received] == [
            {"SenderId": "anybody"},
            {"SenderId": "anybody"},
            {},
        ]


# --- profiles and rewind


@pytest.mark.spec("PRF-1", "PRF-2")
def test_a_client_chooses_the_profile_of_its_queue(client: Any, lake: LakeQueue) -> None:
    url = client.create_queue(QueueName="old", Attributes={"Profile": "sqs-2018"})["QueueUrl"]
    assert attributes(client, url, "Profile", "MaximumMessageSize") == {
        "Profile": "sqs-2018",
        "MaximumMessageSize": "262144",
    }
    assert "Profile" not in attributes(client, url, "All")
    assert attributes(client, url, "All", "Profile")["Profile"] == "sqs-2018"
    for given in ({}, {"Profile": "sqs-2018"}):
        assert client.create_queue(QueueName="old", Attributes=given)["QueueUrl"] == url
    with pytest.raises(client.exceptions.QueueNameExists, match="Profile"):
        client.create_queue(QueueName="old", Attributes={"Profile": "sqs"})
    with pytest.raises(ClientError, match="shorter than 262144 bytes"):
        client.send_message(QueueUrl=url, MessageBody="x" * 262_145)
    with pytest.raises(ClientError, match="not valid for this queue type"):
        client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")


@pytest.mark.spec("RWD-1", "RWD-4", "RWD-9")
def test_a_client_sets_how_far_a_queue_can_be_rewound(client: Any, lake: LakeQueue) -> None:
    url = client.create_queue(QueueName="back", Attributes={"RewindSeconds": "3600"})["QueueUrl"]
    assert attributes(client, url, "RewindSeconds") == {"RewindSeconds": "3600"}
    assert "RewindSeconds" not in attributes(client, url, "All")
    client.send_message(QueueUrl=url, MessageBody="x")
    [message] = client.receive_message(QueueUrl=url)["Messages"]
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert lake.queue("back").counts().rewindable == 1
    client.set_queue_attributes(QueueUrl=url, Attributes={"RewindSeconds": "0"})
    assert lake.queue("back").counts().rewindable == 0
    with pytest.raises(ClientError, match="RewindSeconds"):
        client.set_queue_attributes(QueueUrl=url, Attributes={"RewindSeconds": "1296001"})
