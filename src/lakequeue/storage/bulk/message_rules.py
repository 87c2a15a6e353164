"""The rules for the rows of a bulk send."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import attrs

from lakequeue.errors import InvalidMessageContents, InvalidParameterValue, QueueServiceError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS

INPUT_COLUMNS = ("body", "delay_seconds", "group_id", "dedup_id", "message_attributes")
PRIORITY = "priority"
"""Name of the additional input column for queues with priorities."""
ATTRIBUTES = "map<string,struct<type:string,string_value:string,binary_value:binary>>"
TEXT_ATTRIBUTES = "map<string,string>"
FOREVER = 10_000_000_000.0
"""Longest delay, in seconds, if the profile sets no limit. A longer delay could not be stored as an instant."""

_WHOLE_ROWS = '; to_json(struct(*)) in Spark, or body="*" in send_arrow, makes a body of each row.'
_NUMBERS = {"tinyint", "smallint", "int", "bigint", "float", "double"}


@attrs.frozen
class Fifo:
    """Options of a FIFO queue that bulk sends use."""

    shards: int = 1
    content_based_deduplication: bool = False
    dedup_by_group: bool = False
    order_by: str | None = None
    """Column by which messages of a group are ordered. If None, the rows keep their order."""


class Rule(NamedTuple):
    name: str
    verb: str
    text: str
    error: type[QueueServiceError] = InvalidParameterValue

    @property
    def of_one(self) -> str:
        """Says in words how one row breaks the rule. The column ``reason`` has these words."""
        return f"{_SINGULAR.get(self.verb, f'{self.verb}s')} {self.text}"

    def describe(self, count: int) -> str:
        return f"1 row {self.of_one}" if count == 1 else f"{count:,} rows {self.verb} {self.text}"


_SINGULAR = {"have": "has", "are": "is"}


@attrs.frozen
class RowRules:
    """The rules for the rows of a bulk send.

    Attributes:
        max_bytes: the largest message, in UTF-8 bytes (SND-2).
        default_delay: seconds for rows without ``delay_seconds`` (DLY-9).
        max_delay: largest delay of a row, in seconds; None for no limit.
        fifo: options of a FIFO queue; None on standard queues.
        count_attributes: True if message attributes count towards ``max_bytes``.
        by_group: True if standard queues choose shards by message group (FAI-5).
        priorities: number of the queue's priorities; None without priorities (JOB-5).
        default_priority: priority of rows without a priority.
    """

    max_bytes: int
    default_delay: float = 0.0
    max_delay: float | None = None
    fifo: Fifo | None = None
    count_attributes: bool = True
    by_group: bool = False
    priorities: int | None = None
    default_priority: int = 0

    @classmethod
    def of_queue(cls, attributes: QueueAttributes, order_by: str | None = None, priority: int = 0) -> RowRules:
        """Returns the rules for rows sent to a queue."""
        delay, fifo = attributes.limits("delay"), None
        if attributes.fifo:
            by_content = bool(attributes.content_based_deduplication)
            fifo = Fifo(attributes.shards, by_content, attributes.dedup_by_group, order_by)
        return cls(
            max_bytes=attributes.maximum_message_size,
            default_delay=attributes.delay_micros / MICROS,
            max_delay=None if delay.high is None else float(delay.high),
            fifo=fifo,
            count_attributes=attributes.profile_rules.attributes_count_in_size,
            by_group=attributes.by_group,
            priorities=attributes.priorities,
            default_priority=priority,
        )

    @property
    def order_by(self) -> str | None:
        return None if self.fifo is None else self.fifo.order_by

    @property
    def longest_delay(self) -> float:
        """Maximum delay of a row, in seconds."""
        return FOREVER if self.max_delay is None else self.max_delay

    def of(self, given: Collection[str]) -> list[Rule]:
        """Returns the rules for rows with the columns ``given``, in the order in which error texts name them."""
        rules = [
            Rule("missing", "have", "no body (SND-1)"),
            Rule("size", "are", f"longer than {self.max_bytes} bytes (SND-2)"),
        ]
        if "message_attributes" in given:
            rules.append(Rule("attributes", "break", "the rules for message attributes (MSA-3)"))
        if "delay_seconds" in given:
            outside = f"a delay_seconds outside 0..{self.longest_delay:g} (DLY-3)"
            refused = "a delay, which FIFO queues refuse (SND-6)"
            rules.append(Rule("delay", "have", outside if self.fifo is None else refused))
        if PRIORITY in given and self.priorities is not None:
            rules.append(Rule("priority", "have", f"a priority that is none of 0..{self.priorities - 1} (JOB-5)"))
        if self.fifo is not None:
            rules.append(Rule("group", "have", "no valid group_id (SND-4)"))
            rules.append(Rule("dedup", "have", "an invalid dedup_id (SND-13)"))
            if not self.fifo.content_based_deduplication:
                rules.append(Rule("no_dedup", "have", "no dedup_id (SND-5)"))
            if self.fifo.order_by is not None:
                rules.append(Rule("order", "have", f"no {self.fifo.order_by} to order by"))
        else:
            if "group_id" in given:
                rules.append(Rule("group", "have", "an invalid group_id (SND-13)"))
            if "dedup_id" in given:
                rules.append(Rule("dedup", "have", "a dedup_id, which standard queues refuse (SND-14)"))
        said = "characters that are not allowed (SND-12)"
        return [*rules, Rule("characters", "have", said, InvalidMessageContents)]

    def describe(self, given: Collection[str], broken: Mapping[str, int]) -> str:
        """Describes the broken rules, with the number of rows that break each rule."""
        return "; ".join(rule.describe(broken[rule.name]) for rule in self.of(given) if broken.get(rule.name))

    def refuse(self, given: Collection[str], broken: Mapping[str, int]) -> None:
        """Raises InvalidParameterValue for broken rules. If only characters are wrong: InvalidMessageContents."""
        rules = [rule for rule in self.of(given) if broken.get(rule.name)]
        if rules:
            error = rules[0].error if len(rules) == 1 else InvalidParameterValue
            raise error(f"Nothing was sent: {self.describe(given, broken)}.")


def spelled(columns: Sequence[str], order_by: str | None) -> tuple[list[str], str | None]:
    """Returns the names of columns, and ``order_by``, in the upper and lower case that ``messages`` uses."""
    known = {name.lower(): name for name in (*INPUT_COLUMNS, PRIORITY)}
    names = [known.get(column.lower(), column) for column in columns]
    if order_by is not None and order_by not in names:
        order_by = next((name for name in names if name.lower() == order_by.lower()), order_by)
    return names, order_by


def check_columns(attributes: QueueAttributes, columns: Sequence[tuple[str, str]], order_by: str | None) -> None:
    """Refuses columns that cannot make messages of a queue.

    Args:
        columns: names and types. Types have the names that Spark uses.
        order_by: a further column, which must exist.

    Raises:
        InvalidParameterValue: a column is wrong or missing. The text names the column.
    """
    if order_by is not None and not attributes.fifo:
        raise InvalidParameterValue.of(order_by, "order_by", "Standard queues keep no order.")
    has_priorities = attributes.priorities is not None
    types = dict(columns)
    known_columns = (*INPUT_COLUMNS, PRIORITY) if has_priorities else INPUT_COLUMNS
    unknown = sorted(set(types) - {*known_columns, order_by})
    if unknown == [PRIORITY]:
        raise InvalidParameterValue("The column priority is there, but the queue was created without priorities.")
    if unknown:
        hint = "." if "body" in types else _WHOLE_ROWS
        known = f"a DataFrame of messages has {', '.join(known_columns)}{hint}"
        raise InvalidParameterValue(f"Columns {', '.join(unknown)} are not known; {known}")
    if len(columns) != len(types):
        raise InvalidParameterValue("A column appears more than once.")
    if "body" not in types:
        raise InvalidParameterValue(f"The column body is missing{_WHOLE_ROWS}")
    for name in ("body", "group_id", "dedup_id"):
        if types.get(name, "string") not in ("string", "void"):
            hint = _WHOLE_ROWS if name == "body" else "."
            raise InvalidParameterValue(f"The column {name} is {types[name]}, it must be string{hint}")
    numbers = {"delay_seconds": "a number of seconds"} | ({PRIORITY: "a whole number"} if has_priorities else {})
    for name, wanted in numbers.items():
        type_ = types.get(name, "void")
        if type_ not in (*_NUMBERS, "void") and "decimal" not in type_:
            raise InvalidParameterValue(f"The column {name} is {type_}, it must be {wanted}.")
    given = types.get("message_attributes", ATTRIBUTES)
    if given not in (ATTRIBUTES, TEXT_ATTRIBUTES, "void"):
        raise InvalidParameterValue(
            f"The column message_attributes is {given}, it must be {TEXT_ATTRIBUTES} or {ATTRIBUTES}."
        )
    if order_by is not None and order_by not in types:
        raise InvalidParameterValue(f"The column {order_by}, which order_by names, is missing.")
    if attributes.fifo and "group_id" not in types:
        raise InvalidParameterValue("The column group_id is missing; every message of a FIFO queue has a group.")


def no_order(order_by: str, type_: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"The column {order_by} is {type_}, which has no order.")
