"""What a channel of ``lakequeue.integrations.celery`` consumes: a consumer for each queue."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, cast

from celery.utils.time import maybe_iso8601
from kombu.compression import decompress
from kombu.serialization import loads as decode
from kombu.transport import virtual
from kombu.utils.json import loads

from lakequeue import Consumer, Context, Message, Outcome
from lakequeue.integrations.celery_queues import Broker

_log = logging.getLogger(__name__)

_EARLY = 60
"""Seconds: a task that comes longer than this before its ETA is delayed once more, not kept by a worker."""
UNLIMITED = 1_000
"""Messages that a consumer without a prefetch count holds."""
_SETTLING = 10
"""Seconds that a consumer gets to settle what was acknowledged, when its channel closes."""


class Subscription:
    """What a channel consumes from a queue; holds each message until kombu settles it.

    Args:
        broker: the broker of this process.
        name: of the queue, as kombu knows it.
        number: maximum number of messages to hold; 0: no limit of kombu's.
        no_ack: delete messages as soon as they are delivered.
        put: called with the subscription and what whoever drains events passes to ``deliver``: kombu's message, or
            an error that ended the consumer.
        callback: called with kombu's message when it is delivered.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        number: int,
        no_ack: bool,
        put: Callable[[tuple[Subscription, Any]], None],
        callback: Callable[[dict[str, Any]], Any],
    ) -> None:
        self.name = name
        self._broker, self._no_ack, self._put, self._callback = broker, no_ack, put, callback
        self._held: dict[str, Callable[[Outcome], None]] = {}
        self._delivered: set[str] = set()
        self._cancelled = False
        self.consumer = Consumer(broker.queue(name), self._handle, number or UNLIMITED, broker.renewal, prefetch=0)
        self._thread = threading.Thread(target=self._run, name=f"lakequeue consumer of {name}", daemon=True)
        self._thread.start()

    def settle(self, tag: str, outcome: Outcome) -> bool:
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
            if self._no_ack or tag in self._held:
                raise
            # such as a store of results that does not take the id of an unknown task, which Celery has rejected
            _log.error("queue %s: %s after a message was settled", self.name, type(error).__name__)
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
            payload = payload_of(message)
        except Malformed as error:
            if await asyncio.to_thread(is_refused, self._broker, self.name, message, error):
                return Outcome.FAILED_RETRY_NOW
            return Outcome.SUCCESS
        eta = eta_of(payload)
        if eta is not None and self._broker.until(eta) > _EARLY:
            await asyncio.to_thread(self._broker.send, self.name, message.body, eta, message.priority)
            return Outcome.SUCCESS
        tag = mark_delivery(payload, message)
        if self._no_ack:
            self._put((self, payload))
            return Outcome.SUCCESS
        loop, settled = asyncio.get_running_loop(), asyncio.Future[Outcome]()

        def settle(outcome: Outcome) -> None:
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


class Malformed(ValueError):
    """A message that kombu or Celery cannot read, and that would end a worker."""


def payload_of(message: Message) -> dict[str, Any]:
    """Kombu's message in one of a queue, to which anybody may have sent anything.

    Raises:
        Malformed: says what is wrong with it.
    """
    try:
        payload: dict[str, Any] = _loaded(message.body)
        _need(isinstance(payload, dict), "it is no object")
        headers, properties, body = _member(payload, "headers"), _member(payload, "properties"), payload["body"]
        _member(properties, "delivery_info")
        _need(isinstance(body, str), "its body is no text")
        types = payload.get("content-type"), payload.get("content-encoding"), properties.get("body_encoding")
        _need(all(isinstance(each, str | None) for each in types), "its content-type or an encoding is no text")
        if types[2] and types[2].lower() != "utf-8":
            body = virtual.Channel.codecs[types[2]].decode(body)
        eta_of(payload)
        if compression := headers.get("compression"):
            body = decompress(body if isinstance(body, bytes) else body.encode(), compression)
        task, arguments = headers, cast(Any, ([], {}, None))
        if types[0] == "application/json":
            arguments = decode(body, types[0], types[1], accept={types[0]})
            if isinstance(arguments, dict):  # in the first protocol, which has all of a task in its body
                task = headers if "task" in headers else arguments
                arguments = arguments.get("args", []), arguments.get("kwargs", {}), None
        if "task" in task:
            _need(all(map(_is_name, (task.get("task"), task.get("id")))), "its task or id is no short text")
            _need(types[0] not in (None, "application/data"), "its body is not encoded as a task")
            args, kwargs, _ = arguments
            _need(isinstance(args, list) and isinstance(kwargs, dict), "its body has no arguments")
    except Malformed:
        raise
    except KeyError as error:
        raise Malformed(f"it has no {error}, or that is unknown") from None
    except Exception as error:  # a compression may raise its own
        raise Malformed(f"it cannot be decoded ({type(error).__name__})") from None
    return payload


def _loaded(text: str) -> Any:
    """What JSON says; kombu's messages to SQS are that once more in base64."""
    try:
        return loads(text)
    except ValueError:
        return loads(base64.b64decode(text, validate=True).decode())


def _member(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """An object that senders other than kombu leave out; it is there from now on."""
    if whole.get(name) is None:
        whole[name] = {}
    found: dict[str, Any] = whole[name]
    _need(isinstance(found, dict), f"its {name} is no object")
    return found


def _is_name(found: object) -> bool:
    """Whether something may name a task; stores of results end a worker at others."""
    return isinstance(found, str) and len(found) < 256 and found.isprintable()


def _need(true: bool, problem: str) -> None:
    if not true:
        raise Malformed(problem)


def is_refused(broker: Broker, name: str, message: Message, error: Malformed) -> bool:
    """Whether a malformed message is left to the queue's dead-letter queue; else it is to be deleted."""
    left = broker.queue(name).dead_letter_queue is not None
    fate = "it goes to the dead-letter queue" if left else "it is deleted"
    _log.error("queue %s: message %s is malformed: %s; %s", name, message.message_id, error, fate)
    return left


def mark_delivery(payload: dict[str, Any], message: Message) -> str:
    """Completes kombu's message for this delivery; returns its tag. That of the sender is in all copies."""
    properties = payload["properties"]
    properties["delivery_info"]["redelivered"] = message.receive_count > 1
    properties["delivery_tag"] = uuid.uuid4().hex
    return str(properties["delivery_tag"])


def _set(settled: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not settled.done():
        settled.set_result(outcome)


def eta_of(message: dict[str, Any]) -> datetime | None:
    """When a task is to run, if that is said."""
    instant: datetime | None = maybe_iso8601(message["headers"].get("eta"))
    if instant is None:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
