"""Converts DataFrames to messages, and the result of a job's function to rows."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakequeue import frame_verbs
from lakequeue.errors import InvalidOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHOLE_ROW = "*"
_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"


def as_messages(
    df: DataFrame,
    body: str = "body",
    group: str | None = None,
    dedup: str | None = None,
    delay: str | None = None,
    order_by: str | None = None,
    priority: str | None = None,
) -> DataFrame:
    """Selects columns of a source under the names that ``Queue.send_dataframe`` expects.

    Args:
        df: any DataFrame or stream.
        body: column with the bodies; ``*`` for each row as a JSON object, without NULLs, with instants in UTC to
            the microsecond, and NaN and infinity as texts.
        group, dedup, delay: columns for ``group_id``, ``dedup_id`` and ``delay_seconds``, if any.
        order_by: column to order by, which keeps its name.
        priority: column for ``priority``, if any.

    Raises:
        InvalidOptions: columns are missing. The error names all of them.
    """
    from pyspark.sql import functions as F

    wanted = {"body": body, "group_id": group, "dedup_id": dedup, "delay_seconds": delay, "priority": priority}
    names = {name: column for name, column in wanted.items() if column is not None}
    if order_by is not None:
        names.setdefault(order_by, order_by)
    as_compared = str if frame_verbs.case_matters(df.sparkSession) else str.lower
    known = {as_compared(column) for column in (*df.columns, WHOLE_ROW)}
    missing = [column for column in names.values() if as_compared(column) not in known]
    if missing:
        raise InvalidOptions([f"no column {column}; there are {', '.join(df.columns)}" for column in missing])
    instants = {"timestampFormat": f"{_MICROS}XXX", "timestampNTZFormat": _MICROS, "timeZone": "UTC"}
    whole = F.to_json(F.struct(*(df[column] for column in df.columns)), instants)
    columns = ((name, whole if column == WHOLE_ROW else df[column]) for name, column in names.items())
    return df.select(*(column.alias(name) for name, column in columns))


def results(messages: DataFrame, handle: Callable[[DataFrame], Any] | None, delivers: bool) -> Any:
    """Calls the function of a job. Returns the function's result in the form that ``process_lease`` expects.

    Args:
        handle: takes the messages, and returns results or a pair of results and failed messages. If the results
            are None, the messages are only deleted. If ``handle`` is None, the messages are the results.
        delivers: True if the results are appended to the queue's delivery table.

    Raises:
        InvalidOptions: the function returned another type, or results although the queue has no table.
    """
    if handle is None:
        return messages.drop("receipt_handle")
    rows: Any = handle(messages)
    rows, failed = rows if isinstance(rows, tuple) and len(rows) == 2 else (rows, None)
    if rows is not None and not callable(getattr(rows, "toLocalIterator", None)):
        wanted = "a DataFrame, None, or a pair of results and failed messages"
        raise InvalidOptions([f"the handler returned {reprlib.repr(rows)}, not {wanted}"])
    if rows is not None and not delivers:
        raise InvalidOptions(["the handler returned results, and the queue has no delivery table: give --table"])
    return (rows, failed) if delivers else failed
