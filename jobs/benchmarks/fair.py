"""Rows of fair queues: quiet tenants and a noisy one, many tenants, and the memory of the index of groups."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import count

import pyarrow as pa

from benchmarks.harness import BODY, LONG, Action, Bench, Figure
from lakequeue import LakeQueue, Queue, SendEntry

_QUIET = 100
_PER_ROUND = 5


def fair(bench: Bench) -> Iterator[Figure]:
    """Dwell times of 100 quiet tenants next to a long backlog; calls with groups; bare: without groups."""
    rows, rounds = bench.sizes.bulk_rows, bench.sizes.receive_rounds
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", engine="point")
        noisy = lake.create_queue("noisy")
        noisy.send_arrow(_rows(["noisy"] * rows))
        yield _dwell(bench, noisy, rounds)
        yield _memory(lake, rows)
        backlog = bench.sizes.few
        for groups in (_QUIET, 10_000):
            with_groups, without = lake.create_queue(f"with-{groups}"), lake.create_queue(f"without-{groups}")
            with_groups.send_arrow(_rows([f"tenant-{number % groups}" for number in range(backlog)]))
            without.send_arrow(_rows([None] * backlog))
            sides = (lambda q=with_groups: _receive(q)), (lambda q=without: _receive(q))
            [measured] = bench.alternate(f"receive(10) with {groups:,} groups", rounds, sides)
            yield Figure(f"receive(10), {groups:,} groups / without", *measured, bound=1.3)
        numbers = count()
        sides = (
            lambda: _send(with_groups, f"tenant-{next(numbers) % _QUIET}"),
            lambda: _send(without, None),
        )
        [sent] = bench.alternate("send_batch(10)", rounds, sides)
        yield Figure("send_batch(10), groups / without", *sent, bound=1.1)
        noisy.send("first", group_id="quiet")
        [measured] = bench.alternate(
            "a noisy group alone", rounds, [lambda: _round(noisy), lambda: _round(without)]
        )
        rates = [10 / seconds for seconds in measured]
        yield Figure("messages of a noisy group while others are quiet / without", *rates, bound=0.9, unit="/s")


def _dwell(bench: Bench, queue: Queue, rounds: int) -> Figure:
    """Rounds of a consumer from the send of a quiet message to its receive, at the 99th percentile."""
    sent: dict[str, int] = {}
    dwell: list[int] = []
    for turn in bench.track(range(rounds), "quiet tenants beside a noisy one"):
        entries = [
            SendEntry(f"{turn}-{place}", group_id=f"quiet-{(turn * _PER_ROUND + place) % _QUIET}")
            for place in range(_PER_ROUND)
        ]
        queue.send_batch(entries)
        sent |= {entry.body: turn for entry in entries}
        messages = queue.receive(10, LONG)
        dwell += [turn - sent[message.body] + 1 for message in messages if message.body in sent]
        queue.delete_batch([message.receipt_handle for message in messages])
    waiting = len(sent) - len(dwell)  # These count as received after the last round.
    dwell = sorted([*dwell, *[rounds] * waiting])
    return Figure(
        f"dwell of {_QUIET} quiet tenants beside {bench.sizes.bulk_rows:,} messages, p99 in rounds",
        dwell[len(dwell) * 99 // 100],
        None,
        bound=3,
        unit="rounds",
    )


def _memory(lake: LakeQueue, rows: int) -> Figure:
    """Memory kept by a first receive, for each message of the log."""
    queue = lake.create_queue("memory")
    queue.send_arrow(_rows([f"tenant-{number % _QUIET}" for number in range(rows)]))
    tracemalloc.start()
    try:
        queue.receive(10)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return Figure("memory of the index of groups, each message", kept / rows, None, bound=40, unit="bytes")


def _rows(groups: list[str] | list[None]) -> pa.Table:
    columns = {"body": [BODY] * len(groups), "group_id": pa.array(groups, pa.string())}
    return pa.table(columns)


def _receive(queue: Queue) -> Action:
    handles = [message.receipt_handle for message in queue.receive(10, LONG)]

    def prepare() -> None:
        queue.delete_batch(handles)

    return prepare


def _send(queue: Queue, group: str | None) -> Action:
    queue.send_batch([SendEntry(BODY, group_id=group) for _ in range(10)])
    return lambda: None


def _round(queue: Queue) -> Action:
    queue.delete_batch([message.receipt_handle for message in queue.receive(10, LONG)])
    return lambda: None
