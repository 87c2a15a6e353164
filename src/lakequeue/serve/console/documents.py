"""Queues and messages as JSON documents of the console API."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import Any

import attrs

from lakequeue import DeadLetterReason, PeekedMessage
from lakequeue.entry_verbs import ActiveConsumer, Search, SelectedOutcome
from lakequeue.errors import ResourceNotFoundException
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import format_instant
from lakequeue.model.messages import text_of
from lakequeue.model.schedules import Schedule

MAX_LISTED_LENGTH = 400
"""Maximum number of characters of a message's body or attribute in a list."""
MAX_PAGE_BYTES = 2**20
"""Number of bytes. A list of messages ends with the message that exceeds this number."""


def name_of(arn: str | None) -> str | None:
    return None if arn is None else arn.rpartition(":")[2]


def pauses(attributes: QueueAttributes) -> list[dict[str, Any]]:
    """Returns a queue's pauses: ``group`` (None for the whole queue), ``reason`` and ``since``."""
    return [
        {"group": pause.group, "reason": pause.reason, "since": pause.since and format_instant(pause.since)}
        for pause in attributes.pauses
    ]


def consumer(found: ActiveConsumer) -> dict[str, Any]:
    def plain(_: object, __: object, value: Any) -> Any:
        return format_instant(value) if isinstance(value, datetime) else value

    return attrs.asdict(found, value_serializer=plain)


def schedule(row: Schedule, now: datetime) -> dict[str, Any]:
    """Returns the fields of a schedule. Its message body is shortened."""
    last = None if row.last_due is None else format_instant(row.last_due)
    return {
        **{name: getattr(row, name) for name in ("name", "queue", "cron", "tz", "missed", "paused", "last_error")},
        "body": row.body[:MAX_LISTED_LENGTH],
        "next_due": format_instant(row.next_due),
        "overdue": row.is_overdue(now),
        "last_due": last,
    }


def message_list(search: Search, limit: int) -> dict[str, Any]:
    """Returns messages with shortened bodies, and the start of the next page. ``tested`` is the number of messages
    that the search read; None if the search has not hit its limit.
    """
    listed: list[dict[str, Any]] = []
    size, more = 0, False
    for message in search:
        if len(listed) == limit or size >= MAX_PAGE_BYTES:
            more = True
            break
        listed.append(_message(message, MAX_LISTED_LENGTH))
        size += len(json.dumps(listed[-1]))
    following = ".".join(map(str, search.places or ())) if more or search.unfinished else None
    return {"messages": listed, "next": following, "tested": search.tested if search.unfinished else None}


def whole_message(found: list[PeekedMessage]) -> dict[str, Any]:
    """Returns a message with its whole body. Raises ResourceNotFoundException if ``found`` is empty."""
    if not found:
        raise ResourceNotFoundException("The message is no longer there.")
    return _message(found[0], None)


def outcome(found: SelectedOutcome) -> dict[str, Any]:
    """Returns the number of changed messages, of missing messages, and of unchanged messages in each state."""
    return {"messages": found.done, "stayed": dict(found.stayed), "missing": found.missing}


def errors(search: Search) -> dict[str, Any]:
    """Counts dead letters by source queue and error, largest count first, each with its error's newest text."""
    number, texts = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for message in search:
        reason = message.dead_letter_reason
        key = message.source_queue or "", "" if reason is None else reason.error
        number[key] += 1
        texts.setdefault(key, "" if reason is None else reason.text)
    found = [
        {"source_queue": key[0] or None, "error": key[1] or None, "messages": count, "text": texts[key]}
        for key, count in number.most_common()
    ]
    return {"errors": found, "tested": search.tested if search.unfinished else None}


def _reason(reason: DeadLetterReason) -> dict[str, Any]:
    return attrs.asdict(reason) | {"at": format_instant(reason.at)}


def _message(message: PeekedMessage, max_length: int | None) -> dict[str, Any]:
    found = {name: (type_, text_of(value)) for name, (type_, value) in message.message_attributes.items()}
    cut = message.body != message.body[:max_length] or any(text != text[:max_length] for _, text in found.values())
    return {
        "id": message.message_id,
        "state": message.state,
        "body": message.body[:max_length],
        "length": len(message.body),
        "cut": cut,
        "receive_count": message.receive_count,
        "sent_at": format_instant(message.sent_at),
        "visible_at": None if message.visible_at is None else format_instant(message.visible_at),
        "group_id": message.group_id,
        "source_queue": message.source_queue,
        "moved_at": None if message.moved_at is None else format_instant(message.moved_at),
        "dead_letter_reason": None if message.dead_letter_reason is None else _reason(message.dead_letter_reason),
        "consumer": message.consumer,
        "attempts": [_reason(each) for each in message.attempts],
        "attributes": {name: {"type": type_, "value": text[:max_length]} for name, (type_, text) in found.items()},
    }
