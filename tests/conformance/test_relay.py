"""Relays: each row that a Delta table gains becomes one message, whatever else happens to the table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakequeue import LakeQueue, Queue, errors
from lakequeue.storage import source_rows
from lakequeue.storage.bulk import manifests
from lakequeue.storage.roots import local_path

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def table(lq: LakeQueue) -> str:
    """A table next to the root, without rows."""
    path = f"{lq.root}-orders"
    DeltaTable.create(path, pa.schema([("id", pa.int64()), ("text", pa.string())]))
    return path


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders")


def append(table: str, *ids: int, **more: Any) -> None:
    rows = {"id": pa.array(ids, pa.int64()), "text": [f"row {id}" for id in ids], **more}
    write_deltalake(table, pa.table(rows), mode="append", schema_mode="merge")


def ids_in(queue: Queue) -> list[int]:
    """The ids of all messages, in the order of their offsets."""
    return [json.loads(message.body)["id"] for message in queue.peek(limit=1_000)]


# --- which rows


@pytest.mark.spec("RLY-1", "RLY-2")
def test_each_row_that_is_appended_becomes_one_message(lq: LakeQueue, queue: Queue, table: str) -> None:
    append(table, 1, 2)
    assert lq.relay(table, queue) == 0  # begins now
    append(table, 3, 4)
    append(table, 5)
    assert lq.relay(table, queue) == 3
    assert lq.relay(table, queue) == 0
    append(table, 6)
    assert LakeQueue(lq.root, clock=lq.clock).relay(table, queue) == 1
    assert ids_in(queue) == [3, 4, 5, 6]


@pytest.mark.spec("RLY-2")
def test_a_relay_starts_at_a_version_and_later_calls_start_no_earlier(
    lq: LakeQueue, queue: Queue, table: str
) -> None:
    for number in range(1, 6):
        append(table, number)
    assert lq.relay(table, queue, start=3) == 3
    assert lq.relay(table, queue, start=0) == 0
    for number in range(6, 9):
        append(table, number)
    assert lq.relay(table, queue, start=8) == 1  # leaves 6 and 7 out
    assert ids_in(queue) == [3, 4, 5, 8]
    with pytest.raises(errors.InvalidParameterValue, match="newest version of .* is 8"):
        lq.relay(table, queue, start=10)
    assert lq.relay(table, queue, start=9) == 0


@pytest.mark.spec("RLY-2")
def test_a_relay_starts_at_an_instant(lq: LakeQueue, queue: Queue, table: str) -> None:
    def committed(version: int) -> datetime:
        at = next(each for each in DeltaTable(table).history() if each["version"] == version)["timestamp"]
        return datetime.fromtimestamp(at / 1000, timezone.utc)

    local = local_path(table)
    for number in range(1, 4):
        append(table, number)
        if local is None:
            time.sleep(2.1)  # object stores say whole seconds
        else:
            at = committed(0).timestamp() + number
            os.utime(Path(local, "_delta_log", f"{number:020}.json"), (at, at))
    if local is None:
        between = committed(2) + (committed(3) - committed(2)) / 2
    else:
        between = committed(0) + timedelta(seconds=2.5)
    assert lq.relay(table, queue, start=between) == 1
    other = lq.create_queue("others")
    assert lq.relay(table, other, start=between - timedelta(days=900)) == 3
    assert lq.relay(table, lq.create_queue("late"), start=between + timedelta(days=900)) == 0
    assert (ids_in(queue), ids_in(other)) == ([3], [1, 2, 3])


@pytest.mark.spec("RLY-3")
def test_a_version_that_only_rewrites_rows_is_left_out(lq: LakeQueue, queue: Queue, table: str) -> None:
    lq.relay(table, queue)
    append(table, 1)
    append(table, 2)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    append(table, 3)
    DeltaTable(table).optimize.z_order(["id"])
    assert lq.relay(table, queue) == 3
    assert lq.relay(table, queue) == 0
    assert ids_in(queue) == [1, 2, 3]


CHANGES: dict[str, Callable[[str], Any]] = {
    "UPDATE": lambda table: DeltaTable(table).update(updates={"text": "'new'"}, predicate="id = 1"),
    "DELETE": lambda table: DeltaTable(table).delete("id = 1"),
    "WRITE": lambda table: write_deltalake(table, pa.table({"id": [9], "text": ["new"]}), mode="overwrite"),
    "MERGE": lambda table: (
        DeltaTable(table)
        .merge(pa.table({"id": [1, 9], "text": ["a", "b"]}), "s.id = t.id", "s", "t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    ),
}


@pytest.mark.spec("RLY-3")
@pytest.mark.parametrize("operation", CHANGES)
def test_a_change_is_refused_or_skipped_and_earlier_rows_are_sent(
    lq: LakeQueue, queue: Queue, table: str, operation: str
) -> None:
    append(table, 1, 2)
    lq.relay(table, queue)
    append(table, 3)
    CHANGES[operation](table)
    append(table, 4)
    for _ in range(2):
        with pytest.raises(errors.InvalidOptions, match=f"version 3 of .*{operation}.*skip_changes"):
            lq.relay(table, queue)
        assert ids_in(queue) == [3]
    assert lq.relay(table, queue, skip_changes=True) == 1
    assert ids_in(queue) == [3, 4]


@pytest.mark.spec("RLY-3")
def test_a_merge_that_only_inserts_is_an_append(lq: LakeQueue, queue: Queue, table: str) -> None:
    append(table, 1)
    lq.relay(table, queue)
    merge = DeltaTable(table).merge(pa.table({"id": [1, 2], "text": ["a", "b"]}), "s.id = t.id", "s", "t")
    merge.when_not_matched_insert_all().execute()
    assert lq.relay(table, queue) == 1
    assert ids_in(queue) == [2]


@pytest.mark.spec("RLY-3")
def test_a_change_feed_gives_inserted_updated_and_deleted_rows(lq: LakeQueue, queue: Queue, table: str) -> None:
    DeltaTable(table).alter.set_table_properties(FEED)
    lq.relay(table, queue, changes="feed")
    append(table, 1, 2, 3)
    CHANGES["UPDATE"](table)
    DeltaTable(table).delete("id = 2")
    DeltaTable(table).delete()
    assert lq.relay(table, queue, changes="feed") == 7
    found = [
        (json.loads(each.body), each.message_attributes["change_type"].value) for each in queue.peek(limit=100)
    ]
    assert [(row["id"], row.get("text"), row["_commit_version"], kind) for row, kind in found[:5]] == [
        (1, "row 1", 2, "insert"),
        (2, "row 2", 2, "insert"),
        (3, "row 3", 2, "insert"),
        (1, "new", 3, "update_postimage"),
        (2, "row 2", 4, "delete"),
    ]
    assert sorted((row["id"], row["_commit_version"], kind) for row, kind in found[5:]) == [
        (1, 5, "delete"),
        (3, 5, "delete"),
    ]
    assert all(row["_change_type"] == kind and row["_commit_timestamp"].endswith("Z") for row, kind in found)


@pytest.mark.spec("RLY-3")
def test_versions_from_before_the_feed_are_refused_or_left_out(lq: LakeQueue, queue: Queue, table: str) -> None:
    append(table, 1)
    DeltaTable(table).alter.set_table_properties(FEED)
    append(table, 2)
    with pytest.raises(errors.InvalidOptions, match="version 1 of .* was written without a change feed"):
        lq.relay(table, queue, start=0, changes="feed")
    assert lq.relay(table, queue, changes="feed", skip_changes=True) == 1
    assert ids_in(queue) == [2]


# --- how rows become messages


@pytest.mark.spec("RLY-4")
def test_columns_become_parts_of_messages(lq: LakeQueue, table: str) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, shards=2, deduplication_scope="message_group")
    append(table, 1, 2, 3, customer=[7, 7, 8])
    options = {"start": 0, "group_column": "customer", "dedup_column": "id"}
    assert lq.relay(table, queue, body="text", **options) == 3
    assert {(each.body, each.group_id, each.dedup_id) for each in queue.peek(limit=9)} == {
        ("row 1", "7", "1"),
        ("row 2", "7", "2"),
        ("row 3", "8", "3"),
    }
    with pytest.raises(errors.InvalidParameterValue, match=r"version 1 of .*none.* for parameter group_column"):
        lq.relay(table, lq.create_queue("more.fifo", fifo=True), **options | {"group_column": "none"})
    ranked = lq.create_queue("ranked", priorities=3, shards=3)
    append(table, 4, urgent=[2], wait=[60])
    assert lq.relay(table, ranked, start=2, priority_column="urgent", delay_column="wait") == 1
    assert (ranked.counts().delayed, ranked.peek()[0].priority) == (1, 2)


@pytest.mark.spec("RLY-4")
def test_columns_with_the_names_of_messages_are_used(lq: LakeQueue, queue: Queue, table: str) -> None:
    attributes = pa.array([[("lang", "en")]], pa.map_(pa.string(), pa.string()))
    append(table, 1, group_id=["g"], delay_seconds=[0.0], message_attributes=attributes)
    assert lq.relay(table, queue, body="text", start=0) == 1
    [message] = queue.receive()
    assert (message.body, message.group_id) == ("row 1", "g")
    assert message.message_attributes["lang"].value == "en"


@pytest.mark.spec("RLY-4")
def test_every_type_of_delta_is_in_the_json_exactly(lq: LakeQueue, queue: Queue, table: str) -> None:
    instant = datetime(2026, 1, 31, 8, 0, 0, 123456, timezone.utc)
    inner = pa.struct([("at", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("none", pa.int32())])
    rows = pa.table(
        {
            "long": pa.array([2**63 - 1]),
            "price": pa.array([Decimal("12345678901234567890.120")], pa.decimal128(38, 3)),
            "day": [date(2026, 1, 31)],
            "at": pa.array([instant], pa.timestamp("us", "UTC")),
            "local": pa.array([instant.replace(tzinfo=None)], pa.timestamp("us")),
            "raw": [b"\x00\xff"],
            "yes": [True],
            "nan": [float("nan")],
            "inner": pa.array([{"at": instant, "raw": b"a", "none": None}], inner),
            "list": pa.array([[Decimal("0.10"), None]], pa.list_(pa.decimal128(5, 2))),
            "deep": pa.array([[{"at": instant, "raw": b"b", "none": 1}]], pa.list_(inner)),
            "map": pa.array([[(1, instant)]], pa.map_(pa.int32(), pa.timestamp("us", "UTC"))),
            'a "name"': ["it's"],
            "nothing": pa.array([None], pa.int32()),
        }
    )
    path = f"{lq.root}-types"
    write_deltalake(path, rows)
    assert lq.relay(path, queue, start=0) == 1
    [message] = queue.receive()
    shown = "2026-01-31T08:00:00.123456Z"
    assert json.loads(message.body, parse_float=str) == {
        "long": 2**63 - 1,
        "price": "12345678901234567890.120",
        "day": "2026-01-31",
        "at": shown,
        "local": shown[:-1],
        "raw": "AP8=",
        "yes": True,
        "nan": "NaN",
        "inner": {"at": shown, "raw": "YQ=="},
        "list": ["0.10", None],
        "deep": [{"at": shown, "raw": "Yg==", "none": 1}],
        "map": {"1": shown},
        'a "name"': "it's",
    }


@pytest.mark.spec("RLY-4")
def test_partition_columns_have_their_types(lq: LakeQueue, queue: Queue) -> None:
    path = f"{lq.root}-parts"
    instant = datetime(2026, 1, 31, 8, 0, 0, 5, timezone.utc)
    columns = {
        "number": pa.array([7, None], pa.int32()),
        "day": pa.array([date(2026, 1, 31), None]),
        "at": pa.array([instant, None], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "yes": pa.array([True, None]),
        "word": pa.array(["a b/c%ä=", None]),
    }
    write_deltalake(path, pa.table({"id": [1, 2], **columns}), partition_by=list(columns))
    assert lq.relay(path, queue, start=0) == 2
    found = [json.loads(each.body, parse_float=str) for each in queue.peek(limit=2)]
    assert sorted(found, key=lambda row: row["id"]) == [
        {
            "id": 1,
            "number": 7,
            "day": "2026-01-31",
            "at": "2026-01-31T08:00:00.000005Z",
            "price": "1.50",
            "yes": True,
            "word": "a b/c%ä=",
        },
        {"id": 2},
    ]


@pytest.mark.spec("RLY-4")
def test_the_schema_may_change_between_versions_and_inside_of_columns(
    lq: LakeQueue, queue: Queue, table: str
) -> None:
    lq.relay(table, queue)
    append(table, 1)
    append(table, 2, more=pa.array([{"a": 1}]))
    append(table, 3, more=pa.array([{"a": 1, "b": 2}]))
    append(table, 4)
    assert lq.relay(table, queue) == 4
    assert [json.loads(each.body).get("more") for each in queue.peek(limit=9)] == [
        None,
        {"a": 1},
        {"a": 1, "b": 2},
        None,
    ]


def rewrite(table: str, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the actions of an entry, as another writer would have made them."""
    path = Path(table) / f"_delta_log/{version:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        change(action)
    path.write_text("\n".join(map(json.dumps, actions)))


