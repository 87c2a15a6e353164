"""Requests as bytes, and what the answers to wrong ones say."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import attrs
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

JSON, FORM = "application/x-amz-json-1.0", "application/x-www-form-urlencoded"


def everything(connection: socket.socket) -> bytes:
    """What arrives until the other side closes; nothing more if it does so at once and hard."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def post(body: bytes, action: str = "", kind: str = JSON, head: str = "") -> bytes:
    """A request that has the connection closed after it."""
    lines = ["POST / HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Type: {kind}"]
    lines += [f"X-Amz-Target: AmazonSQS.{action}"] if action else []
    lines += [f"Content-Length: {len(body)}"] if "Transfer-Encoding" not in head else []
    return "\r\n".join([*lines, *head.splitlines(), "", ""]).encode("latin-1") + body


def request(
    headers: Mapping[str, str], body: bytes = b"", length: int | None = None, host: str = "localhost"
) -> bytes:
    """A request on a connection that stays; its body may be another than its length tells."""
    lines = ["POST / HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def signed_head(url: str, key: str, secret: str, body: bytes, action: str, kind: str = JSON) -> dict[str, str]:
    """The headers of a signed request."""
    headers = {"Content-Type": kind} | ({"X-Amz-Target": f"AmazonSQS.{action}"} if action else {})
    asked = AWSRequest("POST", f"{url}/", headers, body)
    SigV4Auth(Credentials(key, secret), "sqs", "local").add_auth(asked)
    return dict(asked.headers)


@attrs.frozen
class WireError:
    """An error as a client reads it."""

    status: int
    code: str
    message: str


def wire_error(status: int, headers: Any, body: bytes) -> WireError:
    """The error that an answer is, in whichever protocol; checks all that has to be there."""
    id = headers["x-amzn-requestid"]
    assert re.fullmatch("[0-9a-f-]{36}", id)
    assert "Traceback" not in body.decode()
    if headers["content-type"] == JSON:
        document = json.loads(body)
        assert document.keys() == {"__type", "message"}
        assert document["__type"].startswith(("com.amazonaws.sqs#", "com.amazon.coral.service#"))
        code, _, fault = headers["x-amzn-query-error"].partition(";")
        assert fault == ("Receiver" if status >= 500 else "Sender")
        return WireError(status, code, document["message"])
    if headers["content-type"] == "application/json":
        document = json.loads(body)
        error = document["Error"]
        assert document == {"Error": error, "RequestId": id} and error["Detail"] is None
        assert error["Type"] == ("Receiver" if status >= 500 else "Sender")
        return WireError(status, error["Code"], error["Message"])
    assert headers["content-type"].startswith("text/xml")
    space = "{http://queue.amazonaws.com/doc/2012-11-05/}"
    root = ElementTree.fromstring(body)
    assert root.tag == f"{space}ErrorResponse" and root.findtext(f"{space}RequestId") == id
    error = root.find(f"{space}Error")
    assert error is not None
    assert error.findtext(f"{space}Type") == ("Receiver" if status >= 500 else "Sender")
    return WireError(status, error.findtext(f"{space}Code") or "", error.findtext(f"{space}Message") or "")


def raw_error(answer: bytes) -> WireError:
    """The error in the bytes of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return wire_error(int(first.split()[1]), headers, body)
