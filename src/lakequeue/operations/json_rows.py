"""Rows of Arrow whose body is another column, or the whole row as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import pyarrow as pa

from lakequeue.errors import InvalidParameterValue

WHOLE_ROW = "*"
_KEPT = ("group_id", "dedup_id", "delay_seconds", "message_attributes")


class Bodies:
    """Selects the columns of ``Queue.send_arrow``, with the body from a column, or each row as a JSON object.

    JSON is written as Spark does (``jobs/produce_batch.py --body-column '*'``): without NULLs, instants in UTC
    with milliseconds, bytes in base64. That holds for columns; what they contain is as DuckDB writes it.

    Raises:
        InvalidParameterValue: there is no such column.
    """

    def __init__(self, schema: pa.Schema, body: str, order_by: str | None) -> None:
        if body not in (WHOLE_ROW, *schema.names):
            reason = f"There is no such column; there are {', '.join(schema.names)}."
            raise InvalidParameterValue.of(body, "body", reason)
        self._body = body
        kept = [field for field in schema if field.name in (*_KEPT, order_by) and field.name != "body"]
        type_ = pa.string() if body == WHOLE_ROW else schema.field(body).type
        self.schema = pa.schema([pa.field("body", type_), *kept])

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, batch by batch, in their order."""
        if self._body != WHOLE_ROW:
            for batch in batches:
                yield self._with(batch, batch.column(self._body))
            return
        from lakequeue.conditions.evaluator import sealed

        with closing(sealed(threads="1")) as connection:
            for batch in batches:
                connection.register("given", pa.Table.from_batches([batch]))
                found = connection.sql(f"SELECT {_json(batch.schema)} FROM given").to_arrow_table()
                yield self._with(batch, found.column(0).combine_chunks())

    def _with(self, batch: pa.RecordBatch, bodies: pa.Array) -> pa.RecordBatch:
        columns = [bodies, *(batch.column(name) for name in self.schema.names[1:])]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _json(schema: pa.Schema) -> str:
    pairs = [f"{_quoted(field.name, chr(39))}, {_value(field)}" for field in schema]
    return f"json_merge_patch('{{}}', json_object({', '.join(pairs)}))::VARCHAR"  # which leaves NULLs out


def _value(field: pa.Field) -> str:
    name, types = _quoted(field.name, '"'), pa.types
    if types.is_timestamp(field.type):
        utc = f"{name} AT TIME ZONE 'UTC'" if field.type.tz else name
        return f"strftime({utc}, '%Y-%m-%dT%H:%M:%S.%g{'Z' if field.type.tz else ''}')"
    if types.is_binary(field.type) or types.is_large_binary(field.type):
        return f"base64({name})"
    if types.is_floating(field.type):  # JSON has no such numbers
        texts = f"WHEN isnan({name}) THEN '\"NaN\"' WHEN {name} > 0 THEN '\"Infinity\"' ELSE '\"-Infinity\"'"
        return f"CASE WHEN {name} IS NULL OR isfinite({name}) THEN to_json({name}) {texts} END"
    return name


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark
