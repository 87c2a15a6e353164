"""Relays of change feeds whose deleted rows are only marked, in deletion vectors (RLY-4)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from lakequeue import LakeQueue, Queue
from lakequeue.storage import source_rows
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.source_rows import VersionRows
from lakequeue.storage.source_table import SourceTable
from lakequeue.storage.stores import Store

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Digits of Z85, in which an entry has a short deletion vector."""


def vector(*rows: int) -> dict[str, Any]:
    """A deletion vector as Delta's protocol has it: a roaring bitmap in the entry. An even number of rows."""
    places = b"".join(struct.pack("<H", row) for row in rows)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + places
    data = struct.pack("<iqi", 1681511377, 1, 0) + bitmap
    text = ""
    for [number] in struct.iter_unpack(">I", data):
        text += "".join(DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table with a change feed: version 0 has the ids 0 to 9 in one file, version 1 allows deletion vectors."""
    path = str(tmp_path / "source")
    rows = pa.table({"id": pa.array(range(10), pa.int64())})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
    features = [TableFeatures.DeletionVectors]
    DeltaTable(path).alter.add_feature(features, allow_protocol_versions_increase=True)
    return path


def change(table: str, version: int, before: dict[str, Any], after: dict[str, Any] | None) -> None:
    """Commits another deletion vector for the file of version 0; None for ``after`` removes the file."""
    log = Path(table) / "_delta_log"
    entries = [json.loads(line) for line in (log / Path(entry_name(0)).name).read_text().splitlines()]
    [file] = [each["add"] for each in entries if "add" in each]
    remove = {"path": file["path"], "deletionTimestamp": 1, "dataChange": True, "size": file["size"]}
    remove |= {"extendedFileMetadata": True, "partitionValues": {}}
    actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": version, "operation": "DELETE"}}]
    actions.append({"remove": remove | ({"deletionVector": before} if before else {})})
    if after is not None:
        actions.append({"add": file | ({"deletionVector": after} if after else {})})
    text = "".join(f"{json.dumps(action)}\n" for action in actions)
    (log / Path(entry_name(version)).name).write_text(text)


def changes_in(queue: Queue) -> list[tuple[str, int, int]]:
    rows = [json.loads(message.body) for message in queue.peek(limit=1_000)]
    return [(row["_change_type"], row["_commit_version"], row["id"]) for row in rows]


@pytest.mark.spec("RLY-3", "RLY-4")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_rows_that_a_deletion_vector_marks_are_deleted_rows_of_the_feed(lq: LakeQueue, table: str) -> None:
    queue = lq.create_queue("changes")
    change(table, 2, {}, vector(2, 5))
    change(table, 3, vector(2, 5), vector(1, 2, 5, 7))
    change(table, 4, vector(1, 2, 5, 7), vector(1, 7))  # as RESTORE does
    change(table, 5, vector(1, 7), None)
    assert lq.relay(table, queue, start=1, changes="feed") == 2 + 2 + 2 + 8
    expected = [*(("delete", 2, id) for id in (2, 5)), *(("delete", 3, id) for id in (1, 7))]
    expected += [("insert", 4, id) for id in (2, 5)]
    expected += [("delete", 5, id) for id in (0, 2, 3, 4, 5, 6, 8, 9)]
    assert changes_in(queue) == expected


@pytest.mark.spec("RLY-4")
def test_a_version_with_deletion_vectors_can_be_relayed_from_any_piece(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_rows, "PIECE_ROWS", 3)
    monkeypatch.setattr(source_rows, "_BATCH", 4)
    change(table, 2, {}, vector(2, 5))
    change(table, 3, vector(2, 5), None)
    source = SourceTable(Store(table))
    found = source.change(3, source.state(2), "feed", False)
    pieces = [
        [id for batch in VersionRows(source, found, True).piece(number) for id in batch["id"].to_pylist()]
        for number in range(VersionRows(source, found, True).pieces)
    ]
    assert pieces == [[0, 1, 3], [4, 6, 7], [8, 9]]
