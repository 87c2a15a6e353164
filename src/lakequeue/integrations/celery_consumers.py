"""Consumers for the channels of ``lakequeue.integrations.celery``, one for each queue."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from kombu.utils.encoding import safe_repr

from lakequeue import Consumer, Context, Message, Outcome
from lakequeue.integrations.celery_payloads import (
    Malformed,
    checked,
    envelope_of,
    eta_of,
    is_compressed,
    mark_delivery,
)
from lakequeue.integrations.celery_queues import Broker

_log = logging.getLogger(__name__)

_EARLY = 60
"""Maximum seconds that a worker holds a task until its ETA. A task with a later ETA is sent again with a delay."""
UNLIMITED = 1_000
"""Maximum number of messages that a consumer holds if it has no prefetch count."""
_SETTLING = 10
"""Maximum seconds that a closing channel takes to settle acknowledged messages."""
_DELIVERIES = 3
"""Number of receives of a message after which a failure of Celery counts as the message's fault."""


class Subscription:
    """Consumes a queue for a channel. Holds each message until kombu settles it.

    Args:
        broker: the broker of this process.
        name: kombu's name of the queue.
        number: maximum number of held messages; 0 for ``UNLIMITED``.
        no_ack: True to delete messages when they are delivered.
        put: a function that the subscription calls with itself and a kombu message, or with itself and the error
            that ended it. The creator of the subscription must later pass the message or error to ``deliver``.
        callback: called with each delivered kombu message.
        forget: called with the tag of a message that kombu must no longer settle.
        broken: exception types that mean a broken connection. A Celery worker recovers from them.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        number: int,
        no_ack: bool,
        put: Callable[[tuple[Subscription, Any]], None],
        callback: Callable[[dict[str, Any]], Any],
        forget: Callable[[str], None],
        broken: tuple[type[BaseException], ...],
    ) -> None:
        self.name = name
        self._broker, self._no_ack, self._put, self._callback = broker, no_ack, put, callback
        self._forget, self._broken = forget, broken
        self._held: dict[str, Callable[[Outcome | Malformed], None]] = {}
        self._delivered: set[str] = set()
        self._cancelled = False
        self.consumer = Consumer(broker.queue(name), self._handle, number or UNLIMITED, broker.renewal, prefetch=0)
        self._thread = threading.Thread(target=self._run, name=f"lakequeue consumer of {name}", daemon=True)
        self._thread.start()

    def settle(self, tag: str, outcome: Outcome | Malformed) -> bool:
        """Settles a message by its delivery tag. Returns False if this subscription does not hold the message."""
        settle = self._held.pop(tag, None)
        if settle is not None:
            settle(outcome)
        self._end_if_idle()
        return settle is not None

    def deliver(self, message: Any) -> bool:
        """Takes a message or an error that was passed to ``put``. Passes a message to the callback, and raises an
        error. Returns False if the subscription was cancelled, or no longer holds the message.
        """
        if self._cancelled:
            return False
        if isinstance(message, Exception):
            raise message
        if not self._no_ack:
            tag = message["properties"]["delivery_tag"]
            if tag not in self._held:
                return False
            self._delivered.add(tag)
        try:
            self._callback(message)
        except Exception as error:
            if not self._no_ack and tag not in self._held:
                # for example, a result store refuses the id of a task that Celery has rejected
                _log.error("queue %s: %s after a message was settled", self.name, type(error).__name__)
            elif isinstance(error, (MemoryError, *self._broken)) or not _in_worker():
                raise
            elif self._no_ack:
                _log.error(
                    "queue %s: a message is malformed: %s; it is deleted", self.name, safe_repr(error)[:200]
                )
            else:
                self._forget(tag)
                self.settle(tag, Undeliverable(f"Celery cannot take it: {safe_repr(error)[:200]}"))
        return True

    def cancel(self) -> None:
        """Stops receiving, and makes undelivered messages visible. Ends once delivered messages are settled."""
        self._cancelled = True
        self.consumer.pause()
        for tag in set(self._held) - self._delivered:
            self.settle(tag, Outcome.FAILED_RETRY_NOW)
        self._end_if_idle()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """Makes all unsettled messages visible, and ends the subscription."""
        self._cancelled = True
        for tag in list(self._held):
            self.settle(tag, Outcome.FAILED_RETRY_NOW)
        self.consumer.stop(_SETTLING)
        self._thread.join(2 * _SETTLING)

    def _end_if_idle(self) -> None:
        if self._cancelled and not self._held:
            self.consumer.stop(_SETTLING)

    def _run(self) -> None:
        try:
            self.consumer.run()
        except Exception as error:
            if not self._cancelled:  # a cancelled queue may have been deleted
                self._put((self, error))

    async def _handle(self, message: Message, context: Context) -> Outcome:
        try:
            return await self._outcome(message)
        except Malformed as error:
            if isinstance(error, Undeliverable) and message.receive_count < _DELIVERIES:
                _log.error("queue %s: message %s is tried again: %s", self.name, message.message_id, error)
                return Outcome.FAILED_RETRY_NOW
            if await asyncio.to_thread(is_refused, self._broker, self.name, message, error):
                return Outcome.FAILED_RETRY_NOW
            return Outcome.SUCCESS

    async def _outcome(self, message: Message) -> Outcome:
        payload = envelope_of(message)
        if is_compressed(payload):
            await asyncio.to_thread(checked, payload)
        else:
            checked(payload)
        eta = eta_of(payload)
        if eta is not None and self._broker.until(eta) > _EARLY:
            await asyncio.to_thread(self._broker.send, self.name, message.body, eta, message.priority)
            return Outcome.SUCCESS
        tag = mark_delivery(payload, message)
        if self._no_ack:
            self._put((self, payload))
            return Outcome.SUCCESS
        loop, settled = asyncio.get_running_loop(), asyncio.Future[Outcome]()

        def settle(outcome: Outcome | Malformed) -> None:
            with suppress(RuntimeError):  # the loop has ended, and the message is visible again
                loop.call_soon_threadsafe(_set, settled, outcome)

        self._held[tag] = settle
        if self._cancelled:  # cancelled while the message was received
            self.settle(tag, Outcome.FAILED_RETRY_NOW)
        try:
            self._put((self, payload))
            return await settled
        finally:
            self._held.pop(tag, None)
            self._delivered.discard(tag)


class Undeliverable(Malformed):
    """Raised for a message that the main process of a Celery worker cannot process."""


def _in_worker() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("celery.worker."):
        frame = frame.f_back
    return frame is not None


def is_refused(broker: Broker, name: str, message: Message, error: Malformed) -> bool:
    """Logs a malformed message. Returns True if a dead-letter queue will get it; else the caller deletes it."""
    left = broker.queue(name).dead_letter_queue is not None
    fate = "it goes to the dead-letter queue" if left else "it is deleted"
    _log.error("queue %s: message %s is malformed: %s; %s", name, message.message_id, error, fate)
    return left


def _set(settled: asyncio.Future[Outcome], outcome: Outcome | Malformed) -> None:
    if settled.done():
        return
    if isinstance(outcome, Malformed):
        settled.set_exception(outcome)
    else:
        settled.set_result(outcome)
