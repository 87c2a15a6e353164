"""Queues, their attributes, tags and permissions, through boto3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader

from lakequeue.serve.sqs.model import VERSION, operations
from lakequeue.testing import ManualClock
from serve.serving import Running, serving, sqs

Create = Callable[..., str]


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


def test_urls_name_the_host_that_the_client_knows(server: Running, create: Create) -> None:
    name = create().rpartition("/")[2]
    known = server.url.replace("127.0.0.1", "localhost")
    assert sqs(known).get_queue_url(QueueName=name)["QueueUrl"] == f"{known}/000000000000/{name}"
