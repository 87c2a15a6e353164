"""Results as JSON documents."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lakequeue.model.clock import format_instant

if TYPE_CHECKING:
    from lakequeue import (
        AttributeValue,
        BatchFailure,
        BatchSuccess,
        CompactionSummary,
        Message,
        PeekedMessage,
        Queue,
        QueueCounts,
        SendResult,
    )


def jsonable(value: object) -> object:
    """Converts types that JSON lacks: instants to ISO 8601 in UTC, bytes to base64, durations to seconds."""
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
    raise TypeError(f"no JSON for {type(value).__name__}")


def queue(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, "region": queue.region, "fifo": queue.fifo, "created_at": queue.created_at}


def counts(name: str, counts: QueueCounts) -> dict[str, Any]:
    return {
        "queue": name,
        "visible": counts.visible,
        "in_flight": counts.in_flight,
        "delayed": counts.delayed,
        "rewindable": counts.rewindable,
        "oldest_age": counts.oldest_age,
        "held": counts.held,
    }


def summary(summary: CompactionSummary) -> dict[str, Any]:
    import attrs

    return attrs.asdict(summary)


def sent(sent: SendResult | BatchSuccess) -> dict[str, Any]:
    return {
        "message_id": sent.message_id,
        "md5_of_body": sent.md5_of_body,
        "md5_of_message_attributes": sent.md5_of_message_attributes,
        "sequence_number": sent.sequence_number,
    }


def failure(failure: BatchFailure) -> dict[str, Any]:
    return {
        "id": failure.id,
        "code": failure.code,
        "message": failure.message,
        "sender_fault": failure.sender_fault,
    }


def message(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "receipt_handle": message.receipt_handle,
        "body": message.body,
        "md5_of_body": message.md5_of_body,
        "message_attributes": _attributes(message.message_attributes),
        "receive_count": message.receive_count,
        "sent_at": message.sent_at,
        "first_received_at": message.first_received_at,
        "group_id": message.group_id,
        "dedup_id": message.dedup_id,
        "sequence_number": message.sequence_number,
        "attributes": message.attributes,
    }


def peeked(message: PeekedMessage) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "state": message.state,
        "body": message.body,
        "message_attributes": _attributes(message.message_attributes),
        "receive_count": message.receive_count,
        "sent_at": message.sent_at,
        "visible_at": message.visible_at,
        "group_id": message.group_id,
    }


def _attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    return {name: {"type": type_, "value": value} for name, (type_, value) in attributes.items()}
