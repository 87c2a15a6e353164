"""Guarantees of every engine for one table: fences, tokens, files and row order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakequeue.errors import DamagedTable
from lakequeue.storage import layout
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, commit
from lakequeue.storage.stores import Store

OPENED = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=timezone.utc)


def filled(schema: pa.Schema, rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema=schema)


def messages(first: int, count: int, base: int = 0) -> pa.Table:
    return filled(
        layout.MESSAGES,
        [
            {
                "base_offset": base,
                "opened_at": OPENED,
                "position": first - base + index,
                "message_id": f"m{first + index}",
                "body": f"body {first + index}",
                "message_attributes": [
                    ("k", {"type": "Binary", "string_value": None, "binary_value": b"\x00\xff"})
                ],
                "sent_at": OPENED,
                "delay_seconds": 0.0,
            }
            for index in range(count)
        ],
    )


def runs(*offsets: int, state: str = "visible", op: str | None = None) -> pa.Table:
    schema = layout.RECEIPTS if op is None else layout.RECEIPTS.append(pa.field("op", pa.string()))
    details = dict.fromkeys(layout.RUN.names) | {"visible_at": OPENED}
    row = {"settled": False, "state": state, "run": details}
    if op is not None:
        row["op"] = op
    return filled(schema, [row | {"first_offset": o, "last_offset": o} for o in offsets])


@pytest.fixture
def log(engine: Engine, place: str) -> Table:
    path = layout.messages_path(place, "k", 0)
    engine.create(path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
    return engine.open(path)


@pytest.fixture
def ledger(engine: Engine, place: str) -> Table:
    path = layout.receipts_path(place, "k", 0)
    engine.create(path, layout.RECEIPTS, layout.RECEIPT_PARTITIONS, layout.RECEIPTS_PROPERTIES)
    return engine.open(path)


def committing(engine: Engine, log: Table) -> Table:
    """Another handle, which has committed once; the given handle has seen that commit."""
    other = engine.open(log.path)
    other.add([], {"committing": other.version}, "begun")
    log.refresh()
    return other


def rows_of(table: Table, *columns: str) -> list[tuple]:
    parts = table.read(table.files(), list(columns))
    return [tuple(row.values()) for part in parts for row in part.select(list(columns)).to_pylist()]


def test_create_leaves_an_existing_table_alone(engine: Engine, log: Table) -> None:
    log.append(messages(0, 1), {"send": 1}, "a")
    engine.create(log.path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
    assert engine.exists(log.path)
    assert not engine.exists(f"{log.path}-not")
    assert engine.open(log.path).version == 1
    with pytest.raises(FileNotFoundError):
        engine.open(f"{log.path}-not")


@pytest.mark.core
def test_append_shows_files_with_typed_partitions_and_statistics(log: Table) -> None:
    assert log.files() == []
    log.append(messages(0, 3), {"send": 3, "clock": 7}, "a")
    (file,) = log.files()
    assert file.partition == {"base_offset": 0, "opened_at": OPENED}
    assert (file.rows, file.minimum["position"], file.maximum["position"]) == (3, 0, 2)
    assert (file.nulls["sent_at"], file.maximum["delay_seconds"]) == (0, 0.0)
    assert (log.transaction("send"), log.transaction("clock"), log.transaction("files")) == (3, 7, 0)
    assert len(log.files()) == 1


def test_rows_come_back_as_they_were_in_order(log: Table) -> None:
    log.append(messages(0, 40), {"send": 40}, "a")
    log.append(messages(40, 2), {"send": 42}, "b")
    by_row = sorted(log.files(), key=lambda file: file.rows)
    small, large = log.read(by_row)
    assert small["body"].to_pylist() == ["body 40", "body 41"]
    assert large["position"].to_pylist() == list(range(40))
    assert large["sent_at"].cast(layout.INSTANT).to_pylist() == [OPENED] * 40
    name, value = large["message_attributes"][0].as_py()[0]
    assert (name, value["type"], value["binary_value"]) == ("k", "Binary", b"\x00\xff")
    part = log.read_rows(by_row[1], 7, 9, ["body", "position"])
    assert part.to_pylist() == [{"body": f"body {i}", "position": i} for i in (7, 8, 9)]
    assert log.read_rows(by_row[0], 1, 1, ["body"])["body"].to_pylist() == ["body 41"]


@pytest.mark.core
def test_an_append_on_an_older_snapshot_is_refused(engine: Engine, log: Table) -> None:
    stale = engine.open(log.path)
    log.append(messages(0, 2), {"send": 2}, "winner")
    with pytest.raises(LostRace):
        stale.append(messages(0, 5), {"send": 5}, "loser")
    assert not stale.landed("loser", 0) and not stale.has_read_since(0), "nothing was read that tells"
    stale.refresh()
    assert not stale.landed("loser", 0) and stale.has_read_since(0)
    assert stale.landed("winner", 0)
    assert stale.transaction("send") == 2
    assert len(rows_of(stale, "body")) == 2


def test_a_stale_second_id_refuses_the_whole_commit(engine: Engine, log: Table) -> None:
    stale = engine.open(log.path)
    log.add([], {"bulk-x": 1}, "winner")
    with pytest.raises(LostRace):
        stale.append(messages(0, 1), {"send": 1, "bulk-x": 1}, "loser")
    stale.refresh()
    assert stale.transaction("send") == 0


def test_commits_that_do_not_touch_each_other_both_land(engine: Engine, log: Table) -> None:
    other = committing(engine, log)
    log.append(messages(0, 1), {"send": 1}, "a")
    assert commit(other, Change({"send-other": 0}, {"send-other": 1}, partial(other.append, messages(0, 1)), None))
    other.refresh()
    assert (other.transaction("send"), other.transaction("send-other")) == (1, 1)


def test_an_empty_commit_moves_the_fence(engine: Engine, log: Table) -> None:
    stale = engine.open(log.path)
    log.add([], {"send": layout.CLOSED}, "close")
    assert log.transaction("send") == layout.CLOSED
    with pytest.raises(LostRace):
        stale.append(messages(0, 1), {"send": 1}, "late")


def test_waiting_files_are_added_with_their_partition(log: Table) -> None:
    data = messages(0, 4).drop_columns(layout.MESSAGE_PARTITIONS)
    written = pa.BufferOutputStream()
    pq.write_table(data, written)
    Store().folder(log.path).write("bulk/id with space/part.parquet", written.getvalue())
    file = DataFile(
        path="bulk/id with space/part.parquet",
        size=written.getvalue().size,
        rows=4,
        partition={"base_offset": "10", "opened_at": "2026-01-01 00:00:00.123456"},
        minimum={"position": 0, "delay_seconds": 0.0},
        maximum={"position": 3, "delay_seconds": 0.0},
        nulls={"sent_at": 4, "position": 0, "delay_seconds": 0},
    )
    log.add([file], {"send": 14}, "bulk")
    (live,) = log.files()
    assert live.partition == {"base_offset": 10, "opened_at": OPENED}
    assert (live.rows, live.maximum["position"], live.nulls["sent_at"]) == (4, 3, 4)
    assert log.read([live], ["body"])[0]["body"].to_pylist() == [f"body {i}" for i in range(4)]


def test_a_replaced_segment_keeps_messages_that_landed_meanwhile(engine: Engine, log: Table) -> None:
    log.append(messages(0, 2), {"send": 2}, "a")
    log.append(messages(2, 2), {"send": 4}, "b")
    compactor, late = committing(engine, log), committing(engine, log)
    log.append(messages(4, 2, base=4), {"send": 6}, "c")
    compactor.replace({"base_offset": [0]}, [messages(0, 4)], {"files": 1}, "merged")
    assert sorted(rows_of(compactor, "body")) == sorted((f"body {i}",) for i in range(6))
    assert len(compactor.files()) == 2
    with pytest.raises(LostRace):
        late.replace({"base_offset": [0]}, [messages(0, 4)], {"files": 1}, "again")
    late.refresh()
    assert len(rows_of(late, "body")) == 6


def test_replacing_by_nothing_drops_the_segment(log: Table) -> None:
    log.append(messages(0, 2), {"send": 2}, "a")
    log.append(messages(2, 1, base=2), {"send": 3}, "b")
    log.replace({"base_offset": [0]}, [], {"files": 1}, "drop")
    assert rows_of(log, "body") == [("body 2",)]
    assert log.transaction("send") == 3


@pytest.mark.core
def test_merge_puts_updates_and_deletes_by_key(ledger: Table) -> None:
    ledger.append(runs(1, 2, 3), {"receipts": 1}, "a")
    source = pa.concat_tables([runs(2, 9, state="in_flight", op="put"), runs(3, 8, op="del")])
    ledger.merge(source, "first_offset", {"receipts": 2}, "b")
    expected = [(1, "visible"), (2, "in_flight"), (9, "in_flight")]
    assert sorted(rows_of(ledger, "first_offset", "state")) == expected
    assert ledger.transaction("receipts") == 2
    assert ledger.landed("b", 1)


@pytest.mark.core
def test_a_merge_on_an_older_snapshot_is_refused(engine: Engine, ledger: Table) -> None:
    ledger.append(runs(1), {"receipts": 1}, "a")
    stale = engine.open(ledger.path)
    ledger.merge(runs(1, state="in_flight", op="put"), "first_offset", {"receipts": 2}, "winner")
    with pytest.raises(LostRace):
        stale.merge(runs(5, op="put"), "first_offset", {"receipts": 2}, "loser")
    stale.refresh()
    assert not stale.landed("loser", 0)
    assert rows_of(stale, "first_offset", "state") == [(1, "in_flight")]


def test_a_compacted_ledger_keeps_its_ranges_in_order(ledger: Table) -> None:
    ledger.append(runs(5, 1), {"receipts": 1}, "a")
    ledger.replace({"settled": [False]}, [runs(1, 2), runs(5, 6)], {"receipts": 2}, "compact")
    files = sorted(ledger.files(), key=lambda file: file.minimum["first_offset"])
    assert [(f.minimum["first_offset"], f.maximum["last_offset"]) for f in files] == [(1, 2), (5, 6)]
    tables = ledger.read(files, ["first_offset"])
    assert [table["first_offset"].to_pylist() for table in tables] == [[1, 2], [5, 6]]


def test_a_thread_of_its_own_reads_a_table_with_a_checkpoint(engine: Engine, place: str) -> None:
    path = layout.receipts_path(place, "k", 0)
    writer = Engine(Store())
    writer.create(path, layout.RECEIPTS, layout.RECEIPT_PARTITIONS, layout.RECEIPTS_PROPERTIES)
    table = writer.open(path)
    table.append(runs(5, 1), {"receipts": 1}, "a")
    table.refresh()
    table.checkpoint()

    def seen() -> tuple[int | None, list[int], int]:
        table = engine.open(path)
        return table.transaction("receipts"), [file.rows for file in table.files()], table.version

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(seen).result() == (1, [2], table.version)


@pytest.mark.spec("DUR-70")
def test_a_path_that_leads_elsewhere_is_damage_and_is_not_read(engine: Engine, log: Table) -> None:
    log.append(messages(0, 1), {"a": 1}, "t")
    folder, entry = log.folder, "_delta_log/00000000000000000001.json"
    data = folder.read(entry).decode()
    [file] = log.files()
    folder.remove([entry, "_delta_log/.00000000000000000001.json.crc"])  # the second one is of Spark's file system
    folder.create(entry, data.replace(file.path, "../../../beside.parquet").encode())
    with pytest.raises(DamagedTable, match="is not a file below its table"):
        table = engine.open(log.path)
        table.read(table.files())
