"""Servers of tests: one in a thread of the test's process, or one in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import boto3
import httpx
from botocore.config import Config

from lakequeue import LakeQueue
from lakequeue.model.clock import Clock, SystemClock
from lakequeue.serve.app import Application
from lakequeue.serve.server import Server
from serve.serving import PATIENCE, free_port, wait_until

PROGRAM = "from lakequeue.cli import main; main()"
KEYS = {"aws_access_key_id": "anybody", "aws_secret_access_key": "nothing"}


@attrs.frozen
class Running:
    """A server that answers.

    Attributes:
        lake: its entry to the root.
        application: what runs.
    """

    url: str
    root: Path
    lake: LakeQueue
    application: Application


def sqs(url: str, **more: Any) -> Any:
    """A boto3 client; clients may be shared by threads.

    Args:
        more: settings that are not these: nothing is repeated, which would hide what the first request did.
    """
    settings = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 64}
    config = Config(**(settings | more))
    return boto3.Session().client("sqs", region_name="eu-west-1", endpoint_url=url, config=config, **KEYS)


@contextmanager
def serving(root: Path, clock: Clock | None = None) -> Iterator[Running]:
    """Runs a server in a thread."""
    lake = LakeQueue(str(root), clock=clock or SystemClock())
    lake._runtime.prepare()
    application = Application(lake)
    server = Server(application, "127.0.0.1", 0)
    url = server.bind()
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server to start")
        assert server.started
        yield Running(url, root, lake, application)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"


@attrs.define
class ServerProcess:
    """`lakequeue serve` in a process of its own, which may be killed and started again on its port."""

    root: Path
    """Its log is beside it; with a ``uri`` that is all it is for."""
    port: int = attrs.field(factory=free_port)
    program: str = PROGRAM
    uri: str | None = None
    """The root, if it is on an object store, which the environment's variables reach."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def errors(self) -> Path:
        """What it printed, of all its lives."""
        return self.root.with_name(f"{self.root.name}-{self.port}.log")

    @property
    def lake(self) -> LakeQueue:
        """An entry of this process to the root."""
        return LakeQueue(self.uri or str(self.root))

    def start(self) -> None:
        """Returns once it answers."""
        root = self.uri or str(self.root)
        options = ["--root", root, "serve", "--create-root", "--port", str(self.port)]
        command = [sys.executable, "-c", self.program, *options]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True)
        wait_until(lambda: self._ended() or answers(self.url), "the server to answer")
        assert not self._ended(), self.errors.read_text()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, how)
        if self.process is not None:
            self.process.wait(PATIENCE)

    def _ended(self) -> bool:
        return self.process is None or self.process.poll() is not None


@contextmanager
def server_process(root: Path, uri: str | None = None) -> Iterator[ServerProcess]:
    """Runs `lakequeue serve` in a process of its own."""
    server = ServerProcess(root, uri=uri)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop()
        finally:
            server.kill()


def answers(url: str) -> bool:
    """Whether a server is there."""
    try:
        httpx.get(url, trust_env=False)  # past any proxy
    except httpx.TransportError:
        return False
    return True
