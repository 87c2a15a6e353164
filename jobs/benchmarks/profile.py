"""Where the time of a receive goes on a local disk, at several numbers of threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import perf_counter
from typing import Any
from unittest import mock

from benchmarks.harness import BODY, LONG, Bench, Figure
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.operations import receive
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import ledger
from lakequeue.storage.engines import point
from lakequeue.storage.folder import Folder
from lakequeue.storage.ledger import Ledger

THREADS = (1, 16, 64)
PARTS: dict[str, tuple[Any, str]] = {
    "call": (receive, "receive"),
    "claim": (GroupCommit, "submit"),
    "batch": (ShardService, "_decide_in_turn"),
    "decide": (ShardMachine, "decide"),
    "lock, fence and MERGE": (Ledger, "commit"),
    "of that, changed runs as rows": (ledger, "run_rows"),
    "of that, the MERGE": (point.PointTable, "_merge"),
    "of that, the data file": (point, "write_file"),
    "of that, the log entry": (Folder, "create"),
    "bodies and handles": (receive, "_messages"),
}


class _Times:
    """Seconds and number of calls of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def timed(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            began = perf_counter()
            try:
                return original(*args, **more)
            finally:
                took = perf_counter() - began
                with self._lock:
                    self.seconds[name] += took
                    self.calls[name] += 1

        return call


def profile(bench: Bench) -> Iterator[Figure]:
    """Milliseconds of one receive of one message, by part, for each number of threads."""
    for threads in THREADS:
        with bench.scratch() as scratch:
            queue = LakeQueue(f"{scratch}/queues", engine="point").create_queue("received")
            calls = bench.sizes.receive_rounds * min(threads, 16)
            queue.send_batch([SendEntry(BODY) for _ in range(calls + threads)])
            times = _run(queue, threads, calls)
        seconds, batches = times.seconds, times.calls["batch"]
        yield Figure(
            f"{threads} threads: one receive", seconds["call"] / calls, remark=f"{calls / batches:.1f} a commit"
        )
        waited = seconds["claim"] - seconds["batch"]  # of those that lead, and all of those that do not
        yield Figure(f"{threads} threads: of it, waiting for commits of others", waited / calls)
        for name in list(PARTS)[2:-1]:
            yield Figure(f"{threads} threads: one commit: {name}", seconds[name] / batches)
        yield Figure(f"{threads} threads: of it, bodies and handles", seconds["bodies and handles"] / calls)


def _run(queue: Queue, threads: int, calls: int) -> _Times:
    with ThreadPoolExecutor(threads) as pool, ExitStack() as stack:
        list(pool.map(lambda _: queue.receive(visibility_timeout=LONG), range(threads)))
        times = _Times()
        for name, (owner, attribute) in PARTS.items():
            timed = times.timed(name, getattr(owner, attribute))
            stack.enter_context(
                mock.patch.object(owner, attribute, timed if not isinstance(owner, type) else _method(timed))
            )
        received = list(pool.map(lambda _: queue.receive(visibility_timeout=LONG), range(calls)))
    assert all(len(messages) == 1 for messages in received)
    return times


def _method(timed: Callable[..., Any]) -> Callable[..., Any]:
    """As a method: a plain function binds to its object."""
    return lambda self, *args, **more: timed(self, *args, **more)
