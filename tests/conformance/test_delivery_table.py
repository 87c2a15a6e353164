"""Delivery tables: what an append, a block and a fresh snapshot say, and which tables and rows are refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from conformance.delivery_tables import FIRST, SCHEMA, snapshot
from lakequeue.errors import RowsRefused, TableUnavailable, UnsupportedTable
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity
from lakequeue.storage.delivery.rows import new_schema, table_of
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot, DeltaDeliveryTable
from lakequeue.storage.roots import is_inside


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": ["x"] * len(ids)})


def append_by_another(path: Path, number: int) -> None:
    write_deltalake(path, rows(number).append_column("day", pa.nulls(1, pa.date32())), mode="append")


def ids_in(path: Path) -> list[int]:
    return sorted(polars.read_delta(str(path))["id"].to_list())


def test_a_table_that_is_missing_is_created_without_rows_and_once(path: Path, tmp_path: Path):
    target = DeltaDeliveryTable(str(path), {}, str(tmp_path / "root"))
    assert target.read() is None
    target.create(SCHEMA)
    made = snapshot(target)
    target.create(pa.schema([("other", pa.string())]))
    assert snapshot(target).table_id == made.table_id
    assert snapshot(target).schema == SCHEMA
    assert ids_in(path) == []


@pytest.mark.spec("TAB-22")
def test_of_processes_that_create_a_table_at_once_one_does(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second one has found no table before the first one creates it."""
    first, second = (DeltaDeliveryTable(str(path), {}, str(tmp_path / "root")) for _ in range(2))
    real = DeltaTable.create

    def late(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as inner:
            inner.setattr(DeltaTable, "create", real)
            first.create(SCHEMA)
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create", late)
        second.create(pa.schema([("other", pa.string())]))
    assert DeltaTable(path).version() == 0
    assert snapshot(second).schema == SCHEMA


@pytest.mark.spec("TAB-20")
def test_rows_carry_the_number_of_their_delivery_and_a_block_the_next(path: Path, target: DeltaDeliveryTable):
    before = snapshot(target)
    assert before.delivered(FIRST.app_id) == -1
    before.append(FIRST, rows(1, 2))
    after = snapshot(target)
    assert after.delivered(FIRST.app_id) == 14
    assert after.search(FIRST) == (14, "lease")
    second = DeliveryIdentity(FIRST.app_id, 9, "other", 1_000_000)
    after.block(second)
    assert snapshot(target).delivered(FIRST.app_id) == 19
    assert snapshot(target).search(second) == (19, "other")
    assert ids_in(path) == [1, 2]


@pytest.mark.spec("TAB-20")
@pytest.mark.parametrize("slow", ["append", "block"])
@pytest.mark.parametrize("quick", ["append", "block"])
def test_of_two_commits_of_a_delivery_the_slow_is_refused(
    path: Path, target: DeltaDeliveryTable, slow: str, quick: str
):
    def commit(which: str, on: DeltaDeliverySnapshot) -> None:
        on.append(FIRST, rows(1)) if which == "append" else on.block(FIRST)

    paused = snapshot(target)
    commit(quick, snapshot(target))
    with pytest.raises(CommitRefused):
        commit(slow, paused)
    assert snapshot(target).delivered(FIRST.app_id) == 14 + (quick == "block")
    assert ids_in(path) == [1] * (quick == "append")


@pytest.mark.spec("TAB-20")
def test_other_writers_appends_and_compactions_are_no_obstacle(path: Path, target: DeltaDeliveryTable):
    before = snapshot(target)
    for number in (5, 6):
        append_by_another(path, number)
    DeltaTable(path).optimize.compact()
    before.append(FIRST, rows(1))
    assert ids_in(path) == [1, 5, 6]


@pytest.mark.spec("TAB-20")
def test_a_commit_at_a_version_that_was_cleaned_up_is_not_seen(path: Path, target: DeltaDeliveryTable):
    """Acknowledged, but below the checkpoint from which the log begins."""
    paused = snapshot(target)
    for number in range(3):
        append_by_another(path, number)
    table = DeltaTable(path)
    table.create_checkpoint()
    for version in range(1, 4):
        os.unlink(path / "_delta_log" / f"{version:020d}.json")
    paused.append(FIRST, rows(99))
    after = snapshot(target)
    assert after.delivered(FIRST.app_id) == -1
    assert ids_in(path) == [0, 1, 2]


@pytest.mark.spec("TAB-20")
def test_a_version_survives_that_the_log_is_cleaned_up_to_its_checkpoint(path: Path, target: DeltaDeliveryTable):
    snapshot(target).append(FIRST, rows(1))
    append_by_another(path, 2)
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        os.unlink(path / "_delta_log" / f"{version:020d}.json")
    assert snapshot(target).delivered(FIRST.app_id) == 14
    assert snapshot(target).search(FIRST) is None


@pytest.mark.spec("TAB-22")
@pytest.mark.parametrize("again", [False, True])
def test_a_table_that_is_gone_or_another_takes_nothing_from_an_old_snapshot(
    path: Path, target: DeltaDeliveryTable, again: bool
):
    old = snapshot(target)
    old.append(FIRST, rows(1))
    old = snapshot(target)
    shutil.rmtree(path)
    if again:
        target.create(SCHEMA)
    with pytest.raises(CommitRefused):
        old.append(DeliveryIdentity(FIRST.app_id, 8, "lease", 0), rows(2))
    found = target.read()
    assert (found is not None) == again
    assert found is None or (found.table_id != old.table_id and found.delivered(FIRST.app_id) == -1)


def protocol(path: Path, *features: str) -> None:
    entry = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            reader = [name for name in features if name.startswith("catalog")]
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": reader,
                "writerFeatures": list(features),
            }
    entry.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.spec("TAB-21")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: protocol(path, "catalogManaged"), "a catalog decides"),
        (lambda path: protocol(path, "rowTracking", "appendOnly"), "features rowTracking, which cannot"),
        (
            lambda path: DeltaTable(path).alter.set_table_properties(
                {"delta.setTransactionRetentionDuration": "interval 7 days"}
            ),
            "decide QUEUE.* UNSET TBLPROPERTIES .*delta.setTransactionRetentionDuration",
        ),
    ],
)
def test_a_table_that_cannot_keep_the_guarantee_is_refused(
    path: Path, target: DeltaDeliveryTable, change: Callable[[Path], Any], said: str
):
    change(path)
    with pytest.raises(UnsupportedTable, match=said) as refused:
        snapshot(target).check()
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.spec("TAB-21")
@pytest.mark.parametrize(
    ("uri", "root", "inside"),
    [
        ("/a/root/t", "/a/root", True),
        ("/a/root", "/a/root", True),
        ("file:///a/root/t", "/a/root", True),
        ("/a/root/../t", "/a/root", False),
        ("/a/x/../root/t", "/a/root", True),
        ("/a/root2", "/a/root", False),
        ("s3://b/root/t", "s3://b/root", True),
        ("s3://b/root/t/", "s3://b/root/", True),
        ("s3://b/t", "s3://b/root", False),
        ("s3://b/t", "/b", False),
    ],
)
def test_a_table_inside_the_root_is_found(uri: str, root: str, inside: bool):
    assert is_inside(uri, root) is inside


