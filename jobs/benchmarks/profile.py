"""Profile on a local disk: of a receive at several numbers of threads, and of a consumer's round."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any
from unittest import mock

import pyarrow as pa

from benchmarks.consumers import CONCURRENCY
from benchmarks.harness import BODY, LONG, Bench, Figure
from lakequeue import Consumer, LakeQueue, Queue, SendEntry
from lakequeue.consumer.queue_loop import QueueLoop
from lakequeue.operations import receive
from lakequeue.operations.claim import ClaimPlan
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import folder, ledger
from lakequeue.storage.engines import point, transaction
from lakequeue.storage.folder import LocalFolder

THREADS = (1, 16, 64)
Parts = Mapping[str, tuple[Any, str]]
COMMIT: Parts = {
    "batch": (ShardLedger, "_results"),
    "decide": (ShardMachine, "decide"),
    "lock, fence and MERGE": (transaction, "commit"),
    "of that, changed runs as rows": (ledger, "run_rows"),
    "of that, the MERGE": (point.Table, "merge"),
    "of that, the data file": (point, "write_rows"),
    "of that, the log entry": (LocalFolder, "create"),
    "of all files, syncs": (folder, "_flush"),
}
PARTS: Parts = {
    "call": (receive, "receive"),
    "claim": (GroupCommit, "submit"),
    **COMMIT,
    "bodies and handles": (receive, "_messages"),
}
ROUND: Parts = {
    "claim": (ClaimPlan, "run"),
    **COMMIT,
    "bodies and handles": (receive, "read"),
    "begin": (QueueLoop, "_begin"),
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
    """Milliseconds of one receive of one message, by part, for each number of threads; of a round, by part."""
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
        # Time of the calls that lead a commit, and of all calls that wait for it.
        waited = seconds["claim"] - seconds["batch"]
        yield Figure(f"{threads} threads: of it, waiting for commits of others", waited / calls)
        for name in COMMIT:
            yield Figure(f"{threads} threads: one commit: {name}", seconds[name] / batches)
        yield Figure(f"{threads} threads: of it, bodies and handles", seconds["bodies and handles"] / calls)
    messages = bench.sizes.consumed
    with bench.scratch() as scratch:
        queue = LakeQueue(f"{scratch}/queues", engine="point").create_queue("consumed")
        queue.send_arrow(pa.table({"body": [BODY] * messages}))
        began = perf_counter()
        with _measured(ROUND) as times:
            Consumer(queue, lambda message, context: None, CONCURRENCY, wait_time=0).run(until_empty=True)
        wall = perf_counter() - began
    rounds = times.calls["claim"]  # A claim also settles the handled messages.
    yield Figure(
        "a consumer: from round to round", wall / rounds, remark=f"{messages / rounds:.0f} messages a round"
    )
    for name in ROUND:
        yield Figure(f"a consumer: {name}", times.seconds[name] / rounds)


def _run(queue: Queue, threads: int, calls: int) -> _Times:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: queue.receive(visibility_timeout=LONG), range(threads)))
        with _measured(PARTS) as times:
            received = list(pool.map(lambda _: queue.receive(visibility_timeout=LONG), range(calls)))
    assert all(len(messages) == 1 for messages in received)
    return times


@contextmanager
def _measured(parts: Parts) -> Iterator[_Times]:
    times = _Times()
    with ExitStack() as stack:
        for name, (owner, attribute) in parts.items():
            timed = times.timed(name, getattr(owner, attribute))
            stack.enter_context(
                mock.patch.object(owner, attribute, timed if not isinstance(owner, type) else _method(timed))
            )
        yield times


def _method(timed: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method of it, because a callable on an instance would get the object twice."""
    return lambda self, *args, **more: timed(self, *args, **more)
