"""Rows of Arrow sent without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from concurrency.steps import meanwhile
from insides import place_of, reopen
from lakequeue import InvalidMessageContents, InvalidParameterValue, LakeQueue, Queue, QueueClientError
from lakequeue.model.messages import content_dedup_id
from lakequeue.operations.send_dataframe import BulkSend, send_staged
from lakequeue.storage.bulk import arrow_files, bulk_send
from lakequeue.storage.bulk.arrow_rows import columns_of
from lakequeue.storage.layout import tables_path
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock
from mutations import Patch


def table(*bodies: str, **columns: Any) -> pa.Table:
    return pa.table({"body": pa.array(bodies, pa.string())} | columns)


def messages(queue: Queue, count: int = 1_000) -> list[Any]:
    lease = queue.lease(count)
    if lease is None:
        return []
    lease.release()
    return lease.arrow().to_pylist()


def bodies(queue: Queue) -> list[str]:
    return [message["body"] for message in messages(queue)]


def files_of(queue: Queue) -> list[Path]:
    return [*Path(tables_path(place_of(queue), queue.key)).rglob("*.parquet")]


def reader(data: pa.Table) -> pa.RecordBatchReader:
    return data.to_reader(max_chunksize=1)


# --- what is sent


def test_rows_are_sent_as_json_as_the_job_does(lq: LakeQueue) -> None:
    queue, at = (
        lq.create_queue("q.fifo", fifo=True, content_based_deduplication=True),
        datetime(2026, 1, 31, 8, 0, 5, 123456),
    )
    rows = pa.table(
        {
            "number": [1, None],
            'say "it\'s"': ['é"', "\n"],
            "at": pa.array([at.replace(tzinfo=timezone.utc)] * 2, pa.timestamp("us", "UTC")),
            "plain": [at, None],
            "bytes": [b"\0\xff", b""],
            "Bytes": pa.array([b"\0\xff", b"ab"], pa.binary(2)),
            "ratio": [float("nan"), 0.5],
            "deep": [{"a": None, "b": [1]}, {"a": 2, "b": []}],
            "group_id": ["g", "h"],
        }
    )
    assert queue.send_arrow(reader(rows), body="*") == 2
    first, second = messages(queue)
    assert json.loads(first["body"]) == {
        **{"number": 1, 'say "it\'s"': 'é"', "at": f"{at.isoformat()}Z", "plain": at.isoformat()},
        **{"bytes": "AP8=", "Bytes": "AP8=", "ratio": "NaN", "deep": {"b": [1]}, "group_id": "g"},
    }
    assert json.loads(second["body"])["deep"] == {"a": 2, "b": []} and "number" not in second["body"]
    assert [first["group_id"], second["group_id"]] == ["g", "h"]


def test_a_column_with_another_name_is_the_body(lq: LakeQueue) -> None:
    queue = lq.create_queue("q")
    assert queue.send_arrow(pa.table({"text": ["a", "b"], "body": ["x", "y"], "id": [1, 2]}), body="text") == 2
    assert bodies(queue) == ["a", "b"]
    with pytest.raises(InvalidParameterValue, match="no such column; there are id"):
        queue.send_arrow(pa.table({"id": [1]}), body="text")
    with pytest.raises(InvalidParameterValue, match="Two columns have the same name"):
        queue.send_arrow(pa.table([[1], [2]], ["id", "id"]), body="*")


@pytest.mark.spec("SND-3", "DLY-9", "SND-17")
@pytest.mark.parametrize(
    "of",
    [
        lambda data: data,
        lambda data: data.to_batches()[0],
        reader,
        pl.from_arrow,
        lambda data: data.to_pandas(),
        lambda data: duckdb.from_arrow(data),
    ],
    ids=["table", "batch", "reader", "polars", "pandas", "duckdb"],
)
def test_whatever_speaks_arrow_is_sent(lq: LakeQueue, clock: ManualClock, of: Any) -> None:
    queue = lq.create_queue("orders", delay=7)
    data = table("one", "é 漢 😀", "three", delay_seconds=pa.array([0.0, 0.5, None]), group_id=["g", None, None])
    assert queue.send_arrow(of(data)) == 3
    assert queue.counts().delayed == 2
    clock.advance(7)
    found = messages(queue)
    assert [(row["body"], row["delay_seconds"], row["group_id"]) for row in found] == [
        ("one", 0.0, "g"),
        ("é 漢 😀", 0.5, None),
        ("three", 7.0, None),
    ]
    assert len({row["message_id"] for row in found}) == 3


def categories() -> pd.DataFrame:
    return pd.DataFrame({"body": ["x", "y"], "group_id": pd.Categorical(["g", None])})


TEXTS = pa.map_(pa.string(), pa.string())
PAIRS = [[{"key": "k", "value": "v"}], None]


@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        (table("x", "y", message_attributes=pa.array([[("k", "v")], None], TEXTS)), "v"),
        (table("x", "y", message_attributes=pa.array([None, None])), None),
        (pl.DataFrame({"body": ["x", "y"], "message_attributes": PAIRS}), "v"),
        (duckdb.sql("FROM (VALUES ('x', map {'k': 'v'}), ('y', NULL)) AS _ (body, message_attributes)"), "v"),
        (categories(), None),
        (pl.DataFrame(categories()), None),
    ],
    ids=["map", "nulls", "polars", "duckdb", "categories", "polars categories"],
)  # fmt: skip
def test_message_attributes_come_in_many_shapes(lq: LakeQueue, data: Any, attributes: str | None) -> None:
    queue = lq.create_queue("orders")
    assert queue.send_arrow(data) == 2
    first, second = queue.receive(max_messages=2)
    assert {name: value.value for name, value in first.message_attributes.items()} == (
        {"k": attributes} if attributes else {}
    )
    assert second.message_attributes == {}


def test_entries_below_null_attributes_belong_to_no_message(lq: LakeQueue) -> None:
    full = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string()))
    hidden = pa.Array.from_buffers(
        full.type, 3, [pa.py_buffer(b"\x05"), full.buffers()[1]], 1, 0, full_children(full)
    )
    queue = lq.create_queue("orders")
    queue.send_arrow(table("x", "y", "z", message_attributes=hidden))
    assert [[*message.message_attributes] for message in queue.receive(max_messages=3)] == [["a"], [], ["c"]]


def full_children(full: pa.MapArray) -> list[pa.Array]:
    entries = pa.StructArray.from_arrays([full.keys, full.items], fields=list(full.type.field(0).type))
    return [entries]


def test_slices_of_large_batches_are_sent_as_they_are(lq: LakeQueue, monkeypatch: Patch) -> None:
    monkeypatch.setattr("lakequeue.storage.bulk.arrow_rows._ROWS", 7)
    monkeypatch.setattr("lakequeue.storage.bulk.arrow_rows.ROW_GROUP", 300)
    monkeypatch.setattr(arrow_files, "FILE", 1_000)
    queue = lq.create_queue("orders")
    entries = [[("k", f"{number}")] if number % 3 else None for number in range(100)]
    data = table(
        *(f"{number}" * (number % 9 + 1) for number in range(100)),
        message_attributes=pa.array(entries, pa.map_(pa.string(), pa.string())),
    )
    assert queue.send_arrow(data.slice(10, 80)) == 80
    assert len(files_of(queue)) > 2
    sent, found = data.slice(10, 80).to_pylist(), messages(queue)
    assert [row["body"] for row in found] == [row["body"] for row in sent]
    assert [
        [(name, value["string_value"]) for name, value in row["message_attributes"] or []] for row in found
    ] == [row["message_attributes"] or [] for row in sent]


@pytest.mark.spec("SND-18")
@pytest.mark.parametrize("size", [1 << 20, 4_000, 700])
def test_rows_fill_all_shards_evenly_in_contiguous_ranges(lq: LakeQueue, monkeypatch: Patch, size: int) -> None:
    monkeypatch.setattr("lakequeue.storage.bulk.arrow_rows.ROW_GROUP", 1_000)
    monkeypatch.setattr(arrow_files, "FILE", 4 * size)
    queue = lq.create_queue("orders", shards=4)
    assert queue.send_arrow(reader(table(*(f"{number}" for number in range(1_003))))) == 1_003
    found = messages(queue, 2_000)
    ranges: dict[int, list[int]] = {}
    for row in sorted(found, key=lambda row: (row["shard"], row["offset"])):
        ranges.setdefault(row["shard"], []).append(int(row["body"]))
    assert sorted(number for numbers in ranges.values() for number in numbers) == [*range(1_003)]
    for numbers in ranges.values():
        assert numbers == [*range(numbers[0], numbers[-1] + 1)]
        assert 0.79 < len(numbers) / (1_003 / 4) < 1.21
    assert len(ranges) == 4


def test_few_rows_are_one_commit(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", shards=4)
    queue.send_arrow(table("a", "b", "c"))
    assert len({row["shard"] for row in messages(queue)}) == 1


def test_no_rows_are_no_send(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    assert queue.send_arrow(table()) == 0
    assert queue.counts().visible == 0


# --- FIFO queues


@pytest.mark.spec("FIF-1", "DDP-1")
def test_groups_keep_their_order_and_duplicates_are_dropped(
    lq: LakeQueue, clock: ManualClock, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lakequeue.storage.bulk.arrow_files.ROW_GROUP", 2_000)
    queue = lq.create_queue("orders.fifo", fifo=True, shards=3, deduplication_scope="message_group")
    rows = 300
    data = pa.table(
        {
            "body": [f"{at}" for at in range(rows)],
            "group_id": [f"g{at % 7}" for at in range(rows)],
            "dedup_id": [f"d{at - at % 14 + at % 7}" for at in range(rows)],
            "at": [rows - at for at in range(rows)],
        }
    )
    kept = len({(f"g{at % 7}", f"d{at - at % 14 + at % 7}") for at in range(rows)})
    assert queue.send_arrow(data.to_reader(max_chunksize=9), order_by="at") == kept < rows
    found = messages(queue, rows)
    assert {row["group_id"] for row in found} == {f"g{at}" for at in range(7)}
    for group in {row["group_id"] for row in found}:
        of_group = [row for row in found if row["group_id"] == group]
        assert len({row["shard"] for row in of_group}) == 1
        offsets = [row["offset"] for row in of_group]
        numbers = [int(row["body"]) for row in of_group]
        assert offsets == sorted(offsets) and numbers == sorted(numbers, reverse=True)
        assert offsets[-1] - offsets[0] == len(offsets) - 1
    clock.advance(1)
    assert queue.send_arrow(data, order_by="at") == 0  # within five minutes


@pytest.mark.spec("DDP-4")
def test_rows_without_an_id_get_an_id_from_the_body(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    data = table("a", "b", "a", group_id=["g"] * 3, dedup_id=[None, "own", None])
    assert queue.send_arrow(data) == 2
    queue.send("a", group_id="h")
    assert [(row["body"], row["dedup_id"]) for row in messages(queue)] == [
        ("a", content_dedup_id("a")),
        ("b", "own"),
    ]


@pytest.mark.parametrize(
    "values",
    [
        [datetime(2026, 1, day, tzinfo=timezone.utc) for day in (3, 1, 2)],
        ["c", "a", "b"],
        [3.5, -1.0, float("nan")],
        pa.array([3, 1, 2], pa.decimal128(5, 2)),
        pa.array(["c", "a", "b"]).dictionary_encode(),
        pa.array(["c", "a", "b"]).cast(pa.string_view()),
        pa.array([b"c", b"a", b"b"]).cast(pa.binary_view()),
        pa.array([True, False, False]),
        pa.array([{"a": 1, "b": "c"}, {"a": 1, "b": "a"}, {"a": 1, "b": "b"}]),
    ],
    ids=["instants", "texts", "numbers", "decimals", "categories", "views", "bytes", "flags", "structs"],
)
def test_groups_are_ordered_by_any_column(lq: LakeQueue, values: Any) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True)
    data = table("1", "2", "3", group_id=["g"] * 3, dedup_id=["1", "2", "3"], at=values)
    assert queue.send_arrow(data, order_by="at") == 3
    wanted = ["2", "1", "3"] if isinstance(values, list) and values[0] == 3.5 else ["2", "3", "1"]
    assert bodies(queue) == wanted


# --- what is refused


@pytest.mark.parametrize("data", [[{"body": "x"}], "x", {"body": ["x"]}, pa.chunked_array([["x"]]), None])
def test_what_is_no_arrow_data_is_refused(lq: LakeQueue, data: Any) -> None:
    with pytest.raises(
        InvalidParameterValue, match="for parameter data is invalid. Reason: Must be a pyarrow Table"
    ) as caught:
        lq.create_queue("orders").send_arrow(data)
    assert "\n" not in str(caught.value)


def broken_reader(*bodies: str) -> pa.RecordBatchReader:
    def rows() -> Iterator[pa.RecordBatch]:
        yield table(*bodies).to_batches()[0]
        raise ConnectionResetError("the source\nis gone")

    return pa.RecordBatchReader.from_batches(table().schema, rows())


CHARACTERS = "1 row has characters that are not allowed (SND-12)."


def refusals() -> dict[str, tuple[Any, type[Exception], str]]:
    """What is sent, and how it fails."""
    invalid = [None, pa.array(["ab"]).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    return {
        "rows": (table("", "\x01"), InvalidParameterValue, f"1 row has no body (SND-1); {CHARACTERS}"),
        "characters": (table("a", "\x01"), InvalidMessageContents, f"Nothing was sent: {CHARACTERS}"),
        "bytes": (
            pa.table({"body": pa.Array.from_buffers(pa.string(), 1, invalid)}),
            InvalidParameterValue,
            "Nothing was sent: rows cannot be read: Invalid UTF8",
        ),
        "source": (broken_reader("a"), QueueClientError, "Nothing was sent: reading the rows failed: the source"),
        "columns": (table("a", more=[1]), InvalidParameterValue, "Columns more are not known"),
    }


@pytest.mark.parametrize("case", refusals())
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_refusal_is_one_line_and_leaves_nothing(lq: LakeQueue, case: str, fifo: bool) -> None:
    data, error, text = refusals()[case]
    if fifo:
        ids = {"group_id": pa.array(["g"]), "dedup_id": pa.array(["d"])}

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in given:
                yield pa.RecordBatch.from_pydict(
                    dict(zip(batch.schema.names, batch.columns, strict=True))
                    | {name: value.take(pa.array([0] * len(batch))) for name, value in ids.items()}
                )

        given = data if isinstance(data, pa.RecordBatchReader) else data.to_reader()
        schema = given.schema.append(pa.field("group_id", pa.string())).append(pa.field("dedup_id", pa.string()))
        data = pa.RecordBatchReader.from_batches(schema, rows())
    queue = lq.create_queue("orders.fifo", fifo=True) if fifo else lq.create_queue("orders")
    with pytest.raises(error) as caught:
        queue.send_arrow(data, send_id="load")
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert files_of(queue) == [file for file in files_of(queue) if "receipts" in str(file)]
    good = table("a", group_id=["g"], dedup_id=["d"]) if fifo else table("a")
    assert queue.send_arrow(good, send_id="load") == 1


def test_standard_queues_have_no_order(lq: LakeQueue) -> None:
    with pytest.raises(InvalidParameterValue, match="Standard queues keep no order"):
        lq.create_queue("orders").send_arrow(table("a"), order_by="body")


@pytest.mark.parametrize("values", [pa.array([[1]]), pa.array([[("a", "b")]], TEXTS)], ids=["list", "map"])
def test_a_column_without_an_order_is_refused(lq: LakeQueue, values: pa.Array) -> None:
    data = table("1", group_id=["g"], dedup_id=["1"], at=values)
    with pytest.raises(InvalidParameterValue, match="^The column at is .*, which has no order.$"):
        lq.create_queue("orders.fifo", fifo=True).send_arrow(data, order_by="at")


# --- what goes on without rows that break a rule


@pytest.mark.spec("SND-1", "FIF-1")
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_rows_that_break_a_rule_go_to_a_table_once(lq: LakeQueue, tmp_path: Path, name: str) -> None:
    queue = lq.create_queue(name, fifo=name.endswith(".fifo"))
    groups = {"group_id": ["g", "g", None], "dedup_id": ["1", "2", "3"]} if queue.fifo else {}
    bad, rows = tmp_path / "bad", table("a", "", "b", **groups)
    for expected in ((1, 2) if queue.fifo else (2, 1)), (0, 0):
        sent = queue.send_arrow(reader(rows), "load", on_bad_row="divert", bad_rows=str(bad))
        assert (sent, sent.refused) == expected
    assert bodies(queue) == (["a"] if queue.fifo else ["a", "b"])
    diverted = DeltaTable(bad).to_pyarrow_table(columns=["queue", "body", "reason"]).to_pylist()
    found = [("", "has no body (SND-1)"), *([("b", "has no valid group_id (SND-4)")] if queue.fifo else [])]
    assert diverted == [{"queue": name, "body": body, "reason": reason} for body, reason in found]
    assert not [path for path in files_of(queue) if path.name.startswith(("refused-", "spilled-"))]


def test_of_a_send_that_fails_later_no_refused_row_is_kept(lq: LakeQueue, tmp_path: Path) -> None:
    queue, bad = lq.create_queue("orders"), tmp_path / "bad"
    before = files_of(queue)
    with pytest.raises(QueueClientError, match="reading the rows failed: the source"):
        queue.send_arrow(broken_reader("a", ""), on_bad_row="divert", bad_rows=str(bad))
    assert files_of(queue) == before and not len(DeltaTable(bad).to_pyarrow_table())


# --- attributes that change meanwhile


@pytest.mark.spec("QUE-25", "SND-2")
@pytest.mark.parametrize("send_id", [None, "load"])
def test_rows_are_judged_by_the_attributes_that_they_are_committed_under(
    lq: LakeQueue, send_id: str | None
) -> None:
    queue = lq.create_queue("orders")
    smaller = lambda *_: reopen(lq).queue("orders").set_attributes(maximum_message_size=1_024)  # noqa: E731
    with (
        meanwhile(arrow_files, "stage", smaller, landed=True),
        pytest.raises(InvalidParameterValue, match="1 row is longer than 1024 bytes"),
    ):
        queue.send_arrow(table("x" * 1_025), send_id)
    assert bodies(queue) == []
    assert queue.send_arrow(table("x" * 1_024), send_id) == 1


@pytest.mark.spec("QUE-25")
def test_a_source_that_cannot_be_read_twice_is_an_error_not_an_empty_send(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    later = lambda *_: reopen(lq).queue("orders").set_attributes(delay=5)  # noqa: E731
    with (
        meanwhile(bulk_send, "complete", later),
        pytest.raises(QueueClientError, match="attributes changed meanwhile, and the rows cannot be read again"),
    ):
        queue.send_arrow(reader(table("a", "b")), send_id="load")
    assert queue.counts().delayed == queue.counts().visible == 0
    assert queue.send_arrow(reader(table("a", "b")), send_id="load") == 2


# --- partitions that other processes write


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_partitions_are_written_from_values_alone_and_gathered(lq: LakeQueue, fifo: bool) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True) if fifo else lq.create_queue("orders", shards=2)
    parts = []
    for part in "ab":
        names = [f"{part}{number}" for number in range(3)]
        ids = {"group_id": ["g"] * 3, "dedup_id": names} if fifo else {}
        parts.append(table(*names, **ids))

    def stage(tables: Any, staging: Any) -> Any:
        def elsewhere(partition: int) -> arrow_files.Written:
            there, root = pickle.loads(pickle.dumps((staging, lq.root)))
            folder = there.messages(Store(root).folder(tables_path(root, queue.key)))
            written = arrow_files.write_partition(folder, there, partition, parts[partition].to_batches())
            return pickle.loads(pickle.dumps(written))

        elsewhere(0)  # a task that was repeated
        return arrow_files.gather(tables, staging, [elsewhere(0), elsewhere(1)])

    columns = columns_of(parts[0].schema)
    for rows in (6, 0):
        assert send_staged(queue._runtime, columns, BulkSend("load"), stage) == rows
    assert sorted(bodies(queue)) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert len({row["message_id"] for row in messages(queue)}) == 6


def test_a_send_to_an_object_store_needs_no_spark(s3_root: str) -> None:
    queue = LakeQueue(s3_root).create_queue("orders")
    assert queue.send_arrow(table("a", "b")) == 2
    assert bodies(queue) == ["a", "b"]