def test_a_link_into_the_root_is_inside(tmp_path: Path):
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    with pytest.raises(UnsupportedTable, match="inside the root"):
        DeltaDeliveryTable(str(tmp_path / "link" / "t"), {}, str(tmp_path / "root")).read()


@pytest.mark.spec("TAB-23")
@pytest.mark.parametrize(
    ("bad", "column", "said"),
    [
        ([{"id": 1, "text": "x"}, {"id": "two"}], "id", "column id"),
        ([{"id": None}], "id", "must not be NULL"),
        ([{"text": "no id"}], "id", "must not be NULL"),
        ([{"id": 1, "more": 2}], "more", "no column more"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), "id", "column id"),
        (pa.table({"id": [1], "day": ["nonsense"]}), "day", "column day"),
        ([{"id": -1}], "id", "positive: id > 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_column(
    path: Path, target: DeltaDeliveryTable, bad: object, column: str, said: str
):
    DeltaTable(path).alter.add_constraint({"positive": "id > 0"})
    found = snapshot(target)
    with pytest.raises(RowsRefused, match=said) as refused:
        found.append(FIRST, table_of(bad, found.schema))
    assert refused.value.column == column and "\n" not in str(refused.value)
    assert snapshot(target).delivered(FIRST.app_id) == -1


@pytest.mark.spec("TAB-23")
@pytest.mark.parametrize(
    "given",
    [
        rows(1, 2),
        rows(1, 2).to_batches()[0],
        rows(1, 2).to_batches(),
        rows(1, 2).to_reader(),
        polars.DataFrame({"text": ["x", "x"], "id": [1, 2]}),
        pandas.DataFrame({"id": [1, 2]}),
        [{"id": 1}, {"id": 2, "day": None}],
    ],
    ids=["table", "batch", "batches", "reader", "polars", "pandas", "dicts"],
)
def test_rows_come_in_many_forms(path: Path, target: DeltaDeliveryTable, given: object):
    found = snapshot(target)
    found.append(FIRST, table_of(given, found.schema))
    assert ids_in(path) == [1, 2]


def test_other_things_are_no_rows():
    with pytest.raises(TypeError, match="list of dicts, not str"):
        table_of("rows", SCHEMA)


def test_columns_are_added_on_demand(path: Path, target: DeltaDeliveryTable):
    more = rows(1).append_column("more", pa.array([2.5]))
    snapshot(target).append(FIRST, more, merge_schema=True)
    assert snapshot(target).schema.names == ["id", "text", "day", "more"]


def test_a_new_table_needs_the_type_of_each_column():
    with pytest.raises(RowsRefused, match="column a has only NULLs"):
        new_schema(table_of([{"a": None, "b": 1}], None))
    assert new_schema(table_of([{"b": 1}], None)) == pa.schema([("b", pa.int64())])


@pytest.mark.spec("TAB-22")
def test_a_table_that_cannot_be_reached_is_said_so_in_a_line(tmp_path: Path):
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    options |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "max_retries": "1", "retry_timeout": "1s"}
    with pytest.raises(TableUnavailable, match="s3://bucket/t cannot be used: nothing listens") as unreachable:
        DeltaDeliveryTable("s3://bucket/t", options, str(tmp_path)).read()
    assert "\n" not in str(unreachable.value)


