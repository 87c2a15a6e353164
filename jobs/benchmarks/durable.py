"""The cost of syncs: acknowledged messages are on the disk of the working directory, or left to the system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.harness import BODY, Bench, Figure, seconds_of
from lakequeue import LakeQueue, SendEntry

THREADS = 64
BATCH = 10
SYNCED_BYTES = 8_192
"""Approximate size of the file that a send writes."""


def durable(bench: Bench) -> Iterator[Figure]:
    """One send, and batches of many threads; bare: without syncs."""
    entries, calls = [SendEntry(BODY)] * BATCH, max(THREADS, bench.sizes.calls)
    with bench.scratch() as scratch, ThreadPoolExecutor(THREADS) as pool:
        power, process = (
            LakeQueue(f"{scratch}/{durability}", durability=durability).create_queue("orders")
            for durability in ("power", "process")
        )
        bare = Path(scratch) / "bare"
        bare.mkdir()
        for queue in power, process:
            queue.send(BODY)
        (sent, unsynced), (sync, _) = bench.alternate(
            "sends and syncs",
            bench.sizes.point_rounds,
            (lambda: power.send(BODY), lambda: process.send(BODY)),
            (lambda: _sync(bare), lambda: None),
        )
        yield Figure("one bare sync of a file and its directory", sync)
        yield Figure("one send on disk / without syncs + three bare syncs", sent, unsynced + 3 * sync, 1)
        rates: dict[str, list[float]] = {"power": [], "process": []}
        for turn in bench.track(range(2 * bench.sizes.flow_rounds), "64 threads"):
            queue = (power, process)[turn % 2]

            def send(_: int, queue: object = queue) -> None:
                queue.send_batch(entries)  # type: ignore[attr-defined]

            seconds = seconds_of(lambda send=send: list(pool.map(send, range(calls))))
            rates[("power", "process")[turn % 2]].append(calls * BATCH / seconds)
    name = f"messages sent in batches of {BATCH}, {THREADS} threads, on disk / without syncs"
    yield Figure(name, median(rates["power"]), median(rates["process"]), 0.7, "", "/s")


def _sync(folder: Path) -> None:
    path = folder / f"{len(os.listdir(folder))}"
    with path.open("wb") as file:
        file.write(b"x" * SYNCED_BYTES)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
