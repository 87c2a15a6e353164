"""A server in a thread of the test, for requests of every kind; and what its answers say."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs

from lakequeue import LakeQueue
from lakequeue.model.clock import Clock, SystemClock
from lakequeue.serve.app import Application
from lakequeue.serve.server import MAX_CONNECTIONS, Certificate, Server

PATIENCE = 60.0
"""Real seconds after which a test gives up waiting."""
JSON, FORM = "application/x-amz-json-1.0", "application/x-www-form-urlencoded"


@attrs.frozen
class ThreadedServer:
    """A server that listens.

    Attributes:
        server: counts its connections, among others.
    """

    url: str
    port: int
    application: Application
    server: Server

    def exchange(self, *parts: bytes) -> bytes:
        """Sends bytes as they are; what comes back until the server closes the connection."""
        with self.connected() as connection:
            with suppress(ConnectionError):  # it may have had enough before the end
                for part in parts:
                    connection.sendall(part)
            return everything(connection)

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def serves(self) -> bool:
        """Whether it does what it is there for."""
        head, _, body = self.exchange(post(b"{}", "ListQueues")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return isinstance(json.loads(body), dict)


@contextmanager
def threaded_server(
    root: Path,
    *,
    clock: Clock | None = None,
    certificate: Certificate | None = None,
    connections: int = MAX_CONNECTIONS,
    region: str = "local",
    **application: Any,
) -> Iterator[ThreadedServer]:
    """Runs a server on a free port."""
    lake = LakeQueue(str(root), clock=clock or SystemClock(), region=region)
    lake._runtime.prepare()
    served = Application(lake, **application)
    server = Server(served, "127.0.0.1", 0, certificate, connections)
    url = server.bind()
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started, "the server does not start"
        yield ThreadedServer(url, int(url.rpartition(":")[2]), served, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"


def wait_until(condition: Callable[[], object]) -> None:
    """Waits in real time for what another thread does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)


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


@attrs.frozen
class Told:
    """An error as a client reads it."""

    status: int
    code: str
    message: str


def told(status: int, headers: Any, body: bytes) -> Told:
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
        return Told(status, code, document["message"])
    if headers["content-type"] == "application/json":
        document = json.loads(body)
        error = document["Error"]
        assert document == {"Error": error, "RequestId": id} and error["Detail"] is None
        assert error["Type"] == ("Receiver" if status >= 500 else "Sender")
        return Told(status, error["Code"], error["Message"])
    assert headers["content-type"].startswith("text/xml")
    space = "{http://queue.amazonaws.com/doc/2012-11-05/}"
    root = ElementTree.fromstring(body)
    assert root.tag == f"{space}ErrorResponse" and root.findtext(f"{space}RequestId") == id
    error = root.find(f"{space}Error")
    assert error is not None
    assert error.findtext(f"{space}Type") == ("Receiver" if status >= 500 else "Sender")
    return Told(status, error.findtext(f"{space}Code") or "", error.findtext(f"{space}Message") or "")


def told_raw(answer: bytes) -> Told:
    """The error in the bytes of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return told(int(first.split()[1]), headers, body)
