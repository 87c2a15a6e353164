"""Servers for tests, in a thread of the test's process or in a process of their own; clients in JSON and boto3."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import boto3
import httpx
import pytest
from botocore.config import Config
from typer.testing import CliRunner

from lakequeue import LakeQueue
from lakequeue.cli import app
from lakequeue.conditions import sandbox
from lakequeue.entry_verbs import prepare
from lakequeue.model.clock import Clock, SystemClock
from lakequeue.serve import logs
from lakequeue.serve.app import Application
from lakequeue.serve.server import MAX_CONNECTIONS, Certificate, Server
from serve.raw_requests import everything, post, request

if TYPE_CHECKING:
    import trustme

PATIENCE = 120.0
"""Real seconds after which a condition that does not come true fails the test."""
ACCOUNT = "000000000000"
PROGRAM = "from lakequeue.cli import main; main()"
KEYS = {"aws_access_key_id": "anybody", "aws_secret_access_key": "nothing"}


def wait_until(condition: Callable[[], object], what: str = "its condition") -> None:
    """Waits in real time for something that happens in another thread or process."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.005)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Whether a server is there."""
    try:
        httpx.get(url, trust_env=False)  # past any proxy
    except httpx.TransportError:
        return False
    return True


# --- clients


def headers(action: str) -> dict[str, str]:
    return {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}


@attrs.frozen
class Client:
    """Speaks AWS JSON."""

    url: str
    http: httpx.Client

    def post(self, action: str, **given: Any) -> httpx.Response:
        return self.http.post(self.url, content=json.dumps(given), headers=headers(action))

    def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        answer = self.post(action, **given)
        assert answer.status_code == 200, answer.text
        return json.loads(answer.content or b"{}")

    def queue_url(self, name: str) -> str:
        return f"{self.url}/{ACCOUNT}/{name}"


@contextmanager
def client_of(url: str) -> Iterator[Client]:
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        yield Client(url, http)


@attrs.frozen
class Connection:
    """A connection of its own for asyncio, where many are open at once."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, url: str) -> Connection:
        place = urlsplit(url)
        return cls(*await asyncio.open_connection(place.hostname, place.port))

    async def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        body = json.dumps(given).encode()
        self.writer.write(request(headers(action), body))
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head)
        content = await self.reader.readexactly(int(length[1]) if length else 0)
        assert head.split()[1] == "200", content
        return json.loads(content or b"{}")


def sqs(
    url: str, key: tuple[str, str] = ("anybody", "nothing"), authority: Path | None = None, **more: Any
) -> Any:
    """A boto3 client; clients may be shared by threads.

    Args:
        key: its id and its secret.
        authority: file of whom it trusts.
        more: settings that are not these: nothing is repeated, which would hide what the first request did.
    """
    settings = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 64}
    return boto3.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=url,
        config=Config(**(settings | more)),
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        verify=authority and str(authority),
    )


# --- servers


def key_file(path: Path, keys: object) -> Path:
    """A file of keys that only its owner reads."""
    path.touch(0o600)
    path.write_text(keys if isinstance(keys, str) else json.dumps(keys), encoding="utf-8")
    path.chmod(0o600)
    return path


def issued(folder: Path, authority: trustme.CA, *names: str) -> Certificate:
    """A certificate, for this machine unless names are given; beside it the file of its authority."""
    made = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
    authority.cert_pem.write_to_path(folder / "authority.pem")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    key = key_file(folder / "key.pem", made.private_key_pem.bytes().decode())
    return Certificate(folder / "cert.pem", key)


def listens(port: int) -> bool:
    """Whether a process of this machine accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@attrs.frozen
