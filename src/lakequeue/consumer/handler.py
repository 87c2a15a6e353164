"""What a handler gets besides its message, and what it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import TypeAlias

from lakequeue.errors import LeaseLost
from lakequeue.model.clock import Duration, duration_micros
from lakequeue.model.messages import Message
from lakequeue.queue import Queue
from lakequeue.renewal.policies import Hold


class Outcome(Enum):
    """What a handler returns; None counts as SUCCESS, an exception as FAILED."""

    SUCCESS = "success"
    """Delete it (HBN-2)."""
    FAILED = "failed"
    """Receive it again: at its timeout, or at once if the consumer hands failed messages back (HBN-3, HNS-14)."""
    FAILED_RETRY_NOW = "failed, retry now"
    """Receive it again at once (HBN-15)."""


class Lost(threading.Event):
    """An event that is set once the receipt of a message is lost, and is true then."""

    def __bool__(self) -> bool:
        return self.is_set()


class Context:
    """What a handler may ask about its message.

    Attributes:
        message: the message.
        lost: set once the receipt is lost: another consumer has received the message, or will.
    """

    def __init__(self, message: Message, queue: Queue, hold: Callable[[], Hold | None]) -> None:
        self.message = message
        self.lost = Lost()
        self._clock = queue.runtime.root.clock
        self._hold = hold

    @property
    def visibility_exhausted(self) -> bool:
        """Whether the receipt reaches twelve hours, after which nothing extends it (HBN-22)."""
        hold = self._hold()
        return hold is not None and hold.exhausted

    def raise_if_lost(self) -> None:
        """Ends the handler if its receipt is lost, as its result is no longer needed.

        Raises:
            LeaseLost: the receipt is lost.
        """
        if self.lost:
            raise LeaseLost(0, 1)

    def sleep(self, duration: Duration) -> bool:
        """Waits by the queue's clock; returns early, with False, once the receipt is lost."""
        until = self._clock.now() + timedelta(microseconds=duration_micros(duration))
        self._clock.wait(until, self.lost)
        return not self.lost


Handler: TypeAlias = Callable[[Message, Context], Outcome | None]
