"""Rows of object stores: requests of single operations, and the command line with a delay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar
from uuid import uuid4

from benchmarks.arrow_rows import reader
from benchmarks.harness import BODY, LONG, Bench, Figure, seconds_of
from lakequeue import LakeQueue, Lease

ON_STORE = "an object store, 20 ms"
"""Place of rows on a store of this machine."""
DELAY = 0.02
"""Seconds by which the object store delays each request."""
FAR = 0.1
"""Seconds by which it delays each request in rows of S3 Standard."""
BODIES = 100, 1_024
"""Bytes of a body in rows of bulk sends."""
COUNTS = 2
"""Most seconds of ``lakequeue counts`` on the store."""
REQUESTS = {"send": 6, "receive": 12, "delete": 9, "empty receive": 2}
"""Most requests of each operation on an object store."""
CREATING = 12
"""Most requests to create a queue of one shard."""
COUNTING = 14
"""Most requests of a new process to count the messages of a young queue."""
PRICES = {"put": 5.0, "list": 5.0, "get": 0.4, "head": 0.4}
"""Dollars for a million requests: list prices of S3 Standard in us-east-1. Deletes are free."""
_Rows = TypeVar("_Rows")


def store(bench: Bench) -> Iterator[Figure]:
    """Requests of single operations and of creating queues, and the time of counts."""
    with running_store() as (url, variables):
        yield from _requests(bench, url, variables)
        yield from _creating(url, variables)
        yield from _counts(bench, url, variables)


def _requests(bench: Bench, url: str, variables: Mapping[str, str]) -> Iterator[Figure]:
    """Requests of single operations while the Delta log grows, across checkpoints."""
    with within(variables):
        queue = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point").create_queue("counted")
        seen: dict[str, list[int]] = {name: [] for name in REQUESTS}

        def count(name: str) -> None:
            seen[name].append(sum(ask(url).values()))
            ask(url, {})

        for _ in bench.track(range(bench.sizes.requests_rounds), "requests"):
            ask(url, {})
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


def _creating(url: str, variables: Mapping[str, str]) -> Iterator[Figure]:
    """Requests of creating a queue of one shard, in a root that has some."""
    with within(variables):
        lake = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point")
        made = []
        for number in range(20):
            ask(url, {})
            lake.create_queue(f"queue-{number}")
            made.append(sum(ask(url).values()))
    name = "object store: requests of creating a queue"
    yield Figure(name, median(made[1:]), None, CREATING, f"with the root {made[0]}", unit="requests")


def _counts(bench: Bench, url: str, variables: Mapping[str, str]) -> Iterator[Figure]:
    """Seconds of ``lakequeue counts`` as a whole process, for a queue with a long log, and for 20 queues."""
    root = f"s3://lake/{uuid4().hex}"
    with within(variables):
        lake = LakeQueue(root, engine="point")
        ask(url, {"delay": 0})
        queue = lake.create_queue("old")
        for number in range(19):
            lake.create_queue(f"other-{number}")
        for _ in range(bench.sizes.requests_rounds):
            queue.send(BODY)
            queue.delete(queue.receive()[0].receipt_handle)
        for what, arguments, bound in ("a queue", ["old"], COUNTS), ("20 queues", [], None):
            times = []
            for _ in bench.track(range(bench.sizes.cli_rounds), f"counts of {what}"):
                ask(url, {"delay": DELAY})
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
            yield Figure(name, median(times), None, bound, f"{sum(ask(url).values())} requests")


def bulk(bench: Bench) -> Iterator[Figure]:
    """Seconds in which a process sends many messages by ``send_arrow``, leases, reads and deletes them."""
    rows, leases = bench.sizes.bulk_rows, list[Lease]()
    for size, delay in product(BODIES, (DELAY, FAR) if bench.store is None else (None,)):
        with opened(bench, ON_STORE if delay else "your store") as (new_root, url, variables), within(variables):
            queue, data = LakeQueue(new_root(), engine="point").create_queue("bulk"), reader(rows, size)
            verbs: Mapping[str, Callable[[], object]] = {
                "send_arrow": lambda: queue.send_arrow(data),  # noqa: B023
                "lease": lambda: leases.append(queue.lease(rows, LONG)),  # type: ignore[arg-type]  # noqa: B023
                "lease.batches()": lambda: sum(map(len, leases[-1].batches())),
                "lease.delete()": lambda: leases[-1].delete(),
            }
            for verb, call in verbs.items():
                if url is not None:
                    ask(url, {"delay": delay})
                seconds, made = seconds_of(call), ask(url) if url is not None else {}
                place = "your store" if delay is None else f"an object store, {delay * 1e3:.0f} ms"
                name, said = f"{rows:,} messages of {size:,} bytes on {place}: {verb}", sorted(made.items())
                yield Figure(name, seconds, remark=", ".join(f"{number} {kind}" for kind, number in said))


@contextmanager
def running_store() -> Iterator[tuple[str, dict[str, str]]]:
    """Runs an object store in a process. Yields its URL and the environment for clients."""
    from benchmarks import object_store  # Needs moto.

    program = Path(__file__).with_name("memory_store.py")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{line(process).strip()}"
        yield url, object_store.environment(url)
    finally:
        process.kill()
        process.communicate()


def places(bench: Bench, rows: Mapping[str, _Rows]) -> Mapping[str, _Rows]:
    """Returns the rows of each place. With a bucket of the user's, these are the rows of the object store."""
    return rows if bench.store is None else {"your store": rows[ON_STORE]}


@contextmanager
def opened(bench: Bench, place: str) -> Iterator[tuple[Callable[[], str], str | None, dict[str, str]]]:
    """Opens a place of ``places``. Yields a function that names new roots, and as ``running_store``.

    Without a store of this machine, the URL is None and the environment is empty.
    """
    with ExitStack() as stack:
        url, environment, above = None, dict[str, str](), bench.store
        if place == ON_STORE:
            url, environment = stack.enter_context(running_store())
            above = "s3://lake"
        elif above is None:
            above = stack.enter_context(bench.scratch())
        yield lambda: f"{above}/{uuid4().hex}", url, environment


@contextmanager
def within(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def dollars(requests: Mapping[str, float]) -> float:
    """Returns the price of a million times these requests, given by kind."""
    return sum(PRICES.get(kind.lower(), 0) * each for kind, each in requests.items())


def ask(url: str, settings: Mapping[str, object] | None = None) -> dict[str, int]:
    """Returns the requests by kind since the last change of settings. Changes settings if given."""
    data = None if settings is None else json.dumps(settings).encode()
    with urllib.request.urlopen(f"{url}/__control__", data) as answer:
        counted: dict[str, int] = json.loads(answer.read())
        return counted


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
