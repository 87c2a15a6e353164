"""A reader does what harm it can, strangers too, while signed clients send, receive and delete."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import quote

import attrs
import httpx
import pytest
import trustme

from hostile import BODIES, CRASHING, WASTEFUL
from lakequeue import LakeQueue, SendEntry
from serve import signed_clients
from serve.raw_requests import request
from serve.serving import PATIENCE, ServerProcess, headers, issued, key_file, wait_until

LONG_SECONDS = float(os.environ.get("LAKEQUEUE_SOAK_SECONDS", "600"))
LARGE = 100
"""Messages of a queue with large bodies."""
KEYS = {
    signed_clients.KEY: {"secret": signed_clients.SECRET},
    "AKIDREADER": {
        "secret": "reader-secret-of-tests",
        "rules": [{"queues": ["orders", "large"], "actions": ["ReceiveMessage"]}],
    },
} | {
    f"AKID{queue.upper()}": {
        "secret": f"secret-of-{queue}",
        "rules": [{"queues": [queue], "actions": ["ReceiveMessage"]}],
    }
    for queue in ("letters", "silence")
}
CONDITIONS = [*CRASHING, *WASTEFUL, "true", "body LIKE '%x%'"]
READERS = 16
MOST_MEMORY = 2**30
"""Bytes of memory of a server under attack: the program, what it caches, and the budgets of bodies and answers."""
SIGNED_CLIENTS = Path(__file__).with_name("signed_clients.py")
LETTERS = "\u00e9" * 2**19
"""A body of 1 MiB."""
RECEIVERS = 300
"""Connections that receive ten of them at once."""
POLLS = 1_050
"""Long polls of a key: more than its share of the connections."""
JUNK = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 600,
    b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"CONNECT other:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"GET /console/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /?Action=ReceiveMessage&QueueUrl=/orders HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"Host: localhost\r\n" * 200 + b"\r\n",
    b"POST / HTTP/1.1\r\nHost: a\nb\r\nX-Amz-Target: AmazonSQS.SendMessage\r\nContent-Length: 2\r\n\r\n{}",
]
LONGEST_P99 = 0.5
"""Seconds of a call of a client, or of a request for health, in the long form (p99)."""
PROBE = """
import json, select, ssl, sys, time
from http.client import HTTPConnection, HTTPSConnection
port, secure, authority = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=authority)
answers = []
while not select.select([sys.stdin], [], [], 0.1)[0]:
    for connection in (
        HTTPConnection("127.0.0.1", port, timeout=60),
        HTTPSConnection("127.0.0.1", secure, timeout=60, context=context),
    ):
        begun = time.perf_counter()
        connection.request("GET", "/health")
        status = connection.getresponse().status
        connection.close()
        answers.append((status, time.perf_counter() - begun))
