"""The rules for messages as conditions on the rows of a DataFrame, checked while they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from lakequeue.model.validation import MAX_ATTRIBUTES
from lakequeue.storage.bulk.message_rules import RowRules, Rule

if TYPE_CHECKING:
    from pyspark.sql import Column

_OTHERS = "\\x7f-\\ud7ff\\ue000-\\ufffd\\x{10000}-\\x{10ffff}"
# Java matches a class of single characters from a bit set, several times faster than ranges
_ASCII = "".join(f"\\x{code:02x}" for code in (9, 10, 13, *range(32, 127)))
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
_IDENTIFIER = r"^[!-~]{1,128}\z"


def allowed_characters() -> Column:
    from pyspark.sql import functions as F

    body = F.col("body")
    return body.rlike(f"^[{_ASCII}]*\\z") | body.rlike(f"^[{_ASCII}{_OTHERS}]*\\z")


def broken_rules(given: Collection[str], rules: RowRules) -> list[tuple[Rule, Column]]:
    """Rules, each with the condition under which a row breaks it; missing columns cost nothing."""
    return [(rule, _CONDITIONS[rule.name](given, rules)) for rule in rules.of(given)]


def _missing(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    return F.col("body").isNull() | (F.octet_length("body") == 0)


def _size(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    size = F.octet_length("body")
    if "message_attributes" in given and rules.count_attributes:
        size = size + F.coalesce(_attribute_bytes(), F.lit(0))
    return size > rules.max_bytes


def _attributes(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    return ~F.coalesce(_attributes_allowed(), F.lit(False)) & F.col("message_attributes").isNotNull()


def _delay(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    delay = F.col("delay_seconds")
    return delay != 0 if rules.fifo is not None else ~delay.between(0, rules.longest_delay)


def _group(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    valid = F.col("group_id").rlike(_IDENTIFIER)
    return ~valid if rules.fifo is None else ~F.coalesce(valid, F.lit(False))


def _dedup(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    dedup = F.col("dedup_id")
    return dedup.isNotNull() if rules.fifo is None else ~dedup.rlike(_IDENTIFIER)


def _no_dedup(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    return F.col("dedup_id").isNull()


def _order(given: Collection[str], rules: RowRules) -> Column:
    from pyspark.sql import functions as F

    return F.col("_order").isNull()


_CONDITIONS: dict[str, Callable[[Collection[str], RowRules], Column]] = {
    "missing": _missing,
    "size": _size,
    "attributes": _attributes,
    "delay": _delay,
    "group": _group,
    "dedup": _dedup,
    "no_dedup": _no_dedup,
    "order": _order,
}


def _attribute_bytes() -> Column:
    from pyspark.sql import functions as F

    def added(total: Column, entry: Column) -> Column:
        value = entry.value
        parts = (entry.key, value.type, value.string_value, value.binary_value)
        return sum((F.coalesce(F.octet_length(part), F.lit(0)) for part in parts), total)

    return F.aggregate(F.map_entries("message_attributes"), F.lit(0), added)


def _attributes_allowed() -> Column:
    from pyspark.sql import functions as F

    def name_allowed(name: Column, value: Column) -> Column:
        return (
            name.rlike(r"^(?!\.)(?!(?i:aws|amazon)\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)\z")
            & value.type.rlike(r"^(String|Number|Binary)(\.[^\x00-\x1f]+)?\z")
            & F.when(
                value.type.startswith("Binary"),
                value.string_value.isNull() & (F.octet_length(value.binary_value) > 0),
            )
            .when(
                value.type.startswith("Number"),
                value.binary_value.isNull() & value.string_value.rlike(_NUMBER),
            )
            .otherwise(value.binary_value.isNull() & value.string_value.rlike(f"^[{_ASCII}{_OTHERS}]+\\z"))
        )

    good = F.map_filter(
        "message_attributes", lambda name, value: F.coalesce(name_allowed(name, value), F.lit(False))
    )
    count = F.size("message_attributes")
    return (count <= MAX_ATTRIBUTES) & (F.size(good) == count)
