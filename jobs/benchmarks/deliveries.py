"""Deliveries into a table, against a loop that appends and deletes, and against MERGE, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.harness import BODY, Bench, Figure, seconds_of
from lakequeue import Consumer, LakeQueue, Message, Queue, SendEntry

BATCH = 1_000
WRITTEN = 1_000_000
"""Rows of a record batch of a table that is made."""
TABLES = 1, 10, 100
"""Rows in the table of a delivery, in multiples of ``Sizes.stored``."""
LARGEST_MERGE = 10
SCHEMA = pa.schema([("id", pa.int64()), ("body", pa.string())])


def deliveries(bench: Bench) -> Iterator[Figure]:
    """A consumer that delivers batches, beside a plain loop; a delivery and a MERGE by the table's size."""
    with bench.scratch() as scratch:
        yield from _consumer(bench, scratch)
    with bench.scratch() as scratch:
        yield from _sizes(bench, scratch)


def _consumer(bench: Bench, scratch: str) -> Iterator[Figure]:
    lake, messages = LakeQueue(f"{scratch}/root"), bench.sizes.delivered
    delivering = lake.create_queue("delivering", table=f"{scratch}/delivered", visibility_timeout=600)
    plain = lake.create_queue("plain", visibility_timeout=600)

    def deliver() -> None:
        consumer = Consumer(delivering, _handle, batch=BATCH)
        consumer.run(until_empty=True)
        assert consumer.handled == messages

    def loop() -> None:
        while received := plain.receive(BATCH):
            write_deltalake(f"{scratch}/looped", pa.Table.from_pylist(_rows(received), SCHEMA), mode="append")
            plain.delete_batch(received).raise_for_failures()

    sides: tuple[tuple[Queue, Callable[[], None]], ...] = ((delivering, deliver), (plain, loop))
    times: list[list[tuple[float, float]]] = [[], []]
    for turn in bench.track(range(bench.sizes.consumer_rounds), "deliveries of a consumer"):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            queue, action = sides[side]
            for begin in range(0, messages, 10_000):
                queue.send_batch([SendEntry(BODY)] * min(10_000, messages - begin)).raise_for_failures()
            busy = time.process_time()
            times[side].append((seconds_of(action), time.process_time() - busy))
    for number, unit in enumerate(("time", "CPU time")):
        ours, bare = (median(each[number] for each in side) for side in times)
        yield Figure(
            f"{messages:,} messages delivered by a consumer / receive, append, delete: {unit}", ours, bare, 1.1
        )


def _handle(messages: Sequence[Message], contexts: Sequence[Any]) -> list[dict[str, Any]]:
    return _rows(messages)


def _rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"id": number, "body": message.body} for number, message in enumerate(messages)]


def _sizes(bench: Bench, scratch: str) -> Iterator[Figure]:
    lake, stored = LakeQueue(f"{scratch}/root"), bench.sizes.stored
    queues: list[Queue] = []
    for factor in TABLES:
        bench.say(f"making a table of {factor * stored:,} rows")
        write_deltalake(f"{scratch}/{factor}", pa.RecordBatchReader.from_batches(SCHEMA, _stored(factor * stored)))
        queues.append(lake.create_queue(f"{factor}", table=f"{scratch}/{factor}", visibility_timeout=600))
    taken: dict[str, list[float]] = {}
    for turn in bench.track(range(bench.sizes.lease_rounds), "deliveries into large tables"):
        for queue in queues[:: 1 if turn % 2 == 0 else -1]:
            queue.send_batch([SendEntry(BODY)] * BATCH).raise_for_failures()
            lease = queue.lease(BATCH)
            assert lease is not None
            rows = pa.table({"id": _ids(-BATCH, 0), "body": pa.array([BODY] * BATCH)})
            taken.setdefault(queue.name, []).append(seconds_of(lambda lease=lease, rows=rows: lease.append(rows)))
    least = median(taken[f"{TABLES[0]}"])
    for factor in TABLES:
        bare, bound = (None, None) if factor == TABLES[0] else (least, 1.3)
        against = "" if bare is None else f" / into {stored:,}"
        name = f"delivery of {BATCH:,} rows into a table of {factor * stored:,}{against}"
        yield Figure(name, median(taken[f"{factor}"]), bare, bound)
    for factor in TABLES:
        if factor <= LARGEST_MERGE:
            merged = [_merge(f"{scratch}/{factor}") for _ in range(bench.sizes.consumer_rounds)]
            yield Figure(f"MERGE of {BATCH:,} rows by id into a table of {factor * stored:,}", median(merged))


def _merge(path: str) -> float:
    """Merges rows of which half are new, and returns how many seconds it took."""
    table = DeltaTable(path)
    rows = pa.table({"id": _ids(-BATCH // 2, BATCH // 2), "body": pa.array([BODY] * BATCH)})
    merger = table.merge(rows, "old.id = new.id", "new", "old", streamed_exec=False).when_not_matched_insert_all()
    return seconds_of(merger.execute)


def _stored(rows: int) -> Iterator[pa.RecordBatch]:
    for begin in range(0, rows, WRITTEN):
        ids = _ids(begin, min(begin + WRITTEN, rows))
        yield pa.record_batch({"id": ids, "body": pa.nulls(len(ids), pa.string())})


def _ids(first: int, end: int) -> pa.Array:
    """Returns ids that no statistics of a file narrow down, as random ids."""
    return pa.array(np.arange(first, end, dtype=np.int64) * np.int64(-7046029254386353131))
