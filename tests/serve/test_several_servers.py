"""Several servers on one root behave as one service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from serve.serving import Running, ServerProcess, sqs


@pytest.fixture(scope="module")
def other(server: Running) -> Iterator[Any]:
    """A client of a second server, in a process of its own, on the root of the first."""
    with ServerProcess(server.root) as process:
        yield sqs(process.url)


def test_a_queue_of_one_is_there_on_the_other_at_once(client: Any, other: Any) -> None:
    url = client.create_queue(QueueName="shared", tags={"a": "b"})["QueueUrl"]
    assert other.get_queue_url(QueueName="shared")["QueueUrl"].endswith("/000000000000/shared")
    other.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
    shown = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert shown == {"VisibilityTimeout": "7"}
    client.delete_queue(QueueUrl=url)
    with pytest.raises(other.exceptions.QueueDoesNotExist):
        other.send_message(QueueUrl=url, MessageBody="late")
    with pytest.raises(other.exceptions.QueueDeletedRecently):
        other.create_queue(QueueName="shared")


@pytest.mark.spec("LPL-1", "LPL-4", "LPL-6")
def test_a_long_poll_of_one_ends_with_a_send_to_the_other(client: Any, other: Any) -> None:
    url = client.create_queue(QueueName="polled")["QueueUrl"]
    found: list[dict[str, Any]] = []
    poll = threading.Thread(target=lambda: found.append(other.receive_message(QueueUrl=url, WaitTimeSeconds=20)))
    began = time.monotonic()
    poll.start()
    client.send_message(QueueUrl=url, MessageBody="x")
    poll.join(30)
    assert time.monotonic() - began < 20  # it did not sit out its 20 s
    [message] = found[0]["Messages"]
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in other.receive_message(QueueUrl=url, VisibilityTimeout=0)
