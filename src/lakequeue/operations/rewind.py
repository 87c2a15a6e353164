"""Verbs on a whole queue: purge and rewind."""

from __future__ import annotations

from datetime import datetime

import attrs

from lakequeue.model.arguments import check_instant
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import Purge, Rewind
from lakequeue.storage.reserve import reserve


def rewind(queue: OpenQueue, to: datetime) -> int:
    """Restores the deleted messages that were sent at ``to`` or later. Returns the number of messages (RWD-9)."""
    with queue.service("rewind") as call:
        command, now = Rewind(check_instant("to", to)), queue.now()  # reading many shards may take long
        for shard in queue.shards:  # check all shards first, so that a refusal changes none
            shard.ledger.query(lambda machine: machine.check_rewind(command, now))
        count, checked, steps = 0, attrs.evolve(command, checked=True), Steps("rewind")
        for shard in queue.shards:
            with steps.step():
                count += queue.command(shard, checked)
        call.messages = count
        return count


def rewindable(queue: OpenQueue, to: datetime) -> int:
    """Returns how many messages a rewind would make visible now. Raises the errors of ``rewind``."""
    with queue.service("rewindable"):
        command, now = Rewind(check_instant("to", to)), queue.now()
        return sum(shard.ledger.query(lambda machine: machine.rewindable(command, now)) for shard in queue.shards)


def purge(queue: OpenQueue) -> None:
    """Removes all messages that were sent before the call (PUR-1, PUR-2). Makes one commit per shard."""
    with queue.service("purge"), reserve(queue.root.path):
        first, command = queue.shards[0], Purge(queue.name)
        first.ledger.query(lambda machine: machine.check_purge(command, queue.now()))
        steps = Steps("purge")
        # the first shard records the time of the purge, so it comes last: an interrupted purge can be repeated
        for shard in queue.shards[1:]:
            with steps.step():
                queue.command(shard, Purge(queue.name, at_any_time=True))
        with steps.step():
            queue.command(first, command)
