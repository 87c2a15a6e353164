"""The AWS command line, in an environment of its own: it pins a botocore."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from clients.running_tools import environment_with, output
from serve.serving import ServerProcess

PROGRAM = Path(__file__).with_name("awscli_walkthrough.py")

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def told(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the walkthrough prints."""
    where = tmp_path_factory.mktemp("awscli")
    python, environment = environment_with(where, "awscli>=1.40,<2")
    found: dict[str, Any] = json.loads(output([python, PROGRAM, served.url], where, **environment))
    return found


def test_every_command_is_there(told: dict[str, Any]) -> None:
    assert told["unused"] == []


@pytest.mark.spec("QUE-1")
def test_queues(served: ServerProcess, told: dict[str, Any]) -> None:
    assert told["url"] and told["sources"] and told["timeout"] == "50"
    assert told["pages"] == [f"{served.url}/000000000000/{name}" for name in ("dead", "source")]
    assert told["tags"] == {"team": "lake", "stage": "test"}


@pytest.mark.spec("MSA-1", "BAT-4", "DLQ-2", "DLQ-8")
def test_messages(told: dict[str, Any]) -> None:
    assert told["batch"] == [["a"], ["b"]]
    bodies, attributes = told["received"]
    assert bodies == ["käse", "one"]
    # this command line takes bytes as they are typed, and prints them in base64
    assert attributes["b"] == {"DataType": "Binary", "BinaryValue": base64.b64encode(b"AP8=").decode()}
    assert attributes["s"] == {"DataType": "String", "StringValue": "ä"}
    assert told["changed"] == told["deleted"] == [{"Id": "a"}]
    assert told["none"] is None and told["again"] == "one" and told["tasks"] == 1


@pytest.mark.spec("ERR-1")
def test_refusals_are_one_line(told: dict[str, Any]) -> None:
    for said, action, name, text in (
        (
            "refused",
            "SendMessage",
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist.",
        ),
        ("cancelled", "CancelMessageMoveTask", "ResourceNotFoundException", "Task does not exist."),
    ):
        code, printed, errors = told[said]
        expected = f"An error occurred ({name}) when calling the {action} operation: {text}"
        assert code == 255 and not printed and errors == expected
