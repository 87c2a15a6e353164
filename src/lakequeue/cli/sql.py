"""``lakequeue sql``: queries the relations of a root, in DuckDB or Spark."""

from __future__ import annotations

import logging
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from lakequeue.cli import output, render
from lakequeue.cli.errors import reason_of
from lakequeue.cli.options import argument, flag, instant_option, option
from lakequeue.cli.session import CommandContext, Session, usage
from lakequeue.cli.values import Moment
from lakequeue.errors import LakeQueueError, MissingPackage, QueueClientError

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

    from lakequeue import LakeQueue


AsOf = Annotated[Moment | None, instant_option(..., "Show an earlier state, at most some minutes ago")]

_NO_COLUMN = re.compile(r'(?:Referenced column "|does not have a column named ")(\w+)"')
_NO_RELATION = re.compile("Table with name (.+) does not exist!")
_EXPLAIN = re.compile(r"\A\s*EXPLAIN\b\s*(ANALYZE\b\s*)?(\([^)]*\)\s*)?", re.IGNORECASE)
_PLACE = re.compile(r"\s*\nLINE (\d+): (.*)\n( *)\^", re.DOTALL)


def sql(
    ctx: CommandContext,
    query: str | None = argument(
        None,
        "SELECT over queues, messages and other relations, as in DuckDB. A field of JSON is "
        "dead_letter_reason->>'$.error'.",
        "[QUERY]",
    ),
    limit: int = option(1_000, "Maximum number of rows.", "N", min=1),
    as_of: AsOf = None,
    spark: bool = flag(False, "Run it as Spark SQL, which starts a JVM.", "--spark"),
    register: str | None = option(None, "Create views in this schema of Spark's catalog instead.", "SCHEMA"),
) -> None:
    """Query the queues in SQL."""
    if (query is None) == (register is None):
        usage("give either a QUERY or --register SCHEMA")
    if register is not None:
        return _register(ctx.obj, register)
    assert query is not None
    then = None if as_of is None else as_of.instant(ctx.obj.lake().clock)
    if spark:
        found = _by_spark(ctx.obj, query, limit + 1, then)
    else:
        found = by_duckdb(ctx.obj.lake(), query, limit + 1, then)
    rows = found.slice(0, limit).to_pylist(maps_as_pydicts="lossy")
    ctx.obj.answer(rows, render.table(found.column_names, [list(row.values()) for row in rows], empty="no rows"))
    if found.num_rows > limit:
        output.print_error(f"only the first {render.count(limit, 'row')}; --limit shows more")


def by_duckdb(lake: LakeQueue, query: str, limit: int, as_of: datetime | None = None) -> pa.Table:
    """Runs a query over the relations of a root in DuckDB. Returns the rows."""
    views = lake.arrow_views(as_of=as_of)
    import duckdb

    from lakequeue.conditions.evaluator import sealed, with_hint

    with (
        tempfile.TemporaryDirectory(prefix="lakequeue-sql-") as scratch,
        sealed(temp_directory=scratch) as connection,
        ThreadPoolExecutor(1) as thread,
    ):
        for name, view in views.items():
            connection.register(name, view)
        answer = thread.submit(_rows, connection, query, limit)
        try:
            return _plain(answer.result())
        except KeyboardInterrupt:
            connection.interrupt()
            raise
        except duckdb.Error as error:
            failure = error
    for view in views.values():
        if isinstance(view.failure, LakeQueueError):
            raise view.failure
        if view.failure is not None:  # DuckDB shows the stack, and blames the query
            reason = str(view.failure) or "there is not enough memory"
            raise QueueClientError(f"{type(view.failure).__name__}: {reason}") from view.failure
    if isinstance(failure, duckdb.PermissionException):
        usage(f"a query reads only {', '.join(views)}, and no files")
    if isinstance(failure, (duckdb.ProgrammingError, duckdb.NotSupportedError)):
        column = _NO_COLUMN.search(str(failure))
        names = {name for view in views.values() for name in view.schema.names}
        nearest = get_close_matches(column[1].lower(), names) if column else []
        if column and nearest:
            usage(f"there is no column {column[1]}{_place(failure)}; did you mean {' or '.join(nearest)}?")
        relation = _NO_RELATION.search(str(failure))  # DuckDB would propose its own relations
        if relation:
            near = get_close_matches(relation[1].lower(), views)
            more = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(views)}"
            usage(f"there is no relation {relation[1]}{_place(failure)}; {more}")
        usage(f"{with_hint(_message_of(failure))}; --spark runs Spark SQL")
    raise QueueClientError(_message_of(failure)) from failure


