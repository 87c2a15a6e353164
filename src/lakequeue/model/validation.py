"""Checks of messages and batches to send."""

from __future__ import annotations

import json as json_format
import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import attrs

from lakequeue.errors import (
    BatchEntryIdsNotDistinct,
    BatchRequestTooLong,
    EmptyBatchRequest,
    InvalidBatchEntryId,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    QueueServiceError,
    TooManyEntriesInBatchRequest,
    coded_for,
)
from lakequeue.model.arguments import check_delay, check_identifier, check_mapping, check_priority
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.messages import (
    ABSENT,
    AttributeInput,
    AttributeValue,
    BatchFailure,
    SendEntry,
    ValidEntry,
    as_bytes,
    content_dedup_id,
)
from lakequeue.model.profiles import DEFAULT_PROFILE

MAX_ATTRIBUTES = 10
MAX_ATTRIBUTE_NAME = 256
TRACE_HEADER = "AWSTraceHeader"
MAX_TRACE_HEADER = 1_024
"""Maximum number of characters in a trace header. The header does not count towards the size of a message."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ATTRIBUTE_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
"""Matches a number. ``Decimal`` would accept more, such as ``1_000``."""
_NUMBERS = (Decimal("-1e128"), Decimal("1e126"))


def normalize_attributes(attributes: Mapping[str, AttributeInput] | None) -> dict[str, AttributeValue]:
    """Returns message attributes with types (MSA-3, MSA-5). Raises InvalidParameterValue if one is malformed."""
    check_mapping("attributes", attributes)
    if not attributes:
        return {}
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidParameterValue(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        )
    normal = {}
    for name, given in attributes.items():
        _check_attribute_name(name)
        normal[name] = _check_attribute_value(name, _typed(name, given))
    return normal


def validate_entry(entry: SendEntry, attributes: QueueAttributes) -> ValidEntry:
    """Checks a message against the attributes of its queue (SND-1..15, DLY-3, DLY-4, MSA-3).

    Raises MissingParameter, InvalidMessageContents for characters that a message cannot carry, or
    InvalidParameterValue for any other argument.
    """
    with coded_for(attributes.profile):
        _check_required(entry, attributes)
        _check_ids(entry, attributes)
        return _valid_content(entry, attributes)


def validate_batch(entries: Sequence[SendEntry], attributes: QueueAttributes) -> list[ValidEntry | BatchFailure]:
    """Checks a batch in the order of BAT-7. Returns a result per entry (BAT-4), or refuses the call (BAT-5)."""
    ids = [str(n) if entry.id is None else entry.id for n, entry in enumerate(entries)]
    check_batch_ids(ids, attributes)
    with coded_for(attributes.profile):
        _check_fifo_batch(entries, attributes)
        results = [_entry_result(id, entry, attributes) for id, entry in zip(ids, entries, strict=True)]
        limit = attributes.profile_rules.batch_bytes
        if limit is not None:
            total = sum(
                result.size if isinstance(result, ValidEntry) else _body_size(entry.body)
                for result, entry in zip(results, entries, strict=True)
            )
            if total > limit:
                raise BatchRequestTooLong(
                    f"Batch requests cannot be longer than {limit} bytes. You have sent {total} bytes."
                )
    return results


def check_batch_ids(ids: Sequence[str], attributes: QueueAttributes) -> None:
    """Refuses empty and oversized batches. Also refuses malformed or repeated ids (BAT-1, BAT-5, BAT-7)."""
    most = attributes.profile_rules.max_batch
    with coded_for(attributes.profile):
        if not ids:
            raise EmptyBatchRequest()
        if most is not None and len(ids) > most:
            raise TooManyEntriesInBatchRequest(
                f"Maximum number of entries per request are {most}. You have sent {len(ids)}."
            )
        for id in ids:
            if not isinstance(id, str) or not _ENTRY_ID.fullmatch(id):
                raise InvalidBatchEntryId()
        seen: set[str] = set()
        for id in ids:
            if id in seen:
                raise BatchEntryIdsNotDistinct(f"Id {id} repeated.")
            seen.add(id)


def _entry_result(id: str, entry: SendEntry, attributes: QueueAttributes) -> ValidEntry | BatchFailure:
    try:
        return validate_entry(entry, attributes)
    except QueueServiceError as error:
        return BatchFailure.of(id, error, attributes.profile)


def _valid_content(entry: SendEntry, attributes: QueueAttributes) -> ValidEntry:
    body = _check_body(entry.body if entry.json is ABSENT else _json_body(entry))
    delay = check_delay(attributes, entry.delay)
    message_attributes = normalize_attributes(entry.attributes)
    dedup_id = entry.dedup_id
    if dedup_id is None and attributes.fifo:
        dedup_id = content_dedup_id(body)
    size = _body_size(body)
    if attributes.profile_rules.attributes_count_in_size:
        size += sum(len(n.encode()) + len(t) + len(as_bytes(v)) for n, (t, v) in message_attributes.items())
    if size > attributes.maximum_message_size:
        fault = "are invalid" if entry.id is None else "cannot be validated"  # in the words of AWS
        raise InvalidParameterValue(
            f"One or more parameters {fault}. "
            f"Reason: Message must be shorter than {attributes.maximum_message_size} bytes.",
            hint=f"its size is {size:,} bytes; store a larger body elsewhere, and send its place",
        )
    return ValidEntry(
        body=body,
        attributes=message_attributes,
        delay_micros=delay,
        group_id=entry.group_id,
        dedup_id=dedup_id,
        system_attributes=_check_system_attributes(entry.system_attributes),
        size=size,
        sender_id=entry.sender_id,
        priority=check_priority(attributes, entry.priority),
    )


def kept_entry(entry: SendEntry) -> SendEntry:
    """Copies an entry, so that later changes by the sender have no effect on the copy."""
    given = {name: getattr(entry, name) for name in ("attributes", "system_attributes")}
    kept: dict[str, Any] = {name: dict(value) for name, value in given.items() if isinstance(value, Mapping)}
    if entry.json is not ABSENT:
        with suppress(InvalidParameterValue):  # as the check will say
            kept |= {"body": _json_body(entry), "json": ABSENT}
    return attrs.evolve(entry, **kept)


def _json_body(entry: SendEntry) -> str:
    if entry.body:
        raise InvalidParameterValue("A message has either a body or json, not both.")

    def refuse(value: object) -> None:
        raise InvalidParameterValue.of(
            reprlib.repr(value), "json", f"An object of type {type(value).__name__} cannot be written as JSON."
        )

    try:
        return json_format.dumps(
            entry.json, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=refuse
        )
    except (TypeError, ValueError, RecursionError) as error:  # keys that are not texts, nan, cycles
        raise InvalidParameterValue.of(reprlib.repr(entry.json), "json", f"{error}.") from error


def _check_body(body: object) -> str:
    if body is None or body == "":
        hint = "it is None, and a text has at least one character" if body is None else "it has no character"
        raise MissingParameter("The request must contain the parameter {}.", names=["body"], hint=hint)
    if not isinstance(body, str):
        hint = f"send(json=…) sends a {type(body).__name__} as JSON"
        raise InvalidParameterValue("The parameter {} must be a text.", names=["body"], hint=hint)
    if _FORBIDDEN.search(body):
        raise InvalidMessageContents()
    return body


def _check_required(entry: SendEntry, attributes: QueueAttributes) -> None:
    """Checks that a message for a FIFO queue has a group id, and a deduplication id if needed (SND-4, SND-5)."""
    if not attributes.fifo:
        return
    if entry.group_id is None:
        hint = "a FIFO queue keeps the order within each message group; give group_id=, or --group"
        raise MissingParameter("The request must contain the parameter {}.", names=["group_id"], hint=hint)
    if entry.dedup_id is None and not attributes.content_based_deduplication:
        raise InvalidParameterValue(
            "The queue should either have {} enabled or {} provided explicitly",
            names=["content_based_deduplication", "dedup_id"],
        )


def _check_ids(entry: SendEntry, attributes: QueueAttributes) -> None:
    if not attributes.fifo:
        if entry.dedup_id is not None and attributes.dedup_window is None:
            remedy = ["deduplication_interval"] if attributes.profile == DEFAULT_PROFILE else []
            raise _not_for_this_queue("dedup_id", entry.dedup_id, *remedy)
        if entry.group_id is not None and attributes.profile_rules.fair_groups is None:
            raise _not_for_this_queue("group_id", entry.group_id)
    check_identifier("group_id", entry.group_id)
    check_identifier("dedup_id", entry.dedup_id)


def _check_fifo_batch(entries: Sequence[SendEntry], attributes: QueueAttributes) -> None:
    """Refuses the whole call if a FIFO entry lacks a parameter (SND-4)."""
    for entry in entries:
        try:
            _check_required(entry, attributes)
        except MissingParameter as error:
            raise InvalidParameterValue(error.template, names=error.names) from None


def _not_for_this_queue(parameter: str, value: object, *remedy: str) -> InvalidParameterValue:
    reason = "The request includes a parameter that is not valid for this queue type."
    return InvalidParameterValue.of(value, parameter, reason + " A queue with {} takes it." * len(remedy), *remedy)


def _check_system_attributes(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Accepts only the trace header (SND-15)."""
    check_mapping("system_attributes", given)
    checked = {}
    for name, value in (given or {}).items():
        if name != TRACE_HEADER:
            raise InvalidParameterValue(f"Message system attribute name '{name}' is invalid.")
        if isinstance(value, tuple) and len(value) == 2 and value[0] == "String":
            value = value[1]
        if not isinstance(value, str) or not value or _FORBIDDEN.search(value):
            raise InvalidParameterValue(f"Message system attribute '{name}' must be a non-empty String.")
        if len(value) > MAX_TRACE_HEADER:
            raise InvalidParameterValue(
                f"Message system attribute '{name}' must be at most {MAX_TRACE_HEADER:,} characters in length."
            )
        checked[name] = value
    return checked


