"""Bringing messages from a shard of one queue into the logs of another, each move once.

Each log of the target keeps the number of the last move from that shard. It is fence and memory at once: who
repeats a move, or comes late with an old one, finds it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from lakequeue.errors import QueueDoesNotExist, RequestThrottled
from lakequeue.storage import layout
from lakequeue.storage.engines.commit import commit
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.engines.retry import Races
from lakequeue.storage.messages.append import Appender

ATTEMPTS = 60
"""Lost races before the caller gets RequestThrottled."""

Cells = Mapping[str, Any]
"""A message as column -> value of ``messages``."""


@attrs.frozen
class Source:
    """Where a move comes from."""

    key: str
    shard: int
    number: int


def arrived(table: Table, source: Source) -> bool:
    """Whether the loaded snapshot of a target's shard has its part of the move, or of a later one."""
    return (table.transaction(layout.move_id(source.key, source.shard)) or 0) >= source.number


def deliver(table: Table, source: Source, messages: Sequence[Cells], now: Callable[[], int]) -> bool | None:
    """Appends messages to a shard of the target in one commit, unless that was done before.

    Returns:
        Whether a segment was closed by it, so that files may be merged. None: the target was deleted.

    Raises:
        RequestThrottled: too many lost races; nothing was appended.
    """
    move = layout.move_id(source.key, source.shard)
    races = Races(ATTEMPTS)
    for _ in races:
        if arrived(table, source):
            return False
        try:
            place = Appender(table).place(now())
        except QueueDoesNotExist:
            return None
        # a lower number would be accepted by Delta: what is there is part of the fence
        fence = {move: table.transaction(move) or 0, layout.SEND_ID: place.first}
        rows, ids = place.rows(messages), {move: source.number, **place.ids(len(messages))}
        if commit(table, fence, lambda token, rows=rows, ids=ids: table.append(rows, ids, token)):  # type: ignore[misc]
            return place.closes
        races.lose()
        table.refresh()
    raise RequestThrottled("too many lost races; the messages are on their way")
