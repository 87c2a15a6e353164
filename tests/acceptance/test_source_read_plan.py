"""What the data source's batch read plans and reads, as Spark's workers call it; no JVM starts."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql import datasource

from lakequeue import LakeQueue, SendEntry, errors
from lakequeue.operations import spark_tasks
from lakequeue.spark import source, source_schema
from lakequeue.spark.options import SourceOptions, Use
from lakequeue.storage.folder import LocalFolder
from lakequeue.testing import ManualClock


def reader(lq: LakeQueue, **options: str) -> source.QueueReader:
    parsed = SourceOptions.parse({"root": lq.root, **options}, Use.READ)
    return source.QueueReader(parsed, source_schema.schema())


def rows(reader: source.QueueReader) -> list[dict[str, Any]]:
    """The rows of all partitions, read by copies of the reader."""
    found = []
    for partition in reader.partitions():
        copy, part = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(part):
            assert batch.schema.names == source_schema.COLUMNS.names
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["queue"], row["shard"], row["offset"]))


@pytest.fixture(autouse=True)
def _the_clock_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has the machine's clock, months after the last commit: it would look for expired messages."""
    monkeypatch.setenv("LAKEQUEUE_CLOCK_AHEAD", "1e12")


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
    ("options", "bodies", "files"),
    [
        ({"queue": "other"}, ["elsewhere"], 1),
        ({"queue": "orders", "beforeOffset": "2"}, ["0", "1"], 1),
        ({"fromOffset": "7", "beforeOffset": "8"}, ["7"], 1),
        ({"state": "held"}, [], 0),
        ({"sentBefore": "2025-01-01T00:00:00Z"}, [], 0),
        ({"sentFrom": "2025-01-01T00:00:00+01:00", "fromOffset": "9"}, ["9"], 1),
    ],
)
def test_options_leave_files_out(
    lq: LakeQueue, options: dict[str, str], bodies: list[str], files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_file = LocalFolder.parquet

    def parquet(folder: LocalFolder, name: str, size: int) -> Any:
        opened.extend([name] if folder.uri.endswith("messages") else [])
        return open_file(folder, name, size)

    asked = reader(lq, **options)
    monkeypatch.setattr(LocalFolder, "parquet", parquet)
    assert [row["body"] for row in rows(asked)] == bodies
    assert len(opened) == files


def test_a_message_is_found_before_tasks_start(lq: LakeQueue) -> None:
    orders = lq.queue("orders")
    wanted = orders.send("wanted")
    orders.send("later")
    asked = reader(lq, queue="orders", messageId=wanted.message_id)
    assert [partition.value for partition in asked.partitions()] == [[("orders", "local", 0, 10, 10)]]
    assert [row["body"] for row in rows(asked)] == ["wanted"]
    assert rows(reader(lq, queue="other", messageId=wanted.message_id)) == []
    assert rows(reader(lq, queue="orders", messageId=wanted.message_id, state="held")) == []


def test_small_files_of_several_shards_are_one_task(lq: LakeQueue) -> None:
    [task] = reader(lq).partitions()
    assert {place[:3] for place in task.value} == {
        ("orders", "local", 0),
        ("other", "local", 0),
        ("other", "local", 1),
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"state": "gone"}, "option state is gone, it must be some of visible, "),
        ({"beforeOffset": "1.5"}, "option beforeOffset is 1.5, it must be a whole number of at least 0"),
        ({"fromOffset": str(2**63)}, r"of at least 0 and less than 2\*\*63"),
        ({"sentFrom": "0001-01-01T00:00:00+05:00"}, "option sentFrom is 0001"),
        ({"sentFrom": "2025-01-01T00:00:00"}, "must be an instant with its zone"),
        ({"messageId": "7", "queue": "orders"}, "option messageId is 7, it must be the id of a message"),
        ({"messageId": "Msg-12345678"}, "option messageId needs the queue of the message"),
        ({"sentBefore": "soon"}, "option sentBefore is soon, it must be an instant"),
    ],
)
def test_options_of_a_read_are_checked(lq: LakeQueue, options: dict[str, str], told: str) -> None:
    with pytest.raises(errors.InvalidOptions, match=told):
        reader(lq, **options)


def test_a_large_file_is_read_by_several_tasks(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("TASK_BYTES", "PIECE_BYTES"):
        monkeypatch.setattr(spark_tasks, limit, 500)
    asked = reader(lq, queue="orders")
    assert len(asked.partitions()) > 2
    assert [row["body"] for row in rows(asked)] == [str(index) for index in range(10)]


def test_a_queue_that_is_unknown_or_deleted_is_one_line(lq: LakeQueue) -> None:
    asked = reader(lq, queue="other")
    lq.delete_queue("other")
    for refused in (asked, reader(lq, queue="nowhere")):
        with pytest.raises(errors.QueueDoesNotExist, match="queue (other|nowhere): "):
            refused.partitions()
