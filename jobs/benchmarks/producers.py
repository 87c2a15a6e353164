"""Rows of producers as they are deployed, and of the way of a message to a waiting consumer.

``python -m benchmarks.producers send ROOT EVERY SECONDS`` is a producer of one message each ``EVERY`` seconds.
``python -m benchmarks.producers handle ROOT IDLE SECONDS`` is a consumer that waits for ``IDLE`` seconds before
the first message. Both print that they are ready, wait for a line of their input, and print their results.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Figure, go, started
from benchmarks.store import DELAY, ON_STORE, ask, line, opened, places, within
from lakequeue import Consumer, Context, LakeQueue, Message

BODY = "x" * 300
NAME = "sent"

PRODUCERS: Mapping[str, Sequence[tuple[int, int, float, float, float, float | None]]] = {
    "a disk": [(8, 1, 0.02, 390, 0.015, None), (24, 1, 0.1, 235, 0.03, None)],
    ON_STORE: [(8, 1, 0.2, 38, 0.15, None), (8, 8, 0.2, 38, 0.05, 0.3)],
}
"""Processes, shards, seconds between sends; least messages a second; most seconds of 50 and 99 % of sends."""
HANDLED: Mapping[str, tuple[float, float]] = {"a disk": (0.015, 0.04), ON_STORE: (0.3, 0.6)}
"""Most seconds from a send to the handler, for half of the messages and for 9 of 10."""
IDLE = 0.003
"""Most CPU of a consumer that waits on a disk, as a share of a core."""
ASKED = 1
"""Most requests a second of a consumer that waits on an object store."""


def producers(bench: Bench) -> Iterator[Figure]:
    """Messages per second, send times, and the way to a waiting handler; bare: the wanted rate."""
    for place, rows in places(bench, PRODUCERS).items():
        with opened(bench, place) as (new_root, url, environment):
            for row in bench.track(rows[: bench.sizes.fleets], f"producers on {place}"):
                yield from _sent(bench, place, new_root(), url, environment, row)
            yield from _handled(bench, place, new_root(), url, environment)


def _sent(
    bench: Bench,
    place: str,
    root: str,
    url: str | None,
    environment: Mapping[str, str],
    row: tuple[int, int, float, float, float, float | None],
) -> Iterator[Figure]:
    wanted, shards, every, rate, half, most = row
    count = min(wanted, bench.sizes.processes)
    lasts = bench.sizes.fleet_seconds
    with within(environment):
        LakeQueue(root, engine="point").create_queue(NAME, shards=shards)
    found = _run([["send", root, str(every), str(lasts)]] * count, environment, url)
    took = sorted(each for times in found for each in times)
    name = f"producers on {place}: {count} of {1 / every:g} a second, {shards} shards"
    told = "" if url is None else f"{sum(ask(url).values()) / len(took):.1f} requests each"
    yield Figure(
        f"{name}, sent / wanted", len(took) / lasts, count / every, round(rate * every / wanted, 3), told, "/s"
    )
    yield Figure(f"{name}, half of the sends", took[len(took) // 2], None, half)
    yield Figure(f"{name}, 99 of 100", took[len(took) * 99 // 100], None, most)


def _handled(
    bench: Bench, place: str, root: str, url: str | None, environment: Mapping[str, str]
) -> Iterator[Figure]:
    idle, messages = 5 * bench.sizes.fleet_seconds, 2 * bench.sizes.fleet_seconds
    with within(environment):
        queue = LakeQueue(root, engine="point").create_queue(NAME)
    lasts = idle + 1.6 * messages + 1

    def send() -> None:
        time.sleep(idle)
        waiting.append(0 if url is None else sum(ask(url).values()))
        with within(environment):
            for number in range(messages):
                queue.send(repr(time.monotonic()))  # All processes of a machine have the same clock.
                time.sleep(1 + number % 7 / 10)

    waiting: list[int] = []
    [[took, cpu]] = _run([["handle", root, str(idle), str(lasts)]], environment, url, send)
    took.sort()
    half, most = places(bench, HANDLED)[place]
    name = f"on {place}, from a send to the handler of a consumer that waits"
    yield Figure(f"{name}, half of the messages", took[len(took) // 2], None, half)
    yield Figure(f"{name}, 9 of 10", took[len(took) * 9 // 10], None, most)
    name = f"a consumer that waits on {place}"
    yield Figure(f"{name}: CPU / time", cpu, idle, IDLE if url is None else None)
    if url is not None:
        yield Figure(f"{name}: requests / seconds", waiting[0], idle, ASKED, unit="requests")


def _run(
    arguments: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    url: str | None,
    meanwhile: Any = lambda: None,
) -> list[Any]:
    with ExitStack() as stack:
        processes = [stack.enter_context(started(Path(__file__), each, environment)) for each in arguments]
        if url is not None:
            ask(url, {"delay": DELAY})
        for process in processes:
            go(process)
        meanwhile()
        return [json.loads(line(process)) for process in processes]


def send(root: str, every: float, seconds: float) -> None:
    queue, took = LakeQueue(root, engine="point").queue(NAME), list[float]()
    queue.send(BODY)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        time.sleep(max(0, began + len(took) * every - time.monotonic()))
        before = time.monotonic()
        queue.send(BODY)
        took.append(time.monotonic() - before)
    print(json.dumps(took), flush=True)


def handle(root: str, idle: float, seconds: float) -> None:
    queue, took, cpu = LakeQueue(root, engine="point").queue(NAME), list[float](), list[float]()

    def note(message: Message, _: Context) -> None:
        took.append(time.monotonic() - float(message.body))

    print("ready", flush=True)
    sys.stdin.readline()
    consumer = Consumer(queue, note, 8)
    threading.Timer(idle, lambda: cpu.append(time.process_time() - before)).start()
    threading.Timer(seconds, consumer.stop).start()
    before = time.process_time()
    consumer.run()
    print(json.dumps([took, cpu[0]]), flush=True)


if __name__ == "__main__":
    {"send": send, "handle": handle}[sys.argv[1]](sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
