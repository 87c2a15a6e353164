"""A process that streams a folder into a queue, or a queue into files, and kills itself on the way.

``stream_worker.py to ROOT FOLDER CHECKPOINT MOMENT BATCH``: sends each file of FOLDER as a batch, and dies in the
batch of that number, counted from the start of the process, at a moment of ``MOMENTS``.
``stream_worker.py from ROOT FOLDER CHECKPOINT MOMENT BATCH``: writes each batch to a file in FOLDER, likewise.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lakequeue import LakeQueue, lease
from lakequeue.spark import query, stream_from_queue, stream_to_queue
from lakequeue.spark.session import build_session
from lakequeue.storage.bulk import write_files
from lakequeue.storage.engines.point import PointTable

MOMENTS: dict[str, tuple[Any, str, str]] = {
    "between": (query.Batches, "__call__", "before"),  # the last batch is done, and Spark knows it
    "unwritten": (write_files, "stage", "before"),
    "staged": (write_files, "stage", "after"),
    "uncommitted": (PointTable, "add", "before"),
    "committed": (PointTable, "add", "after"),
    "unknown": (query.Batches, "__call__", "after"),  # done, but Spark does not know it
    "claimed": (lease.Lease, "messages", "before"),
    "handled": (lease.Lease, "delete", "before"),
    "deleted": (lease.Lease, "delete", "after"),
}
"""Function that is called once a batch, and when to die."""


def die_at(moment: str, batch: int) -> None:
    owner, name, when = MOMENTS[moment]
    original, seen = getattr(owner, name), 0

    def deadly(*args: Any, **more: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == batch + 1 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original.fget(*args) if isinstance(original, property) else original(*args, **more)
        if seen == batch + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, property(deadly) if isinstance(original, property) else deadly)


def main(direction: str, root: str, folder: str, checkpoint: str, moment: str, batch: str) -> None:
    spark = build_session("stream worker", "local[1]")
    queue = LakeQueue(root, spark=spark).queue("orders")
    die_at(moment, int(batch))
    if direction == "to":
        text = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
        rows = text.withColumnRenamed("value", "body")
        stream_to_queue(rows, queue, checkpoint, trigger="availableNow").awaitTermination()
    else:
        stream_from_queue(queue, write(folder), checkpoint, "0 seconds", max_messages=2).awaitTermination()


def write(folder: str) -> Any:
    """A handler whose effects survive the process: a file a batch, a body a line."""

    def handle(messages: Any, batch: int) -> None:
        path = Path(folder) / str(batch)
        assert not path.exists()
        path.write_text("".join(f"{row.body}\n" for row in messages.select("body").collect()))

    return handle


if __name__ == "__main__":
    main(*sys.argv[1:])
