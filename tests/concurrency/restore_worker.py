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


def send(queue: Queue, ids: list[str]) -> None:
    ids.append(queue.send("sent").message_id)


def consume(queue: Queue, ids: list[str]) -> None:
    messages = queue.receive(10)
    ids += [message.message_id for message in messages]  # a delete that fails may have been done
    for message in messages:
        queue.delete(message.receipt_handle)


def compact(lake: LakeQueue) -> None:
    time.sleep(0.2)
    failures = [failure for summary in lake.compact() for failure in summary.failures]
    if failures:
        raise RuntimeError("; ".join(failures))


def client(url: str) -> Callable[[list[str]], None]:
    import httpx

    from serve.serving import Client

    ask = Client(url, httpx.Client(timeout=60, trust_env=False))

    def sent(ids: list[str]) -> None:
        ids.append(ask("SendMessage", QueueUrl=ask.queue_url("orders"), MessageBody="sent")["MessageId"])

    return sent


def main(role: str, place: str, log: str, stop: str) -> None:
    if role == "client":
        call = client(place)
    else:
        lake = LakeQueue(place)
        queue = lake.queue("orders")
        call = {
            "send": lambda ids: send(queue, ids),
            "consume": lambda ids: consume(queue, ids),
            "compact": lambda _: compact(lake),
        }[role]
    with open(log, "a", buffering=1) as diary:
        while not os.path.exists(stop):
            ids: list[str] = []
            line: dict[str, object] = {"begun": time.monotonic(), "ids": ids}
            try:
                call(ids)
            except Exception as error:
                line |= {"error": f"{type(error).__name__}: {error}"[:500]}
            diary.write(json.dumps(line | {"ended": time.monotonic()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