class Running:
    """A server in a thread of this process.

    Attributes:
        server: counts its connections, among others.
    """

    application: Application
    url: str
    server: Server

    @property
    def lake(self) -> LakeQueue:
        return self.application.actions.lake

    @property
    def root(self) -> Path:
        return Path(self.lake.root)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        """Begins to stop it, as a signal does."""
        self.server.should_exit = True

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def narrow(self, sends: bool = True) -> socket.socket:
        """A connection on which little can be under way; without ``sends`` the server's side is as others are."""
        connection, before = socket.socket(), self.server.server_state.connections.copy()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", self.port))
        if sends:
            wait_until(lambda: self.server.server_state.connections - before)
            [other] = self.server.server_state.connections - before
            other.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        return connection

    def exchange(self, *parts: bytes) -> bytes:
        """Sends bytes as they are; what comes back until the server closes the connection."""
        with self.connected() as connection:
            with suppress(ConnectionError):  # it may have had enough before the end
                for part in parts:
                    connection.sendall(part)
            return everything(connection)

    def serves(self) -> bool:
        """Whether it does what it is there for."""
        head, _, body = self.exchange(post(b"{}", "ListQueues")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return isinstance(json.loads(body), dict)


@contextmanager
def serving(
    place: LakeQueue | Path,
    *,
    clock: Clock | None = None,
    region: str = "local",
    certificate: Certificate | None = None,
    connections: int = MAX_CONNECTIONS,
    **application: Any,
) -> Iterator[Running]:
    """Serves a root in a thread of this process, on a free port."""
    lake = (
        place
        if isinstance(place, LakeQueue)
        else LakeQueue(str(place), clock=clock or SystemClock(), region=region)
    )
    prepare(lake)
    served = Application(lake, **application)
    server = Server(served, "127.0.0.1", 0, certificate, connections)
    with _in_a_thread(Running(served, server.bind(), server)) as running:
        yield running


@contextmanager
def served_with(root: Path, *options: object) -> Iterator[Running]:
    """Serves what ``lakequeue serve`` makes of its options, in a thread of this process; configures no logging."""
    made: list[Any] = []

    def application(*given: Any, **more: Any) -> Application:
        made.append(Application(*given, **more))
        return made[-1]

    arguments = ["--root", str(root), "serve", "--port", "0", "--create-root", *map(str, options)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakequeue.serve.app.Application", application)
        patch.setattr(Server, "run", lambda server: made.append(server))
        patch.setattr(logs, "configure", lambda *_: None)
        patch.setattr(sandbox.shared, "nice", 0)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = re.search(r" at (\S+)", result.stderr)
    assert found
    with _in_a_thread(Running(made[0], found[1], made[1])) as running:
        yield running


@contextmanager
def _in_a_thread(running: Running) -> Iterator[Running]:
    thread = threading.Thread(target=running.server.run, name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: running.server.started or not thread.is_alive(), "the server to listen")
        assert running.server.started, "the server does not start"
        yield running
    finally:
        running.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"


class ServerProcess:
    """``lakequeue serve`` in a process of its own, which may be killed and started again on its port.

    Args:
        root: what it writes goes to a file beside it; with a ``uri`` that is all it is for.
        options: of the command.
        before: options of all commands.
        uri: the root, if it is on an object store, which the environment's variables reach.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        root: Path,
        *options: str,
        before: tuple[str, ...] = (),
        program: str = PROGRAM,
        uri: str | None = None,
    ) -> None:
        self._root = uri or str(root)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._errors = root.with_name(f"{root.name}-{self.port}.log")
        serve = ["serve", "--port", str(self.port), "--create-root", *options]
        self._command = [sys.executable, "-c", program, "--root", self._root, *before, *serve]

    @property
    def lake(self) -> LakeQueue:
        """An entry of this process to the root."""
        return LakeQueue(self._root)

    def start(self) -> None:
        """Returns once it listens."""
        environment = dict(os.environ, COLUMNS="200")
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                self._command, stdout=errors, stderr=errors, env=environment, start_new_session=True
            )
        try:
            wait_until(lambda: self.listens() or self.process.poll() is not None, "the server to listen")
            assert self.process.poll() is None, self.errors()
        except BaseException:
            self.kill()
            raise

    def listens(self) -> bool:
        return listens(self.port)

    def errors(self) -> str:
        """What it printed, of all its lives."""
        return self._errors.read_text(encoding="utf-8")

    def lines(self) -> list[dict[str, Any]]:
        """What it wrote in JSON."""
        return [json.loads(line) for line in self.errors().splitlines() if line.startswith("{")]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
