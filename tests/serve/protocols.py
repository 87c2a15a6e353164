"""Calls of a server in each protocol; what is given and what is answered looks as boto3 has it, in all of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import urlencode
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import attrs
import httpx
from botocore import xform_name
from botocore.exceptions import ClientError

from lakequeue.serve.sqs.model import operations
from serve.raw_requests import JSON, wire_error
from serve.serving import headers, sqs

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
READING = {
    *("GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListMessageMoveTasks"),
    *("ListQueues", "ListQueueTags"),
}
"""Actions that a GET may name without a signature."""
FIELDS = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "Attributes": "Attribute",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "TagKeys": "TagKey",
    "Tags": "Tag",
    "tags": "Tag",
}
"""Lists and maps of requests, by their names in JSON, and the field of a form that each element is."""
TO_JSON = {"Messages": "messages", "QueueUrls": "queueUrls"}
"""Lists in answers to forms in JSON that have another name there."""
LISTS = {
    "BatchResultErrorEntry": "Failed",
    "ChangeMessageVisibilityBatchResultEntry": "Successful",
    "DeleteMessageBatchResultEntry": "Successful",
    "ListMessageMoveTasksResultEntry": "Results",
    "Message": "Messages",
    "SendMessageBatchResultEntry": "Successful",
}
MAPS = {"Attribute": "Attributes", "MessageAttribute": "MessageAttributes", "Tag": "Tags"}
URLS = {"ListQueuesResult": "QueueUrls", "ListDeadLetterSourceQueuesResult": "queueUrls"}
"""Elements of answers in XML, and the lists and maps that they belong to in JSON."""


@attrs.define(slots=False)
class Refused(Exception):
    """An error as a client reads it.

    Attributes:
        code: its name in the Query protocol, under which boto3 shows it, too.
        name: its name in JSON; empty in a protocol that has none.
    """

    status: int
    code: str
    message: str
    name: str = ""


def to(url: str = "<url>", **members: Any) -> dict[str, Any]:
    """What a call on a queue is given."""
    return {"QueueUrl": url, **members}


def filled(value: Any, known: dict[str, str]) -> Any:
    """A value with what is known so far of its names in angle brackets."""
    if isinstance(value, dict):
        return {key: filled(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, known) for item in value]
    if isinstance(value, str):
        return re.sub("<[a-z0-9 ]+>", lambda name: known.get(name[0], name[0]), value)
    return value


class Ask(Protocol):
    """Calls an action; raises `Refused`."""

    url: str

    def __call__(self, action: str, **given: Any) -> dict[str, Any]: ...


class Json:
    """The JSON protocol, byte for byte as this class writes it."""

    def __init__(self, url: str) -> None:
        self.url, self.http = url, httpx.Client(base_url=url, timeout=60, trust_env=False)

    def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        content = json.dumps(given, default=lambda value: base64.b64encode(value).decode())
        answer = self.http.post("/", content=content, headers=headers(action))
        if answer.status_code == 200:
            assert answer.headers["content-type"] == JSON
            return json.loads(answer.content or b"{}", object_hook=_typed)
        error = wire_error(answer.status_code, answer.headers, answer.content)
        assert answer.headers["content-type"] == JSON
        raise Refused(error.status, error.code, error.message, answer.json()["__type"].rpartition("#")[2])


class Boto3:
    """A client of boto3 that lets wrong parameters through, which it would refuse itself."""

    def __init__(self, url: str) -> None:
        self.url, self.client = url, sqs(url, parameter_validation=False)

    def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self.client, xform_name(action))(**given)
        except ClientError as refused:
            error, metadata = refused.response["Error"], refused.response["ResponseMetadata"]
            name = error["QueryErrorCode"]
            assert error.keys() == {"Code", "QueryErrorCode", "Type", "Message"} and error["Type"] == "Sender"
            assert len(metadata["RequestId"]) == 36
            if name in {shape.name for shape in self.client.meta.service_model.error_shapes}:
                # code that catches the SDK's own classes
                assert isinstance(refused, getattr(self.client.exceptions, name))
            raise Refused(metadata["HTTPStatusCode"], error["Code"], error["Message"], name) from None
        assert len(answer.pop("ResponseMetadata")["RequestId"]) == 36
        return answer


class Form:
    """The Query protocol: a form in the body, XML as the answer."""

    def __init__(self, url: str) -> None:
        self.url, self.http = url, httpx.Client(base_url=url, timeout=60, trust_env=False)

    def send(self, action: str, fields: dict[str, Any], path: str = "/") -> httpx.Response:
        """Sends fields as they are."""
        content = urlencode({"Action": action, "Version": "2012-11-05"} | fields)
        return self.http.post(path, content=content, headers=FORM)

    def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        return result(self.send(action, dict(fields(action, given))), action)

    def spelled(self, action: str, given: dict[str, Any], path: str = "/") -> dict[str, Any]:
        """The answer to fields as they are."""
        return result(self.send(action, given, path), action)


class FormToJson(Form):
    """A form whose answer is to be JSON, as proxies ask: null where there is nothing, two lists renamed."""

    def send(self, action: str, fields: dict[str, Any], path: str = "/") -> httpx.Response:
        content = urlencode({"Action": action} | fields)
        return self.http.post(path, content=content, headers=FORM | {"accept": "application/json"})

    def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        answer = self.send(action, dict(fields(action, given)))
        if answer.status_code != 200:
            error = wire_error(answer.status_code, answer.headers, answer.content)
            raise Refused(error.status, error.code, error.message)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json().keys() == {f"{action}Response"}
        response = answer.json()[f"{action}Response"]
        assert response.pop("ResponseMetadata") == {"RequestId": answer.headers["x-amzn-requestid"]}
        shape, found = operations()[action].output_shape, response.get(f"{action}Result", {})
        assert found.keys() == {TO_JSON.get(name, name) for name in (shape.members if shape else ())}
        names = {renamed: name for name, renamed in TO_JSON.items() if shape and name in shape.members}
        return {names.get(name, name): _dense(value) for name, value in found.items() if value is not None}


def _dense(value: Any) -> Any:
    """A value without null; a map is a list of pairs in such answers."""
    if isinstance(value, list):
        pairs = [[*each.values()] for each in value if {*each} in ({"Name", "Value"}, {"Key", "Value"})]
        return {key: _dense(item) for key, item in pairs} if pairs else [_dense(each) for each in value]
    if isinstance(value, dict):
        return _typed({name: _dense(item) for name, item in value.items() if item is not None})
    return value


class Get(Form):
    """As a form, with the fields in the URL of a GET for actions that only read."""

    def send(self, action: str, fields: dict[str, Any], path: str = "/") -> httpx.Response:
        if action not in READING:
            return super().send(action, fields, path)
        answer = self.http.get(path, params={"Action": action} | fields)
        assert answer.status_code != 200 or answer.headers["cache-control"] == "no-store"
        return answer


PROTOCOLS: dict[str, type[Ask]] = {"json": Json, "boto3": Boto3, "form": Form, "get": Get}


def fields(action: str, given: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a form, from what a call is given."""
    for member, value in given.items():
        name = prefix + (f"{action}RequestEntry" if member == "Entries" else FIELDS.get(member, member))
        if isinstance(value, list):
            for n, item in enumerate(value, 1):
                yield from (
                    fields(action, item, f"{name}.{n}.") if isinstance(item, dict) else [(f"{name}.{n}", item)]
                )
        elif isinstance(value, dict):
            for n, (key, item) in enumerate(value.items(), 1):
                yield f"{name}.{n}.{'Key' if name == 'Tag' else 'Name'}", key
                inner = item if isinstance(item, dict) else {"": item}
                yield from fields(action, inner, f"{name}.{n}.Value{'.' if inner is item else ''}")
        else:
            yield name, base64.b64encode(value).decode() if isinstance(value, bytes) else value