@pytest.mark.spec("TAB-24")
def test_the_files_of_a_delivery_are_synced(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), path))
        real(descriptor)

    DeltaTable.create(path, SCHEMA, partition_by=["text", "day"])
    target = DeltaDeliveryTable(str(path), {}, str(tmp_path / "root"))
    append_by_another(path, 4)  # which syncs nothing
    snapshot(target).append(FIRST, table_of([{"id": 1, "text": "a b/c", "day": date(2030, 1, 2)}], SCHEMA))
    after = snapshot(target)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        patched.setattr(os, "fdatasync", fsync)
        target.sync(after.version)
        expected = {str(found.relative_to(path)) for found in path.rglob("*")}
        assert len(expected) == 10 and synced == expected | {".", ".."}
        synced.clear()
        after.append(DeliveryIdentity(FIRST.app_id, 8, "lease", 0), rows(2))
        target.sync(snapshot(target).version)
        assert synced == ({str(found.relative_to(path)) for found in path.rglob("*")} - expected) | {
            *(".", "_delta_log", "text=x", "text=x/day=__HIVE_DEFAULT_PARTITION__")
        }
    nothing = DeltaDeliveryTable(str(path), {}, str(tmp_path / "root"), syncs=False)
    synced.clear()
    nothing.sync(after.version)
    assert not synced
