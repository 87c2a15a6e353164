"""Celery without a broker: a kombu transport over the queues of a root. See docs/guides/celery.md.

Importing this module registers ``lakequeue:////data/queues`` and ``lakequeue://s3/bucket/queues`` as addresses.
"""

from __future__ import annotations

import os
import queue as queues
import threading
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.managers import BaseManager
from time import monotonic
from typing import Any, ClassVar

from lakequeue import Message, Outcome, Queue
from lakequeue.errors import (
    MissingPackage,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
    UnsupportedOperation,
)

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.transport.base import to_rabbitmq_queue_arguments
    from kombu.utils.json import dumps
except ModuleNotFoundError as error:
    raise MissingPackage.of("lakequeue.integrations.celery", "celery", error) from None

from lakequeue.integrations.celery_consumers import UNLIMITED, Subscription, is_refused
from lakequeue.integrations.celery_payloads import Malformed, eta_of, mark_delivery, payload_of
from lakequeue.integrations.celery_queues import Binding, Broker
from lakequeue.model.secrets import hidden

_SERVED = ("connect", "exists", "declare", "send", "size", "purge", "delete", "bind", "bindings", "attended")


class _ForkRelay(BaseManager):
    """Lets forked children of a worker send through the worker, because lakequeue does not work after a fork."""

    served: ClassVar[tuple[int, Any, bytes]] = (0, None, b"")
    """Id of the process that runs the relay, and the relay's address and key. The id is 0 if no relay runs."""

    @classmethod
    def serve(cls) -> None:
        """Starts the relay through which children of this process use its brokers."""
        if cls.served[0] != os.getpid():
            key = os.urandom(32)
            server = cls(authkey=key).get_server()
            cls.served = os.getpid(), server.address, key
            threading.Thread(target=server.serve_forever, name="lakequeue relay", daemon=True).start()


_brokers: dict[str, tuple[int, Any]] = {}


def _broker(url: str, options: dict[str, Any]) -> Any:
    key = f"{url} {options}"
    pid, broker = _brokers.get(key, (None, None))
    if pid != os.getpid():
        parent, address, relay_key = _ForkRelay.served
        if parent not in (0, os.getpid()):  # another process has forked this one
            relay = _ForkRelay(address, relay_key)
            relay.connect()
            broker = relay.broker(url, options)  # type: ignore[attr-defined]
        else:
            broker = Broker(url, options)
        _brokers[key] = os.getpid(), broker
    return broker


_ForkRelay.register("broker", callable=_broker, exposed=_SERVED)


