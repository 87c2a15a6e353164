"""Airflow's triggers, which wait for messages in the triggerer. A trigger needs no thread of its own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from lakequeue import Message, Outage, aio
from lakequeue.errors import InvalidOptions, LakeQueueError, MissingPackage
from lakequeue.integrations import MOST_AT_ONCE, PASSING
from lakequeue.model.arguments import check_string, check_type, check_whole
from lakequeue.model.messages import text_of

try:
    from airflow.sdk import BaseHook
    from airflow.sdk.log import mask_secret
    from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
except ModuleNotFoundError as error:
    raise MissingPackage.of("lakequeue.integrations.airflow", "airflow", error) from None

DEFAULT_CONNECTION = "lakequeue_default"
_WAIT_TIME = 20
_OUTAGE = Outage()

_log = logging.getLogger("lakequeue")
_lakes: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]]], aio.LakeQueue] = WeakValueDictionary()
"""Clients by root and storage options. All triggers of a process share these clients."""


class _Arguments:
    def __init__(
        self,
        queue_name: str,
        lakequeue_conn_id: str = DEFAULT_CONNECTION,
        max_messages: int = 10,
        visibility_timeout: float | None = None,
    ) -> None:
        super().__init__()
        check_string("queue_name", queue_name)
        check_string("lakequeue_conn_id", lakequeue_conn_id)
        check_whole("max_messages", max_messages, MOST_AT_ONCE)
        self.arguments: dict[str, Any] = {
            "queue_name": queue_name,
            "lakequeue_conn_id": lakequeue_conn_id,
            "max_messages": max_messages,
            "visibility_timeout": visibility_timeout,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.arguments


class LakeQueueSensorTrigger(_Arguments, BaseTrigger):
    """Waits for messages for one task. The only event of this trigger is the list of messages."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for _, messages in _received(**self.arguments, passing=PASSING):
            yield TriggerEvent([_shown(message) for message in messages])
            return


class LakeQueueEventTrigger(_Arguments, BaseEventTrigger):
    """Yields an event for each message of a queue, for asset watchers.

    All watchers of a queue in a triggerer get every message. A message is deleted after Airflow's database has
    stored its event. The scheduler creates a DAG run from the stored event. Several waiting events of an asset
    share one run.

    Args:
        queue_name: name of the queue.
        lakequeue_conn_id: id of the connection.
        max_messages: maximum number of messages of one receive.
        visibility_timeout: seconds for Airflow to store an event, else the message comes again; None for the
            queue's timeout.
        delete: False to leave the messages in flight for a task of the DAG, which deletes them by
            ``receipt_handle``. If an event starts no run, its message comes again.
    """

    def __init__(self, queue_name: str, *arguments: Any, delete: bool = True, **named: Any) -> None:
        super().__init__(queue_name, *arguments, **named)
        check_type("delete", delete, bool, "True or False")
        self.arguments["delete"] = delete

    def shared_stream_key(self) -> tuple[str, ...]:
        return "lakequeue", self.arguments["lakequeue_conn_id"], self.arguments["queue_name"]

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return _Watch(**cls(**kwargs).arguments)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            yield TriggerEvent(message)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise NotImplementedError("asset watchers of lakequeue need the triggerer of Airflow 3.3 or later")
        yield


