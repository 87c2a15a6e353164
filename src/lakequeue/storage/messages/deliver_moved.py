"""Appends the messages of a move to a log exactly once: the log records the last move of each source shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Answer, Change, Decision, transact
from lakequeue.storage.messages.append import Appender

Cells = Mapping[str, Any]
"""A message, as a mapping from column names of ``messages`` to values."""


@attrs.frozen
class MoveSource:
    """Identifies a move: the shard from which messages come, and the number of the move."""

    key: str
    shard: int
    number: int


def arrived(table: Table, source: MoveSource) -> bool:
    """True if the target's loaded snapshot has this move, or a later move from the same source shard."""
    return table.transaction(layout.move_id(source.key, source.shard)) >= source.number


CheckClock = Callable[[int, int, Table], Mapping[str, int]]
"""Function that checks the clock before a commit. Gets the instants of this commit and of the last commit, and the
table. Returns further application ids for the commit.
"""


def deliver(
    table: Table, source: MoveSource, messages: Sequence[Cells], now: Callable[[], int], check_clock: CheckClock
) -> bool:
    """Appends the messages of a move, unless the log has them. Returns True if a segment was closed.

    Raises:
        QueueDoesNotExist: the target was deleted.
        RequestThrottled: too many lost races; nothing was appended.
    """
    move, appender = layout.move_id(source.key, source.shard), Appender(table)

    def delivered(_: int) -> Decision[bool]:
        if arrived(table, source):
            return Answer(False)
        appender.check_open()
        instant = now()
        more = check_clock(instant, appender.last_sent_at, table)
        place = appender.place(instant)
        # Delta would accept a lower number, so the fence includes the current one.
        fence = {move: table.transaction(move), layout.SEND_ID: place.first}
        rows = place.rows(messages)
        rows = layout.with_column(rows, "moved_at", rows["sent_at"])
        ids = {move: source.number, **place.ids(len(messages)), **more}

        def write(ids: Mapping[str, int], token: str) -> None:
            table.append(rows, ids, token, place.partition)

        return Change(fence, ids, write, place.closes, counts={"deliver": len(rows)})

    return transact(table, delivered, busy="too many lost races; the messages are on their way").value
