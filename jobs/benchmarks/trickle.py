"""The rows of a trickle, the cost of a message for consumers that mostly wait, and of handlers that fail.

``python -m benchmarks.trickle ROOT QUEUE SECONDS`` is one of their processes. It prints when it is ready, waits
for a line of its input, consumes for a while, and prints its seconds of CPU and the latencies of its messages.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from uuid import uuid4

from benchmarks.harness import BODY, Bench, Figure, go, started
from benchmarks.store import line
from lakequeue import Consumer, Context, LakeQueue, Message, SendEntry

RATE = 20
"""Messages per second."""
HANDLER = 0.005
"""Seconds of a handler."""
PROCESSES = 1, 2, 4, 8
SETTLED = 2
"""Seconds that consumers wait before the first message, and after the last."""


def trickle(bench: Bench) -> Iterator[Figure]:
    """CPU of all consumers for a message, and the way from a send to its handler; bare: a single consumer."""
    found = {}
    for count in [count for count in PROCESSES if count <= bench.sizes.processes]:
        with bench.scratch() as scratch, ExitStack() as stack:
            lake = LakeQueue(scratch, engine="point")
            lake.create_queue("dead")
            queue = lake.create_queue("trickle", dead_letter_queue="dead", max_receive_count=5)
            lasts = bench.sizes.fleet_seconds
            arguments = [scratch, queue.name, str(lasts + 2 * SETTLED)]
            processes = [stack.enter_context(started(Path(__file__), arguments, {})) for _ in range(count)]
            for process in processes:
                go(process)
            time.sleep(SETTLED)
            began = time.monotonic()
            for place in bench.track(range(lasts * RATE), f"a trickle to {count} processes"):
                time.sleep(max(0, began + place / RATE - time.monotonic()))
                queue.send(str(time.monotonic()))  # All processes of a machine have the same clock.
            done = [json.loads(line(process)) for process in processes]
            latencies = [each for _, seen in done for each in seen]
            found[count] = (sum(cpu for cpu, _ in done) / len(latencies), median(latencies))
    (cpu, latency), *rest = found.values()
    name = f"a trickle of {RATE}/s:"
    yield Figure(f"{name} CPU of 1 consumer for a message", cpu)
    yield Figure(f"{name} from a send to a handler, 1 consumer", latency)
    for count, (each_cpu, each_latency) in zip(list(found)[1:], rest, strict=True):
        yield Figure(f"{name} CPU of {count} consumers for a message / 1", each_cpu, cpu, 1.5)
        yield Figure(f"{name} from a send to a handler, {count} consumers / 1", each_latency, latency, 1.3)
    failing = "a handler that fails for the last time: CPU of a message / of the trickle, 1 consumer"
    failed_cpu, rate = _failing(bench)
    yield Figure(failing, failed_cpu, cpu, 0.35)
    yield Figure("handlers that fail for the last time: messages moved by ten hands", rate, unit="/s")


def _failing(bench: Bench) -> tuple[float, float]:
    """Moves messages into a dead-letter queue by ten hands. Returns the CPU seconds of each, and the rate."""

    def handle(message: Message, context: Context) -> None:
        raise ValueError(message.message_id)

    logging.getLogger("lakequeue").addHandler(logging.NullHandler())  # Else each error is printed.
    messages = bench.sizes.slowly_consumed
    with bench.scratch() as scratch:
        lake = LakeQueue(scratch, engine="point")
        dead = lake.create_queue("dead")
        queue = lake.create_queue("failing", dead_letter_queue="dead", max_receive_count=1)
        queue.send_batch([SendEntry(BODY) for _ in range(messages)])
        consumer = Consumer(queue, handle, 10)
        began, began_at = time.process_time(), time.monotonic()
        consumer.run(until_empty=True)
        cpu, took = time.process_time() - began, time.monotonic() - began_at
        assert dead.counts().visible == messages
    return cpu / messages, messages / took


def main(root: str, name: str, seconds: str) -> None:
    lake = LakeQueue(root, engine="point")
    queue, other = lake.queue(name), lake.create_queue(uuid4().hex)
    other.send("a")  # The first use of Arrow imports pandas if it is installed.
    other.delete_batch(other.receive())
    latencies: list[float] = []

    def handle(message: Message, context: Context) -> None:
        latencies.append(time.monotonic() - float(message.body))
        time.sleep(HANDLER)

    consumer = Consumer(queue, handle)
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Timer(float(seconds), consumer.stop).start()
    began = time.process_time()
    consumer.run()
    print(json.dumps([time.process_time() - began, latencies]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
