"""Processes that move messages between queues."""

from __future__ import annotations

import random

import attrs

from concurrency.processes import WORKER, Processes
from lakequeue import Queue
from lakequeue.shard.commands import Outgoing


@attrs.define
class Movers(Processes):
    """The processes; each restart has its own name."""

    lives: int = 0

    def start(self) -> None:
        self.lives += 1
        name = f"life {self.lives}"
        self.begin(name, WORKER, "move", self.place, name, self.stop_file)

    def kill_one(self, chance: random.Random) -> None:
        self.kill(chance.choice(list(self.running)))


def unfinished(queue: Queue) -> list[Outgoing]:
    moves = [shard.ledger.query(lambda machine: machine.outgoing()) for shard in queue._runtime.shards]
    return [move for move in moves if move is not None]
