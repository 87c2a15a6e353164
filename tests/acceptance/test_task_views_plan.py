"""What tasks of Spark read for the views, as its workers call it; no JVM starts."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, SendEntry
from lakequeue.operations import depth, spark_tasks, task_views
from lakequeue.operations.task_views import Place, TaskReader
from lakequeue.storage import past_versions
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.messages import append, merge_segments
from lakequeue.testing import ManualClock

BY_GROUP: dict[str, Any] = {"deduplication_scope": "message_group", "content_based_deduplication": True}


def reader(lq: LakeQueue) -> TaskReader:
    """A copy, as a task has it."""
    made: TaskReader = pickle.loads(pickle.dumps(TaskReader(lq.root, {}, lq.region, lq._runtime.clock.now())))
    return made


def shards(lq: LakeQueue, queue: str) -> list[Place]:
    [found] = pa.concat_arrays([*reader(lq).shards([(0,)])]).to_pylist()
    return [tuple(row.values()) for row in found if row["queue"] == queue]


def pieces(lq: LakeQueue, queue: str) -> list[Place]:
    """The places of all messages of a queue."""
    places = shards(lq, queue)
    ranges = pa.concat_arrays([*reader(lq).ranges(places)]).to_pylist()
    return [
        (*place, piece["first"], piece["last"])
        for place, found in zip(places, ranges, strict=True)
        for range_ in found
        for piece in range_["pieces"]
    ]


def read(lq: LakeQueue, relation: str, *places: Place) -> list[dict[str, Any]]:
    values = [*reader(lq).read(relation, places)]
    assert [len(value) for value in values] == [1] * len(places)  # Spark counts them
    rows = [
        place[:3] + (row,) for place, value in zip(places, values, strict=True) for row in value.to_pylist()[0]
    ]
    if relation in ("messages", "history"):
        for row, body in zip(rows, late(lq, "body", rows), strict=True):
            row[3]["body"] = body
    return [row for *_, row in rows]


def late(lq: LakeQueue, name: str, rows: list[tuple[str, str, int, dict[str, Any]]], size: int = 4) -> list[Any]:
    """A column of rows that were read, in batches as Spark hands them over."""
    every = [(row["snapshot"], row["log_offset"]) for *_, row in rows]
    types = [pa.string(), pa.int64()]
    batches = [
        [pa.array(column, type_) for column, type_ in zip(zip(*some, strict=True), types, strict=True)]
        for some in (every[start : start + size] for start in range(0, len(every), size))
    ]
    return [value for part in reader(lq).late(name, batches) for value in part.to_pylist()]


@pytest.fixture
def lq(lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    """Twelve messages of ``orders`` in files of their own, over two shards."""
    for limit in ("RANGE_BYTES", "PIECE_BYTES"):
        monkeypatch.setattr(spark_tasks, limit, 1)
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 100)
    orders = lq.create_queue("orders.fifo", fifo=True, shards=2, rewind_range=300, **BY_GROUP)
    for index in range(12):
        orders.send(f"order {index}", group_id=str(index))
        clock.advance(1)
    lq.create_queue("other").send("elsewhere")
    return lq


@pytest.mark.spec("DLT-5")
def test_pieces_show_each_message_once_whatever_is_merged_and_sent_meanwhile(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pieces(lq, "orders.fifo")
    assert len(asked) == 12 and {shard for _, _, shard, *_ in asked} == {0, 1}
    found = [row["body"] for each in asked[1::2] for row in read(lq, "messages", each)]
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 2)
    lq.compact()
    lq.queue("orders.fifo").send_batch([SendEntry(body, group_id=body) for body in ("late", "later")])
    found += [row["body"] for each in asked[0::2] for row in read(lq, "messages", each)]
    ends = [each for each in asked if each[4] == spark_tasks.NO_OFFSET]
    late = [row["body"] for each in ends for row in read(lq, "messages", each)]
    assert set(late) >= {"late", "later"}
    assert sorted({*found, *late}) == sorted([f"order {index}" for index in range(12)] + ["late", "later"])
    assert len([body for body in found if body.startswith("order")]) == 12


def test_pieces_of_one_task_are_read_as_they_come(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_tasks, "PIECE_ROWS", 5)
    lq.queue("orders.fifo").send_batch([SendEntry(str(index), group_id="one") for index in range(8)])
    asked = pieces(lq, "orders.fifo")
    assert len(asked) > 12
    every = read(lq, "messages", *asked)
    assert len({row["message_id"] for row in every}) == len(every) == 20
    some = [asked[index] for index in (7, 0, 1, 3, 8, 9, 2)]
    apart = [row for each in some for row in read(lq, "messages", each)]
    assert read(lq, "messages", *some) == apart and apart


def test_bodies_and_attributes_are_read_of_the_messages_that_are_left_as_they_were(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lq.queue("orders.fifo")
    queue.send("with", group_id="3", attributes={"text": "ü", "bytes": b"\x00"})
    places = pieces(lq, "orders.fifo")
    rows = [
        place[:3] + (row,)
        for place, value in zip(places, reader(lq).read("messages", places), strict=True)
        for row in value.to_pylist()[0]
    ]
    bodies = late(lq, "body", rows)
    assert sorted(bodies) == sorted([f"order {index}" for index in range(12)] + ["with"])
    with_attributes = [row for row, body in zip(rows, bodies, strict=True) if body == "with"]
    assert dict(*late(lq, "message_attributes", with_attributes)) == {"text": "ü", "bytes": "AA=="}
    for left in (rows[::3], rows[::-1], [*rows, *rows[2:5]]):
        expected = [bodies[rows.index(row)] for row in left]
        assert late(lq, "body", left, size=5) == expected
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 2)
    queue.purge()
    lq.compact()
    assert late(lq, "body", rows) == bodies  # of the log as it was
    lq.delete_queue("orders.fifo")
    assert late(lq, "body", rows) == [""] * len(rows)


@pytest.mark.spec("DLT-5", "DLT-3")
def test_tasks_read_the_tables_as_of_an_instant_and_open_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeQueue(str(tmp_path / "real"))
    before = datetime.now(timezone.utc)
    for name in ("orders", "other", "deleted"):
        lake.create_queue(name, shards=1 if name == "other" else 2).send(name)
    lake.queue("orders").set_attributes(delay=5)
    lake.queue("orders").receive(visibility_timeout=600)
    then = datetime.now(timezone.utc)
    lake.queue("orders").purge()
    lake.queue("orders").set_attributes(delay=7)
    lake.queue("other").send("late")
    lake.create_queue("later").send("later")
    lake.delete_queue("deleted")
    opened, at = list[str](), past_versions.version_at
    monkeypatch.setattr(
        past_versions, "version_at", lambda store, path, *when: (opened.append(path), at(store, path, *when))[1]
    )

    def read(relation: str, as_of: datetime, *asked: str) -> list[dict[str, Any]]:
        reads: TaskReader = pickle.loads(pickle.dumps(TaskReader(lake.root, {}, "local", None, as_of)))
        [known] = pa.concat_arrays([*reads.shards([(0,)])]).to_pylist()
        places = [tuple(row.values()) for row in known if not asked or row["queue"] in asked]
        if relation == "queues":
            places = [place for place in places if place[2] == 0]
        if relation == "messages":
            ranges = [value for part in reads.ranges(places) for value in part.to_pylist()]
            places = [
                (*place, piece["first"], piece["last"])
                for place, found in zip(places, ranges, strict=True)
                for range_ in found
                for piece in range_["pieces"]
            ]
        rows = [row for part in reads.read(relation, places) for value in part.to_pylist() for row in value]
        if relation == "messages" and rows:
            columns = [pa.array([row[name] for row in rows]) for name in ("snapshot", "log_offset")]
            bodies = [value for part in reads.late("body", [columns]) for value in part.to_pylist()]
            rows = [{**row, "body": body} for row, body in zip(rows, bodies, strict=True)]
        return rows

    found = {(row["body"], row["state"]) for row in read("messages", then)}
    assert found == {("orders", "in_flight"), ("other", "visible"), ("deleted", "visible")}
    counts = [(row["visible"], row["in_flight"]) for row in read("queues", then)]
    assert sorted(counts) == [(0, 1), (1, 0), (1, 0)]
    [orders] = read("queues", then, "orders")
    assert dict(orders["attributes"])["DelaySeconds"] == "5"
    opened.clear()
    assert [row["body"] for row in read("messages", then, "other")] == ["other"]
    key = lake.queue("other").key
    assert opened and all(f"/q/{key}/" in path for path in opened)
    assert read("messages", before) == read("queues", before) == read("queues", before - timedelta(days=1)) == []


def test_queues_are_counted_together_and_those_that_rest_stay_closed(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lq.create_queue("rests").send("a")
    lq.create_queue("changes").send("b")
    for _ in range(2):
        lq.compact()
        clock.advance(60)
    lq.queue("changes").send_batch([SendEntry("c"), SendEntry("d")])
    both, gone = [*shards(lq, "rests"), *shards(lq, "changes")], ("gone", "local", 0)
    monkeypatch.setattr(depth, "LEAST_NOTED", 1)
    monkeypatch.setattr(task_views, "_QUEUES", 3)
    opened, open_ = list[str](), Engine.open
    monkeypatch.setattr(Engine, "open", lambda engine, path: (opened.append(path), open_(engine, path))[1])
    values = pa.concat_arrays([*reader(lq).read("queues", [*both, gone, *both, gone, both[1]])]).to_pylist()
    assert [[row["visible"] for row in value] for value in values] == [[1], [3], [], [1], [3], [], [3]]
    keys = {queue.name: queue.key for queue in lq.list_queues()}
    assert {name for name, key in keys.items() for path in opened if f"/{key}/" in path} == {"changes"}


def test_other_relations_are_read_by_queue_or_shard(lq: LakeQueue) -> None:
    queue = lq.queue("orders.fifo")
    queue.delete_batch([m.receipt_handle for m in queue.receive(max_messages=5)])
    first, second = shards(lq, "orders.fifo")
    [counts] = read(lq, "queues", first)
    assert (counts["visible"], counts["rewindable"]) == (7, 5)
    heads = [row for row in read(lq, "receipts", first, second) if row["state"] == "head"]
    assert len(heads) == 2
    places = pieces(lq, "orders.fifo")
    deleted = read(lq, "history", *places)
    assert len(deleted) == 5 and "state" not in deleted[0]
    lq.delete_queue("orders.fifo")
    assert read(lq, "queues", first) == read(lq, "messages", *places) == []


def test_a_queue_that_is_not_asked_for_stays_closed(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    [file] = Path(lq.root).glob(f"q/{lq.queue('other').key}/0/messages/**/*.parquet")
    file.write_bytes(b"torn")
    assert len(read(lq, "messages", *pieces(lq, "orders.fifo"))) == 12
    with pytest.raises(Exception, match="Parquet"):
        read(lq, "messages", *pieces(lq, "other"))


def test_a_task_that_reads_late_shows_no_message_from_the_future(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))  # by the system's clock
    lq.create_queue("orders")
    asked = pieces(lq, "orders")
    lq.queue("orders").send("after the plan")
    [value] = TaskReader(lq.root, {}, lq.region, None).read("messages", asked)
    [row] = value.to_pylist()[0]
    assert row["state"] == "visible" and row["age"] >= 0
