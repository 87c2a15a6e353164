"""What requests of many clients wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serve.running import Running
from serve.serving import PATIENCE, wait_until

CLIENTS = 16


@pytest.mark.parametrize("fifo", [False, True])
def test_receives_of_16_clients_wait_for_at_most_two_commits(
    server: Running, client: Any, create: Callable[..., str], fifo: bool
) -> None:
    """The one that runs when they arrive, and their own."""
    url = create(**({"FifoQueue": "true"} if fifo else {}))
    for number in range(CLIENTS):
        group = {"MessageGroupId": f"g{number}", "MessageDeduplicationId": f"d{number}"} if fifo else {}
        client.send_message(QueueUrl=url, MessageBody="x", **group)
    commits = server.lake.queue(url.rpartition("/")[2]).runtime.shards[0]._settling
    run, first, free = commits._run, threading.Event(), threading.Event()
    sizes = []

    def gated(requests: Sequence[Any]) -> Any:
        sizes.append(len(requests))
        first.set()
        assert free.wait(PATIENCE)
        return run(requests)

    commits._run = gated
    try:
        with ThreadPoolExecutor(CLIENTS) as threads:
            received = [threads.submit(client.receive_message, QueueUrl=url)]
            assert first.wait(PATIENCE)
            received += [threads.submit(client.receive_message, QueueUrl=url) for _ in range(CLIENTS - 1)]
            try:
                wait_until(lambda: len(commits._pending) == CLIENTS - 1, "all others to wait for the first commit")
            finally:
                free.set()
            messages = [message for answer in received for message in answer.result()["Messages"]]
    finally:
        commits._run = run
    assert sizes == [1, CLIENTS - 1]
    assert len({message["MessageId"] for message in messages}) == CLIENTS
