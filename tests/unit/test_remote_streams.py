"""What a stream through Spark Connect sends to the server, and its claim of a checkpoint without a JVM."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakequeue import InvalidOptions, LakeQueue, QueueClientError, QueueDoesNotExist
from lakequeue.spark import checkpoint, streams
from lakequeue.spark.remote import QueuePlace, RemoteBatches
from lakequeue.testing import ManualClock

SESSION: Any = SimpleNamespace(sql=print)
"""Has no JVM, as a remote one."""


def test_the_work_of_a_batch_travels_and_opens_the_same_queue(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    lq = LakeQueue(str(tmp_path / "root"), storage_options={"aws_secret_access_key": "secret"})
    queue = lq.create_queue("orders")
    sent = RemoteBatches(QueuePlace.of(queue), partial(streams._send, "stream", None))
    assert "secret" not in repr(sent)
    there = cloudpickle.loads(cloudpickle.dumps(sent))
    assert there.place == sent.place and there.place.open(SESSION).key == queue.key
    lq.delete_queue("orders")
    lq.create_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        there.place.open(SESSION)


def test_a_clock_of_one_s_own_does_not_travel(tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path / "root"), clock=ManualClock()).create_queue("orders")
    with pytest.raises(QueueClientError, match="clock"):
        QueuePlace.of(queue)


def test_a_checkpoint_is_claimed_once_without_a_jvm(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    orders, others, place = lq.create_queue("orders"), lq.create_queue("others"), str(tmp_path / "checkpoint")
    mine = checkpoint.claim(SESSION, place, orders, "stream_to_queue")
    assert mine.last_batch == -1
    (tmp_path / "checkpoint" / "offsets").mkdir()
    for name in ("0", "1", ".2.crc"):
        (tmp_path / "checkpoint" / "offsets" / name).touch()
    assert checkpoint.claim(SESSION, f"file://{place}", orders, "stream_to_queue") == checkpoint.Checkpoint(
        mine.stream, 1
    )
    with pytest.raises(InvalidOptions, match="belongs to queue orders"):
        checkpoint.claim(SESSION, place, others, "stream_to_queue")
    with pytest.raises(InvalidOptions, match="belongs to stream_to_queue"):
        checkpoint.claim(SESSION, place, orders, "stream_from_queue")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "metadata").touch()
    with pytest.raises(InvalidOptions, match="did not start"):
        checkpoint.claim(SESSION, str(tmp_path / "foreign"), orders, "stream_to_queue")


def test_a_checkpoint_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders")
    (tmp_path / "file").touch()
    with pytest.raises(QueueClientError, match="cannot be used") as caught:
        checkpoint.claim(SESSION, str(tmp_path / "file" / "checkpoint"), queue, "stream_to_queue")
    assert "\n" not in str(caught.value)


def test_without_spark_connect_neither_pandas_nor_grpc_is_needed() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(["pandas", "grpc"]))  # importing them raises
import lakequeue.spark.streams, lakequeue.spark.remote, lakequeue.spark.session, lakequeue.spark.source
import lakequeue.storage.bulk.write_files, lakequeue.storage.bulk.lease_frame, lakequeue.storage.engines.spark
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
