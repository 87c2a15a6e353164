"""Rows of consumers: messages per second of one or several processes that empty a queue.

``python -m benchmarks.consumers ROOT QUEUE SECONDS LOOPS LASTS`` is one of the processes. It prints when it is
ready, waits for a line of its input, and consumes by a ``Consumer`` or plain loops until the queue is empty, or
for a while.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any
from uuid import uuid4

import pyarrow as pa

from benchmarks.harness import BODY, Bench, Figure, go, started
from benchmarks.store import DELAY, ON_STORE, ask, dollars, line, opened, places, running_store, within
from lakequeue import Consumer, Context, LakeQueue, Message, Queue

PROCESSES = 4
CONCURRENCY = 8
BATCH = 10
"""Messages that a plain loop receives and deletes at a time."""
QUICK, SLOW = 0.02, 0.2
"""Seconds that a handler takes."""

Handled = tuple[int, float, float]
"""Number of messages, and when the first and the last were handled."""


def consumers(bench: Bench) -> Iterator[Figure]:
    """Messages per second, from the first to the last handled; bare: one process on one shard."""
    many, few = bench.sizes.consumed, bench.sizes.slowly_consumed
    most = min(PROCESSES, bench.sizes.processes)
    with bench.scratch() as scratch:
        plain = {"loops": (1, 1, 0, True)}
        counts = [count for count in (1, 2, 4, 8) if count <= bench.sizes.processes]
        several = {f"{count} processes on 1 shard": (count, 1, 0, False) for count in counts}
        sharded = {f"{most} processes on {most} shards": (most, most, 0, False)}
        done = _rounds(bench, f"{scratch}/queues", {}, plain | several | sharded, many)
        rate = _rates(done)
        one, loops = "1 processes on 1 shard", f"loops of receive({BATCH}) in {CONCURRENCY} threads"
        yield Figure(f"consumer, 1 process / {loops}", rate[one], rate["loops"], 1, unit="/s")
        for name in [*several, *sharded]:
            if name != one:
                bound = 1.3 if name in sharded else 1
                yield Figure(f"consumers: {name} / 1 on 1", rate[name], rate[one], bound, unit="/s")
        shares = [[each[0] for each in handled] for handled in done[f"{most} processes on 1 shard"]]
        name = f"consumers: {most} processes on 1 shard, messages of the least served / their mean"
        yield Figure(name, median(map(min, shares)), median(map(mean, shares)), 0.7, unit="/s")
        busy = {str(count): (count, 1, QUICK, False) for count in (1, most)}
        rate = _rates(_rounds(bench, f"{scratch}/busy", {}, busy, few * most))
        name = f"consumers, handlers of 20 ms: {most} processes on 1 shard / 1"
        yield Figure(name, rate[str(most)], rate["1"], 3.5, unit="/s")
        yield _idle(bench, f"{scratch}/idle", few)
    with running_store() as (url, environment):
        ask(url, {"delay": DELAY})
        sets = {"1": (1, 1, 0, False), "one": (most, 1, 0, False), "own": (most, most, 0, False)}
        rate = _rates(_rounds(bench, f"s3://lake/{uuid4().hex}", environment, sets, many))
        where = f"consumers, object store, 20 ms: {most} processes on"
        yield Figure(f"{where} 1 shard / 1", rate["one"], rate["1"], 1.5, unit="/s")
        yield Figure(f"{where} {most} shards / 1 on 1", rate["own"], rate["1"], 3, unit="/s")


FLEETS: Mapping[str, Sequence[tuple[int, int, float, float]]] = {
    "a disk": [(4, 1, 0.02, 0.95), (1, 1, 0.005, 0.8), (24, 1, 0.1, 0.9)],
    ON_STORE: [
        *((2, 1, 0.1, 0.95), (1, 1, 0.1, 0.95), (4, 1, 0.1, 0.95), (8, 1, 0.1, 0.9)),
        *((8, 1, 1, 0.95), (8, 8, 0.1, 0.95), (24, 24, 0.1, 0.85)),
    ],
}
"""Processes, shards, seconds of a handler, and the least share of the handlers' ideal rate."""


