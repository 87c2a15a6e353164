"""Rows of an object store of your own: single requests, races to create an object, calls, and their price."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import attrs

from benchmarks.harness import BODY, Action, Bench, Figure
from benchmarks.store import dollars
from lakequeue import LakeQueue, SendEntry
from lakequeue.entry_verbs import store_requests
from lakequeue.storage.folder import Folder
from lakequeue.storage.stores import Store

RACERS = 8
BATCH = 10
SIZE = 1024
"""Bytes of an object."""
IN_REQUESTS = 4
"""Most time of a call, in requests that create an object: two of these one after another, and often a read."""
JUDGED = 0.005
"""Least seconds of a request for this bound. On a faster store, the CPU of a call counts more."""


def bucket(bench: Bench) -> Iterator[Figure]:
    """Latency of single requests, races to create an object, and latency, requests and price of calls."""
    assert bench.store is not None
    single = list(_requests(bench, Store(bench.store).folder(f"{bench.store}/objects")))
    yield from single
    yield _races(bench, bench.store)
    yield from _calls(bench, f"{bench.store}/queues", single[0].measured)


def _requests(bench: Bench, folder: Folder) -> Iterator[Figure]:
    data, names = b"x" * SIZE, [f"{number:05}" for number in range(bench.sizes.point_rounds)]
    requests: Mapping[str, Callable[[str], object]] = {
        "create an object": lambda name: folder.create(name, data),
        "read it": folder.read,
        "ask for its size": folder.entry,
        "list an object": lambda name: list(folder.files(after=names[-2])),
        "delete it": folder.discard,
    }
    for what, request in requests.items():
        yield _latency(bench, f"one request: {what}", [lambda name=name: request(name) for name in names])  # noqa: B023


def _races(bench: Bench, above: str) -> Figure:
    """Lets threads with connections of their own create the same object at once.

    Raises:
        RuntimeError: several threads created an object, or it holds what another thread wrote.
    """
    folders, barrier = [Store(above).folder(f"{above}/races") for _ in range(RACERS)], threading.Barrier(RACERS)

    def create(racer: int, name: str) -> bool:
        barrier.wait()
        return folders[racer].create(name, f"{racer}".encode()) is not None

    once = 0
    with ThreadPoolExecutor(RACERS) as pool:
        for number in bench.track(range(bench.sizes.races), "races"):
            made = list(pool.map(create, range(RACERS), [f"{number:05}"] * RACERS))
            winners, kept = [f"{racer}" for racer in range(RACERS) if made[racer]], folders[0].read(f"{number:05}")
            # A winner whose answer was lost repeats the request, and finds its own object.
            if len(winners) > 1 or (winners and kept != winners[0].encode()):
                raise RuntimeError(
                    f"{len(winners)} of {RACERS} threads created the same object, which holds {kept!r}: this "
                    "store loses commits, so do not use it"
                )
            once += len(winners)
    name, races = f"{RACERS} threads create the same object: exactly one did", number + 1
    return Figure(name, once, bound=races, unit=f"of {races} races")


def _calls(bench: Bench, root: str, request: float) -> Iterator[Figure]:
    """``request``: the median seconds in which the store creates an object."""
    lake = LakeQueue(root, engine="point")
    queue = lake.create_queue("orders")
    received, bound = list[Any](), IN_REQUESTS if request >= JUDGED else None
    for batch, rounds in (1, bench.sizes.point_rounds), (BATCH, bench.sizes.point_rounds // 3 or 1):
        entries, what = [SendEntry(BODY)] * batch, "one message" if batch == 1 else f"a batch of {batch}"
        verbs: Mapping[str, Action] = {
            "send": lambda entries=entries: queue.send_batch(entries),  # type: ignore[misc]
            "receive": lambda batch=batch: received.append(queue.receive(batch)),  # type: ignore[misc]
            "delete": lambda: queue.delete_batch(received.pop()),
        }
        before = store_requests(lake)
        times: dict[str, list[float]] = {verb: [] for verb in verbs}
        for _ in bench.track(range(rounds), f"calls with {what}"):
            for verb, call in verbs.items():
                began = perf_counter()
                call()
                times[verb].append(perf_counter() - began)
        after = store_requests(lake)
        made = {kind: (after[kind] - before.get(kind, 0)) / rounds / batch for kind in sorted(after)}
        for verb, took in times.items():
            name = f"{verb}, {what} / one request that creates an object"
            yield attrs.evolve(_figure(name, took), bare=request, bound=bound)
        requests = ", ".join(f"{each:.2f} {kind}" for kind, each in made.items() if each)
        name = f"a million messages sent, received and deleted, {what} a call"
        yield Figure(name, dollars(made), None, None, f"at prices of S3; {requests} for each message", "dollars")


def _latency(bench: Bench, name: str, calls: list[Action]) -> Figure:
    times = []
    for call in bench.track(calls, name):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return _figure(name, times)


def _figure(name: str, times: list[float]) -> Figure:
    times = sorted(times)
    half, most = times[len(times) // 2], times[len(times) * 99 // 100]
    return Figure(name, half, remark=f"median of {len(times)}; 99th percentile {most * 1e3:.1f} ms")
