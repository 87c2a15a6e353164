"""A driver that streams a queue into its delivery table, and kills itself at a step of its second delivery.

``delivery_stream_worker.py ROOT CHECKPOINT STEP``
"""

from __future__ import annotations

import os
import signal
import sys
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


def die_at(step: str) -> None:
    owner, name, after = STEPS[step]
    real, calls = getattr(owner, name), 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*arguments, **options) if after or calls == 1 else None
        if calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killed)


def rows_of(messages: DataFrame, _: int) -> DataFrame:
    return messages.selectExpr("cast(body AS long) AS id")


def main(root: str, checkpoint: str, step: str) -> None:
    die_at(step)
    queue = LakeQueue(root, spark=build_session("delivery worker", "local[1]")).queue("orders")
    stream_from_queue(queue, rows_of, checkpoint, "availableNow", max_messages=2).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
