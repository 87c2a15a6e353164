"""``lakequeue demo``: sends and processes Python files, with planned failures."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lakequeue.cli import output
from lakequeue.cli.demo_files import package_directory, python_files
from lakequeue.cli.options import flag, option
from lakequeue.cli.session import DONE, CommandContext
from lakequeue.errors import MissingPackage

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN: Any = {"highlight": False, "soft_wrap": True}


def demo(
    ctx: CommandContext,
    input_dir: Path | None = option(
        None,
        "Directory of Python files to send; an installed package if not given.",
        "DIR",
        "--input",
        exists=True,
        file_okay=False,
    ),
    no_spark: bool = flag(
        False, "Process them by the workers of a consumer, without Spark and Java.", "--no-spark"
    ),
) -> None:
    """Send, process and settle real files. Spark takes one to three minutes; --no-spark takes ten seconds."""
    if not no_spark:
        MissingPackage.check("demo without --no-spark", "spark", "pyspark")
    console = output.error_console() if ctx.obj.json else output.console()
    where = None if input_dir is None else str(input_dir)
    status = run_demo(ctx.obj.root or None, where, console, with_spark=not no_spark)
    if ctx.obj.json:
        ctx.obj.changed({"root": ctx.obj.root, "complete": status == DONE}, "")
    raise typer.Exit(status)


def run_demo(root: str | None, input_dir: str | Path | None, console: Console, with_spark: bool = True) -> int:
    """Runs the demo. Returns exit code 0 if all messages end as planned. Otherwise returns 3.

    Args:
        root: root of the queue ``lakequeue-demo``, which is replaced if it exists; None for a temporary root.
        input_dir: directory of ``.py`` files; None for the package pyspark, or lakequeue without Spark.

    Raises:
        InvalidOptions: ``input_dir`` is not a directory, or contains no Python file.
        QueueClientError: pyspark or Java is missing, or the root cannot be used.
    """
    if with_spark:
        from lakequeue.cli.demo_spark import process
    else:
        from lakequeue.cli.demo_workers import process
    where = Path(input_dir or package_directory("pyspark" if with_spark else "lakequeue"))
    entries, skipped = python_files(where)
    left_out = f"; {skipped:,} left out: unreadable, or too large for a message" if skipped else ""
    console.print(f"Input: {len(entries):,} Python files below {where}{left_out}", **_PLAIN)
    scratch = tempfile.mkdtemp(prefix="lakequeue-demo-") if root is None else None
    try:
        return process(root or f"{scratch}/root", entries, console)
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
            console.print(f"{scratch} is removed again; keep the tables with --root DIR", **_PLAIN)
