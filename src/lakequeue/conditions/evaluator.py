"""Program of a worker process that evaluates SQL conditions. Imports only DuckDB and Arrow, to start quickly."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # otherwise Python variables would be tables
    "python_enable_replacements": "false",
}
_FIELD = re.compile(r"Cannot extract field '(?P<name>\w+)' from expression \"(?P<column>\w+)\"")
_KINDS = {
    *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"),
    *("OPERATOR", "PARAMETER", "TYPE"),
}
"""Kinds of expressions that a condition may contain. Each of these expressions depends on one row only."""
OPERATORS = (
    *("+", "-", "*", "/", "//", "%", "^", "**", "&", "|", "~", "<<", ">>", "||", "@", "^@", "~~", "!~~", "~~*"),
    *("!~~*", "~~~", "->>"),
)
"""Operators that a condition may use, and that DuckDB parses as functions."""
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "text": (
        *("lower", "upper", "length", "len", "strlen", "trim", "ltrim", "rtrim", "left", "right", "substr"),
        *("substring", "split_part", "replace", "concat", "concat_ws", "contains", "starts_with", "ends_with"),
        *("position", "strpos", "instr", "ascii", "chr", "strip_accents", "like_escape", "not_like_escape"),
        *("ilike_escape", "not_ilike_escape", "regexp_matches", "regexp_full_match", "regexp_extract"),
        "regexp_replace",
    ),
    "JSON": (
        *("json_extract", "json_extract_string", "json_value", "json_exists", "json_type", "json_valid"),
        "json_array_length",
    ),
    "binary": ("base64", "from_base64", "encode", "decode", "hex", "unhex", "octet_length", "md5", "sha256"),
    "numbers": (
        *("abs", "ceil", "floor", "round", "trunc", "sign", "mod", "pow", "sqrt", "log", "greatest", "least"),
        *("isnan", "isinf", "isfinite"),
    ),
    "time": (
        *("date_part", "date_trunc", "date_diff", "date_sub", "date_add", "year", "quarter", "month", "week"),
        *("day", "hour", "minute", "second", "dayofweek", "isodow", "dayofyear", "dayname", "monthname"),
        *("last_day", "epoch", "epoch_ms", "to_timestamp", "make_date", "make_timestamp", "strftime", "strptime"),
        *("try_strptime", "time_bucket", "timezone", "to_years", "to_months", "to_weeks", "to_days"),
        *("to_hours", "to_minutes", "to_seconds", "to_milliseconds", "to_microseconds"),
    ),
    "lists and maps": (
        *("list_value", "list_contains", "cardinality", "map_keys", "map_values", "map_contains"),
        *("map_contains_value", "map_extract", "element_at"),
    ),
    "choices": ("if", "nullif"),
}
"""Functions that a condition may call, by kind of argument. No message content can make these functions crash."""
TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S"),
    *("TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "INTERVAL", "UUID", "JSON"),
)
_ALIASES = (
    *("bool", "logical", "int1", "int2", "int16", "short", "int", "int4", "int32", "signed", "int8", "int64"),
    *("long", "int128", "uint8", "uint16", "uint32", "uint64", "float4", "real", "float8", "dec", "numeric"),
    *("bpchar", "char", "string", "text", "binary", "bytea", "datetime", "timestamp_us", "timestamptz", "guid"),
)

_CALLABLE = {*OPERATORS, *(name for names in FUNCTIONS.values() for name in names)}
_CASTABLE = {*(name.lower() for name in TYPES), *_ALIASES}


def with_hint(reason: str) -> str:
    """Returns an error of DuckDB. If it is about a field of JSON, adds how a query gets the field."""
    field = _FIELD.search(reason)
    return f"{reason}; a field of JSON is {field['column']}->>'$.{field['name']}'" if field else reason


class Refused(Exception):
    """Raised if a condition is invalid, or fails on a message. The text of the error is one line."""


class Exhausted(Refused):
    """Raised if a condition needs too much memory. The worker ends then, to free the memory."""


def sealed(**more: str) -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB database in memory, in UTC, without access to files, network, extensions or settings."""
    connection = duckdb.connect(":memory:", config={**_SETTINGS, **more})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


