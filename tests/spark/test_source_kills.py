"""The data source under SIGKILL of all its processes, at every step: exactly once in, at least once out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from concurrency.harness import check_log, log_rows
from insides import place_of
from lakequeue import LakeQueue, Queue, SendEntry
from spark import source_worker
from spark.dropped_files import LINES, drop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(600)]

WORKER = Path(__file__).with_name("source_worker.py")
TIMEOUT = 5
"""Visibility timeout of the queue, in seconds of the system's clock, by which Spark's workers go."""
long = pytest.mark.long


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return LakeQueue(str(tmp_path / "root")).create_queue("orders", visibility_timeout=TIMEOUT, shards=2)


class Runs:
    """Runs of one write or stream, killed ones and a last one."""

    def __init__(self, kind: str, queue: Queue, files: Path, spark: SparkSession) -> None:
        self._spark = spark
        self._args = (kind, place_of(queue), str(files), str(files.parent / "checkpoint"))

    def start(self, moment: str, call: int, master: str = "local[2]", alone: bool = False) -> int:
        command = [sys.executable, str(WORKER), *self._args, moment, str(call), master, str(int(alone))]
        paths = os.pathsep.join([str(WORKER.parents[1]), *sys.path])
        # a file of its own, as orphans of the killed process would keep a pipe open
        with open(f"{self._args[3]}.out", "wb") as output:
            worker = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": paths},
            )
            return worker.wait(300)

    def killed(self, moment: str, call: int) -> None:
        status = self.start(moment, call)
        assert status == -signal.SIGKILL, Path(f"{self._args[3]}.out").read_text()[-3000:]

    def finish(self) -> None:
        source_worker.run(self._spark, "lakequeue", *self._args)


@pytest.mark.spec("QUE-33", "DLT-3")
@pytest.mark.parametrize(
    ("moment", "call"),
    [
        pytest.param("unwritten", 1, marks=long),
        pytest.param("written", 1, marks=long),
        pytest.param("gathered", 0, marks=long),
        pytest.param("staged", 0, marks=long),
        pytest.param("uncommitted", 0, marks=long),
        ("committed", 0),  # one shard of two
        pytest.param("unknown", 0, marks=long),
    ],
)
def test_a_write_that_is_killed_and_repeated(
    queue: Queue, files: Path, spark: SparkSession, moment: str, call: int
) -> None:
    runs = Runs("write", queue, files, spark)
    runs.killed(moment, call)
    assert len(log_rows(queue)) == {"committed": 4, "unknown": 8}.get(moment, 0)
    runs.finish()
    assert sorted(row.body for row in check_log(queue)) == list("01234567")


@pytest.mark.spec("QUE-33")
def test_a_worker_that_is_killed_is_replaced_and_doubles_nothing(
    queue: Queue, files: Path, spark: SparkSession
) -> None:
    runs = Runs("write", queue, files, spark)
    assert runs.start("written", 1, "local[2,3]", alone=True) == 0
    assert sorted(row.body for row in check_log(queue)) == list("01234567")


@pytest.mark.spec("QUE-33", "DLT-3")
@pytest.mark.parametrize("batch", [0, pytest.param(1, marks=long)])
@pytest.mark.parametrize(
    ("moment", "calls"),  # calls of a batch: tasks, or shards
    [
        pytest.param("unwritten", 2, marks=long),
        pytest.param("written", 2, marks=long),
        pytest.param("gathered", 1, marks=long),
        pytest.param("staged", 1, marks=long),
        pytest.param("uncommitted", 2, marks=long),
        ("committed", 2),
        pytest.param("unknown", 1, marks=long),
    ],
)
def test_a_stream_that_is_killed_anywhere_sends_once(
    queue: Queue, files: Path, spark: SparkSession, moment: str, calls: int, batch: int
) -> None:
    drop(files)
    runs = Runs("stream", queue, files, spark)
    runs.killed(moment, batch * calls)
    runs.killed(moment, 0)  # again, in the batch that Spark repeats
    runs.finish()
    assert sorted(row.body for row in check_log(queue)) == LINES


@pytest.mark.spec("RCV-6", "RCV-8", "DLT-3")
@pytest.mark.parametrize("batch", [pytest.param(0, marks=long), 1])
@pytest.mark.parametrize(
    ("moment", "again"),
    [
        pytest.param("claimed", 0, marks=long),
        pytest.param("unplanned", 0, marks=long),
        pytest.param("planned", 0, marks=long),
        pytest.param("reading", 0, marks=long),
        ("handled", 2),
        pytest.param("ended", 0, marks=long),
        pytest.param("deleted", 0, marks=long),
    ],
)
@pytest.mark.parametrize("waiting", [False, pytest.param(True, marks=long)])
def test_a_consumer_that_is_killed_loses_nothing(
    queue: Queue, files: Path, spark: SparkSession, moment: str, again: int, batch: int, waiting: bool
) -> None:
    queue.send_batch([SendEntry(body) for body in "abcdef"])
    runs = Runs("read", queue, files, spark)
    runs.killed(moment, batch)
    if waiting:
        time.sleep(TIMEOUT)
    runs.finish()
    time.sleep(TIMEOUT)
    runs.finish()  # what the killed process had claimed without Spark's knowledge
    handled = "".join(path.read_text() for path in sorted(files.iterdir())).split()
    assert set(handled) == set("abcdef") and len(handled) == 6 + again, sorted(os.listdir(files))
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)
