"""A process that writes to or streams through the data source, and whose processes are all killed on the way.

``source_worker.py write|stream|read ROOT FOLDER CHECKPOINT MOMENT CALL MASTER ALONE``: all its processes, Spark's
among them, die at a moment of ``MOMENTS`` in the call of that number, from 0 on, counted over all processes. With
ALONE 1 only the process dies in which that is.

Workers of Spark import this module to unpickle what is deadly here; that arms them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lakequeue import frame_verbs
from lakequeue.spark.source import QueueStreamWriter, QueueWriter, StreamLeases
from lakequeue.spark.streams import started
from lakequeue.storage.bulk import lease_batches, manifests, write_files
from lakequeue.storage.engines.point import Table
from pyspark_lakequeue import DefaultSource
from pyspark_lakequeue.stream import QueueStreamReader

MOMENTS: dict[str, tuple[Any, str, str]] = {
    "unwritten": (write_files, "write_partition", "before"),
    "written": (write_files, "write_partition", "after"),
    "gathered": (manifests, "write_manifest", "before"),
    "staged": (manifests, "write_manifest", "after"),
    "uncommitted": (Table, "add", "before"),
    "committed": (Table, "add", "after"),
    "unknown": (frame_verbs, "complete_send", "after"),  # done, but Spark does not know it
    "claimed": (StreamLeases, "_keep", "after"),  # but the offset is not written
    "unplanned": (StreamLeases, "tasks", "before"),
    "planned": (frame_verbs, "lease_tasks", "after"),
    "reading": (lease_batches, "read_places", "before"),
    "handled": (sys.modules[__name__], "handled", "after"),
    "ended": (StreamLeases, "commit", "before"),  # Spark knows it, but nothing is deleted
    "deleted": (StreamLeases, "commit", "after"),
}
DIE = "LAKEQUEUE_TEST_DIE"
"""Variable with the moment, the number of the call, a file that counts calls, and the group of processes."""


def arm() -> None:
    moment, call, counter, group, alone = os.environ[DIE].split()
    owner, name, when = MOMENTS[moment]
    original = getattr(owner, name)

    def die() -> None:
        if not int(alone):
            os.killpg(int(group), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def deadly(*args: Any, **more: Any) -> Any:
        if moment in ("ended", "deleted") and not args[1]["lease"]:
            return original(*args, **more)  # the start of the stream is no batch
        with open(counter, "ab") as file:
            file.write(b"x")
            seen = file.tell()
        if seen == int(call) + 1 and when == "before":
            die()
        result = original(*args, **more)
        if seen == int(call) + 1:
            die()
        return result

    setattr(owner, name, deadly)


class DeadlySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "deadly"

    def writer(self, *args: Any, **more: Any) -> Any:
        return deadly(super().writer(*args, **more), DeadlyWriter)

    def streamWriter(self, *args: Any, **more: Any) -> Any:
        return deadly(super().streamWriter(*args, **more), DeadlyStreamWriter)

    def streamReader(self, *args: Any, **more: Any) -> Any:
        return deadly(super().streamReader(*args, **more), DeadlyStreamReader)


class DeadlyWriter(QueueWriter):
    pass


class DeadlyStreamWriter(QueueStreamWriter):
    pass


class DeadlyStreamReader(QueueStreamReader):
    pass


def deadly(made: Any, kind: type) -> Any:
    made.__class__ = kind
    return made


def handled(folder: str, batch: int, bodies: list[str]) -> None:
    """What a batch does outside: a line a message, in a file that tells the batch and the attempt."""
    attempt = len(list(Path(folder).glob(f"{batch}-*")))
    (Path(folder) / f"{batch}-{attempt}").write_text("".join(f"{body}\n" for body in bodies))


def main(
    kind: str, root: str, folder: str, checkpoint: str, moment: str, call: str, master: str, alone: str
) -> None:
    from lakequeue.spark.session import build_session

    counter = f"{checkpoint}.{os.getpid()}"
    os.environ[DIE] = f"{moment} {call} {counter} {os.getpgrp()} {alone}"
    spark = build_session("source worker", master)
    from spark import source_worker  # by its name in the workers

    spark.dataSource.register(source_worker.DeadlySource)
    run(spark, "deadly", kind, root, folder, checkpoint)


def run(spark: Any, source: str, kind: str, root: str, folder: str, checkpoint: str) -> None:
    if kind == "write":
        rows = spark.range(0, 8, 1, 4).selectExpr("concat(id, '') AS body")
        writer = rows.write.format(source).option("root", root).option("queue", "orders").option("sendId", "load")
        writer.mode("append").save()
        return
    if kind == "stream":
        text = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
        writer = text.withColumnRenamed("value", "body").repartition(2).writeStream.format(source)
        writer = writer.option("root", root).option("queue", "orders")
    else:
        reader = spark.readStream.format(source).option("root", root).option("queue", "orders")

        def handle(messages: Any, batch: int) -> None:
            from spark import source_worker

            source_worker.handled(folder, batch, [row.body for row in messages.select("body").collect()])

        writer = reader.option("maxMessages", 2).load().writeStream.foreachBatch(handle)
    started(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
elif DIE in os.environ and "pytest" not in sys.modules:
    arm()