class Evaluator:
    """Evaluates conditions in a sealed DuckDB database."""

    def __init__(self) -> None:
        # One thread, so that rows keep their order. The memory is many times the need of a batch, and most queries
        # that need more get an error from DuckDB.
        self.connection = sealed(threads="1", memory_limit="256MB")

    def check(self, text: str, columns: pa.Table, values: Sequence[Any] = ()) -> list[str]:
        """Returns the names of the columns that a condition uses.

        Args:
            columns: an empty table with the allowed columns.

        Raises:
            Refused: the text is not one boolean expression of allowed parts over the columns.
        """
        parts = list(_expressions(self._parsed(text, len(values))))
        for part in parts:
            if part["class"] not in _KINDS:
                kind = part["class"].lower().replace("_", " ")
                raise Refused(f"Must look at one message at a time, without a {kind}")
        calls = [part for part in parts if part["class"] == "FUNCTION"]
        for name in sorted({call["function_name"].lower() for call in calls} - _CALLABLE):
            raise Refused(f"The function {name} is not one of those that a condition may call")
        for call in calls:
            if call["schema"] not in ("", "main"):  # body.lower(), for which DuckDB reports no column
                raise Refused(f"Functions are called as in {call['function_name']}(body), without a dot")
        for name in sorted({name for part in parts for name in _types(part)}):
            if name.lower() not in _CASTABLE:
                raise Refused(f"The type {name} is not one of those that a condition may cast to")
        names = {part["column_names"][0].lower() for part in parts if part["class"] == "COLUMN_REF"}
        for name in sorted(names - {*columns.column_names}):
            meant = " or ".join([*get_close_matches(name, columns.column_names), f"the text '{name}'"])
            known = ", ".join(columns.column_names)
            raise Refused(f"There is no column {name}; did you mean {meant}? There are {known}")
        type_, _ = self._run(f"{_query(text)} FROM messages", columns, values)
        if type_ != "BOOLEAN":
            raise Refused(f"Must be BOOLEAN, not {type_}")
        return sorted(names)

    def judge(self, text: str, rows: pa.Table, values: Sequence[Any] = ()) -> bytes:
        """Returns one byte per row: 1 if the condition is true, else 0. Raises Refused if the condition fails."""
        _, found = self._run(f"{_query(text)} IS TRUE FROM messages", rows, values)
        return bytes(true for (true,) in found)

    def _run(self, query: str, rows: pa.Table, values: Sequence[Any]) -> tuple[str, list[tuple[Any, ...]]]:
        try:
            self.connection.register("messages", rows)
            found = self.connection.execute(query, list(values))
            [(_, type_, *_)] = found.description
            return str(type_), found.fetchall()
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise Exhausted(_first_line(error) or "Out of memory") from None
        except duckdb.Error as error:
            raise Refused(with_hint(_first_line(error))) from None

    def _parsed(self, text: str, values: int) -> dict[str, Any]:
        try:
            statement, plain = (self._statement(query) for query in (_query(text), "SELECT (true)"))
            expression: dict[str, Any]
            [expression] = statement["node"].pop("select_list")
            plain["node"].pop("select_list")
            marks = len(statement["named_param_map"])
            statement["named_param_map"] = plain["named_param_map"]
        except (KeyError, ValueError, RecursionError):
            raise Refused("Must be one expression, and not too deep") from None
        if statement != plain:  # a FROM, a WHERE, a name for the result, …
            raise Refused("Must be one expression")
        if marks != values:
            raise Refused(f"Must have a ? for each parameter, not {marks} for {values}")
        return expression

    def _statement(self, query: str) -> dict[str, Any]:
        try:
            [(form,)] = self.connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
        except duckdb.Error as error:
            raise Refused(_first_line(error)) from None
        parsed = json.loads(form)
        if parsed.get("error"):
            raise Refused(_first_line(f"{parsed['error_type'].capitalize()} Error: {parsed['error_message']}"))
        statement: dict[str, Any]
        [statement] = parsed["statements"]
        return statement


