"""The position of a relay in its source. The target queue's log keeps the position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from lakequeue.errors import QueueDoesNotExist
from lakequeue.storage import layout
from lakequeue.storage.bulk.send_target import SendTarget
from lakequeue.storage.engines.transaction import Answer, Change, Decision, transact


def move(target: SendTarget, app_id: str, version: int, more: Mapping[str, int], first: bool) -> None:
    """Sets the position of a relay in the first shard's log, unless a later position is there already.

    Args:
        more: further application ids with their versions.
        first: True to change nothing if a position exists already.
    """
    shard = min(target.shards)
    table = target.open(shard)

    def decide(_: int) -> Decision[None]:
        known, end = table.transaction(app_id), table.transaction(layout.SEND_ID)
        if end >= layout.CLOSED:
            raise QueueDoesNotExist()
        if known >= version or (first and known):
            return Answer(None)
        return Change(
            {app_id: known, layout.SEND_ID: end}, {app_id: version, **more}, partial(table.add, []), None
        )

    with target.here.holding(shard):
        table.refresh()
        transact(table, decide, busy="too many lost races; the position of the relay was not moved")
