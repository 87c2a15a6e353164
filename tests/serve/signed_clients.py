"""Signed clients of the tests of attacks, in a process that does nothing else, until its input ends.

Prints the seconds of each of their calls, and how many messages they delivered.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config

KEY, SECRET = "AKIDADMIN", "admin-secret-of-tests"
CLIENTS = 4
SIZES = [1_000] * 9 + [100_000]
"""A large body counts beside those of strangers."""


def main(url: str) -> None:
    over = threading.Event()
    calls: list[float] = []
    delivered = itertools.count()

    def timed(call: Callable[..., Any], **given: Any) -> Any:
        begun = time.perf_counter()
        answer = call(**given)
        calls.append(time.perf_counter() - begun)
        return answer

    def deliver(number: int) -> None:
        """Sends, receives and deletes; every error ends it."""
        sqs = client(url)
        queue = sqs.get_queue_url(QueueName=f"jobs-{number % 2}")["QueueUrl"]
        for size in itertools.cycle(SIZES):
            if over.is_set():
                return
            timed(sqs.send_message, MessageBody="x" * size, QueueUrl=queue)
            received = timed(sqs.receive_message, MaxNumberOfMessages=10, QueueUrl=queue)
            for message in received.get("Messages", []):
                timed(sqs.delete_message, ReceiptHandle=message["ReceiptHandle"], QueueUrl=queue)
                next(delivered)

    with ThreadPoolExecutor(CLIENTS) as pool:
        working = [pool.submit(deliver, number) for number in range(CLIENTS)]
        sys.stdin.read()
        over.set()
    for each in working:
        each.result()
    print(json.dumps({"calls": calls, "delivered": next(delivered)}))


def client(url: str) -> Any:
    return boto3.client(
        "sqs",
        region_name="local",
        endpoint_url=url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=60),
    )


if __name__ == "__main__":
    main(sys.argv[1])
