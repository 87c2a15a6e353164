"""The rules for messages as conditions on Arrow columns, a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.validation import MAX_ATTRIBUTES
from lakequeue.storage.bulk.arrow_rows import ORDER
from lakequeue.storage.bulk.characters import ALLOWED, count_refused
from lakequeue.storage.bulk.message_rules import CHARACTERS, RowRules

_IDENTIFIER = r"^[!-~]{1,128}$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_NAME = r"^[A-Za-z0-9_.-]{1,256}$"
_NOT_A_NAME = r"^\.|\.$|\.\.|^(?i:aws|amazon)\."
_TYPE = r"^(String|Number|Binary)(\.[^\x00-\x1f]+)?$"


def count_broken(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> dict[str, int]:
    """How many rows break each rule, by its name, without rules that all rows obey.

    Args:
        rows: as ``arrow_rows.normalized`` yields them.
        given: the columns that the caller gave.
        rules: what the rows must obey.
    """
    counts = {rule.name: _true(_CONDITIONS[rule.name](rows, given, rules)) for rule in rules.of(given)}
    counts[CHARACTERS.name] = count_refused(rows["body"])
    return {name: count for name, count in counts.items() if count}


def _true(condition: pa.Array) -> int:
    return pc.sum(condition).as_py() or 0


def _missing(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    return pc.equal(pc.fill_null(pc.binary_length(rows["body"]), 0), 0)


def _size(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    size = pc.binary_length(rows["body"])
    if "message_attributes" in given and rules.count_attributes:
        size = pc.add(size.cast(pa.int64()), _attribute_bytes(rows["message_attributes"]))
    return pc.greater(size, rules.max_bytes)


def _attributes(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    return pa.array(_attributes_refused(rows["message_attributes"]))


def _delay(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    delay = rows["delay_seconds"]
    if rules.fifo is not None:
        return pc.not_equal(delay, 0)
    return pc.invert(pc.and_(pc.greater_equal(delay, 0), pc.less_equal(delay, rules.longest_delay)))


def _group(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    valid = pc.match_substring_regex(rows["group_id"], _IDENTIFIER)
    return pc.invert(valid if rules.fifo is None else pc.fill_null(valid, False))


def _dedup(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    dedup = rows["dedup_id"]
    return pc.is_valid(dedup) if rules.fifo is None else pc.invert(pc.match_substring_regex(dedup, _IDENTIFIER))


def _no_dedup(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    return pc.is_null(rows["dedup_id"])


def _order(rows: pa.RecordBatch, given: Collection[str], rules: RowRules) -> pa.Array:
    return pc.is_null(rows[ORDER])


_CONDITIONS: Mapping[str, Callable[[pa.RecordBatch, Collection[str], RowRules], pa.Array]] = {
    "missing": _missing,
    "size": _size,
    "attributes": _attributes,
    "delay": _delay,
    "group": _group,
    "dedup": _dedup,
    "no_dedup": _no_dedup,
    "order": _order,
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
    """Rows with more attributes than allowed, with a bad one, or with the same name twice."""
    entries, place = _entries(attributes)
    good = pc.fill_null(_allowed(entries), False).to_numpy(zero_copy_only=False)
    bad = np.bincount(place[~good], minlength=len(attributes)) > 0
    codes = entries.field("key").dictionary_encode()
    names = np.unique(place * max(1, len(codes.dictionary)) + codes.indices.to_numpy())
    distinct = np.bincount(names // max(1, len(codes.dictionary)), minlength=len(attributes))
    count = np.bincount(place, minlength=len(attributes))
    return bad | (count > MAX_ATTRIBUTES) | (distinct < count)


def _entries(attributes: pa.MapArray) -> tuple[pa.StructArray, npt.NDArray[np.int64]]:
    """All attributes of some rows, and the row of each."""
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
