"""Rows of DataFrames: bulk sends, leases, and small calls at the same time."""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import arrow, arrow_rows
from benchmarks.flow import Flow
from benchmarks.harness import LONG, Action, Bench, Figure, seconds_of
from lakequeue import LakeQueue, Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def bulk(bench: Bench) -> Iterator[Figure]:
    """Sends, leases, reads and deletes rows of 1 KiB; bare: appends them to Delta and reads them."""
    rows = bench.sizes.bulk_rows
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)

        numbers = itertools.count()

        def ours(df: DataFrame, rows: int) -> Action:
            queue = lake.create_queue(f"bulk-{next(numbers)}")
            sending = seconds_of(lambda: queue.send_dataframe(df))
            lease = queue.lease(rows, LONG)
            assert lease is not None
            reading = seconds_of(lambda: _length(lease.messages, rows))
            lease.delete()
            bench.say(f"bulk send {sending:.2f} s, read {reading:.2f} s")
            return lambda: shutil.rmtree(f"{lake.root}/q/{queue.key}")

        def bare(df: DataFrame, rows: int) -> Action:
            path = f"{scratch}/bare-{next(numbers)}"
            writing = seconds_of(lambda: df.write.format("delta").mode("append").save(path))
            reading = seconds_of(lambda: _length(bench.spark.read.format("delta").load(path), rows))
            bench.say(f"bare append {writing:.2f} s, read {reading:.2f} s")
            return lambda: shutil.rmtree(path)

        warm_rows = min(rows, 20_000)
        warm, df = bench.input(warm_rows), bench.input(rows)
        bench.alternate(
            "warming up",
            bench.sizes.warm_rounds,
            (lambda: ours(warm, warm_rows), lambda: bare(warm, warm_rows)),
        )
        times = bench.alternate("bulk", bench.sizes.bulk_rounds, (lambda: ours(df, rows), lambda: bare(df, rows)))
    yield Figure(
        f"{rows:,} messages of 1 KiB through Spark / Delta append and read",
        *times[0],
        bound=1.3,
        remark="(target 1.1x)",
    )


def without_spark(bench: Bench) -> Iterator[Figure]:
    """Like ``bulk``, by ``send_arrow`` and ``Lease.batches`` in a process; bare: by delta-rs and Arrow."""
    rows = bench.sizes.bulk_rows
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    peaks: dict[str, list[float]] = {"ours": [], "bare": []}
    with bench.scratch() as scratch:
        arrow_rows.write_input(data := f"{scratch}/input.arrows", rows)
        for turn in bench.track(range(bench.sizes.warm_rounds + bench.sizes.bulk_rounds), "Arrow"):
            for side in ("ours", "bare") if turn % 2 == 0 else ("bare", "ours"):
                time, peak = arrow.measured(side, data, f"{scratch}/{side}", rows)
                bench.say(f"{side}: {time:.2f} s, {peak:.0f} MiB")
                if turn >= bench.sizes.warm_rounds:
                    seconds[side].append(time)
                    peaks[side].append(peak)
    name = f"{rows:,} messages of 1 KiB through Arrow / by delta-rs and Arrow"
    yield Figure(name, *map(median, seconds.values()), bound=1.3)
    yield Figure("memory of that process / of the other", *map(median, peaks.values()), bound=1, unit="MiB")


