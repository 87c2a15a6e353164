"""Streams whose process is killed with SIGKILL in a batch; `test_source_kills.py` has the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue, SendEntry
from lakequeue.spark import stream_from_queue
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
