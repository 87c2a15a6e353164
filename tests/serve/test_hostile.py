"""A reader does what harm it can, strangers too, while signed clients send, receive and delete."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import quote

import attrs
import boto3
import httpx
import pytest
from botocore.config import Config

from hostile import BODIES, CRASHING, WASTEFUL
from lakequeue import LakeQueue
from serve.serving import free_port, wait_until
from serve.threaded_server import PATIENCE

LONG_SECONDS = float(os.environ.get("LAKEQUEUE_SOAK_SECONDS", "600"))
KEYS = {
    "AKIDADMIN": {"secret": "admin-secret-of-tests"},
    "AKIDREADER": {
        "secret": "reader-secret-of-tests",
        "rules": [{"queues": ["orders"], "actions": ["ReceiveMessage"]}],
    },
}
CONDITIONS = [*CRASHING, *WASTEFUL, "true", "body LIKE '%x%'"]
READERS, CLIENTS = 16, 4
PROBE = """
import json, select, sys, time
from http.client import HTTPConnection
times = []
while not select.select([sys.stdin], [], [], 0.1)[0]:
    begun = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    times.append(time.perf_counter() - begun)
print(json.dumps(times))
"""
"""Asks again and again until it is told to end."""


@attrs.define
class Attack:
    """Threads against a server, until they are told to stop; what they saw."""

    url: str
    port: int
    over: threading.Event = attrs.field(factory=threading.Event)
    answers: Counter[str] = attrs.field(factory=Counter)
    health: list[float] = attrs.field(factory=list)
    calls: list[float] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    memory: list[int] = attrs.field(factory=list)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def run(self, seconds: float, server: int) -> list[threading.Thread]:
        """Goes on for some time; the readers, which still wait for their answers then."""
        strangers = [self.probe, self.hang_up, *[self.stranger] * 2, self.dribble, self.crowd, self.pipeline]
        readers = [self.begun(self.read, n) for n in range(READERS)]
        clients = [self.begun(self.deliver, n) for n in range(CLIENTS)]
        others = [self.begun(work, n) for n, work in enumerate(strangers)]
        for _ in range(10):
            self.over.wait(seconds / 10)
            self.memory.append(resident(server))
        self.over.set()
        for thread in clients + others:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return readers

    def begun(self, work: Callable[[int], None], number: int) -> threading.Thread:
        thread = threading.Thread(target=self.repeat, args=(work, number), daemon=True)
        thread.start()
        return thread

    def repeat(self, work: Callable[[int], None], number: int) -> None:
        while not self.over.is_set():
            try:
                work(number)
            except Exception as error:
                if self.over.is_set():  # the server is being stopped
                    return
                with self.lock:
                    self.failures.append(f"{work.__name__}: {error!r}")
                return

    def saw(self, what: str) -> None:
        with self.lock:
            self.answers[what] += 1

    def read(self, number: int) -> None:
        """Hostile conditions, one after the other."""
        choice = random.Random(number + READERS * self.answers.total())
        auth = ("AKIDREADER", "reader-secret-of-tests")
        with httpx.Client(auth=auth, timeout=PATIENCE, trust_env=False) as http:
            for _ in range(20):
                if self.over.is_set():
                    return
                where = quote(choice.choice(CONDITIONS), safe="[]'(),")[:60_000]
                answer = raw(http, f"{self.url}/console/api/queues/orders/messages", f"where={where}")
                self.saw(f"condition {answer}")
                assert answer in (200, 400, 503), answer

    def hang_up(self, number: int) -> None:
        """Begins with conditions and goes away."""
        basic = base64.b64encode(b"AKIDREADER:reader-secret-of-tests").decode()
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            path = f"/console/api/queues/orders/messages?where={quote(WASTEFUL[0])}"
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {basic}\r\n\r\n".encode()
            )
            self.over.wait(0.2)
        self.saw("hung up")

    def stranger(self, number: int) -> None:
        """Large bodies without a signature, or with one that is made up."""
        lines = ["POST / HTTP/1.1", "Host: localhost", "X-Amz-Target: AmazonSQS.SendMessage"]
        if number % 2:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            scope = f"AKIDADMIN/{stamp[:8]}/local/sqs/aws4_request"
            signed = f"SignedHeaders=host;x-amz-date;x-amz-target, Signature={'0' * 64}"
            lines += [f"X-Amz-Date: {stamp}", f"Authorization: AWS4-HMAC-SHA256 Credential={scope}, {signed}"]
        head = "\r\n".join([*lines, "Content-Type: application/x-amz-json-1.0", "Content-Length: 3000000", "", ""])
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", self.port)) as connection,
        ):
            connection.settimeout(PATIENCE)
            connection.sendall(head.encode() + b"[" * 3_000_000)
            self.saw(f"stranger {connection.recv(12)[9:].decode()}")
        self.over.wait(0.05)

    def dribble(self, number: int) -> None:
        """A head of 60 KB, byte by byte."""
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(60_000):
                if self.over.wait(0.0003):
                    return
                connection.sendall(b"x")
                self.saw("dribbled")

    def crowd(self, number: int) -> None:
        """Connections of another address that say nothing, and others that ask once and stay."""
        with contextlib.ExitStack() as held:
            for each in range(300):
                with contextlib.suppress(OSError):
                    connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE, ("127.0.0.2", 0))
                    held.enter_context(connection)
                    if each % 2:
                        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    self.saw("crowded")
            self.over.wait(3)

    def pipeline(self, number: int) -> None:
        """Many requests at once whose answers nobody reads, and chunks and trailers without an end."""
        for data in (
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3_000,
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000,
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
            + b"X: y\r\n" * 100_000,
        ):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 5) as connection,
            ):
                connection.sendall(data)
                self.saw("pipelined")
                self.over.wait(0.5)

    def probe(self, number: int) -> None:
        """Asks for the health of the server, as a load balancer does: from a process that does nothing else."""
        command = [sys.executable, "-c", PROBE, str(self.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.over.wait()
            told, _ = process.communicate("end", PATIENCE)
            assert process.returncode == 0
        self.health = json.loads(told)

    def deliver(self, number: int) -> None:
        """Sends, receives and deletes; every error counts."""
        sqs = client(self.url)
        url = sqs.get_queue_url(QueueName=f"jobs-{number % 2}")["QueueUrl"]
        while not self.over.is_set():
            begun = time.perf_counter()
            sqs.send_message(QueueUrl=url, MessageBody="x" * 1_000)
            for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                self.saw("delivered")
            self.calls.append(time.perf_counter() - begun)


def client(url: str):
    return boto3.client(
        "sqs",
        region_name="local",
        endpoint_url=url,
        aws_access_key_id="AKIDADMIN",
        aws_secret_access_key="admin-secret-of-tests",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE),
    )


def raw(http: httpx.Client, url: str, query: str) -> int:
    """The status of an answer to a query as it is, brackets and all."""
    return http.get(httpx.URL(url).copy_with(query=query.encode())).status_code


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """`lakequeue serve` with keys, in a process of its own."""
    keys = root.with_name("keys.json")
    keys.write_text(json.dumps(KEYS), encoding="utf-8")
    keys.chmod(0o600)
    port = free_port()
    program = "from lakequeue.cli import main; main()"
    options = ["serve", "--port", str(port), "--keys", str(keys), "--no-access-log"]
    log = root.with_name("server.log")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "--root", str(root), *options], stdout=errors, stderr=errors
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: process.poll() is not None or answers(url), "the server")
        yield process, url, port
    finally:
        process.kill()
        process.wait(PATIENCE)


def resident(process: int) -> int:
    """Bytes of memory that a process takes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    return False