def _query(text: str) -> str:
    # the bracket is on a line of its own, so that a comment at the end does not hide it
    return f"SELECT ({text}\n)"


def _expressions(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "class" in node:
            yield node
        for value in node.values():
            yield from _expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _expressions(value)


def _types(part: dict[str, Any]) -> Iterator[str]:
    if part["class"] == "TYPE":
        yield part["type_name"]
    elif "cast_type" in part:  # in DuckDB 1
        type_ = part["cast_type"]
        known = type_["type_info"] or {}
        yield known.get("alias") or known.get("name") or type_["id"]


def _first_line(error: Exception | str) -> str:
    return str(error).strip().split("\n")[0].strip()


def limit(memory: int) -> None:
    """Limits this process to ``memory`` bytes, and forbids files and core dumps, where the system can."""
    with suppress(ImportError):  # not POSIX
        import resource

        # no files, and no core dump with messages
        for what, most in (
            (resource.RLIMIT_DATA, memory),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            with suppress(OSError, ValueError):
                resource.setrlimit(what, (most, most))


def limit_work(seconds: float) -> None:
    """Makes the operating system end this process after about ``seconds`` more seconds of CPU time."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def exhausted(memory: int) -> bool:
    """Returns True if this process uses over half of ``memory`` bytes. Always False without Linux's /proc."""
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as sizes:  # on Linux
        return int(sizes.read().split()[5]) * os.sysconf("SC_PAGE_SIZE") > memory / 2
    return False


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers requests. A request is a line of JSON and an Arrow stream; an answer is a line of JSON and bytes."""
    begin = json.loads(requests.readline())
    limit(begin["memory"])
    if begin["nice"]:
        os.nice(begin["nice"])
    evaluator = Evaluator()
    reply(replies, {})
    os.dup2(1, 2)  # errors are only read while it starts
    while wait_for_request(requests, begin["idle"]) and (line := requests.readline()):
        request = json.loads(line)
        rows = pa.ipc.open_stream(requests.read(request["bytes"])).read_all()
        limit_work(request["seconds"])
        document: dict[str, Any] = {}
        marks, last = b"", False
        try:
            values = [_value(each) for each in request.get("values", ())]
            if request["what"] == "check":
                document["columns"] = evaluator.check(request["text"], rows, values)
            else:
                marks = evaluator.judge(request["text"], rows, values)
        except Refused as refused:
            document["refused"] = str(refused)
            last = isinstance(refused, Exhausted)
        last = last or exhausted(begin["memory"])
        reply(replies, {**document, "last": last}, marks)
        if last:
            return


def _value(parameter: Any) -> Any:
    """Converts a parameter of a condition to its value. Instants arrive as microseconds since the epoch."""
    epoch = datetime.fromtimestamp(0, timezone.utc)
    return epoch + timedelta(microseconds=parameter["at"]) if isinstance(parameter, dict) else parameter


def wait_for_request(requests: BinaryIO, seconds: float) -> bool:
    """Waits for the next request. Returns False if no request arrives within ``seconds``."""
    with suppress(ImportError, OSError, ValueError):  # without select on pipes, the read waits
        import select

        return bool(select.select([requests], [], [], seconds)[0])
    return True


def reply(replies: BinaryIO, document: dict[str, Any], marks: bytes = b"") -> None:
    replies.write(json.dumps({**document, "bytes": len(marks)}).encode() + b"\n" + marks)
    replies.flush()


def own_output() -> BinaryIO:
    """Reserves the standard output for replies, and returns it. Discards all other output of this process."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return replies


def end_with(parent: int) -> None:
    """Waits for the end of the parent process, and then ends this process."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    serve(sys.stdin.buffer, own_output())
