"""Rows of Arrow whose body is another column, or the whole row as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from lakequeue.errors import InvalidParameterValue

WHOLE_ROW = "*"
_KEPT = ("group_id", "dedup_id", "delay_seconds", "message_attributes")


class Bodies:
    """Selects the columns of ``Queue.send_arrow``, with the body from a column, or each row as a JSON object.

    JSON is written as Spark does (``jobs/produce_batch.py --body-column '*'``): without NULLs, instants in UTC
    with microseconds, bytes in base64. That holds for columns; what they contain is as DuckDB writes it, and
    decimals have the 17 digits of a double: cast those that have more to texts.

    Raises:
        InvalidParameterValue: there is no such column.
    """

    def __init__(self, schema: pa.Schema, body: str, order_by: str | None, has_priorities: bool) -> None:
        if body not in (WHOLE_ROW, *schema.names):
            reason = f"There is no such column; there are {', '.join(schema.names)}."
            raise InvalidParameterValue.of(body, "body", reason)
        if body == WHOLE_ROW and len(set(schema.names)) < len(schema):
            raise InvalidParameterValue.of(body, "body", "Two columns have the same name.")
        self._body = body
        names = {*_KEPT, order_by, *(["priority"] if has_priorities else [])} - {"body"}
        kept = [field for field in schema if field.name in names]
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
                # for DuckDB, names that differ in case are one
                columns = [f"c{place}" for place in range(batch.num_columns)]
                given = pa.table(list(map(_readable, batch.columns)), columns)
                connection.register("given", given)
                query = f"SELECT {_json(batch.schema.names, given.schema)} FROM given"
                found = connection.sql(query).to_arrow_table()
                yield self._with(batch, found.column(0).combine_chunks())

    def _with(self, batch: pa.RecordBatch, bodies: pa.Array) -> pa.RecordBatch:
        columns = [bodies, *(batch.column(name) for name in self.schema.names[1:])]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _json(names: Sequence[str], given: pa.Schema) -> str:
    texts = ["'" + name.replace("'", "''") + "'" for name in names]
    pairs = [f"{text}, {_value(field.name, field.type)}" for text, field in zip(texts, given, strict=True)]
    return f"json_merge_patch('{{}}', json_object({', '.join(pairs)}))::VARCHAR"  # which leaves NULLs out


_OTHER_BYTES = (pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def _readable(column: pa.Array) -> pa.Array:
    """A column as DuckDB reads it: it takes other kinds of bytes for texts."""
    return column.cast(pa.binary()) if any(is_(column.type) for is_ in _OTHER_BYTES) else column


def _value(name: str, type_: pa.DataType) -> str:
    types = pa.types
    if types.is_timestamp(type_):
        utc = f"{name} AT TIME ZONE 'UTC'" if type_.tz else name
        return f"strftime({utc}, '%Y-%m-%dT%H:%M:%S.%f{'Z' if type_.tz else ''}')"
    if types.is_binary(type_) or types.is_large_binary(type_):
        return f"base64({name})"
    if types.is_floating(type_):  # JSON has no such numbers
        texts = f"WHEN isnan({name}) THEN '\"NaN\"' WHEN {name} > 0 THEN '\"Infinity\"' ELSE '\"-Infinity\"'"
        return f"CASE WHEN {name} IS NULL OR isfinite({name}) THEN to_json({name}) {texts} END"
    return name
