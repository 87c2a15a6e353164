"""What a proxy in front of the server says of its clients, and who may say it; a load balancer for TCP."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from serve.serving import PATIENCE, ServerProcess, headers, issued, key_file, served_with, sqs, wait_until

FORWARDED = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https", "Host": "queues.example"}


@pytest.mark.parametrize(
    ("options", "client", "url"),
    [
        (("--trusted-proxy", "127.0.0.1"), "192.0.2.7", "https://queues.example/"),
        (
            ("--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "127.0.0.0/8"),
            "192.0.2.7",
            "https://queues.example/",
        ),
        (("--trusted-proxy", "10.0.0.0/8"), "127.0.0.1", "http://queues.example/"),
        ((), "127.0.0.1", "http://queues.example/"),
        (("--public-url", "https://public.example:8443"), "127.0.0.1", "https://public.example:8443/"),
    ],
)
def test_headers_of_trusted_proxies_count(
    tmp_path: Path, options: tuple[str, ...], client: str, url: str, accesses: Callable[[], list[dict[str, Any]]]
):
    with served_with(tmp_path / "root", "--allowed-host", "queues.example", *options) as server:
        asked = json.dumps({"QueueName": "orders"})
        answer = httpx.post(server.url, content=asked, headers=headers("CreateQueue") | FORWARDED, trust_env=False)
        assert answer.json()["QueueUrl"] == f"{url}000000000000/orders"
        wait_until(accesses, "the log")
        assert accesses()[0]["client"].rpartition(":")[0] == client


def test_what_a_trusted_proxy_passes_on_is_cut(tmp_path: Path, accesses: Callable[[], list[dict[str, Any]]]):
    with served_with(tmp_path / "root", "--trusted-proxy", "127.0.0.1") as server:
        httpx.get(f"{server.url}/health", headers={"X-Forwarded-For": "x" * 30_000}, trust_env=False)
        wait_until(accesses, "the log")
        assert len(accesses()[0]["client"]) < 80


BALANCER = "127.0.0.9"
KEY = ("AKIDADMIN", "admin-secret-of-tests")


@contextmanager
def balanced(*ports: int) -> Iterator[int]:
    """The port of a load balancer that passes TCP through, each connection to the next server."""
    turns, loop = itertools.cycle(ports), asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", next(turns), local_addr=(BALANCER, 0))
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    listening = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        listening.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_two_servers_behind_a_load_balancer_for_tcp(tmp_path: Path):
    """It passes TLS through, and the servers need no option for it."""
    certificate = issued(tmp_path, trustme.CA())
    keys = key_file(tmp_path / "keys.json", {KEY[0]: {"secret": KEY[1]}})
    options = ["--keys", str(keys), "--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key)]
    with (
        ServerProcess(tmp_path / "root", *options) as one,
        ServerProcess(tmp_path / "root", *options) as other,
        balanced(one.port, other.port) as port,
    ):
        # with a connection each
        sender, receiver = (sqs(f"https://localhost:{port}", KEY, tmp_path / "authority.pem") for _ in range(2))
        url = sender.create_queue(QueueName="orders")["QueueUrl"]
        assert url == f"https://localhost:{port}/000000000000/orders"
        assert receiver.get_queue_url(QueueName="orders")["QueueUrl"] == url
        bodies = [str(number) for number in range(5)]
        for body in bodies:
            sender.send_message(QueueUrl=url, MessageBody=body)
        received = []
        while len(received) < 5:
            for message in receiver.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]:
                sender.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                received.append(message["Body"])
        assert sorted(received) == bodies
        for server in one, other:
            wait_until(server.lines, "the log")
            assert {line["client"].rpartition(":")[0] for line in server.lines()} == {BALANCER}
