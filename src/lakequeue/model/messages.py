"""Sent and received messages: their attributes, digests and results."""

from __future__ import annotations

import base64
import enum
import hashlib
import json as json_format
import re
import reprlib
import secrets
import string
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import attrs

from lakequeue.errors import (
    SAFE_TO_REPEAT,
    BatchFailed,
    InvalidMessageContents,
    InvalidParameterValue,
    QueueClientError,
    QueueServiceError,
    UnsupportedOperation,
    cmq_code_of,
)
from lakequeue.model.clock import Duration, to_micros
from lakequeue.model.failures import DeadLetterReason


def md5_of_body(body: str) -> str:
    """Returns the MD5 of a UTF-8 body, in hex (MSA-1)."""
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, tuple[str, str | bytes]]) -> str | None:
    """Returns the MD5 of the names, types and values of attributes (MSA-2). Returns None without attributes."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name, (type_, value) in sorted(attributes.items()):
        for part in (name.encode(), type_.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        content = as_bytes(value)
        transport = b"\x02" if type_.startswith("Binary") else b"\x01"
        digest.update(transport + len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def content_dedup_id(body: str) -> str:
    """Returns the id of content-based deduplication: SHA-256 of the body (DDP-4, MSA-6)."""
    return hashlib.sha256(body.encode()).hexdigest()


def as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


_BASE62 = string.digits + string.ascii_letters
_DRAWN = (0xFFF << 64) | ((1 << 62) - 1)
_IN_ORDER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_MESSAGE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|Msg-[0-9A-Za-z]{8}")


class AttributeValue(NamedTuple):
    """A message attribute (MSA-3).

    Attributes:
        type: ``String``, ``Number`` or ``Binary``, optionally with ``.label``.
        value: bytes for ``Binary``, else a text.
    """

    type: str
    value: str | bytes


def text_of(value: str | bytes) -> str:
    """Returns a value of a message attribute as text. Bytes become base64."""
    return value if isinstance(value, str) else base64.b64encode(value).decode()


AttributeInput: TypeAlias = str | int | float | Decimal | bytes | tuple[str, Any] | AttributeValue


class Absent(enum.Enum):
    """Type of the default value of arguments for which None has a meaning of its own."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "<absent>"


ABSENT = Absent.ABSENT


