"""A boto3 from before today's protocol, in an environment of its own: it speaks the Query protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clients.running_tools import environment_with, output
from serve.serving import ServerProcess

PROGRAM = Path(__file__).with_name("older_walkthrough.py")
VERSIONS = ("boto3==1.28.80", "botocore==1.31.80")

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def told(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the walkthrough prints."""
    where = tmp_path_factory.mktemp("older")
    python, environment = environment_with(where, *VERSIONS)
    found: dict[str, Any] = json.loads(output([python, PROGRAM, served.url], where, **environment))
    assert found["protocol"] == "query"
    return found


def test_every_action_is_there(told: dict[str, Any]) -> None:
    assert told["undone"] == []


@pytest.mark.spec("QUE-1")
def test_queues_are_told(served: ServerProcess, told: dict[str, Any]) -> None:
    url = f"{served.url}/000000000000/source"
    assert told["url"] == [url, url] and told["listed"] == [url] and told["sources"] == [url]
    assert told["attributes"]["VisibilityTimeout"] == "50"
    assert json.loads(told["attributes"]["RedrivePolicy"])["maxReceiveCount"] == 1
    assert told["tags"] == {"team": "ä & <b>", "stage": "test"}
    [statement] = json.loads(told["policy"])["Statement"]
    assert (statement["Sid"], statement["Action"]) == ("p", "SQS:SendMessage")


@pytest.mark.spec("MSA-1", "MSA-2", "MSA-4", "RCV-11", "BAT-4", "SND-15")
def test_messages_come_as_they_were_sent(told: dict[str, Any]) -> None:
    assert told["batch"] == {"sent": ["late", "good"], "failed": [["bad", "InvalidMessageContents", True]]}
    assert told["received"]["bodies"] == ["good", "line\r\nbreak\ttab <&> \U0001f9c0 "]
    assert told["received"]["same"] == 4 * [True]
    assert told["received"]["attributes"]["AWSTraceHeader"] == "Root=1-5759e988-bd862e3fe1be46a994272793"
    assert told["received"]["attributes"]["ApproximateReceiveCount"] == "1"
    assert told["changed"] == told["deleted"] == [["a"], ["b"]]


@pytest.mark.spec("DLQ-2", "DLQ-8")
def test_dead_letters_go_and_come_back(told: dict[str, Any]) -> None:
    assert told["moved"] == [] and told["again"] == ["good"]
    assert told["task"]["ApproximateNumberOfMessagesToMove"] == 1


@pytest.mark.spec("DDP-8", "ATT-3")
def test_fifo_sends_and_receives_may_be_repeated(told: dict[str, Any]) -> None:
    assert told["duplicate"] == [True, True] and told["attempts"] == 1


@pytest.mark.spec("ERR-1", "ERR-6")
def test_refusals_have_the_older_codes(told: dict[str, Any]) -> None:
    codes = {name: (error["Code"], error["Type"], error["status"]) for name, error in told["errors"].items()}
    assert codes == {
        "cancel_message_move_task": ("ResourceNotFoundException", "Sender", 404),
        "delete_message": ("ReceiptHandleIsInvalid", "Sender", 404),
        "receive_message": ("InvalidParameterValue", "Sender", 400),
        "purge_queue": ("AWS.SimpleQueueService.PurgeQueueInProgress", "Sender", 403),
        "send_message": ("AWS.SimpleQueueService.NonExistentQueue", "Sender", 400),
    }
    for error in told["errors"].values():
        assert error["Message"] and len(error["request"]) == 36
    assert told["errors"]["send_message"]["class"] == "QueueDoesNotExist"
