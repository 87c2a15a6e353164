"""What a stream through Spark Connect sends to the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakequeue import LakeQueue, QueueClientError
from lakequeue.spark.options import SourceOptions, Use
from lakequeue.spark.streams import _Batches
from lakequeue.testing import ManualClock


def test_the_work_of_a_batch_travels_and_opens_the_same_queue(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    lq = LakeQueue(str(tmp_path / "root"), storage_options={"aws_secret_access_key": "secret"})
    queue = lq.create_queue("orders")
    place = SourceOptions.of(queue)
    sent = _Batches(place, print, None)
    assert "secret" not in repr(sent)
    there = cloudpickle.loads(cloudpickle.dumps(sent))
    assert there.place.open_queue().key == queue.key
    assert SourceOptions.parse(place.spelled(), Use.STREAM_READ) == place


def test_a_clock_of_one_s_own_does_not_travel(tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path / "root"), clock=ManualClock()).create_queue("orders")
    with pytest.raises(QueueClientError, match="clock"):
        SourceOptions.of(queue)


def test_without_spark_connect_neither_pandas_nor_grpc_is_needed() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(["pandas", "grpc"]))  # importing them raises
import lakequeue.spark.streams, lakequeue.spark.session, lakequeue.spark.source
import lakequeue.storage.bulk.write_files, lakequeue.storage.bulk.lease_batches, lakequeue.storage.engines.spark
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
