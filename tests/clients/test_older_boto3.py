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
def printed(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the walkthrough prints."""
    where = tmp_path_factory.mktemp("older")
    python, environment = environment_with(where, *VERSIONS)
    found: dict[str, Any] = json.loads(output([python, PROGRAM, served.url], where, **environment))
    assert found["protocol"] == "query"
    return found


def test_every_action_is_there(printed: dict[str, Any]) -> None:
    assert printed["undone"] == []


@pytest.mark.spec("QUE-1")
def test_queues_are_shown(served: ServerProcess, printed: dict[str, Any]) -> None:
    url = f"{served.url}/000000000000/source"
    assert printed["url"] == [url, url] and printed["listed"] == [url] and printed["sources"] == [url]
    assert printed["attributes"]["VisibilityTimeout"] == "50"
    assert json.loads(printed["attributes"]["RedrivePolicy"])["maxReceiveCount"] == 1
    assert printed["tags"] == {"team": "ä & <b>", "stage": "test"}
    [statement] = json.loads(printed["policy"])["Statement"]
    assert (statement["Sid"], statement["Action"]) == ("p", "SQS:SendMessage")


@pytest.mark.spec("MSA-1", "MSA-2", "MSA-4", "RCV-11", "BAT-4", "SND-15")
def test_messages_come_as_they_were_sent(printed: dict[str, Any]) -> None:
    assert printed["batch"] == {"sent": ["late", "good"], "failed": [["bad", "InvalidMessageContents", True]]}
    assert printed["received"]["bodies"] == ["good", "line\r\nbreak\ttab <&> \U0001f9c0 "]
    assert printed["received"]["same"] == 4 * [True]
    assert printed["received"]["attributes"]["AWSTraceHeader"] == "Root=1-5759e988-bd862e3fe1be46a994272793"
    assert printed["received"]["attributes"]["ApproximateReceiveCount"] == "1"
    assert printed["changed"] == printed["deleted"] == [["a"], ["b"]]


@pytest.mark.spec("DLQ-2", "DLQ-8")
def test_dead_letters_go_and_come_back(printed: dict[str, Any]) -> None:
    assert printed["moved"] == [] and printed["again"] == ["good"]
    assert printed["task"]["ApproximateNumberOfMessagesToMove"] == 1


@pytest.mark.spec("DDP-8", "ATT-3")
def test_fifo_sends_and_receives_may_be_repeated(printed: dict[str, Any]) -> None:
    assert printed["duplicate"] == [True, True] and printed["attempts"] == 1


@pytest.mark.spec("ERR-1", "ERR-6")
def test_refusals_have_the_older_codes(printed: dict[str, Any]) -> None:
    codes = {name: (error["Code"], error["Type"], error["status"]) for name, error in printed["errors"].items()}
    assert codes == {
        "cancel_message_move_task": ("ResourceNotFoundException", "Sender", 404),
        "delete_message": ("ReceiptHandleIsInvalid", "Sender", 404),
        "receive_message": ("InvalidParameterValue", "Sender", 400),
        "purge_queue": ("AWS.SimpleQueueService.PurgeQueueInProgress", "Sender", 403),
        "send_message": ("AWS.SimpleQueueService.NonExistentQueue", "Sender", 400),
    }
    for error in printed["errors"].values():
        assert error["Message"] and len(error["request"]) == 36
    assert printed["errors"]["send_message"]["class"] == "QueueDoesNotExist"