def read(answer: httpx.Response) -> Element:
    """The document without its namespace, of which every element has to be."""
    assert answer.headers["content-type"].startswith("text/xml")
    document = ElementTree.fromstring(answer.content)
    for element in document.iter():
        assert element.tag.startswith(NAMESPACE)
        element.tag = element.tag.removeprefix(NAMESPACE)
    return document


def result(answer: httpx.Response, action: str) -> dict[str, Any]:
    """The result in XML as JSON has it; raises `Refused`."""
    document = read(answer)
    if answer.status_code != 200:
        assert [part.tag for part in document] == ["Error", "RequestId"]
        assert [part.tag for part in document[0]] == ["Type", "Code", "Message", "Detail"]
        error = wire_error(answer.status_code, answer.headers, answer.content)
        raise Refused(error.status, error.code, error.message)
    assert document.tag == f"{action}Response"
    assert document.findtext("ResponseMetadata/RequestId") == answer.headers["x-amzn-requestid"]
    found = document.find(f"{action}Result")
    return {} if found is None else _structure(found)


def _structure(element: Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in element:
        if part.tag in MAPS:
            key, value = part.findtext("Key" if part.tag == "Tag" else "Name"), part.find("Value")
            assert key is not None and value is not None
            item = _structure(value) if len(value) else value.text or ""
            found.setdefault(MAPS[part.tag], {})[key] = item
        elif part.tag == "QueueUrl" and element.tag in URLS:
            found.setdefault(URLS[element.tag], []).append(part.text)
        elif part.tag in LISTS and len(part):
            found.setdefault(LISTS[part.tag], []).append(_structure(part))
        else:
            text = part.text or ""
            number = part.tag.startswith(("ApproximateNumber", "Started", "MaxNumber"))
            found[part.tag] = int(text) if number else {"true": True, "false": False}.get(text, text)
    return _typed(found)


def _typed(value: dict[str, Any]) -> dict[str, Any]:
    if "BinaryValue" in value:
        value["BinaryValue"] = base64.b64decode(value["BinaryValue"])
    return value
