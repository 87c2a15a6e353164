"""What lakequeue costs beside bare Delta, as ratios measured in one run.

    python jobs/benchmark.py [--quick] [--only point,cli] [--json]
    spark-submit --properties-file conf/<where>.conf jobs/benchmark.py --quick

The two sides of a ratio take turns (A B, B A, A B …) and their medians are compared, so that noise
of the machine hits both. The full run takes most of an hour and 10 GB of disk.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks import bulk, point
from benchmarks.harness import QUICK, Bench, Figure, Sizes
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROWS = {
    "point": point.point,
    "bulk": bulk.bulk,
    "backlog": bulk.backlog,
    "in-flight": point.in_flight,
    "age": point.age,
    "concurrent": point.concurrent,
    "mixed": bulk.mixed,
    "cli": point.cli,
    "extend": bulk.extend,
}


def main(
    quick: Annotated[bool, typer.Option(help="Smaller sizes, two minutes; no bound is judged.")] = False,
    root: Annotated[
        str | None, typer.Option(help="Local directory to work under; what is made there is removed.")
    ] = None,
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(ROWS)}, with commas.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
    scale: Annotated[float, typer.Option(hidden=True)] = 1.0,
    flow: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measures lakequeue against bare Delta and prints ratios."""
    if flow is not None and root is not None:
        return _send_steadily(root, flow)
    names = [name.strip() for name in only.split(",")] if only else list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    sizes = (QUICK if quick else Sizes()).scaled(scale)
    errors = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    figures: list[Figure] = []
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="lakequeue-benchmark-", dir=root) as directory,
        Progress(*columns, console=errors, transient=True) as progress,
    ):
        bench = Bench(Path(directory), sizes, progress)
        for name in names:
            try:
                for figure in ROWS[name](bench):
                    figures.append(figure)
                    bench.say("  ".join(figure.cells(False)))
            except Exception as error:
                failed.append(name)
                errors.print_exception() if errors.is_terminal else errors.print(f"{name}: {error!r}")
    print(_document(figures, not quick) if as_json else "", end="")
    if not as_json:
        _print_table(figures, not quick)
    raise typer.Exit(1 if failed else 0)
