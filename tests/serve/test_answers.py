"""Memory of received messages: it is reserved before they are read, and kept until their answers are sent."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from lakequeue import Queue
from lakequeue.serve import limits
from lakequeue.serve.keys import Key, Keys
from lakequeue.serve.limits import MEMORY_FACTOR, CountedAnswers
from serve.raw_requests import everything, request, signed_head, wire_error
from serve.serving import PATIENCE, Running, serving, wait_until

ONE, OTHER = "AKIDONE", "AKIDOTHER"
KEYS = Keys({name: Key(name, f"secret-of-{name}") for name in (ONE, OTHER)})
LETTERS = "\u00e9" * 2**19
SIZE = 10 * 2**20
"""Bytes of ten of these: more than a connection takes whose client does not read."""


@pytest.fixture
def server(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Memory for one such answer of each key, and for two in all."""
    monkeypatch.setattr(limits, "MAX_ANSWER_KEY_BYTES", SIZE * MEMORY_FACTOR)
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", 2 * SIZE * MEMORY_FACTOR)
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT", PATIENCE)
    with serving(tmp_path / "root", access=KEYS) as running:
        for name in ("large", "small"):
            running.lake.create_queue(name, profile="sqs")
        for _ in range(10):
            running.lake.queue("large").send(LETTERS)
        yield running


def body(queue: str, **given: object) -> bytes:
    asked = {"QueueUrl": f"/{queue}", "MaxNumberOfMessages": 10, "VisibilityTimeout": 0, **given}
    return json.dumps(asked).encode()


def receive(server: Running, key: str, queue: str = "large", **given: object) -> httpx.Response:
    content = body(queue, **given)
    headers = signed_head(server.url, key, f"secret-of-{key}", content, "ReceiveMessage")
    return httpx.post(f"{server.url}/", content=content, headers=headers, timeout=PATIENCE, trust_env=False)


def unread(server: Running, key: str) -> socket.socket:
    """A connection whose answer is built, and not read."""
    content, connection = body("large"), server.narrow(sends=False)
    headers = signed_head(server.url, key, f"secret-of-{key}", content, "ReceiveMessage") | {"Connection": "close"}
    connection.sendall(request(headers, content, host=f"127.0.0.1:{server.port}"))
    wait_until(lambda: SIZE <= answers(server).budget.by_key[key] < 2 * SIZE, "the answer")
    return connection


def answers(server: Running) -> CountedAnswers:
    return server.application.endpoint.answers


def large(server: Running) -> Queue:
    return server.lake.queue("large")


def test_beyond_its_memory_a_receive_waits_for_the_answers_before_it(server: Running) -> None:
    with unread(server, ONE) as first, ThreadPoolExecutor(3) as pool:
        others = [pool.submit(receive, server, ONE) for _ in range(3)]
        wait_until(lambda: len(answers(server)._waiting) == 3, "the others")
        assert len(receive(server, OTHER).json()["Messages"]) == 10, "the memory of another key"
        assert answers(server).budget.by_key[ONE] < 2 * SIZE, "nothing is read for those that wait"
        first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        assert len(everything(first)) > SIZE
        for other in others:
            assert len(other.result().json()["Messages"]) == 10
    wait_until(lambda: not answers(server).budget.total, "the answers to be sent")


def test_without_memory_in_time_it_is_refused_and_its_messages_become_visible(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT", 0.05)
    with unread(server, ONE):
        refused = receive(server, ONE, VisibilityTimeout=600)
        error = wire_error(refused.status_code, refused.headers, refused.content)
        assert (error.status, error.code) == (503, "ServiceUnavailable")
        assert refused.headers["retry-after"] == "1"
        wait_until(lambda: large(server).counts().visible == 10, "the messages")
    wait_until(lambda: not answers(server).budget.total, "the end of the answer that nobody read")


def test_who_hangs_up_waits_no_more(server: Running) -> None:
    content = body("large", VisibilityTimeout=600)
    headers = signed_head(server.url, ONE, f"secret-of-{ONE}", content, "ReceiveMessage")
    with unread(server, ONE):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/", content=content, headers=headers, timeout=0.5, trust_env=False)
        wait_until(lambda: not answers(server)._waiting, "the end of its wait")
        wait_until(lambda: large(server).counts().visible == 10, "the messages")


def test_with_some_that_wait_for_memory_others_claim_nothing_yet(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CLAIMED", 2)
    waiting, later = answers(server)._waiting, answers(server)._to_claim
    with unread(server, ONE) as first, ThreadPoolExecutor(6) as pool:
        others = [pool.submit(receive, server, ONE) for _ in range(2)]
        wait_until(lambda: len(waiting) == 2, "those that have claimed")
        others += [pool.submit(receive, server, ONE) for _ in range(4)]
        wait_until(lambda: len(later) == 4, "those that have not")
        assert len(waiting) == 2
        first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        assert len(everything(first)) > SIZE
        assert all(len(other.result().json()["Messages"]) == 10 for other in others)


def test_a_long_poll_takes_no_memory_while_it_waits(server: Running) -> None:
    with unread(server, ONE), ThreadPoolExecutor(8) as pool:
        taken = answers(server).budget.by_key[ONE]
        polls = [pool.submit(receive, server, ONE, "small", WaitTimeSeconds=20) for _ in range(8)]
        wait_until(lambda: server.application.endpoint.waiting == 8, "the long polls")
        assert answers(server).budget.by_key[ONE] == taken
        server.lake.queue("small").send("for which there is memory left")
        assert all(len(poll.result().json()["Messages"]) == 1 for poll in polls)


def test_what_is_larger_than_all_memory_comes_alone(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", SIZE)
    monkeypatch.setattr(limits, "MAX_ANSWER_KEY_BYTES", SIZE // 2)
    with ThreadPoolExecutor(3) as pool:
        for answer in pool.map(lambda key: receive(server, key), [ONE, ONE, OTHER]):
            assert len(answer.json()["Messages"]) == 10
