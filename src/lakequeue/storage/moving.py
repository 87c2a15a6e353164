"""Bringing messages from a shard of one queue into the log of another, each move once.

The target's log keeps the number of the last move from that shard. It is fence and memory at once: who repeats a
move, or comes late with an old one, finds it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from lakequeue.errors import QueueDoesNotExist, RequestThrottled
from lakequeue.storage import layout
from lakequeue.storage.append import Appender
from lakequeue.storage.commit import back_off, commit
from lakequeue.storage.engine import Table

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
    """Whether the loaded snapshot of the target's ``messages`` has the move, or a later one."""
    return (table.transaction(layout.move_id(source.key, source.shard)) or 0) >= source.number


def deliver(
    table: Table, source: Source, messages: Mapping[int, Sequence[Cells]], now: Callable[[], int]
) -> list[int] | None:
    """Appends messages by shard of the target in one commit, unless that was done before.

    Returns:
        Shards of which a segment was closed by it, so that files may be merged. None: the target was deleted.

    Raises:
        RequestThrottled: too many lost races; nothing was appended.
    """
    move = layout.move_id(source.key, source.shard)
    for attempt in range(ATTEMPTS):
        if arrived(table, source):
            return []
        try:
            places = {shard: Appender(table, shard).place(now()) for shard in messages}
        except QueueDoesNotExist:
            return None
        # a lower number would be accepted by Delta: what is there is part of the fence
        fence = {move: table.transaction(move) or 0}
        fence |= {layout.send_id(shard): place.first for shard, place in places.items()}
        rows = pa.concat_tables(place.rows(messages[shard]) for shard, place in places.items())
        ids = {move: source.number}
        for shard, place in places.items():
            ids |= place.ids(len(messages[shard]))
        if commit(table, fence, lambda token, rows=rows, ids=ids: table.append(rows, ids, token)):  # type: ignore[misc]
            return [shard for shard, place in places.items() if place.closes]
        back_off(attempt)
        table.refresh()
    raise RequestThrottled("too many lost races; the messages are on their way")
