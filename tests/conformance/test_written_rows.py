"""Files that Spark's tasks write for a delivery table, and their commit (TAB-30); without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from conformance.delivery_tables import FIRST, SCHEMA, snapshot
from lakequeue.errors import RowsRefused
from lakequeue.storage.delivery import frames
from lakequeue.storage.delivery.frames import FrameRows, RowsTask, first_entry
from lakequeue.storage.delivery.identity import CommitRefused
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot as Snapshot
from lakequeue.storage.delivery.table import DeltaDeliveryTable as Target
from mutations import Case, Mutation, each_case


class Rows(FrameRows):
    """Rows of two tasks without Spark."""

    def __init__(self, *tasks: pa.Table, merge_schema: bool = False) -> None:
        self._tasks, self._merge_schema = tasks, merge_schema
        self._fits, self._written, self.runs = (), frames.TaskFiles(), 0

    def _run(self, writer: RowsTask, snapshot: Snapshot) -> Sequence[Any]:
        self.runs += 1
        parts = []
        for task in self._tasks:
            copy = pickle.loads(pickle.dumps(writer))  # as in another process
            [row] = copy.pickled(iter(task.to_batches()))
            parts.append(pickle.loads(row["result"][0].as_py()))
        return parts


def rows(*ids: int, **columns: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


def stored(path: Path) -> list[dict[str, Any]]:
    return sorted(polars.read_delta(str(path)).to_dicts(), key=lambda row: row["id"])


@pytest.mark.spec("TAB-30")
def test_the_files_of_all_tasks_land_in_one_commit_under_the_id_of_the_delivery(target: Target, path: Path):
    given = Rows(rows(1, 2, day=pa.array([date(2026, 1, 2), None])), rows(3, text=pa.array(["x"])), rows())
    before = snapshot(target)
    before.append(FIRST, given)
    after = snapshot(target)
    assert (after.version, after.delivered(FIRST.app_id)) == (before.version + 1, FIRST.version)
    assert after.search(FIRST) == (FIRST.version, "lease")
    assert stored(path) == [
        {"id": 1, "text": None, "day": date(2026, 1, 2)},
        {"id": 2, "text": None, "day": None},
        {"id": 3, "text": "x", "day": None},
    ]
    statistics = [json.loads(each["add"]["stats"]) for each in target.entry(after.version) or () if "add" in each]
    assert [each["numRecords"] for each in statistics] == [2, 1]
    assert statistics[0]["minValues"]["id"] == 1 and statistics[0]["nullCount"]["text"] == 2
    assert given.num_rows == 3


def after_a_block(path: Path) -> None:
    target = Target(str(path), {}, str(path.parent / "root"))
    target.create(SCHEMA)
    slow, given = snapshot(target), Rows(rows(1))
    assert given.files(slow)
    snapshot(target).block(FIRST)
    with pytest.raises(CommitRefused):
        slow.append(FIRST, given)
    assert stored(path) == []


def unfenced(patch: pytest.MonkeyPatch) -> None:
    """The files are committed on a snapshot that is read anew, as by a write by path."""
    real = DeltaTable.create_write_transaction

    def by_path(table: DeltaTable, actions: Any, *arguments: Any, **options: Any) -> None:
        real(DeltaTable(table.table_uri) if actions else table, actions, *arguments, **options)

    patch.setattr(DeltaTable, "create_write_transaction", by_path)


def without_id(patch: pytest.MonkeyPatch) -> None:
    """The commit of the files carries no application id."""
    real = DeltaTable.create_write_transaction

    def bare(table: DeltaTable, actions: Any, *arguments: Any, **options: Any) -> None:
        real(table, actions, *arguments, **({} if actions else options))

    patch.setattr(DeltaTable, "create_write_transaction", bare)


MUTATIONS = [
    Mutation("files are committed by path", unfenced, {after_a_block: "TAB-30"}),
    Mutation("files are committed without an id", without_id, {after_a_block: "TAB-30"}),
]


@each_case(MUTATIONS)
def test_files_that_were_written_before_a_block_do_not_land(case: Case, path: Path):
    case.run(lambda _: (path,), (pytest.fail.Exception,))


@pytest.mark.spec("TAB-30")
def test_rows_of_a_partitioned_table_are_in_their_partitions(tmp_path: Path, path: Path):
    DeltaTable.create(str(path), SCHEMA, partition_by=["text", "day"])
    target, texts = (
        Target(str(path), {}, str(tmp_path / "root")),
        ["a b/%20=é", None, "c", "a b/%20=é"],
    )
    snapshot(target).append(FIRST, Rows(rows(1, 2, 3, 4, text=pa.array(texts))))
    assert [row["text"] for row in stored(path)] == texts
    found = polars.scan_delta(str(path)).filter(polars.col("text") == texts[0]).collect()
    assert sorted(found["id"].to_list()) == [1, 4]


def constraint(path: Path) -> None:
    DeltaTable(str(path)).alter.add_constraint({"small": "id < 10"})


@pytest.mark.spec("TAB-23", "TAB-30")
@pytest.mark.parametrize(
    ("given", "said", "column"),
    [
        (rows(1, 11), "breaks a constraint of the table \\(small: id < 10\\)", "id"),
        (pa.table({"text": ["x"]}), "column id must not be NULL", "id"),
        (pa.table({"id": ["x"]}), "column id: Failed to parse", "id"),
        (rows(1, color=pa.array(["red"])), "no column color; merge_schema=True", "color"),
    ],
)
def test_rows_that_the_table_does_not_take_are_refused_in_the_task(
    target: Target, path: Path, given: pa.Table, said: str, column: str
):
    constraint(path)
    with pytest.raises(RowsRefused, match=said) as caught:
        Rows(rows(1), given).files(snapshot(target))
    assert caught.value.column == column
    assert stored(path) == []


@pytest.mark.spec("TAB-23", "TAB-30")
def test_new_columns_are_added_in_a_commit_before_that_of_the_rows(target: Target, path: Path):
    write_deltalake(str(path), rows(0), mode="append", schema_mode="merge")
    color = pa.table(
        [pa.array([1], pa.int64()), pa.array(["red"])],
        schema=pa.schema([("id", pa.int64()), pa.field("color", pa.string(), nullable=False)]),
    )
    given = Rows(rows(), color, merge_schema=True)
    with pytest.raises(CommitRefused, match="columns were added"):
        snapshot(target).append(FIRST, given, True)
    assert snapshot(target).delivered(FIRST.app_id) == -1
    snapshot(target).append(FIRST, given, True)
    assert [(row["id"], row["color"]) for row in stored(path)] == [(0, None), (1, "red")]
    assert snapshot(target).schema.field("color").nullable  # or Spark could not read the older rows
    assert given.runs == 1


@pytest.mark.spec("TAB-23", "TAB-30")
@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (constraint, 2),
        (lambda path: DeltaTable(str(path)).alter.add_columns([frames_field()]), 2),
        (lambda path: write_deltalake(str(path), SCHEMA.empty_table(), mode="append"), 1),
        (lambda path: DeltaTable(str(path)).optimize.compact(), 1),
    ],
)
def test_rows_are_written_again_only_if_the_table_takes_other_rows_since(
    target: Target, path: Path, change: Callable[[Path], Any], runs: int
):
    given = Rows(rows(1))
    assert given.files(snapshot(target))
    change(path)
    snapshot(target).append(FIRST, given)
    assert given.runs == runs
    assert 1 in [row["id"] for row in stored(path)]


def frames_field() -> Any:
    from deltalake import Field

    return Field("more", "string")


@pytest.mark.spec("TAB-30")
def test_a_constraint_that_came_after_the_files_holds_for_them(target: Target, path: Path):
    given = Rows(rows(11))
    assert given.files(snapshot(target))
    constraint(path)
    with pytest.raises(RowsRefused, match="small"):
        snapshot(target).append(FIRST, given)
    assert stored(path) == []


@pytest.mark.spec("TAB-23", "TAB-30")
def test_each_type_is_stored_as_by_an_append_without_spark(tmp_path: Path):
    instant = datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc)
    given = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "float": pa.array([float("nan"), 1.5]),
            "decimal": pa.array([Decimal("12.50"), None], pa.decimal128(38, 2)),
            "bytes": pa.array([b"\x00\xff", None]),
            "instant": pa.array([instant, None], pa.timestamp("us", "UTC")),
            "local": pa.array([instant.replace(tzinfo=None), None], pa.timestamp("us")),
            "flag": pa.array([True, None]),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "struct": pa.array([{"a": "x" * 100}, None]),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int16())),
        }
    )
    found = []
    for name, each in (("plain", given), ("written", Rows(given))):
        target = Target(str(tmp_path / name), {}, str(tmp_path / "root"))
        target.create(given.schema)
        snapshot(target).append(FIRST, each)
        entry = target.entry(snapshot(target).version) or ()
        stats = [json.loads(action["add"]["stats"]) for action in entry if "add" in action]
        read = DeltaTable(target.uri).to_pyarrow_table()
        assert read["instant"][0].as_py() == instant
        found.append((repr(read.to_pylist()), stats))  # NaN is unlike itself
    assert found[0] == found[1]


@pytest.mark.spec("TAB-30")
def test_a_large_task_writes_several_files(target: Target, path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "_PIECE", 100)
    given = Rows(pa.concat_tables([rows(*range(first, first + 8)) for first in range(0, 64, 8)]))
    snapshot(target).append(FIRST, given)
    assert [row["id"] for row in stored(path)] == [*range(64)]
    assert len(given.files(snapshot(target))) == 4


@pytest.mark.spec("TAB-30")
def test_the_first_entry_of_a_temporary_table_is_of_a_table_like_the_delivery_table(target: Target, path: Path):
    constraint(path)
    found = snapshot(target)
    properties = CommitProperties(app_transactions=[Transaction("x", 1)])
    found.handle.create_write_transaction([], "append", found.handle.schema(), commit_properties=properties)
    described = [json.loads(line) for line in first_entry(found, found.handle.schema().to_json()).splitlines()]
    assert described[0]["protocol"]["minWriterVersion"] == found.handle.protocol().min_writer_version
    assert described[1]["metaData"]["configuration"] == {"delta.constraints.small": "id < 10"}