def fleet(bench: Bench) -> Iterator[Figure]:
    """Messages per second of consumers as they are deployed; bare: the ideal rate of their handlers.

    They begin together, with a dead-letter queue and a backlog that lasts to the end. The middle of the run is
    measured. On an object store also measures the requests for a message.
    """
    for place, rows in places(bench, FLEETS).items():
        with opened(bench, place) as (new_root, url, environment):
            for count, shards, seconds, bound in bench.track(rows[: bench.sizes.fleets], f"fleets on {place}"):
                root, count = new_root(), min(count, bench.sizes.processes)
                ideal, lasts = count * CONCURRENCY / seconds, bench.sizes.fleet_seconds + 8 * seconds
                with within(environment):
                    lake = LakeQueue(root, engine="point")
                    lake.create_queue("dead")
                    attributes = {"shards": shards, "dead_letter_queue": "dead", "max_receive_count": 5}
                    queue = lake.create_queue("fleet", **attributes)  # type: ignore[arg-type]
                    queue.send_arrow(pa.table({"body": [BODY] * int(ideal * (lasts + 10))}))
                if url is not None:
                    ask(url, {"delay": DELAY})
                seen = _emptied(["fleet"] * count, root, environment, seconds, False, lasts=lasts)
                instants = sorted(each for handled in seen for each in handled)  # type: ignore[var-annotated]
                begin, end = instants[0] + 0.3 * lasts, instants[0] + 0.95 * lasts
                rate = sum(begin <= each < end for each in instants) / (end - begin)
                name = (
                    f"fleet on {place}: {count} x {CONCURRENCY} handlers of {seconds * 1e3:g} ms, {shards} shards"
                )
                told = ""
                if url is not None:
                    each = {kind: count / len(instants) for kind, count in ask(url).items()}
                    told = f"{sum(each.values()):.2f} requests a message, ${dollars(each):.2f} a million"
                    ask(url, {"delay": 0})
                yield Figure(f"{name} / what they could do", rate, ideal, bound, told, unit="/s")


def _rounds(
    bench: Bench,
    root: str,
    environment: Mapping[str, str],
    sets: Mapping[str, tuple[int, int, float, bool]],
    messages: int,
) -> dict[str, list[list[Handled]]]:
    """Returns all results by set and round. A set is processes, shards, handler seconds, and plain loops."""
    seen: dict[str, list[list[Handled]]] = {name: [] for name in sets}
    for turn in bench.track(range(bench.sizes.consumer_rounds), "consumers"):
        for name in sorted(sets, reverse=turn % 2 == 1):
            count, shards, seconds, loops = sets[name]
            with within(environment):
                queue = _filled(root, shards, messages)
            seen[name].append(_emptied([queue.name] * count, root, environment, seconds, loops))
    return seen


def _idle(bench: Bench, root: str, messages: int) -> Figure:
    """The share of messages with slow handlers for a process that starts a second later."""
    shares = []
    for _ in bench.track(range(bench.sizes.consumer_rounds), "an idle process"):
        queue = _filled(root, 1, messages)
        _, late = _emptied([queue.name] * 2, root, {}, SLOW, False, pause=1)
        shares.append(late[0])
    name = f"consumers, handlers of 200 ms: messages of a process that was idle / all {messages:,}"
    return Figure(name, median(shares), messages, 0.4, unit="/s")


def _filled(root: str, shards: int, messages: int) -> Queue:
    queue = LakeQueue(root, engine="point").create_queue(uuid4().hex, shards=shards)
    queue.send_arrow(pa.table({"body": [BODY] * messages}))
    return queue


def _rates(rounds: Mapping[str, Sequence[Sequence[Handled]]]) -> dict[str, float]:
    return {name: median(map(_rate, done)) for name, done in rounds.items()}


def _rate(done: Sequence[Handled]) -> float:
    busy = [each for each in done if each[0]]
    return sum(each[0] for each in busy) / (max(each[2] for each in busy) - min(each[1] for each in busy))


def _emptied(
    names: Sequence[str],
    root: str,
    environment: Mapping[str, str],
    seconds: float,
    loops: bool,
    pause: float = 0,
    lasts: float = 0,
) -> list[Any]:
    """Returns each process's result, with ``lasts`` its messages' times. ``pause`` is seconds between starts."""
    with ExitStack() as stack:
        arguments = [str(seconds), str(int(loops)), str(lasts)]
        processes = [
            stack.enter_context(started(Path(__file__), [root, name, *arguments], environment)) for name in names
        ]
        for process in processes:
            go(process)
            time.sleep(pause)
        return [tuple(json.loads(line(process))) for process in processes]


def main(root: str, name: str, seconds: str, loops: str, lasts: str) -> None:
    lake = LakeQueue(root, engine="point")
    queue, other = lake.queue(name), lake.create_queue(uuid4().hex)
    # The first use of Arrow imports pandas if it is installed, which takes as long as 5,000 messages.
    other.send(BODY)
    other.delete_batch(other.receive())
    instants: list[float] = []

    def handle(message: Message, context: Context | None = None) -> None:
        if float(seconds):
            time.sleep(float(seconds))
        instants.append(time.monotonic())  # All processes of a machine have the same clock.

    def loop() -> None:
        while messages := queue.receive(BATCH, wait_time=0):
            for message in messages:
                handle(message)
            queue.delete_batch(messages)

    print("ready", flush=True)
    sys.stdin.readline()
    if int(loops):
        threads = [threading.Thread(target=loop) for _ in range(CONCURRENCY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif float(lasts):
        consumer = Consumer(queue, handle, CONCURRENCY)
        threading.Timer(float(lasts), consumer.stop).start()
        consumer.run()
        print(json.dumps(instants), flush=True)
        return
    else:
        Consumer(queue, handle, CONCURRENCY, wait_time=0).run(until_empty=True)
    print(json.dumps([len(instants), min(instants, default=0), max(instants, default=0)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
