"""How a server ends: what is under way is finished, and nothing new begins."""

from __future__ import annotations

import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from insides import shard_of
from lakequeue import LakeQueue
from serve.raw_requests import request
from serve.serving import PATIENCE, Client, ServerProcess, client_of, headers, serving, wait_until


def metric(client: Client, name: str) -> float:
    text = client.http.get(f"{client.url}/metrics").text
    [value] = [line.split()[1] for line in text.splitlines() if line.startswith(f"lakequeue_{name} ")]
    return float(value)


def test_a_signal_ends_the_server_and_its_long_polls(tmp_path: Path) -> None:
    root = tmp_path / "queues"
    with (
        ServerProcess(root, "--no-access-log") as server,
        client_of(server.url) as client,
        ThreadPoolExecutor() as pool,
    ):
        orders = client("CreateQueue", QueueName="orders")["QueueUrl"]
        polled = pool.submit(client.post, "ReceiveMessage", QueueUrl=orders, WaitTimeSeconds=20)
        with client_of(server.url) as other:
            wait_until(lambda: metric(other, "long_polls_waiting") == 1, "the poll")
        server.signal(signal.SIGTERM)
        answer = polled.result(PATIENCE)
        assert (answer.status_code, answer.content) == (200, b"{}")
        assert server.wait() == 0
        assert server.lines() == [], "a stop is no error"


def test_requests_under_way_are_finished_and_no_new_ones_begin(tmp_path: Path) -> None:
    lake = LakeQueue(str(tmp_path / "queues"))
    with (
        ThreadPoolExecutor() as pool,
        serving(lake) as server,
        client_of(server.url) as client,
        client_of(server.url) as other,
    ):
        orders = client("CreateQueue", QueueName="orders")["QueueUrl"]
        queue = lake.queue("orders")
        with shard_of(queue).sender.paused():
            sent = pool.submit(client.post, "SendMessage", QueueUrl=orders, MessageBody="A")
            wait_until(lambda: metric(other, "requests_in_progress") == 2, "the send")
            server.stop()
            wait_until(lambda: server.application.endpoint.receives.stopping, "the stop")
            with pytest.raises(httpx.ConnectError), client_of(server.url) as late:
                late.post("ListQueues")
            assert not sent.done()
        assert sent.result(PATIENCE).status_code == 200
    assert [message.body for message in queue.receive(10)] == ["A"]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "queues") as server:
        slow = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        slow.sendall(request(headers("ListQueues"), b"{", 2))
        with client_of(server.url) as client:
            wait_until(lambda: metric(client, "requests_in_progress") == 2, "the request")
        server.signal(signal.SIGINT)
        wait_until(lambda: not server.listens(), "the stop")
        assert server.process.poll() is None, "it did not wait for the request"
        server.signal(signal.SIGINT)
        assert server.wait() == -signal.SIGINT
        slow.close()


def test_the_body_of_an_answer_does_not_wait_until_its_head_was_acknowledged(tmp_path: Path) -> None:
    with serving(LakeQueue(str(tmp_path / "queues"))) as server, client_of(server.url) as client:
        client("ListQueues")
        [connection] = server.server.server_state.connections
        kept = connection.transport.get_extra_info("socket")
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