def with_physical_names(metadata: dict[str, Any], mode: str) -> None:
    """Column mapping: the files have other names than the schema, also inside of a column."""
    schema = json.loads(metadata["schemaString"])
    names = iter(range(1, 100))

    def mapped(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            number = next(names)
            field["metadata"] = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{field['name']}",
            }
            if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
                mapped(field["type"]["fields"])

    mapped(schema["fields"])
    for field in schema["fields"]:
        field["name"] = {"text": "renamed"}.get(field["name"], field["name"])
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"]["delta.columnMapping.mode"] = mode


@pytest.mark.spec("RLY-4")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_mapped_columns_are_found_by_their_names_in_files(lq: LakeQueue, queue: Queue) -> None:
    path = f"{lq.root}-mapped"
    inner = pa.array([{"col-x": 5}, None])
    rows = {"col-id": [1, 2], "col-text": ["a", "b"], "col-part": ["p", "q"], "col-inner": inner}
    logical = {"id": [1, 2], "text": ["a", "b"], "part": ["p", "q"], "inner": pa.array([{"x": 5}, None])}
    write_deltalake(path, pa.table(logical), partition_by=["part"])
    write_deltalake(f"{path}-physical", pa.table(rows), partition_by=["col-part"])
    files = {
        each["add"]["partitionValues"]["col-part"]: each["add"]
        for each in map(
            json.loads, (Path(f"{path}-physical") / f"_delta_log/{0:020}.json").read_text().splitlines()
        )
        if "add" in each
    }

    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            with_physical_names(action["metaData"], "name")
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "add" in action:
            found = files[action["add"]["partitionValues"]["part"]]
            target = Path(path) / found["path"]
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((Path(f"{path}-physical") / found["path"]).read_bytes())
            action["add"] = found

    rewrite(path, 0, change)
    assert lq.relay(path, queue, start=0) == 2
    found = sorted(queue.peek(limit=2), key=lambda message: message.body)
    assert [json.loads(each.body) for each in found] == [
        {"id": 1, "renamed": "a", "part": "p", "inner": {"x": 5}},
        {"id": 2, "renamed": "b", "part": "q"},
    ]


