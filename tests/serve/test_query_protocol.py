"""The Query protocol in its own words: as older SDKs spell forms, by GET, by signed URLs, and answered in JSON."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lakequeue import LakeQueue
from lakequeue.serve.keys import AccessRule, Key, Keys
from lakequeue.serve.sqs import query_protocol
from lakequeue.serve.sqs.model import operations
from serve.protocols import FORM, READING, Form, Refused, read, result
from serve.protocols import fields as spelled
from serve.raw_requests import WireError, wire_error
from serve.serving import Running, serving

JSON = {"accept": "application/json"}
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
_names = itertools.count()


@pytest.fixture(scope="module")
def query(server: Running) -> Form:
    return Form(server.url)


@pytest.fixture
def path(server: Running) -> str:
    """The path of a new queue's URL."""
    queue = server.lake.create_queue(f"queue{next(_names)}", profile="sqs")
    return f"/000000000000/{queue.name}"


def get(server: Running, path: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
    return httpx.get(server.url + path, params=fields, headers=headers)


def post(server: Running, path: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
    return httpx.post(server.url + path, content=urlencode(fields), headers=FORM | (headers or {}))


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message of a refusal."""
    with pytest.raises(Refused) as told:
        result(answer, "")
    return told.value.status, told.value.code, told.value.message


def bodies(found: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in found["Messages"]]


# --- forms as older SDKs spell them


@pytest.mark.parametrize("place", ["path", "field", "legacy path", "quoted path"])
def test_the_queue_is_named_by_the_path_or_by_a_field(query: Form, path: str, place: str) -> None:
    name = path.rpartition("/")[2]
    elsewhere = {"QueueUrl": f"http://elsewhere:1/2/{name}"}
    fields, where = {
        "path": ({}, path),
        "field": (elsewhere, "/000000000000/no-such-queue"),
        "legacy path": ({}, f"/queue/{name}"),
        "quoted path": ({}, f"/000000000000/%{ord(name[0]):x}{name[1:]}"),
    }[place]
    query.spelled("SendMessage", {"MessageBody": place} | fields, where)
    assert bodies(query.spelled("ReceiveMessage", fields, where)) == [place]


def test_a_list_of_one_needs_no_number(query: Form, path: str) -> None:
    """As in the sample of the ReceiveMessage reference."""
    value = "MessageAttribute.1.Value"
    attribute = {"MessageAttribute.1.Name": "a", f"{value}.DataType": "String", f"{value}.StringValue": "b"}
    query.spelled("SendMessage", {"MessageBody": "x"} | attribute, path)
    asked = {"AttributeName": "All", "MessageAttributeName": "a"}
    [message] = query.spelled("ReceiveMessage", asked, path)["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1" and [*message["MessageAttributes"]] == ["a"]
    shown = query.spelled("GetQueueAttributes", {"AttributeName": "All"}, path)["Attributes"]
    assert shown["QueueArn"].endswith(path.rpartition("/")[2])
    query.spelled("TagQueue", {"Tag.1.Key": "k", "Tag.1.Value": "v"}, path)
    query.spelled("UntagQueue", {"TagKey": "k"}, path)
    assert query.spelled("ListQueueTags", {}, path) == {}


_SINGLE: dict[str, dict[str, Any]] = {
    "CreateQueue": {"QueueName": "q", "Attributes": {"VisibilityTimeout": "35"}, "tags": {"a": "b"}},
    "SetQueueAttributes": {"Attributes": {"VisibilityTimeout": "35"}},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
    "GetQueueAttributes": {"AttributeNames": ["All"]},
    "AddPermission": {"Label": "x", "AWSAccountIds": ["000000000000"], "Actions": ["SendMessage"]},
    "ReceiveMessage": {
        **{"AttributeNames": ["All"], "MessageAttributeNames": ["a"]},
        "MessageSystemAttributeNames": ["SentTimestamp"],
    },
    "SendMessage": {
        "MessageBody": "x",
        "MessageAttributes": {"a": {"DataType": "String", "StringValue": "b"}},
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    },
    "SendMessageBatch": {
        "Entries": [
            {
                **{"Id": "1", "MessageBody": "x", "DelaySeconds": "5"},
                "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "AA=="}},
            }
        ]
    },
    "DeleteMessageBatch": {"Entries": [{"Id": "1", "ReceiptHandle": "h"}]},
    "ChangeMessageVisibilityBatch": {"Entries": [{"Id": "1", "ReceiptHandle": "h", "VisibilityTimeout": "0"}]},
}
"""For each action with lists or maps, all of them with one element."""


def test_every_action_with_a_list_is_tried() -> None:
    found = {
        name: {
            member for member, shape in action.input_shape.members.items() if shape.type_name in ("list", "map")
        }
        for name, action in operations().items()
    }
    assert {name for name, members in found.items() if members} == {*_SINGLE}
    assert all(members <= _SINGLE[name].keys() for name, members in found.items() if members)


@pytest.mark.parametrize("dropped", [slice(None), slice(1), slice(1, None)], ids=["all", "first", "others"])
@pytest.mark.parametrize("action", _SINGLE)
def test_a_single_element_of_any_list_needs_no_number(action: str, dropped: slice) -> None:
    """As in Amazon's samples: Attribute.Name=VisibilityTimeout&Attribute.Value=35."""

    def without(name: str) -> str:
        numbers = [part.start() for part in re.finditer(r"\.1(?=\.|$)", name)][dropped]
        return "".join(part for place, part in enumerate(name) if not {place, place - 1} & {*numbers})

    model, numbered = operations()[action], dict(spelled(action, _SINGLE[action]))
    plain = {without(name): value for name, value in numbered.items()}
    found, expected = (query_protocol.parameters(model, each, "/0/q") for each in (plain, numbered))
    assert found == expected and found.keys() >= _SINGLE[action].keys()


def test_samples_without_numbers_are_answered(query: Form, path: str) -> None:
    """By POST as in Amazon's reference, and by GET where that only reads."""
    query.spelled("SetQueueAttributes", {"Attribute.Name": "VisibilityTimeout", "Attribute.Value": "35"}, path)
    asked = urlencode({"Action": "GetQueueAttributes", "AttributeName": "VisibilityTimeout"})
    assert "<Value>35</Value>" in httpx.get(f"{query.url}{path}?{asked}").text
    query.spelled("TagQueue", {"Tag.Key": "QueueType", "Tag.Value": "Production"}, path)
    assert query.spelled("ListQueueTags", {}, path)["Tags"] == {"QueueType": "Production"}
    entry, attribute = "SendMessageBatchRequestEntry", "MessageAttribute"
    value = f"{entry}.{attribute}.Value"
    batch = {f"{entry}.Id": "a", f"{entry}.MessageBody": "x", f"{entry}.{attribute}.Name": "n"}
    batch |= {f"{value}.DataType": "String", f"{value}.StringValue": "v"}
    assert [each["Id"] for each in query.spelled("SendMessageBatch", batch, path)["Successful"]] == ["a"]
    [message] = query.spelled("ReceiveMessage", {f"{attribute}Name": "All"}, path)["Messages"]
    assert message["MessageAttributes"]["n"]["StringValue"] == "v"
    deleted = {"DeleteMessageBatchRequestEntry.Id": "d"}
    deleted |= {"DeleteMessageBatchRequestEntry.ReceiptHandle": message["ReceiptHandle"]}
    assert [each["Id"] for each in query.spelled("DeleteMessageBatch", deleted, path)["Successful"]] == ["d"]


@pytest.mark.parametrize(
    "given",
    [
        {"Attribute.Name": "DelaySeconds", "Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "1"},
        {"Attribute.Name": "DelaySeconds", "Attribute.Value": "1", "Attribute.1": "2"},
        {"Attribute.Name": "DelaySeconds"},
        {"Attribute.Value": "1"},
        {"Attribute.Name": "DelaySeconds", "Attribute.Value": "1", "Attribute.More": "1"},
        {"Attribute.x": "1"},
        {"Attribute.Name.1": "DelaySeconds", "Attribute.Value": "1"},
        {"Attribute": "DelaySeconds"},
    ],
)
def test_what_is_no_single_element_is_refused(query: Form, path: str, given: dict[str, str]) -> None:
    assert refused(query.send("SetQueueAttributes", given, path))[:2] == (400, "SerializationException")


def test_entries_come_in_the_order_of_their_numbers(query: Form, path: str) -> None:
    entry = "SendMessageBatchRequestEntry"
    fields = {f"{entry}.{n}.{name}": str(n) for n in (10, 2, 1) for name in ("Id", "MessageBody")}
    query.spelled("SendMessageBatch", fields, path)
    assert bodies(query.spelled("ReceiveMessage", {"MaxNumberOfMessages": "10"}, path)) == ["1", "2", "10"]


def test_unknown_parameters_are_ignored(query: Form, path: str) -> None:
    """As in AWS's "Making query API requests", where CreateQueue has a DefaultVisibilityTimeout."""
    name = f"unknown{next(_names)}"
    query.spelled("CreateQueue", {"QueueName": name, "DefaultVisibilityTimeout": "40"})
    shown = query.spelled("GetQueueAttributes", {"AttributeName": "VisibilityTimeout"}, f"/000000000000/{name}")
    assert shown == {"Attributes": {"VisibilityTimeout": "30"}}
    entry = "SendMessageBatchRequestEntry.1"
    sent = {f"{entry}.Id": "a", f"{entry}.MessageBody": "x", f"{entry}.More.1": "y", "tags": "z"}
    assert [done["Id"] for done in query.spelled("SendMessageBatch", sent, path)["Successful"]] == ["a"]
    common = ("Timestamp", "Expires", "AWSAccessKeyId", "SignatureVersion", "SignatureMethod", "Signature")
    signing = dict.fromkeys((*common, "SecurityToken", "X-Amz-Security-Token"), "x")
    query.spelled("SendMessage", {"MessageBody": "x"} | signing, path)


@pytest.mark.parametrize("empty", ["MessageAttributeName", "MessageAttributeNames", "AttributeName"])
def test_an_empty_list_requests_nothing(query: Form, path: str, empty: str) -> None:
    attribute = {"a": {"DataType": "String", "StringValue": "b"}}
    query("SendMessage", QueueUrl=path, MessageBody="x", MessageAttributes=attribute)
    [message] = query.spelled("ReceiveMessage", {empty: ""}, path)["Messages"]
    assert not {"MessageAttributes", "Attributes"} & message.keys()
    assert query.spelled("GetQueueAttributes", {"AttributeName": ""}, path) == {}


def test_tags_in_the_plural(query: Form, server: Running) -> None:
    """Older SDKs for Java."""
    name = f"tagged{next(_names)}"
    query.spelled("CreateQueue", {"QueueName": name, "Tags.1.Key": "a", "Tags.1.Value": "1"})
    path = f"/000000000000/{name}"
    more = {"Tags.1.Key": "b", "Tags.1.Value": "2", "Tags.2.Key": "c", "Tags.2.Value": "3"}
    query.spelled("TagQueue", more, path)
    query.spelled("UntagQueue", {"TagKeys.1": "c"}, path)
    assert server.lake.queue(name).tags() == {"a": "1", "b": "2"}


def test_text_that_xml_cannot_hold_is_shown_as_unknown(query: Form, path: str) -> None:
    """An error repeats what it refuses, here a control character."""
    with pytest.raises(Refused, match="a\ufffdb"):
        query("DeleteMessage", QueueUrl=path, ReceiptHandle="a\x01b")


def test_an_empty_result_is_one_tag(query: Form, path: str) -> None:
    answer = query.send("ReceiveMessage", {}, path).text
    assert "<ReceiveMessageResult/>" in answer and "</ReceiveMessageResult>" not in answer


# --- by GET


@pytest.mark.parametrize("action", sorted(operations().keys() - READING))
def test_an_unsigned_get_changes_nothing_and_receives_nothing(server: Running, path: str, action: str) -> None:
    """Any page can cause a GET, by an image or by having it prefetched; no client of SQS needs it."""
    queue = server.lake.queue(path.rpartition("/")[2])
    queue.send("x")
    fields = {"QueueName": "made", "MessageBody": "y", "QueueUrl": server.url + path}
    browser = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)", "sec-fetch-site": "same-origin"}
    for headers in ({}, browser):
        place = "/" if action == "CreateQueue" else path
        assert refused(get(server, place, headers, Action=action, **fields)) == (
            403,
            "AccessDenied",
            "Unsigned requests by GET only read; use POST.",
        )
    unknown = {
        "authorization": "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu/sqs/aws4_request, SignedHeaders=host"
    }
    for headers, more in (unknown, {}), ({}, {"X-Amz-Signature": "0" * 64}):
        told = refused(get(server, place, headers, Action=action, **fields, **more))[2]
        assert told == "This server has no keys, so it cannot verify the signature of a request by GET; use POST."
    assert (queue.counts().visible, queue.counts().in_flight) == (1, 0)
    assert "made" not in [queue.name for queue in server.lake.list_queues()]


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_a_queue_does_not_create_or_list_queues(server: Running, query: Form, path: str, action: str) -> None:
    told = (400, "InvalidAction", f"The action {action} is not valid for this endpoint.")
    assert refused(get(server, path, Action=action, QueueName="never")) == told
    assert refused(query.send(action, {"QueueName": "never"}, path)) == told
    assert refused(query.send(action, {"QueueName": "never"}, "/queue/any")) == told
    assert "never" not in [queue.name for queue in server.lake.list_queues()]


@pytest.mark.parametrize("headers", [{}, JSON])
@pytest.mark.parametrize("where", ["", "?", "?Action=", "?Version=2012-11-05"])
def test_a_get_without_an_action(server: Running, path: str, where: str, headers: dict[str, str]) -> None:
    for place in (path, "/"):
        answer = httpx.get(server.url + place + where, headers=headers)
        assert (answer.status_code, answer.text) == (404, "<UnknownOperationException/>")


# --- with keys


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with a key that may do everything and one that may send to orders."""
    root = tmp_path_factory.mktemp("keyed") / "root"
    for name in ("orders", "others"):
        LakeQueue(str(root)).create_queue(name, profile="sqs")
    rule = AccessRule(("orders",), frozenset({"SendMessage"}))
    keys = Keys({"ALL": Key("ALL", "secret"), "SEND": Key("SEND", "secret", (rule,))})
    with serving(root, access=keys) as running:
        yield running


def signed(keyed: Any, key: str, path: str, by_url: bool, **fields: str) -> httpx.Response:
    asked = AWSRequest("GET", f"http://127.0.0.1:{keyed.port}{path}?{urlencode(fields)}")
    signer = SigV4QueryAuth if by_url else SigV4Auth
    signer(Credentials(key, "secret"), "sqs", "eu-west-1").add_auth(asked)
    return httpx.get(asked.url, headers=dict(asked.headers))


@pytest.mark.parametrize("by_url", [True, False], ids=["signed URL", "header"])
def test_a_signed_get(keyed: Any, by_url: bool) -> None:
    body = "a b+&/\u00e9"
    asked = {"Action": "SendMessage", "MessageBody": body}
    assert signed(keyed, "SEND", "/000000000000/orders", by_url, **asked).status_code == 200
    received = signed(keyed, "ALL", "/000000000000/orders", by_url, Action="ReceiveMessage")
    assert read(received).findtext("ReceiveMessageResult/Message/Body") == body
    for path, action in (("others", "SendMessage"), ("orders", "PurgeQueue")):
        answer = signed(keyed, "SEND", f"/000000000000/{path}", by_url, **(asked | {"Action": action}))
        assert refused(answer)[:2] == (403, "AccessDenied")


def test_an_unsigned_get_where_keys_are_needed(keyed: Any) -> None:
    url = f"http://127.0.0.1:{keyed.port}/000000000000/orders"
    assert refused(httpx.get(url, params={"Action": "PurgeQueue"}))[:2] == (403, "MissingAuthenticationToken")
    assert httpx.get(url).text == "<UnknownOperationException/>"


# --- in JSON; what else is answered there is told with the calls


def test_an_answer_in_json_has_null_where_there_is_nothing(server: Running, path: str) -> None:
    for fields, members in (
        ({"Action": "SendMessage", "MessageBody": "x"}, {"MD5OfMessageAttributes", "SequenceNumber"}),
        ({"Action": "ReceiveMessage", "VisibilityTimeout": "0"}, {"MessageAttributes", "Attributes"}),
    ):
        answer = post(server, path, JSON, **fields).json()[f"{fields['Action']}Response"]
        result = answer[f"{fields['Action']}Result"]
        [result] = result.get("messages", [result])
        assert {result[name] for name in members} == {None}
    posted = post(server, path, JSON, Action="PurgeQueue")
    assert [*posted.json()["PurgeQueueResponse"]] == ["ResponseMetadata"]


def test_errors_in_json(server: Running, path: str) -> None:
    for place, action, error in (
        (path, "ListQueues", ("InvalidAction", "The action ListQueues is not valid for this endpoint.")),
        (
            "/000000000000/never",
            "PurgeQueue",
            (NO_QUEUE, "The specified queue does not exist for this wsdl version."),
        ),
    ):
        answer = post(server, place, JSON, Action=action)
        assert answer.headers["content-type"] == "application/json"
        assert wire_error(answer.status_code, answer.headers, answer.content) == WireError(400, *error)
