"""Measures lakequeue against bare Delta, as ratios within one run.

    python jobs/benchmark.py [--quick] [--only point,cli] [--json]
    python jobs/benchmark.py --store s3://bucket/empty-prefix [--only bucket]
    spark-submit --properties-file conf/<where>.conf jobs/benchmark.py --quick

The two sides of a ratio alternate (A B, B A, A B …) and their medians are compared, so that noise of the machine
affects both. The full run takes most of an hour and 10 GB of disk.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any
from uuid import uuid4

import attrs
import typer
from benchmarks.harness import QUICK, Bench, Figure, Sizes
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lakequeue.errors import LakeQueueError
from lakequeue.storage.cleaning import VACUUMING
from lakequeue.storage.engines.commit_failures import is_storage_failure
from lakequeue.storage.roots import local_path, root_of
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

ROWS = {
    "point": "point.point",
    "commits": "point.commits",
    "durable": "durable.durable",
    "bulk": "bulk.bulk",
    "source": "source.source",
    "arrow": "bulk.without_spark",
    "backlog": "bulk.backlog",
    "in-flight": "point.in_flight",
    "age": "point.age",
    "search": "point.search",
    "concurrent": "most.concurrent",
    "fifo": "fifo.fifo",
    "tenants": "fifo.tenants",
    "fair": "fair.fair",
    "mixed": "bulk.mixed",
    "consumers": "consumers.consumers",
    "fleet": "consumers.fleet",
    "deliveries": "deliveries.deliveries",
    "trickle": "trickle.trickle",
    "producers": "producers.producers",
    "store": "store.store",
    "bulk-store": "store.bulk",
    "sql": "sql.sql",
    "queries": "sql.queries",
    "profile": "profile.profile",
    "cli": "point.cli",
    "extend": "bulk.extend",
    "heartbeat": "upkeep.heartbeat",
    "margin": "upkeep.margin",
    "memory": "upkeep.memory",
    "steady": "upkeep.steady",
    "queues": "upkeep.queues",
    "compact": "compaction.compact",
    "serve": "wire.serve",
    "celery": "celery_tasks.celery",
    "soak": "soak.soak",
    "sends": "most.sends",
    "bucket": "bucket.bucket",
}
"""The function of each row, as module and name. A module is imported when a row of it runs: some need an extra."""
COLUMNS = ("measured", "unit", "lakequeue", "other side", "ratio", "bound", "verdict", "remark")
LEGEND = (
    "In a row A / B, lakequeue does A. The other side B is the same work by other means, or lakequeue in another "
    "state; the ratio is A divided by B. Few ms, MiB and requests are good, and many a second. The bound is "
    "our own, of the ratio if there is one: within is good, over and under are not."
)
ASKED_ONLY = {"celery", "soak"}
"""Rows that run only if named: they take a quarter of an hour to an hour, less with ``--quick``."""
ON_YOUR_STORE = ["bucket", "bulk-store", "sends", "concurrent", "producers", "fleet"]
"""Rows that run with ``--store``. Only the bounds of ``bucket`` hold for any store, and are judged."""

WRITING = ("lakequeue-checkpoint", "lakequeue-merge", VACUUMING)
"""Names of threads that write to a queue after the call that started them."""
NARROW = 150
"""Width of a terminal below which a row has its comparison and its remark in a line below its name."""


def main(
    quick: Annotated[
        bool,
        typer.Option(help="Use smaller sizes, for about two minutes; judges bounds only with --store."),
    ] = False,
    root: Annotated[str | None, typer.Option(help="Local directory for temporary files.")] = None,
    only: Annotated[
        str | None, typer.Option(help=f"Rows to measure, separated by commas: {', '.join(ROWS)}.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="An empty prefix of a bucket of yours, such as s3://bucket/prefix. Runs only the rows "
            f"{', '.join(ON_YOUR_STORE)} there, and removes what they wrote."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
    scale: Annotated[float, typer.Option(hidden=True)] = 1.0,
) -> None:
    """Measures lakequeue against bare Delta and prints ratios."""
    rows = ON_YOUR_STORE if store else [name for name in ROWS if name != "bucket"]
    everything = rows if store else [name for name in rows if name not in ASKED_ONLY]
    names = [name.strip() for name in only.split(",")] if only else everything
    unknown = [name for name in names if name not in rows]
    if unknown:
        place = "with" if store else "without"
        raise typer.BadParameter(f"{place} --store there is no {', '.join(unknown)}; there are {', '.join(rows)}")
    sizes = (QUICK if quick else Sizes()).scaled(scale)
    errors = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    figures: list[Figure] = []
    failed: list[str] = []
    if store:  # else SIGTERM would leave objects behind
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if root:
        Path(root).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="lakequeue-benchmark-", dir=root) as directory,
        fresh_prefix(store) as prefix,
        Progress(*columns, console=errors, transient=True) as progress,
    ):
        bench = Bench(Path(directory), sizes, progress, prefix)
        for name in names:
            try:
                started = perf_counter()
                module, _, function = ROWS[name].partition(".")
                for figure in getattr(import_module(f"benchmarks.{module}"), function)(bench):
                    figures.append(attrs.evolve(figure, bound=None) if store and name != "bucket" else figure)
                bench.say(f"{name}: {perf_counter() - started:.0f} s")
            except Exception as error:
                failed.append(name)
                if _is_of_storage(error):
                    errors.print(f"{name}: {first_line(error)}", soft_wrap=True, markup=False)
                else:
                    errors.print_exception() if errors.is_terminal else errors.print(f"{name}: {error!r}")
    machine, judged = _machine(), store is not None or not quick
    if as_json:
        print(json.dumps({"machine": machine, "quick": quick} | _document(judged, figures, failed), indent=2))
    else:
        _print_table(machine, judged, figures, failed)
    if failed:
        raise typer.Exit(1)


@contextmanager
def fresh_prefix(uri: str | None) -> Iterator[str | None]:
    """Yields a new prefix below an empty one, without a URI None. Removes what was written there at the end."""
    if uri is None:
        yield None
        return
    if local_path(uri) is not None:
        raise typer.BadParameter(f"{uri} is a path; give a URI of a store, such as s3://bucket/prefix")
    try:
        uri = root_of(uri)
        folder, name = Store(uri).folder(uri), f"benchmark-{uuid4().hex}"
        found = next(iter(folder.files()), None)
    except Exception as error:
        if not _is_of_storage(error):
            raise
        print(f"Error: {uri}: {first_line(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    if found is not None:
        raise typer.BadParameter(f"{uri} holds {found.name}; give a prefix that holds nothing")
    print(f"writes below {uri}/{name}, and removes that at the end", file=sys.stderr)
    try:
        yield f"{uri}/{name}"
    finally:
        ignored = signal.SIGINT, signal.SIGTERM
        handlers = [signal.signal(number, signal.SIG_IGN) for number in ignored]
        print(f"removes what is below {uri}/{name}, and ignores Ctrl-C and SIGTERM meanwhile", file=sys.stderr)
        for thread in threading.enumerate():
            if thread.name in WRITING:
                thread.join()
        while left := list(folder.files(name)):
            folder.for_each(lambda entry: folder.discard(entry.name), left)
        for number, handler in zip(ignored, handlers, strict=True):
            signal.signal(number, handler)


def _is_of_storage(error: Exception) -> bool:
    return isinstance(error, LakeQueueError) or is_storage_failure(error)


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions: dict[str, str] = {}
    for package in ("lakequeue", "deltalake", "pyarrow", "pyspark", "delta-spark"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory, 1),
        "python": platform.python_version(),
        **versions,
    }


def _document(judged: bool, figures: list[Figure], failed: list[str]) -> dict[str, Any]:
    rows = [
        {
            "row": figure.name,
            "measured": figure.measured,
            "bare": figure.bare,
            "ratio": figure.ratio,
            "bound": figure.bound,
            "unit": figure.unit,
            "remark": figure.remark,
            "verdict": figure.verdict(judged),
        }
        for figure in figures
    ]
    return {"rows": rows, "failed": failed}


def _print_table(machine: dict[str, Any], judged: bool, figures: list[Figure], failed: list[str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    cores, memory, *versions = machine.items()
    console.print(f"{cores[1]} cores, {memory[1]} GiB;", ", ".join(f"{name} {value}" for name, value in versions))
    rows = [figure.cells(judged) for figure in figures]
    rows += [[name, "", "", "", "", "", "failed", ""] for name in failed]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if console.width < NARROW:
        for column, right in (COLUMNS[0], False), ("lakequeue", True), ("verdict", False):
            table.add_column(column, justify="right" if right else "left", no_wrap=column != COLUMNS[0])
        for row in rows:
            table.add_row(*_in_short(*row))
    else:
        shown = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
        for column in (COLUMNS[number] for number in shown):
            right = column in ("lakequeue", "other side", "ratio")
            table.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for row in rows:
            table.add_row(*(row[number] for number in shown))
    console.print(table)
    console.print(LEGEND)


def _in_short(
    name: str, unit: str, figure: str, other: str, ratio: str, bound: str, verdict: str, remark: str
) -> tuple[RenderableType, str, str]:
    """Returns the cells of a row in a narrow terminal. Comparison and remark are below the name."""
    compared = ", ".join(part for part in (f"{ratio} of {other} {unit}" if ratio else "", bound) if part)
    below = "; ".join(part for part in (compared, remark) if part)
    cell = Group(Text(name), Padding(Text(below), (0, 0, 0, 2))) if below else Text(name)
    return cell, f"{figure} {unit}".strip(), verdict


if __name__ == "__main__":
    typer.run(main)
