"""A driver that delivers a queue into its table, and kills its process group, Python and JVM, on the way.

``delivery_stream_worker.py ROOT CHECKPOINT STEP [DELIVERY [WAY]]``: it dies at a step of ``STEPS`` of its delivery
of that number, or STEP seconds after Spark has started. WAY is ``stream``, or ``lease`` for a loop of leases.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Timer
from typing import TYPE_CHECKING, Any

from lakequeue import LakeQueue
from lakequeue.operations.delivery import Delivering
from lakequeue.spark import stream_from_queue
from lakequeue.spark.session import build_session
from lakequeue.storage.delivery.frames import FrameRows
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot, DeltaDeliveryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEPS: dict[str, tuple[type, str, bool]] = {
    "claimed": (Delivering, "append", False),
    "table opened": (FrameRows, "_write", False),
    "files written": (FrameRows, "_write", True),
    "committed": (DeltaDeliverySnapshot, "append", True),
    "seen": (DeltaDeliveryTable, "sync", False),
    "synced": (DeltaDeliveryTable, "sync", True),
    "deleted": (Delivering, "append", True),
}
"""What a driver calls at a step, and True if the step is after the call."""


def die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def die_at(step: str, delivery: int) -> None:
    owner, name, after = STEPS[step]
    real, calls = getattr(owner, name), 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*arguments, **options) if after or calls < delivery else None
        if calls == delivery:
            die()
        return result

    setattr(owner, name, killed)


def rows_of(messages: DataFrame, _: int = 0) -> DataFrame:
    return messages.selectExpr("cast(body AS long) AS id")


def main(root: str, checkpoint: str, step: str, delivery: str = "2", way: str = "stream") -> None:
    queue = LakeQueue(root, spark=build_session("delivery worker", "local[1]")).queue("orders")
    if step in STEPS:
        die_at(step, int(delivery))
    else:
        Timer(float(step), die).start()
    if way == "stream":
        stream_from_queue(queue, rows_of, checkpoint, "availableNow", max_messages=2).awaitTermination()
    while way == "lease" and (lease := queue.lease(2)):
        lease.append(rows_of(lease.messages))
    os._exit(0)  # also before the timer


if __name__ == "__main__":
    main(*sys.argv[1:])
