"""Every refusal, in every protocol: what is sent, and the error that comes back (ERR-6).

A case is one call that is refused. It is made in JSON, through boto3, as a form, and by GET if its action only
reads; each protocol has to answer the same status, code and message, and nothing may have been stored.
Most texts were recorded from AWS by other projects' public tests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from lakequeue.errors import SERVICE_ERRORS
from lakequeue.serve.errors import MAX_MESSAGE_LENGTH
from lakequeue.serve.sqs.move_tasks import MoveTask
from serve.protocols import FORM, PROTOCOLS, READING, Ask, Refused, filled, read, to
from serve.serving import Running, serving, sqs, wait_until

LEGACY = "AWS.SimpleQueueService."
WIRE: dict[str, tuple[int, str, str]] = {
    "InvalidParameterValue": (400, "InvalidParameterValue", "InvalidParameterValueException"),
    "MissingParameter": (400, "MissingParameter", "MissingRequiredParameterException"),
    "OverLimit": (403, "OverLimit", "OverLimit"),
    "PurgeQueueInProgress": (403, f"{LEGACY}PurgeQueueInProgress", "PurgeQueueInProgress"),
    "QueueDoesNotExist": (400, f"{LEGACY}NonExistentQueue", "QueueDoesNotExist"),
    "QueueNameExists": (400, "QueueAlreadyExists", "QueueNameExists"),
    "ReceiptHandleIsInvalid": (404, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
    "ResourceNotFoundException": (404, "ResourceNotFoundException", "ResourceNotFoundException"),
} | {
    name: (400, LEGACY + name, name)
    for name in (
        *("BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId"),
        *("MessageNotInflight", "QueueDeletedRecently", "TooManyEntriesInBatchRequest", "UnsupportedOperation"),
    )
}
"""Status, name in the Query protocol, and name in JSON; of all others 400 and their name."""
NOT_OVER_THE_WIRE = {
    "RequestThrottled": "needs thirty lost races for one commit",
}

ORDERS, FIFO, SMALL, NEVER = (f"/000000000000/{name}" for name in ("orders", "orders.fifo", "small", "never"))
"""URLs of a queue, a FIFO queue, one whose messages have 1,024 bytes at most, and none."""
OWN, NAME, HANDLE = "<own>", "<name>", "<handle>"
"""URL and name of a queue of this case alone, which may have one message in flight; its last receipt handle."""
ARN = "arn:aws:sqs:local:000000000000:"
JSON_ONLY, UNCHECKED = ("json",), ("json", "form")

Call = tuple[str, dict[str, Any]]


@attrs.frozen
class Case:
    """A call that is refused.

    Attributes:
        message: text of the error; after an ellipsis, a part of it. Empty: any.
        before: calls that make it so, which are answered.
        only: protocols that can say it; all if empty.
    """

    action: str
    given: dict[str, Any]
    code: str
    message: str = ""
    before: tuple[Call, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def protocols(self) -> tuple[str, ...]:
        return self.only or tuple(name for name in PROTOCOLS if name != "get" or self.action in READING)


def cases(action: str, givens: list[dict[str, Any]], code: str, message: str = "", **more: Any) -> list[Case]:
    """A case for each of what an action may be given."""
    return [Case(action, given, code, message, **more) for given in givens]


def sending(**members: Any) -> dict[str, Any]:
    return to(ORDERS, **({"MessageBody": "x"} | members))


def with_attribute(name: str, value: str) -> dict[str, Any]:
    return sending(MessageAttributes={name: {"DataType": "String", "StringValue": value}})


def having(**attributes: str) -> dict[str, Any]:
    return to(ORDERS, Attributes=attributes)


def entries(*ids: str, body: str = "x") -> dict[str, Any]:
    return to(ORDERS, Entries=[{"Id": id, "MessageBody": body} for id in ids])


def numbered(count: int) -> dict[str, str]:
    return {str(n): "" for n in range(count)}


DELETE, PURGE, RECEIVE = ((action, to(OWN)) for action in ("DeleteQueue", "PurgeQueue", "ReceiveMessage"))
SEND = ("SendMessage", to(OWN, MessageBody="x"))
VISIBLE = ("ChangeMessageVisibility", to(OWN, ReceiptHandle=HANDLE, VisibilityTimeout=0))
UNENCRYPTED = to(OWN, Attributes={"SqsManagedSseEnabled": "false"})
PERMIT = to(OWN, AWSAccountIds=["111122223333"], Actions=["SendMessage"])
WRONG_ATTRIBUTES = [
    *((name, "lake", "Name", f"Unknown Attribute {name}.") for name in ("profile", "name", "self", "tags")),
    *(("FifoQueue", value, "Name", "Unknown Attribute FifoQueue.") for value in ("false", "False")),
    *((name, "1", "Name", f"Unknown Attribute {name}.") for name in ("visibility_timeout", "FifoQueues")),
    *(("VisibilityTimeout", "9" * digits, "Value", "") for digits in (21, 5_000)),
    *(("VisibilityTimeout", "1." + "1" * digits, "Value", "") for digits in (21, 5_000)),
    ("Shards", "17", "Value", "Invalid value for the parameter Shards. Reason: Must be at most 16 here."),
    ("Shards", "many", "Value", ""),
    (
        "DelaySeconds",
        "901",
        "Value",
        "Invalid value for the parameter DelaySeconds. "
        "Reason: Must be 0 to 900 whole seconds in profile sqs, not 901.",
    ),
]
OUT_OF_RANGE = (2**31, 2**62, -1, -(2**62))
NO_TASK = MoveTask(
    id="x", server="x", started=0, written=0, source=f"{ARN}nothing", to_move=0, destination=None, rate=None
).handle
# fmt: off
QUEUES = [
    Case("GetQueueUrl", {"QueueName": "never"}, "QueueDoesNotExist", "The specified queue does not exist."),
    Case("GetQueueUrl", {"QueueName": "orders", "QueueOwnerAWSAccountId": "111122223333"}, "QueueDoesNotExist"),
    Case("GetQueueUrl", {}, "MissingParameter", "The request must contain the parameter QueueName."),
    *cases("GetQueueAttributes", [to(NEVER), to(NEVER, AttributeNames=["QueueArn"])], "QueueDoesNotExist"),
    Case("GetQueueAttributes", to(OWN), "QueueDoesNotExist", before=(DELETE,)),
    Case("GetQueueAttributes", to(ORDERS, AttributeNames=["Nonsense"]), "InvalidAttributeName",
         "Unknown Attribute Nonsense."),
    *cases("CreateQueue", [
        {"QueueName": "a/b"},
        {"QueueName": "a" * 9_999},
        {"QueueName": "named.fifo", "Attributes": {"FifoQueue": "false"}},
        {"QueueName": "tagged", "tags": numbered(51)},
    ], "InvalidParameterValue"),
    Case("CreateQueue", {"QueueName": "orders", "Attributes": {"VisibilityTimeout": "77"}}, "QueueNameExists"),
    Case("CreateQueue", {"QueueName": NAME}, "QueueDeletedRecently", before=(DELETE,)),
    Case("CreateQueue", {"QueueName": "new", "Attributes": {"Profile": "sqs-2017"}}, "InvalidAttributeValue"),
    Case("CreateQueue", {"QueueName": "new.fifo", "Attributes": {"FifoQueue": "yes"}}, "InvalidAttributeValue",
         "Invalid value for the parameter FifoQueue. Reason: Neither true nor false: 'yes'."),
    *(Case(action, queue | {"Attributes": {name: value}}, f"InvalidAttribute{wrong}", message)
      for action, queue in (("CreateQueue", {"QueueName": "new"}), ("SetQueueAttributes", to(ORDERS)))
      for name, value, wrong, message in WRONG_ATTRIBUTES),
    Case("SetQueueAttributes", to(FIFO, Attributes={"FifoQueue": "false"}), "InvalidAttributeValue",
         "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."),
    Case("SetQueueAttributes", to(ORDERS, Attributes={"RedrivePolicy": '{"maxReceiveCount":3}'}),
         "InvalidParameterValue",
         'Value {"deadLetterTargetArn":null,"maxReceiveCount":3} for parameter RedrivePolicy is invalid. '
         "Reason: It must name deadLetterTargetArn."),
    Case("SetQueueAttributes", having(Profile="lake"), "InvalidAttributeName",
         "Attribute Profile can only be set when a queue is created."),
    Case("SetQueueAttributes", having(DelaySeconds="1", More="2"), "InvalidAttributeName"),
    *(Case(action, queue | {"Attributes": {name: value}}, "UnsupportedOperation",
           f"The server cannot encrypt messages with a key; leave out {name}.")
      for action, queue in (("CreateQueue", {"QueueName": "kms"}), ("SetQueueAttributes", to(ORDERS)))
      for name, value in (("KmsMasterKeyId", "alias/aws/sqs"), ("KmsDataKeyReusePeriodSeconds", "60"))),
    Case("SetQueueAttributes", having(SqsManagedSseEnabled="yes"), "InvalidAttributeValue",
         "…Invalid value for the parameter SqsManagedSseEnabled"),
    Case("CreateQueue", {"QueueName": NAME, "Attributes": {"SqsManagedSseEnabled": "true"}}, "QueueNameExists",
         "…SqsManagedSseEnabled", before=(("SetQueueAttributes", UNENCRYPTED),)),
    *cases("SetQueueAttributes", [
        having(Policy=json.dumps({"Statement": [{"Effect": "Allow", "Action": "sqs:*"}] * 21})),
        having(Policy=json.dumps({"Statement": [], "Id": "x" * 8_192})),
        having(RedriveAllowPolicy=json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": ["x" * 8_192]})),
    ], "InvalidAttributeValue"),
    Case("AddPermission", PERMIT | {"Label": "more"}, "InvalidAttributeValue",
         before=tuple(("AddPermission", PERMIT | {"Label": str(n)}) for n in range(20))),
    Case("AddPermission", PERMIT | to(ORDERS, Label="x", Actions=8 * ["SendMessage"]), "OverLimit",
         "8 Actions were found, maximum allowed is 7."),
    Case("AddPermission", to(ORDERS, Label="x", Actions=["*"]), "MissingParameter"),
    *cases("TagQueue", [to(ORDERS, Tags={}), to(ORDERS)], "MissingParameter",
          "The request must contain the parameter Tags."),
    Case("TagQueue", to(ORDERS, Tags=numbered(51)), "InvalidParameterValue",
         "Too many tags added for queue orders."),
    Case("TagQueue", to(OWN, Tags={"one": "more"}), "InvalidParameterValue",
         before=(("TagQueue", to(OWN, Tags=numbered(50))),)),
    Case("UntagQueue", to(ORDERS, TagKeys=[]), "InvalidParameterValue",
         "Tag keys must be between 1 and 128 characters in length."),
    *cases("ListQueues", [{"NextToken": "garbage"}, {"MaxResults": 1_001}], "InvalidParameterValue"),
    Case("PurgeQueue", to(OWN), "PurgeQueueInProgress", before=(PURGE,)),
    Case("PurgeQueue", to(NEVER), "QueueDoesNotExist"),
    *cases("SendMessage", [sending(QueueUrl=url) for url in ("/", "://")], "QueueDoesNotExist"),
    *cases("SendMessage", [sending(QueueUrl=url) for url in ("http://[::1", "%ff", "http://x/\x00", "a" * 10**5)],
          "QueueDoesNotExist", only=UNCHECKED),  # to which boto3 would send them
    Case("SendMessage", sending(QueueUrl=""), "QueueDoesNotExist", only=JSON_ONLY),
]
MESSAGES = [
    *cases("SendMessage", [to(ORDERS), sending(MessageBody="")], "MissingParameter",
          "The request must contain the parameter MessageBody."),
    Case("SendMessage", {"MessageBody": "x"}, "MissingParameter", "…QueueUrl", only=UNCHECKED),
    Case("ReceiveMessage", {}, "MissingParameter", "…QueueUrl", only=UNCHECKED),
    *cases("SendMessage", [sending(MessageBody=body) for body in ("\x00", "\x01", "\x0b", "\uffff", "a\x1f")],
          "InvalidMessageContents"),
    Case("SendMessage", to(SMALL, MessageBody="x" * 1_025), "InvalidParameterValue",
         "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."),
    *cases("SendMessage", [sending(DelaySeconds=each) for each in (901, *OUT_OF_RANGE)], "InvalidParameterValue"),
    Case("SendMessage", sending(MessageDeduplicationId="x"), "InvalidParameterValue"),
    Case("SendMessage", sending(MessageSystemAttributes={
        "AWSTraceHeader": {"DataType": "String", "StringValue": "x" * 1_025}
    }), "InvalidParameterValue"),
    *cases("SendMessage", [with_attribute(name, "x") for name in (
        "a!b", 'a"b', "a§b", "a(b", "a b", "a\u0007b", "€", "ä", "名前_1", "a١", ".a", "a.", "a..b", "",
    )], "InvalidParameterValue"),
    *cases("SendMessage", [with_attribute("Bad", value) for value in ("\b", "a\x0bb", "\uffff")],
          "InvalidParameterValue", "…'Bad'"),
    *cases("SendMessage", [with_attribute("E", ""), sending(MessageAttributes={"E": {"DataType": "String"}})],
          "InvalidParameterValue",
          "Message (user) attribute 'E' must contain a non-empty value of type 'String'."),
    Case("ReceiveMessage", to(ORDERS, MaxNumberOfMessages=11), "InvalidParameterValue",
         "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
    *cases("ReceiveMessage", [to(ORDERS, WaitTimeSeconds=21), to(ORDERS, VisibilityTimeout=43_201)] + [
        to(ORDERS, **{name: number}) for number in OUT_OF_RANGE
        for name in ("VisibilityTimeout", "WaitTimeSeconds", "MaxNumberOfMessages")
    ], "InvalidParameterValue"),
    Case("ReceiveMessage", to(OWN), "OverLimit", before=(SEND, SEND, RECEIVE)),
    Case("DeleteMessage", to(ORDERS, ReceiptHandle="garbage"), "ReceiptHandleIsInvalid",
         'The input receipt handle "garbage" is not a valid receipt handle.'),
    Case(*VISIBLE, "MessageNotInflight", before=(SEND, RECEIVE, VISIBLE)),
    Case("SendMessageBatch", entries(*"abcdefghijk"), "TooManyEntriesInBatchRequest",
         "Maximum number of entries per request are 10. You have sent 11."),
    Case("SendMessageBatch", entries("a", "a"), "BatchEntryIdsNotDistinct", "Id a repeated."),
    *cases("SendMessageBatch", [entries("a b"), entries("ok", "a b")], "InvalidBatchEntryId"),
    Case("SendMessageBatch", entries("a", "b", body=600_000 * "x"), "BatchRequestTooLong",
         "Batch requests cannot be longer than 1048576 bytes. You have sent 1200000 bytes."),
    Case("SendMessageBatch", to(ORDERS, Entries=[{"Id": "1"}]), "MissingParameter", "…MessageBody"),
    Case("DeleteMessageBatch", to(ORDERS, Entries=2 * [{"Id": "a", "ReceiptHandle": "x"}]),
         "BatchEntryIdsNotDistinct"),
    *(case for action in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch") for case in (
        Case(action, to(ORDERS, Entries=[]), "EmptyBatchRequest",
             f"There should be at least one {action}RequestEntry in the request."),
        Case(action, to(NEVER, Entries=[]), "QueueDoesNotExist"),
    )),
    Case("StartMessageMoveTask", {"SourceArn": f"{ARN}orders"}, "InvalidParameterValue",
         "Source queue must be configured as a Dead Letter Queue."),
    Case("CancelMessageMoveTask", {"TaskHandle": "garbage"}, "InvalidParameterValue",
         "Value for parameter TaskHandle is invalid."),
    Case("CancelMessageMoveTask", {"TaskHandle": NO_TASK}, "ResourceNotFoundException"),
]
SHAPES = [
    Case("ReceiveMessage", to(ORDERS, MaxNumberOfMessages="ten"), "SerializationException",
         "MaxNumberOfMessages must be of type integer."),
    Case("ListDeadLetterSourceQueues", to(ORDERS, MaxResults="more"), "SerializationException",
         "MaxResults must be of type integer."),
    Case("SendMessage", sending(MessageBody=5), "SerializationException", "MessageBody must be of type string.",
         only=("json", "boto3")),
    Case("SendMessage", sending(MessageBody=None), "MissingParameter", "…MessageBody", only=JSON_ONLY),
    *cases("SendMessage", [
        *(sending(**{name: value}) for name, value in (("QueueUrl", 1), ("MessageBody", ["x"]))),
        *(sending(DelaySeconds=value) for value in ("1", True, 1.5, 2**63, -(10**4_000))),
        *(sending(MessageAttributes=value) for value in ([], {"a": "b"})),
        sending(MessageAttributes={"a": {"DataType": "Binary", "BinaryValue": "%%%"}}),
    ], "SerializationException", only=JSON_ONLY),
    *cases("SendMessageBatch", [to(ORDERS, Entries=value) for value in ({}, [None], [[]])],
          "SerializationException", only=JSON_ONLY),
    *cases("GetQueueAttributes", [to(ORDERS, AttributeNames=names) for names in ("All", ["All"] * 1_001)],
          "SerializationException", only=JSON_ONLY),
    Case("TagQueue", to(ORDERS, Tags=numbered(1_001)), "SerializationException", only=UNCHECKED),
    *cases("CreateQueue", [
        {"QueueName": "\ud800"}, {"QueueName": "a", "Attributes": {"\udfff": "1"}}, {"a" * 9_999: 1}
    ], "SerializationException", only=JSON_ONLY),
    *(Case(action, given, "SerializationException", "…is not a member of", only=JSON_ONLY) for action, given in (
        ("SendMessage", sending(More=1)),
        ("SendMessage", sending(queueurl="x")),
        ("SendMessageBatch", to(ORDERS, Entries=[{"Id": "1", "MessageBody": "A", "More": {}}])),
        ("ListQueues", {"\ud800": 1}),
    )),
    *(Case(action, {}, "InvalidAction", f"…The action {action[:900]}", only=UNCHECKED)
      for action in ("Nothing", "sendmessage", "Send Message", "<b>", "a" * 5_000)),
]
# fmt: on
CASES = [*QUEUES, *MESSAGES, *SHAPES]
BAD_ENTRIES = [
    # an entry of a batch, the code of its failure, and the text
    ({"MessageBody": "\x01"}, "InvalidMessageContents", ""),
    ({"MessageBody": "x", "DelaySeconds": 901}, "InvalidParameterValue", ""),
    (
        {"MessageBody": "x" * 1_025},
        "InvalidParameterValue",
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.",
    ),
    *(
        ({"MessageBody": "x", "MessageAttributes": {"E": value}}, "InvalidParameterValue", "")
        for value in (
            {"DataType": "String"},
            *({"DataType": "String", "StringValue": text} for text in ("", "\b", "a\x0bb", "\uffff")),
        )
    ),
]
BY_GET, POSTED = ("POST", "GET"), ("POST",)
FORMS = [
    # what is sent as it is, the code, and by which methods
    *(
        (content, "SerializationException", BY_GET)
        for content in (
            *("Action", "Action=%FF", "&&", "%00%", "no form at all", "Action=ListQueues&Action=ListQueues"),
            *("Action=ListQueues&QueueNamePrefix=%ff", "Action=ListQueues&MaxResults.1=5"),
            "&".join(["Action=ListQueues", *(f"a{number}=b" for number in range(2_001))]),
        )
    ),
    *((content, "MissingAction", POSTED) for content in ("", "Version=2012-11-05", "Action=")),
    ("Action=Nonsense", "InvalidAction", BY_GET),
    ("Action=ListQueues&Version=2008-01-01", "NoSuchVersion", BY_GET),
    *(
        (f"Action=CreateQueue&QueueName=a&Attribute{rest}", "SerializationException", POSTED)
        for rest in (
            ".1.Name=FifoQueue",
            ".1.Value=true",
            ".x.Name=a&Attribute.x.Value=b",
            "=b",
            "=b&Attribute.1.Name=c",
        )
    ),
    *(
        (f"Action=SendMessage&QueueUrl={ORDERS}&MessageBody=x&{more}", "SerializationException", POSTED)
        for more in (
            *("MessageAttribute=", "MessageAttribute=1", "MessageAttribute.x.Name=1", "MessageAttribute.1=1"),
            *("MessageAttribute.1.Name.2=1", "MessageAttribute.1.Name=a&MessageAttribute.1.Other=b"),
            *("MessageAttribute.99999.Name=1", "MessageBody.1=1", "DelaySeconds=soon", f"DelaySeconds={'9' * 50}"),
            *(f"{'.' * 100_000}=1", f"{'a.' * 100_000}=1", f"{'a.' * 16}a=1"),
        )
    ),
    (f"Action=PurgeQueue&QueueUrl.1={ORDERS}", "SerializationException", POSTED),
    (f"Action=SendMessageBatch&QueueUrl={ORDERS}&Entries=x", "SerializationException", POSTED),
    (
        f"Action=GetQueueAttributes&QueueUrl={ORDERS}&AttributeName=a&AttributeName.1=b",
        "SerializationException",
        BY_GET,
    ),
    (
        f"Action=TagQueue&QueueUrl={ORDERS}&Tag.1.Key=a&Tag.1.Value=b&Tags.1.Key=c&Tags.1.Value=d",
        "SerializationException",
        POSTED,
    ),
    *(
        (f"Action={action}Batch&QueueUrl={ORDERS}&{name}=", f"{LEGACY}EmptyBatchRequest", POSTED)
        for action in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
        for name in (f"{action}BatchRequestEntry", "Entries")
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("refusals") / "root") as running:
        running.lake.create_queue("orders", profile="sqs")
        running.lake.create_queue("orders.fifo", profile="sqs", fifo=True)
        running.lake.create_queue("small", profile="sqs", maximum_message_size=1024)
        yield running


@pytest.fixture(scope="module")
def asks(server: Running) -> dict[str, Ask]:
    return {name: protocol(server.url) for name, protocol in PROTOCOLS.items()}


_names = itertools.count()


def prepared_queue(server: Running, ask: Ask, case: Case) -> dict[str, str]:
    """Makes the queue of a case, and its first calls; what these told."""
    queue = server.lake.create_queue(f"own{next(_names)}", profile="sqs", max_inflight_messages=1)
    known = {OWN: f"/000000000000/{queue.name}", NAME: queue.name}
    for action, given in case.before:
        answer = ask(action, **filled(given, known))
        for message in answer.get("Messages", []):
            known[HANDLE] = message["ReceiptHandle"]
    return known


@pytest.mark.parametrize(
    ("protocol", "case"),
    [
        pytest.param(name, case, id=f"{n}-{case.code}-{name}")
        for n, case in enumerate(CASES)
        for name in case.protocols
    ],
)
@pytest.mark.spec("BAT-5", "ERR-1", "ERR-6", "ERR-8", "MSA-3", "QUE-2", "SND-15")
def test_a_refusal_has_all_its_fields_and_changes_nothing(
    server: Running,
    asks: dict[str, Ask],
    accesses: Callable[[], list[dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    case: Case,
) -> None:
    ask = asks[protocol]
    known = prepared_queue(server, ask, case) if case.before else {}
    files = sorted(Path(server.root).rglob("*"))
    caplog.clear()
    with pytest.raises(Refused) as raised:
        ask(case.action, **filled(case.given, known))
    refused = raised.value
    status, code, name = WIRE.get(case.code, (400, case.code, case.code))
    assert (refused.status, refused.code) == (status, code)
    assert len(refused.message) <= MAX_MESSAGE_LENGTH + 3
    assert refused.name == (name if protocol in ("json", "boto3") else "")
    message = case.message
    if case.code == "QueueDoesNotExist" and protocol in ("form", "get"):
        message = "The specified queue does not exist for this wsdl version."
    if message.startswith("…"):
        assert message[1:] in refused.message
    else:
        assert refused.message == (message or refused.message) != ""
    # the same name in every protocol; a line of an earlier call may come late
    wait_until(lambda: case.code in [line["code"] for line in accesses()], f"a line in the log with {case.code}")
    assert sorted(Path(server.root).rglob("*")) == files


@pytest.mark.parametrize("protocol", ["json", "boto3", "form"])
@pytest.mark.parametrize(("entry", "code", "message"), BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
@pytest.mark.spec("BAT-4", "MSA-3")
def test_an_entry_that_is_refused_keeps_no_other_back(
    asks: dict[str, Ask], protocol: str, entry: dict[str, Any], code: str, message: str
) -> None:
    batch = [{"Id": "bad", **entry}, {"Id": "good", "MessageBody": "y"}]
    sent = asks[protocol]("SendMessageBatch", QueueUrl=SMALL, Entries=batch)
    assert [done["Id"] for done in sent["Successful"]] == ["good"]
    [failed] = sent["Failed"]
    assert failed == {"Id": "bad", "Code": code, "SenderFault": True, "Message": message or failed["Message"]}
    assert failed["Message"]


@pytest.mark.parametrize(
    ("content", "code", "method"),
    [
        pytest.param(content, code, method, id=f"{content[:50]}-{method}")
        for content, code, methods in FORMS
        for method in methods
    ],
)
@pytest.mark.spec("BAT-5")
def test_a_form_that_is_no_proper_request(server: Running, content: str, code: str, method: str) -> None:
    if method == "POST":
        answer = httpx.post(server.url, content=content, headers=FORM, trust_env=False)
    else:
        answer = httpx.get(f"{server.url}?{content}", trust_env=False)
    assert (answer.status_code, read(answer).findtext("Error/Code")) == (400, code)


def test_request_ids_differ(server: Running) -> None:
    client = sqs(server.url)
    assert len({client.list_queues()["ResponseMetadata"]["RequestId"] for _ in range(3)}) == 3


@pytest.mark.spec("ERR-6")
def test_every_service_error_has_its_case() -> None:
    assert {*SERVICE_ERRORS} - {case.code for case in CASES} == {*NOT_OVER_THE_WIRE}