@pytest.mark.spec("RLY-4")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_what_cannot_be_read_is_refused_with_its_version(lq: LakeQueue, queue: Queue, table: str) -> None:
    lq.relay(table, queue)
    append(table, 1)
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36}
    vector["cardinality"] = 1
    entry = (Path(table) / f"_delta_log/{1:020}.json").read_text()

    def refused(change: Callable[[dict[str, Any]], None], pattern: str) -> None:
        rewrite(table, 1, change)
        with pytest.raises(errors.QueueClientError, match=pattern):
            lq.relay(table, queue)
        (Path(table) / f"_delta_log/{1:020}.json").write_text(entry)

    refused(
        lambda action: action.get("add", {}).update(deletionVector=vector),
        r"version 1 of .*deletion vector|cannot",
    )
    refused(lambda action: action.get("add", {}).update(path="file:///elsewhere/a.parquet"), "shallow clone")
    assert lq.relay(table, queue) == 1


@pytest.mark.spec("RLY-4")
def test_rows_that_break_a_rule_name_the_version_and_may_be_left_out(
    lq: LakeQueue, queue: Queue, table: str
) -> None:
    append(table, 1)
    write_deltalake(table, pa.table({"id": [2, 3], "text": ["fine", ""]}), mode="append")
    with pytest.raises(errors.InvalidParameterValue, match=r"version 2 of .*1 row has no body"):
        lq.relay(table, queue, body="text", start=0)
    sent = lq.relay(table, queue, body="text", on_bad_row="drop")
    assert (sent, sent.refused) == (1, 1)
    assert [each.body for each in queue.peek(limit=9)] == ["row 1", "fine"]


