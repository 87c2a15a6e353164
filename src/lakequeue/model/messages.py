"""Messages that callers send and receive: entries, results, message attributes, digests, checks of a send."""

from __future__ import annotations

import enum
import hashlib
import json as json_format
import re
import reprlib
import secrets
import string
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import attrs

from lakequeue.errors import (
    BatchEntryIdsNotDistinct,
    BatchFailed,
    BatchRequestTooLong,
    EmptyBatchRequest,
    InvalidBatchEntryId,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    QueueClientError,
    QueueServiceError,
    TooManyEntriesInBatchRequest,
    UnsupportedOperation,
    cmq_code_of,
    coded_for,
)
from lakequeue.model.arguments import check_delay, check_identifier, check_mapping
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import Duration, to_micros
from lakequeue.model.failures import DeadLetterReason

MAX_ATTRIBUTES = 10
MAX_ATTRIBUTE_NAME = 256
TRACE_HEADER = "AWSTraceHeader"
MAX_TRACE_HEADER = 1_024
"""Characters of a trace header, which does not count towards the size of its message."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_WIRE_ATTRIBUTE_NAME = re.compile(r"[\w.-]+")
_ATTRIBUTE_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
"""A number; Decimal takes digits of other scripts and ``1_000``, too."""
_NUMBERS = (Decimal("-1e128"), Decimal("1e126"))
_BASE62 = string.digits + string.ascii_letters


class AttributeValue(NamedTuple):
    """A message attribute (MSA-3).

    Attributes:
        type: ``String``, ``Number`` or ``Binary``, optionally with ``.label``.
        value: bytes of a ``Binary``, text of the others.
    """

    type: str
    value: str | bytes


class WireAttributes(dict[str, AttributeValue]):
    """Message attributes of an SQS client: as in SQS, their names may have letters beyond ASCII."""


AttributeInput: TypeAlias = str | int | float | Decimal | bytes | tuple[str, Any] | AttributeValue


class Absent(enum.Enum):
    """The default of an argument for which None means something."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "<absent>"


ABSENT = Absent.ABSENT


@attrs.frozen
class SendEntry:
    """One message to send, with either a body or a value for JSON.

    Attributes:
        body: text, at least one character.
        id: id in a batch; None means the position in it.
        delay: seconds or timedelta; None means the queue's delay.
        attributes: message attributes by name, each a text, number, bytes or (type, value).
        group_id: message group.
        dedup_id: deduplication id, FIFO queues only.
        system_attributes: only `AWSTraceHeader`.
        sender_id: who sent it, as a server knows; receivers see it as `SenderId`.
        json: a value whose compact JSON is the body; `Message.json` reads it. No attribute says that it is JSON.
    """

    body: str = ""
    id: str | None = None
    delay: Any = None
    attributes: Mapping[str, AttributeInput] | None = None
    group_id: str | None = None
    dedup_id: str | None = None
    system_attributes: Mapping[str, Any] | None = None
    sender_id: str | None = None
    json: Any = attrs.field(default=ABSENT, kw_only=True)


@attrs.frozen
class ValidEntry:
    """A checked message, ready to be stored.

    Attributes:
        delay_micros: None on FIFO queues, which use the queue's current delay (DLY-10).
        dedup_id: never None on FIFO queues.
        size: bytes that count towards batch and message limits.
    """

    body: str
    attributes: dict[str, AttributeValue]
    delay_micros: int | None
    group_id: str | None
    dedup_id: str | None
    system_attributes: dict[str, str]
    size: int
    sender_id: str | None = None


@attrs.frozen
class SendResult:
    """The result of sending one message (SND-3).

    Attributes:
        message_id: id of the message, which receivers see too.
        md5_of_body: MD5 of the body in UTF-8, in hex (MSA-1).
        md5_of_message_attributes: MD5 of the message attributes as SQS computes it (MSA-2); None without any.
        sequence_number: on FIFO queues, a number that grows within a message group; None on others.
    """

    message_id: str
    md5_of_body: str
    md5_of_message_attributes: str | None = None
    sequence_number: str | None = None


@attrs.frozen
class BatchSuccess:
    """A batch entry that succeeded.

    Attributes:
        id: id of the entry.
        message_id: of a send: as in ``SendResult``, and so are the next three.
        md5_of_body: of a send.
        md5_of_message_attributes: of a send.
        sequence_number: of a send to a FIFO queue.
        receipt_handle: of a delete or a change of visibility.
    """

    id: str
    message_id: str | None = None
    md5_of_body: str | None = None
    md5_of_message_attributes: str | None = None
    sequence_number: str | None = None
    receipt_handle: str | None = None


