"""Converts Arrow rows to messages. The body of a message is one column, or the whole row as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

import pyarrow as pa

from lakequeue.errors import InvalidParameterValue

WHOLE_ROW = "*"
_KEPT = ("group_id", "dedup_id", "delay_seconds", "message_attributes")


class Bodies:
    """Makes the columns of messages for ``Queue.send_arrow``. The body is one column, or the whole row as JSON.

    The JSON is equal to Spark's: no NULL fields, exact decimals, instants in UTC with microseconds, bytes in
    base64.

    Args:
        body: the column with the bodies, or ``*`` for the whole row.
        order_by: a further column to keep.
        has_priorities: True to keep a column of priorities.
        columns: maps names of message columns to names of row columns, where they differ.

    Raises:
        InvalidParameterValue: a column does not exist.
    """

    def __init__(
        self,
        schema: pa.Schema,
        body: str,
        order_by: str | None,
        has_priorities: bool,
        columns: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if body not in (WHOLE_ROW, *schema.names):
            reason = f"There is no such column; there are {', '.join(schema.names)}."
            raise InvalidParameterValue.of(body, "body", reason)
        if body == WHOLE_ROW and len(set(schema.names)) < len(schema):
            raise InvalidParameterValue.of(body, "body", "Two columns have the same name.")
        self._body = body
        names = {*_KEPT, order_by or "body", *(["priority"] if has_priorities else [])} - {"body"}
        found = {name: columns.get(name, name) for name in sorted({*names, *columns})}
        self._kept = {name: column for name, column in found.items() if column in schema.names}
        for name in columns.keys() - self._kept.keys():
            reason = f"There is no such column; there are {', '.join(schema.names)}."
            raise InvalidParameterValue.of(columns[name], f"{name.partition('_')[0]}_column", reason)
        type_ = pa.string() if body == WHOLE_ROW else schema.field(body).type
        kept = [(name, _message_type(name, columns, schema)) for name in self._kept]
        self.schema = pa.schema([("body", type_), *kept])

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one batch of messages for each batch of rows."""
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
        kept = (batch.column(column) for column in self._kept.values())
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip((bodies, *kept), self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _message_type(name: str, columns: Mapping[str, str], found: pa.Schema) -> pa.DataType:
    """Returns the type that a column of messages gets. An integer column that is used as an id becomes text."""
    type_ = found.field(columns.get(name, name)).type
    return pa.string() if name in columns and name.endswith("_id") and pa.types.is_integer(type_) else type_


def _json(names: Sequence[str], given: pa.Schema) -> str:
    fields = [(name, field.name, field.type) for name, field in zip(names, given, strict=True)]
    return _object(fields, 0)


_OTHER_BYTES = (pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def _readable(column: pa.Array) -> pa.Array:
    """Casts fixed-size and view binary columns to plain binary, because DuckDB would read them as text."""
    return column.cast(pa.binary()) if any(is_(column.type) for is_ in _OTHER_BYTES) else column


def _object(fields: Sequence[tuple[str, str, pa.DataType]], depth: int) -> str:
    pairs = [
        f"{_quoted(f'{json.dumps(name, ensure_ascii=False)}:')} || {_text(value, type_, depth)}"
        for name, value, type_ in fields
    ]
    return f"'{{' || concat_ws(',', {', '.join(pairs) or 'NULL'}) || '}}'"


def _text(value: str, type_: pa.DataType, depth: int = 0) -> str:
    """Returns the SQL for a value as JSON text. DuckDB's functions would round decimals to doubles."""
    types, item = pa.types, f"e{depth}"
    if types.is_dictionary(type_):
        return _text(value, type_.value_type, depth)
    if types.is_struct(type_):
        fields = [(field.name, f"({value})[{_quoted(field.name)}]", field.type) for field in type_]
        return f"CASE WHEN {value} IS NOT NULL THEN {_object(fields, depth)} END"
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        each = f"coalesce({_text(item, type_.value_type, depth + 1)}, 'null')"
        return f"'[' || array_to_string(list_transform({value}, lambda {item}: {each}), ',') || ']'"
    if types.is_map(type_):
        key = f"to_json(({item}).key::VARCHAR)::VARCHAR"
        each = f"{key} || ':' || coalesce({_text(f'({item}).value', type_.item_type, depth + 1)}, 'null')"
        pairs = f"list_transform(map_entries({value}), lambda {item}: {each})"
        return f"'{{' || array_to_string({pairs}, ',') || '}}'"
    if types.is_timestamp(type_):
        utc = f"{value} AT TIME ZONE 'UTC'" if type_.tz else value
        return f"strftime({utc}, '\"%Y-%m-%dT%H:%M:%S.%f{'Z' if type_.tz else ''}\"')"
    if any(is_(type_) for is_ in (types.is_binary, types.is_large_binary, *_OTHER_BYTES)):
        return f"'\"' || base64({value}) || '\"'"
    if types.is_floating(type_):  # JSON has no such numbers
        texts = f"WHEN isnan({value}) THEN '\"NaN\"' WHEN {value} > 0 THEN '\"Infinity\"' ELSE '\"-Infinity\"'"
        return f"CASE WHEN {value} IS NULL OR isfinite({value}) THEN to_json({value})::VARCHAR {texts} END"
    return f"{value}::VARCHAR" if types.is_decimal(type_) else f"to_json({value})::VARCHAR"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