def backlog(bench: Bench) -> Iterator[Figure]:
    """receive(10) and lease with many messages waiting; bare: with few."""
    sizes = bench.sizes
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)
        queues = {"many": sizes.many, "few": sizes.few}
        for name, rows in queues.items():
            bench.say(f"sending {rows:,} of 100 bytes")
            lake.create_queue(name).send_dataframe(bench.bodies(rows, 100))
        sides = [lake.queue(name) for name in queues]

        def cold(name: str) -> Action:
            LakeQueue(f"{scratch}/queues", engine="point").queue(name).receive(10, LONG)
            return gc.collect  # Drops this process's caches of the queue.

        def lease(queue: Queue) -> Action:
            claimed = queue.lease(sizes.leased, LONG)
            assert claimed is not None and claimed.message_count == sizes.leased
            return claimed.release

        def read(queue: Queue) -> Action:
            claimed = queue.lease(sizes.leased, LONG)
            assert claimed is not None
            _length(claimed.messages, sizes.leased)
            return claimed.release

        many, few = (partial(queue.receive, 10, LONG) for queue in sides)
        received = bench.alternate("receive(10)", sizes.receive_rounds, (many, few))
        many, few = (partial(lease, queue) for queue in sides)
        leases = bench.alternate("lease", sizes.lease_rounds, (many, few))
        many, few = (partial(read, queue) for queue in sides)
        reads = bench.alternate("lease and read", sizes.read_rounds, (many, few))
        del lake, sides, many, few
        gc.collect()
        many, few = (partial(cold, name) for name in queues)
        first = bench.alternate("first receive(10)", sizes.cold_rounds, (many, few))
    waiting = f"{sizes.many:,} / {sizes.few:,} waiting"
    yield Figure(f"receive(10), {waiting}", *received[0], bound=1.3)
    yield Figure(f"lease({sizes.leased:,}), {waiting}", *leases[0], bound=1.3)
    yield Figure(f"the same and reading its bodies, {waiting}", *reads[0])
    yield Figure(f"opening and first receive(10), {waiting}", *first[0])


def mixed(bench: Bench) -> Iterator[Figure]:
    """A bulk send while another process makes small sends to the same queue; bare: each alone."""
    rows = bench.sizes.bulk_rows
    bulk_times: list[tuple[float, float]] = []
    flow_times: list[tuple[float, float]] = []
    df = bench.input(rows)
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)
        lake.create_queue("warm").send_dataframe(df)
        for turn in bench.track(range(bench.sizes.flow_rounds), "bulk and small sends"):
            alone, both = (lake.create_queue(f"{kind}-{turn}") for kind in ("alone", "both"))
            bulk_alone = seconds_of(partial(alone.send_dataframe, df))
            with Flow(lake.root, alone.name) as flow:
                threading.Event().wait(bulk_alone)
            with Flow(lake.root, both.name) as disturbed:
                bulk_both = seconds_of(partial(both.send_dataframe, df))
            bulk_times.append((bulk_both, bulk_alone))
            flow_times.append((median(disturbed.times), median(flow.times)))
            for queue in alone, both:
                shutil.rmtree(f"{lake.root}/q/{queue.key}")
    name = f"bulk send of {rows:,}, beside small sends / alone"
    yield Figure(name, *_medians(bulk_times), bound=1.5)
    yield Figure("one small send (p50), beside it / alone", *_medians(flow_times), bound=2)


def extend(bench: Bench) -> Iterator[Figure]:
    """Extends a large lease; bare: a lease of ten messages."""
    rows = bench.sizes.bulk_rows
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)
        large, small = lake.create_queue("large"), lake.create_queue("small")
        for queue in large, small:
            queue.send_dataframe(bench.bodies(rows, 100))
        million, ten = large.lease(rows, 300), small.lease(10, 300)
        assert million is not None and ten is not None
        times = bench.alternate(
            "extend",
            bench.sizes.extend_rounds,
            (lambda: million.extend(300).done, lambda: ten.extend(300).done),
        )
    yield Figure(f"extend a lease of {rows:,} / 10", *times[0], bound=2)


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    ours, bare = zip(*pairs, strict=True)
    return median(ours), median(bare)


def _length(messages: DataFrame, rows: int) -> None:
    from pyspark.sql import functions as f

    counted = messages.agg(f.count("*"), f.sum(f.length("body"))).head()
    assert counted is not None and counted[0] == rows, f"{counted} instead of {rows} messages"
