"""Queues and messages as JSON."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from lakequeue import PeekedMessage
from lakequeue.entry_verbs import Search, SelectedOutcome
from lakequeue.errors import ResourceNotFoundException
from lakequeue.model.clock import format_instant

MAX_LISTED_LENGTH = 400
"""Characters of a body, or of a message attribute, in a list."""
MAX_PAGE_BYTES = 2**20
"""Bytes at which a list takes no more messages."""


def name_of(arn: str | None) -> str | None:
    return None if arn is None else arn.rpartition(":")[2]


def message_list(search: Search, limit: int) -> dict[str, Any]:
    """At most ``limit`` messages and ``MAX_PAGE_BYTES``, with bodies cut, ``next`` if there may be further ones.

    ``tested``: how many messages were read, if that ended the search.
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
    """The only message found, with its whole body.

    Raises:
        ResourceNotFoundException: no message was found.
    """
    if not found:
        raise ResourceNotFoundException("The message is no longer there.")
    return _message(found[0], None)


def outcome(found: SelectedOutcome) -> dict[str, Any]:
    """What became of chosen messages: those changed, the others by their state, and those no longer there."""
    return {"messages": found.done, "stayed": dict(found.stayed), "missing": found.missing}


def shown_root(root: str) -> str:
    """The root without what may be a secret: user, password and query of a URI."""
    if "://" not in root:
        return root
    parts = urlsplit(root)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _message(message: PeekedMessage, max_length: int | None) -> dict[str, Any]:
    values = {
        name: {"type": type_, "value": base64.b64encode(value).decode() if isinstance(value, bytes) else value}
        for name, (type_, value) in message.message_attributes.items()
    }
    attributes = {name: value | {"value": value["value"][:max_length]} for name, value in values.items()}
    return {
        "id": message.message_id,
        "state": message.state,
        "body": message.body[:max_length],
        "length": len(message.body),
        "cut": message.body != message.body[:max_length] or attributes != values,
        "receive_count": message.receive_count,
        "sent_at": format_instant(message.sent_at),
        "visible_at": None if message.visible_at is None else format_instant(message.visible_at),
        "group_id": message.group_id,
        "source_queue": message.source_queue,
        "dead_letter_reason": None if message.dead_letter_reason is None else str(message.dead_letter_reason),
        "consumer": message.consumer,
        "attributes": attributes,
    }
