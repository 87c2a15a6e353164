"""A process on a root that is restored: ``restore_worker.py ROLE ROOT LOG STOP``; a client of serve has a URL.

Each line of LOG is a call: when it began and ended, what came of it, ids of sent or received messages.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from lakequeue import LakeQueue, Queue


def send(queue: Queue) -> list[str]:
    return [queue.send("sent").message_id]


def consume(queue: Queue) -> list[str]:
    messages = queue.receive(10)
    for message in messages:
        queue.delete(message.receipt_handle)
    return [message.message_id for message in messages]


def client(url: str) -> Callable[[], list[str]]:
    import httpx

    from serve.serving import Client

    ask = Client(url, httpx.Client(timeout=60, trust_env=False))

    def sent() -> list[str]:
        return [ask("SendMessage", QueueUrl=ask.queue_url("orders"), MessageBody="sent")["MessageId"]]

    return sent


def main(role: str, place: str, log: str, stop: str) -> None:
    if role == "client":
        call = client(place)
    else:
        lake = LakeQueue(place)
        queue = lake.queue("orders")
        call = {
            "send": lambda: send(queue),
            "consume": lambda: consume(queue),
            "compact": lambda: compacted(lake),
        }[role]
    with open(log, "a", buffering=1) as diary:
        while not os.path.exists(stop):
            line: dict[str, object] = {"begun": time.monotonic()}
            try:
                line["ids"] = call()
            except Exception as error:
                line |= {"error": f"{type(error).__name__}: {error}"[:500]}
            diary.write(json.dumps(line | {"ended": time.monotonic()}) + "\n")


def compacted(lake: LakeQueue) -> list[str]:
    time.sleep(0.2)
    failures = [failure for summary in lake.compact() for failure in summary.failures]
    if failures:
        raise RuntimeError("; ".join(failures))
    return []


if __name__ == "__main__":
    main(*sys.argv[1:])
