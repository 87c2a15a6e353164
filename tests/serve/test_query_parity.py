"""The Query protocol as AWS answers it: by GET, by signed URLs, in JSON, and with what older SDKs send."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lakequeue import LakeQueue
from lakequeue.serve.keys import Key, Keys, Rule
from lakequeue.serve.sqs.endpoint import READING
from lakequeue.serve.sqs.model import operations
from serve.queries import FORM, Queries, pairs, read, texts
from serve.serving import Running, serving

JSON = {"accept": "application/json"}
TRACE = "Root=1-3152b799-8954dae64eda91bc9a23a7e8"
_names = itertools.count()


@pytest.fixture
def path(server: Running) -> str:
    """The path of a new queue's URL."""
    queue = server.lake.create_queue(f"got{next(_names)}", profile="sqs")
    return f"/000000000000/{queue.name}"


def get(server: Running, path: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
    return httpx.get(server.url + path, params=fields, headers=headers)


def post(server: Running, path: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
    return httpx.post(server.url + path, content=urlencode(fields), headers=FORM | (headers or {}))


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message of a refusal."""
    error = read(answer).find("Error")
    assert error is not None and error.findtext("Type") == "Sender"
    return answer.status_code, error.findtext("Code") or "", error.findtext("Message") or ""


# --- by GET


def test_actions_that_read_by_get(server: Running, path: str) -> None:
    answer = get(server, path, Action="GetQueueAttributes", **{"AttributeName.1": "QueueArn"})
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    [result] = read(answer).findall("GetQueueAttributesResult")
    assert pairs(result, "Attribute") == {"QueueArn": f"arn:aws:sqs:local:000000000000:{path.rpartition('/')[2]}"}
    url = get(server, path, Action="GetQueueUrl", QueueName=path.rpartition("/")[2])
    assert read(url).findtext("GetQueueUrlResult/QueueUrl") == server.url + path
    for action in ("ListQueueTags", "ListDeadLetterSourceQueues"):
        assert get(server, path, Action=action).status_code == 200
    assert get(server, "/", Action="ListQueues").status_code == 200
    assert refused(get(server, "/000000000000/never", Action="GetQueueAttributes")) == (
        400,
        "AWS.SimpleQueueService.NonExistentQueue",
        "The specified queue does not exist for this wsdl version.",
    )


@pytest.mark.parametrize("action", sorted(operations().keys() - {*READING}))
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
    assert (queue.counts().visible, queue.counts().in_flight) == (1, 0)
    assert "made" not in [queue.name for queue in server.lake.list_queues()]


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_a_queue_does_not_create_or_list_queues(server: Running, query: Queries, path: str, action: str) -> None:
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
    rule = Rule(("orders",), frozenset({"SendMessage"}))
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


# --- in JSON


def test_answers_in_json(server: Running, query: Queries, path: str) -> None:
    sent = post(server, path, JSON, Action="SendMessage", MessageBody="x")
    assert sent.headers["content-type"] == "application/json"
    [result] = sent.json().values()
    assert sent.json().keys() == {"SendMessageResponse"}
    assert result["ResponseMetadata"]["RequestId"] == sent.headers["x-amzn-requestid"]
    message_id = result["SendMessageResult"].pop("MessageId")
    assert result["SendMessageResult"] == {
        "MD5OfMessageBody": "9dd4e461268c8034f5c8564e155c67a6",
        "MD5OfMessageAttributes": None,
        "MD5OfMessageSystemAttributes": None,
        "SequenceNumber": None,
    }
    fields = {"Action": "ReceiveMessage", "AttributeName.1": "ApproximateReceiveCount"}
    [message] = post(server, path, JSON, **fields).json()["ReceiveMessageResponse"]["ReceiveMessageResult"][
        "messages"
    ]
    assert (message["MessageId"], message["Body"], message["MessageAttributes"]) == (message_id, "x", None)
    assert message["Attributes"] == [{"Name": "ApproximateReceiveCount", "Value": "1"}]
    empty = post(server, path, JSON, Action="ReceiveMessage").json()["ReceiveMessageResponse"]
    assert empty["ReceiveMessageResult"] == {"messages": None}
    listed = post(server, "/", JSON, Action="ListQueues", QueueNamePrefix=path.rpartition("/")[2]).json()
    assert listed["ListQueuesResponse"]["ListQueuesResult"] == {
        "NextToken": None,
        "queueUrls": [server.url + path],
    }
    posted = httpx.post(server.url + path, content="Action=PurgeQueue", headers=FORM | JSON)
    assert list(posted.json()["PurgeQueueResponse"]) == ["ResponseMetadata"]


def test_attributes_of_each_type_and_failures_in_json(server: Running, query: Queries, path: str) -> None:
    value = "SendMessageBatchRequestEntry.1.MessageAttribute.1"
    fields = {
        "Action": "SendMessageBatch",
        "SendMessageBatchRequestEntry.1.Id": "good",
        "SendMessageBatchRequestEntry.1.MessageBody": "x",
        f"{value}.Name": "b",
        f"{value}.Value.DataType": "Binary",
        f"{value}.Value.BinaryValue": "AP8=",
        "SendMessageBatchRequestEntry.2.Id": "bad",
        "SendMessageBatchRequestEntry.2.MessageBody": "x",
        "SendMessageBatchRequestEntry.2.DelaySeconds": "901",
    }
    result = post(server, path, JSON, **fields).json()["SendMessageBatchResponse"]["SendMessageBatchResult"]
    assert [done["Id"] for done in result["Successful"]] == ["good"]
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in result["Failed"]] == [
        ("bad", "InvalidParameterValue", True)
    ]
    fields = {"Action": "ReceiveMessage", "MessageAttributeName.1": "All"}
    [message] = post(server, path, JSON, **fields).json()["ReceiveMessageResponse"]["ReceiveMessageResult"][
        "messages"
    ]
    [attribute] = message["MessageAttributes"]
    assert attribute["Name"] == "b"
    assert {name: part for name, part in attribute["Value"].items() if part is not None} == {
        "BinaryValue": "AP8=",
        "DataType": "Binary",
    }
    handle = {"Action": "DeleteMessageBatch", "DeleteMessageBatchRequestEntry.1.Id": "a"}
    handle["DeleteMessageBatchRequestEntry.1.ReceiptHandle"] = "x"
    failed = post(server, path, JSON, **handle).json()["DeleteMessageBatchResponse"]["DeleteMessageBatchResult"]
    assert failed["Successful"] is None and failed["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"


def test_errors_in_json(server: Running, path: str) -> None:
    answer = post(server, path, JSON, Action="ListQueues")
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json() == {
        "Error": {
            "Code": "InvalidAction",
            "Detail": None,
            "Message": "The action ListQueues is not valid for this endpoint.",
            "Type": "Sender",
        },
        "RequestId": answer.headers["x-amzn-requestid"],
    }
    missing = post(server, "/000000000000/never", JSON, Action="PurgeQueue").json()
    assert missing["Error"]["Message"] == "The specified queue does not exist for this wsdl version."


# --- what older SDKs send


@pytest.mark.parametrize("empty", ["MessageAttributeName", "MessageAttributeNames", "AttributeName"])
def test_an_empty_list_is_none(query: Queries, path: str, empty: str) -> None:
    fields = {
        "MessageBody": "x",
        "MessageAttribute.1.Name": "a",
        "MessageAttribute.1.Value.DataType": "String",
        "MessageAttribute.1.Value.StringValue": "b",
    }
    query("SendMessage", fields, path)
    [message] = query("ReceiveMessage", {empty: ""}, path).findall("Message")
    assert message.find("MessageAttribute") is None and message.find("Attribute") is None
    assert pairs(query("GetQueueAttributes", {"AttributeName": ""}, path), "Attribute") == {}


def test_tags_in_the_plural(query: Queries, server: Running) -> None:
    """Older SDKs for Java."""
    name = f"tagged{next(_names)}"
    query("CreateQueue", {"QueueName": name, "Tags.1.Key": "a", "Tags.1.Value": "1"})
    path = f"/000000000000/{name}"
    query("TagQueue", {"Tags.1.Key": "b", "Tags.1.Value": "2", "Tags.2.Key": "c", "Tags.2.Value": "3"}, path)
    query("UntagQueue", {"TagKeys.1": "c"}, path)
    assert server.lake.queue(name).tags() == {"a": "1", "b": "2"}
    both = {"Tags.1.Key": "b", "Tags.1.Value": "2", "Tag.1.Key": "c", "Tag.1.Value": "3"}
    assert query.refused("TagQueue", both, path) == (400, "SerializationException")


def test_parameters_that_every_action_may_have(query: Queries, path: str) -> None:
    common = {
        "Timestamp": "2026-01-01T00:00:00Z",
        "Expires": "2026-01-01T00:15:00Z",
        "AWSAccessKeyId": "AKID",
        "SignatureVersion": "4",
        "SignatureMethod": "HmacSHA256",
        "Signature": "x",
        "SecurityToken": "x",
        "X-Amz-Security-Token": "x",
    }
    query("SendMessage", {"MessageBody": "x"} | common, path)


def test_an_empty_result_is_one_tag(query: Queries, path: str) -> None:
    answer = query.send("ReceiveMessage", {}, path).text
    assert "<ReceiveMessageResult/>" in answer and "</ReceiveMessageResult>" not in answer


def test_the_trace_header_of_a_form(server: Running, query: Queries, path: str) -> None:
    form = "Action=SendMessage&MessageBody=x"
    httpx.post(server.url + path, content=form, headers=FORM | {"X-Amzn-Trace-Id": TRACE}).raise_for_status()
    post(server, path, {"X-Amzn-Trace-Id": TRACE}, Action="SendMessage", MessageBody="y").raise_for_status()
    received = query("ReceiveMessage", {"MaxNumberOfMessages": "10", "AttributeName.1": "AWSTraceHeader"}, path)
    assert texts(received, "Message/Attribute/Value") == [TRACE, TRACE]
