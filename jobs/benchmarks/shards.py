"""Rows of several processes: as many shards as processes, one shard for all, a queue for each.

``python shards.py ROOT QUEUE THREADS`` is one of the processes: it prints when it is ready, reads a number of
seconds from each line of its input, and works that long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from uuid import uuid4

from benchmarks.harness import BODY, LONG, Bench, Figure
from lakequeue import LakeQueue, Queue
from lakequeue.spark import register

PROCESSES = 4
THREADS = 8
"""Threads of each process; each one sends, receives and deletes a message repeatedly."""
DELAY = 0.02
"""Seconds by which the object store delays each request."""
MANY = 16
"""Shards of the queue that SQL queries read."""
ALONE = 40
"""Minimum number of operations per second of one process there."""
COUNTS = 2
"""Maximum number of seconds of ``lakequeue counts`` there."""
REQUESTS = {"send": 6, "receive": 12, "delete": 9, "empty receive": 2}
"""Maximum number of requests that each operation may make on an object store."""
CREATING = 12
"""Maximum number of requests that creating a queue of one shard may make."""
COUNTING = 14
"""Maximum number of requests by which a new process counts the messages of a young queue."""


def shards(bench: Bench) -> Iterator[Figure]:
    """Operations per second of processes on a local disk."""
    with bench.scratch() as scratch:
        yield from _rates(bench, f"{scratch}/queues", {}, "", 1.8)


def store(bench: Bench) -> Iterator[Figure]:
    """The same on an object store, and the number of requests of single operations there."""
    with _object_store() as (url, environment):
        yield from _requests(bench, url, environment)
        yield from _creating(url, environment)
        _ask(url, {"delay": DELAY})
        yield from _counts(bench, url, environment)
        yield from _rates(bench, f"s3://lake/{uuid4().hex}", environment, "object store, 20 ms: ", 3)


def sql(bench: Bench) -> Iterator[Figure]:
    """Messages by state in SQL, for a queue of many shards; bare: of one shard."""
    with bench.scratch() as scratch:
        spark = bench.spark
        register(spark)

        def by_source(root: str) -> None:
            messages = spark.read.format("lakequeue").options(root=root, queue="asked").load()
            messages.createOrReplaceTempView("messages")

        def by_views(root: str) -> None:
            LakeQueue(root, spark=spark).register_views(spark)

        def by_scans(root: str) -> None:
            for statement in LakeQueue(root, spark=spark).view_statements():
                spark.sql(statement)

        roots = {count: f"{scratch}/{count}" for count in (MANY, 1)}
        for count, root in roots.items():
            queue = LakeQueue(root, spark=spark).create_queue("asked", shards=count)
            queue.send_dataframe(bench.bodies(bench.sizes.few, 100).repartition(MANY))
            lease = queue.lease(bench.sizes.few // 4, LONG)
            assert lease is not None
        for what, view in (("the data source", by_source), ("views", by_views), ("a catalog's views", by_scans)):

            def ask(root: str, view: Callable[[str], None] = view) -> None:
                view(root)
                spark.sql("SELECT state, count(*) FROM messages GROUP BY state").collect()

            for root in roots.values():
                ask(root)
            sides = tuple(lambda root=root: ask(root) for root in roots.values())
            [times] = bench.alternate("SQL", bench.sizes.read_rounds, sides)  # type: ignore[list-item]
            yield Figure(f"SQL by {what}: messages by state, {MANY} shards / one", *times, bound=2)


def _rates(bench: Bench, root: str, environment: Mapping[str, str], where: str, growth: float) -> Iterator[Figure]:
    with _environment(environment):
        lake = LakeQueue(root, engine="point")
        lake.create_queue("one")
        lake.create_queue("sharded", shards=PROCESSES)
        for number in range(PROCESSES):
            lake.create_queue(f"own-{number}")
    sets = {
        "alone": ["one"],
        "apart": ["sharded"] * PROCESSES,
        "queues": [f"own-{number}" for number in range(PROCESSES)],
        "together": ["one"] * PROCESSES,
    }
    seen: dict[str, list[list[float]]] = {name: [] for name in sets}
    for turn in bench.track(range(bench.sizes.process_rounds), f"{where}processes"):
        for name in sorted(sets, reverse=turn % 2 == 1):
            seen[name].append(_rate(root, sets[name], bench.sizes.process_seconds, environment))
    rate = {name: median(map(sum, rates)) for name, rates in seen.items()}
    least, middle = (median(of(rates) for rates in seen["together"]) for of in (min, mean))
    four = f"{where}{PROCESSES} processes on {PROCESSES} shards"
    yield Figure(f"{four} / 1 process on 1", rate["apart"], rate["alone"], growth, unit="/s")
    yield Figure(f"{four} / on {PROCESSES} queues", rate["apart"], rate["queues"], 0.8, unit="/s")
    fair = f"{where}{PROCESSES} processes on 1 shard, the least served / their mean"
    yield Figure(fair, least, middle, 0.5, unit="/s")
    if environment:
        yield Figure(f"{where}1 process, {THREADS} threads", rate["alone"], None, ALONE, unit="/s")


def _rate(root: str, queues: Sequence[str], seconds: int, environment: Mapping[str, str]) -> list[float]:
    """Operations per second of concurrent processes, each on the queue given for it."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_process(root, queue, environment)) for queue in queues]
        for duration in (seconds, seconds):  # the first until each process has found its shard
            for process in processes:
                assert process.stdin is not None
                print(duration, file=process.stdin, flush=True)
            done = [json.loads(_line(process)) for process in processes]
    return [operations / took for operations, took in done]


