"""The AWS SDK for JavaScript v3 and sqs-consumer, from npm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clients.running_tools import output
from serve.serving import ServerProcess

PROJECT = Path(__file__).with_name("javascript")

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def printed(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the walkthrough prints."""
    project = tmp_path_factory.mktemp("javascript") / "walkthrough"  # npm writes beside the sources
    shutil.copytree(PROJECT, project)
    output(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"], project)
    found: dict[str, Any] = json.loads(output(["node", "walkthrough.js", served.url], project))
    return found


@pytest.mark.spec("BAT-4", "DEL-1", "RCV-6", "VIS-1", "VIS-4")
def test_a_consumer_handles_each_message_extends_it_and_gives_back_what_failed(printed: dict[str, Any]) -> None:
    assert printed["batch"] == {
        "successful": ["n0", "n1", "n2", "n3"],
        "failed": [["n4", "InvalidMessageContents", True]],
    }
    assert sorted((done["body"], done["count"]) for done in printed["handled"]) == [
        *(("a", 1), ("b", 1), ("c", 1)),
        *(("fails once", 2), ("slow", 1)),
    ]
    failures = [
        failure for failure in printed["failures"] if not failure.endswith("Request aborted")
    ]  # by its stop
    assert failures == ["Unexpected message handler failure: once"]
    assert printed["extensions"] >= 4


@pytest.mark.spec("MSA-3")
def test_message_attributes_of_each_type_arrive(printed: dict[str, Any]) -> None:
    [slow] = [done for done in printed["handled"] if done["body"] == "slow"]
    assert slow["id"] == printed["sent"]
    assert slow["attributes"] == {
        "kind": {"DataType": "String", "StringValue": "käse 🧀"},
        "size": {"DataType": "Number.float", "StringValue": "12.5"},
        "picture": {"DataType": "Binary", "BinaryValue": {"0": 0, "1": 255}},
    }


@pytest.mark.spec("ERR-1", "ERR-6")
def test_errors_have_the_names_that_the_sdk_knows(printed: dict[str, Any]) -> None:
    named = {
        command: (error["name"], error["code"], error["status"]) for command, error in printed["errors"].items()
    }
    assert named == {
        "DeleteMessageCommand": ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404),
        "ReceiveMessageCommand": ("InvalidParameterValue", "InvalidParameterValue", 400),
        "SendMessageCommand": ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400),
    }
    for error in printed["errors"].values():
        assert (error["fault"], error["type"]) == ("client", "Sender")
        assert error["message"] and len(error["requestId"]) == 36
