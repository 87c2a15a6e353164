"""Conditions on messages in SQL, judged without a JVM.

DuckDB parses and judges them, in a database in memory that reaches no file, network, extension or setting. What it
is given must be one expression over the columns of a row: the text goes into a query, so whatever could make
that query another one is refused by its parsed form before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakequeue.errors import InvalidParameterValue

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # else the names of Python's own variables would be tables
    "python_enable_replacements": "false",
    # rows keep their order, and no threads stay behind
    "threads": "1",
    "memory_limit": "1GB",
}
_KINDS = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLLATE",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "OPERATOR",
    "TYPE",
}
"""Kinds of expressions that look at one row; others are subqueries, windows, ``*``, parameters and lambdas."""
_MACROS = {"date_add", "days_in_month", "if", "map_contains_value", "nullif", "split_part"}
"""Macros among the functions; others may be aggregates, or sleep."""


class Predicate:
    """A condition, checked once and then asked of any number of tables; for one thread.

    Args:
        text: a boolean SQL expression over the columns.
        columns: names and types that it may use.
        parameter: what to call it in a refusal.

    Raises:
        InvalidParameterValue: it is none; with the first line of what DuckDB says.
    """

    def __init__(self, text: str, columns: pa.Schema, parameter: str = "where") -> None:
        self._text = text
        self._parameter = parameter
        if not isinstance(text, str) or not text.strip():
            raise self._refused("Must be a condition in SQL")
        # no line of its own: a comment at the end must not take the bracket along
        self._query = f"SELECT ({text}\n)"
        self._connection = duckdb.connect(":memory:", config=_SETTINGS)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET lock_configuration = true")
        parts = list(_expressions(self._parsed()))
        self._check_kinds(parts)
        self._check_functions({part["function_name"].lower() for part in parts if part["class"] == "FUNCTION"})
        self.columns = self._check_columns(parts, columns)
        """Names of the columns that it looks at."""
        self._check_type(columns.empty_table())

    def select(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Numbers of the rows for which it is true, in order; NULL is not true.

        Args:
            rows: at least the columns that it looks at, and one in any case.

        Raises:
            InvalidParameterValue: it fails on a row, as by a cast of text that is no number.
        """
        found = self._run(rows).fetchnumpy()["found"]
        return np.flatnonzero(np.ma.filled(found, False))

    def _run(self, rows: pa.Table) -> duckdb.DuckDBPyConnection:
        try:
            self._connection.register("messages", rows)
            return self._connection.execute(f"{self._query} AS found FROM messages")
        except duckdb.Error as error:
            raise self._refused(_first_line(error)) from None

    def _parsed(self) -> dict[str, Any]:
        """The one expression that the text is, in DuckDB's own form."""
        try:
            statement, plain = (self._statement(query) for query in (self._query, "SELECT (true)"))
            [expression] = statement["node"].pop("select_list")
            plain["node"].pop("select_list")
        except (KeyError, ValueError, RecursionError):
            raise self._refused("Must be one expression, and not too deep") from None
        if statement != plain:  # a FROM, a WHERE, a parameter, a name for the result, …
            raise self._refused("Must be one expression")
        return expression

    def _statement(self, query: str) -> dict[str, Any]:
        try:
            row = self._connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        except duckdb.Error as error:
            raise self._refused(_first_line(error)) from None
        parsed = json.loads(row[0]) if row else {}
        if parsed.get("error"):
            raise self._refused(
                _first_line(f"{parsed['error_type'].capitalize()} Error: {parsed['error_message']}")
            )
        [statement] = parsed["statements"]
        return statement

    def _check_kinds(self, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            if part["class"] not in _KINDS:
                kind = part["class"].lower().replace("_", " ")
                raise self._refused(f"Must look at one message at a time, without a {kind}")

    def _check_functions(self, names: set[str]) -> None:
        known = self._connection.execute(
            "SELECT function_name, bool_and(function_type = 'scalar' AND stability = 'CONSISTENT') "
            "FROM duckdb_functions() WHERE function_name IN (SELECT unnest(?)) GROUP BY ALL",
            [sorted(names)],
        ).fetchall()
        allowed = {name for name, pure in known if (pure and not name.startswith("__")) or name in _MACROS}
        for name in sorted(names - allowed):
            reason = "looks at more than a message" if name in dict(known) else "is unknown"
            raise self._refused(f"The function {name} {reason}")

    def _check_columns(self, parts: list[dict[str, Any]], columns: pa.Schema) -> frozenset[str]:
        names = {part["column_names"][0].lower() for part in parts if part["class"] == "COLUMN_REF"}
        for name in sorted(names - set(columns.names)):
            raise self._refused(f"There is no column {name}, only {', '.join(columns.names)}")
        return frozenset(names)

    def _check_type(self, nothing: pa.Table) -> None:
        [(_, type_, *_)] = self._run(nothing).description
        if str(type_) != "BOOLEAN":
            raise self._refused(f"Must be BOOLEAN, not {type_}")

    def _refused(self, reason: str) -> InvalidParameterValue:
        shown = " ".join(str(self._text).split())
        shown = shown if len(shown) <= 100 else f"{shown[:99]}…"
        return InvalidParameterValue(
            f"Value {shown} for parameter {self._parameter} is invalid. Reason: {reason.rstrip('.')}."
        )


def _expressions(parsed: Any) -> Iterator[dict[str, Any]]:
    pending = [parsed]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if "class" in part:
                yield part
            pending += part.values()
        elif isinstance(part, list):
            pending += part


def _first_line(error: duckdb.Error | str) -> str:
    return str(error).strip().splitlines()[0]
