"""Commands for Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakequeue.cli import output
from lakequeue.cli.session import DONE, Session
from lakequeue.cli.sql import AsOf
from lakequeue.errors import MissingPackage


def views(ctx: typer.Context, as_of: AsOf = None) -> None:
    """Print the SQL that creates the views, for spark-sql and other sessions; needs no JVM."""
    session: Session = ctx.obj
    lake = session.lake()
    statements = lake.view_statements(as_of=None if as_of is None else as_of.instant(lake.clock))
    session.answer(statements, "\n".join(f"{statement};" for statement in statements))


def demo(
    ctx: typer.Context,
    input_dir: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Directory of Python files to send; an installed package if not given.",
        ),
    ] = None,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Process them without Spark and Java, in about ten seconds.")
    ] = False,
) -> None:
    """Send, process and settle real files through a queue; takes about a minute."""
    session: Session = ctx.obj
    if not no_spark:
        MissingPackage.check("demo without --no-spark", "spark", "pyspark")
    from lakequeue.cli.demo import run_demo

    console = output.error_console() if session.json else output.console()
    where = None if input_dir is None else str(input_dir)
    status = run_demo(session.root or None, where, console, with_spark=not no_spark)
    if session.json:
        session.answer({"root": session.root, "complete": status == DONE}, "")
    raise typer.Exit(status)
