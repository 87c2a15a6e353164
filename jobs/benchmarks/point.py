"""Rows without Spark: single calls, many receipts, an old queue, many threads, the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

from benchmarks.bare import BareFiles, BareSearch, BareTables
from benchmarks.harness import BODY, LONG, Action, Bench, Figure
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.storage.layout import messages_path, receipts_path

_IMPORT = """
import time
began = time.perf_counter()
from lakequeue import LakeQueue
print(time.perf_counter() - began, open("/proc/self/statm").read().split()[1])
"""


def point(bench: Bench) -> Iterator[Figure]:
    """One send, claim and delete; bare: delta-rs writes the same rows into tables with the same schema."""
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", engine="point")
        queue = lake.create_queue("point")
        queue.send(BODY)
        bare = BareTables(f"{scratch}/bare", messages_path(lake.root, queue.key, 0), queue.attributes(wire=True))
        received: list[str] = []

        def receive() -> None:
            received.extend(message.receipt_handle for message in queue.receive())

        receive()
        queue.delete(received.pop())
        send, claim, delete = bench.alternate(
            "point",
            bench.sizes.point_rounds,
            (lambda: queue.send(BODY), bare.append),
            (receive, bare.claim),
            (lambda: queue.delete(received.pop()), bare.delete),
        )
    yield Figure("one send / append of a row by delta-rs", *send, bound=2)
    yield Figure("one receive / MERGE of a row by delta-rs", *claim, bound=2)
    yield Figure("one delete / MERGE of a row by delta-rs", *delete, bound=2)
    yield Figure("one receive / append of a row by delta-rs", claim[0], send[1], bound=3)
    yield Figure("one delete / append of a row by delta-rs", delete[0], send[1], bound=3)


def commits(bench: Bench) -> Iterator[Figure]:
    """CPU of one send, receive and delete; bare: CPU of the files and syncs of one commit."""
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", engine="point")
        queue = lake.create_queue("commits")
        for _ in bench.track(range(bench.sizes.point_rounds), "filling a queue"):
            queue.send(BODY)
        for _ in range(bench.sizes.point_rounds // 10):
            queue.receive(10, LONG)
        tables = messages_path(lake.root, queue.key, 0), receipts_path(lake.root, queue.key, 0)
        messages, receipts = (
            BareFiles(Path(f"{scratch}/{place}"), table).commit for place, table in enumerate(tables)
        )
        received: list[str] = []

        def receive() -> None:
            received.extend(message.receipt_handle for message in queue.receive(1, LONG))

        times = bench.alternate(
            "CPU of commits",
            bench.sizes.point_rounds,
            (lambda: queue.send(BODY), messages),
            (receive, receipts),
            (lambda: queue.delete(received.pop()), receipts),
            clock=process_time,
        )
    for verb, bound, pair in zip(("send", "receive", "delete"), (2, 2.2, 2), times, strict=True):
        yield Figure(f"CPU of one {verb} / of its files alone", *pair, bound=bound)


def in_flight(bench: Bench) -> Iterator[Figure]:
    """receive(10) among scattered receipts; bare: in a queue where all of these messages are deleted."""
    runs, step = bench.sizes.runs, 10_000
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", engine="point")
        scattered, clean = lake.create_queue("scattered"), lake.create_queue("clean")
        for start in bench.track(range(0, 2 * runs, step), "scattering receipts"):
            entries = [SendEntry(BODY)] * min(step, 2 * runs - start)
            for queue, kept in (scattered, 2), (clean, 1):
                queue.send_batch(entries)
                handles = [message.receipt_handle for message in queue.receive(step, LONG)]
                queue.delete_batch(handles[::kept])
        for queue in scattered, clean:
            queue.send_batch([SendEntry(BODY)] * 10 * bench.sizes.receive_rounds)

        def receive(queue: Queue) -> Action:
            handles = [message.receipt_handle for message in queue.receive(10, LONG)]
            return lambda: queue.delete_batch(handles)

        times = bench.alternate(
            "receive(10)", bench.sizes.receive_rounds, (lambda: receive(scattered), lambda: receive(clean))
        )
    yield Figure(f"receive(10), {runs:,} / no runs in flight", *times[0], bound=2.5)


def age(bench: Bench) -> Iterator[Figure]:
    """A cycle of send, receive and delete (three commits) in an old queue; bare: in a new queue."""
    window = max(1, bench.sizes.window // 3)
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", engine="point")
        old, new = lake.create_queue("old"), lake.create_queue("new")

        def cycle(queue: Queue) -> None:
            queue.send(BODY)
            for message in queue.receive():
                queue.delete(message.receipt_handle)

        for _ in bench.track(range(bench.sizes.commits // 3 - window), "making a queue old"):
            cycle(old)
        times = bench.alternate("old and new", window, (lambda: cycle(old), lambda: cycle(new)))
    name = f"send + receive + delete, commit {bench.sizes.commits:,} / first {3 * window}"
    yield Figure(name, *times[0], bound=1.3)


def search(bench: Bench) -> Iterator[Figure]:
    """peek(where=) over a whole queue; bare: the condition is evaluated in this process."""
    where, step = "body LIKE '%7777%' AND state = 'in_flight'", 5_000
    with bench.scratch() as scratch:
        queue = LakeQueue(f"{scratch}/queues", engine="point").create_queue("searched")
        for start in bench.track(range(0, bench.sizes.searched, step), "filling a queue"):
            end = min(start + step, bench.sizes.searched)
            queue.send_batch([SendEntry(f"{number} {BODY}") for number in range(start, end)])
        bare = BareSearch(queue, where)
        assert queue.peek(where) == [] and bare.found() == 0
        times = bench.alternate("search", bench.sizes.search_rounds, (lambda: queue.peek(where), bare.found))
    yield Figure(f"peek(where=) over {bench.sizes.searched:,} / judged in this process", *times[0], bound=1.2)


def cli(bench: Bench) -> Iterator[Figure]:
    """Commands, including the start of their processes, and the cost of an import."""
    run = partial(subprocess.run, check=True, stdout=subprocess.PIPE, text=True)
    with bench.scratch() as scratch:
        LakeQueue(f"{scratch}/queues", engine="point").create_queue("orders").send(BODY)
        code = "import sys; from lakequeue_command import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "--root", f"{scratch}/queues"]
        times = bench.alternate(
            "command line",
            bench.sizes.cli_rounds,
            (lambda: run([*command, "counts", "orders"]), lambda: run([*command, "list"])),
        )
    yield Figure("lakequeue counts, whole process", times[0][0], bound=1)
    yield Figure("lakequeue list, whole process", times[0][1], bound=0.35)
    imports = [
        [float(each) for each in run([sys.executable, "-c", _IMPORT]).stdout.split()]
        for _ in bench.track(range(bench.sizes.cli_rounds), "imports")
    ]
    seconds, pages = map(median, zip(*imports, strict=True))
    yield Figure("from lakequeue import LakeQueue", seconds, bound=0.25)
    yield Figure(
        "memory of the process that has imported it",
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        bound=60,
        unit="MiB",
    )
