"""Random sequences of calls on a queue, with results that can be compared between queues."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import attrs

from insides import forget
from lakequeue import LakeQueue, LakeQueueError, Queue
from lakequeue.testing import ManualClock

LONG = 30
"""Seconds of the visibility timeout of the queues."""
VERBS = {
    "send": 8,
    "receive": 8,
    "delete": 6,
    "change": 2,
    "rewind": 2,
    "purge": 1,
    "set": 1,
    "look": 3,
    "wait": 4,
}
"""How often each is called."""


@attrs.define
class CallSequence:
    """One queue through two entries that share nothing; ids become numbers, so that sequences are comparable."""

    root: str
    fifo: bool
    clock: ManualClock = attrs.field(factory=ManualClock)
    said: list[Any] = attrs.field(factory=list)
    held: list[Any] = attrs.field(factory=list)
    numbers: dict[str, int] = attrs.field(factory=dict)
    queues: list[Queue] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        name = "orders.fifo" if self.fifo else "orders"
        settings = {"visibility_timeout": LONG, "message_retention_period": 900, "rewind_range": 600}
        self.queues = []
        for _ in range(2):
            forget()
            lake = LakeQueue(self.root, clock=self.clock)
            self.queues.append(lake.create_queue(name, fifo=self.fifo, **settings))

    def number(self, message_id: str) -> int:
        return self.numbers.setdefault(message_id, len(self.numbers))

    def shown(self, message: Any) -> tuple[Any, ...]:
        names = ("body", "receive_count", "sent_at", "group_id", "sequence_number")
        return self.number(message.message_id), *(getattr(message, name) for name in names)

    def step(self, draw: random.Random) -> None:
        """One random call; the same draws give the same calls."""
        queue = self.queues[draw.randrange(2)]
        [verb] = draw.choices([*VERBS], [*VERBS.values()])
        self.said.append((verb, answered(getattr(self, f"_{verb}"), queue, draw)))

    def end(self) -> None:
        """Receives and deletes all messages that are left, rewinds once, and does so again."""
        first, second = self.queues
        for _ in range(2):
            for _ in range(60):
                messages = first.receive(100, visibility_timeout=5, wait_time=0)
                self.said.append([self.shown(message) for message in messages])
                for message in messages:
                    first.delete(message.receipt_handle)
                counts = second.counts()
                if not messages and counts.visible + counts.in_flight + counts.delayed == 0:
                    break
                self.clock.advance(5)
            self.said.append(attrs.asdict(first.counts()))
            self.said.append(answered(second.rewind, self.clock.now() - timedelta(seconds=300)))

    def _send(self, queue: Queue, draw: random.Random) -> Any:
        answers = []
        for _ in range(draw.randint(1, 3)):
            body, delay = f"body {draw.randrange(10**6)}", draw.choice([None, None, 20])
            if self.fifo:
                sent = queue.send(body, group_id=draw.choice("ABC"), dedup_id=str(draw.randrange(25)))
            else:
                sent = queue.send(body, delay=delay)
            answers.append((self.number(sent.message_id), sent.sequence_number))
        return answers

    def _receive(self, queue: Queue, draw: random.Random) -> Any:
        messages = queue.receive(draw.randint(1, 6), visibility_timeout=draw.choice([None, 5, 400]), wait_time=0)
        self.held += messages
        return [self.shown(message) for message in messages]

    def _delete(self, queue: Queue, draw: random.Random) -> Any:
        draw.shuffle(self.held)
        count = min(len(self.held), draw.randint(1, 4))
        return [answered(queue.delete, self.held.pop().receipt_handle) for _ in range(count)]

    def _change(self, queue: Queue, draw: random.Random) -> Any:
        if self.held:
            return queue.change_visibility(draw.choice(self.held).receipt_handle, draw.choice([0, 60]))

    def _rewind(self, queue: Queue, draw: random.Random) -> Any:
        return queue.rewind(self.clock.now() - timedelta(seconds=draw.choice([1, 60, 300, 600])))

    def _purge(self, queue: Queue, draw: random.Random) -> Any:
        return queue.purge()

    def _set(self, queue: Queue, draw: random.Random) -> Any:
        return queue.set_attributes(
            message_retention_period=draw.choice([600, 900, 5_000]),
            rewind_range=draw.choice([0, 300, 600, 600]),
            max_delayed_messages=draw.choice([None, 1, 3]),
        )

    def _look(self, queue: Queue, draw: random.Random) -> Any:
        peeked = [(self.number(m.message_id), m.body, m.state) for m in queue.peek(limit=8)]
        return attrs.asdict(queue.counts()), peeked

    def _wait(self, queue: Queue, draw: random.Random) -> Any:
        self.clock.advance(draw.choice([1, 7, 31, 120, 290, 700]))


def answered(call: Any, *given: Any) -> Any:
    """What a call answers, or with which error."""
    try:
        return call(*given)
    except LakeQueueError as error:
        return getattr(error, "code", repr(error))
