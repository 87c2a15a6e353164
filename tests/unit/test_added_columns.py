"""Files that a version wrote before a column was added."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakequeue.storage import layout
from lakequeue.storage.parquet_files import reader, write_table

ROWS = 5
FILE = layout.FILES["messages"]


def written(schema: pa.Schema) -> pa.Buffer:
    target = pa.BufferOutputStream()
    body = pa.array([f"body {number}" for number in range(ROWS)])
    rows = pa.table(
        [body if field.name == "body" else pa.nulls(ROWS, field.type) for field in schema], schema=schema
    )
    write_table(rows, target, row_group_size=2)
    return target.getvalue()


@pytest.mark.spec("DUR-43")
@pytest.mark.parametrize("columns", [None, ["later"], ["body", "later"], ["body"], ["later", "only_for", "body"]])
def test_a_column_that_was_added_later_is_null_in_older_files(
    columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "ADDED", layout.ADDED | {"later"})
    later = FILE.append(pa.field("later", pa.int32()))
    for lacking in ({"later"}, {"later", "only_for"}, {"later", *layout.ADDED}):
        file = reader(
            pa.BufferReader(written(pa.schema([each for each in later if each.name not in lacking]))), later
        )
        batches = pa.Table.from_batches(list(file.iter_batches(2, columns=columns, use_threads=False)))
        whole, part = (
            file.read(columns, use_threads=False),
            file.read_row_groups([1, 2], columns, use_threads=False),
        )
        for rows, count in (whole, ROWS), (batches, ROWS), (part, ROWS - 2):
            assert {field.name: field.type for field in rows.schema} == {
                field.name: field.type for field in later if columns is None or field.name in columns
            }
            assert all(rows[name].null_count == count for name in lacking & {*rows.column_names})
            if columns is None or "body" in columns:
                assert rows["body"].to_pylist() == [f"body {number}" for number in range(ROWS - count, ROWS)]


@pytest.mark.spec("DUR-43")
@pytest.mark.spec("DUR-8")
@pytest.mark.parametrize("name", sorted({*FILE.names} - layout.ADDED))
def test_a_file_without_any_other_column_is_refused(name: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=f"its column {name} is missing"):
        reader(pa.BufferReader(written(pa.schema([field for field in FILE if field.name != name]))), FILE)
