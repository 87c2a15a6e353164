"""A consumer that does anything with a queue that has rewind, and knows what must be shown of it."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from lakequeue import Queue, SendEntry
from lakequeue.testing import ManualClock


class Consumed:
    """A queue with rewind under random operations, and what must be rewindable in it."""

    range = timedelta(seconds=300)

    def __init__(self, queue: Queue, clock: ManualClock, seed: int) -> None:
        self.queue = queue
        self.clock = clock
        self.chance = random.Random(seed)
        self.sent: dict[str, datetime] = {}
        self.deleted: set[str] = set()

    def operate(self) -> None:
        draw = self.chance.random()
        if draw < 0.35 or not self.sent:
            bodies = [f"{len(self.sent) + index}" for index in range(self.chance.randint(1, 3))]
            fields = [{"group_id": body[-1], "dedup_id": body} if self.queue.fifo else {} for body in bodies]
            self.queue.send_batch([SendEntry(body, **more) for body, more in zip(bodies, fields, strict=True)])
            self.sent |= dict.fromkeys(bodies, self.clock.now())
        elif draw < 0.8:
            for message in self.queue.receive(self.chance.randint(1, 4), visibility_timeout=20):
                if self.chance.random() < 0.8:
                    self.queue.delete(message.receipt_handle)
                    self.deleted.add(message.body)
        elif draw < 0.9:
            to = self.chance.choice([at for at in self.sent.values() if at >= self.clock.now() - self.range])
            again = (
                {body for body in self.rewindable() if self.sent[body] >= to} if to < self.clock.now() else set()
            )
            assert self.queue.rewind(to) == len(again)
            self.deleted -= again
        else:
            self.clock.advance(self.chance.randint(1, 12))

    def rewindable(self) -> set[str]:
        return {body for body in self.deleted if self.sent[body] >= self.clock.now() - self.range}

    def compare(self, shown: dict[str, str], history: list[str], row: dict[str, Any]) -> None:
        assert sorted(history) == sorted(self.rewindable())
        assert {body for body, state in shown.items() if state == "deleted"} == self.deleted
        counts = self.queue.counts()
        names = ("visible", "in_flight", "delayed", "rewindable")
        assert [row[name] for name in names] == [getattr(counts, name) for name in names]
        assert counts.rewindable == len(history)


def consumed(queues: list[Queue], clock: ManualClock) -> dict[str, Consumed]:
    """The queues after sixty operations on each."""
    each = {queue.name: Consumed(queue, clock, seed) for seed, queue in enumerate(queues, 11)}
    for _ in range(60):
        for one in each.values():
            one.operate()
    assert all(5 < len(one.rewindable()) < len(one.sent) for one in each.values())
    return each
