"""Sizes, figures, and the measuring of ratios."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
from rich.progress import Progress

from lakequeue import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG = 12 * 3600
"""Visibility timeout in seconds of messages that must stay in flight."""
BODY = "x" * 100


@attrs.frozen
class Sizes:
    """Sizes of the measurements. ``rounds`` are measurements of each side of a ratio."""

    point_rounds: int = 300
    bulk_rows: int = 1_000_000
    warm_rounds: int = 2
    bulk_rounds: int = 3
    few: int = 200_000
    many: int = 10_000_000
    receive_rounds: int = 200
    cold_rounds: int = 20
    searched: int = 500_000
    search_rounds: int = 9
    leased: int = 100_000
    lease_rounds: int = 30
    read: int = 3_000_000
    read_rounds: int = 5
    runs: int = 120_000
    commits: int = 20_000
    window: int = 500
    threads: int = 256
    calls: int = 5_120
    flow_rounds: int = 3
    cli_rounds: int = 5
    extend_rounds: int = 50
    held: int = 1_000
    minutes: int = 60
    uses: int = 20
    margin_rounds: int = 20
    requests_rounds: int = 500
    soaked_first: int = 10_000
    soaked: int = 1_000_000
    consumed: int = 50_000
    slowly_consumed: int = 1_000
    delivered: int = 100_000
    stored: int = 1_000_000
    consumer_rounds: int = 3
    fleets: int = 7
    processes: int = 24
    fleet_seconds: int = 12
    tasks: int = 2_000
    queues: int = 3_000
    shards: int = 16
    races: int = 150

    def scaled(self, factor: float) -> Sizes:
        """Scales all sizes, for tests of the output."""
        return Sizes(**{name: max(1, round(value * factor)) for name, value in attrs.asdict(self).items()})


QUICK = Sizes(
    point_rounds=40,
    bulk_rows=100_000,
    warm_rounds=1,
    bulk_rounds=2,
    few=20_000,
    many=200_000,
    receive_rounds=30,
    cold_rounds=5,
    searched=50_000,
    search_rounds=3,
    leased=10_000,
    lease_rounds=12,
    read=100_000,
    read_rounds=1,
    runs=12_000,
    commits=600,
    window=90,
    calls=1_024,
    flow_rounds=1,
    extend_rounds=20,
    minutes=20,
    uses=5,
    margin_rounds=5,
    requests_rounds=20,
    soaked=40_000,
    consumed=4_000,
    slowly_consumed=200,
    delivered=4_000,
    stored=10_000,
    consumer_rounds=1,
    fleets=1,
    processes=8,
    fleet_seconds=3,
    tasks=300,
    queues=300,
)


@attrs.frozen
class Figure:
    """A row of the result, in seconds unless ``unit`` says otherwise."""

    name: str
    measured: float
    bare: float | None = None
    bound: float | None = None
    """Upper bound of the ratio, or of ``measured`` without a ratio. Lower bound for rates."""
    remark: str = ""
    unit: str = "s"

    @property
    def ratio(self) -> float | None:
        return None if self.bare is None else self.measured / self.bare

    def verdict(self, judged: bool) -> str:
        if self.bound is None:
            return "no bound"
        if not judged:
            return "not judged"
        value = self.measured if self.ratio is None else self.ratio
        if self.more_is_better:
            return "within" if value >= self.bound else "under"
        return "within" if value <= self.bound else "over"

    @property
    def more_is_better(self) -> bool:
        """True for rates and races. Times, bytes and requests are better if there are fewer."""
        return self.unit == "/s" or self.unit.startswith("of ")

    def cells(self, judged: bool) -> list[str]:
        scale, unit = (1000, "ms") if self.unit == "s" and self.measured < 1 else (1, self.unit)
        limit = "x" if self.bare is not None else "" if self.more_is_better else f" {self.unit}"
        least = "at least" if self.more_is_better else "at most"
        return [
            self.name,
            "a second" if unit == "/s" else unit,
            _number(self.measured * scale),
            "" if self.bare is None else _number(self.bare * scale),
            "" if self.ratio is None else f"{self.ratio:.2f}x",
            "" if self.bound is None else f"{least} {self.bound:,g}{limit}",
            self.verdict(judged),
            self.remark,
        ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == round(value) else f"{value:.3g}"


Action = Callable[[], object]


class Bench:
    """The environment of all rows: a working directory, sizes, a Spark session on demand, progress."""

    def __init__(self, directory: Path, sizes: Sizes, progress: Progress, store: str | None = None) -> None:
        """``store`` is the URI of an empty prefix in a bucket. Without it, all rows run on this machine."""
        self.directory = directory
        self.store = store
        self.sizes = sizes
        self._progress = progress

    @functools.cached_property
    def spark(self) -> SparkSession:
        from lakequeue.spark.session import build_session  # Most rows run without Spark.

        self.say("starting Spark")
        return build_session("lakequeue-benchmark")

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """Creates a temporary directory, so that the disk holds the tables of only one row at a time."""
        path = tempfile.mkdtemp(dir=self.directory)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def bodies(self, rows: int, size: int) -> DataFrame:
        """Creates rows with one column ``body``, of text that hardly compresses."""
        from pyspark.sql import functions as f

        spark = self.spark  # Functions of Spark need a session.
        parts = [f.sha2(f.concat_ws("/", "id", f.lit(part)), 512) for part in range(-(-size // 128))]
        return spark.range(rows).select(f.concat(*parts).substr(1, size).alias("body"))

    def input(self, rows: int) -> DataFrame:
        """Creates rows of 1 KiB as input of bulk sends and their bare side. Writes them once."""
        path = str(self.directory / f"input-{rows}")
        if not os.path.exists(path):
            self.say(f"making {rows:,} rows of 1 KiB")
            self.bodies(rows, 1024).write.parquet(path)
        return self.spark.read.parquet(path)

    def alternate(
        self,
        what: str,
        rounds: int,
        *pairs: tuple[Action, Action],
        clock: Callable[[], float] = perf_counter,
    ) -> list[tuple[float, float]]:
        """Measures both sides of pairs alternately. Returns medians in seconds. Calls returned callables after."""
        times: list[tuple[list[float], list[float]]] = [([], []) for _ in pairs]
        for turn in self.track(range(rounds), what):
            for pair, seconds in zip(pairs, times, strict=True):
                for side in (0, 1) if turn % 2 == 0 else (1, 0):
                    start = clock()
                    after = pair[side]()
                    seconds[side].append(clock() - start)
                    if callable(after):
                        after()
        return [(median(ours), median(bare)) for ours, bare in times]

    def track(self, steps: Sequence[Any], what: str) -> Iterator[Any]:
        task = self._progress.add_task(what, total=len(steps))
        for step in steps:
            yield step
            self._progress.advance(task)
        self._progress.remove_task(task)

    def say(self, text: str) -> None:
        self._progress.console.print(f"[dim]{text}", highlight=False, soft_wrap=True)


def call_rates(
    pool: ThreadPoolExecutor,
    sizes: Sizes,
    queue: Queue,
    kind: str,
    send: Callable[[int], Any],
    least: float | None,
) -> Iterator[Figure]:
    """Measures messages per second by verb, one and ten per call. ``send`` takes the number of messages."""

    def rate(action: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[float, list[Any]]:
        start = perf_counter()
        answers = list(pool.map(action, arguments))
        return len(arguments) / (perf_counter() - start), answers

    for batch in 1, 10:
        sent, _ = rate(lambda _, batch=batch: send(batch), range(sizes.calls))
        received, answers = rate(lambda _, batch=batch: queue.receive(batch, LONG), range(sizes.calls))
        handles = [[message.receipt_handle for message in messages] for messages in answers]
        assert sum(map(len, handles)) == sizes.calls * batch
        if batch == 1:
            deleted, _ = rate(lambda one: queue.delete(one[0]), handles)
        else:
            deleted, _ = rate(queue.delete_batch, handles)
        what = f"in batches of {batch}" if batch > 1 else "one by one"
        bound = None if least is None else least * batch
        for verb, each in ("sent", sent), ("received", received), ("deleted", deleted):
            name = f"{kind}messages {verb} {what}, {sizes.threads} threads"
            yield Figure(name, each * batch, None, bound, "", "/s")


def seconds_of(action: Action) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


@contextlib.contextmanager
def started(
    program: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Starts a process and yields it when it is ready. It waits for a line of its input."""
    paths = os.pathsep.join([str(program.parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        # Started as a module: a program would import the neighbouring profile.py instead of the standard
        # library's.
        [sys.executable, "-m", f"{program.parent.name}.{program.stem}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "PYTHONPATH": paths},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    """Sends the process the line that it waits for."""
    assert process.stdin is not None
    print("go", file=process.stdin, flush=True)
