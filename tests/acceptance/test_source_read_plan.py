"""What the data source's batch read plans and reads, as Spark's workers call it; no JVM starts."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import EqualTo, In, IsNull, LessThan, Not, StringStartsWith

from lakequeue import LakeQueue, SendEntry, errors
from lakequeue.spark import batch_read, source_schema
from lakequeue.spark.options import Options, Use
from lakequeue.testing import ManualClock


def reader(lq: LakeQueue, **options: str) -> batch_read.FilteringReader:
    parsed = Options.parse({"root": lq.root, **options}, Use.READ)
    return batch_read.FilteringReader(parsed, source_schema.schema())


def rows(reader: batch_read.QueueReader) -> list[dict[str, Any]]:
    """The rows of all partitions, read by copies of the reader."""
    found = []
    for partition in reader.partitions():
        copy, part = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(part):
            assert batch.schema.names == source_schema.COLUMNS.names
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["queue"], row["shard"], row["offset"]))


@pytest.fixture
def lq(lq: LakeQueue, clock: ManualClock) -> LakeQueue:
    orders = lq.create_queue("orders")
    orders.send_batch([SendEntry(body=str(index), attributes={"n": index}) for index in range(10)])
    lq.create_queue("other", shards=2).send("elsewhere")
    orders.delete_batch([m.receipt_handle for m in orders.receive(max_messages=3)])
    return lq


@pytest.mark.spec("DLT-5", "STA-6")
def test_the_messages_of_a_queue_or_of_all(lq: LakeQueue) -> None:
    found = rows(reader(lq, queue="orders"))
    told = lq.arrow_views()["messages"].to_table().to_pylist()
    told = [row for row in told if row["queue"] == "orders"]
    same = set(source_schema.COLUMNS.names) - {"receipt_handle", "message_attributes", "offset", "age"}
    same -= {"state", "visible_at", "sent_at"}  # by the machine's clock all have expired
    assert [{name: row[name] for name in same - {"receive_count"}} for row in found] == [
        {name: row[name] for name in same - {"receive_count"}} for row in told
    ]
    assert [row["offset"] for row in found] == list(range(10))
    assert dict(found[4]["message_attributes"])["n"] == {
        "type": "Number",
        "string_value": "4",
        "binary_value": None,
    }
    assert {row["receipt_handle"] for row in found} == {None}
    assert len(rows(reader(lq))) == 11
    nowhere = reader(lq, region="nowhere")
    assert rows(nowhere) == list(nowhere.read(datasource.InputPartition(None))) == []


@pytest.mark.parametrize(
    ("filters", "bodies", "parts"),
    [
        ([EqualTo(("queue",), "other")], ["elsewhere"], 1),
        ([In(("queue",), ("orders", None)), LessThan(("offset",), 2)], ["0", "1"], 1),
        ([EqualTo(("offset",), 7)], ["7"], 1),
        ([EqualTo(("state",), "held")], [], 0),
        ([EqualTo(("state",), "in_flight")], [], 0),
        ([LessThan(("sent_at",), datetime(2025, 1, 1, tzinfo=timezone.utc))], [], 0),
        ([StringStartsWith(("body",), "else"), IsNull(("group_id",))], ["elsewhere"], 2),
        ([EqualTo(("shard",), 3)], [], 0),
    ],
)
def test_filters_leave_partitions_out(lq: LakeQueue, filters: list[Any], bodies: list[str], parts: int) -> None:
    asked = reader(lq)
    assert list(asked.pushFilters(filters)) == []
    assert len(asked.partitions()) == parts
    assert [row["body"] for row in rows(asked)] == bodies


def test_filters_that_are_not_understood_stay_with_spark(lq: LakeQueue) -> None:
    asked = reader(lq)
    attributes = IsNull(("message_attributes",))
    inner = EqualTo(("message_attributes", "n"), "1")
    handle, other = IsNull(("receipt_handle",)), EqualTo(("offset",), "seven")
    unknown = [attributes, inner, handle, other, Not(handle)]
    assert list(asked.pushFilters([*unknown, EqualTo(("queue",), "other")])) == unknown
    assert [row["body"] for row in rows(asked)] == ["elsewhere"]


def test_a_large_file_is_read_by_several_tasks(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_read, "TASK_BYTES", 1_000)
    asked = reader(lq, queue="orders")
    assert len(asked.partitions()) > 2
    assert [row["body"] for row in rows(asked)] == [str(index) for index in range(10)]


def test_only_the_worker_that_hands_over_filters_gets_a_reader_that_takes_them(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, schema = Options.parse({"root": lq.root}, Use.READ), source_schema.schema()
    plain: Iterable[str] = dir(type(batch_read.reader(options, schema)))
    base: Any = datasource.DataSourceReader
    assert "pushFilters" not in plain or batch_read.QueueReader.pushFilters is base.pushFilters
    monkeypatch.setitem(batch_read.sys.modules, batch_read._PUSHING, datasource)
    assert type(batch_read.reader(options, schema)) is batch_read.FilteringReader


def test_a_queue_that_is_unknown_or_deleted_is_one_line(lq: LakeQueue) -> None:
    asked = reader(lq, queue="other")
    lq.delete_queue("other")
    for refused in (asked, reader(lq, queue="nowhere")):
        with pytest.raises(errors.QueueDoesNotExist, match="queue (other|nowhere): "):
            refused.partitions()
