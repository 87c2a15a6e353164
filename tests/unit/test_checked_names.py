"""What a root says is data: no name in it leads to a path elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakequeue.errors import DamagedTable
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.names import name_hash
from lakequeue.storage.bulk import manifests
from lakequeue.storage.catalog import QueueRow, rows_by_file, table_of
from lakequeue.storage.checked_names import Misplaced, file_below, shard_folders
from lakequeue.storage.delta_log import checkpoint_name, entry_name, read_checkpoint, read_entry
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.entries import encoded, entry
from lakequeue.storage.engines.log_trimming import write_checkpoint
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.stores import Store

ELSEWHERE = [
    *(
        "../../x",
        "a/../../x",
        "..",
        ".",
        "a/..",
        "/etc/x",
        "//x",
        "a//b",
        "a/",
        "file:///x",
        "file:x",
        "s3://other/x",
    ),
    *("a\nb", "[link=file:///x]x[/link]", "\x1b]8;;x\x07", "x" * 2**20, "x" * 300, "", "a\0b", "a\\b", "．．／x"),
    *("%2e%2e/x", "a%2Fb", "_delta_log/x", "_commit.lock", ".hidden"),
]


@pytest.mark.spec("DUR-70")
@pytest.mark.parametrize("name", [*ELSEWHERE, None, 1, ["a"]], ids=lambda name: repr(name)[:20])
def test_a_name_that_leads_elsewhere_is_no_file_of_a_table(name: object) -> None:
    with pytest.raises(Misplaced) as told:
        file_below(name)
    assert len(str(told.value)) < 200 and str(told.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "b7b0f0ab-0b1c-4b8e-9f7c-2f35a1a3d2a5.parquet",
        "base_offset=12/opened_at=2026-01-01 00%3A00%3A00.000000/part-00000-c000.snappy.parquet",
        "bulk/sha256-0a/attempt-1/all-00001-0a.parquet",
    ],
)
def test_names_that_writers_give_are_files(name: str) -> None:
    assert file_below(name) == name


@pytest.mark.spec("DUR-70")
def test_what_is_encoded_is_decoded_once_before_it_is_judged() -> None:
    assert (
        file_below("a%20b/opened_at=2026-01-01%252000%253A00", encoded=True)
        == "a b/opened_at=2026-01-01%2000%3A00"
    )
    for name in ("%2e%2e/x", "%2fetc/x", "a/%2E%2E/%2E%2E/x", "%252e%252e/x", "a%00b"):
        with pytest.raises(Misplaced):
            file_below(name, encoded=True)


def test_only_numbers_name_shards() -> None:
    assert shard_folders(["1", "0", "manifests", "²", "٣", "01", "-1", "999999"]) == [0, 1]


@pytest.mark.spec("DUR-70")
@pytest.mark.parametrize("action", ["add", "remove"])
@pytest.mark.parametrize("path", ["../../x", "/etc/x", "%2e%2e/x", "file:///x"])
def test_an_entry_that_names_a_file_elsewhere_is_damage(tmp_path: Path, action: str, path: str) -> None:
    folder = LocalFolder(str(tmp_path))
    sound = encoded(entry("WRITE", [DataFile("a.parquet", 1, 1, {})], [], {}, "token"))
    folder.create(
        entry_name(0), sound.replace(b"a.parquet", path.encode()).replace(b'"add"', f'"{action}"'.encode())
    )
    with pytest.raises(DamagedTable, match="is not a file below its table") as told:
        read_entry(folder, 0)
    assert told.value.file == entry_name(0)


@pytest.mark.spec("DUR-70")
def test_a_checkpoint_that_names_a_file_elsewhere_is_damage(tmp_path: Path) -> None:
    rows = pa.table({"number": [1]})
    engine = Engine(Store())
    engine.create(str(tmp_path), rows.schema, [], {}, rows)
    table = engine.open(str(tmp_path))
    write_checkpoint(table.folder, table.state)
    path = tmp_path / checkpoint_name(0)
    found = pq.read_table(path).to_pylist()
    for row in found:
        if row["add"]:
            row["add"]["path"] = "/etc/passwd"
    pq.write_table(pa.Table.from_pylist(found, pq.read_schema(path)), path)
    with pytest.raises(DamagedTable, match="names '/etc/passwd'"):
        read_checkpoint(table.folder, 0)


@pytest.mark.spec("DUR-70")
@pytest.mark.parametrize(
    "path", ["a.parquet", "bulk/other/1/a.parquet", "bulk/mine/../../a.parquet", "/etc/x", ""]
)
def test_a_manifest_that_names_files_of_others_is_damage(tmp_path: Path, path: str) -> None:
    """Discarding a send removes the directories of its files."""
    folder = LocalFolder(str(tmp_path))
    file = manifests.WaitingFile(0, DataFile("bulk/mine/1/a.parquet", 1, 1, {}))
    manifests.write_manifest(folder, manifests.Manifest("mine", None, 1, [file]))
    assert manifests.load_manifest(folder, "mine") is not None
    written = tmp_path / "manifests" / "mine.json"
    written.write_text(written.read_text().replace("bulk/mine/1/a.parquet", path))
    with pytest.raises(DamagedTable, match="which is no(t a)? file"):
        manifests.load_manifest(folder, "mine")


def stored_manifest(folder: LocalFolder, shard: object = 0, **given: object) -> manifests.Manifest | None:
    file = {"path": "bulk/mine/1/a.parquet", "size": 1, "rows": 1, "partition": {}}
    file |= {name: given.pop(name) for name in file.keys() & given.keys()}
    plain = {"send_id": "mine", "app_id": None, "version": 1, "files": [{"shard": shard, "file": file}]}
    folder.create("manifests/mine.json", json.dumps(plain | given).encode())
    return manifests.load_manifest(folder, "mine")


@pytest.mark.parametrize("shard", [-1, 5_000, "0/../..", None])
def test_a_manifest_for_no_shard_is_damage(tmp_path: Path, shard: object) -> None:
    with pytest.raises(DamagedTable, match="names shard"):
        stored_manifest(LocalFolder(str(tmp_path)), shard)


@pytest.mark.parametrize("number", [-1, 2**63, "1", [1], None, float("inf")], ids=str)
@pytest.mark.parametrize("member", ["size", "rows", "version"])
def test_a_manifest_with_an_invalid_number_is_damage(tmp_path: Path, member: str, number: object) -> None:
    with pytest.raises(DamagedTable, match="an invalid number"):
        stored_manifest(LocalFolder(str(tmp_path)), **{member: number})


def test_the_id_in_a_manifest_is_a_text(tmp_path: Path) -> None:
    found = stored_manifest(LocalFolder(str(tmp_path)), app_id=[])
    assert found is not None and found.app_id == "[]"


KEY = f"{name_hash('local', 'orders')}-00c0ffee"
ROW = QueueRow(
    name="orders",
    region="local",
    key=KEY,
    created_at=1,
    modified_at=1,
    attributes=QueueAttributes.create().to_stored(),
    shards=1,
    handle_key=bytes(32),
)


def read_back(**changes: object) -> QueueRow:
    [[row]] = rows_by_file([table_of([attrs.evolve(ROW, **changes)])], "/root")
    return row


@pytest.mark.spec("DUR-71")
@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"key": key}
            for key in ("../../x", "/etc", "", ".", f"{ROW.key}/..", f"{ROW.key}\n", f"0{ROW.key[1:]}x")
        ),
        *({"shards": shards} for shards in (0, -1, 2_000_000_000)),
        *({"name": "other"}, {"name": "../x"}, {"region": "elsewhere"}),
        *({"handle_key": b""}, {"handle_key": bytes(31)}),
        *({"attributes": {"Nonsense": "1"}}, {"attributes": ROW.attributes | {"VisibilityTimeout": "1\n2"}}),
        {"attributes": ROW.attributes | {"Profile": "[link=x]"}},
    ],
    ids=str,
)
def test_a_row_of_the_catalog_that_nobody_wrote_is_damage(changes: dict[str, object]) -> None:
    with pytest.raises(DamagedTable) as told:
        read_back(**changes)
    assert str(told.value).isprintable()


def test_a_row_of_the_catalog_is_read_as_it_was_written() -> None:
    assert read_back() == ROW