UNAVAILABLE = "ServiceUnavailable"
"""Code of a batch entry whose storage failed while other entries succeeded."""


@attrs.frozen
class BatchFailure:
    """A batch entry that failed (BAT-4).

    Attributes:
        id: id of the entry.
        code: code of the error, as on the page of errors, or ``ServiceUnavailable`` if storage failed.
        message: what is wrong with the entry.
        sender_fault: whether the same entry would fail again; False if storage failed.
        cmq_code: CMQ's number, on queues of profile ``cmq`` only.
    """

    id: str
    code: str
    message: str
    sender_fault: bool = True
    cmq_code: int | None = None

    @classmethod
    def of(cls, id: str, error: QueueServiceError | QueueClientError, profile_name: str = "") -> BatchFailure:
        """The failure that an error is."""
        if isinstance(error, QueueServiceError):
            return cls(id, error.code, error.message, error.sender_fault, cmq_code_of(error, profile_name))
        outcome = "it may have taken effect: repeat it" if error.outcome_unknown else "nothing was changed"
        return cls(id, UNAVAILABLE, f"Storage failed; {outcome}.", False)


@attrs.frozen
class BatchResult:
    """Outcome of a batch, entry by entry, in the order of the entries.

    Attributes:
        successful: the entries that took effect.
        failed: the entries that did not.
        cmq_code: of a batch of deletes on a `cmq` queue, CMQ's number: 0, or 6010 if some, 6020 if all failed.
    """

    successful: list[BatchSuccess] = attrs.field(factory=list)
    failed: list[BatchFailure] = attrs.field(factory=list)
    cmq_code: int | None = None

    def raise_for_failures(self) -> BatchResult:
        """This result, if no entry failed.

        Raises:
            BatchFailed: has the failed entries; the others took effect.
        """
        if self.failed:
            raise BatchFailed(self.failed, len(self.successful) + len(self.failed))
        return self


class Settler(Protocol):
    """The queue of a received message, as far as the message needs it."""

    def delete(self, receipt_handle: str) -> Any: ...
    def change_visibility(self, receipt_handle: str, visibility_timeout: Duration) -> Any: ...


class _Attached:
    """A slot for the queue beside the fields: no copy, comparison, `repr` or pickle of a message has it."""

    __slots__ = ("_settler",)
    _settler: Settler


@attrs.frozen(kw_only=True)
class Message(_Attached):
    """A received message; the digests are computed when asked for (RCV-10).

    It knows its queue. A copy, such as an unpickled one, is data only: settle it by `Queue.delete(message)` or
    `Queue.change_visibility(message, …)`.

    Attributes:
        message_id: id that its send returned.
        receipt_handle: stands for this receipt in deletes and changes of visibility.
        body: text of the message.
        receive_count: how often it was received, this time included.
        sent_at: when it was sent.
        first_received_at: when it was received for the first time.
        message_attributes: attributes of its sender by name, as far as the receive asked for them (MSA-4).
        group_id: message group; None without one.
        dedup_id: deduplication id, on FIFO queues.
        sequence_number: on FIFO queues, a number that grows within a message group.
        sender_id: who sent it, as ``lakequeue serve`` knows; None if nobody says.
        system_attributes: ``AWSTraceHeader`` and ``DeadLetterQueueSourceArn``, if it has them.
        received_at: when this receipt began, by the queue's clock.
        visible_at: when this receipt ends unless extended, by the queue's clock.
        dead_letter_reason: on a dead letter, why its last handler failed; None if its consumer was killed, or
            settled it otherwise.
    """

    message_id: str
    receipt_handle: str
    body: str
    receive_count: int
    sent_at: datetime
    first_received_at: datetime
    message_attributes: dict[str, AttributeValue] = attrs.field(factory=dict)
    group_id: str | None = None
    dedup_id: str | None = None
    sequence_number: str | None = None
    sender_id: str | None = None
    system_attributes: dict[str, str] = attrs.field(factory=dict)
    # not compared: a repeated receive returns an equal message with a new timeout (ATT-3)
    received_at: datetime | None = attrs.field(default=None, eq=False)
    visible_at: datetime | None = attrs.field(default=None, eq=False)
    dead_letter_reason: DeadLetterReason | None = None

    @property
    def md5_of_body(self) -> str:
        """MD5 of the body in UTF-8, in hex (MSA-1)."""
        return md5_of_body(self.body)

    @property
    def md5_of_message_attributes(self) -> str | None:
        """MD5 of the message attributes as SQS computes it (MSA-2); None without any."""
        return md5_of_attributes(self.message_attributes)

    @property
    def attributes(self) -> dict[str, str]:
        """The system attributes by their SQS names, times in epoch milliseconds (RCV-11)."""
        known = {
            "ApproximateReceiveCount": str(self.receive_count),
            "ApproximateFirstReceiveTimestamp": _millis(self.first_received_at),
            "SentTimestamp": _millis(self.sent_at),
            "SenderId": self.sender_id,
            "MessageGroupId": self.group_id,
            "MessageDeduplicationId": self.dedup_id,
            "SequenceNumber": self.sequence_number,
        }
        return {name: value for name, value in known.items() if value is not None} | self.system_attributes

    def json(self) -> Any:
        """The value of a body in JSON, as `send(json=…)` writes it.

        Raises:
            InvalidMessageContents: the body is not JSON.
        """
        try:
            return json_format.loads(self.body)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidMessageContents(f"The body of message {self.message_id} is not JSON: {reason}") from error

    def delete(self) -> None:
        """Deletes the message; see `Queue.delete`.

        Raises:
            UnsupportedOperation: the message is a copy, which knows no queue.
        """
        settler_of(self).delete(self.receipt_handle)

    def change_visibility(self, visibility_timeout: Duration) -> None:
        """Makes the message visible in this many seconds, 0 at once; see `Queue.change_visibility`.

        Raises:
            UnsupportedOperation: the message is a copy, which knows no queue.
        """
        settler_of(self).change_visibility(self.receipt_handle, visibility_timeout)


