"""What the console refuses: what is asked or sent, the code, the field that it names; and nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lakequeue import LakeQueue
from lakequeue.serve.console.routes import HEADERS
from lakequeue.testing import ManualClock
from serve.consoles import ASKED, Console, versions, visited

ATTRIBUTE, PARAMETER = "InvalidAttributeValue", "InvalidParameterValue"
NO_INSTANTS = ("yesterday", "2026-01-01", "2026-01-01T00:00:00", "2031-01-01T00:00:00Z")


def new(**attributes: str) -> dict[str, Any]:
    return {"QueueName": "new", "Attributes": attributes}


# fmt: off
SENT = [
    # what is sent to which path, the code and the field of the refusal
    ("queues", {"QueueName": "a/b"}, PARAMETER, "QueueName"),
    ("queues", {"QueueName": "orders"}, "QueueNameExists", "QueueName"),
    ("queues", {}, "MissingParameter", None),
    ("queues", {"QueueName": "new", "colour": "red"}, "SerializationException", None),
    ("queues", new(DelaySeconds="-1"), ATTRIBUTE, "DelaySeconds"),
    ("queues", new(Shards="17"), ATTRIBUTE, "Shards"),
    ("queues", new(Colour="red"), "InvalidAttributeName", "Colour"),
    ("queues", {"QueueName": "new.fifo", "Attributes": {"FifoQueue": "true", "GroupInFlightLimit": "5"}},
     "InvalidAttributeName", "GroupInFlightLimit"),
    *(("queues/orders/attributes", {"Attributes": {name: value}}, ATTRIBUTE, name)
      for name, value in (("VisibilityTimeout", "x"), ("Shards", "17"), ("FairGroups", "x"))),
    ("queues/orders/attributes", {"Attributes": []}, "SerializationException", None),
    ("queues/orders/attributes", {}, "MissingParameter", None),
    ("queues/orders/send", {}, "MissingParameter", None),
    *(("queues/orders/send", {"MessageBody": "a"} | more, code, None) for more, code in (
        ({"MessageBody": 1}, "SerializationException"),
        ({"MessageBody": "\x00"}, "InvalidMessageContents"),
        ({"MessageBody": "\ud800"}, "SerializationException"),
        ({"Colour": "red"}, "SerializationException"),
        ({"\ud800": 1}, "SerializationException"),
        ({"DelaySeconds": -1}, PARAMETER),
        ({"DelaySeconds": "1"}, "SerializationException"),
        ({"MessageGroupId": "two words"}, PARAMETER),
        ({"MessageAttributes": {"a": {"DataType": "String"}}}, PARAMETER),
    )),
    ("queues/orders/send", [], "SerializationException", None),
    *((f"queues/orders/{act}", {"name": name}, PARAMETER, "name")
      for act in ("delete", "purge") for name in (None, "", "order", "Orders")),
    *((f"queues/orders/{act}", {"name": 1}, "SerializationException", None) for act in ("delete", "purge")),
    *(("queues/orders/messages/delete", {"ids": ids}, PARAMETER, "ids") for ids in ([], ["x"] * 201, "x", None)),
    ("queues/orders/messages/delete", {"ids": [1]}, "SerializationException", None),
    ("queues/none/messages/delete", {"ids": ["x"]}, "QueueDoesNotExist", None),
    ("queues/orders/messages/visible", {"ids": ["x"], "in_flight": 1}, PARAMETER, "in_flight"),
    *(("queues/orders/redrive", members, PARAMETER, field) for members, field in (
        ({"ids": ["x"], "where": "true"}, "where"),
        ({"where": "nonsense"}, "where"),
        *(({"messages": messages}, "messages") for messages in (0, 1001, "a")),
    )),
    ("queues/orders/redrive", {"to": "mails"}, "SerializationException", None),
    *(("queues/orders/rewind", {"to": to}, PARAMETER, "to") for to in NO_INSTANTS),
    *(("queues/orders/rewind", {"to": to}, "MissingParameter", "to") for to in (None, "")),
    ("queues/orders/rewind", {"to": 5}, "SerializationException", None),
]
LOOKED_FOR = [
    # the address, the status, and a part of the message
    *((path, {}, 404, "") for path in (
        "api/nothing", "api/queues/a/b/c/d", "nothing.js", "%00", "..%2f..%2fconsole.py", "%2e%2e/console.py",
    )),
    *((path, {}, 400, "does not exist") for path in ("api/queues/nope", "api/queues/%3Cb%3E%27")),
    *(("api/queues", {name: value}, 400, name)
      for name, value in (("limit", "0"), ("limit", "x"), ("colour", "red"))),
    *(("api/queues/orders/messages", filters, 400, said) for filters, said in (
        ({"where": "nonsense"}, "There is no column nonsense"),
        ({"where": "true)) OR ((true", "text": "a"}, "Value true)) OR ((true for parameter where"),
        ({"where": "getenv('HOME') = 'a'"}, "for parameter where"),
        ({"where": "json_contains(body, '1')"}, "not one of those"),  # which once ended the server
        ({"where": "body = (SELECT 'a')"}, "one message at a time"),
        ({"state": "gone"}, "Value gone for parameter state"),
        ({"limit": "201"}, "for parameter limit"),
        ({"limit": "-1"}, "for parameter limit"),
        ({"after": "1.x"}, "for parameter after"),
        ({"order": "random"}, "Must be one of oldest, newest"),
        ({"since": "2026-01-01T00:00:00Z"}, "since is not a member"),
    )),
    *(("api/queues/orders/rewind", {"to": to}, 400, "") for to in (*NO_INSTANTS, None, "", 5)),
]
# fmt: on


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console with a queue; what is refused changes nothing."""
    lake = LakeQueue(str(tmp_path_factory.mktemp("refused") / "root"), clock=ManualClock())
    lake.create_queue("orders", rewind_range=3600).send("a")
    with visited(lake) as http:
        yield Console(lake, http)


@pytest.mark.parametrize(("path", "members", "code", "field"), SENT)
def test_a_refusal_names_the_field_and_changes_nothing(
    console: Console, path: str, members: Any, code: str, field: str | None
) -> None:
    before = versions(console.lake)
    headers = ASKED | {"Content-Type": "application/json"}
    answer = console.http.post(f"/console/api/{path}", content=json.dumps(members), headers=headers)
    told = answer.json()
    assert (answer.status_code, told["code"], told.get("field")) == (400, code, field), told
    assert told["message"] and "\n" not in told["message"]
    assert versions(console.lake) == before


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (new(DelaySeconds="901"), "Reason: Must be 0 to 900 whole seconds in profile sqs, not 901."),
        ({"QueueName": "a/b"}, "'a/b' is not such a name"),
    ],
)
def test_a_refusal_says_what_would_be_right_once(console: Console, members: Any, said: str) -> None:
    told = console.http.post("/console/api/queues", json=members, headers=ASKED).json()["message"]
    assert told.endswith(said) and told.count("not such a name") + told.count("901") == 1


@pytest.mark.parametrize(("path", "parameters", "status", "said"), LOOKED_FOR)
def test_what_is_not_there_is_refused_in_one_line(
    console: Console, path: str, parameters: dict[str, Any], status: int, said: str
) -> None:
    answer = console.http.get(f"/console/{path}", params=parameters or None)
    told = answer.json()
    assert (answer.status_code, {*told} - {"field"}) == (status, {"code", "message"})
    assert told["message"] and said in told["message"] and "\n" not in told["message"]
    assert answer.headers["content-type"] == "application/json"
    assert {name.lower() for name in HEADERS} <= {*answer.headers}
