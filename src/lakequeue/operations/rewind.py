"""Rewinding a queue."""

from __future__ import annotations

from datetime import datetime

import attrs

from lakequeue.model.arguments import check_instant
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.steps import Steps
from lakequeue.shard.commands import Rewind


def rewind(queue: OpenQueue, to: datetime) -> int:
    """Makes deleted messages that were sent at an instant or later visible again; returns how many (RWD-9)."""
    with queue.service("rewind") as call:
        command = Rewind(check_instant("RewindTime", to))
        for shard in queue.shards:  # check all shards first, so that a refusal changes none
            shard.query(lambda machine: machine.check_rewind(command, queue.now()))
        count, checked, steps = 0, attrs.evolve(command, checked=True), Steps("rewind")
        for shard in queue.shards:
            with steps.step():
                count += queue.command(shard, checked)
        call.messages = count
        return count


def rewindable(queue: OpenQueue, to: datetime) -> int:
    """How many messages a rewind would make visible now; errors as in ``rewind``."""
    with queue.service("rewindable"):
        command = Rewind(check_instant("RewindTime", to))
        return sum(shard.query(lambda machine: machine.rewindable(command, queue.now())) for shard in queue.shards)