def attach(message: Message, settler: Settler) -> None:
    """Lets a received message settle itself."""
    object.__setattr__(message, "_settler", settler)


def settler_of(message: Message) -> Settler:
    """The queue of a received message; UnsupportedOperation for a copy."""
    settler: Settler | None = getattr(message, "_settler", None)
    if settler is None:
        raise UnsupportedOperation(
            f"Message {message.message_id} is a copy and knows no queue: call the method of its Queue."
        )
    return settler


def receipt_handle_of(receipt: object, name: str = "receipt_handle") -> str:
    """The receipt handle of a handle or received message; InvalidParameterValue for anything else."""
    handle = receipt.receipt_handle if isinstance(receipt, Message) else receipt
    if not isinstance(handle, str):
        reason = "Must be a receipt handle or a received message."
        raise InvalidParameterValue.of(reprlib.repr(handle), name, reason)
    return handle


def new_message_ids(count: int, format: Literal["uuid", "cmq"] = "uuid") -> list[str]:
    """Fresh message ids: UUIDs, or `Msg-` and eight base62 characters each (RCP-2)."""
    if format == "cmq":
        return ["Msg-" + "".join(secrets.choice(_BASE62) for _ in range(8)) for _ in range(count)]
    # the system's randomness at once: each call of it hands the interpreter to another thread (a third of a batch)
    random = secrets.token_bytes(16 * count)
    return [str(uuid.UUID(bytes=random[start : start + 16], version=4)) for start in range(0, len(random), 16)]