def _check_attribute_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidParameterValue("The request must contain non-empty message attribute names.")
    if len(name) > MAX_ATTRIBUTE_NAME:
        raise InvalidParameterValue(
            f"Message attribute name must be at most {MAX_ATTRIBUTE_NAME} characters in length."
        )
    if name.lower().startswith(("aws.", "amazon.")):
        raise InvalidParameterValue(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use."
        )
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise InvalidParameterValue(
            f"The message attribute name '{name}' is invalid. Attribute name can contain "
            "A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters."
        )
    if name.startswith(".") or name.endswith(".") or ".." in name:
        raise InvalidParameterValue(
            f"The message attribute name '{name}' is invalid. "
            "Attribute name cannot start or end with a period or have successive periods."
        )


def _typed(name: str, given: Any) -> AttributeValue:
    match given:
        case str():
            return AttributeValue("String", given)
        case bytes():
            return AttributeValue("Binary", given)
        case (str() as type_, value):
            if not isinstance(value, bool) and isinstance(value, (int, float, Decimal)):
                value = str(value)
            if not _ATTRIBUTE_TYPE.fullmatch(type_) or len(type_) > MAX_ATTRIBUTE_NAME:
                raise InvalidParameterValue(
                    f"The message attribute '{name}' has an invalid message attribute type, "
                    "the set of supported type prefixes is Binary, Number, and String."
                )
            if not isinstance(value, bytes if type_.startswith("Binary") else str):
                raise InvalidParameterValue(
                    f"The message attribute '{name}' with type '{type_}' has a value of another type."
                )
            return AttributeValue(type_, value)
        case int() | float() | Decimal() if not isinstance(given, bool):
            return AttributeValue("Number", str(given))
    raise InvalidParameterValue(
        f"The message attribute '{name}' must be a text, a number, bytes or a pair of type and value."
    )


def _check_attribute_value(name: str, attribute: AttributeValue) -> AttributeValue:
    type_, value = attribute
    if not value:
        raise InvalidParameterValue(
            f"Message (user) attribute '{name}' must contain a non-empty value of type '{type_}'."
        )
    if isinstance(value, str) and _FORBIDDEN.search(value):
        raise InvalidParameterValue(
            f"Message (user) attribute '{name}' has a value with invalid characters. "
            f"{InvalidMessageContents.default_message}"
        )
    if type_.startswith("Number"):
        number = str(value).strip()
        if not (_NUMBER.fullmatch(number) and _NUMBERS[0] <= Decimal(number) <= _NUMBERS[1]):
            raise InvalidParameterValue(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    return attribute


def _body_size(body: object) -> int:
    return len(body.encode(errors="surrogatepass")) if isinstance(body, str) else 0
