"""The commands that start Spark."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakequeue.cli import output, render
from lakequeue.cli.options import instant_option
from lakequeue.cli.session import DONE, Session, usage
from lakequeue.cli.values import Moment
from lakequeue.errors import QueueClientError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


AsOf = Annotated[Moment | None, instant_option("Show an earlier state, at most some minutes ago")]


def sql(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(help="Spark SQL over the views queues, messages and receipts.")],
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of rows.")] = 1_000,
    as_of: AsOf = None,
) -> None:
    """Query the tables of the queues in SQL."""
    session: Session = ctx.obj
    lake = session.lake()
    then = None if as_of is None else as_of.instant(lake.clock)
    lake.list_queues(limit=1)  # reports a wrong root before Spark starts
    from lakequeue.spark.session import build_session

    with render.spinner("starting Spark"):
        spark = build_session("lakequeue sql", root=session.root)
    if not session.verbose:  # hide Spark's own report of an error; the command prints one line
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        spark.sparkContext.setLogLevel("OFF")
    with render.spinner("running the query"):
        session.lake(spark).register_views(spark, as_of=then)
        found = _rows(spark, query, limit + 1)
    rows = found.slice(0, limit).to_pylist(maps_as_pydicts="lossy")
    session.answer(rows, render.table(found.column_names, [list(row.values()) for row in rows]))
    if found.num_rows > limit:
        output.print_error(f"only the first {render.count(limit, 'row')}; --limit shows more")


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
            help="Directory of Python files to send; the pyspark package if not given.",
        ),
    ] = None,
) -> None:
    """Send, process and settle real files through a queue; takes about a minute."""
    session: Session = ctx.obj
    from lakequeue.cli.demo import run_demo

    console = output.error_console() if session.json else output.console()
    status = run_demo(session.root or None, None if input_dir is None else str(input_dir), console)
    if session.json:
        session.answer({"root": session.root, "complete": status == DONE}, "")
    raise typer.Exit(status)


def _rows(spark: SparkSession, query: str, limit: int) -> pa.Table:
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        return spark.sql(query).limit(limit).toArrow()
    except (AnalysisException, ParseException) as error:
        usage(_first_line(error))
    except PySparkException as error:
        raise QueueClientError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(";")
