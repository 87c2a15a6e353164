"""``Sender``: single sends that wait a little, and share a commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any

from lakequeue.model.clock import Duration
from lakequeue.model.messages import ABSENT, SendEntry, SendResult
from lakequeue.operations.collect import Collector
from lakequeue.runtime.open_queue import OpenQueue


class Sender:
    """Collects single sends into commits. Get a Sender from ``Queue.sender``. Threads may share a Sender.

    ``flush`` is called at the end of a ``with`` block, and when the program exits. A killed process loses the
    messages that wait.
    """

    def __init__(self, queue: Callable[[], OpenQueue], linger: timedelta) -> None:
        self._collector = Collector(queue, linger)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Calls ``flush``. Errors of sends do not replace the block's error."""
        try:
            self.flush()
        except Exception:
            if kind is None:
                raise

    def send(
        self,
        body: str = "",
        delay: Duration | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        dedup_id: str | None = None,
        system_attributes: Mapping[str, Any] | None = None,
        *,
        json: Any = ABSENT,
        priority: int | None = None,
        at: datetime | None = None,
    ) -> Future[SendResult]:
        """Adds a message, with the arguments of ``Queue.send``. The message is stored once the future has a
        result.

        ``result()`` of the future waits for the send. ``result()`` raises the errors of ``Queue.send``.
        ``cancel()`` withdraws a message that still waits. Messages are stored in the order of the calls. A failed
        or refused message does not stop later messages. A delay begins with the commit.

        The call blocks while 1,000 messages, or 8 MiB, wait for a commit.

        SND-19
        """
        fields = (body, None, delay, attributes, group_id, dedup_id, system_attributes)
        entry = SendEntry(*fields, json=json, priority=priority)
        return self._collector.add(entry, at)

    def flush(self) -> None:
        """Commits at once. Returns when all earlier messages are stored or have failed.

        Raises:
            LakeQueueError: a message failed, and its future was dropped before a result was requested or a
                callback added. Only the first such error since the last flush is raised.
        """
        self._collector.flush()
