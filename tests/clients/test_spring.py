"""Spring Cloud AWS: its template, and its listeners."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clients.running_tools import output
from clients.walked import parts
from serve.serving import ServerProcess

PROJECT = Path(__file__).with_name("spring")

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def walked(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the application prints."""
    project = tmp_path_factory.mktemp("spring") / "walkthrough"  # Maven writes beside the sources
    shutil.copytree(PROJECT, project)
    return parts(output(["mvn", "-B", "-q", "compile", "exec:java", f"-Dexec.args={served.url}"], project))


@pytest.mark.spec("BAT-4", "DEL-10", "MSA-3", "RCV-6", "VIS-1")
def test_a_template_sends_receives_holds_and_acknowledges(walked: dict[str, dict[str, str]]) -> None:
    told = dict(walked["template"])
    assert told.pop("NotSent").startswith("Invalid characters found.")
    assert told == {
        "Body": "one <&>",
        "SameId": "true",
        "Kind": "käse 🧀",
        "Size": "12",
        "Woken": "true",
        "ReceivedAgain": "2",
        "Sent": "2",
        "Received": "[three, two]",
        "Left": "0",
    }


@pytest.mark.spec("RCV-6", "VIS-4")
def test_a_listener_gets_a_message_again_that_it_failed_on(walked: dict[str, dict[str, str]]) -> None:
    assert walked["listener"] == {"Heard": "fails once 2, one 1, two 1"}


@pytest.mark.spec("DDP-8", "SEQ-2", "SEQ-3")
def test_a_listener_follows_a_group_in_order(walked: dict[str, dict[str, str]]) -> None:
    assert walked["fifo"] == {"SentOnce": "true", "Numbers": "3", "Heard": "g one, g two, g three"}


@pytest.mark.spec("ERR-6", "QUE-1", "QUE-13", "QUE-27")
def test_queues_are_created_when_they_are_not_found_and_missed_when_they_are_gone(
    walked: dict[str, dict[str, str]],
) -> None:
    assert walked["queues"] == {"Urls": "3", "Left": "0"}
    assert walked["error"] == {
        "Class": "QueueDoesNotExistException",
        "Message": "The specified queue does not exist.",
    }
