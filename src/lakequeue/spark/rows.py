"""Turns a DataFrame of a job into messages, and appends results to a Delta table."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakequeue import frame_verbs
from lakequeue.errors import InvalidOptions, InvalidParameterValue

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
    """Selects columns of a source as the columns of ``Queue.send_dataframe``.

    Args:
        df: any DataFrame or stream.
        body: column with the bodies; ``*`` for each row as a JSON object, without NULLs, with instants in UTC to
            the microsecond, and NaN and infinity, which JSON lacks, as texts.
        group, dedup, delay: columns for ``group_id``, ``dedup_id`` and ``delay_seconds``, if any.
        order_by: column to order by; it keeps its name.
        priority: column for ``priority``, if any.

    Raises:
        InvalidOptions: columns are missing; names all of them.
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


def append_results(
    messages: DataFrame,
    table: str | None,
    handle: Callable[[DataFrame], Any] | None = None,
    *,
    repeated: bool = False,
) -> Any:
    """Appends results of messages, or the messages themselves, to a Delta table in one commit.

    A message that was received before may have a result already, if only its deletion failed. So the table is
    searched for such messages by ``message_id``, and messages with a result are skipped. Messages received for the
    first time need no search, unless the batch may repeat an interrupted one. A duplicate is still possible if
    another consumer receives the message after its timeout and appends its result at the same moment.

    Args:
        messages: ``Lease.messages``.
        table: path of the table, created if it is missing; None if the function stores its results itself.
        handle: from messages to results, or to a pair of results and failed messages; None instead of results
            appends nothing. Results need ``message_id`` to be found.
        repeated: True if the lease may repeat a batch that was interrupted after its results were appended.

    Returns:
        The failed messages, see ``Lease.delete_except``; None if none failed.

    Raises:
        InvalidOptions: the function returned something else; nothing was appended.
    """
    pending = messages if table is None else _without_results(messages, table, repeated)
    rows: Any = pending.drop("receipt_handle") if handle is None else handle(pending)
    rows, failed = rows if isinstance(rows, tuple) and len(rows) == 2 else (rows, None)
    if rows is not None and not callable(getattr(rows, "toLocalIterator", None)):
        wanted = "a DataFrame, None, or a pair of results and failed messages"
        raise InvalidOptions([f"the handler returned {reprlib.repr(rows)}, not {wanted}"])
    try:
        failed = None if failed is None else frame_verbs.failed_of(failed)
    except InvalidParameterValue as error:
        raise InvalidOptions([f"the handler returned invalid failed messages: {error.message}"]) from error
    if table is not None and rows is not None:
        rows.write.format("delta").mode("append").save(table)
    return failed


def results_of_stream(
    table: str | None, handle: Callable[[DataFrame], Any] | None = None
) -> Callable[[DataFrame, int], Any]:
    """Returns a function for a query of ``stream_from_queue`` that calls ``append_results``.

    The first batch of a query may repeat the batch in which the last query was killed, under the same lease. Its
    messages were received once, and may have results.
    """
    repeated = True

    def append(messages: DataFrame, batch: int) -> Any:
        nonlocal repeated
        failed = append_results(messages, table, handle, repeated=repeated)
        repeated = False
        return failed

    return append


def _without_results(messages: DataFrame, table: str, repeated: bool) -> DataFrame:
    from pyspark.errors import AnalysisException

    searched = "true" if repeated else "receive_count > 1"
    again = messages.where(searched)
    if again.isEmpty():
        return messages
    try:
        known = messages.sparkSession.read.format("delta").load(table)
    except AnalysisException:  # The table does not exist yet.
        return messages
    if "message_id" not in known.columns:
        return messages
    unknown = again.join(known.select("message_id"), "message_id", "left_anti")
    return messages.where(f"NOT ({searched})").unionByName(unknown)