@attrs.frozen
class SendEntry:
    """A message to send, with either a body or a value for JSON.

    Attributes:
        body: text, at least one character.
        id: id in a batch. If None, the position in the batch is the id.
        delay: seconds or timedelta; None for the queue's delay.
        attributes: message attributes by name, each a text, number, bytes or (type, value).
        group_id: message group.
        dedup_id: deduplication id, on FIFO queues and on queues with unique sends.
        system_attributes: only ``AWSTraceHeader``.
        sender_id: sender as known to a server. Receivers see it as ``SenderId``.
        json: a value whose compact JSON becomes the body. ``Message.json`` returns the value.
        priority: 0 to the queue's number of priorities minus 1. The highest is received first. None is 0.
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
    priority: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class ValidEntry:
    """A checked message, ready to be stored.

    Attributes:
        delay_micros: delay in microseconds. None on FIFO queues, which use the queue's current delay (DLY-10).
        dedup_id: deduplication id. Never None on FIFO queues.
        size: number of bytes that count towards batch and message limits.
        batch: application id and version that the commit records, so that a repeated send adds nothing. None if
            the commit records nothing.
    """

    body: str
    attributes: dict[str, AttributeValue]
    delay_micros: int | None
    group_id: str | None
    dedup_id: str | None
    system_attributes: dict[str, str]
    size: int
    sender_id: str | None = None
    priority: int = 0
    batch: tuple[str, int] | None = None


@attrs.frozen
class SendResult:
    """The result of sending a message (SND-3).

    Attributes:
        message_id: id of the message, which receivers also see.
        md5_of_body: MD5 of the body in UTF-8, in hex (MSA-1).
        md5_of_message_attributes: MD5 of the attributes as in SQS (MSA-2). None without attributes.
        sequence_number: on FIFO queues, a number that grows within a group. None on standard queues.
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
        message_id: for a send, as in ``SendResult``.
        md5_of_body: for a send, as in ``SendResult``.
        md5_of_message_attributes: for a send, as in ``SendResult``.
        sequence_number: for a send to a FIFO queue, as in ``SendResult``.
        receipt_handle: receipt handle of the entry, for a delete or a change of visibility.
    """

    id: str
    message_id: str | None = None
    md5_of_body: str | None = None
    md5_of_message_attributes: str | None = None
    sequence_number: str | None = None
    receipt_handle: str | None = None


UNAVAILABLE = "ServiceUnavailable"
"""Code of a batch entry that failed because of storage."""


@attrs.frozen
class BatchFailure:
    """A batch entry that failed (BAT-4).

    Attributes:
        id: id of the entry.
        code: code of the error, see docs/reference/errors.md. ``ServiceUnavailable`` if storage failed.
        message: description of the error.
        sender_fault: True if the same entry would fail again. False if storage failed.
        cmq_code: CMQ's number, only on queues of profile ``cmq``.
        template: as in ``QueueServiceError``.
        names: as in ``QueueServiceError``.
    """

    id: str
    code: str
    message: str
    sender_fault: bool = True
    cmq_code: int | None = None
    template: str = attrs.field(default="", repr=False, eq=False)
    names: tuple[Any, ...] = attrs.field(default=(), repr=False, eq=False)

    @classmethod
    def of(cls, id: str, error: QueueServiceError | QueueClientError, profile_name: str = "") -> BatchFailure:
        """Builds the failure of an entry from its error."""
        if isinstance(error, QueueServiceError):
            number = cmq_code_of(error, profile_name)
            return cls(id, error.code, str(error), error.sender_fault, number, error.template, error.names)
        outcome = f"it may have taken effect; {SAFE_TO_REPEAT}" if error.outcome_unknown else "nothing was changed"
        return cls(id, UNAVAILABLE, f"Storage failed; {outcome}.", False)


@attrs.frozen
class BatchResult:
    """Result of a batch, in the order of the entries.

    Attributes:
        successful: the entries that took effect.
        failed: the entries that failed.
        cmq_code: for deletes on a ``cmq`` queue, CMQ's number: 0, 6010 if some failed, 6020 if all.
    """

    successful: list[BatchSuccess] = attrs.field(factory=list)
    failed: list[BatchFailure] = attrs.field(factory=list)
    cmq_code: int | None = None

    def raise_for_failures(self) -> BatchResult:
        """Returns this result. Raises BatchFailed if entries failed; the other entries took effect."""
        if self.failed:
            raise BatchFailed(self.failed, len(self.successful) + len(self.failed))
        return self


class MessageQueue(Protocol):
    """The methods of a queue that a received message needs."""

    def delete(self, receipt_handle: str) -> Any: ...
    def change_visibility(self, receipt_handle: str, visibility_timeout: Duration) -> Any: ...


class _Attached:
    __slots__ = ("_settler",)
    _settler: MessageQueue


@attrs.frozen(kw_only=True)
class Message(_Attached):
    """A received message. Computes its digests on access (RCV-10).

    A copy, for example an unpickled message, has no queue. Settle a copy by ``Queue.delete(message)`` or
    ``Queue.change_visibility(message, …)``.

    Attributes:
        message_id: id that the send of the message returned.
        receipt_handle: identifies this receipt in deletes and changes of visibility.
        body: text of the message.
        receive_count: number of receives, including this one.
        sent_at: when the message was sent. For a dead letter, when it was first sent (DLQ-4).
        first_received_at: when the message was received for the first time.
        message_attributes: attributes of the sender that the receive requested, by name (MSA-4).
        group_id: message group. None without a group.
        dedup_id: deduplication id, on FIFO queues.
        sequence_number: on FIFO queues, a number that grows within a message group.
        sender_id: sender as known to ``lakequeue serve``. None if unknown.
        system_attributes: ``AWSTraceHeader`` and ``DeadLetterQueueSourceArn``, if present.
        received_at: when this receipt began, by the queue's clock.
        visible_at: when this receipt ends unless extended, by the queue's clock.
        dead_letter_reason: last failure of a dead letter's handler. None if, for example, the consumer was killed.
        moved_at: when the message was moved here from another queue. None if it was sent here.
        last_receive: True if the message becomes a dead letter unless this receive deletes it (DLQ-13).
        priority: priority of the message. 0 if the queue has no priorities.
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
    moved_at: datetime | None = None
    last_receive: bool = attrs.field(default=False, eq=False)
    priority: int = 0

    @property
    def md5_of_body(self) -> str:
        """MD5 of the body in UTF-8, in hex (MSA-1)."""
        return md5_of_body(self.body)

    @property
    def md5_of_message_attributes(self) -> str | None:
        """MD5 of the message attributes as in SQS (MSA-2). None without attributes."""
        return md5_of_attributes(self.message_attributes)

    @property
    def attributes(self) -> dict[str, str]:
        """System attributes by SQS name. Times are epoch milliseconds (RCV-11)."""
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
        """Returns the value of a JSON body. Raises InvalidMessageContents if the body is not JSON."""
        try:
            return json_format.loads(self.body)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidMessageContents(f"The body of message {self.message_id} is not JSON: {reason}") from error

    def delete(self) -> None:
        """Deletes the message. Raises UnsupportedOperation for a copy. See ``Queue.delete``."""
        settler_of(self).delete(self.receipt_handle)

    def change_visibility(self, visibility_timeout: Duration) -> None:
        """Makes the message visible in this many seconds. Raises UnsupportedOperation for a copy."""
        settler_of(self).change_visibility(self.receipt_handle, visibility_timeout)