class _Watch(SharedStreamProducer):
    """Receives messages for watchers. With ``delete``, deletes a message once its event is stored. Logs errors."""

    def __init__(self, delete: bool, **arguments: Any) -> None:
        self._deletes, self._arguments = delete, arguments
        self._queue: aio.Queue | None = None
        self._claimed: dict[str, str] = {}
        """Newest receipt handle by message id, for messages whose event is not stored yet."""
        self._stored: dict[str, str] = {}
        """Newest receipt handle by message id, for messages to delete because their event is stored."""
        self._settled = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], str]]:
        async for queue, messages in _received(**self._arguments, passing=(Exception,)):
            self._queue, new = queue, []
            for message in messages:
                known = self._stored if message.message_id in self._stored else self._claimed
                if message.message_id not in known:
                    new.append(message)
                known[message.message_id] = message.receipt_handle
            for message in new:
                yield _shown(message), message.message_id
            await self._delete_stored()
            while len(self._claimed) >= MOST_AT_ONCE:
                self._settled.clear()
                await self._settled.wait()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for message_id, outcome in batch:
            handle = self._claimed.pop(message_id)
            if outcome.is_clean and self._deletes:
                self._stored[message_id] = handle
        self._settled.set()
        await self._delete_stored()

    async def _delete_stored(self) -> None:
        """Deletes the messages whose events are stored. If storage fails, the next call tries again."""
        stored = list(self._stored.items())
        done = await asyncio.gather(*(self._delete(handle) for _, handle in stored))
        for (message_id, handle), deleted in zip(stored, done, strict=True):
            if deleted and self._stored.get(message_id) == handle:
                del self._stored[message_id]

    async def _delete(self, handle: str) -> bool:
        """Deletes a message by its receipt handle. Returns False if the delete failed, but may succeed later."""
        try:
            await self._queue.delete(handle)  # type: ignore[union-attr]
        except LakeQueueError as error:
            _log.warning("a message whose event is stored is not deleted yet: %s", error)
            return not isinstance(error, PASSING)
        return True

    async def aclose(self) -> None:
        """Makes visible all messages whose events are not stored, so that another triggerer can receive them."""
        if self._queue is not None:
            await self._delete_stored()
            handles = list(self._claimed.values())
            await asyncio.gather(*(self._queue.change_visibility(handle, 0) for handle in handles))


async def _received(
    queue_name: str,
    lakequeue_conn_id: str,
    max_messages: int,
    visibility_timeout: float | None,
    passing: tuple[type[Exception], ...],
) -> AsyncIterator[tuple[aio.Queue, list[aio.Message]]]:
    """Yields batches of messages without end. Logs errors of types ``passing``, and tries again after a pause."""
    failures = 0
    while True:
        try:
            root, options = root_of(await BaseHook.aget_connection(lakequeue_conn_id))
            key = root, frozenset(options.items())
            lake = _lakes.get(key) or _lakes.setdefault(key, aio.LakeQueue(root, storage_options=options))
            queue = await lake.queue(queue_name)
            while True:
                messages = await queue.receive(max_messages, visibility_timeout, _WAIT_TIME)
                failures = 0
                if messages:
                    yield queue, messages
        except passing as error:
            failures += 1
            pause = _OUTAGE.pause(failures).total_seconds()
            _log.warning("messages of %s cannot be received, next try in %g s: %s", queue_name, pause, error)
            await asyncio.sleep(pause)


def root_of(connection: Any) -> tuple[str, dict[str, str]]:
    """Returns a connection's root and storage options. Raises InvalidOptions without showing any values."""
    problems: list[str] = []
    options: Any = None
    if not connection.host:
        problems.append("host: must be the root, a path or a URI such as s3://bucket/queues")
    if (connection.extra or "{}").strip() != "{}":
        problems.append("extra: must be empty; storage options belong into the password, which is never shown")
    with suppress(ValueError):
        options = json.loads(connection.password or "{}")
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        problems.append("password: must be the storage options, a JSON object of texts")
    if problems:
        raise InvalidOptions([f"connection {connection.conn_id}: {problem}" for problem in problems])
    for value in options.values():
        mask_secret(value)
    return connection.host, options


def _shown(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "receipt_handle": message.receipt_handle,
        "body": message.body,
        "attributes": {name: text_of(value) for name, (_, value) in message.message_attributes.items()},
        "receive_count": message.receive_count,
        "sent_at": message.sent_at.isoformat(),
        "group_id": message.group_id,
    }
