"""Every refusal as boto3 reports it: code of today, code of before, whose fault, status and request id (ERR-6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from botocore.exceptions import ClientError

from lakequeue.errors import SERVICE_ERRORS
from lakequeue.serve.sqs.move_tasks import MoveTask
from serve.serving import Running, sqs

REGION = "local"
LEGACY = "AWS.SimpleQueueService."
NOT_OVER_THE_WIRE = {
    "RequestThrottled": "needs thirty lost races for one commit",
}


@attrs.frozen
class Case:
    """One refusal: what provokes it, and the table's line about it."""

    code: str
    provoke: Callable[[Any, str], Any]
    query_code: str = ""
    legacy: str = ""
    status: int = 400
    message: str = ""

    @property
    def told(self) -> dict[str, Any]:
        return {
            "Code": self.legacy or self.code,
            "QueryErrorCode": self.query_code or self.code,
            "Type": "Sender",
        }


def batch(*ids: str, body: str = "x") -> list[dict[str, str]]:
    return [{"Id": id, "MessageBody": body} for id in ids]


def at_its_cap(client: Any, url: str) -> None:
    """The fixture's queue may have one message in flight."""
    for _ in range(2):
        client.send_message(QueueUrl=url, MessageBody="x")
        client.receive_message(QueueUrl=url)


def twice(call: str) -> Callable[[Any, str], Any]:
    def provoke(client: Any, url: str) -> None:
        for _ in range(2):
            getattr(client, call)(QueueUrl=url)

    return provoke


def not_in_flight(client: Any, url: str) -> None:
    client.send_message(QueueUrl=url, MessageBody="x")
    [message] = client.receive_message(QueueUrl=url)["Messages"]
    for _ in range(2):
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


def deleted_recently(client: Any, url: str) -> None:
    client.delete_queue(QueueUrl=url)
    client.create_queue(QueueName=url.rpartition("/")[2])


NO_TASK = MoveTask(
    id="x", server="x", started=0, written=0, source=f"arn:aws:sqs:{REGION}:0:nothing", to_move=0,
    destination=None, rate=None,
).handle  # fmt: skip

CASES = [
    Case(
        "QueueDoesNotExist",
        lambda client, url: client.get_queue_url(QueueName="nothing"),
        legacy=f"{LEGACY}NonExistentQueue",
        message="The specified queue does not exist.",
    ),
    Case(
        "QueueNameExists",
        lambda client, url: client.create_queue(
            QueueName=url.rpartition("/")[2], Attributes={"VisibilityTimeout": "77"}
        ),
        legacy="QueueAlreadyExists",
    ),
    Case("QueueDeletedRecently", deleted_recently, legacy=f"{LEGACY}QueueDeletedRecently"),
    Case(
        "ReceiptHandleIsInvalid",
        lambda client, url: client.delete_message(QueueUrl=url, ReceiptHandle="garbage"),
        status=404,
        message='The input receipt handle "garbage" is not a valid receipt handle.',
    ),
    Case("MessageNotInflight", not_in_flight, legacy=f"{LEGACY}MessageNotInflight"),
    Case("OverLimit", at_its_cap, status=403),
    Case(
        "OverLimit",
        lambda client, url: client.add_permission(
            QueueUrl=url, Label="x", AWSAccountIds=["1" * 12], Actions=8 * ["SendMessage"]
        ),
        status=403,
        message="8 Actions were found, maximum allowed is 7.",
    ),
    Case(
        "TooManyEntriesInBatchRequest",
        lambda client, url: client.send_message_batch(QueueUrl=url, Entries=batch(*"abcdefghijk")),
        legacy=f"{LEGACY}TooManyEntriesInBatchRequest",
        message="Maximum number of entries per request are 10. You have sent 11.",
    ),
    *(
        Case(
            "EmptyBatchRequest",
            lambda client, url, call=call: getattr(client, call)(QueueUrl=url, Entries=[]),
            legacy=f"{LEGACY}EmptyBatchRequest",
        )
        for call in ("send_message_batch", "delete_message_batch", "change_message_visibility_batch")
    ),
    Case(
        "BatchEntryIdsNotDistinct",
        lambda client, url: client.send_message_batch(QueueUrl=url, Entries=batch("a", "a")),
        legacy=f"{LEGACY}BatchEntryIdsNotDistinct",
        message="Id a repeated.",
    ),
    Case(
        "BatchEntryIdsNotDistinct",
        lambda client, url: client.delete_message_batch(
            QueueUrl=url, Entries=2 * [{"Id": "a", "ReceiptHandle": "garbage"}]
        ),
        legacy=f"{LEGACY}BatchEntryIdsNotDistinct",
    ),
    Case(
        "InvalidBatchEntryId",
        lambda client, url: client.send_message_batch(QueueUrl=url, Entries=batch("a b")),
        legacy=f"{LEGACY}InvalidBatchEntryId",
    ),
    Case(
        "BatchRequestTooLong",
        lambda client, url: client.send_message_batch(QueueUrl=url, Entries=batch("a", "b", body=600_000 * "x")),
        legacy=f"{LEGACY}BatchRequestTooLong",
        message="Batch requests cannot be longer than 1048576 bytes. You have sent 1200000 bytes.",
    ),
    Case("InvalidMessageContents", lambda client, url: client.send_message(QueueUrl=url, MessageBody="\x01")),
    Case(
        "InvalidAttributeName",
        lambda client, url: client.get_queue_attributes(QueueUrl=url, AttributeNames=["Nonsense"]),
        message="Unknown Attribute Nonsense.",
    ),
    Case(
        "InvalidAttributeName",
        lambda client, url: client.create_queue(QueueName="x", Attributes={"FifoQueues": "true"}),
    ),
    *(
        Case(
            "InvalidAttributeName",
            lambda client, url, name=name: client.create_queue(QueueName="x", Attributes={name: "lake"}),
            message=f"Unknown Attribute {name}.",
        )
        for name in ("profile", "name", "self", "tags", "visibility_timeout")
    ),
    Case(
        "InvalidAttributeName",
        lambda client, url: client.set_queue_attributes(QueueUrl=url, Attributes={"Profile": "lake"}),
        message="Attribute Profile can only be set when a queue is created.",
    ),
    Case(
        "InvalidAttributeValue",
        lambda client, url: client.create_queue(QueueName="x", Attributes={"Profile": "sqs-2017"}),
    ),
    Case(
        "InvalidAttributeName",
        lambda client, url: client.set_queue_attributes(QueueUrl=url, Attributes={"self": "x"}),
        message="Unknown Attribute self.",
    ),
    Case(
        "InvalidAttributeValue",
        lambda client, url: client.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "901"}),
    ),
    Case(
        "InvalidParameterValue",
        lambda client, url: client.receive_message(QueueUrl=url, MaxNumberOfMessages=11),
        "InvalidParameterValueException",
        message="Value 11 for parameter MaxNumberOfMessages is invalid. "
        "Reason: Must be between 1 and 10, if provided.",
    ),
    Case(
        "InvalidParameterValue",
        lambda client, url: client.receive_message(QueueUrl=url, WaitTimeSeconds=21),
        "InvalidParameterValueException",
    ),
    Case(
        "InvalidParameterValue",
        lambda client, url: client.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="x"),
        "InvalidParameterValueException",
    ),
    Case(
        "InvalidParameterValue",
        lambda client, url: client.list_queues(NextToken="garbage"),
        "InvalidParameterValueException",
    ),
    Case(
        "MissingParameter",
        lambda client, url: client.send_message(QueueUrl=url),
        "MissingRequiredParameterException",
        message="The request must contain the parameter MessageBody.",
    ),
    Case(
        "MissingParameter",
        lambda client, url: client.send_message(QueueUrl=url, MessageBody=""),
        "MissingRequiredParameterException",
        message="The request must contain the parameter MessageBody.",
    ),
    Case("PurgeQueueInProgress", twice("purge_queue"), legacy=f"{LEGACY}PurgeQueueInProgress", status=403),
    Case(
        "UnsupportedOperation",
        lambda client, url: client.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/x"}),
        legacy=f"{LEGACY}UnsupportedOperation",
    ),
    Case(
        "ResourceNotFoundException",
        lambda client, url: client.cancel_message_move_task(TaskHandle=NO_TASK),
        status=404,
    ),
    # what is refused before it reaches a queue
    Case(
        "SerializationException",
        lambda client, url: client.receive_message(QueueUrl=url, MaxNumberOfMessages="ten"),
        message="MaxNumberOfMessages must be of type integer.",
    ),
    Case(
        "SerializationException",
        lambda client, url: client.send_message(QueueUrl=url, MessageBody=5),
        message="MessageBody must be of type string.",
    ),
]