def attack(root: Path, seconds: float) -> Attack:
    lake = LakeQueue(str(root))
    orders = lake.create_queue("orders")
    for body in filter(None, BODIES):
        orders.send(body)
    for number in range(2):
        lake.create_queue(f"jobs-{number}")
    with served(root) as (process, url, port):
        seen = Attack(url, port)
        readers = seen.run(seconds, process.pid)
        assert process.poll() is None, root.with_name("server.log").read_text()
        assert answers(url)
        process.terminate()
        assert process.wait(PATIENCE) == 0, "it does not stop"
        for reader in readers:
            reader.join(PATIENCE)
            assert not reader.is_alive()
    assert not seen.failures
    assert '"level": "error"' not in root.with_name("server.log").read_text()
    assert seen.answers["condition 400"] and seen.answers["delivered"] and seen.answers["hung up"] and seen.health
    assert seen.answers["dribbled"] and seen.answers["crowded"] and seen.answers["pipelined"]
    assert not seen.answers["stranger 200"]
    return seen


def test_a_hostile_reader_and_strangers_keep_nobody_from_work(tmp_path: Path):
    attack(tmp_path / "root", 6)


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS * 2)
def test_a_hostile_reader_and_strangers_keep_nobody_from_work_for_ten_minutes(tmp_path: Path):
    seen = attack(tmp_path / "root", LONG_SECONDS)
    print(sorted(seen.answers.items()))
    print(f"memory: {', '.join(f'{size >> 20}' for size in seen.memory)} MiB")
    assert seen.memory[-1] < 1.2 * seen.memory[1] + 100 * 2**20
    for name, times in ("health", seen.health), ("send, receive and delete", seen.calls):
        high = quantiles(times, n=100)[98]
        print(f"{name}: {len(times):,}, p50 {median(times):.3f} s, p99 {high:.3f} s, most {max(times):.3f} s")
