"""Dead letters and message move tasks through boto3."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from lakequeue.testing import ManualClock
from serve.serving import Running, sqs, wait_until

_numbers = itertools.count()


@attrs.frozen
class Pair:
    """A queue with its dead-letter queue."""

    client: Any
    source: str
    dead: str
    dead_arn: str

    def bury(self, count: int) -> list[str]:
        """Sends messages and lets them die; their ids."""
        sent = []
        for number in range(count):
            answer = self.client.send_message(QueueUrl=self.source, MessageBody=str(number))
            sent.append(answer["MessageId"])
        for _ in range(2):
            while self.client.receive_message(
                QueueUrl=self.source, MaxNumberOfMessages=10, VisibilityTimeout=0
            ).get("Messages"):
                pass
        assert self.waiting(self.dead) == count
        return sent

    def waiting(self, url: str) -> int:
        name = "ApproximateNumberOfMessages"
        return int(self.client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])

    def tasks(self, most: int = 10) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.list_message_move_tasks(
            SourceArn=self.dead_arn, MaxResults=most
        )["Results"]
        return found

    def status(self) -> str:
        status: str = self.tasks()[0]["Status"]
        return status


@pytest.fixture
def pair(timed: Running) -> Iterator[Pair]:
    """On the server whose time stands still."""
    yield new_pair(sqs(timed.url))


def new_pair(client: Any) -> Pair:
    number = next(_numbers)
    dead = client.create_queue(QueueName=f"dead{number}")["QueueUrl"]
    arn = arn_of(client, dead)
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    source = client.create_queue(QueueName=f"source{number}", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    return Pair(client, source, dead, arn)


def arn_of(client: Any, url: str) -> str:
    arn: str = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return arn


@pytest.mark.spec("DLQ-2", "DLQ-4", "DLQ-7")
def test_a_message_moves_instead_of_being_received_too_often(pair: Pair) -> None:
    client = pair.client
    shown = client.get_queue_attributes(QueueUrl=pair.source, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert json.loads(shown["RedrivePolicy"]) == {"deadLetterTargetArn": pair.dead_arn, "maxReceiveCount": 1}
    assert client.list_dead_letter_source_queues(QueueUrl=pair.dead)["queueUrls"] == [pair.source]
    [id] = pair.bury(1)
    [letter] = client.receive_message(QueueUrl=pair.dead, AttributeNames=["All"])["Messages"]
    assert letter["MessageId"] == id
    assert letter["Attributes"]["ApproximateReceiveCount"] == "2"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(client, pair.source)


@pytest.mark.spec("DLQ-6", "DLQ-9")
def test_a_queue_may_refuse_to_take_dead_letters(pair: Pair) -> None:
    client = pair.client
    deny = {"RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"})}
    client.set_queue_attributes(QueueUrl=pair.source, Attributes={"RedrivePolicy": ""})
    assert client.list_dead_letter_source_queues(QueueUrl=pair.dead)["queueUrls"] == []
    client.set_queue_attributes(QueueUrl=pair.dead, Attributes=deny)
    policy = json.dumps({"deadLetterTargetArn": pair.dead_arn, "maxReceiveCount": 3})
    with pytest.raises(client.exceptions.ClientError) as refused:
        client.set_queue_attributes(QueueUrl=pair.source, Attributes={"RedrivePolicy": policy})
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"


@pytest.mark.spec("DLQ-8")
def test_a_task_takes_dead_letters_back_to_their_source(pair: Pair, clock: ManualClock) -> None:
    pair.bury(3)
    assert pair.tasks() == []
    handle = pair.client.start_message_move_task(SourceArn=pair.dead_arn)["TaskHandle"]
    wait_until(lambda: pair.status() == "COMPLETED")
    [task] = pair.tasks()
    assert task == {
        "Status": "COMPLETED",
        "SourceArn": pair.dead_arn,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 3,
        "StartedTimestamp": int(clock.now().timestamp() * 1_000),
    }
    assert (pair.waiting(pair.source), pair.waiting(pair.dead)) == (3, 0)
    with pytest.raises(pair.client.exceptions.ResourceNotFoundException):
        pair.client.cancel_message_move_task(TaskHandle=handle)


@pytest.mark.spec("DLQ-8")
def test_tasks_are_listed_newest_first_one_unless_more_are_asked_for(pair: Pair, clock: ManualClock) -> None:
    for _ in range(2):
        pair.client.start_message_move_task(SourceArn=pair.dead_arn)
        wait_until(lambda: pair.status() == "COMPLETED")
        clock.advance(1)
    newest, oldest = pair.tasks()
    assert newest["StartedTimestamp"] == oldest["StartedTimestamp"] + 1_000
    assert pair.client.list_message_move_tasks(SourceArn=pair.dead_arn)["Results"] == [newest]


def refusals() -> dict[str, Callable[[Pair], Any]]:
    def other_kind(pair: Pair) -> None:
        url = pair.client.create_queue(QueueName="kind.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        pair.client.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn=arn_of(pair.client, url))

    return {
        "no source": lambda pair: pair.client.start_message_move_task(SourceArn=arn_of(pair.client, pair.source)),
        "slow": lambda pair: pair.client.start_message_move_task(
            SourceArn=pair.dead_arn, MaxNumberOfMessagesPerSecond=0
        ),
        "fast": lambda pair: pair.client.start_message_move_task(
            SourceArn=pair.dead_arn, MaxNumberOfMessagesPerSecond=501
        ),
        "other kind": other_kind,
        "itself": lambda pair: pair.client.start_message_move_task(
            SourceArn=pair.dead_arn, DestinationArn=pair.dead_arn
        ),
        "many": lambda pair: pair.tasks(11),
        "garbage": lambda pair: pair.client.cancel_message_move_task(TaskHandle="garbage"),
    }


@pytest.mark.parametrize("why", refusals())
@pytest.mark.spec("DLQ-8", "ERR-8")
def test_what_no_task_can_be_is_refused(pair: Pair, why: str) -> None:
    with pytest.raises(pair.client.exceptions.ClientError) as refused:
        refusals()[why](pair)
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert pair.tasks() == []


@pytest.mark.parametrize("arn", ["nonsense", "arn:aws:sqs:local:000000000000:nothing", "arn:aws:sqs:mars:0:dead0"])
def test_a_task_of_no_queue_is_refused(pair: Pair, arn: str) -> None:
    for call in (pair.client.start_message_move_task, pair.client.list_message_move_tasks):
        with pytest.raises(pair.client.exceptions.ResourceNotFoundException):
            call(SourceArn=arn)


@pytest.mark.spec("DLQ-10")
def test_letters_of_a_fifo_queue_die_in_order(timed: Running) -> None:
    client = sqs(timed.url)
    kind = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    dead = client.create_queue(QueueName="dead.fifo", Attributes=kind)["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn_of(client, dead), "maxReceiveCount": 1})
    url = client.create_queue(QueueName="source.fifo", Attributes=kind | {"RedrivePolicy": policy})["QueueUrl"]
    for body in ("1", "2"):
        client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    assert client.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"][0]["Body"] == "1"
    assert client.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "2"
    [letter] = client.receive_message(QueueUrl=dead, AttributeNames=["All"])["Messages"]
    assert letter["Body"] == "1" and letter["Attributes"]["MessageGroupId"] == "g"
