"""Servers for tests: in a thread of the test's process, or in a process of their own; and a client in raw JSON."""

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx

from lakequeue import LakeQueue
from lakequeue.serve.app import Application
from lakequeue.serve.server import Server

PATIENCE = 60.0
"""Seconds after which a condition that does not come true fails the test."""
ACCOUNT = "000000000000"
_MAIN = "import sys; from lakequeue.cli import main; sys.exit(main())"


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
        lines = ["POST / HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers(action).items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head)
        content = await self.reader.readexactly(int(length[1]) if length else 0)
        assert head.split()[1] == "200", content
        return json.loads(content or b"{}")


def headers(action: str) -> dict[str, str]:
    return {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}


@contextmanager
def client_of(url: str) -> Iterator[Client]:
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        yield Client(url, http)


@attrs.frozen
class Running:
    """A server in a thread of this process."""

    application: Application
    url: str
    server: Server

    def stop(self) -> None:
        """Begins to stop it, as a signal does."""
        self.server.should_exit = True


@contextmanager
def running(lake: LakeQueue, **more: Any) -> Iterator[Running]:
    """Serves a root in a thread of this process."""
    lake._runtime.prepare()
    application = Application(lake, **more)
    server = Server(application, "127.0.0.1", 0)
    url = server.bind()
    thread = threading.Thread(target=server.run)
    thread.start()
    running = Running(application, url, server)
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server to listen")
        assert server.started
        yield running
    finally:
        running.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"


class Process:
    """``lakequeue serve`` in a process of its own; what it writes goes to a file."""

    def __init__(self, root: Path, *options: str, before: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._errors = root.with_name(f"{root.name}-{self.port}.log")
        command = ["--root", str(root), *before, "serve", "--port", str(self.port), "--create-root", *options]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, *command], stderr=errors, env=dict(os.environ, COLUMNS="200")
            )
        try:
            wait_until(lambda: self.listens() or self.process.poll() is not None, "the server to listen")
            assert self.process.poll() is None, self.errors()
        except BaseException:
            self.process.kill()
            raise

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def errors(self) -> str:
        return self._errors.read_text(encoding="ascii")

    def lines(self) -> list[dict[str, Any]]:
        """What it wrote in JSON."""
        return [json.loads(line) for line in self.errors().splitlines() if line.startswith("{")]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
