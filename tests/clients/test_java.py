"""The AWS SDK for Java from Maven: version 2, and version 1 in both of its protocols."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.running_tools import output, pairs
from serve.serving import ServerProcess

PROJECT = Path(__file__).with_name("java")

pytestmark = pytest.mark.clients


SDKS = {
    "v2": (),
    "v1-query": ("-Dwalkthrough=OlderWalkthrough",),
    "v1-json": ("-Dwalkthrough=OlderWalkthrough", "-Dsdk.v1=1.12.797"),
}


@pytest.fixture(scope="module", params=SDKS)
def sdk(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(sdk: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for each version, as a name is free again only a minute after its queue was deleted."""
    with ServerProcess(tmp_path_factory.mktemp("served") / "root") as server:
        yield server


@pytest.fixture(scope="module")
def printed(sdk: str, served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Names and values that the walkthrough prints."""
    project = tmp_path_factory.mktemp("java") / "walkthrough"  # Maven writes beside the sources
    shutil.copytree(PROJECT, project)
    told = output(["mvn", "-B", "-q", "compile", "exec:java", f"-Dexec.args={served.url}", *SDKS[sdk]], project)
    return pairs(told)


@pytest.mark.spec("EXM-1", "MSA-1", "SND-3", "SEQ-2", "RCV-10", "DDP-8", "ATT-3")
def test_the_walkthrough_of_a_fifo_queue(served: ServerProcess, printed: list[tuple[str, str]]) -> None:
    values = dict(printed)
    assert values["QueueUrl"] == f"{served.url}/000000000000/MyFifoQueue.fifo"
    for name in ("MessageId", "SequenceNumber"):
        assert [value for key, value in printed if key == f"Sent.{name}"] == 2 * [values[f"Sent.{name}"]]
    assert values["MessageId"] == values["Sent.MessageId"]
    assert values["MD5OfBody"] == "6a1559560f67c5e7a7d5d838bf0272ee"
    assert values["Body"] == "This is my message text."
    assert values["Attribute.SequenceNumber"] == values["Sent.SequenceNumber"]
    assert values["Attribute.MessageGroupId"] == "messageGroup1"
    assert values["Attribute.MessageDeduplicationId"] == "1"
    assert values["Attribute.ApproximateReceiveCount"] == "1"
    assert values["SameReceiptHandle"] == values["ReceiptHandle"]
    assert values["Deleted"] == "true false"
    assert not served.lake.list_queues()


@pytest.mark.spec("ERR-1", "ERR-6")
def test_the_five_fields_of_a_refusal(sdk: str, printed: list[tuple[str, str]]) -> None:
    values = dict(printed)
    end = " for this wsdl version." if sdk == "v1-query" else "."
    assert values["Error.Class"] == "QueueDoesNotExistException"
    assert values["Error.Message"] == f"The specified queue does not exist{end}"
    assert values["Error.HttpStatus"] == "400"
    assert values["Error.Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert values["Error.Type"] == "Sender"
    assert len(values["Error.RequestId"]) == 36


@pytest.mark.parametrize("sdk", [sdk for sdk in SDKS if sdk != "v2"], indirect=True, scope="module")
@pytest.mark.spec("QUE-1", "MSA-1", "MSA-4", "BAT-4")
def test_tags_batches_and_attributes_of_version_1(printed: list[tuple[str, str]]) -> None:
    values = dict(printed)
    assert values["Tags"] == "{stage=test, team=lake}" and values["TagsAfter"] == "{cost=1, team=lake}"
    assert values["Batch"] == "good InvalidMessageContents"
    assert values["SameAttributes"] == "true" and values["Changed"] == "a" and values["Left"] == "0"
