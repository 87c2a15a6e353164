"""A process that streams a queue into files, and kills itself on the way.

``stream_worker.py ROOT FOLDER CHECKPOINT MOMENT BATCH``: writes each batch to a file in FOLDER, and dies in the
batch of that number, counted from the start of the process, at a moment of ``MOMENTS``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lakequeue import LakeQueue, frame_verbs
from lakequeue.lease import Lease
from lakequeue.spark import stream_from_queue
from lakequeue.spark.session import build_session

MOMENTS: dict[str, tuple[Any, str, str]] = {
    "begun": (frame_verbs, "lease_of_handle", "after"),
    "handled": (Lease, "delete", "before"),
    "deleted": (Lease, "delete", "after"),  # but Spark does not know it
}
"""Function that is called once a batch, and when to die."""


def die_at(moment: str, batch: int) -> None:
    owner, name, when = MOMENTS[moment]
    original, seen = getattr(owner, name), 0

    def deadly(*args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == batch + 1 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args)
        if seen == batch + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def main(root: str, folder: str, checkpoint: str, moment: str, batch: str) -> None:
    spark = build_session("stream worker", "local[1]")
    queue = LakeQueue(root, spark=spark).queue("orders")
    die_at(moment, int(batch))
    stream_from_queue(queue, write(folder), checkpoint, "0 seconds", max_messages=2).awaitTermination()


def write(folder: str) -> Any:
    """A handler whose effects survive the process: a file a call, a body a line."""

    def handle(messages: Any, batch: int) -> None:
        path = Path(folder) / f"{batch}-{os.getpid()}"
        assert not path.exists()
        path.write_text("".join(f"{row.body}\n" for row in messages.select("body").collect()))

    return handle


if __name__ == "__main__":
    main(*sys.argv[1:])