print(json.dumps(answers))
"""
"""Asks both servers again and again until it is told to end."""


@attrs.frozen
class Secured:
    """A server with TLS, and the file of the authority that its clients trust."""

    server: ServerProcess
    authority: Path

    @property
    def port(self) -> int:
        return self.server.port


@attrs.define
class Attack:
    """Threads against a server, until they are told to stop; what they saw.

    Attributes:
        tls: another server of the root.
        floods: whether there are floods of receives, too.
        calls: seconds of each call of the signed clients.
        highest: p99 of these and of requests for health.
    """

    url: str
    port: int
    tls: Secured
    floods: bool = False
    over: threading.Event = attrs.field(factory=threading.Event)
    answers: Counter[str] = attrs.field(factory=Counter)
    health: list[float] = attrs.field(factory=list)
    calls: list[float] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    memory: list[int] = attrs.field(factory=list)
    highest: dict[str, float] = attrs.field(factory=dict)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def run(self, seconds: float, server: int) -> list[threading.Thread]:
        """Goes on for some time; the readers, which still wait for their answers then."""
        strangers = [self.probe, self.hang_up, *[self.stranger] * 2, self.dribble, self.crowd, self.pipeline]
        strangers += [self.wait_for_tls, self.shake_hands, self.trickle, self.guess, self.turn_pages]
        strangers += [self.junk, *([self.receive_much, self.poll_long] if self.floods else [])]
        readers = [self.begun(self.read, n) for n in range(READERS)]
        clients = self.begun(self.deliver, 0)
        others = [self.begun(work, n) for n, work in enumerate(strangers)]
        for _ in range(10):
            self.over.wait(seconds / 10)
            self.memory.append(resident(server))
        self.over.set()
        for thread in (clients, *others):
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

    def connected(self, number: int = 1, port: int | None = None, seconds: float = 5) -> socket.socket:
        """A connection from an address of its own: all of 127.0.0.0/8 is this machine."""
        return socket.create_connection(("127.0.0.1", port or self.port), seconds, (f"127.0.0.{number}", 0))

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
                try:
                    answer = raw(http, f"{self.url}/console/api/queues/orders/messages", f"where={where}")
                except httpx.TimeoutException:
                    if self.floods:  # they wait for one another
                        return
                    raise
                self.saw(f"condition {answer}")
                assert answer in (200, 400, 503), answer

    def hang_up(self, number: int) -> None:
        """Begins with conditions and goes away."""
        basic = base64.b64encode(b"AKIDREADER:reader-secret-of-tests").decode()
        with self.connected(seconds=PATIENCE) as connection:
            path = f"/console/api/queues/orders/messages?where={quote(WASTEFUL[0])}"
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {basic}\r\n\r\n".encode()
            )
            self.over.wait(0.2)
        self.saw("hung up")

    def stranger(self, number: int) -> None:
        """Large bodies without a signature, or with one that is made up."""
        with contextlib.suppress(ConnectionError), self.connected(seconds=PATIENCE) as connection:
            connection.sendall(head_of_send(known=number % 2 == 1) + b"[" * 3_000_000)
            self.saw(f"stranger {connection.recv(12)[9:].decode()}")
        self.over.wait(0.05)

    def dribble(self, number: int) -> None:
        """A head of 60 KB, byte by byte."""
        with contextlib.suppress(ConnectionError), self.connected(seconds=PATIENCE) as connection:
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
                    connection = held.enter_context(self.connected(2, seconds=PATIENCE))
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
            with contextlib.suppress(OSError), self.connected() as connection:
                connection.sendall(data)
                self.saw("pipelined")
                self.over.wait(0.5)

    def wait_for_tls(self, number: int) -> None:
        """Connections that never begin with TLS."""
        with contextlib.ExitStack() as held:
            for each in range(600):
                with contextlib.suppress(OSError):
                    held.enter_context(self.connected(10 + each % 4, self.tls.port))
                    self.saw("silent")
            self.over.wait(3)

    def shake_hands(self, number: int) -> None:
        """Handshakes of TLS, some broken, with nothing after them."""
        careless = ssl.create_default_context()
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        for each in range(50):
            with contextlib.suppress(OSError), self.connected(7, self.tls.port) as connection:
                if each % 2:
                    connection.sendall(JUNK[0])
                    connection.recv(100)
                else:
                    careless.wrap_socket(connection).close()
            self.saw("handshake")
            self.over.wait(0.02)

    def junk(self, number: int) -> None:
        """What is no request, or a wrong one, also with bytes changed."""
        choice = random.Random(self.answers["junk"])
        for each in JUNK:
            data = bytearray(each)
            for _ in range(choice.randrange(4)):
                data[choice.randrange(len(data))] = choice.randrange(256)
            with contextlib.suppress(OSError), self.connected(8) as connection:
                connection.sendall(data)
                connection.settimeout(0.1)
                connection.recv(100)
            self.saw("junk")

    def receive_much(self, number: int) -> None:
        """Receives of large messages, all at once."""
        self.flood("letters", RECEIVERS, 0, "127.0.5")

    def poll_long(self, number: int) -> None:
        """More long polls of one key than it may have."""
        self.flood("silence", POLLS, 20, "127.0.6")

    def flood(self, queue: str, number: int, wait: int, network: str) -> None:
        key = f"AKID{queue.upper()}"
        told = self.until_over(
            "-m", "serve.floods", self.url, key, KEYS[key]["secret"], queue, number, wait, network
        )
        with self.lock:
            self.answers.update({f"{queue} {status}": count for status, count in told.items()})

    def trickle(self, number: int) -> None:
        """Bodies that name a known key, together above what one key may have, and never end."""
        with contextlib.ExitStack() as held:
            slow = []
            for _ in range(25):
                with contextlib.suppress(OSError):
                    slow.append(held.enter_context(self.connected(3)))
                    slow[-1].sendall(head_of_send(known=True) + b"[" * 2_900_000)
                    self.saw("trickled")
            for _ in range(30):
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"[")
                self.over.wait(0.1)

    def guess(self, number: int) -> None:
        """Secrets of a known key for the console, one after the other."""
        transport = httpx.HTTPTransport(local_address="127.0.0.4")
        with httpx.Client(
            auth=("AKIDADMIN", "a-guess-of-a-secret"), timeout=PATIENCE, transport=transport
        ) as http:
            while not self.over.wait(0.005):
                self.saw(f"guess {http.get(f'{self.url}/console/api/queues').status_code}")

    def turn_pages(self, number: int) -> None:
        """Pages of a queue whose bodies are large."""
        auth = ("AKIDREADER", "reader-secret-of-tests")
        with httpx.Client(auth=auth, timeout=PATIENCE, trust_env=False) as http:
            while not self.over.is_set():
                answer = http.get(f"{self.url}/console/api/queues/large/messages")
                assert answer.status_code == 200 and len(answer.json()["messages"]) < LARGE
                self.saw("page")

    def probe(self, number: int) -> None:
        """Asks for the health of the server, as a load balancer does: from a process of its own."""
        answers = self.until_over("-c", PROBE, self.port, self.tls.port, self.tls.authority)
        self.health = [seconds for _, seconds in answers]
        with self.lock:
            self.answers.update(f"health {status}" for status, _ in answers)

    def deliver(self, number: int) -> None:
        """Lets signed clients send, receive and delete; every error of theirs counts."""
        told = self.until_over(SIGNED_CLIENTS, self.url)
        self.calls = told["calls"]
        self.answers["delivered"] = told["delivered"]

    def until_over(self, *command: object) -> Any:
        """What a process that does nothing else prints, which goes on until its input ends."""
        with subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=SIGNED_CLIENTS.parents[1],
        ) as process:
            self.over.wait()
            told, _ = process.communicate("", PATIENCE)
            assert process.returncode == 0
        return json.loads(told)


def head_of_send(known: bool) -> bytes:
    """The head of a request with a large body, not signed, or with a made-up signature of a known key."""
    given = headers("SendMessage")
    if known:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"AKIDADMIN/{stamp[:8]}/local/sqs/aws4_request"
        signed = f"SignedHeaders=host;x-amz-date;x-amz-target, Signature={'0' * 64}"
        given |= {"X-Amz-Date": stamp, "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, {signed}"}
    return request(given, length=3_000_000)


def raw(http: httpx.Client, url: str, query: str) -> int:
    """The status of an answer to a query as it is, brackets and all."""
    return http.get(httpx.URL(url).copy_with(query=query.encode())).status_code


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[ServerProcess, Secured]]:
    """`lakequeue serve` with keys in two processes of their own, one of them with TLS."""
    keys, made = key_file(root.with_name("keys.json"), KEYS), issued(root.parent, trustme.CA(), "127.0.0.1")
    options = ("--no-access-log", "--keys", str(keys))
    tls = ("--tls-cert", str(made.cert), "--tls-key", str(made.key))
    with ServerProcess(root, *options) as plain, ServerProcess(root, *options, *tls) as secure:
        yield plain, Secured(secure, root.with_name("authority.pem"))


def resident(process: int, what: str = "VmRSS") -> int:
    """Bytes of memory that a process takes, or with ``VmHWM`` took at most."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) * 1024


