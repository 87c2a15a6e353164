"""The queues of a root as a kombu broker. The bindings of a queue to exchanges are stored in the queue's tags."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from time import monotonic
from typing import Any, TypeAlias

from lakequeue import HeartbeatRenewal, LakeQueue, Queue
from lakequeue.errors import (
    InvalidOptions,
    InvalidParameterValue,
    QueueDoesNotExist,
    QueueNameExists,
    QueueServiceError,
    RootDoesNotExist,
    UnsupportedOperation,
)
from lakequeue.model.attributes import MOST_PRIORITIES, QueueAttributes
from lakequeue.model.secrets import hidden

_DAY = 24 * 3600
_LONGEST = 14 * _DAY
_KEPT = 300
"""Seconds for which auto-delete queues, such as Celery's queues for remote control, keep messages."""
_ABANDONED = 60
"""Maximum seconds that a message waits in an auto-delete queue. After that, the queue's owner counts as dead."""
_BINDINGS_KEPT = 1.0
"""Seconds for which a process caches the bindings that it has read."""
_BINDING, _AUTO_DELETE = "kombu:binding:", "kombu:auto-delete"

_LAKE = ("storage_options", "region", "durability", "network_file_system", "poll_interval", "root_mode")
_OWN = ("visibility_timeout", "queue_name_prefix", "queue_attributes")
_KOMBU = (
    *("body_encoding", "deadletter_queue", "client_properties", "connect_retries_timeout", "errback", "callback"),
    *("max_retries", "interval_start", "interval_step", "interval_max"),
)

Binding: TypeAlias = "tuple[str, str | None, str]"
"""A kombu binding: its routing key, its pattern, and the name of the bound queue."""


