"""Connections: those of strangers are few and short, and keep nobody out."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httptools
import httpx
import pytest
import trustme
import uvicorn
from uvicorn.server import ServerState

from lakequeue.serve import listener
from lakequeue.serve.connection import BUSY, Connection
from lakequeue.serve.keys import Key, Keys
from lakequeue.serve.listener import Listener, descriptors_for
from lakequeue.serve.server import ADDRESS_SHARE
from lakequeue.serve.shares import Shares
from serve.raw_requests import everything, post, request, signed_head, wire_error
from serve.serving import PATIENCE, Running, issued, serving, wait_until

ONE, OTHER = "AKIDONE", "AKIDOTHER"
KEYS = Keys({name: Key(name, "one-secret") for name in (ONE, OTHER)})
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMIT = 16
STRANGERS = LIMIT // ADDRESS_SHARE
SHARE = LIMIT // 2


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes the loops of servers, which run on either kind."""
    made: Callable[[], asyncio.AbstractEventLoop] = pytest.importorskip(request.param).new_event_loop
    monkeypatch.setattr(uvicorn.Config, "get_loop_factory", lambda _: made)
    return made


@pytest.fixture
def server(tmp_path: Path, loop: object) -> Iterator[Running]:
    with serving(tmp_path / "root", access=KEYS, connections=LIMIT) as running:
        yield running


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def encrypted(tmp_path: Path, authority: trustme.CA, loop: object) -> Iterator[Running]:
    certificate = issued(tmp_path, authority)
    with serving(tmp_path / "root", access=KEYS, connections=LIMIT, certificate=certificate) as running:
        yield running


def connected(server: Running, number: int = 1) -> socket.socket:
    """A connection from an address of its own: all of 127.0.0.0/8 is this machine."""
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE, (f"127.0.0.{number}", 0))


def client(number: int = 1, verify: Any = True) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=f"127.0.0.{number}", verify=verify)
    return httpx.Client(transport=transport, timeout=PATIENCE)


def signed_answer(http: httpx.Client, server: Running, key: str = ONE) -> httpx.Response:
    """The answer to a signed request."""
    headers = signed_head(server.url, key, "one-secret", b"{}", "ListQueues")
    return http.post(f"{server.url}/", content=b"{}", headers=headers)


