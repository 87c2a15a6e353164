"""Converts and checks the Arrow rows of a bulk send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.validation import MAX_ATTRIBUTES
from lakequeue.storage import layout
from lakequeue.storage.bulk.message_rules import ATTRIBUTES, PRIORITY, TEXT_ATTRIBUTES, RowRules
from lakequeue.storage.bulk.staged_files import ROW_GROUP
from lakequeue.storage.store_failures import first_line

ORDER, NUMBER = "_order", "_number"
_ROWS = 2_048
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
    """Returns the names and types of columns. Types have the names that Spark uses."""
    return [(field.name, type_name(field.type)) for field in schema]


def type_name(type_: pa.DataType) -> str:
    """Returns Spark's name of an Arrow type, or Arrow's name if Spark has no name for the type."""
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


def normalized(batches: Iterable[pa.RecordBatch], rules: RowRules) -> Iterator[pa.RecordBatch]:
    """Converts rows to the types of the table ``messages``. Yields batches of about one row group."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for start in range(0, len(batch), _ROWS):
            for piece in _pieces(batch.slice(start, _ROWS), rules):
                pending.append(piece)
                size += piece.nbytes
                if size >= ROW_GROUP:
                    yield _joined(pending)
                    pending, size = [], 0
    if pending:
        yield _joined(pending)


def _pieces(rows: pa.RecordBatch, rules: RowRules) -> Iterator[pa.RecordBatch]:
    try:
        converted = _converted(rows, rules)
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
    yield from _pieces(rows.slice(0, half), rules)
    yield from _pieces(rows.slice(half), rules)


def _unreadable(error: Exception) -> InvalidParameterValue:
    return InvalidParameterValue(f"Nothing was sent: rows cannot be read: {first_line(error)}.")


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    [joined] = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return joined


def _converted(rows: pa.RecordBatch, rules: RowRules) -> pa.RecordBatch:
    found = {name: index for index, name in enumerate(rows.schema.names)}
    columns = {}
    for name, type_ in (_TYPES if rules.priorities is None else _TYPES | {PRIORITY: pa.float64()}).items():
        if name not in found:
            columns[name] = pa.nulls(len(rows), type_)
        elif name == "message_attributes":
            columns[name] = _attributes(rows.column(found[name]))
        else:
            columns[name] = _plain(rows.column(found[name])).cast(type_)
    # a producer may hand over any bytes; in a file they would break every reader of the queue
    for name in ("body", "group_id", "dedup_id", "message_attributes"):
        columns[name].validate(full=True)
    if rules.order_by is not None:
        columns[ORDER] = _plain(rows.column(found[rules.order_by]))
    return pa.RecordBatch.from_pydict(columns)


def _plain(column: pa.Array) -> pa.Array:
    """Returns a column as plain text or bytes, because some functions of Arrow refuse dictionaries and views."""
    if pa.types.is_dictionary(column.type):
        values = _plain(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    plain = {"string": pa.string(), "binary": pa.binary()}.get(type_name(column.type))
    return column if plain is None else column.cast(plain)


def _attributes(column: pa.Array) -> pa.MapArray:
    """Converts message attributes to their type in the table ``messages``."""
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


_REFUSED = r"[\x00-\x08\x0B\x0C\x0E-\x1F\x{FFFE}\x{FFFF}]"
ALLOWED = r"[\t\n\r\x20-\x{D7FF}\x{E000}-\x{FFFD}\x{10000}-\x{10FFFF}]"
"""Regular expression for a single character that messages may contain."""
_ALLOWED_CONTROLS = (0x09, 0x0A, 0x0D)
_FIRST_BYTE_OF_NONCHARACTERS = 0xEF


def has_refused(bodies: pa.StringArray) -> pa.Array:
    """Returns True for each text that has a character that messages must not contain."""
    if not _suspicious(bodies):
        return pa.repeat(False, len(bodies))
    return pc.match_substring_regex(bodies, _REFUSED)


def _suspicious(bodies: pa.StringArray) -> bool:
    _, offsets, data = bodies.buffers()
    if data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32)[[bodies.offset, bodies.offset + len(bodies)]]
    text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]]
    controls = np.count_nonzero(text < 0x20)
    allowed = sum(np.count_nonzero(text == code) for code in _ALLOWED_CONTROLS) if controls else 0
    return bool(controls != allowed or np.any(text == _FIRST_BYTE_OF_NONCHARACTERS))


_IDENTIFIER = r"^[!-~]{1,128}$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_NAME = r"^[A-Za-z0-9_.-]{1,256}$"
_NOT_A_NAME = r"^\.|\.$|\.\.|^(?i:aws|amazon)\."
_TYPE = r"^(String|Number|Binary)(\.[^\x00-\x1f]+)?$"


