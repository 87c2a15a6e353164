"""Queues, their attributes, tags and permissions, through boto3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader

from lakequeue import RedrivePolicy
from lakequeue.serve.sqs.model import VERSION, operations
from lakequeue.testing import ManualClock
from serve.serving import Running, serving, sqs

Create = Callable[..., str]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Running]:
    """A server of one test, for what lists all queues."""
    with serving(tmp_path / "root") as running:
        yield running


def attributes(client: Any, url: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=[*names] or ["All"])[
        "Attributes"
    ]
    return found


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


@pytest.mark.spec("QUE-1", "PRF-1")
def test_a_new_queue_has_profile_sqs_and_its_attributes(server: Running, client: Any, create: Create) -> None:
    url = create()
    name = url.rpartition("/")[2]
    shown = attributes(client, url)
    for instant in ("CreatedTimestamp", "LastModifiedTimestamp"):
        assert int(shown.pop(instant)) > 1_700_000_000
    assert shown == {
        "VisibilityTimeout": "30",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "MaximumMessageSize": "1048576",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "SqsManagedSseEnabled": "false",
        "QueueArn": f"arn:aws:sqs:local:000000000000:{name}",
    }
    assert server.lake.queue(name).attributes()["profile"] == "sqs"


def test_a_new_fifo_queue_has_those_of_fifo_queues_too(client: Any, create: Create) -> None:
    shown = attributes(client, create(FifoQueue="true", ContentBasedDeduplication="true"))
    names = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
    assert {name: shown.get(name) for name in names} == {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }


def test_attributes_are_told_by_name_and_set(client: Any, create: Create) -> None:
    url = create(DelaySeconds="5", KmsMasterKeyId="", SqsManagedSseEnabled="false")
    assert "Attributes" not in client.get_queue_attributes(QueueUrl=url)
    assert attributes(client, url, "DelaySeconds") == {"DelaySeconds": "5"}
    changes = {
        "DelaySeconds": "0",
        "VisibilityTimeout": "43200",
        "MaximumMessageSize": "1024",
        "MessageRetentionPeriod": "60",
        "ReceiveMessageWaitTimeSeconds": "20",
        "Policy": json.dumps({"Version": "2012-10-17", "Statement": []}),
    }
    client.set_queue_attributes(QueueUrl=url, Attributes=changes)
    assert attributes(client, url, *changes) == changes
    client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert "Policy" not in attributes(client, url)


def test_a_queue_that_was_made_through_python_is_the_same_queue(server: Running, client: Any) -> None:
    server.lake.create_queue("made-in-python", max_inflight_messages=5)
    url = client.create_queue(QueueName="made-in-python")["QueueUrl"]
    assert (
        client.get_queue_url(QueueName="made-in-python", QueueOwnerAWSAccountId="000000000000")["QueueUrl"] == url
    )
    assert server.lake.queue("made-in-python").attributes()["profile"] == "lake"


@pytest.mark.spec("QUE-3")
def test_a_queue_that_another_process_deleted_and_made_again_is_found(tmp_path: Path) -> None:
    with serving(tmp_path / "root", clock=ManualClock()) as running:
        client = sqs(running.url)
        running.lake.create_queue("again")
        url = client.get_queue_url(QueueName="again")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="before")
        running.lake.delete_queue("again")
        running.lake.create_queue("again").send("after")
        received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        assert [message["Body"] for message in received] == ["after"]


@pytest.mark.spec("QUE-23")
def test_queues_are_listed_by_prefix_and_in_pages(alone: Running) -> None:
    client = sqs(alone.url)
    assert "QueueUrls" not in client.list_queues()
    names = [f"orders-{number}" for number in range(5)]
    for name in [*names, "other"]:
        alone.lake.create_queue(name)
    urls = [f"{alone.url}/000000000000/{name}" for name in names]
    assert client.list_queues()["QueueUrls"] == [*urls, f"{alone.url}/000000000000/other"]
    first = client.list_queues(QueueNamePrefix="orders", MaxResults=2)
    assert first["QueueUrls"] == urls[:2]
    pages = client.get_paginator("list_queues").paginate(
        QueueNamePrefix="orders", PaginationConfig={"PageSize": 2, "StartingToken": first["NextToken"]}
    )
    assert [page["QueueUrls"] for page in pages] == [urls[2:4], urls[4:]]
    assert "NextToken" not in client.list_queues(QueueNamePrefix="orders", MaxResults=5)
    assert "QueueUrls" not in client.list_queues(QueueNamePrefix="nothing")


@pytest.mark.spec("DLQ-7")
def test_sources_of_a_dead_letter_queue_are_listed_in_pages(alone: Running) -> None:
    client = sqs(alone.url)
    dead = client.create_queue(QueueName="dead")["QueueUrl"]
    assert client.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == []
    for number in range(3):
        alone.lake.create_queue(f"source{number}", redrive_policy=RedrivePolicy("dead", 2))
    pages = client.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )
    urls = [f"{alone.url}/000000000000/source{number}" for number in range(3)]
    assert [page["queueUrls"] for page in pages] == [urls[:2], urls[2:]]


@pytest.mark.spec("NAM-7", "NAM-11")
@pytest.mark.parametrize(
    "form",
    [
        "{url}",
        "{base}/queue/{name}",
        "/000000000000/{name}",
        "/{name}",
        "{name}",
        "{base}/{name}/",
        "https://sqs.eu-west-1.amazonaws.com/111122223333/{name}",
        "http://localhost.localstack.cloud:4566/000000000000/{name}",
        "http://queue.amazonaws.com/{name}",
    ],
)
def test_a_queue_is_found_under_every_form_of_its_url(client: Any, create: Create, form: str) -> None:
    url = create()
    base, _, name = url.rpartition("/")
    other = form.format(url=url, base=base.removesuffix("/000000000000"), name=name)
    client.send_message(QueueUrl=other, MessageBody=form)
    [message] = client.receive_message(QueueUrl=other)["Messages"]
    assert message["Body"] == form
    client.delete_message(QueueUrl=other, ReceiptHandle=message["ReceiptHandle"])
    client.purge_queue(QueueUrl=other)


def test_urls_name_the_host_that_the_client_knows(server: Running, create: Create) -> None:
    name = create().rpartition("/")[2]
    known = server.url.replace("127.0.0.1", "localhost")
    assert sqs(known).get_queue_url(QueueName=name)["QueueUrl"] == f"{known}/000000000000/{name}"


@pytest.mark.spec("PUR-1")
def test_a_purge_empties_what_the_counts_tell(timed: Running) -> None:
    client = sqs(timed.url)
    url = client.create_queue(QueueName="purged")["QueueUrl"]
    for delay in (0, 0, 900):
        client.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    client.receive_message(QueueUrl=url)
    counts = {
        "ApproximateNumberOfMessages": "1",
        "ApproximateNumberOfMessagesNotVisible": "1",
        "ApproximateNumberOfMessagesDelayed": "1",
    }
    assert attributes(client, url, *counts) == counts
    client.purge_queue(QueueUrl=url)
    assert attributes(client, url, *counts) == dict.fromkeys(counts, "0")