@pytest.mark.spec("RLY-4")
def test_a_body_that_is_no_text_or_no_column_is_refused(lq: LakeQueue, queue: Queue, table: str) -> None:
    append(table, 1)
    for body, pattern in (("id", "column body is bigint"), ("none", "no such column; there are id, text")):
        with pytest.raises(errors.InvalidParameterValue, match=f"version 1 of .*{pattern}"):
            lq.relay(table, queue, body=body, start=0)


# --- what the table lost


@pytest.mark.spec("RLY-5")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_rows_that_vacuum_removed_are_named_and_left_out_on_demand(
    lq: LakeQueue, queue: Queue, table: str
) -> None:
    lq.relay(table, queue)
    append(table, 1)
    append(table, 2)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    append(table, 3)
    with pytest.raises(errors.QueueClientError, match=r"version 1 of .* VACUUM removed .*parquet.*start=2"):
        lq.relay(table, queue)
    with pytest.raises(errors.QueueClientError, match=r"version 2 of .* VACUUM .*start=3"):
        lq.relay(table, queue, start=2)
    assert lq.relay(table, queue, start=3) == 1
    assert ids_in(queue) == [3]


@pytest.mark.spec("RLY-5")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_versions_that_a_cleanup_of_the_log_removed_are_named(lq: LakeQueue, queue: Queue, table: str) -> None:
    lq.relay(table, queue)
    for number in range(1, 5):
        append(table, number)
    DeltaTable(table).create_checkpoint()
    for version in range(3):
        (Path(table) / f"_delta_log/{version:020}.json").unlink()
    for options in ({}, {"start": 0}):
        with pytest.raises(errors.QueueClientError, match=r"version 1 of .*cleanup.*start=3"):
            lq.relay(table, queue, **options)
    # of version 3 the schema is only known from the checkpoint of version 4
    (Path(table) / f"_delta_log/{3:020}.json").unlink()
    assert lq.relay(table, queue, start=4) == 1
    assert ids_in(queue) == [4]