def broken_rows(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> dict[str, pa.Array]:
    """Returns a mask of the wrong rows for each broken rule. ``given`` names the columns that the caller sent."""
    found = {rule.name: _CONDITIONS[rule.name](rows, given, rules) for rule in rules.of(given)}
    return {name: which for name, which in found.items() if pc.any(which).as_py()}


def _size(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    size = pc.binary_length(rows["body"])
    if "message_attributes" in given and rules.count_attributes:
        size = pc.add(size.cast(pa.int64()), _attribute_bytes(rows["message_attributes"]))
    return pc.greater(size, rules.max_bytes)


def _delay(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    delay = rows["delay_seconds"]
    if rules.fifo is not None:
        return pc.not_equal(delay, 0)
    return pc.invert(pc.and_(pc.greater_equal(delay, 0), pc.less_equal(delay, rules.longest_delay)))


def _priority(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    known = pa.array([*range(rules.priorities or 1), None], pa.float64())
    return pc.invert(pc.is_in(rows[PRIORITY], value_set=known))


def _group(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    valid = pc.match_substring_regex(rows["group_id"], _IDENTIFIER)
    return pc.invert(valid if rules.fifo is None else pc.fill_null(valid, False))


def _dedup(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    dedup = rows["dedup_id"]
    return pc.is_valid(dedup) if rules.fifo is None else pc.invert(pc.match_substring_regex(dedup, _IDENTIFIER))


_CONDITIONS: Mapping[str, Callable[[pa.RecordBatch, Collection[str], RowRules], pa.Array]] = {
    "missing": lambda rows, given, rules: pc.equal(pc.fill_null(pc.binary_length(rows["body"]), 0), 0),
    "size": _size,
    "attributes": lambda rows, given, rules: pa.array(_attributes_refused(rows["message_attributes"])),
    "delay": _delay,
    PRIORITY: _priority,
    "group": _group,
    "dedup": _dedup,
    "no_dedup": lambda rows, given, rules: pc.is_null(rows["dedup_id"]),
    "order": lambda rows, given, rules: pc.is_null(rows[ORDER]),
    "characters": lambda rows, given, rules: has_refused(rows["body"]),
}


def _attribute_bytes(attributes: pa.MapArray) -> pa.Array:
    entries, place = _entries(attributes)
    values = (pc.struct_field(entries.field("value"), name) for name in ("type", "string_value", "binary_value"))
    size = sum(
        pc.fill_null(pc.binary_length(part), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        for part in (entries.field("key"), *values)
    )
    return pa.array(np.bincount(place, weights=size, minlength=len(attributes)).astype(np.int64))


def _attributes_refused(attributes: pa.MapArray) -> npt.NDArray[np.bool_]:
    """Returns True for each row whose message attributes are too many, invalid or repeated."""
    entries, place = _entries(attributes)
    good = pc.fill_null(_allowed(entries), False).to_numpy(zero_copy_only=False)
    bad = np.bincount(place[~good], minlength=len(attributes)) > 0
    codes = entries.field("key").dictionary_encode()
    names = np.unique(place * max(1, len(codes.dictionary)) + codes.indices.to_numpy())
    distinct = np.bincount(names // max(1, len(codes.dictionary)), minlength=len(attributes))
    count = np.bincount(place, minlength=len(attributes))
    return bad | (count > MAX_ATTRIBUTES) | (distinct < count)


def _entries(attributes: pa.MapArray) -> tuple[pa.StructArray, npt.NDArray[np.int64]]:
    pairs = attributes.cast(pa.list_(pa.struct([*attributes.type.field(0).type])))
    place = pc.list_parent_indices(pairs).to_numpy(zero_copy_only=False)
    return pc.list_flatten(pairs), place.astype(np.int64)


def _allowed(entries: pa.StructArray) -> pa.Array:
    name, value = entries.field("key"), entries.field("value")
    type_, text, binary = (pc.struct_field(value, part) for part in ("type", "string_value", "binary_value"))
    good_name = pc.and_(
        pc.match_substring_regex(name, _NAME), pc.invert(pc.match_substring_regex(name, _NOT_A_NAME))
    )
    is_binary = pc.and_(pc.is_null(text), pc.greater(pc.binary_length(binary), 0))
    is_number = pc.and_(pc.is_null(binary), pc.match_substring_regex(text, _NUMBER))
    is_text = pc.and_(pc.is_null(binary), pc.match_substring_regex(text, f"^{ALLOWED}+$"))
    good_value = pc.if_else(
        pc.starts_with(type_, "Binary"), is_binary, pc.if_else(pc.starts_with(type_, "Number"), is_number, is_text)
    )
    return pc.and_(pc.and_(good_name, pc.match_substring_regex(type_, _TYPE)), good_value)
