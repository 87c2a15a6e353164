"""Results as JSON documents."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs

from lakequeue.model.clock import format_instant
from lakequeue.model.messages import text_of

if TYPE_CHECKING:
    from lakequeue import (
        AttributeValue,
        BatchFailure,
        BatchSuccess,
        Message,
        PeekedMessage,
        Queue,
        QueueCounts,
        SendResult,
    )
    from lakequeue.model.attributes import QueueAttributes


def jsonable(value: object) -> object:
    """Converts a value to a type of JSON. Durations become seconds, and bytes become base64."""
    match value:
        case datetime():
            return format_instant(value)
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case _ if attrs.has(type(value)):
            return attrs.asdict(value)  # type: ignore[arg-type]
    raise TypeError(f"no JSON for {type(value).__name__}")


def _fields(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def queue(queue: Queue) -> dict[str, Any]:
    return _fields(queue, "name region fifo created_at")


def pauses(settings: QueueAttributes) -> list[dict[str, Any]]:
    return [attrs.asdict(pause) for pause in settings.pauses]


def counts(name: str, counts: QueueCounts) -> dict[str, Any]:
    return {"queue": name} | attrs.asdict(counts)


def sent(sent: SendResult | BatchSuccess) -> dict[str, Any]:
    return _fields(sent, "message_id md5_of_body md5_of_message_attributes sequence_number")


def failure(failure: BatchFailure) -> dict[str, Any]:
    return _fields(failure, "id code message sender_fault")


def message(message: Message) -> dict[str, Any]:
    return (
        _fields(message, "message_id receipt_handle body md5_of_body")
        | {"message_attributes": attributes(message.message_attributes)}
        | _fields(message, "receive_count sent_at moved_at first_received_at group_id dedup_id sequence_number")
        | _fields(message, "priority attributes")
        | {"dead_letter_reason": reason(message)}
    )


def peeked(message: PeekedMessage) -> dict[str, Any]:
    return (
        _fields(message, "message_id state body")
        | {"message_attributes": attributes(message.message_attributes)}
        | _fields(message, "receive_count sent_at moved_at visible_at group_id priority")
        | {"dead_letter_reason": reason(message), "consumer": message.consumer}
        | {"attempts": [attrs.asdict(each) for each in message.attempts]}
    )


def reason(message: Message | PeekedMessage) -> dict[str, Any] | None:
    return None if message.dead_letter_reason is None else attrs.asdict(message.dead_letter_reason)


def attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Returns type and value of each message attribute. Bytes become base64."""
    return {name: {"type": type_, "value": text_of(value)} for name, (type_, value) in attributes.items()}
