"""A row of a process that works for long: its growth while a compactor runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from benchmarks.harness import Bench, Figure
from benchmarks.upkeep import resident
from lakequeue import LakeQueue

THREADS = 16
BODY = "x" * 300
PAUSE = 10.0
"""Seconds between two passes of the compactor, which works in the same process."""
_MIB = 2**20


class _Sample(NamedTuple):
    at: float
    done: int
    """Messages sent, received and deleted so far."""
    resident: int
    threads: int
    descriptors: int
    files: int


def soak(bench: Bench) -> Iterator[Figure]:
    """Threads send, receive and delete single messages; the end compared with the time after the first ones."""
    first, total = bench.sizes.soaked_first, bench.sizes.soaked
    done, failed, over = [0] * THREADS, list[BaseException](), threading.Event()
    samples: list[_Sample] = []
    with bench.scratch() as scratch:
        root = f"{scratch}/queues"
        queue = LakeQueue(root, engine="point").create_queue("busy")

        def work(number: int) -> None:
            queue.send(BODY)
            for message in queue.receive():
                queue.delete(message.receipt_handle)
                done[number] += 1

        def compact(_: int) -> None:
            for summary in LakeQueue(root, engine="point").compact():
                assert not summary.failures, summary.failures
            over.wait(PAUSE)

        with _repeated(work, THREADS, over, failed), _repeated(compact, 1, over, failed):
            for _ in bench.track(range(100), f"{total:,} messages"):
                while sum(done) < total * (len(samples) + 1) / 100 and not failed:
                    time.sleep(0.05)
                samples.append(_sample(root, sum(done)))
            over.set()
    if failed:
        raise failed[0]
    before = [sample for sample in samples if first <= sample.done <= 3 * first] or samples[:1]
    after = samples[-max(2, len(before)) :]

    def both(name: str) -> tuple[float, float]:
        now, then = (median(getattr(sample, name) for sample in part) for part in (after, before))
        return now, then

    what = f"after {total:,} single messages"
    now, then = both("resident")
    yield Figure(f"memory {what}: more than after {first:,}", (now - then) / _MIB, bound=150, unit="MiB")
    for name, bound in ("descriptors", 1.1), ("threads", 1.0), ("files", 1.1):
        yield Figure(f"{name} {what} / after {first:,}", *both(name), bound=bound, unit=name)
    yield Figure(f"messages a second {what} / after {first:,}", _rate(after), _rate(before), 0.9, unit="/s")


@contextmanager
def _repeated(
    call: Callable[[int], None], threads: int, over: threading.Event, failed: list[BaseException]
) -> Iterator[None]:
    """Repeats a call in threads, with the number of the thread, until ``over`` is set."""

    def run(number: int) -> None:
        try:
            while not over.is_set():
                call(number)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        over.set()
        for worker in workers:
            worker.join()


def _sample(root: str, done: int) -> _Sample:
    files = sum(len(names) for _, _, names in os.walk(root))
    descriptors = len(os.listdir("/proc/self/fd"))
    return _Sample(time.perf_counter(), done, resident(), threading.active_count(), descriptors, files)


def _rate(samples: list[_Sample]) -> float:
    begin, end = samples[0], samples[-1]
    return (end.done - begin.done) / max(1e-9, end.at - begin.at)