def md5_of_body(body: str) -> str:
    """MD5 of the UTF-8 bytes of a body, in hex (MSA-1)."""
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, AttributeValue]) -> str | None:
    """MD5 over names, types and values, sorted by name (MSA-2); None if there are none."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name, (type_, value) in sorted(attributes.items()):
        for part in (name.encode(), type_.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        content = _bytes(value)
        transport = b"\x02" if type_.startswith("Binary") else b"\x01"
        digest.update(transport + len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def content_dedup_id(body: str) -> str:
    """The deduplication id of content-based deduplication: SHA-256 of the body alone (DDP-4, MSA-6)."""
    return hashlib.sha256(body.encode()).hexdigest()


def select_attributes(attributes: Mapping[str, AttributeValue], names: Iterable[str]) -> dict[str, AttributeValue]:
    """The attributes that a receive requests: names, `All`, `.*`, or a prefix `foo.*` (MSA-4)."""
    wanted = set(names)
    if wanted & {"All", ".*"}:
        return dict(attributes)
    prefixes = tuple(name[:-1] for name in wanted if name.endswith(".*"))
    return {n: v for n, v in attributes.items() if n in wanted or (prefixes and n.startswith(prefixes))}


def normalize_attributes(attributes: Mapping[str, AttributeInput] | None) -> dict[str, AttributeValue]:
    """Message attributes with explicit types, checked by MSA-3 and MSA-5.

    Raises:
        InvalidParameterValue: a name, type or value is malformed, or there are more than ten.
    """
    check_mapping("attributes", attributes)
    if not attributes:
        return {}
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidParameterValue(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        )
    allowed = _WIRE_ATTRIBUTE_NAME if isinstance(attributes, WireAttributes) else _ATTRIBUTE_NAME
    normal = {}
    for name, given in attributes.items():
        _check_attribute_name(name, allowed)
        normal[name] = _check_attribute_value(name, _typed(name, given))
    return normal


def validate_entry(entry: SendEntry, attributes: QueueAttributes) -> ValidEntry:
    """Checks one message against the attributes of its queue (SND-1..15, DLY-3, DLY-4, MSA-3).

    Raises:
        MissingParameter: no body, or no group id on a FIFO queue.
        InvalidMessageContents: the body has characters that a message cannot carry.
        InvalidParameterValue: another argument is out of range or does not fit this kind of queue.
    """
    with coded_for(attributes.profile):
        _check_required(entry, attributes)
        _check_ids(entry, attributes)
        return _valid_content(entry, attributes)


def validate_batch(entries: Sequence[SendEntry], attributes: QueueAttributes) -> list[ValidEntry | BatchFailure]:
    """Checks a batch in the order of BAT-7: a result per entry, unless the whole call is refused (BAT-5).

    Bad ids, missing FIFO parameters and the total size refuse the call; other problems only their entry (BAT-4).
    """
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
    """Refuses a batch that is empty, too long, or has malformed or repeated entry ids (BAT-1, BAT-5, BAT-7)."""
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
        size += sum(len(n.encode()) + len(t) + len(_bytes(v)) for n, (t, v) in message_attributes.items())
    if size > attributes.maximum_message_size:
        fault = "are invalid" if entry.id is None else "cannot be validated"  # in the words of AWS
        raise InvalidParameterValue(
            f"One or more parameters {fault}. "
            f"Reason: Message must be shorter than {attributes.maximum_message_size} bytes."
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
    )


def _json_body(entry: SendEntry) -> str:
    """The compact JSON of an entry's value."""
    if entry.body:
        raise InvalidParameterValue("A message has either a body or json, not both.")

    def refuse(value: object) -> None:
        raise InvalidParameterValue.of(
            reprlib.repr(value), "json", f"An object of type {type(value).__name__} has no JSON."
        )

    try:
        return json_format.dumps(
            entry.json, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=refuse
        )
    except (TypeError, ValueError, RecursionError) as error:  # keys that are no texts; nan; cycles
        raise InvalidParameterValue.of(reprlib.repr(entry.json), "json", f"{error}.") from error


def _check_body(body: object) -> str:
    if body is None or body == "":
        raise MissingParameter("The request must contain the parameter MessageBody.")
    if not isinstance(body, str):
        raise InvalidParameterValue("The parameter MessageBody must be a text.")
    if _FORBIDDEN.search(body):
        raise InvalidMessageContents()
    return body


def _check_required(entry: SendEntry, attributes: QueueAttributes) -> None:
    """FIFO queues require a group id, and a deduplication id unless they derive it (SND-4, SND-5)."""
    if not attributes.fifo:
        return
    if entry.group_id is None:
        raise MissingParameter("The request must contain the parameter MessageGroupId.")
    if entry.dedup_id is None and not attributes.content_based_deduplication:
        raise InvalidParameterValue(
            "The queue should either have ContentBasedDeduplication enabled "
            "or MessageDeduplicationId provided explicitly"
        )


def _check_ids(entry: SendEntry, attributes: QueueAttributes) -> None:
    if not attributes.fifo:
        if entry.dedup_id is not None:
            raise _not_for_this_queue("MessageDeduplicationId", entry.dedup_id)
        if entry.group_id is not None and attributes.profile_rules.fair_groups is None:
            raise _not_for_this_queue("MessageGroupId", entry.group_id)
    check_identifier("MessageGroupId", entry.group_id)
    check_identifier("MessageDeduplicationId", entry.dedup_id)


def _check_fifo_batch(entries: Sequence[SendEntry], attributes: QueueAttributes) -> None:
    """Refuses the whole call if an entry lacks a parameter that FIFO queues require (SND-4)."""
    for entry in entries:
        try:
            _check_required(entry, attributes)
        except MissingParameter as error:
            raise InvalidParameterValue(error.message) from None


def _not_for_this_queue(parameter: str, value: object) -> InvalidParameterValue:
    return InvalidParameterValue.of(
        value, parameter, "The request includes a parameter that is not valid for this queue type."
    )


def _check_system_attributes(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Accepts only the trace header, which does not count towards the size (SND-15)."""
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


def _check_attribute_name(name: object, allowed: re.Pattern[str]) -> None:
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
    if not allowed.fullmatch(name):
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
    """The attribute with its type, inferred from a bare value or checked in a pair."""
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


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _body_size(body: object) -> int:
    return len(body.encode(errors="surrogatepass")) if isinstance(body, str) else 0


def _millis(instant: datetime) -> str:
    return str(to_micros(instant) // 1_000)
