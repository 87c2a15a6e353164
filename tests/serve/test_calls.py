"""What every action answers, in every protocol: conversations of calls, with what is given and what comes back.

A conversation runs on a queue of its own, in JSON, through boto3, as forms, and with GETs where an action only
reads. Time stands still at the beginning of 2026. In angle brackets is what only a run knows: where an answer
first has such a name, it is kept; later it has to be the same, or is given back.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import Any

import pytest

from lakequeue.model.messages import md5_of_attributes
from serve.protocols import PROTOCOLS, READING, Ask, FormToJson, filled, to
from serve.serving import Running

Calls = list[tuple[str, dict[str, Any], Any]]

TEXT = "This is my message text."
MD5_OF_TEXT = "6a1559560f67c5e7a7d5d838bf0272ee"
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "a": {"DataType": "String", "StringValue": "x"},
    "n": {"DataType": "Number", "StringValue": "42"},
    "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"
TRACED = {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}}
DIGESTS = {
    "MD5OfMessageAttributes": "1fe88e4d2f79f54876ff8f1d00671b3e",
    "MD5OfMessageSystemAttributes": md5_of_attributes({"AWSTraceHeader": ("String", TRACE)}),
}
MD5_OF_X = "9dd4e461268c8034f5c8564e155c67a6"
NOW = "1767225600"
NAMED = {
    name: {"DataType": "String", "StringValue": value}
    for name, value in {
        "Help.Me": "Me",
        "Hello": "There",
        "General": "Kenobi",
        "attr.1-A_z": "x",
        "_": "y",
    }.items()
}


def sent(md5: str = MD5_OF_X, **more: Any) -> dict[str, Any]:
    return {"MessageId": "<id>", "MD5OfMessageBody": md5, **more}


def received(body: str = "x", md5: str = MD5_OF_X, **more: Any) -> dict[str, Any]:
    return {"MessageId": "<id>", "ReceiptHandle": "<handle>", "Body": body, "MD5OfBody": md5, **more}


def survives(body: str) -> Calls:
    md5 = hashlib.md5(body.encode()).hexdigest()
    return [
        ("SendMessage", to(MessageBody=body), sent(md5)),
        ("ReceiveMessage", to(), {"Messages": [received(body, md5)]}),
    ]


def chosen(names: list[str], *found: str) -> Calls:
    """Message attributes that are asked for by names, and found."""
    shown = {
        "MessageAttributes": {name: NAMED[name] for name in found},
        "MD5OfMessageAttributes": md5_of_attributes(
            {name: ("String", NAMED[name]["StringValue"]) for name in found}
        ),
    }
    all_but_two = {name: NAMED[name] for name in NAMED if name in found or name not in ("attr.1-A_z", "_")}
    return [
        ("SendMessage", to(MessageBody="x", MessageAttributes=all_but_two), sent(MD5OfMessageAttributes=...)),
        ("ReceiveMessage", to(MessageAttributeNames=names), {"Messages": [received(**(shown if found else {}))]}),
    ]


def counted(visible: int, in_flight: int, delayed: int) -> tuple[str, dict[str, Any], Any]:
    counts = {"": visible, "NotVisible": in_flight, "Delayed": delayed}
    shown = {f"ApproximateNumberOfMessages{which}": str(count) for which, count in counts.items()}
    return "GetQueueAttributes", to(AttributeNames=[*shown]), {"Attributes": shown}


def attributes(shown: dict[str, str], asked: list[str] | None = None) -> tuple[str, dict[str, Any], Any]:
    return "GetQueueAttributes", to(AttributeNames=asked or [*shown]), {"Attributes": shown} if shown else {}


NEW_QUEUE = {
    "VisibilityTimeout": "30",
    "MessageRetentionPeriod": "345600",
    "DelaySeconds": "0",
    "ReceiveMessageWaitTimeSeconds": "0",
    "MaximumMessageSize": "1048576",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
    "SqsManagedSseEnabled": "false",
    "QueueArn": "<arn>",
    "CreatedTimestamp": NOW,
    "LastModifiedTimestamp": NOW,
}
NEW_FIFO = NEW_QUEUE | {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
CHANGES = {
    "DelaySeconds": "0",
    "VisibilityTimeout": "43200",
    "MaximumMessageSize": "1024",
    "MessageRetentionPeriod": "60",
    "ReceiveMessageWaitTimeSeconds": "20",
    "Policy": '{"Version":"2012-10-17","Statement":[]}',
}
POLICY = '{"deadLetterTargetArn":"<arn>","maxReceiveCount":2}'
FAILED = {"SenderFault": True, "Message": ...}
IN_FIFO = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}

# fmt: off
CONVERSATIONS: dict[str, Calls] = {
    # --- queues
    "a new queue": [attributes(NEW_QUEUE, ["All"]), ("GetQueueAttributes", to(), {})],
    "a new .fifo": [attributes(NEW_FIFO, ["All"])],
    **{f"{true} .fifo": [
        ("CreateQueue", {"QueueName": "2<name>", "Attributes": {"FifoQueue": true}},
         {"QueueUrl": "<base>/000000000000/2<name>"}),
        ("SetQueueAttributes", to(Attributes={"FifoQueue": true, "ContentBasedDeduplication": true}), {}),
        attributes({"FifoQueue": "true", "ContentBasedDeduplication": "true"}),
        ("SetQueueAttributes", to(Attributes={"ContentBasedDeduplication": "False"}), {}),
        attributes({"ContentBasedDeduplication": "false"}),
    ] for true in ("True", "TRUE", "true")},
    "names and tags": [
        ("CreateQueue", {"QueueName": "<name>-2", "Attributes": {"DelaySeconds": "5", "KmsMasterKeyId": ""},
                         "tags": {"team": "ä & <b>", "stage": ""}}, {"QueueUrl": "<url>-2"}),
        ("CreateQueue", {"QueueName": "<name>-2"}, {"QueueUrl": "<url>-2"}),
        ("GetQueueUrl", {"QueueName": "<name>-2", "QueueOwnerAWSAccountId": "000000000000"},
         {"QueueUrl": "<url>-2"}),
        ("GetQueueAttributes", to("<url>-2", AttributeNames=["DelaySeconds"]),
         {"Attributes": {"DelaySeconds": "5"}}),
        ("ListQueueTags", to("<url>-2"), {"Tags": {"team": "ä & <b>", "stage": ""}}),
        ("TagQueue", to("<url>-2", Tags={"new": "x", "more": "y"}), {}),
        ("UntagQueue", to("<url>-2", TagKeys=["team", "stage"]), {}),
        ("ListQueueTags", to("<url>-2"), {"Tags": {"new": "x", "more": "y"}}),
        ("DeleteQueue", to("<url>-2"), {}),
        ("ListQueues", {"QueueNamePrefix": "<name>"}, {"QueueUrls": ["<url>"]}),
    ],
    "attributes": [
        ("SetQueueAttributes", to(Attributes=CHANGES), {}),
        attributes(CHANGES),
        attributes({"DelaySeconds": "0"}),
        ("SetQueueAttributes", to(Attributes={"Policy": ""}), {}),
        attributes({}, ["Policy"]),
    ],
    "managed encryption": [
        ("CreateQueue", {"QueueName": "<name>-2", "Attributes": {"SqsManagedSseEnabled": "true"}},
         {"QueueUrl": "<url>-2"}),
        *(("GetQueueAttributes", to("<url>-2", AttributeNames=[name]), {"Attributes": shown}) for name, shown in (
            ("SqsManagedSseEnabled", {"SqsManagedSseEnabled": "true"}),
            ("All", NEW_QUEUE | {"SqsManagedSseEnabled": "true", "QueueArn": "<arn>-2"}),
        )),
        ("SetQueueAttributes", to("<url>-2", Attributes={"SqsManagedSseEnabled": "False"}), {}),
        ("GetQueueAttributes", to("<url>-2", AttributeNames=["SqsManagedSseEnabled"]),
         {"Attributes": {"SqsManagedSseEnabled": "false"}}),
        ("CreateQueue", {"QueueName": "<name>", "Attributes": {"SqsManagedSseEnabled": "false"}},
         {"QueueUrl": "<url>"}),  # as it was read
        attributes({"SqsManagedSseEnabled": "false"}),
    ],
    "permissions": [
        ("AddPermission", to(Label="one", AWSAccountIds=["111122223333", "444455556666"],
                             Actions=["SendMessage", "ReceiveMessage"]), {}),
        attributes({"Policy":
            '{"Version":"2008-10-17","Id":"<arn>/SQSDefaultPolicy","Statement":[{"Sid":"one","Effect":"Allow",'
            '"Principal":{"AWS":["arn:aws:iam::111122223333:root","arn:aws:iam::444455556666:root"]},'
            '"Action":["SQS:SendMessage","SQS:ReceiveMessage"],"Resource":"<arn>"}]}'}),
        ("RemovePermission", to(Label="one"), {}),
        attributes({}, ["Policy"]),
    ],
    "pages of queues": [
        *(("CreateQueue", {"QueueName": f"<name>-{n}"}, {"QueueUrl": f"<url>-{n}"}) for n in range(2)),
        ("ListQueues", {"QueueNamePrefix": "<name>", "MaxResults": 2},
         {"QueueUrls": ["<url>", "<url>-0"], "NextToken": "<token>"}),
        ("ListQueues", {"QueueNamePrefix": "<name>", "MaxResults": 2, "NextToken": "<token>"},
         {"QueueUrls": ["<url>-1"]}),
        ("ListQueues", {"QueueNamePrefix": "<name>-0", "MaxResults": 1}, {"QueueUrls": ["<url>-0"]}),
        ("ListQueues", {"QueueNamePrefix": "<name>-no"}, {}),
    ],
    "pages of sources": [
        ("ListDeadLetterSourceQueues", to(), {"queueUrls": []}),
        *(("CreateQueue", {"QueueName": f"<name>-{n}", "Attributes": {"RedrivePolicy": POLICY}},
           {"QueueUrl": f"<url>-{n}"}) for n in range(3)),
        ("ListDeadLetterSourceQueues", to(MaxResults=2),
         {"queueUrls": ["<url>-0", "<url>-1"], "NextToken": "<token>"}),
        ("ListDeadLetterSourceQueues", to(MaxResults=2, NextToken="<token>"), {"queueUrls": ["<url>-2"]}),
    ],
    "a purge": [
        *(("SendMessage", to(MessageBody="x", DelaySeconds=delay), sent(MessageId=...)) for delay in (0, 0, 900)),
        ("ReceiveMessage", to(), {"Messages": [received(MessageId=...)]}),
        counted(1, 1, 1),
        ("PurgeQueue", to(), {}),
        counted(0, 0, 0),
    ],
    **{f"a queue as {form}": [
        ("SendMessage", to(form, MessageBody="x"), sent()),
        ("ReceiveMessage", to(form), {"Messages": [received()]}),
        ("DeleteMessage", to(form, ReceiptHandle="<handle>"), {}),
        ("PurgeQueue", to(form), {}),
    ] for form in (
        *("<url>", "<base>/queue/<name>", "/000000000000/<name>", "/<name>", "<name>", "<base>/<name>/"),
        "https://sqs.eu-west-1.amazonaws.com/111122223333/<name>",
        "http://localhost.localstack.cloud:4566/000000000000/<name>",
        "http://queue.amazonaws.com/<name>",
    )},
    # --- messages
    "a message": [
        ("SendMessage",
         to(MessageBody=TEXT, MessageAttributes=ATTRIBUTES, MessageSystemAttributes=TRACED, DelaySeconds=0),
         sent(MD5_OF_TEXT, **DIGESTS)),
        ("ReceiveMessage",
         to(MaxNumberOfMessages=10, VisibilityTimeout=60, WaitTimeSeconds=1, MessageAttributeNames=["b", "a", "n"],
            AttributeNames=["AWSTraceHeader"]),
         {"Messages": [received(
             TEXT, MD5_OF_TEXT, Attributes={"AWSTraceHeader": TRACE},
             MessageAttributes=ATTRIBUTES, MD5OfMessageAttributes=DIGESTS["MD5OfMessageAttributes"],
         )]}),
        ("ReceiveMessage", to(), {}),
        *2 * [("DeleteMessage", to(ReceiptHandle="<handle>"), {})],
        counted(0, 0, 0),
    ],
    **{f"text {n}": survives(body) for n, body in enumerate(
        ["x", "ä\U0001f9c0\ufffd", "\t\r\n \u2028", "\"\\/<&>'", "x" * 1_048_576, "käse\r\n\t<&>\"' \U0001f9c0 "]
    )},
    **{f"system attributes by {asked}": [
        ("SetQueueAttributes", to(Attributes={"VisibilityTimeout": "0"}), {}),
        ("SendMessage", to(MessageBody="x", MessageGroupId="fair", MessageSystemAttributes=TRACED),
         sent(MD5OfMessageSystemAttributes=DIGESTS["MD5OfMessageSystemAttributes"])),
        ("ReceiveMessage", to(), {"Messages": [received(ReceiptHandle=...)]}),
        ("ReceiveMessage", to(**{asked: ["All"]}), {"Messages": [received(ReceiptHandle=..., Attributes={
            "ApproximateFirstReceiveTimestamp": f"{NOW}000",
            "ApproximateReceiveCount": "2",
            "AWSTraceHeader": TRACE,
            "MessageGroupId": "fair",
            "SenderId": "000000000000",
            "SentTimestamp": f"{NOW}000",
        })]}),
        ("ReceiveMessage", to(**{asked: ["ApproximateReceiveCount", "SequenceNumber"]}),
         {"Messages": [received(ReceiptHandle=..., Attributes={"ApproximateReceiveCount": "3"})]}),
    ] for asked in ("AttributeNames", "MessageSystemAttributeNames")},
    **{f"attributes named {' '.join(names)}": chosen(names, *found) for names, *found in (
        [[]],
        [["All"], "General", "Hello", "Help.Me"],
        [["*"], "General", "Hello", "Help.Me"],
        [[".*"], "General", "Hello", "Help.Me"],
        [["Hel.*"], "Hello", "Help.Me"],
        [["Help.*"], "Help.Me"],
        [["Help..*"], "Help.Me"],
        [["hel.*"]],
        [["Hello", "Gen.*"], "General", "Hello"],
        [["Help", "AWS.", "..foo", "Hel*"]],
        [["*", "Foo"], "General", "Hello", "Help.Me"],
        [["attr.*", "_"], "_", "attr.1-A_z"],
    )},
    "batches": [
        ("SendMessageBatch", to(Entries=[
            {"Id": "plain", "MessageBody": "x"},
            {"Id": "full", "MessageBody": TEXT, "MessageAttributes": ATTRIBUTES, "MessageSystemAttributes": TRACED,
             "DelaySeconds": 0},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 900},
            {"Id": "bad", "MessageBody": "\x01"},
            {"Id": "slow", "MessageBody": "x", "DelaySeconds": 901},
        ]), {"Successful": [
            {"Id": "plain"} | sent(),
            {"Id": "full"} | sent(MD5_OF_TEXT, MessageId="<2>", **DIGESTS),
            {"Id": "late"} | sent(MessageId=...),
        ], "Failed": [
            {"Id": "bad", "Code": "InvalidMessageContents"} | FAILED,
            {"Id": "slow", "Code": "InvalidParameterValue"} | FAILED,
        ]}),
        ("ReceiveMessage", to(MaxNumberOfMessages=10), {"Messages": [
            received(ReceiptHandle="<1>"), received(TEXT, MD5_OF_TEXT, MessageId="<2>")
        ]}),
        ("ChangeMessageVisibilityBatch", to(Entries=[
            {"Id": "back", "ReceiptHandle": "<1>", "VisibilityTimeout": 0},
            {"Id": "kept", "ReceiptHandle": "<handle>", "VisibilityTimeout": 60},
            {"Id": "long", "ReceiptHandle": "<handle>", "VisibilityTimeout": 43_201},
            {"Id": "garbage", "ReceiptHandle": "x", "VisibilityTimeout": 60},
        ]), {"Successful": [{"Id": "back"}, {"Id": "kept"}], "Failed": [
            {"Id": "long", "Code": "InvalidParameterValue"} | FAILED,
            {"Id": "garbage", "Code": "ReceiptHandleIsInvalid"} | FAILED,
        ]}),
        ("ReceiveMessage", to(MaxNumberOfMessages=10), {"Messages": [received(ReceiptHandle="<first>")]}),
        ("ChangeMessageVisibility", to(ReceiptHandle="<first>", VisibilityTimeout=0), {}),
        ("ReceiveMessage", to(), {"Messages": [received(ReceiptHandle="<again>")]}),
        ("DeleteMessageBatch", to(Entries=[
            {"Id": "one", "ReceiptHandle": "<again>"},
            {"Id": "two", "ReceiptHandle": "garbage"},
            {"Id": "three", "ReceiptHandle": "<handle>"},
        ]), {"Successful": [{"Id": "one"}, {"Id": "three"}],
             "Failed": [{"Id": "two", "Code": "ReceiptHandleIsInvalid"} | FAILED]}),
        ("SendMessageBatch", to(Entries=[{"Id": "good", "MessageBody": "x"}]),
         {"Successful": [{"Id": "good"} | sent(MessageId=...)]}),
        ("SendMessageBatch", to(Entries=[{"Id": "bad", "MessageBody": "\x01"}]),
         {"Failed": [{"Id": "bad", "Code": "InvalidMessageContents"} | FAILED]}),
        counted(1, 0, 1),
    ],
    "messages in a .fifo": [
        *2 * [("SendMessage", to(**IN_FIFO), sent(SequenceNumber="<sequence>"))],
        *2 * [("ReceiveMessage", to(ReceiveRequestAttemptId="a", AttributeNames=["SequenceNumber"]),
               {"Messages": [received(Attributes={"SequenceNumber": "<sequence>"})]})],
    ],
    "a move task": [
        ("CreateQueue", {"QueueName": "<name>-0", "Attributes": {"RedrivePolicy": POLICY}},
         {"QueueUrl": "<url>-0"}),
        *2 * [("SendMessage", to(MessageBody="x"), sent(MessageId=...))],
        ("StartMessageMoveTask",
         {"SourceArn": "<arn>", "DestinationArn": "<arn>-0", "MaxNumberOfMessagesPerSecond": 1},
         {"TaskHandle": "<task>"}),
        ("ListMessageMoveTasks", {"SourceArn": "<arn>", "MaxResults": 10}, {"Results": [{
            "TaskHandle": "<task>", "Status": "RUNNING", "SourceArn": "<arn>", "DestinationArn": "<arn>-0",
            "MaxNumberOfMessagesPerSecond": 1, "ApproximateNumberOfMessagesMoved": ...,
            "ApproximateNumberOfMessagesToMove": 2, "StartedTimestamp": int(NOW) * 1_000,
        }]}),
        ("CancelMessageMoveTask", {"TaskHandle": "<task>"}, {"ApproximateNumberOfMessagesMoved": ...}),
    ],
}
# fmt: on
RULES = {
    "a message": ("MSA-1", "MSA-2", "RCV-10", "SND-3", "SND-15"),
    "a move task": ("DLQ-8",),
    "a new": ("PRF-1", "QUE-1"),
    "a purge": ("PUR-1",),
    "a queue as": ("NAM-7", "NAM-11"),
    "attributes named": ("MSA-2", "MSA-4"),
    "batches": ("BAT-2", "BAT-4", "BAT-6"),
    "messages in": ("ATT-3", "DDP-8", "SEQ-2"),
    "pages of queues": ("QUE-23",),
    "pages of sources": ("DLQ-7",),
    "system attributes": ("RCV-11", "SND-15"),
    "text": ("SND-2", "SND-12"),
}
"""Rules that conversations show, by how their names begin."""
TO_JSON = (
    "a message",
    "batches",
    "names and tags",
    "pages of queues",
    "pages of sources",
    "a purge",
    "attributes",
)
"""Those that are held with forms that are answered in JSON, too."""


@pytest.fixture(scope="module")
def asks(timed: Running) -> dict[str, Ask]:
    return {name: protocol(timed.url) for name, protocol in (PROTOCOLS | {"form to JSON": FormToJson}).items()}


_numbers = itertools.count()


def keep(expected: Any, found: Any, known: dict[str, str]) -> Any:
    """An answer with names for what is not known yet, which is kept; ``...`` stands for anything but nothing."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: keep(expected.get(key), item, known) for key, item in found.items()}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [keep(*pair, known) for pair in zip(expected, found, strict=True)]
    if isinstance(expected, str) and re.fullmatch("<[a-z0-9 ]+>", expected) and expected not in known and found:
        known[expected] = found
        return expected
    return expected if expected is ... and found not in (None, "") else found


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        pytest.param(
            protocol, name, marks=[pytest.mark.spec(*RULES[rule]) for rule in RULES if name.startswith(rule)]
        )
        for name, calls in CONVERSATIONS.items()
        for protocol in (*PROTOCOLS, *["form to JSON"] * (name in TO_JSON))
        if protocol != "get" or READING & {action for action, *_ in calls}
    ],
)
def test_a_conversation_is_the_same_in_every_protocol(
    timed: Running, asks: dict[str, Ask], protocol: str, name: str
) -> None:
    fifo = name.endswith(".fifo")
    queue = f"A-z_{next(_numbers)}{'.fifo' if fifo else ''}"
    known = {"<name>": queue, "<base>": timed.url, "<url>": f"{timed.url}/000000000000/{queue}"}
    known["<arn>"] = f"arn:aws:sqs:local:000000000000:{queue}"
    created: Calls = [
        (
            "CreateQueue",
            {"QueueName": queue, "Attributes": {"FifoQueue": "true"} if fifo else {}},
            {"QueueUrl": "<url>"},
        )
    ]
    for action, given, expected in created + CONVERSATIONS[name]:
        answer = asks[protocol](action, **filled(given, known))
        if protocol in ("form", "get") and expected == {"queueUrls": []}:
            expected = {}  # an empty list is no element
        told = keep(expected, answer, known)
        assert filled(told, known) == filled(expected, known), action
    assert timed.lake.queue(queue).attributes()["profile"] == "sqs"
