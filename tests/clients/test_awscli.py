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
def printed(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the walkthrough prints."""
    where = tmp_path_factory.mktemp("awscli")
    python, environment = environment_with(where, "awscli>=1.40,<2")
    found: dict[str, Any] = json.loads(output([python, PROGRAM, served.url], where, **environment))
    return found


def test_every_command_is_there(printed: dict[str, Any]) -> None:
    assert printed["unused"] == []


@pytest.mark.spec("QUE-1")
def test_queues(served: ServerProcess, printed: dict[str, Any]) -> None:
    assert printed["url"] and printed["sources"] and printed["timeout"] == "50"
    assert printed["pages"] == [f"{served.url}/000000000000/{name}" for name in ("dead", "source")]
    assert printed["tags"] == {"team": "lake", "stage": "test"}


@pytest.mark.spec("MSA-1", "BAT-4", "DLQ-2", "DLQ-8")
def test_messages(printed: dict[str, Any]) -> None:
    assert printed["batch"] == [["a"], ["b"]]
    bodies, attributes = printed["received"]
    assert bodies == ["käse", "one"]
    # this command line takes bytes as they are typed, and prints them in base64
    assert attributes["b"] == {"DataType": "Binary", "BinaryValue": base64.b64encode(b"AP8=").decode()}
    assert attributes["s"] == {"DataType": "String", "StringValue": "ä"}
    assert printed["changed"] == printed["deleted"] == [{"Id": "a"}]
    assert printed["none"] is None and printed["again"] == "one" and printed["tasks"] == 1


@pytest.mark.spec("ERR-1")
def test_refusals_are_one_line(printed: dict[str, Any]) -> None:
    for said, action, name, text in (
        (
            "refused",
            "SendMessage",
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist.",
        ),
        ("cancelled", "CancelMessageMoveTask", "ResourceNotFoundException", "Task does not exist."),
    ):
        code, output, errors = printed[said]
        expected = f"An error occurred ({name}) when calling the {action} operation: {text}"
        assert code == 255 and not output and errors == expected