def is_healthy(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    return False


def attack(root: Path, seconds: float, floods: bool = False) -> Attack:
    lake = LakeQueue(str(root))
    orders = lake.create_queue("orders")
    for body in filter(None, BODIES):
        orders.send(body)
    for number in range(2):
        lake.create_queue(f"jobs-{number}")
    large, letters = lake.create_queue("large"), lake.create_queue("letters", profile="sqs")
    lake.create_queue("silence")
    for _ in range(10):
        letters.send(LETTERS)
    with served(root) as (server, tls):
        for _ in range(LARGE // 10):
            large.send_batch([SendEntry(each * 100_000) for each in "abcdefghij"])
        seen = Attack(server.url, server.port, tls, floods)
        readers = seen.run(seconds, server.process.pid)
        peak, both = resident(server.process.pid, "VmHWM"), (server, tls.server)
        assert all(each.process.poll() is None for each in both), server.errors()
        # one answer of ten may be 503 until the floods have left, who hold all threads
        wait_until(lambda: is_healthy(server.url), "health")
        for each in both:
            each.signal(signal.SIGTERM)
        for each in both:
            assert each.wait() == 0, "it does not stop"
        for reader in readers:
            reader.join(PATIENCE)
            assert not reader.is_alive()
    print(sorted(seen.answers.items()))
    print(f"memory: {', '.join(f'{size >> 20}' for size in seen.memory)} MiB, most {peak >> 20}")
    assert not seen.failures
    for name, times in ("health", seen.health), ("calls of signed clients", seen.calls):
        high = seen.highest[name] = quantiles(times, n=100)[98]
        print(f"{name}: {len(times):,}, p50 {median(times):.3f} s, p99 {high:.3f} s, most {max(times):.3f} s")
    assert not seen.answers["letters no answer"] and not seen.answers["silence no answer"]
    if floods:
        assert seen.answers["letters 503"] and seen.answers["silence 429"]
        # storage has 5 s to answer, among everybody's threads
        assert seen.answers["health 503"] <= len(seen.health) / 10
    else:
        assert seen.answers["health 200"] == len(seen.health)
    assert seen.answers["junk"] > seconds and seen.answers["handshake"]
    for each in both:
        assert '"level": "error"' not in each.errors()
    assert seen.answers["condition 400"] and seen.answers["delivered"] and seen.answers["hung up"] and seen.health
    assert seen.answers["dribbled"] and seen.answers["crowded"] and seen.answers["pipelined"]
    assert (
        seen.answers["silent"] and seen.answers["trickled"] and seen.answers["page"] and seen.answers["guess 429"]
    )
    assert not seen.answers["stranger 200"] and not seen.answers["guess 200"]
    assert peak < MOST_MEMORY
    return seen


LONG = [pytest.mark.long, pytest.mark.timeout(LONG_SECONDS * 2)]


@pytest.mark.parametrize(
    ("seconds", "floods"),
    [
        pytest.param(30, True, marks=pytest.mark.slow, id="half a minute"),
        pytest.param(LONG_SECONDS, True, marks=LONG, id="ten minutes"),
        pytest.param(LONG_SECONDS, False, marks=LONG, id="ten minutes without floods"),
    ],
)
def test_hostile_readers_floods_and_strangers_keep_nobody_from_work(tmp_path: Path, seconds: float, floods: bool):
    seen = attack(tmp_path / "root", seconds, floods)
    if seconds == LONG_SECONDS:
        assert seen.memory[-1] < 1.2 * seen.memory[1] + 100 * 2**20
    if not floods:  # nobody is slowed down
        assert max(seen.highest.values()) < LONGEST_P99, seen.highest
