"""Mending the catalog: its rows from wherever one of them can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage.catalog import QueueRow, rows_of
from lakequeue.storage.delta_log import LOG, LiveFile
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.catalog_rows import FoundCatalog
from lakequeue.storage.inspection.found_log import FoundLog, State
from lakequeue.storage.repair.steps import ASIDE
from lakequeue.storage.stores import Store


def found_rows(store: Store, catalog: FoundCatalog, root: str) -> list[QueueRow]:
    """The newest row of each queue that any file has, if the queue has a directory or is in the newest rows."""
    folder, newest = store.folder(catalog.path), catalog.log.newest()
    there = set(store.folder(f"{root}/q").folders())
    rows = {row.key: row for row in catalog.rows}
    for file in [*(newest.files() if newest else []), *_unnamed(catalog.log, folder)]:
        for row in _rows_in(folder, file, root):
            if (row.key in there or row.key in rows) and (row.key not in rows or _age(rows[row.key]) < _age(row)):
                rows[row.key] = row
    return sorted(rows.values(), key=lambda row: row.key)


def _age(row: QueueRow) -> tuple[bool, int, int]:
    return row.deleted_at is not None, row.attributes_version, row.modified_at


def _rows_in(folder: Folder, file: LiveFile, root: str) -> list[QueueRow]:
    state = State(folder, 0, {file.path: file}, {}, {}, {})
    try:
        return rows_of(cast(Table, state), root)
    except (DamagedTable, pa.ArrowException, KeyError, ValueError, TypeError):
        return []


def _unnamed(log: FoundLog, folder: Folder) -> Iterator[LiveFile]:
    """Data files that no readable part of the log names: those of an entry that was torn, for example."""
    named = {
        path for entry in log.entries.values() for path in (*entry.removed, *(file.path for file in entry.added))
    }
    named |= {path for checkpoint in log.checkpoints.values() for path in checkpoint.files}
    for each in sorted(folder.files(), key=lambda each: each.modified):
        hidden = each.name.startswith((LOG, ASIDE)) or not each.name.endswith(".parquet")
        if not hidden and each.name not in named:
            try:
                with folder.parquet(each.name, each.size) as parquet:
                    rows = parquet.metadata.num_rows
            except DamagedTable:
                continue
            yield LiveFile(each.name, each.size, rows, {}, {}, {}, {})
