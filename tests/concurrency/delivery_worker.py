"""A consumer that delivers into a table, and kills itself at a step of a delivery."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from lakequeue import Consumer, HeartbeatRenewal, LakeQueue
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.delivery import Delivering
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot, DeltaDeliveryTable

STEPS: dict[str, tuple[type, str, bool]] = {
    "claimed": (Delivering, "messages", True),
    "table opened": (protocol.OpenedDeliveryTable, "of", True),
    "before the commit": (DeltaDeliverySnapshot, "append", False),
    "committed": (DeltaDeliverySnapshot, "append", True),
    "seen": (DeltaDeliveryTable, "sync", False),
    "synced": (DeltaDeliveryTable, "sync", True),
    "deleted": (Delivering, "append", True),
}
"""What a process calls at a step, and True if the step is after the call."""


def handle(messages: Any, contexts: Any) -> list[dict[str, int]]:
    return [{"id": int(message.body)} for message in messages]


def deliver(root: str, batch: int = 5, handler: Callable[..., Any] = handle) -> None:
    """Delivers until the queue is empty."""
    renewal = HeartbeatRenewal(visibility_timeout=2, extension_threshold=0.5, heartbeat_interval=0.2)
    Consumer(LakeQueue(root).queue("orders"), handler, batch=batch, concurrency=2, renewal=renewal).run(
        until_empty=True
    )


def die_at(step: str) -> None:
    """Has this process kill itself when it first comes to a step."""
    owner, name, after = STEPS[step]
    real: Callable[..., Any] = getattr(owner, name)

    def killed(*arguments: Any, **options: Any) -> Any:
        if after:
            real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, killed)


def main(root: str, step: str | None = None) -> None:
    if step is not None:
        die_at(step)
    deliver(root)


def begin(root: str, begun: Any) -> None:
    """Delivers until the queue is empty, and sets an event at the first call of the handler."""

    def first(messages: Any, contexts: Any) -> list[dict[str, int]]:
        begun.set()
        return handle(messages, contexts)

    deliver(root, handler=first)


if __name__ == "__main__":
    main(*sys.argv[1:])
