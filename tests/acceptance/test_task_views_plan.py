"""What tasks of Spark read for the views, as its workers call it; no JVM starts."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, SendEntry
from lakequeue.operations import ranges as offset_ranges
from lakequeue.operations import task_views
from lakequeue.operations.ranges import Range
from lakequeue.storage.messages import append, merge_segments
from lakequeue.testing import ManualClock

BY_GROUP: dict[str, Any] = {"deduplication_scope": "message_group", "content_based_deduplication": True}
ASKED = pa.schema([("shard", pa.int32()), ("first", pa.int64()), ("last", pa.int64())])


def ranges(lq: LakeQueue, queue: str) -> list[Range]:
    [row] = [row for row in lq._runtime.rows() if row.name == queue]
    return [range_ for range_, _ in offset_ranges.ranges_of(lq._runtime, row)]


def batch(asked: Iterable[Range]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([each._asdict() for each in asked], ASKED)


def read(lq: LakeQueue, relation: str, queue: str, *asked: Range) -> list[dict[str, Any]]:
    """The rows of ranges, read by a copy of the reader."""
    reader = task_views.RelationReader(relation, lq.root, {}, queue, lq.region, lq._runtime.clock.now())
    batches = pickle.loads(pickle.dumps(reader)).rows(iter([batch(asked)]))
    return [row for found in batches for row in found.to_pylist()]


@pytest.fixture
def lq(lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    """Twelve messages of ``orders`` in files of their own, over two shards."""
    monkeypatch.setattr(offset_ranges, "RANGE_BYTES", 1)
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 100)
    orders = lq.create_queue("orders.fifo", fifo=True, shards=2, rewind_range=300, **BY_GROUP)
    for index in range(12):
        orders.send(f"order {index}", group_id=str(index))
        clock.advance(1)
    lq.create_queue("other").send("elsewhere")
    return lq


@pytest.mark.spec("DLT-5")
def test_ranges_show_each_message_once_whatever_is_merged_and_sent_meanwhile(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ranges(lq, "orders.fifo")
    assert len(asked) == 12 and {shard for shard, _, _ in asked} == {0, 1}
    found = [row["body"] for each in asked[1::2] for row in read(lq, "messages", "orders.fifo", each)]
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 2)
    lq.compact()
    assert len(ranges(lq, "orders.fifo")) < len(asked)  # files were merged
    lq.queue("orders.fifo").send_batch([SendEntry(body, group_id=body) for body in ("late", "later")])
    found += [row["body"] for each in asked[0::2] for row in read(lq, "messages", "orders.fifo", each)]
    ends = [each for each in asked if each[2] in (offset_ranges._NO_OFFSET, None)]
    late = [row["body"] for each in ends for row in read(lq, "messages", "orders.fifo", each)]
    assert set(late) >= {"late", "later"}
    assert sorted({*found, *late}) == sorted([f"order {index}" for index in range(12)] + ["late", "later"])
    assert len([body for body in found if body.startswith("order")]) == 12


def test_ranges_of_one_task_are_read_together(lq: LakeQueue) -> None:
    asked = ranges(lq, "orders.fifo")
    every = read(lq, "messages", "orders.fifo", *asked)
    assert {row["body"] for row in every} == {f"order {index}" for index in range(12)} and len(every) == 12
    some = [asked[index] for index in (0, 1, 3, 7, 8)]
    assert len(offset_ranges.joined(some)) < len(some)
    apart = [row for each in some for row in read(lq, "messages", "orders.fifo", each)]
    assert read(lq, "messages", "orders.fifo", *some) == apart and len(apart) == 5


def test_other_relations_are_read_whole(lq: LakeQueue) -> None:
    queue = lq.queue("orders.fifo")
    queue.delete_batch([m.receipt_handle for m in queue.receive(max_messages=5)])
    everything = Range(0, 0, None)
    [counts] = read(lq, "queues", "orders.fifo", everything)
    assert (counts["queue"], counts["visible"], counts["rewindable"]) == ("orders.fifo", 7, 5)
    assert {row["shard"] for row in read(lq, "receipts", "orders.fifo", everything)} == {0, 1}
    deleted = read(lq, "history", "orders.fifo", *ranges(lq, "orders.fifo"))
    assert len(deleted) == 5 and "state" not in deleted[0]
    lq.delete_queue("orders.fifo")
    assert read(lq, "queues", "orders.fifo", everything) == read(lq, "messages", "orders.fifo", everything) == []


def test_a_queue_created_anew_with_more_shards_is_shown_whole(lq: LakeQueue) -> None:
    asked = ranges(lq, "orders.fifo")
    lq.delete_queue("orders.fifo")
    anew = lq.create_queue("orders.fifo", fifo=True, shards=6, **BY_GROUP)
    anew.send_batch([SendEntry(str(index), group_id=str(index)) for index in range(10)])
    found = [row for each in asked for row in read(lq, "messages", "orders.fifo", each)]
    assert sorted(row["body"] for row in found) == [str(index) for index in range(10)]
    assert max(row["shard"] for row in found) > 1


def test_a_task_that_reads_late_shows_no_message_from_the_future(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))  # by the system's clock
    lq.create_queue("orders")
    reader = task_views.RelationReader("messages", lq.root, {}, "orders", lq.region, None)
    asked = batch(ranges(lq, "orders"))
    lq.queue("orders").send("after the plan")
    [row] = [row for found in reader.rows(iter([asked])) for row in found.to_pylist()]
    assert row["state"] == "visible" and row["age"] >= 0
