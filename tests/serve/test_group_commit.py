"""What requests of many clients wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from insides import shard_of
from lakequeue import SendEntry
from lakequeue.errors import QueueClientError
from serve.serving import PATIENCE, Running, wait_until

CLIENTS = 16


@contextmanager
def held(commits: Any) -> Iterator[tuple[list[int], threading.Event, threading.Event]]:
    """Keeps a group commit waiting: the sizes of its commits, that one has begun, and that they may end."""
    run, first, free = commits._run, threading.Event(), threading.Event()
    sizes: list[int] = []

    def gated(requests: Sequence[Any]) -> Any:
        sizes.append(len(requests))
        first.set()
        assert free.wait(PATIENCE)
        return run(requests)

    commits._run = gated
    try:
        yield sizes, first, free
    finally:
        free.set()
        commits._run = run


@pytest.mark.parametrize("fifo", [False, True])
def test_receives_of_16_clients_wait_for_at_most_two_commits(
    server: Running, client: Any, create: Callable[..., str], fifo: bool
) -> None:
    """The one that runs when they arrive, and their own."""
    url = create(**({"FifoQueue": "true"} if fifo else {}))
    for number in range(CLIENTS):
        group = {"MessageGroupId": f"g{number}", "MessageDeduplicationId": f"d{number}"} if fifo else {}
        client.send_message(QueueUrl=url, MessageBody="x", **group)
    commits = server.lake.queue(url.rpartition("/")[2])._runtime.shards[0].ledger._group
    with held(commits) as (sizes, first, free), ThreadPoolExecutor(CLIENTS) as threads:
        received = [threads.submit(client.receive_message, QueueUrl=url)]
        assert first.wait(PATIENCE)
        received += [threads.submit(client.receive_message, QueueUrl=url) for _ in range(CLIENTS - 1)]
        try:
            wait_until(lambda: len(commits._pending) == CLIENTS - 1, "all others to wait for the first commit")
        finally:
            free.set()
        messages = [message for answer in received for message in answer.result()["Messages"]]
    assert sizes == [1, CLIENTS - 1]
    assert len({message["MessageId"] for message in messages}) == CLIENTS


@pytest.mark.parametrize("fifo", [False, True])
def test_what_is_refused_of_one_client_concerns_no_other_in_its_group(
    server: Running, client: Any, create: Callable[..., str], fifo: bool
) -> None:
    url = create(MaximumMessageSize="1024", **({"FifoQueue": "true"} if fifo else {}))
    queue = server.lake.queue(url.rpartition("/")[2])

    def ids(number: int) -> dict[str, str]:
        return {"MessageGroupId": f"g{number}", "MessageDeduplicationId": f"d{number}"} if fifo else {}

    def send(number: int) -> Any:
        body = "x" * 2000 if number == 3 else "x"
        return client.send_message(QueueUrl=url, MessageBody=body, **ids(number))

    def send_batch(number: int) -> Any:
        bodies = ["x", "x" * 2000] if number % 2 else ["x", "x"]
        entries = [{"Id": f"{n}", "MessageBody": body, **ids(100 * number + n)} for n, body in enumerate(bodies)]
        if number == 12:
            entries[1]["Id"] = "0"
        return client.send_message_batch(QueueUrl=url, Entries=entries)

    with held(shard_of(queue).sender._group) as (sizes, first, free), ThreadPoolExecutor(CLIENTS) as threads:
        sent = [threads.submit(send, 0)]
        assert first.wait(PATIENCE)
        sent += [threads.submit(send if number < 8 else send_batch, number) for number in range(1, CLIENTS)]
        try:
            groups = server.application.actions._sends
            wait_until(lambda: groups._batches[queue.name].waiting == CLIENTS - 1, "all others to wait")
        finally:
            free.set()
        refused = {n: call.exception() for n, call in enumerate(sent) if call.exception()}
        answers = {n: call.result() for n, call in enumerate(sent) if n not in refused}
    assert sizes == [1, 1]
    codes = {number: error.response["Error"]["Code"] for number, error in refused.items()}
    assert codes == {3: "InvalidParameterValue", 12: "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"}
    assert all(answers[number]["MD5OfMessageBody"] for number in range(8) if number != 3)
    for number in (8, 9, 10, 11, 13, 14, 15):
        answer = answers[number]
        assert [entry["Id"] for entry in answer["Successful"]] == (["0"] if number % 2 else ["0", "1"])
        assert [entry["Id"] for entry in answer.get("Failed", [])] == (["1"] if number % 2 else [])
    assert queue.counts().visible == 7 + 3 * 2 + 4


def test_deletes_of_a_group_have_answers_of_their_own(
    server: Running, client: Any, create: Callable[..., str]
) -> None:
    url = create()
    queue = server.lake.queue(url.rpartition("/")[2])
    queue.send_batch([SendEntry("x") for _ in range(10)])
    handles = [message.receipt_handle for message in queue.receive(10)]
    with held(shard_of(queue).ledger._group) as (_, first, free), ThreadPoolExecutor(CLIENTS) as threads:
        calls = [threads.submit(client.delete_message, QueueUrl=url, ReceiptHandle=handles[0])]
        assert first.wait(PATIENCE)
        deletes = [*handles[1:6], handles[1], "nonsense"]
        calls += [threads.submit(client.delete_message, QueueUrl=url, ReceiptHandle=one) for one in deletes]
        calls += [
            threads.submit(
                client.change_message_visibility, QueueUrl=url, ReceiptHandle=one, VisibilityTimeout=wait
            )
            for one, wait in ((handles[6], 0), (handles[7], 43_201))
        ]
        try:
            groups = server.application.actions._settles
            wait_until(lambda: groups._batches[queue.name].waiting == len(calls) - 1, "all others to wait")
        finally:
            free.set()
        errors = [call.exception() for call in calls]
    codes = [error.response["Error"]["Code"] if error else None for error in errors]
    assert codes == [None] * 7 + ["ReceiptHandleIsInvalid", None, "InvalidParameterValue"]
    counts = queue.counts()
    assert (counts.visible, counts.in_flight) == (1, 3)


def test_the_error_of_a_group_is_that_of_each_client(
    server: Running, client: Any, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = create()
    monkeypatch.setattr(server.application.actions._sends, "_run", Mock(side_effect=QueueClientError("storage")))
    with ThreadPoolExecutor(CLIENTS) as threads:
        calls = [threads.submit(client.send_message, QueueUrl=url, MessageBody="x") for _ in range(CLIENTS)]
        codes = {call.exception().response["Error"]["Code"] for call in calls}
    assert codes == {"ServiceUnavailable"}
    monkeypatch.undo()
    client.send_message(QueueUrl=url, MessageBody="x")
