"""Receives that wait: what ends them, and what becomes of messages whose receiver has gone.

Where the clock stands still, only what a test does can end a wait.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pyarrow as pa
import pytest

from insides import shard_of
from lakequeue import LakeQueue, Queue
from lakequeue.serve import app
from lakequeue.serve.app import Application
from lakequeue.testing import ManualClock
from serve.raw_requests import request
from serve.serving import PATIENCE, Client, Connection, Running, client_of, headers, serving, wait_until


@attrs.frozen
class Harness:
    """A server on a clock that stands still, a queue ``orders``, and clients that wait."""

    lake: LakeQueue
    application: Application
    client: Client
    pool: ThreadPoolExecutor

    @property
    def url(self) -> str:
        return self.client.queue_url("orders")

    def poll(self, **given: Any) -> Future[list[str]]:
        """Begins a receive; the bodies that it will answer."""

        def receive() -> list[str]:
            with client_of(self.client.url) as client:
                return bodies(client("ReceiveMessage", QueueUrl=self.url, WaitTimeSeconds=20, **given))

        before = self.waiting
        polled = self.pool.submit(receive)
        wait_until(lambda: self.waiting > before or polled.done(), "a long poll")
        return polled

    @property
    def waiting(self) -> int:
        return self.application.endpoint.waiting

    def hanging_up(self, **given: Any) -> socket.socket:
        """A connection with a receive under way, to be closed before its answer."""
        place, before = urlsplit(self.client.url), len(self.application.endpoint.receives.running)
        connection = socket.create_connection((place.hostname, place.port), PATIENCE)
        body = json.dumps({"QueueUrl": self.url, **given}).encode()
        connection.sendall(request(headers("ReceiveMessage"), body))
        wait_until(lambda: len(self.application.endpoint.receives.running) > before, "the receive")
        return connection

    def noticed(self) -> bool:
        """Whether the server knows that every receiver has gone."""
        return all(interrupt.is_set() for interrupt in list(self.application.endpoint.receives.running))


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in answer.get("Messages", [])]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    lake = LakeQueue(str(tmp_path / "queues"), clock=ManualClock())
    with (
        ThreadPoolExecutor(16) as pool,
        serving(lake) as server,
        client_of(server.url) as client,
    ):
        client("CreateQueue", QueueName="orders")
        yield Harness(lake, server.application, client, pool)


@pytest.mark.spec("LPL-1", "LPL-4", "LPL-5")
def test_a_message_ends_a_long_poll(harness: Harness) -> None:
    polled = harness.poll(MaxNumberOfMessages=10)
    harness.client("SendMessage", QueueUrl=harness.url, MessageBody="A")
    assert polled.result(PATIENCE) == ["A"]


@pytest.mark.spec("LPL-1")
def test_its_time_ends_it_with_nothing(harness: Harness) -> None:
    polled = harness.poll()
    harness.lake.clock.advance(19.9)
    assert not polled.done() and harness.waiting == 1
    harness.lake.clock.advance(0.1)
    assert polled.result(PATIENCE) == []
    wait_until(lambda: harness.waiting == 0, "the end of the poll")


def test_a_client_that_hangs_up_takes_no_message_with_it(harness: Harness) -> None:
    with harness.hanging_up(WaitTimeSeconds=20):
        assert harness.waiting == 1
    wait_until(lambda: harness.waiting == 0, "the end of the poll")
    harness.client("SendMessage", QueueUrl=harness.url, MessageBody="A")
    answer = harness.client("ReceiveMessage", QueueUrl=harness.url, AttributeNames=["All"])
    assert answer["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"


def hung_up_while_claiming(harness: Harness, queue: Queue, **given: Any) -> None:
    """A receive whose client is gone when the claim comes to its end."""
    ledger = shard_of(queue).ledger._lock
    with ledger:
        with harness.hanging_up(**given):
            pass
        wait_until(harness.noticed, "the server to notice")
    wait_until(lambda: not harness.application.endpoint.receives.running, "the end of the receive")


def test_what_was_claimed_for_a_client_that_hung_up_is_handed_back(harness: Harness) -> None:
    queue = harness.lake.queue("orders")
    for body in "ABC":
        queue.send(body)
    hung_up_while_claiming(harness, queue, MaxNumberOfMessages=3)
    wait_until(lambda: queue.counts().visible == 3, "the messages")
    messages = queue.receive(3)
    assert sorted(message.body for message in messages) == ["A", "B", "C"]
    assert [message.receive_count for message in messages] == [2, 2, 2], "they were not claimed before"


def test_groups_keep_their_order_when_messages_are_handed_back(harness: Harness) -> None:
    queue = harness.lake.create_queue("steps.fifo", fifo=True, profile="sqs")
    for number, body in enumerate("ABCDE"):
        queue.send(body, group_id="xy"[number % 2], dedup_id=body)
    hung_up_while_claiming(harness, queue, QueueUrl=harness.client.queue_url("steps.fifo"), MaxNumberOfMessages=3)
    wait_until(lambda: queue.counts().in_flight == 0, "the messages")
    received = queue.receive(10)
    assert {group: "".join(m.body for m in received if m.group_id == group) for group in "xy"} == {
        "x": "ACE",
        "y": "BD",
    }
    assert sum(message.receive_count for message in received) == 5 + 3


@pytest.mark.spec("ATT-1")
def test_what_an_attempt_id_can_fetch_again_is_not_handed_back(harness: Harness) -> None:
    queue = harness.lake.create_queue("steps.fifo", fifo=True, profile="sqs")
    queue.send("A", group_id="x", dedup_id="A")
    url = harness.client.queue_url("steps.fifo")
    hung_up_while_claiming(harness, queue, QueueUrl=url, ReceiveRequestAttemptId="again")
    assert queue.counts().in_flight == 1 and queue.receive() == []
    assert bodies(harness.client("ReceiveMessage", QueueUrl=url, ReceiveRequestAttemptId="again")) == ["A"]


def test_many_messages_reach_many_receivers(harness: Harness) -> None:
    polled = [harness.poll() for _ in range(8)]
    for number in range(4):
        harness.client("SendMessage", QueueUrl=harness.url, MessageBody=str(number))
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(4, 8)]
    harness.client("SendMessageBatch", QueueUrl=harness.url, Entries=entries)
    assert sorted(body for poll in polled for body in poll.result(PATIENCE)) == list("01234567")


def test_messages_that_arrive_together_fill_the_batches_of_waiting_receivers(harness: Harness) -> None:
    polled = [harness.poll(MaxNumberOfMessages=10) for _ in range(8)]
    harness.lake.queue("orders").send_arrow(pa.table({"body": [str(number) for number in range(40)]}))
    wait_until(lambda: sum(poll.done() for poll in polled) == 4, "four of the receives to be answered")
    answers = [poll.result() for poll in polled if poll.done()]
    assert [len(answer) for answer in answers] == [10] * 4
    assert sorted(map(int, chain(*answers))) == list(range(40))


@pytest.mark.spec("LPL-1")
def test_long_polls_hold_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = 300
    monkeypatch.setattr(app, "THREADS", 4)

    async def load(server: Running) -> list[list[str]]:
        call = await Connection.to(server.url)
        url = (await call("CreateQueue", QueueName="orders"))["QueueUrl"]
        other = (await call("CreateQueue", QueueName="other"))["QueueUrl"]
        receivers = [await Connection.to(server.url) for _ in range(polls)]
        waiting = [
            asyncio.create_task(receive("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
            for receive in receivers
        ]
        while server.application.endpoint.waiting < polls:
            await asyncio.sleep(0.01)
        for number in range(10):
            await call("SendMessage", QueueUrl=other, MessageBody=str(number))
        assert server.application.endpoint.waiting == polls, "a send waited for the end of a long poll"
        await call("SendMessage", QueueUrl=url, MessageBody="A")
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [bodies(poll.result()) for poll in done] == [["A"]]
        server.stop()
        return [bodies(answer) for answer in await asyncio.gather(*waiting) if answer]

    with serving(LakeQueue(str(tmp_path / "queues"), clock=ManualClock())) as server:
        assert asyncio.run(asyncio.wait_for(load(server), PATIENCE)) == [["A"]]
