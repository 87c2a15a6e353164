"""What a channel of ``lakequeue.integrations.celery`` consumes: a consumer for each queue."""

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
"""Seconds: a task that comes longer than this before its ETA is delayed once more, not kept by a worker."""
UNLIMITED = 1_000
"""Messages that a consumer without a prefetch count holds."""
_SETTLING = 10
"""Seconds that a consumer gets to settle what was acknowledged, when its channel closes."""
_DELIVERIES = 3
"""Receives of a message after which an error of Celery's is due to the message, not to the moment."""


class Subscription:
    """What a channel consumes from a queue; holds each message until kombu settles it.

    Args:
        broker: the broker of this process.
        name: of the queue, as kombu knows it.
        number: maximum number of messages to hold; 0: no limit of kombu's.
        no_ack: delete messages as soon as they are delivered.
        put: called with the subscription and the argument of ``deliver``: kombu's message, or
            an error that ended the consumer.
        callback: called with kombu's message when it is delivered.
        forget: called with the tag of a message that kombu is not to settle any more.
        broken: errors of the connection, which a worker handles itself.
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
        """Settles a message, if it came from here."""
        settle = self._held.pop(tag, None)
        if settle is not None:
            settle(outcome)
        self._end_if_idle()
        return settle is not None

    def deliver(self, message: Any) -> bool:
        """Gives kombu a message, or raises an error, that was put; False if that was handed back or lost since."""
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
                # such as a store of results that does not take the id of a task that Celery has rejected
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
        """Receives nothing further, hands back what was not delivered, and ends once the rest has been settled."""
        self._cancelled = True
        self.consumer.pause()
        for tag in set(self._held) - self._delivered:
            self.settle(tag, Outcome.FAILED_RETRY_NOW)
        self._end_if_idle()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """Hands back what is not settled."""
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
            if not self._cancelled:  # else the queue may have been deleted
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
            with suppress(RuntimeError):  # the loop has ended, and the message was handed back
                loop.call_soon_threadsafe(_set, settled, outcome)

        self._held[tag] = settle
        if self._cancelled:  # while it was on its way
            self.settle(tag, Outcome.FAILED_RETRY_NOW)
        try:
            self._put((self, payload))
            return await settled
        finally:
            self._held.pop(tag, None)
            self._delivered.discard(tag)


class Undeliverable(Malformed):
    """A message at which Celery raised an error in the main process of a worker."""


def _in_worker() -> bool:
    """True if a worker of Celery asked for the message.

    Errors in the callbacks of other programs that use kombu reach their callers, as with every transport.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("celery.worker."):
        frame = frame.f_back
    return frame is not None


def is_refused(broker: Broker, name: str, message: Message, error: Malformed) -> bool:
    """Whether a malformed message is left to the queue's dead-letter queue; else it is to be deleted."""
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
