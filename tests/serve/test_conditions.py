"""Hostile conditions in the console: each is ended, for everybody else the server goes on."""

from __future__ import annotations

import base64
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import httpx

from hostile import SLOW, SLOW_BODY
from lakequeue import LakeQueue
from lakequeue.conditions import sandbox
from lakequeue.serve.cancellation import MAX_PER_CALLER
from lakequeue.serve.keys import AccessRule, Key, Keys
from serve.serving import PATIENCE, Running, serving, wait_until

READER, OTHER = "AKIDREADER", "AKIDOTHER"
KEYS = Keys(
    {
        READER: Key(READER, "reader-secret", (AccessRule(("orders",), frozenset({"ReceiveMessage"})),)),
        OTHER: Key(OTHER, "other-secret"),
    }
)
SECRETS = {READER: "reader-secret", OTHER: "other-secret"}


@contextmanager
def served(root: Path) -> Iterator[Running]:
    """A server with a queue on which a condition may be slow."""
    with serving(root, access=KEYS) as running:
        running.lake.create_queue("orders").send(SLOW_BODY)
        yield running


def messages(running: Running, key: str, **filters: str) -> httpx.Response:
    url = f"{running.url}/console/api/queues/orders/messages"
    return httpx.get(url, params=filters, auth=(key, SECRETS[key]), timeout=PATIENCE, trust_env=False)


def test_slow_conditions_of_one_caller_keep_no_other_out(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", PATIENCE)
    with served(tmp_path / "root") as running, ThreadPoolExecutor(24) as pool:
        slow = [pool.submit(messages, running, READER, where=SLOW) for _ in range(24)]
        wait_until(lambda: sandbox.shared._busy == MAX_PER_CALLER)
        for filters in ({}, {"where": "length(body) > 1"}, {"state": "visible", "text": "x"}):
            assert len(messages(running, OTHER, **filters).json()["messages"]) == 1
        assert len(messages(running, READER).json()["messages"]) == 1
        assert httpx.get(f"{running.url}/health", trust_env=False).status_code == 200
        wait_until(lambda: sandbox.shared._busy == MAX_PER_CALLER)  # between two questions to a worker it is less
        left = [each for each in slow if not each.done()]
        assert len(left) > 2 * MAX_PER_CALLER
        running.server.should_exit = True
        ended = [each.result(PATIENCE).status_code for each in left]
        assert ended.count(503) >= len(left) - MAX_PER_CALLER


def test_a_condition_ends_when_its_client_hangs_up(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", PATIENCE)
    with served(tmp_path / "root") as running:
        connections = [slow_request(running) for _ in range(MAX_PER_CALLER + 2)]
        wait_until(lambda: sandbox.shared._busy == MAX_PER_CALLER)
        for connection in connections:
            connection.close()
        wait_until(lambda: not sandbox.shared._busy)
        assert len(messages(running, READER, where="true").json()["messages"]) == 1
        assert running.application.console.conditions.interrupts.running == set()


def test_a_condition_ends_when_the_server_stops(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", PATIENCE)
    with served(tmp_path / "root") as running, ThreadPoolExecutor() as pool:
        slow = pool.submit(messages, running, READER, where=SLOW)
        wait_until(lambda: sandbox.shared._busy)
        running.server.should_exit = True
        answer = slow.result(PATIENCE)
        assert (answer.status_code, answer.json()) == (
            503,
            {"code": "ServiceUnavailable", "message": "The server is stopping."},
        )
    assert not sandbox.shared._busy


def slow_request(running: Running) -> socket.socket:
    authorization = base64.b64encode(f"{READER}:{SECRETS[READER]}".encode()).decode()
    connection = running.connected()
    connection.sendall(
        f"GET /console/api/queues/orders/messages?{urlencode({'where': SLOW})} HTTP/1.1\r\n"
        f"Host: localhost\r\nAuthorization: Basic {authorization}\r\n\r\n".encode()
    )
    return connection


SEARCH = """
import sys
from lakequeue import LakeQueue
LakeQueue(sys.argv[1]).queue("orders").peek(sys.argv[2])
"""


def test_a_slow_condition_ends_with_a_process_that_was_killed(tmp_path: Path):
    LakeQueue(str(tmp_path / "root")).create_queue("orders").send(SLOW_BODY)
    command = [sys.executable, "-c", SEARCH, str(tmp_path / "root"), SLOW]
    with subprocess.Popen(command) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text().split())
        worker = Path(f"/proc/{children.read_text().split()[0]}/stat")

        def spent() -> int:
            """Ticks of the processor."""
            return int(worker.read_text().rpartition(")")[2].split()[11])

        wait_until(lambda: spent() > 100)  # it has started, and is busy
        process.kill()
    wait_until(lambda: not worker.exists() or worker.read_text().rpartition(")")[2].split()[0] == "Z")