@pytest.mark.spec("RLY-2", "RLY-5")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_another_table_at_the_path_is_noticed(lq: LakeQueue, queue: Queue, table: str, tmp_path: Path) -> None:
    append(table, 1)
    lq.relay(table, queue, start=0)
    Path(table).rename(tmp_path / "moved")
    DeltaTable.create(table, pa.schema([("id", pa.int64()), ("text", pa.string())]))
    append(table, 2)
    with pytest.raises(errors.InvalidOptions, match="another table than the table that was relayed"):
        lq.relay(table, queue)
    assert lq.relay(table, queue, start=0) == 1
    assert lq.relay(table, queue) == 0
    append(str(tmp_path / "moved"), 3)
    assert lq.relay(str(tmp_path / "moved"), queue) == 1  # a table that was moved is the same
    assert ids_in(queue) == [1, 2, 3]


@pytest.mark.spec("RLY-5")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_a_table_that_was_put_back_is_refused(lq: LakeQueue, queue: Queue, table: str) -> None:
    append(table, 1)
    append(table, 2)
    lq.relay(table, queue, start=0)
    (Path(table) / f"_delta_log/{2:020}.json").unlink()
    with pytest.raises(errors.QueueClientError, match="has no version 2, which was relayed"):
        lq.relay(table, queue)


@pytest.mark.spec("RLY-5")
def test_a_missing_table_or_one_inside_the_root_is_refused(lq: LakeQueue, queue: Queue) -> None:
    with pytest.raises(errors.QueueClientError, match="is no Delta table"):
        lq.relay(f"{lq.root}-none", queue)
    with pytest.raises(errors.InvalidOptions, match="in the root"):
        lq.relay(f"{lq.root}/queues", queue)


# --- pieces, and several processes


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_rows, "PIECE_ROWS", 3)
    monkeypatch.setattr(source_rows, "_BATCH", 2)


@pytest.mark.spec("RLY-1")
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("shards", [1, 3])
def test_a_large_version_goes_in_pieces(lq: LakeQueue, table: str, shards: int) -> None:
    queue = lq.create_queue("orders", shards=shards)
    append(table, *range(10))
    append(table, *range(10, 16))
    with patch.object(
        source_rows.VersionRows, "piece", side_effect=source_rows.VersionRows.piece, autospec=True
    ) as piece:
        assert lq.relay(table, queue, start=0) == 16
    assert [call.args[1] for call in piece.call_args_list] == [0, 1, 2, 3, 0, 1]
    assert sorted(ids_in(queue)) == list(range(16))


