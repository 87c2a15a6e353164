"""Rewinding many messages: one small commit, whatever their number."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import log_versions
from insides import receipts_of, shard_of
from lakequeue import LakeQueue, Queue
from lakequeue.model.clock import to_micros
from lakequeue.shard.runs import DELETED, Run
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
MESSAGES = int(os.environ.get("LAKEQUEUE_REWIND_MESSAGES", "10000000"))


@pytest.fixture
def queue(tmp_path: Path, spark: SparkSession, clock: ManualClock) -> Queue:
    return LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock).create_queue("orders", rewind_range=86_400)


def consume(queue: Queue, clock: ManualClock, messages: int) -> datetime:
    """Sends two halves, leases and deletes all in three parts; the instant of the second half."""
    spark = queue._runtime.root.require_spark("the test")
    for first in (0, messages // 2):
        clock.advance(60)
        half = spark.range(first, first + messages // 2).selectExpr("concat('message ', id) AS body")
        assert queue.send_dataframe(half) == messages // 2
    second = clock.now()
    clock.advance(60)
    for part in (messages // 3, messages // 3, messages):
        lease = queue.lease(max_messages=part)
        assert lease is not None
        lease.delete()
    assert queue.lease() is None
    assert queue.counts().rewindable == messages
    return second


def written(queue: Queue) -> list[dict[str, Any]]:
    """Rows that the last commit to the ledger put into files."""
    log = Path(receipts_of(queue)) / "_delta_log"
    actions = [json.loads(line) for line in max(log.glob("*.json")).read_text().splitlines()]
    return [json.loads(action["add"]["stats"])["numRecords"] for action in actions if "add" in action]


def rewind(queue: Queue, to: datetime) -> int:
    """Rewinds, and looks at what that wrote."""
    before = log_versions(queue)
    count = queue.rewind(to)
    assert log_versions(queue) == (before[0], before[1] + 1)
    assert sum(written(queue)) <= 4  # the head and a run or two
    return count


def runs(queue: Queue) -> tuple[list[Run], list[Run]]:
    """Runs and history as they are in the table."""
    ledger = shard_of(queue).ledger._open_ledger()
    ledger.table.refresh()
    return ledger.load()[1:]


@pytest.mark.spec("RWD-4", "RWD-9", "RWD-20", "DLT-1")
def test_many_messages_are_rewound_by_one_small_commit(queue: Queue, clock: ManualClock) -> None:
    messages, half = 300_000, 150_000
    second = consume(queue, clock, messages)
    at = to_micros(clock.now())
    deleted = Run(0, messages - 1, DELETED, receive_count=1, visible_at=at, first_received_at=at)
    assert runs(queue) == ([], [deleted])

    assert rewind(queue, second) == half
    assert runs(queue) == ([Run(half, messages - 1)], [deleted._replace(last=half - 1)])
    counts = queue.counts()
    assert (counts.visible, counts.in_flight, counts.rewindable) == (half, 0, half)
    lease = queue.lease()
    assert lease is not None and lease.message_count == half
    facts = lease.messages.selectExpr("min(receive_count)", "max(receive_count)", "count(DISTINCT body)").head()
    assert tuple(facts) == (1, 1, half)
    lease.delete()

    assert rewind(queue, queue.min_rewind_time) == messages
    assert runs(queue) == ([Run(0, messages - 1)], [])
    assert queue.counts().visible == messages


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_ten_million_messages_are_rewound(
    queue: Queue, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    second = consume(queue, clock, MESSAGES)
    consumed = time.monotonic()
    assert rewind(queue, second) == MESSAGES // 2
    assert rewind(queue, queue.min_rewind_time) == MESSAGES // 2
    rewound = time.monotonic()
    assert runs(queue) == ([Run(0, MESSAGES - 1)], [])
    assert queue.counts().visible == MESSAGES
    with capsys.disabled():
        print(
            f"{MESSAGES:,} messages: sent, leased and deleted in {consumed - began:.1f} s, "
            f"rewound in two halves in {rewound - consumed:.2f} s"
        )