def lists(http: httpx.Client, server: Running, key: str = ONE) -> bool:
    """Whether it is answered."""
    return signed_answer(http, server, key).status_code == 200


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not closed a connection on which nothing arrives."""
    connection.setblocking(False)
    try:
        return connection.recv(len(BUSY)) not in (b"", BUSY)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_silent_connections_count_before_their_handshake(encrypted: Running, authority: trustme.CA):
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    silent = [connected(encrypted, 1 + n // 20) for n in range(200)]
    with client(100, trusted) as http:
        assert lists(http, encrypted)
        wait_until(lambda: sum(map(is_open, silent)) < LIMIT)
    for connection in silent:
        connection.close()


def test_a_handshake_has_some_seconds(encrypted: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Listener, "handshake_seconds", 0.05)
    with connected(encrypted) as silent:
        assert everything(silent) == b""


def test_a_client_that_sends_no_more_gets_its_answer(tmp_path: Path, loop: object):
    with serving(tmp_path / "root") as open_server:
        queue = open_server.lake.create_queue("orders")
        send = {"QueueUrl": "http://localhost/000000000000/orders", "MessageBody": "a"}
        for action, given in ("ListQueues", {}), ("SendMessage", send):
            with connected(open_server) as half:
                half.sendall(post(json.dumps(given).encode(), action))
                half.shutdown(socket.SHUT_WR)
                assert everything(half).startswith(b"HTTP/1.1 200 ")
        receive = {"QueueUrl": send["QueueUrl"], "WaitTimeSeconds": 20}
        with connected(open_server) as half:
            half.sendall(post(json.dumps(receive).encode(), "ReceiveMessage"))
            half.shutdown(socket.SHUT_WR)
            assert everything(half) == b"", "it may be gone"
        wait_until(lambda: queue.counts().visible == 1)


class CountingParser:
    """Counts the bytes that it passes on."""

    def __init__(self, parser: httptools.HttpRequestParser) -> None:
        self.parser, self.bytes = parser, 0

    def feed_data(self, data: bytes) -> None:
        self.bytes += len(data)
        self.parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parser, name)


def test_a_head_that_comes_byte_by_byte_is_scanned_once():
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 60_000 + b"\r\n\r\n"

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> tuple[Connection, CountingParser]:
        config = uvicorn.Config(application, log_config=None)
        connect = partial(Connection, config, ServerState(), {}, shares=Shares(1))
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            loop, (accepted, _) = asyncio.get_running_loop(), server.accept()
            transport, connection = await loop.connect_accepted_socket(connect, accepted)
            connection.parser = parser = CountingParser(connection.parser)
            for number in range(len(head)):
                connection.data_received(head[number : number + 1])
            await asyncio.sleep(0)
            transport.abort()
        return connection, parser

    connection, parser = asyncio.run(receive())
    assert dict(connection.scope["headers"])[b"x-long"] == b"x" * 60_000
    assert parser.bytes == len(head)


def test_requests_for_health_lock_nobody_out(server: Running):
    """Each on a connection of its own that then stays open."""
    strangers = [connected(server, 1 + n // 4) for n in range(3 * LIMIT)]
    for connection in strangers:
        with suppress(ConnectionError):  # it was closed to make room
            connection.sendall(HEALTH)
    with client(100) as http:
        assert lists(http, server)
        for number in range(LIMIT):
            strangers.append(connected(server, 101 + number))
        assert lists(http, server), "a verified connection is not closed to make room"
        assert server.server.server_state.total_requests
    for connection in strangers:
        connection.close()


def test_one_key_holds_half_of_the_connections(server: Running):
    clients = [client(1 + number) for number in range(SHARE)]
    assert all(lists(each, server) for each in clients)
    with client(100) as another:
        refused = signed_answer(another, server)
        error = wire_error(refused.status_code, refused.headers, refused.content)
        assert (error.status, error.code, refused.headers["retry-after"]) == (429, "RequestThrottled", "1")
        assert lists(another, server, OTHER), "another key, on the same connection"
    assert all(lists(each, server) for each in clients), "they were not closed for it"
    for each in clients:
        each.close()
    wait_until(lambda: not server.server.server_state.connections)
    with client() as http:
        assert lists(http, server)


def test_long_polls_of_one_key_keep_no_other_client_out(server: Running):
    server.lake.create_queue("orders")
    body = json.dumps({"QueueUrl": "/orders", "WaitTimeSeconds": 20}).encode()
    headers = signed_head(server.url, ONE, "one-secret", body, "ReceiveMessage")
    asking = request(headers, body, host=f"127.0.0.1:{server.port}")
    polls = []
    for number in range(3 * LIMIT):
        polls.append(connected(server, 1 + number % 8))
        polls[-1].sendall(asking)
        assert number < SHARE or polls[-1].recv(13) == b"HTTP/1.1 429 ", "refused, and not reset"
        wait_until(lambda: server.application.endpoint.waiting == min(number + 1, SHARE))  # noqa: B023
    with client(100) as http:
        assert http.get(f"{server.url}/health").status_code == 200
    with client(1) as neighbour:
        assert lists(neighbour, server, OTHER)
    for connection in polls:
        connection.close()


def test_without_keys_some_connections_are_kept_for_health(tmp_path: Path, loop: object):
    with serving(tmp_path / "root", connections=LIMIT) as server:
        clients = [client() for _ in range(LIMIT)]
        statuses = [signed_answer(each, server).status_code for each in clients]
        assert statuses == [200] * 14 + [503] * 2
        with client() as http:
            assert http.get(f"{server.url}/health").status_code == 200
        for each in clients:
            each.close()


def test_one_address_has_few_strangers(server: Running):
    """Its own ones go, not those of others, and not those with a verified request."""
    with connected(server, 2) as other, client() as neighbour:
        assert lists(neighbour, server)
        many = [connected(server) for _ in range(3 * STRANGERS)]
        assert everything(many[0]) == BUSY
        wait_until(lambda: sum(map(is_open, many)) == STRANGERS)
        assert is_open(other) and is_open(many[-1]) and lists(neighbour, server)
        for connection in many:
            connection.close()


def test_a_crowd_of_one_address_is_answered_and_not_reset(
    server: Running, loop: Callable[[], asyncio.AbstractEventLoop]
):
    """More signed requests at once than the address may have strangers."""
    many = [connected(server) for _ in range(LIMIT)]
    headers = signed_head(server.url, ONE, "one-secret", b"{}", "ListQueues")
    for connection in many:
        connection.sendall(request(headers, b"{}", host=f"127.0.0.1:{server.port}"))
    statuses = Counter(connection.recv(12)[9:] for connection in many)
    assert set(statuses) <= {b"200", b"429", b"503"} and statuses[b"200"] and statuses[b"503"]
    for connection in many:
        connection.close()
    with client() as http:
        assert lists(http, server)


def test_a_client_that_does_not_read_that_it_is_turned_away_goes_soon(
    server: Running, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Connection, "leaving_seconds", 0.05)
    many = [connected(server) for _ in range(3 * STRANGERS)]
    wait_until(lambda: len(server.server.server_state.connections) <= STRANGERS)
    for connection in many:
        connection.close()


def test_a_connection_is_kept_long_once_a_request_was_verified(server: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Connection, "unverified_seconds", 0.05)
    with client() as http, connected(server) as stranger, connected(server) as forger:
        assert lists(http, server)
        [kept] = [one for one in server.server.server_state.connections if one.holder]
        stranger.sendall(HEALTH)
        assert everything(stranger).startswith(b"HTTP/1.1 200 ")
        forger.sendall(post(b"{}", "ListQueues").replace(b"Connection: close\r\n", b""))
        assert everything(forger).startswith(b"HTTP/1.1 403 ")
        assert server.server.server_state.connections == {kept}


def test_a_connection_that_ends_as_it_is_made_is_forgotten(loop: Callable[[], asyncio.AbstractEventLoop]):
    """uvloop then calls `connection_lost` never, and a server that stopped would wait for it."""
    state, made = ServerState(), []

    class Made(Connection):
        def turn_away(self) -> bool:
            return False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            made.append(self)
            accepting._close(*accepting._clients)  # another one takes its room

    async def accepted(listening: socket.socket) -> None:
        nonlocal accepting
        config = uvicorn.Config(lambda: None, log_config=None)
        accepting = Listener(listening, lambda: Made(config, state, {}, shares=Shares(1)), 1, 1)
        while not made:
            await asyncio.sleep(0)
        await asyncio.wait_for(made[0].lost.wait(), PATIENCE)
        accepting.stop()

    accepting: Any = None
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        closing(loop()) as running,
        socket.create_connection(listening.getsockname()) as stranger,
    ):
        running.run_until_complete(accepted(listening))
        assert everything(stranger) == b""
    assert state.connections == set()


class FullSystem(socket.socket):
    """A listening socket of a process without descriptors."""

    asked = 0

    def accept(self) -> Any:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_without_descriptors_it_waits_and_logs_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(listener, "RETRY_SECONDS", 0.001)

    async def accept() -> None:
        with FullSystem() as full:
            full.bind(("127.0.0.1", 0))
            full.listen()
            accepting = Listener(full, lambda: pytest.fail("nothing was accepted"), 1, 1)  # type: ignore[arg-type]
            with socket.create_connection(full.getsockname()):
                while full.asked < 20:
                    await asyncio.sleep(0.001)
            accepting.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(accept())
    [record] = caplog.records
    assert "Too many open files" in record.getMessage()


@pytest.mark.parametrize(
    ("soft", "hard", "set_to", "connections"),
    [
        (4_096, 4_096, None, 1_000),
        (1_024, 1_048_576, 2_512, 1_000),
        (1_024, resource.RLIM_INFINITY, 2_512, 1_000),
        (1_024, 1_600, 1_600, 1_000),
        (256, 1_024, 1_024, 512),
        (64, 64, 64, 32),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 1_000),
    ],
)
def test_there_are_descriptors_for_all_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, set_to: int | None, connections: int
):
    changed = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    assert descriptors_for(1_000) == connections
    assert changed == ([] if set_to is None else [(set_to, hard)])


def test_answers_that_nobody_reads_have_a_limit(tmp_path: Path, loop: object, monkeypatch: pytest.MonkeyPatch):
    """Those whose clients have read nothing for longest go."""
    monkeypatch.setattr("lakequeue.serve.connection.MAX_UNREAD_BYTES", 2_500_000)
    with serving(tmp_path / "root", connections=64) as server:
        queue = server.application.actions.lake.create_queue("orders", profile="sqs")
        asked = json.dumps({"QueueUrl": "/orders"}).encode()
        slow = []
        for number in range(4):
            queue.send("x" * 1_000_000)
            slow.append(server.narrow())
            slow[-1].sendall(post(asked, "ReceiveMessage"))
            connections, newest = server.server.server_state.connections, slow[-1].getsockname()

            def unread() -> list[object]:
                return [one.client for one in [*connections] if one._unread is not None]  # noqa: B023

            # a connection is listed before its client is known
            wait_until(lambda: newest in unread())  # noqa: B023
            wait_until(lambda: len(unread()) == min(number + 1, 2))  # noqa: B023
        read = [len(everything(connection)) > 1_000_000 for connection in slow]
        assert read.count(True) == 2 and read[-1]
        for connection in slow:
            connection.close()
