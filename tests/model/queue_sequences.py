"""Random sequences of calls on a real queue, each answer compared with the naive model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lakequeue import LakeQueue, Message, Queue, QueueServiceError
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.testing import ManualClock

from .command_sequences import FIFO_JUMPS, Commands, attributes
from .model import GONE, SECOND, Claimed, Row, Settings

OPERATIONS = (
    *("send",) * 6,
    *("claim",) * 6,
    *("delete",) * 5,
    *("change",) * 2,
    *("rewind",) * 3,
    *("set_attributes", "purge"),
)
DEDUPLICATION = 300 * SECOND


class QueueCalls(Commands):
    """One queue through two entries that share nothing, and the model, given the same calls.

    Without dead letters, which the model knows as commands only; with deduplication, which it does not know.
    """

    def __init__(self, settings: Settings, groups: int, open: Callable[[ManualClock], LakeQueue]) -> None:
        super().__init__(replace(settings, max_receives=None, strict=settings.fifo), groups)
        self.manual = ManualClock()
        self.clock = to_micros(self.manual.now())
        name = "orders.fifo" if settings.fifo else "orders"
        given = attributes(self.model.settings)
        self.queues = [open(self.manual).create_queue(name, fifo=settings.fifo, **given) for _ in range(2)]
        self.handles: dict[tuple[int, str], str] = {}
        self.sent: dict[str, tuple[int, str]] = {}
        self.turn = 0

    @property
    def queue(self) -> Queue:
        """The one that did not make the last call."""
        self.turn += 1
        return self.queues[self.turn % 2]

    def step(self, code: bytes) -> None:
        """One call; all steps of one second and more pass between two of them."""
        operation, a, b, c, ending = code
        getattr(self, OPERATIONS[operation % len(OPERATIONS)])(a, b, c)
        self.clock += max(0, FIFO_JUMPS[ending % len(FIFO_JUMPS)])
        self.flush()

    def append(self, delay: int, group: str = "", letter: bool = False) -> None:
        """Sends at once, as the clock is; ids of FIFO messages come again."""
        body, id = str(len(self.log)), f"id-{len(self.log) * 7 % 25}"
        fifo = {"group_id": group, "dedup_id": id} if self.fifo else {"group_id": group or None}
        sent = self.queue.send(body, delay=None if self.fifo else delay / SECOND, **fifo)
        if self.fifo and id in self.sent and self.clock < self.sent[id][0] + DEDUPLICATION:
            assert sent.message_id == self.sent[id][1]
            return
        assert sent.message_id not in [known for _, known in self.sent.values()]
        self.sent[id] = self.clock, sent.message_id
        self.log.append(Row(self.clock, delay, group))

    def flush(self) -> None:
        """Makes the calls, and compares what the queue shows."""
        for row in self.log[len(self.model.messages) :]:
            self.model.send(row)
        self.manual.advance((self.clock - to_micros(self.manual.now())) / SECOND)
        self.model.advance(self.clock)
        batch, self.batch = self.batch, []
        for _, (name, *given) in batch:
            getattr(self, f"_{name}")(*given)
        counts, states = self.queue.counts(), self.model.states()
        shown = (counts.visible, counts.in_flight, counts.delayed, counts.held, counts.rewindable)
        told = [states.count(each) for each in ("visible", "in_flight", "delayed", "held")]
        assert shown == (*told, len(self.model.rewindable()))
        stored = [(str(offset), state) for offset, state in enumerate(states) if state not in GONE]
        assert [(each.body, each.state) for each in self.queue.peek(limit=8)] == stored[:8]

    def _answer(self, call: Callable[[], Any], name: str, *given: Any) -> tuple[Any, Any] | None:
        """The answers of the queue and of the model; None if both refused with the same code."""
        expected = self.model.apply(name, *given)
        refused = isinstance(expected, tuple) and not isinstance(expected, Claimed)
        try:
            answer = call()
        except QueueServiceError as error:
            assert refused and expected[0] == error.code, (name, given, error, expected)
            return None
        assert not refused, (name, given, expected)
        return answer, expected

    def _claim(
        self, count: int, timeout: int | None, lease: str, attempt: str | None = None, *_: object
    ) -> list[Message]:
        seconds = None if timeout is None else timeout / SECOND
        call = partial(self.queue.receive, count, visibility_timeout=seconds, wait_time=0, attempt_id=attempt)
        if (answers := self._answer(call, "claim", count, timeout, lease, attempt)) is None:
            return []
        messages, claimed = answers
        got = [(int(each.body), each.receive_count, to_micros(each.first_received_at)) for each in messages]
        assert got == claimed.messages
        for message in messages:
            self.handles[int(message.body), claimed.lease] = message.receipt_handle
            self.receipts.append((int(message.body), claimed.lease))
        return list(messages)

    def _delete(self, offset: int, lease: str) -> None:
        if handle := self.handles.get((offset, lease)):
            self._answer(partial(self.queue.delete, handle), "delete", offset, lease)

    def _change(self, offset: int, lease: str, timeout: int) -> None:
        if handle := self.handles.get((offset, lease)):
            call = partial(self.queue.change_visibility, handle, timeout / SECOND)
            self._answer(call, "change", offset, lease, timeout)

    def _rewind(self, to: int) -> None:
        if answers := self._answer(partial(self.queue.rewind, from_micros(to)), "rewind", to):
            assert answers[0] == answers[1]

    def _purge(self) -> None:
        if self._answer(self.queue.purge, "purge"):
            self.sent.clear()

    def _set_attributes(self, new: Settings) -> None:
        new = replace(new, max_receives=None, version=self.model.settings.version + 1)
        self._answer(partial(self.queue.set_attributes, **attributes(new)), "set_attributes", new)

    def end(self) -> None:
        """Receives and deletes all messages that are left, whatever paused or slowed the queue."""
        kind = {"fifo": self.fifo, "strict": self.fifo, "tenants": self.tenants}
        self._set_attributes(Settings(**kind, retention=self.model.settings.retention))
        while self.model.stored():
            self.names += 1
            lease = f"lease-{self.names}"
            for message in self._claim(10, 30 * SECOND, lease):
                self._delete(int(message.body), lease)
            self.clock = max(self.clock, self.model.next_event() or 0)
            self.flush()
