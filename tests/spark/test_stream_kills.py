"""Streams whose process is killed with SIGKILL, between batches and inside: nothing lost, nothing doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from concurrency.harness import check_log, log_rows
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.spark import stream_from_queue, stream_to_queue
from lakequeue.testing import ManualClock
from spark.dropped_files import LINES, drop
from spark.stream_worker import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

WORKER = Path(__file__).with_name("stream_worker.py")


@pytest.fixture
def queue(tmp_path: Path, spark: SparkSession) -> Queue:
    return LakeQueue(str(tmp_path / "root"), spark=spark).create_queue("orders", visibility_timeout=60)


def killed(direction: str, queue: Queue, files: Path, checkpoint: str, moment: str, batch: int) -> None:
    command = [direction, queue._runtime.root.path, str(files), checkpoint, moment, str(batch)]
    done = subprocess.run(
        [sys.executable, str(WORKER), *command], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def finish(queue: Queue, files: Path, checkpoint: str) -> None:
    text = queue._runtime.root.require_spark("test").readStream.format("text").option("maxFilesPerTrigger", 1)
    rows = text.load(str(files)).withColumnRenamed("value", "body")
    stream_to_queue(rows, queue, checkpoint, trigger="availableNow").awaitTermination()


@pytest.mark.spec("QUE-33", "DLT-3")
def test_a_producer_that_is_killed_between_batches_and_inside_of_one(
    queue: Queue, files: Path, checkpoint: str
) -> None:
    drop(files)
    killed("to", queue, files, checkpoint, "between", 1)
    assert len(log_rows(queue)) == 3
    killed("to", queue, files, checkpoint, "committed", 0)
    assert len(log_rows(queue)) == 6
    finish(queue, files, checkpoint)
    assert sorted(row.body for row in check_log(queue)) == LINES


@pytest.mark.long
@pytest.mark.spec("QUE-33", "DLT-3")
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("moment", ["between", "unwritten", "staged", "uncommitted", "committed", "unknown"])
def test_a_producer_that_is_killed_anywhere(
    queue: Queue, files: Path, checkpoint: str, moment: str, batch: int
) -> None:
    drop(files)
    killed("to", queue, files, checkpoint, moment, batch)
    assert len(log_rows(queue)) == 3 * (batch + (moment in ("committed", "unknown")))
    killed("to", queue, files, checkpoint, moment, 0)  # again, in the batch that Spark repeats
    finish(queue, files, checkpoint)
    assert sorted(row.body for row in check_log(queue)) == LINES


@pytest.mark.spec("RCV-6", "RCV-8", "DLT-3")
@pytest.mark.parametrize(
    ("moment", "again"),
    [
        pytest.param("claimed", 0, marks=pytest.mark.long),
        ("handled", 2),
        pytest.param("deleted", 0, marks=pytest.mark.long),
        pytest.param("between", 0, marks=pytest.mark.long),
    ],
)
def test_a_consumer_that_is_killed(
    queue: Queue, files: Path, checkpoint: str, spark: SparkSession, moment: str, again: int
) -> None:
    queue.send_batch([SendEntry(body) for body in "abcdef"])
    killed("from", queue, files, checkpoint, moment, 1)
    clock = ManualClock(queue.clock.now() + timedelta(seconds=61))
    later = LakeQueue(queue._runtime.root.path, spark=spark, clock=clock).queue("orders")
    stream_from_queue(later, write(str(files)), checkpoint, "availableNow").awaitTermination()
    handled = "".join(path.read_text() for path in files.iterdir()).split()
    assert set(handled) == set("abcdef") and len(handled) == 6 + again
    assert (later.counts().visible, later.counts().in_flight) == (0, 0)
