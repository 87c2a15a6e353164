"""Streams whose process is killed with SIGKILL in a batch; `test_source_kills.py` has the rest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from concurrency import delivery_worker
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.spark import stream_from_queue
from spark import delivery_stream_worker
from spark.stream_worker import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

WORKER = Path(__file__).with_name("stream_worker.py")
KILLS = int(os.environ.get("LAKEQUEUE_DRIVER_KILLS", "100"))


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


def run_until_killed(lq: LakeQueue, checkpoint: str, *arguments: str) -> bool:
    """Runs a driver that delivers; False if it came to its end before its kill."""
    command = [sys.executable, delivery_stream_worker.__file__, lq.root, checkpoint, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1_500, check=False, start_new_session=True
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def left(queue: Queue) -> int:
    counts = queue.counts()
    return counts.visible + counts.in_flight + counts.undecided


def stored(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.spec("TAB-26", "TAB-31")
@pytest.mark.parametrize(
    "step",
    [
        # `test_delivered_frames.py` shows each step without a JVM for each
        pytest.param(step, marks=() if step in ("files written", "committed", "deleted") else pytest.mark.long)
        for step in delivery_stream_worker.STEPS
    ],
)
@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.long, id="without its checkpoint")])
def test_a_driver_that_is_killed_at_a_step_delivers_each_message_once(
    tmp_path: Path, checkpoint: str, spark: SparkSession, step: str, kept: bool
) -> None:
    lq, table = LakeQueue(str(tmp_path / "root"), spark=spark), tmp_path / "table"
    queue = lq.create_queue("orders", visibility_timeout=30, table=str(table))
    queue.send_batch([SendEntry(str(number)) for number in range(6)])
    assert run_until_killed(lq, checkpoint, step)
    until = time.monotonic() + 200
    while left(queue):
        assert time.monotonic() < until
        place = checkpoint if kept else f"{checkpoint}-{time.monotonic()}"
        stream_from_queue(queue, delivery_stream_worker.rows_of, place, "availableNow").awaitTermination()
    assert stored(table) == [*range(6)]


@pytest.mark.slow
@pytest.mark.spec("TAB-26", "TAB-30", "TAB-31")
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.long)])
def test_drivers_that_are_killed_again_and_again_deliver_each_message_once(
    tmp_path: Path, checkpoint: str, kills: int
) -> None:
    """By streams on one checkpoint and by leases, at random steps and times; what is left, a consumer delivers."""
    chance, lq, table, sent, killed = (
        random.Random(kills),
        LakeQueue(str(tmp_path / "root")),
        tmp_path / "table",
        0,
        0,
    )
    queue = lq.create_queue("orders", visibility_timeout=20, table=str(table))
    while killed < kills:
        queue.send_batch([SendEntry(str(number)) for number in range(sent, sent + 6)])
        sent += 6
        step = chance.choice([*delivery_stream_worker.STEPS, *[str(chance.uniform(0, 8))] * 3])
        way = chance.choice(["stream", "lease"])
        killed += run_until_killed(lq, checkpoint, step, str(chance.randint(1, 3)), way)
        found = stored(table) if DeltaTable.is_deltatable(str(table)) else []
        assert len(found) == len(set(found))
    until = time.monotonic() + 200
    while left(queue):
        assert time.monotonic() < until
        delivery_worker.deliver(lq.root)
        time.sleep(0.3)
    assert stored(table) == [*range(sent)]
