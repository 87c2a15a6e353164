"""Hooks that report the events of a consumer's messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime
from typing import Any, Protocol

from lakequeue.consumer.handler import Outcome
from lakequeue.model.messages import Message
from lakequeue.queue import Queue

COUNTERS = {
    "received": "Messages received.",
    "handled": "Messages whose handler succeeded.",
    "failed": "Messages whose handler failed.",
    "halved": "Messages of failed batches for a delivery table, which are handled again in halves.",
    "extended": "Extensions of receipts.",
    "lost": "Receipts lost while their message was active.",
}
"""Names and descriptions of the counters that observers of a consumer export."""
HISTOGRAMS = {
    "handler": "Time that a handler took.",
    "lag": "Time from the send of a message to its receive.",
}
"""Names and descriptions of the histograms that observers of a consumer export, in seconds."""
_NO_BLOCK = nullcontext()


class Observer(Protocol):
    """Receives the events of one consumer, from any of its threads."""

    def received(self, messages: Sequence[Message], now: datetime) -> None:
        """Called when messages were received."""
        ...

    def handling(self, message: Message) -> AbstractContextManager[None]:
        """Returns a context manager that surrounds each call of the handler, in the thread of the call."""
        ...

    def handled(self, message: Message, seconds: float, outcome: Outcome, error: BaseException | None) -> None:
        """Called when a handler has ended, inside the block of ``handling``.

        With a delivery table, called after the append.

        Args:
            seconds: duration of the call, and of the append of its rows, by the queue's clock.
            error: the error of the handler, or the error with which the table refused the rows, or None.
        """
        ...

    def halved(self, message: Message, seconds: float, error: BaseException | None) -> None:
        """Called in place of ``handled`` if a batch for a delivery table failed, and its halves are handled again.
        Which of the messages is the cause is unknown.
        """
        ...

    def extended(self, count: int) -> None:
        """Called when receipts were extended."""
        ...

    def lost(self, count: int) -> None:
        """Called when receipts were found to be lost."""
        ...


def handling(observers: Sequence[Observer], message: Message) -> AbstractContextManager[Any]:
    """Enters the context managers of ``Observer.handling``. Leaving the returned context manager leaves them."""
    if not observers:
        return _NO_BLOCK
    stack = ExitStack()
    for observer in observers:
        stack.enter_context(observer.handling(message))
    return stack


installed: list[Callable[[Queue], Observer]] = []
"""Functions that make an observer for each consumer of this process. ``lakequeue.otel.instrument`` adds one."""