@contextmanager
def _process(root: str, queue: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(here), root, queue, str(THREADS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "PYTHONPATH": paths},
    )
    try:
        assert _line(process) == "ready\n"
        yield process
    finally:
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _requests(bench: Bench, url: str, environment: Mapping[str, str]) -> Iterator[Figure]:
    """Requests of single operations while the Delta log grows, across checkpoints."""
    with _environment(environment):
        queue = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point").create_queue("counted")
        seen: dict[str, list[int]] = {name: [] for name in REQUESTS}

        def count(name: str) -> None:
            seen[name].append(sum(_ask(url).values()))
            _ask(url, {})

        for _ in bench.track(range(bench.sizes.requests_rounds), "requests"):
            _ask(url, {})
            queue.send(BODY)
            count("send")
            [message] = queue.receive()
            count("receive")
            queue.delete(message.receipt_handle)
            count("delete")
            assert queue.receive() == []
            count("empty receive")
    for name, bound in REQUESTS.items():
        most = f"at most {max(seen[name])}"
        yield Figure(
            f"object store: requests of one {name}", median(seen[name]), None, bound, most, unit="requests"
        )
        late = f"from commit {2 * bench.sizes.requests_rounds - 20:,} on"
        yield Figure(
            f"object store: requests of one {name}, {late}", median(seen[name][-10:]), None, bound, unit="requests"
        )


def _creating(url: str, environment: Mapping[str, str]) -> Iterator[Figure]:
    """Requests of creating a queue of one shard, in a root that has some."""
    with _environment(environment):
        lake = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point")
        made = []
        for number in range(20):
            _ask(url, {})
            lake.create_queue(f"queue-{number}")
            made.append(sum(_ask(url).values()))
    name = "object store: requests of creating a queue"
    yield Figure(name, median(made[1:]), None, CREATING, f"with the root {made[0]}", unit="requests")


def _counts(bench: Bench, url: str, environment: Mapping[str, str]) -> Iterator[Figure]:
    """Seconds of ``lakequeue counts`` as a whole process, for a queue with a long log, and for 20 queues."""
    root = f"s3://lake/{uuid4().hex}"
    with _environment(environment):
        lake = LakeQueue(root, engine="point")
        _ask(url, {"delay": 0})
        queue = lake.create_queue("old")
        for number in range(19):
            lake.create_queue(f"other-{number}")
        for _ in range(bench.sizes.requests_rounds):
            queue.send(BODY)
            queue.delete(queue.receive()[0].receipt_handle)
        for what, arguments, bound in ("a queue", ["old"], COUNTS), ("20 queues", [], None):
            times = []
            for _ in bench.track(range(bench.sizes.cli_rounds), f"counts of {what}"):
                _ask(url, {"delay": DELAY})
                command = [
                    sys.executable,
                    "-c",
                    "from lakequeue.cli import main; main()",
                    "--root",
                    root,
                    "counts",
                ]
                began = perf_counter()
                subprocess.run([*command, *arguments], stdout=subprocess.DEVNULL, check=True)
                times.append(perf_counter() - began)
            name = f"object store, 20 ms: lakequeue counts of {what}, whole process"
            yield Figure(name, median(times), None, bound, f"{sum(_ask(url).values())} requests")


@contextmanager
def _object_store() -> Iterator[tuple[str, dict[str, str]]]:
    """Runs an object store in a process; yields its URL and the environment for clients."""
    from benchmarks import object_store  # needs moto

    program = Path(__file__).with_name("memory_store.py")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{_line(process).strip()}"
        yield url, object_store.environment(url)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _ask(url: str, settings: Mapping[str, object] | None = None) -> dict[str, int]:
    """Requests by kind since the last change of settings."""
    data = None if settings is None else json.dumps(settings).encode()
    with urllib.request.urlopen(f"{url}/__control__", data) as answer:
        counted: dict[str, int] = json.loads(answer.read())
        return counted


def _work(queue: Queue, seconds: float, threads: int) -> tuple[int, float]:
    """Number of operations of the threads, and the seconds taken."""
    done, end = [0] * threads, perf_counter() + seconds

    def run(number: int) -> None:
        while perf_counter() < end:
            queue.send(BODY)
            messages = queue.receive()
            for message in messages:
                queue.delete(message.receipt_handle)
            done[number] += 2 + len(messages)

    began = perf_counter()
    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done), perf_counter() - began


def main(root: str, name: str, threads: str) -> None:
    queue = LakeQueue(root, engine="point").queue(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_work(queue, float(line), int(threads))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
