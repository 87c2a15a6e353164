"""Streams whose process is killed with SIGKILL in a batch; `test_source_kills.py` has the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lakequeue import LakeQueue, SendEntry
from lakequeue.spark import stream_from_queue
from spark import delivery_stream_worker
from spark.stream_worker import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

WORKER = Path(__file__).with_name("stream_worker.py")


@pytest.mark.spec("RCV-6", "RCV-8", "DLT-3")
@pytest.mark.parametrize(
    ("moment", "again"),
    [
        pytest.param("begun", 0, marks=pytest.mark.long),
        ("handled", 2),
        pytest.param("deleted", 0, marks=pytest.mark.long),
    ],
)
def test_a_consumer_that_is_killed(
    tmp_path: Path, files: Path, checkpoint: str, spark: SparkSession, moment: str, again: int
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    queue = lq.create_queue("orders", visibility_timeout=3600)
    queue.send_batch([SendEntry(body) for body in "abcdef"])
    command = [sys.executable, str(WORKER), lq.root, str(files), checkpoint, moment, "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # the lease goes on at once, without a timeout
    stream_from_queue(queue, write(str(files)), checkpoint, "availableNow").awaitTermination()
    handled = "".join(path.read_text() for path in files.iterdir()).split()
    assert set(handled) == set("abcdef") and len(handled) == 6 + again
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)


@pytest.mark.slow
@pytest.mark.spec("TAB-26", "TAB-31")
@pytest.mark.parametrize("step", delivery_stream_worker.STEPS)
@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.long, id="without its checkpoint")])
def test_a_driver_that_is_killed_at_a_step_delivers_each_message_once(
    tmp_path: Path, checkpoint: str, spark: SparkSession, step: str, kept: bool
) -> None:
    lq, table = LakeQueue(str(tmp_path / "root"), spark=spark), tmp_path / "table"
    queue = lq.create_queue("orders", visibility_timeout=30, table=str(table))
    queue.send_batch([SendEntry(str(number)) for number in range(6)])
    command = [sys.executable, delivery_stream_worker.__file__, lq.root, checkpoint, step]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    until = time.monotonic() + 200
    while queue.counts().visible + queue.counts().in_flight + queue.counts().undecided:
        assert time.monotonic() < until
        place = checkpoint if kept else f"{checkpoint}-{time.monotonic()}"
        stream_from_queue(queue, delivery_stream_worker.rows_of, place, "availableNow").awaitTermination()
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist()) == [*range(6)]
