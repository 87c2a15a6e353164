"""Rows of Arrow on their way into a bulk send: types as ``messages`` has them, in pieces of a row group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import InvalidParameterValue
from lakequeue.storage import layout
from lakequeue.storage.bulk.message_rules import ATTRIBUTES, TEXT_ATTRIBUTES
from lakequeue.storage.bulk.staged_files import ROW_GROUP
from lakequeue.storage.store_failures import first_line

ORDER, NUMBER = "_order", "_number"
_ROWS = 2_048
"""Rows that are converted at once: a view of texts may share its bytes with millions of other rows."""
_NAMES = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.uint8(): "smallint",
    pa.int32(): "int",
    pa.uint16(): "int",
    pa.int64(): "bigint",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
}
_TYPES = {
    "body": pa.string(),
    "message_attributes": layout.MESSAGES.field("message_attributes").type,
    "group_id": pa.string(),
    "dedup_id": pa.string(),
    "delay_seconds": pa.float64(),
}


def columns_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Names and types of columns, called as in Spark."""
    return [(field.name, type_name(field.type)) for field in schema]


def type_name(type_: pa.DataType) -> str:
    """Spark's name of a type, or Arrow's where it has none; a list of (key, value), as of polars, is a map."""
    if pa.types.is_dictionary(type_):
        return type_name(type_.value_type)
    if pa.types.is_map(type_):
        return f"map<{type_name(type_.key_type)},{type_name(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        entry = type_.value_type
        if pa.types.is_struct(entry) and [field.name for field in entry] == ["key", "value"]:
            return f"map<{type_name(entry[0].type)},{type_name(entry[1].type)}>"
        return f"array<{type_name(entry)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in type_)}>"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _NAMES.get(type_, str(type_))


def normalized(batches: Iterable[pa.RecordBatch], order_by: str | None) -> Iterator[pa.RecordBatch]:
    """The rows with all input columns in the types of ``messages``, and ``_order``; about a row group at a time.

    Args:
        batches: rows of any number, whose columns ``check_columns`` has accepted.
        order_by: column that becomes ``_order``.
    """
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for start in range(0, len(batch), _ROWS):
            for piece in _pieces(batch.slice(start, _ROWS), order_by):
                pending.append(piece)
                size += piece.nbytes
                if size >= ROW_GROUP:
                    yield _joined(pending)
                    pending, size = [], 0
    if pending:
        yield _joined(pending)


def _pieces(rows: pa.RecordBatch, order_by: str | None) -> Iterator[pa.RecordBatch]:
    """Converted rows, at most about a row group each; long texts come in smaller pieces."""
    try:
        converted = _converted(rows, order_by)
    except pa.ArrowInvalid as error:
        if "overflow" not in str(error).lower() or len(rows) < 2:
            raise _unreadable(error) from None
    except pa.ArrowException as error:
        raise _unreadable(error) from None
    else:
        if len(rows) < 2 or converted.nbytes <= ROW_GROUP:
            yield converted
            return
    half = len(rows) // 2
    yield from _pieces(rows.slice(0, half), order_by)
    yield from _pieces(rows.slice(half), order_by)


def _unreadable(error: Exception) -> InvalidParameterValue:
    return InvalidParameterValue(f"Nothing was sent: rows cannot be read: {first_line(error)}.")


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    [joined] = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return joined


def _converted(rows: pa.RecordBatch, order_by: str | None) -> pa.RecordBatch:
    found = {name: index for index, name in enumerate(rows.schema.names)}
    columns = {}
    for name, type_ in _TYPES.items():
        if name not in found:
            columns[name] = pa.nulls(len(rows), type_)
        elif name == "message_attributes":
            columns[name] = _attributes(rows.column(found[name]))
        else:
            columns[name] = _plain(rows.column(found[name])).cast(type_)
    # a producer may hand over any bytes; in a file they would break every reader of the queue
    for name in ("body", "group_id", "dedup_id", "message_attributes"):
        columns[name].validate(full=True)
    if order_by is not None:
        columns[ORDER] = _plain(rows.column(found[order_by]))
    return pa.RecordBatch.from_pydict(columns)


def _plain(column: pa.Array) -> pa.Array:
    """Values instead of dictionaries and views, for which Arrow lacks some functions."""
    if pa.types.is_dictionary(column.type):
        values = _plain(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    plain = {"string": pa.string(), "binary": pa.binary()}.get(type_name(column.type))
    return column if plain is None else column.cast(plain)


def _attributes(column: pa.Array) -> pa.MapArray:
    """Message attributes as ``messages`` has them: maps or lists of pairs, texts or typed values."""
    type_ = _TYPES["message_attributes"]
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), type_)
    null = column.is_null().to_numpy(zero_copy_only=False)
    if np.any(null[np.diff(column.offsets.to_numpy()) > 0]):  # entries below a NULL, which no one should see
        column = pa.array(column.to_pylist(), column.type)
    offsets = column.offsets.to_numpy()
    entries, first = slice(offsets[0], offsets[-1]), offsets[0]
    if pa.types.is_map(column.type):
        keys, values = column.keys[entries], column.items[entries]
    else:
        keys, values = (pc.struct_field(column.values[entries], name) for name in ("key", "value"))
    values = _plain(values)
    if type_name(column.type) == TEXT_ATTRIBUTES:
        texts = values.cast(pa.string())
        fields = [pa.repeat(pa.scalar("String"), len(texts)), texts, pa.nulls(len(texts), pa.binary())]
    else:
        assert type_name(column.type) == ATTRIBUTES
        fields = [_plain(pc.struct_field(values, field.name)).cast(field.type) for field in layout.ATTRIBUTE_VALUE]
    typed = pa.StructArray.from_arrays(fields, fields=list(layout.ATTRIBUTE_VALUE))
    # NULL where a map is NULL: such a row has no attributes
    bounds = pa.array(offsets - first, pa.int32(), mask=np.append(null, False))
    return pa.MapArray.from_arrays(bounds, _plain(keys).cast(pa.string()), typed).cast(type_)
