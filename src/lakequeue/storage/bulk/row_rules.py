"""The rules for messages as conditions on the rows of a DataFrame, checked while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs

from lakequeue.errors import InvalidMessageContents, InvalidParameterValue, QueueServiceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

INPUT_COLUMNS = ("body", "delay_seconds", "group_id", "dedup_id", "message_attributes")
ATTRIBUTES = "map<string,struct<type:string,string_value:string,binary_value:binary>>"
_FOREVER = 10_000_000_000.0
"""Seconds: the largest delay that makes a valid instant, where a profile has no limit."""
_OTHERS = "\\x7f-\\ud7ff\\ue000-\\ufffd\\x{10000}-\\x{10ffff}"
# Java matches a class of single characters from a bit set, several times faster than ranges
_ASCII = "".join(f"\\x{code:02x}" for code in (9, 10, 13, *range(32, 127)))
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"


@attrs.frozen
class Fifo:
    """Options of a FIFO queue for the rows of a DataFrame."""

    shards: int = 1
    content_based_deduplication: bool = False
    dedup_by_group: bool = False
    order_by: str | None = None
    """Column that the messages of a group are ordered by; None: the order of the DataFrame."""


class Rule(NamedTuple):
    name: str
    verb: str
    text: str
    error: type[QueueServiceError] = InvalidParameterValue

    def describe(self, count: int) -> str:
        if count != 1:
            return f"{count:,} rows {self.verb} {self.text}"
        return f"1 row {_SINGULAR.get(self.verb, f'{self.verb}s')} {self.text}"


_SINGULAR = {"have": "has", "are": "is"}


CHARACTERS = Rule("characters", "have", "characters that are not allowed (SND-12)", InvalidMessageContents)


def allowed_characters() -> Column:
    from pyspark.sql import functions as F

    body = F.col("body")
    return body.rlike(f"^[{_ASCII}]*\\z") | body.rlike(f"^[{_ASCII}{_OTHERS}]*\\z")


def check_columns(df: DataFrame, order_by: str | None = None) -> None:
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    unknown = sorted(set(types) - {*INPUT_COLUMNS, order_by})
    if unknown:
        raise InvalidParameterValue(
            f"Columns {', '.join(unknown)} are not known; a DataFrame of messages has {', '.join(INPUT_COLUMNS)}."
        )
    if len(df.columns) != len(types):
        raise InvalidParameterValue("A column appears more than once.")
    if "body" not in types:
        raise InvalidParameterValue("The column body is missing.")
    for name in ("body", "group_id", "dedup_id"):
        if types.get(name, "string") not in ("string", "void"):
            raise InvalidParameterValue(f"The column {name} is {types[name]}, it must be string.")
    delay = types.get("delay_seconds", "double")
    if delay not in ("tinyint", "smallint", "int", "bigint", "float", "double", "void") and "decimal" not in delay:
        raise InvalidParameterValue(f"The column delay_seconds is {delay}, it must be a number of seconds.")
    attributes = types.get("message_attributes", ATTRIBUTES)
    if attributes not in (ATTRIBUTES, "map<string,string>", "void"):
        raise InvalidParameterValue(
            f"The column message_attributes is {attributes}, it must be map<string,string> or {ATTRIBUTES}."
        )
    if order_by is not None and order_by not in types:
        raise InvalidParameterValue(f"The column {order_by}, which order_by names, is missing.")


def row_rules(
    given: set[str],
    max_bytes: int,
    max_delay: float | None,
    fifo: Fifo | None,
    count_attributes: bool,
) -> list[tuple[Rule, Column]]:
    """Rules, each with the condition under which a row breaks it; missing columns cost nothing."""
    from pyspark.sql import functions as F

    body = F.col("body")
    size = F.octet_length(body)
    rules: list[tuple[Rule, Column]] = [
        (Rule("missing", "have", "no body (SND-1)"), body.isNull() | (F.octet_length(body) == 0)),
    ]
    if "message_attributes" in given:
        if count_attributes:
            size = size + F.coalesce(_attribute_bytes(), F.lit(0))
        rules.append(
            (
                Rule("attributes", "break", "the rules for message attributes (MSA-3)"),
                ~F.coalesce(_attributes_allowed(), F.lit(False)) & F.col("message_attributes").isNotNull(),
            )
        )
    rules.insert(1, (Rule("size", "are", f"longer than {max_bytes} bytes (SND-2)"), size > max_bytes))
    if "delay_seconds" in given:
        delay = F.col("delay_seconds")
        if fifo is not None:
            rules.append((Rule("delay", "have", "a delay, which FIFO queues refuse (SND-6)"), delay != 0))
        else:
            limit = _FOREVER if max_delay is None else max_delay
            text = f"a delay_seconds outside 0..{limit:g} (DLY-3)"
            rules.append((Rule("delay", "have", text), ~delay.between(0, limit)))
    identifier = r"^[!-~]{1,128}\z"
    if fifo is not None:
        group = F.col("group_id")
        rules.append(
            (
                Rule("group", "have", "no valid group_id (SND-4)"),
                ~F.coalesce(group.rlike(identifier), F.lit(False)),
            )
        )
        dedup = F.col("dedup_id")
        rules.append((Rule("dedup", "have", "an invalid dedup_id (SND-13)"), ~dedup.rlike(identifier)))
        if not fifo.content_based_deduplication:
            rules.append((Rule("no_dedup", "have", "no dedup_id (SND-5)"), dedup.isNull()))
        if fifo.order_by is not None:
            rules.append((Rule("order", "have", f"no {fifo.order_by} to order by"), F.col("_order").isNull()))
    else:
        if "group_id" in given:
            rules.append(
                (Rule("group", "have", "an invalid group_id (SND-13)"), ~F.col("group_id").rlike(identifier))
            )
        if "dedup_id" in given:
            text = "a dedup_id, which standard queues refuse (SND-14)"
            rules.append((Rule("dedup", "have", text), F.col("dedup_id").isNotNull()))
    return rules


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
    return (count <= 10) & (F.size(good) == count)


def refuse(broken: Sequence[tuple[Rule, int]]) -> None:
    if broken:
        said = "; ".join(rule.describe(count) for rule, count in broken)
        # one error for the call: that for characters only if nothing else is wrong
        error = broken[0][0].error if len({rule.error for rule, _ in broken}) == 1 else InvalidParameterValue
        raise error(f"Nothing was sent: {said}.")
