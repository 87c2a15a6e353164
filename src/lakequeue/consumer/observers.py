"""Hooks that report what a consumer does with its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import Protocol

from lakequeue.consumer.handler import Outcome
from lakequeue.model.messages import Message
from lakequeue.queue import Queue

COUNTERS = {
    "received": "Messages received.",
    "handled": "Messages whose handler succeeded.",
    "failed": "Messages whose handler failed.",
    "extended": "Extensions of receipts.",
    "lost": "Receipts lost while their message was active.",
}
"""What observers that measure a consumer count, and what each counter says."""
HISTOGRAMS = {
    "handler": "Time that a handler took.",
    "lag": "Time from the send of a message to its receive.",
}
"""What they time, in seconds."""


class Observer(Protocol):
    """Receives the events of one consumer, from any of its threads."""

    def received(self, messages: Sequence[Message], now: datetime) -> None:
        """Messages were received."""
        ...

    def handling(self, message: Message) -> AbstractContextManager[None]:
        """Is entered around each call of the handler, in its thread."""
        ...

    def handled(self, message: Message, seconds: float, outcome: Outcome, error: BaseException | None) -> None:
        """A handler has ended; called inside ``handling``.

        Args:
            seconds: how long it took, by the queue's clock.
            error: what it raised.
        """
        ...

    def extended(self, count: int) -> None:
        """Receipts were extended."""
        ...

    def lost(self, count: int) -> None:
        """Receipts were found to be lost."""
        ...


class Observers:
    """Passes events on to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def __bool__(self) -> bool:
        """False if nobody observes."""
        return bool(self._observers)

    def received(self, messages: Sequence[Message], now: datetime) -> None:
        for observer in self._observers:
            observer.received(messages, now)

    def handling(self, message: Message) -> ExitStack:
        stack = ExitStack()
        for observer in self._observers:
            stack.enter_context(observer.handling(message))
        return stack

    def handled(self, message: Message, seconds: float, outcome: Outcome, error: BaseException | None) -> None:
        for observer in self._observers:
            observer.handled(message, seconds, outcome, error)

    def extended(self, count: int) -> None:
        for observer in self._observers:
            observer.extended(count)

    def lost(self, count: int) -> None:
        for observer in self._observers:
            observer.lost(count)


installed: list[Callable[[Queue], Observer]] = []
"""Make an observer for each consumer of this process; ``lakequeue.otel.instrument`` adds one."""
