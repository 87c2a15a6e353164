"""Rows of FIFO queues: many concurrent callers, and other groups next to one with a long backlog."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.harness import BODY, LONG, Action, Bench, Figure, call_rates, seconds_of
from lakequeue import LakeQueue, Message, Queue, SendEntry

_STEP = 10_000


def fifo(bench: Bench) -> Iterator[Figure]:
    """Calls per second of many threads on one shard. Each call has its own message group."""
    with bench.scratch() as scratch, ThreadPoolExecutor(bench.sizes.threads) as pool:
        queue = _queue(scratch, "busy.fifo")
        yield from call_rates(pool, bench.sizes, queue, "FIFO: ", _sender(queue), least=300)


def tenants(bench: Bench) -> Iterator[Figure]:
    """receive(10) of other groups in a queue where one group has a backlog; bare: in an empty queue."""
    backlog, rounds = bench.sizes.few, bench.sizes.receive_rounds
    with bench.scratch() as scratch:
        hot, empty = _queue(scratch, "hot.fifo"), _queue(scratch, "empty.fifo")
        for start in bench.track(range(0, backlog, _STEP), "a long backlog of one group"):
            entries = [_entry("hot", start + index) for index in range(min(_STEP, backlog - start))]
            hot.send_batch(entries)
        numbers = itertools.count()

        def receive(queue: Queue) -> Action:
            received = _handles(queue.receive(10, LONG))

            def prepare() -> None:
                number = next(numbers)
                queue.delete_batch(received)
                queue.send_batch([_entry(f"group {number}-{index}", number) for index in range(10)])

            return prepare

        for queue in hot, empty:
            queue.send_batch([_entry(f"first {index}", index) for index in range(10)])
        [blocking] = hot.receive(1, LONG)
        sides = (lambda: receive(hot)), (lambda: receive(empty))
        [blocked] = bench.alternate("receive(10) beside a blocked group", rounds, sides)
        hot.delete(blocking.receipt_handle)
        [served] = bench.alternate("receive(10) beside a served group", rounds, sides)
        spent = seconds_of(lambda: [_serve(hot) for _ in bench.track(range(rounds), "a hot group alone")])
    what = "receive(10), {} group of {:,} / empty queue"
    yield Figure(what.format("beside a blocked", backlog), *blocked, bound=1.3)
    yield Figure(what.format("sharing with a hot", backlog), *served, bound=1.3)
    yield Figure(
        "messages of one hot group, receive(10) + delete in turn", 10 * rounds / spent, None, None, "", "/s"
    )


def _serve(queue: Queue) -> None:
    queue.delete_batch(_handles(queue.receive(10, LONG)))


def _queue(scratch: str, name: str) -> Queue:
    return LakeQueue(f"{scratch}/queues", engine="point").create_queue(name, fifo=True)


def _entry(group: str, number: int) -> SendEntry:
    return SendEntry(BODY, group_id=group.replace(" ", "-"), dedup_id=f"{group}-{number}".replace(" ", "-"))


def _handles(messages: list[Message]) -> list[str]:
    return [message.receipt_handle for message in messages]


def _sender(queue: Queue) -> Any:
    calls = itertools.count()

    def send(batch: int) -> Any:
        group = f"g{next(calls)}"
        if batch == 1:
            return queue.send(BODY, group_id=group, dedup_id=group)
        return queue.send_batch([_entry(group, index) for index in range(batch)])

    return send
