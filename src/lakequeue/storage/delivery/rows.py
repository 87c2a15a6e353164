"""Converts rows to the columns and types of a delivery table. Errors name the column (TAB-23)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakequeue.errors import RowsRefused


def is_frame(rows: object) -> bool:
    """True for a DataFrame of Spark or Spark Connect."""
    return type(rows).__module__.startswith("pyspark.sql.")


def table_of(rows: object, schema: pa.Schema | None) -> pa.Table:
    """Converts the result of a handler to a table. Rows given as dicts get the types of ``schema``.

    Raises:
        RowsRefused: a value does not fit its column.
        TypeError: ``rows`` is not Arrow data, a data frame, or a list of dicts.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if type(rows).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, (list, tuple)) and rows and all(isinstance(each, pa.RecordBatch) for each in rows):
        return pa.Table.from_batches(rows)
    # asking a dict if it is a Mapping takes longer than to convert it
    if isinstance(rows, (list, tuple)) and all(type(each) is dict or isinstance(each, Mapping) for each in rows):
        return _of_dicts(rows, schema)
    items = rows if isinstance(rows, (list, tuple)) else ()
    of = next((f" of {type(each).__name__}" for each in items if not isinstance(each, Mapping)), "")
    raise TypeError(
        f"rows must be an Arrow table or batches, a frame of Spark, polars or pandas, or a list of dicts, "
        f"not {type(rows).__name__}{of}"
    )


def _of_dicts(rows: Sequence[Mapping[str, object]], schema: pa.Schema | None) -> pa.Table:
    names: dict[str, object] = {}
    for row in rows:
        names.update(row)
    types = {} if schema is None else {field.name: field.type for field in schema}
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows], types.get(name))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RowsRefused(_of_column(name, error), name) from error
    return pa.table(columns)


def new_schema(rows: pa.Table) -> pa.Schema:
    """Returns the schema for a new delivery table. Raises RowsRefused if a column of ``rows`` has only NULLs."""
    for field in rows.schema:
        if pa.types.is_null(field.type):
            raise RowsRefused(
                f"column {field.name} has only NULLs, so the new table would have no type", field.name
            )
    return pa.schema([field.with_nullable(True).remove_metadata() for field in rows.schema])


def columns_of(rows: pa.Table, schema: pa.Schema, merge_schema: bool) -> pa.Table:
    """Converts rows to a table's columns and types. Raises RowsRefused, which names the column, if that fails."""
    names = set(schema.names)
    extra = [name for name in rows.column_names if name not in names]
    if extra and not merge_schema:
        option = "merge_schema=True (--merge-schema on the command line)"
        raise RowsRefused(f"the table has no column {extra[0]}; {option} would add the column", extra[0])
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            column: pa.ChunkedArray = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        else:
            try:
                column = rows.column(field.name).cast(field.type)
            except (pa.ArrowException, ValueError) as error:
                raise RowsRefused(_of_column(field.name, error), field.name) from error
        if not field.nullable and column.null_count:
            raise RowsRefused(f"column {field.name} must not be NULL", field.name)
        columns.append(column)
    added = [rows.schema.field(name).with_nullable(True).remove_metadata() for name in extra]
    fields = [*schema, *added]  # the rows that the table has are NULL in new columns
    return pa.Table.from_arrays([*columns, *(rows.column(name) for name in extra)], schema=pa.schema(fields))


def refused_columns(rows: pa.Table, configuration: Mapping[str, str], text: str) -> RowsRefused:
    """Returns the error for rows that break constraints. The error names the constraints and their columns."""
    prefix = "delta.constraints."
    constraints = {name[len(prefix) :]: sql for name, sql in configuration.items() if name.startswith(prefix)}
    known = [name for name in rows.column_names if any(_mentions(sql, name) for sql in constraints.values())]
    named = "; ".join(f"{name}: {sql}" for name, sql in constraints.items())
    if not named:
        return RowsRefused(text.splitlines()[0])
    return RowsRefused(f"column {', '.join(known)} breaks a constraint of the table ({named})", *known[:1])


def _mentions(sql: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, re.IGNORECASE) is not None


def _of_column(name: str, error: Exception) -> str:
    return f"column {name}: {str(error).splitlines()[0]}"
