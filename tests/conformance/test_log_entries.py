"""Entries and checkpoints that the point engine writes itself: the tables are those that delta-rs would make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from concurrency.steps import meanwhile
from lakequeue.errors import DamagedTable
from lakequeue.storage import layout, stats, stats_rows
from lakequeue.storage.delta_log import LAST_CHECKPOINT, checkpoint_name, entry_name, listed, parse, signed
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.log_trimming import write_checkpoint
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, commit
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.snapshot import Snapshot
from lakequeue.storage.stores import Store

KEY = "first_offset"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(Store(str(tmp_path)))


def ledger(engine: Engine, name: str) -> Table:
    path = f"{engine.store.root}/{name}"
    engine.create(path, layout.RECEIPTS, layout.RECEIPT_PARTITIONS, layout.RECEIPTS_PROPERTIES)
    return engine.open(path)


def rows(changes: Mapping[tuple[bool, int], str | None]) -> pa.Table:
    """Source of a MERGE: a state for each key, None to delete it."""
    run = {"lease_id": "lease", "receive_count": 1}
    cells = [
        {
            "settled": settled,
            KEY: first,
            "last_offset": first,
            "state": state,
            "run": state and run,
            "op": "put" if state else "del",
        }
        for (settled, first), state in changes.items()
    ]
    return pa.Table.from_pylist(cells, schema=layout.RECEIPTS.append(pa.field("op", pa.string())))


def merge_by_delta_rs(path: str, source: pa.Table) -> None:
    """The MERGE of the design, which the point engine's own must equal."""
    columns = {f'"{name}"': f's."{name}"' for name in source.column_names if name != "op"}
    (
        DeltaTable(path)
        .merge(source, f"t.settled = s.settled AND t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        .when_matched_delete("s.op = 'del'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, predicate="s.op = 'put'")
        .execute()
    )


def stored(table: Table) -> list[dict[str, Any]]:
    found = pa.table(DeltaTable(table.path).to_pyarrow_dataset().to_table()).to_pylist()
    assert len(found) == sum(file.rows for file in table.files())
    return sorted(found, key=lambda row: (row["settled"], row[KEY]))


@pytest.mark.parametrize("seed", range(5))
def test_a_merge_leaves_the_rows_that_one_of_delta_rs_leaves(engine: Engine, seed: int) -> None:
    random, ours, theirs = Random(seed), ledger(engine, "ours"), ledger(engine, "theirs")
    for number in range(1, 13):
        keys = random.sample([(settled, first) for settled in (False, True) for first in range(8)], 5)
        source = rows({key: random.choice([None, "ready", f"leased {number}"]) for key in keys})
        ours.merge(source, KEY, {layout.RECEIPTS_ID: number}, f"token {number}")
        merge_by_delta_rs(theirs.path, source)
        assert stored(ours) == stored(engine.open(theirs.path))
        assert ours.transaction(layout.RECEIPTS_ID) == DeltaTable(ours.path).transaction_version(
            layout.RECEIPTS_ID
        )
        assert engine.open(ours.path).files() == ours.files()
    assert ours.landed("token 3", 0)


def said(table: Table) -> dict[str, Any]:
    """What the checkpoint of the newest version says, in whatever order and types."""
    columns = pq.read_table(table.folder.path(checkpoint_name(table.version)), use_threads=False)
    actions = {name: columns[name].drop_null().to_pylist() for name in ("add", "txn", "metaData", "protocol")}
    [metadata], [protocol] = actions["metaData"], actions["protocol"]
    metadata = {name: value for name, value in metadata.items() if name not in ("name", "description")}
    return {
        "files": {
            each["path"]: (dict(each["partitionValues"]), each["size"], each["modificationTime"])
            for each in actions["add"]
        },
        "statistics": {each["path"]: json.loads(each["stats"]) for each in actions["add"]},
        "ids": {each["appId"]: each["version"] for each in actions["txn"]},
        "metadata": metadata | {"configuration": dict(metadata["configuration"])},
        "protocol": (protocol["minReaderVersion"], protocol["minWriterVersion"]),
    }


