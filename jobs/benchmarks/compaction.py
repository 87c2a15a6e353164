"""A row of the compactor over many busy queues: by processes, and by Spark tasks on workers of one core.

``python -m benchmarks.compaction ROOT MASTER`` prints when its session is ready, waits for a line of its input,
and prints the seconds of a pass by tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness import Bench, Figure, go, seconds_of, started
from benchmarks.store import line
from lakequeue import LakeQueue, SendEntry
from lakequeue.spark.compaction import compact_once
from lakequeue.spark.session import build_session

_BODY = "x" * 500
_SENDS, _RECEIVES = 6, 4
"""For each queue before each pass: batches of ten to send, and to receive and delete."""


def compact(bench: Bench) -> Iterator[Figure]:
    """A pass over busy queues by two processes, and by tasks on two workers of Spark; bare: by one."""
    with bench.scratch() as scratch:
        root = f"{scratch}/queues"
        lake, busy = LakeQueue(root, engine="point"), bench.sizes.queues // 10 or 1
        for number in bench.track(range(busy), f"{busy:,} queues"):
            lake.create_queue(f"queue-{number}")
        for what, seconds in ("processes", _by_processes), ("workers of Spark", _by_workers):
            times: dict[int, list[float]] = {1: [], 2: []}
            for turn in bench.track(range(bench.sizes.bulk_rounds), f"compaction by {what}"):
                for count in (1, 2) if turn % 2 == 0 else (2, 1):
                    times[count].append(seconds(root, count))
            one, two = median(times[1]), median(times[2])
            # A third process distributes the queues, so two cores are not twice as fast as one.
            yield Figure(f"compaction of {busy:,} busy queues, two {what} / one", two, one, round(1 / 1.7, 2))


def _by_processes(root: str, count: int) -> float:
    use(lake := LakeQueue(root, engine="point"))
    return seconds_of(partial(lake.compact, processes=count))


def _by_workers(root: str, count: int) -> float:
    # A single queue, as in tests of the output, needs no processes of workers.
    master = f"local-cluster[{count},1,1024]" if len(LakeQueue(root).list_queues()) > 1 else f"local[{count}]"
    with started(Path(__file__), [root, master], {}) as process:
        go(process)
        return float(line(process))


def use(lake: LakeQueue) -> None:
    """Sends messages to each queue, and receives and deletes some of them."""
    for queue in lake.list_queues():
        for _ in range(_SENDS):
            queue.send_batch([SendEntry(_BODY)] * 10)
        for _ in range(_RECEIVES):
            queue.delete_batch([message.receipt_handle for message in queue.receive(10)])


def pass_of(lake: LakeQueue, master: str) -> float:
    """Returns the seconds of a pass by tasks, on workers that have made a pass before."""
    spark = build_session(master=master)
    print("ready", flush=True)
    sys.stdin.readline()
    compaction: Callable[[], object] = partial(compact_once, lake, spark=spark)
    for _ in range(2):
        use(lake)
        took = seconds_of(compaction)
    return took


if __name__ == "__main__":
    print(pass_of(LakeQueue(sys.argv[1], engine="point"), sys.argv[2]))
