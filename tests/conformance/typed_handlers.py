"""Handlers that a user checks with mypy. Our mypy checks them, and a test calls them."""

from __future__ import annotations

from typing import Any

import pandas  # type: ignore[import-untyped]
import polars
import pyarrow as pa

from lakequeue import Consumer, Context, Message, Outcome, Queue
from lakequeue.consumer.handler import Handler

Row = dict[str, int]


def rows_of(messages: list[Message]) -> list[Row]:
    return [{"id": int(message.body)} for message in messages]


def dicts(messages: list[Message], contexts: list[Context]) -> list[Row]:
    return rows_of(messages)


async def dicts_later(messages: list[Message], contexts: list[Context]) -> list[Row]:
    return rows_of(messages)


def table(messages: list[Message], contexts: list[Context]) -> pa.Table:
    return pa.Table.from_pylist(rows_of(messages))


def batches(messages: list[Message], contexts: list[Context]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows_of([message])) for message in messages]


def frame(messages: list[Message], contexts: list[Context]) -> polars.DataFrame:
    return polars.DataFrame(rows_of(messages))


def frame_of_pandas(messages: list[Message], contexts: list[Context]) -> pandas.DataFrame:
    return pandas.DataFrame(rows_of(messages))


def rows_and_outcomes(messages: list[Message], contexts: list[Context]) -> tuple[list[Row], list[Outcome]]:
    return rows_of(messages), [Outcome.SUCCESS for _ in messages]


async def rows_or_none(
    messages: list[Message], contexts: list[Context]
) -> tuple[polars.DataFrame | None, Outcome | None]:
    return (polars.DataFrame(rows_of(messages)) if messages else None), None


def of_arrow(messages: pa.Table, contexts: list[Context]) -> pa.Table:
    return pa.table({"id": messages["body"].cast(pa.int64())})


def outcomes(messages: list[Message], contexts: list[Context]) -> list[Outcome]:
    return [Outcome.SUCCESS for _ in messages]


def nothing(messages: list[Message], contexts: list[Context]) -> None: ...


DELIVERING: list[Handler] = [
    dicts,
    dicts_later,
    table,
    batches,
    frame,
    frame_of_pandas,
    rows_and_outcomes,
    rows_or_none,
]
"""Return the numbers that messages have, as rows with a column ``id``."""


def text(messages: list[Message], contexts: list[Context]) -> str:
    return ""


def one_row(message: Message, context: Context) -> list[Row]:
    return rows_of([message])


def checked(queue: Queue) -> Any:
    """Never called."""
    Consumer(queue, outcomes, batch=10)
    Consumer(queue, nothing, batch=10)
    Consumer(queue, of_arrow, batch=10, as_arrow=True)
    Consumer(queue, lambda messages, contexts: rows_of(messages), batch=10)
    Consumer(queue, text, batch=10)  # type: ignore[arg-type]
    Consumer(queue, one_row)  # type: ignore[arg-type]