def test_a_checkpoint_equals_a_checkpoint_of_delta_rs(engine: Engine) -> None:
    receipts, messages = ledger(engine, "receipts"), f"{engine.store.root}/messages"
    for number in range(1, 4):
        source = rows({(number == 2, number): "ready", (False, number - 1): None})
        receipts.merge(source, KEY, {layout.RECEIPTS_ID: number, "another": 7}, f"token {number}")
    engine.create(messages, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
    sent = {
        "position": 0,
        "message_id": "m",
        "body": "ä",
        "base_offset": 5,
        "opened_at": datetime.now(timezone.utc),
    }
    log = engine.open(messages)
    log.append(pa.Table.from_pylist([sent], schema=layout.MESSAGES), {layout.SEND_ID: 1}, "token")
    for table in receipts, log:
        table.checkpoint()
        ours = said(table)
        DeltaTable(table.path).create_checkpoint()
        assert said(table) == ours
        table.checkpoint()
        table.folder.remove(entry_name(version) for version in range(table.version))
        assert engine.open(table.path).files() == table.files()


def test_a_checkpoint_does_not_say_what_the_log_leaves_open(engine: Engine) -> None:
    table = ledger(engine, "ours")
    add = {
        "path": "b.parquet",
        "partitionValues": {"settled": "true"},
        "size": 1,
        "modificationTime": 2,
        "dataChange": True,
    }
    table.folder.create(entry_name(1), json.dumps({"add": add}).encode())  # of another program
    table.checkpoint()
    [written] = pq.read_table(table.folder.path(checkpoint_name(1)))["add"].drop_null().to_pylist()
    assert (written["stats"], dict(written["partitionValues"])) == (None, {"settled": "true"})


@pytest.mark.parametrize("schema", [layout.QUEUES, layout.MESSAGES, layout.RECEIPTS, layout.STATS])
def test_a_new_table_has_the_schema_that_delta_rs_would_give_it(engine: Engine, schema: pa.Schema) -> None:
    engine.create(f"{engine.store.root}/new", schema, [], {})
    [text] = [
        json.loads(line)["metaData"]["schemaString"]
        for line in engine.store.folder(f"{engine.store.root}/new").read(entry_name(0)).splitlines()
        if b"metaData" in line
    ]
    assert json.loads(text) == json.loads(Schema.from_arrow(schema).to_json())


def test_a_checkpoint_that_came_after_its_entry_was_trimmed_is_no_beginning(engine: Engine) -> None:
    table = ledger(engine, "ours")
    for number in range(1, 6):
        table.append(rows({(False, number): "a"}).drop_columns("op"), {layout.RECEIPTS_ID: number}, f"{number}")
        if number == 2:
            table.checkpoint()
            late = table.folder.read(checkpoint_name(2))
    table.checkpoint()
    table.folder.remove([*map(entry_name, range(5)), checkpoint_name(2)])
    table.folder.replace(checkpoint_name(2), late)  # by a process that was stopped meanwhile
    first = listed(table.folder).readable_from
    assert first == 5 and Snapshot(table.folder, first).files() == engine.open(table.path).files()


@pytest.mark.spec("DUR-2")
@pytest.mark.parametrize(
    ("action", "member", "value"),
    [
        *(("protocol", "minReaderVersion", value) for value in (None, "3", [])),
        ("protocol", "writerFeatures", 5),
        *(("metaData", "configuration", value) for value in (None, 5, {"delta.checkpointInterval": "many"})),
        ("metaData", "configuration", {"delta.appendOnly": True}),
        *(("metaData", "partitionColumns", value) for value in (None, 5, ["state"])),
    ],
    ids=str,
)
def test_the_metadata_of_a_log_is_read_or_damage(engine: Engine, action: str, member: str, value: object) -> None:
    table = ledger(engine, "ours")
    lines = [json.loads(line) for line in table.folder.read(entry_name(0)).splitlines()]
    for line in lines:
        if action in line:
            line[action][member] = value
    table.folder.replace(entry_name(0), signed("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(DamagedTable, match="is torn|checkpointInterval|partition columns"):
        engine.open(table.path)


@pytest.mark.spec("DUR-2")
@pytest.mark.parametrize("value", [None, "9", -1, 1.5, 2**63, float("inf"), [1], {}], ids=str)
@pytest.mark.parametrize(
    "place",
    ["add.size", "add.modificationTime", "txn.version", "numRecords", "base_offset", "commitInfo.timestamp"],
)
def test_what_a_log_counts_is_a_number_that_can_be_one_or_damage(value: object, place: str) -> None:
    stats, partition = {"numRecords": 5}, {"base_offset": "5"}
    add = {"path": "a.parquet", "size": 5, "modificationTime": 5, "partitionValues": partition}
    actions: dict[str, Any] = {"commitInfo": {"timestamp": 5}, "add": add, "txn": {"appId": "a", "version": 5}}
    action, _, member = place.rpartition(".")
    {"numRecords": stats, "base_offset": partition}.get(place, actions.get(action, {}))[member] = value
    add["stats"] = json.dumps(stats)
    data = "\n".join(json.dumps({name: each}) for name, each in actions.items()).encode()
    if (place in ("add.modificationTime", "commitInfo.timestamp") and not value) or (place, value) == (
        "base_offset",
        "9",
    ):
        parse(data)  # not said, or a number
    else:
        with pytest.raises((ValueError, TypeError)):
            parse(data)


@pytest.mark.spec("DUR-1")
def test_the_entry_that_a_commit_is_moved_behind_is_synced_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ledger(engine, "ours")
    stale, done = engine.open(table.path), list[str]()
    table.add([], {"ours": 1}, "1")
    sync, create = LocalFolder.sync, LocalFolder.create
    monkeypatch.setattr(LocalFolder, "sync", lambda *given, **more: (done.append("sync"), sync(*given, **more))[1])
    monkeypatch.setattr(
        LocalFolder, "create", lambda *given, **more: (done.append("create"), create(*given, **more))[1]
    )
    stale.add([], {"theirs": 1}, "2")
    assert done[1:4] == ["create", "sync", "create"]


def test_the_newest_checkpoint_stays_so(engine: Engine) -> None:
    table = ledger(engine, "ours")
    late = Snapshot(table.folder)
    table.append(rows({(False, 1): "a"}).drop_columns("op"), {layout.RECEIPTS_ID: 1}, "1")
    table.checkpoint()
    write_checkpoint(table.folder, late)  # by a process that was stopped meanwhile
    assert json.loads(table.folder.read(LAST_CHECKPOINT))["version"] == 1


def test_a_log_with_a_missing_entry_does_not_show_which_commits_landed(engine: Engine) -> None:
    """Silence would be taken for no, and the commit be made twice."""
    table = ledger(engine, "ours")
    stale = engine.open(table.path)
    for number in (1, 2):
        table.append(rows({(False, number): "a"}).drop_columns("op"), {layout.RECEIPTS_ID: number}, f"{number}")
    table.checkpoint()
    table.folder.remove([entry_name(version) for version in (0, 1)])
    stale.refresh()
    assert stale.version == table.version
    assert not (stale.landed("lost", 0) or stale.landed("1", 0) or stale.has_read_since(0))
    assert table.has_read_since(0) and not table.landed("lost", 0), "it had read them before"


def test_a_commit_of_another_program_makes_a_race_lost(engine: Engine) -> None:
    table = ledger(engine, "ours")
    data = rows({(False, 1): "a"}).drop_columns("op")
    write_deltalake(table.path, data, mode="append")
    with pytest.raises(LostRace):
        table.append(data, {layout.RECEIPTS_ID: 1}, "second")


@pytest.mark.spec("RCP-6", "DEL-1")
def test_who_loses_a_race_has_the_newest_snapshot(engine: Engine) -> None:
    """An answer without a commit may follow: that a delete has nothing to do is wrong on an older one."""
    here, data = ledger(engine, "ours"), rows({(False, 1): "a"}).drop_columns("op")
    there = engine.open(here.path)
    there.append(data, {layout.RECEIPTS_ID: 1}, "first")
    here.refresh()  # since the decision, for a reason of its own
    there.append(data, {layout.RECEIPTS_ID: 2}, "second")
    assert not commit(here, Change({layout.RECEIPTS_ID: 0}, {}, lambda *_: pytest.fail("it has lost"), None))
    assert here.version == there.version and here.transaction(layout.RECEIPTS_ID) == 2


def test_many_files_whose_keys_are_unknown_become_one(engine: Engine) -> None:
    path = f"{engine.store.root}/queues"
    engine.create(path, layout.QUEUES, [], layout.QUEUES_PROPERTIES)
    table = engine.open(path)
    schema = layout.QUEUES.append(pa.field("op", pa.string()))
    most = 0
    for number in range(40):
        source = pa.Table.from_pylist([{"key": str(number), "name": "x", "op": "put"}], schema=schema)
        table.merge(source, "key", {}, str(number))
        most = max(most, len(table.files()))
    assert 10 < most < 20
    names = DeltaTable(path).to_pyarrow_dataset().to_table()["key"].to_pylist()
    assert sorted(names, key=int) == [str(number) for number in range(40)]


def test_a_merge_of_statistics_keeps_a_row_that_comes_meanwhile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(key: str) -> None:
        row = stats_rows.StatsRow(
            "orders", "local", key, visible=1, in_flight=0, delayed=0, rewindable=0, oldest_age=0, sent=1
        )
        stats.record(engine, engine.store.root, [row], now=60_000_000)

    for key in "ab":
        record(key)
    monkeypatch.setattr(stats, "MAX_FILES", 1)
    with meanwhile(Table, "replace", lambda *_: record("c")):
        stats.sweep(engine, engine.store.root)
    assert stats_rows.depths(engine, engine.store.root, 0).keys() == {"a", "b", "c"}
