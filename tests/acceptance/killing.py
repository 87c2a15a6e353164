"""Tasks that kill their executor or their driver while they work."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark import cloudpickle

from lakequeue.operations import compact
from lakequeue.spark import streams
from lakequeue.spark.options import SourceOptions, Use
from lakequeue.spark.source import QueueStreamWriter
from lakequeue.storage.engines.point import Table
from pyspark_lakequeue import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ORDER = "LAKEQUEUE_TEST_KILL"
"""Variable, of all processes of the cluster, with the path of an order: the ids of processes, or ``executor``."""


def kill_once() -> None:
    """Carries out the order if there is one; of several tasks one does."""
    order = os.environ[ORDER]
    try:
        os.rename(order, f"{order}.done")
    except FileNotFoundError:
        return
    given = Path(f"{order}.done").read_text()
    for process in _of_this_executor() if given == "executor" else map(int, given.split()):
        os.kill(process, signal.SIGKILL)


def _of_this_executor() -> list[int]:
    """The JVM that this Python worker belongs to, then what is between them, and this process."""
    found = [os.getpid()]
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{found[0]}/cmdline").read_bytes():
        found.insert(0, int(Path(f"/proc/{found[0]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


@contextmanager
def order_to_kill(whom: str) -> Iterator[None]:
    """Has one task of what is done meanwhile kill; fails if none got so far."""
    Path(os.environ[ORDER]).write_text(whom)
    yield
    os.remove(f"{os.environ[ORDER]}.done")


class DeadlyPass(compact.QueuePass):
    """A pass of the compactor that kills when it has written merged segments, and not committed them."""

    def run(self, elsewhere: bool = False) -> compact.Passed:
        create = Table._create_entry

        def deadly(table: Table, operation: str, added: Any, removed: Any, *more: Any, **named: Any) -> None:
            if added and removed:
                kill_once()
            create(table, operation, added, removed, *more, **named)

        with patch.object(Table, "_create_entry", deadly):
            return super().run(elsewhere)


class _DeadlyWriter(QueueStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        written = super().write(iterator)
        kill_once()  # the file is there, but nobody is told
        return written


class _DeadlySource(DefaultSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> _DeadlyWriter:
        return _DeadlyWriter(SourceOptions.parse(self.options, Use.STREAM_WRITE), schema, overwrite)


@contextmanager
def deadly_tasks() -> Iterator[None]:
    """Compactor and sink of this driver have tasks that kill, if there is an order."""

    def register(spark: Any) -> None:
        spark.dataSource.register(_DeadlySource)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers have no tests
    with patch.object(compact, "QueuePass", DeadlyPass), patch.object(streams, "register", register):
        yield


def copied(messages: DataFrame) -> DataFrame:
    """A handler that kills when it has passed on half of a batch."""

    def halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, len(batch) // 2)
            kill_once()
            yield batch.slice(len(batch) // 2)

    rows = messages.select("message_id", "body")
    return rows.mapInArrow(halves, rows.schema)