def attach(message: Message, settler: MessageQueue) -> None:
    """Attaches a received message to its queue."""
    object.__setattr__(message, "_settler", settler)


def settler_of(message: Message) -> MessageQueue:
    """Returns the queue of a received message. Raises UnsupportedOperation for a copy."""
    settler: MessageQueue | None = getattr(message, "_settler", None)
    if settler is None:
        raise UnsupportedOperation(
            f"Message {message.message_id} is a copy and knows no queue: call the method of its Queue."
        )
    return settler


def receipt_handle_of(receipt: object, name: str = "receipt_handle") -> str:
    """Returns the handle of a message, or a given handle. Raises InvalidParameterValue for other values."""
    handle = receipt.receipt_handle if isinstance(receipt, Message) else receipt
    if not isinstance(handle, str):
        reason = "Must be a receipt handle or a received message."
        raise InvalidParameterValue.of(reprlib.repr(handle), name, reason)
    return handle


def new_message_ids(count: int, now: int, format: Literal["uuid", "cmq"] = "uuid") -> list[str]:
    """Returns new message ids (RCP-2): UUIDs that sort by time, or CMQ's ``Msg-`` and eight characters."""
    if format == "cmq":
        return ["Msg-" + "".join(secrets.choice(_BASE62) for _ in range(8)) for _ in range(count)]
    # one call for all ids: each call releases the GIL, which took a third of the time of a batch
    random = secrets.token_bytes(16 * count)
    begin = (now // 1_000 << 80) | (7 << 76) | (2 << 62)  # RFC 9562, version 7: milliseconds, then randomness
    drawn = (int.from_bytes(random[start : start + 16], "big") & _DRAWN for start in range(0, len(random), 16))
    return [str(uuid.UUID(int=begin | each)) for each in drawn]


def sent_about(message_id: str) -> int | None:
    """Returns the send time in a message id, in microseconds, rounded to 1 ms. None for an id without a time."""
    return int(message_id[:8] + message_id[9:13], 16) * 1_000 if _IN_ORDER.fullmatch(message_id) else None


def is_message_id(text: str) -> bool:
    """Returns True for a message id, False for a receipt handle."""
    return _MESSAGE_ID.fullmatch(text) is not None


def select_attributes(attributes: Mapping[str, AttributeValue], names: Iterable[str]) -> dict[str, AttributeValue]:
    """Returns the requested attributes (MSA-4). A request is a name, ``All``, ``.*`` or ``prefix.*``."""
    wanted = set(names)
    if wanted & {"All", ".*"}:
        return dict(attributes)
    prefixes = tuple(name[:-1] for name in wanted if name.endswith(".*"))
    return {n: v for n, v in attributes.items() if n in wanted or (prefixes and n.startswith(prefixes))}


def _millis(instant: datetime) -> str:
    return str(to_micros(instant) // 1_000)
