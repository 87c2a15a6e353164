"""Random sequences of calls on a queue, with results that can be compared between queues."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs

from insides import forget
from lakequeue import LakeQueue, LakeQueueError, Queue
from lakequeue.testing import ManualClock

LONG = 30
"""Seconds of the visibility timeout of the queues."""


@attrs.define
class CallSequence:
    """One queue through two entries that share nothing; ids become numbers, so that sequences are comparable."""

    root: str
    fifo: bool
    open: Callable[[ManualClock], LakeQueue]
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
            self.queues.append(self.open(self.clock).create_queue(name, fifo=self.fifo, **settings))

    def number(self, message_id: str) -> int:
        return self.numbers.setdefault(message_id, len(self.numbers))

    def step(self, draw: random.Random) -> None:
        """One random call; the same draws give the same calls."""
        queue = self.queues[draw.randrange(2)]
        verb = draw.choices(list(VERBS), [weight for weight, _ in VERBS.values()])[0]
        try:
            answer = VERBS[verb][1](self, queue, draw)
        except LakeQueueError as error:
            answer = getattr(error, "code", repr(error))
        self.said.append((verb, answer))

    def end(self) -> None:
        """Receives and deletes all messages that are left, rewinds once, and does so again."""
        for _ in range(2):
            for _ in range(60):
                messages = self.queues[0].receive(100, visibility_timeout=5, wait_time=0)
                self.said.append([self.shown(message) for message in messages])
                for message in messages:
                    self.queues[0].delete(message.receipt_handle)
                counts = self.queues[1].counts()
                if not messages and counts.visible + counts.in_flight + counts.delayed == 0:
                    break
                self.clock.advance(5)
            self.said.append(attrs.asdict(self.queues[0].counts()))
            try:
                self.said.append(self.queues[1].rewind(self.clock.now() - timedelta(seconds=300)))
            except LakeQueueError as error:
                self.said.append(repr(type(error)))

    def shown(self, message: Any) -> tuple[Any, ...]:
        return (
            self.number(message.message_id),
            message.body,
            message.receive_count,
            message.sent_at,
            message.group_id,
            message.sequence_number,
        )


def _send(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    answers = []
    for _ in range(draw.randint(1, 3)):
        body, delay = f"body {draw.randrange(10**6)}", draw.choice([None, None, 20])
        if calls.fifo:
            sent = queue.send(body, group_id=draw.choice("ABC"), dedup_id=str(draw.randrange(25)))
        else:
            sent = queue.send(body, delay=delay)
        answers.append((calls.number(sent.message_id), sent.sequence_number))
    return answers


def _receive(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    messages = queue.receive(draw.randint(1, 6), visibility_timeout=draw.choice([None, 5, 400]), wait_time=0)
    calls.held += messages
    return [calls.shown(message) for message in messages]


def _delete(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    draw.shuffle(calls.held)
    answers = []
    for _ in range(min(len(calls.held), draw.randint(1, 4))):
        try:
            answers.append(queue.delete(calls.held.pop().receipt_handle))
        except LakeQueueError as error:
            answers.append(repr(type(error)))
    return answers


def _change(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    return (
        queue.change_visibility(draw.choice(calls.held).receipt_handle, draw.choice([0, 60])) if calls.held else 0
    )


def _rewind(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    return queue.rewind(calls.clock.now() - timedelta(seconds=draw.choice([1, 60, 300, 600])))


def _purge(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    return queue.purge()


def _set(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    retention = draw.choice([600, 900, 5_000])
    return queue.set_attributes(
        message_retention_period=retention,
        rewind_range=draw.choice([0, 300, 600, 600]),
        max_delayed_messages=draw.choice([None, 1, 3]),
    )


def _look(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    peeked = [(calls.number(m.message_id), m.body, m.state) for m in queue.peek(limit=8)]
    return attrs.asdict(queue.counts()), peeked


def _wait(calls: CallSequence, queue: Queue, draw: random.Random) -> Any:
    calls.clock.advance(draw.choice([1, 7, 31, 120, 290, 700]))


VERBS: dict[str, tuple[int, Callable[[CallSequence, Queue, random.Random], Any]]] = {
    "send": (8, _send),
    "receive": (8, _receive),
    "delete": (6, _delete),
    "change": (2, _change),
    "rewind": (2, _rewind),
    "purge": (1, _purge),
    "set": (1, _set),
    "look": (3, _look),
    "wait": (4, _wait),
}