class Channel(virtual.Channel):
    """A kombu channel with a consumer for each consumed queue. Its prefetch count limits each consumer."""

    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._subscriptions: dict[str, Subscription] = {}
        self._auto_delete: set[str] = set()
        self._gotten: dict[str, tuple[Queue, Message]] = {}

    @property
    def broker(self) -> Any:
        return self.connection.broker

    @property
    def _receiving(self) -> Broker:
        """The broker of this process. Raises UnsupportedOperation in a worker's child, which cannot receive."""
        if not isinstance(self.broker, Broker):
            raise UnsupportedOperation("a process that was forked from a worker can send, but not receive")
        return self.broker

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        broker = self._receiving
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        _ForkRelay.serve()
        for tag, one in list(self._subscriptions.items()):
            if one.ended and one.name not in self._auto_delete:
                del self._subscriptions[tag]
        self._subscriptions[consumer_tag] = Subscription(
            broker,
            queue,
            self.qos.prefetch_count,
            no_ack,
            self.connection.inbox.put,
            self.connection._callbacks[queue],
            self.qos.ack,
            (*self.connection.connection_errors, *self.connection.channel_errors),
        )

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        broker = self._receiving
        source, found = broker.used(queue, lambda source: (source, source.receive(1, wait_time=0)))
        for message in found:
            try:
                payload = payload_of(message)
            except Malformed as error:
                if is_refused(broker, queue, message, error):
                    source.change_visibility(message, 0)
                else:
                    source.delete(message)
                continue
            self._gotten[mark_delivery(payload, message)] = source, message
            return payload
        raise queues.Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self._settle(message.delivery_tag, Outcome.SUCCESS)
        return message

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stops receiving for a consumer. Messages that were already delivered can still be acknowledged."""
        super().basic_cancel(consumer_tag)
        if consumer_tag in self._subscriptions:
            self._subscriptions[consumer_tag].cancel()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for subscription in self._subscriptions.values():
            subscription.consumer.concurrency = prefetch_count or UNLIMITED

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._settle(delivery_tag, Outcome.SUCCESS)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._settle(delivery_tag, Outcome.FAILED_RETRY_NOW if requeue else Outcome.SUCCESS)
        self.qos.ack(delivery_tag)

    def _restore(self, message: Any) -> None:
        """Makes a message visible again. Without this method, kombu would send a copy of the message."""
        self._settle(message.delivery_tag, Outcome.FAILED_RETRY_NOW)

    def _settle(self, tag: str, outcome: Outcome) -> None:
        if tag in self._gotten:
            source, message = self._gotten.pop(tag)
            if outcome is Outcome.SUCCESS:
                source.delete(message)
            else:
                source.change_visibility(message, 0)
        else:
            any(each.settle(tag, outcome) for each in list(self._subscriptions.values()))

    def close(self) -> None:
        if self.closed:
            return
        transport = self.connection
        super().close()
        for subscription in self._subscriptions.values():
            subscription.close()
            if subscription.name in self._auto_delete:
                with suppress(*transport.connection_errors, *transport.channel_errors):
                    transport.broker.delete(subscription.name)

    # --- queues

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)  # x-max-priority

    def _new_queue(self, queue: str, auto_delete: bool = False, arguments: Any = None, **kwargs: Any) -> None:
        if auto_delete:
            self._auto_delete.add(queue)
        self.broker.declare(queue, auto_delete, (arguments or {}).get("x-max-priority"))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return bool(self.broker.exists(queue))

    def _size(self, queue: str) -> int:
        return int(self.broker.size(queue))

    def _purge(self, queue: str) -> int:
        return int(self.broker.purge(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if not (if_empty and self._has_queue(queue) and self._size(queue)):
            self.broker.delete(queue)
            self._auto_delete.discard(queue)
            self.state.queue_bindings_delete(queue)

    def _queue_bind(self, exchange: str, key: str, pattern: str | None, queue: str) -> None:
        self.broker.bind(exchange, key or "", pattern, queue)

    def get_table(self, exchange: str) -> list[Binding]:
        return list(self.broker.bindings(exchange))

    # --- sending

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Collection[str]:
        found: Collection[str] = super()._lookup(exchange, routing_key, default)
        if exchange and not found and self.typeof(exchange).type == "direct":
            self.broker.bindings(exchange, True)  # the queue for replies may be newer than the cached bindings
            found = super()._lookup(exchange, routing_key, default)
        if exchange and self.typeof(exchange).type == "topic":
            found = self.broker.attended(found)
        return found

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        try:
            self.broker.send(queue, dumps(message), eta_of(message), message["properties"].get("priority") or 0)
        except QueueDoesNotExist:
            if "task" in message["headers"] or "correlation_id" not in message["properties"]:
                raise  # other messages are replies whose recipient is gone

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for queue in self.broker.attended({queue for _, _, queue in self.get_table(exchange)}):
            self._put(queue, message)


class Transport(virtual.Transport):
    """The kombu transport ``lakequeue``. The address of a connection names the root of the queues."""

    Channel = Channel
    can_parse_url = True
    driver_type = driver_name = "lakequeue"
    default_port = None
    # a new connection declares a deleted queue again
    connection_errors = (
        *virtual.Transport.connection_errors,
        QueueClientError,
        QueueDoesNotExist,
        RequestThrottled,
    )
    channel_errors = (*virtual.Transport.channel_errors, QueueServiceError)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.inbox: queues.SimpleQueue[tuple[Subscription, Any]] = queues.SimpleQueue()
        self.broker  # refuses wrong options now  # noqa: B018

    @property
    def broker(self) -> Any:
        """The broker of this process. In a forked child of a worker, the broker sends through the worker."""
        return _broker(self.client.hostname, self.client.transport_options)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        kind, _, rest = uri.partition("://")[2].partition("/")
        return f"{uri.partition('://')[0]}://{hidden(f'{kind}://{rest}').replace('://', '/', 1)}"

    def driver_version(self) -> str:
        from lakequeue import __version__

        return __version__

    def establish_connection(self) -> Any:
        self.broker.connect()
        return super().establish_connection()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        end = None if timeout is None else monotonic() + timeout
        while True:
            try:
                subscription, message = self.inbox.get(timeout=None if end is None else max(0, end - monotonic()))
            except queues.Empty:
                raise TimeoutError from None
            if subscription.deliver(message):
                return


TRANSPORT_ALIASES["lakequeue"] = "lakequeue.integrations.celery:Transport"