@pytest.fixture
def unchecked(server: Running) -> Any:
    """A client that sends what boto3 would not let through."""
    return sqs(server.url, parameter_validation=False)


@pytest.fixture
def queue_url(server: Running, request: pytest.FixtureRequest) -> str:
    """A queue that may have one message in flight."""
    name = f"case{request.node.name.rpartition('[')[2].rstrip(']')}"
    queue = server.lake.create_queue(name, profile="sqs", max_inflight_messages=1)
    return f"{server.url}/000000000000/{queue.name}"


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}-{CASES[number].code}")
@pytest.mark.spec("ERR-1", "ERR-6")
def test_a_refusal_has_all_its_fields(unchecked: Any, queue_url: str, number: int) -> None:
    case = CASES[number]
    with pytest.raises(ClientError) as refused:
        case.provoke(unchecked, queue_url)
    error, metadata = refused.value.response["Error"], refused.value.response["ResponseMetadata"]
    message = error.pop("Message")
    assert error == case.told
    assert message == (case.message or message) and message
    assert metadata["HTTPStatusCode"] == case.status
    assert len(metadata["RequestId"]) == 36
    modelled = {shape.name for shape in unchecked.meta.service_model.error_shapes}
    if case.code in modelled:  # code that catches the SDK's own classes
        assert isinstance(refused.value, getattr(unchecked.exceptions, case.code))


@pytest.mark.spec("ERR-6")
def test_every_service_error_has_its_case() -> None:
    shown = {case.code for case in CASES}
    assert {*SERVICE_ERRORS} - shown == {*NOT_OVER_THE_WIRE}


def test_request_ids_differ(server: Running, unchecked: Any) -> None:
    answers = [unchecked.list_queues()["ResponseMetadata"] for _ in range(3)]
    assert len({answer["RequestId"] for answer in answers}) == 3


@pytest.mark.spec("ERR-8")
def test_a_refused_batch_stored_nothing(unchecked: Any, queue_url: str) -> None:
    for entries in (batch("a", "a"), batch(*"abcdefghijk"), batch("ok", "a b")):
        with pytest.raises(ClientError):
            unchecked.send_message_batch(QueueUrl=queue_url, Entries=entries)
    assert "Messages" not in unchecked.receive_message(QueueUrl=queue_url)