class Broker:
    """The queues of a root, by the names that kombu uses.

    Args:
        url: the broker's address.
        options: ``broker_transport_options``.

    Raises:
        InvalidOptions: options are unknown or invalid. The error names all of these options.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        known = (*_OWN, *_LAKE, *_KOMBU)
        problems = []
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                problems.append(f"broker_transport_options: {name} is unknown; {hint}")
        timeout = options.get("visibility_timeout", 120)
        self._prefix = options.get("queue_name_prefix", "")
        self._attributes = {"visibility_timeout": timeout, **options.get("queue_attributes", {})}
        try:
            # two failed extensions, or an outage of two thirds of the timeout, lose no receipt
            self.renewal = HeartbeatRenewal(timeout, timeout * 2 / 3, timeout / 12)
        except (InvalidOptions, TypeError) as error:
            problems.append(f"broker_transport_options: visibility_timeout: {error}")
        try:
            self._lake = LakeQueue(root_of(url), **{name: options[name] for name in _LAKE if name in options})
        except QueueServiceError as error:
            problems.append(f"broker_url or broker_transport_options: {error.message}")
        try:
            places = ("profile", "redrive_policy", "redrive_allow_policy")
            QueueAttributes.create(
                **{name: self._attributes[name] for name in self._attributes if name not in places}
            )
        except QueueServiceError as error:
            problems.append(
                f"broker_transport_options: queue_attributes: {error.message} {error.hint or ''}".rstrip()
            )
        if problems:
            raise InvalidOptions(problems)
        self._new = False
        self._queues: dict[str, Queue] = {}
        self._bindings: dict[str, list[Binding]] = {}
        self._read_at: float | None = None
        self._looked_at: dict[str, float] = {}

    def connect(self) -> None:
        """Checks that the root can be read, or does not exist yet. Raises QueueClientError otherwise."""
        try:
            self._lake.list_queues(limit=1)
            self._new = False
        except RootDoesNotExist:
            if self._queues:
                raise  # the root has been deleted
            self._new = True

    def queue(self, name: str) -> Queue:
        """Returns the queue with this kombu name. Raises QueueDoesNotExist if there is no such queue."""
        if self._new:
            self.connect()  # another process may have created the root
        if self._new:
            raise QueueDoesNotExist()
        if name not in self._queues:
            self._queues[name] = self._lake.queue(self._own(name))
        return self._queues[name]

    def exists(self, name: str) -> bool:
        with suppress(QueueDoesNotExist):
            self.size(name)
            return True
        return False

    def declare(self, name: str, auto_delete: bool, top_priority: int | None) -> None:
        """Creates a queue if it does not exist. An existing queue keeps its attributes."""
        with suppress(QueueDoesNotExist):
            self.used(name, lambda queue: queue.tags())
            return
        tags = {_AUTO_DELETE: "1"} if auto_delete else None
        kept = {"message_retention_period": _KEPT if auto_delete else _LONGEST}
        classes = {"priorities": min(top_priority + 1, MOST_PRIORITIES)} if top_priority else {}
        with suppress(QueueNameExists):  # another process created the queue first
            attributes = kept | classes | self._attributes
            self._queues[name] = self._lake.create_queue(self._own(name), tags=tags, **attributes)
        self._new = False

    def send(self, name: str, body: str, eta: datetime | None, priority: int) -> None:
        """Sends a message that becomes visible at ``eta``, or earlier if its retention period would end before.

        Raises UnsupportedOperation for a priority above 0 on a queue without priorities.
        """

        def send(queue: Queue) -> str:
            top = (queue.priorities or 1) - 1
            if priority > 0 and not top:
                hint = "set x-max-priority, task_queue_max_priority or queue_attributes"
                raise UnsupportedOperation(f"priority: queue {name} was created without priorities; {hint}")
            return queue.send(body, self._delay(queue, eta), priority=max(0, min(priority, top))).message_id

        self.used(name, send)

    def until(self, eta: datetime) -> float:
        return (eta - self._lake.clock.now()).total_seconds()

    def _delay(self, queue: Queue, eta: datetime | None) -> float:
        """Returns the seconds until an ETA. Returns less if the message would expire soon after the ETA or before
        it, so that a worker still has time to run the task. Without an ETA, returns 0.
        """
        if eta is None:
            return 0
        kept = float(queue.attributes()["message_retention_period"])
        return max(0.0, min(self.until(eta), kept - min(kept / 2, _DAY)))

    def size(self, name: str) -> int:
        return int(self.used(name, lambda queue: queue.counts().visible))

    def purge(self, name: str) -> int:
        """Removes all messages of a queue. Returns the number of messages that were visible or delayed."""

        def purge(queue: Queue) -> int:
            counts = queue.counts()
            queue.purge()
            return counts.visible + counts.delayed

        return int(self.used(name, purge))

    def delete(self, name: str) -> None:
        self._queues.pop(name, None)
        self._read_at = None
        with suppress(QueueDoesNotExist):
            self._lake.delete_queue(self._own(name))

    def bind(self, exchange: str, key: str, pattern: str | None, name: str) -> None:
        tag = f"{_BINDING}{_short_hash(key)}:{_in_tag(exchange)}"
        value = json.dumps([key, pattern, name])

        def bind(queue: Queue) -> None:
            if queue.tags().get(tag) != value:
                try:
                    queue.set_tags({tag: value})
                except InvalidParameterValue as error:
                    raise UnsupportedOperation(
                        f"queue {name} cannot be bound to exchange {exchange!r} with routing key {key!r}: a"
                        " binding is a tag, of which a queue has at most 50, with at most 256 characters for the"
                        f" routing key, its pattern and the queue's name. {error.message}"
                    ) from None

        self.used(name, bind)
        self._read_at = None

    def bindings(self, exchange: str, fresh: bool = False) -> list[Binding]:
        now = monotonic()
        if fresh or self._read_at is None or now - self._read_at > _BINDINGS_KEPT:
            found: dict[str, list[Binding]] = {}
            for queue in self._lake.list_queues(self._prefix):
                with suppress(QueueDoesNotExist):  # deleted meanwhile
                    for tag, value in queue.tags().items():
                        if tag.startswith(_BINDING):
                            bound = tag[len(_BINDING) :].partition(":")[2]
                            found.setdefault(bound, []).append(tuple(json.loads(value)))
            self._bindings, self._read_at = found, now
        return self._bindings.get(_in_tag(exchange), [])

    def attended(self, names: Collection[str]) -> set[str]:
        """Returns a broadcast's queues, except auto-delete queues of dead owners. Deletes those of dead owners."""
        living = set()
        for name in names:
            now = monotonic()
            with suppress(QueueDoesNotExist):
                if now - self._looked_at.get(name, -_ABANDONED) > _ABANDONED / 6:
                    queue, self._looked_at[name] = self.queue(name), now
                    if _AUTO_DELETE in queue.tags() and (queue.counts().oldest_age or 0) > _ABANDONED:
                        self.delete(name)
                        continue
                living.add(name)
        return living

    def used(self, name: str, use: Callable[[Queue], Any]) -> Any:
        """Calls ``use`` with the queue of this name, and returns the result. If the queue was deleted since this
        process opened it, calls ``use`` with the new queue of the same name.
        """
        known = name in self._queues
        try:
            return use(self.queue(name))
        except QueueDoesNotExist:
            self._queues.pop(name, None)
            if not known:
                raise
            return use(self.queue(name))

    def _own(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        safe = re.sub("[^A-Za-z0-9_-]", "_", full)
        return full if safe == full and len(full) <= 80 else f"{safe[:71]}-{_short_hash(full)}"


def _in_tag(exchange: str) -> str:
    return exchange if len(exchange) <= 105 else f"{exchange[:80]}-{_short_hash(exchange)}"


def _short_hash(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()[:8]


def root_of(url: str) -> str:
    """Returns the root that a broker's address names. Raises InvalidOptions if the address names no root."""
    where = url.partition("://")[2]
    kind, _, rest = where.partition("/")
    if not rest:
        raise InvalidOptions(
            [
                f"broker_url: {hidden(url)} names no root; write lakequeue:////data/queues or lakequeue://s3/bucket/queues"
            ]
        )
    return f"{kind}://{rest}" if kind else rest