def views(ctx: CommandContext, as_of: AsOf = None) -> None:
    """Print the SQL that creates the views, for spark-sql and other sessions; needs no JVM."""
    lake = ctx.obj.lake()
    statements = lake.view_statements(as_of=None if as_of is None else as_of.instant(lake.clock))
    ctx.obj.answer(statements, "\n".join(f"{statement};" for statement in statements))


def _rows(connection: DuckDBPyConnection, query: str, limit: int) -> pa.Table:
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1:
        usage(f"give one statement, not {len(statements)}")
    kinds = duckdb.StatementType
    allowed = [kinds.SELECT, kinds.EXPLAIN, kinds.MULTI]  # MULTI: PIVOT
    explained = connection.extract_statements(_EXPLAIN.sub("", query, count=1))
    for each, among in (
        (statements[0], allowed),
        (explained[0], allowed[::2]),
    ):  # EXPLAIN ANALYZE runs the statement
        if each.type not in among:
            usage(f"only SELECT and EXPLAIN are allowed, not {str(each.type).rpartition('.')[2]}")
    if statements[0].type == kinds.SELECT:  # an error about a relation has no place
        connection.execute(f"EXPLAIN\n{query}")
    found = connection.sql(statements[0])
    if found is None:
        usage("the statement returns no rows")
    return found.limit(limit).to_arrow_table()


def _message_of(error: Exception) -> str:
    """Returns the text of a DuckDB error on one line. Adds the place in the query if it is known."""
    import duckdb

    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        return text.strip().split("\n")[0]
    message = " ".join(text[: place.start()].split())
    # otherwise the place is in DuckDB's own form of the query
    return message + (_place(error) if isinstance(error, duckdb.ProgrammingError) else "")


def _place(error: Exception) -> str:
    import duckdb

    place = _PLACE.search(str(error))
    if place is None:
        return ""
    line = f" at line {int(place[1]) - (0 if isinstance(error, duckdb.ParserException) else 1)}"
    if place[2].startswith("..."):  # a part of a long line
        return line
    return f"{line}, column {len(place[3]) - len(f'LINE {place[1]}: ') + 1}"


def _plain(found: pa.Table) -> pa.Table:
    """Converts integer sums to integers, times of day to texts, and instants to UTC with microseconds."""
    import pyarrow as pa

    types = pa.types
    for index, field in enumerate(found.schema):
        wanted = None
        if types.is_decimal(field.type) and field.type.scale == 0:
            wanted = pa.int64()
        elif types.is_timestamp(field.type) and field.type.unit == "ns":  # for which Arrow needs pandas
            found = found.set_column(index, field.name, found[index].cast(pa.timestamp("us", "UTC"), safe=False))
        elif types.is_timestamp(field.type) and field.type.tz is None:
            wanted = pa.timestamp(field.type.unit, "UTC")
        elif types.is_time(field.type):
            wanted = pa.string()
        if wanted is not None:
            try:
                found = found.set_column(index, field.name, found[index].cast(wanted))
            except pa.ArrowInvalid:  # a larger number
                continue
    return found


def _by_spark(session: Session, query: str, limit: int, as_of: datetime | None) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="lakequeue-sql-") as scratch:
        # otherwise Spark creates spark-warehouse in the working directory
        spark = _spark(session, **{"spark.sql.warehouse.dir": scratch})
        from pyspark.errors import AnalysisException, ParseException, PySparkException, PythonException

        with render.spinner("running the query"):
            session.lake(spark).register_views(spark, as_of=as_of)
            try:
                return spark.sql(query).limit(limit).toArrow()
            except (AnalysisException, ParseException) as error:
                usage(reason_of(error))
            except PythonException as error:  # the error of a task
                message = reason_of(error)
                raise QueueClientError(message.partition(": ")[2] or message) from error
            except PySparkException as error:
                raise QueueClientError(reason_of(error)) from error


def _register(session: Session, schema: str) -> None:
    spark = _spark(session)
    catalog = spark.catalog.currentCatalog() if "." not in schema else schema.partition(".")[0]
    if catalog == "spark_catalog" and spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise QueueClientError(
            "this Spark has no persistent catalog for the views: set spark.sql.catalogImplementation to hive, or "
            "configure a catalog, in spark-defaults.conf"
        )
    session.lake(spark).create_views(spark, schema)
    session.changed({"schema": schema}, f"the views are in {schema}")


def _spark(session: Session, **settings: str) -> SparkSession:
    MissingPackage.check("sql with Spark", "spark", "pyspark")
    session.lake().list_queues(limit=1)  # reports a wrong root before Spark starts
    from lakequeue.spark.session import build_session

    with render.spinner("starting Spark"):
        spark = build_session("lakequeue sql", root=session.root, **settings)
    if not session.verbose:  # hide Spark's own report of an error; the command prints one line
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        spark.sparkContext.setLogLevel("OFF")
    return spark
