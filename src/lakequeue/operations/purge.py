"""Purging a queue."""

from __future__ import annotations

from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.steps import Steps
from lakequeue.shard.commands import Purge
from lakequeue.storage.reserve import reserve


def purge(queue: OpenQueue) -> None:
    """Removes every message sent before the call, in one commit per shard (PUR-1, PUR-2)."""
    with queue.service("purge"), reserve(queue.root.path):
        first, command = queue.shards[0], Purge(queue.name)
        first.query(lambda machine: machine.check_purge(command, queue.now()))
        steps = Steps("purge")
        # the first shard records the time of the purge, so it comes last: an interrupted purge can be repeated
        for shard in queue.shards[1:]:
            with steps.step():
                queue.command(shard, Purge(queue.name, at_any_time=True))
        with steps.step():
            queue.command(first, command)