@pytest.mark.spec("RLY-1")
@pytest.mark.usefixtures("small_pieces")
def test_a_feed_counts_rows_that_are_no_messages_in_its_pieces(lq: LakeQueue, queue: Queue, table: str) -> None:
    DeltaTable(table).alter.set_table_properties(FEED)
    append(table, *range(5))
    DeltaTable(table).update(updates={"text": "'new'"})
    assert lq.relay(table, queue, start=2, changes="feed") == 10
    assert lq.relay(table, queue, changes="feed") == 0
    found = [json.loads(each.body) for each in queue.peek(limit=100)]
    assert [row["id"] for row in found if row["_change_type"] == "update_postimage"] == list(range(5))


KINDS: dict[str, dict[str, Any]] = {
    "orders": {},
    "ranked": {"priorities": 2},
    "orders.fifo": {"fifo": True, "deduplication_scope": "message_group", "content_based_deduplication": True},
}


def many_shards(lq: LakeQueue, name: str) -> Queue:
    return lq.create_queue(name, shards=4, **KINDS[name])


def columns_of(queue: Queue) -> dict[str, Any]:
    return {"group_column": "id"} if queue.fifo else {"priority_column": "rank"} if queue.name == "ranked" else {}


@pytest.mark.spec("RLY-1")
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("moment", [1, 2, 4])
def test_a_process_that_was_paused_before_its_manifest_adds_nothing_that_others_sent(
    lq: LakeQueue, table: str, name: str, moment: int
) -> None:
    queue = many_shards(lq, name)
    append(table, *range(10), rank=[id % 2 for id in range(10)])
    append(table, *range(10, 16), rank=[0] * 6)
    wanted = {"start": 0, **columns_of(queue)}
    write, calls = manifests.write_manifest, 0

    def paused(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == moment:
            other = LakeQueue(lq.root, clock=lq.clock)
            other.relay(table, other.queue(name), **wanted)
        return write(*arguments)

    with patch.object(manifests, "write_manifest", paused):
        lq.relay(table, queue, **wanted)
    assert lq.relay(table, queue, **wanted) == 0
    assert sorted(ids_in(queue)) == list(range(16))


@pytest.mark.spec("RLY-1", "QUE-21")
def test_a_full_queue_gets_the_rest_once_it_has_room(lq: LakeQueue, table: str) -> None:
    queue = lq.create_queue("orders", max_stored_messages=3)
    append(table, 1, 2)
    append(table, 3, 4)
    with pytest.raises(errors.OverLimit, match="version 2 of"):
        lq.relay(table, queue, start=0)
    for message in queue.receive(10):
        message.delete()
    assert lq.relay(table, queue) == 2
    assert ids_in(queue) == [3, 4]


@pytest.mark.spec("RLY-1")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_a_copy_of_the_queue_goes_on_by_itself(lq: LakeQueue, queue: Queue, table: str, tmp_path: Path) -> None:
    append(table, 1)
    lq.relay(table, queue, start=0)
    append(table, 2)
    copy = LakeQueue(str(tmp_path / "copy"))
    lq.copy(copy)
    assert [each.relay(table, each.queue("orders")) for each in (lq, copy, copy)] == [1, 1, 0]


@pytest.mark.spec("RLY-1")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_the_position_survives_compaction_and_a_new_queue_starts_from_the_beginning(
    lq: LakeQueue, queue: Queue, table: str
) -> None:
    append(table, 1)
    lq.relay(table, queue, start=0)
    for _ in range(3):
        lq.compact()
    assert lq.relay(table, queue, start=0) == 0
    lq.delete_queue("orders")
    assert lq.relay(table, lq.create_queue("orders"), start=0) == 1


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"start": -1}, "start"),
        ({"start": "yesterday"}, "start"),
        ({"start": True}, "start"),
        ({"start": datetime(2026, 1, 1)}, "start"),
        ({"changes": "all"}, "changes"),
        ({"skip_changes": 1}, "skip_changes"),
        ({"group_column": 5}, "group_column"),
        ({"table_options": {"a": 1}}, "table_options"),
    ],
)
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_wrong_arguments_are_named(
    lq: LakeQueue, queue: Queue, table: str, wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(errors.InvalidParameterValue, match=named):
        lq.relay(table, queue, **wrong)
