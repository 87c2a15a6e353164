"""Rows of one process that does as much as it can: sends in several ways, and calls of many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from benchmarks.harness import BODY, Bench, Figure, call_rates
from benchmarks.store import DELAY, ON_STORE, ask, opened, places, within
from lakequeue import LakeQueue, Queue, SendEntry

THREADS = 64
BATCH = 10


def sends(bench: Bench) -> Iterator[Figure]:
    """Most messages a second that one process sends, by one thread, by many, in batches, and by a sender."""
    for place in places(bench, {"a disk": None, ON_STORE: None}):
        with opened(bench, place) as (new_root, url, environment), within(environment):
            queue = LakeQueue(new_root(), engine="point").create_queue("sent")
            if url is not None:
                ask(url, {"delay": DELAY})
            for what, rate in _sends(queue, bench.sizes.fleet_seconds):
                yield Figure(f"most sends on {place}: {what}", rate, unit="/s")


def _sends(queue: Queue, seconds: float) -> Iterator[tuple[str, float]]:
    entries = [SendEntry(BODY)] * BATCH
    yield "one thread, one message a call", _rate(1, lambda: queue.send(BODY), 1, seconds)
    yield f"{THREADS} threads, one message a call", _rate(THREADS, lambda: queue.send(BODY), 1, seconds)
    batches = _rate(THREADS, lambda: queue.send_batch(entries), BATCH, seconds)
    yield f"{THREADS} threads, batches of {BATCH}", batches
    began, count = perf_counter(), 0
    with queue.sender() as sender:
        while perf_counter() < began + seconds:
            sender.send(BODY)
            count += 1
    yield "one thread with a sender", count / (perf_counter() - began)


def _rate(threads: int, call: Callable[[], object], messages: int, seconds: float) -> float:
    """Returns messages a second of threads that repeat a call. Counts until the last call has returned."""
    began = perf_counter()

    def repeat(_: int) -> int:
        calls = 0
        while perf_counter() < began + seconds:
            call()
            calls += 1
        return calls

    with ThreadPoolExecutor(threads) as pool:
        calls = sum(pool.map(repeat, range(threads)))
    return calls * messages / (perf_counter() - began)


def concurrent(bench: Bench) -> Iterator[Figure]:
    """Messages per second of many threads in this process, one or ten in each call."""
    entries = [SendEntry(BODY)] * BATCH
    [place] = places(bench, {"a disk": None} if bench.store is None else {ON_STORE: None})
    with opened(bench, place) as (new_root, _, _), ThreadPoolExecutor(bench.sizes.threads) as pool:
        queue = LakeQueue(new_root(), engine="point").create_queue("busy")

        def send(batch: int) -> Any:
            return queue.send(BODY) if batch == 1 else queue.send_batch(entries)

        yield from call_rates(pool, bench.sizes, queue, "", send, None)
