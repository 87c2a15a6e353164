"""Rows of Spark's data source ``lakequeue``, compared with functions that need a session in the driver."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.harness import LONG, Bench, Figure, seconds_of
from lakequeue import LakeQueue
from lakequeue.spark import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def source(bench: Bench) -> Iterator[Figure]:
    """Writes and streams rows of 1 KiB by the data source; bare: send_dataframe, and the lease's DataFrame."""
    rows = bench.sizes.bulk_rows
    register(bench.spark)
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)
        numbers = itertools.count()
        writes: list[tuple[float, float]] = []
        reads: list[tuple[float, float]] = []
        streams: list[tuple[float, float]] = []

        def turn(df: DataFrame, rows: int) -> None:
            """Writes in both ways, and reads the results in both ways. The order alternates."""
            number = next(numbers)
            sides = [_through_source, _through_frames] if number % 2 else [_through_frames, _through_source]
            times = {side: side(bench, lake, f"{scratch}/checkpoint", df, rows, number) for side in sides}
            (write, read, stream), (send, frame, lease) = times[_through_source], times[_through_frames]
            bench.say(
                f"write {write:.2f} s, send_dataframe {send:.2f} s; read {read:.2f} s, lease's {frame:.2f} s"
            )
            writes.append((write, send))
            reads.append((read, frame))
            streams.append((stream, lease))

        warm = bench.input(min(rows, 20_000))
        for _ in range(2):
            turn(warm, min(rows, 20_000))
        for measured in writes, reads, streams:
            measured.clear()
        df = bench.input(rows)
        for _ in bench.track(range(bench.sizes.bulk_rounds), "data source"):
            turn(df, rows)
    yield Figure(f"{rows:,} x 1 KiB written by the data source / send_dataframe", *_medians(writes), bound=1.5)
    yield Figure(f"{rows:,} x 1 KiB read in its micro-batch / the lease's DataFrame", *_medians(reads), bound=1.3)
    yield Figure("the same with lease and deletion, from the stream's start to its end", *_medians(streams))


def _through_source(
    bench: Bench, lake: LakeQueue, checkpoint: str, df: DataFrame, rows: int, number: int
) -> tuple[float, float, float]:
    queue = lake.create_queue(f"source-{number}")
    here = {"root": lake.root, "queue": queue.name}
    writing = seconds_of(lambda: df.write.format("lakequeue").options(**here).mode("append").save())

    reading = 0.0

    def read(messages: DataFrame, batch: int) -> None:
        nonlocal reading
        reading += seconds_of(lambda: _length(messages))

    # Spark prunes the columns of the lease's DataFrame, but not of a Python data source.
    options = here | {"maxMessages": str(rows), "visibilityTimeout": str(LONG)}
    stream = (
        bench.spark.readStream.format("lakequeue")
        .options(**options)
        .schema("body string")
        .load()
        .writeStream.foreachBatch(read)
    )
    stream = stream.option("checkpointLocation", f"{checkpoint}-{number}").trigger(availableNow=True)
    streaming = seconds_of(lambda: stream.start().awaitTermination())
    assert queue.counts().visible == queue.counts().in_flight == 0
    shutil.rmtree(f"{lake.root}/q/{queue.key}")
    return writing, reading, streaming


def _through_frames(
    bench: Bench, lake: LakeQueue, checkpoint: str, df: DataFrame, rows: int, number: int
) -> tuple[float, float, float]:
    queue = lake.create_queue(f"frames-{number}")
    sending = seconds_of(lambda: queue.send_dataframe(df))

    reading = 0.0

    def consume() -> None:
        nonlocal reading
        lease = queue.lease(rows, LONG)
        assert lease is not None
        reading = seconds_of(lambda: _length(lease.messages))
        lease.delete()

    leasing = seconds_of(consume)
    shutil.rmtree(f"{lake.root}/q/{queue.key}")
    return sending, reading, leasing


def _length(messages: DataFrame) -> None:
    assert messages.selectExpr("sum(length(body)) AS n").collect()[0].n


def _medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    from statistics import median

    ours, theirs = zip(*times, strict=True)
    return median(ours), median(theirs)
