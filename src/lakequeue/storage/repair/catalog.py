"""Repairs the catalog: collects its rows from all files that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from lakequeue.errors import DamagedTable, QueueClientError
from lakequeue.storage.catalog import QueueRow, rows_of
from lakequeue.storage.delta_log import LiveFile, TableState, data_files
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.catalog_rows import FoundCatalog
from lakequeue.storage.stores import Store
from lakequeue.storage.table_version import TableVersion


def found_rows(store: Store, catalog: FoundCatalog, root: str) -> list[QueueRow]:
    """Returns the newest row of each queue that is in any file of the catalog. Deleted queues stay deleted."""
    folder, rows = store.folder(catalog.path), {row.key: row for row in catalog.rows}
    taken = {(row.region, row.name) for row in catalog.rows if row.deleted_at is None}
    for file in _files(folder):
        for row in _rows_in(folder, file, root):
            known = rows.get(row.key)
            newer = known is not None and catalog.problem is not None and _age(known) <= _age(row)
            hidden = row.key in catalog.unlisted and (row.region, row.name) not in taken
            if newer or (hidden and (known is None or _age(known) <= _age(row))):
                rows[row.key] = row
    return sorted(rows.values(), key=lambda row: row.key)


def _age(row: QueueRow) -> tuple[bool, int, int]:
    return row.deleted_at is not None, row.attributes_version, row.modified_at


def _rows_in(folder: Folder, file: LiveFile, root: str) -> list[QueueRow]:
    try:
        return rows_of(TableVersion(folder, TableState(live={file.path: file})), root)
    except QueueClientError:  # The file is damaged, or has another layout.
        return []


def _files(folder: Folder) -> Iterator[LiveFile]:
    for each in data_files(folder):
        with suppress(DamagedTable), folder.parquet(each.name, each.size) as parquet:
            yield LiveFile(each.name, each.name, each.size, parquet.metadata.num_rows, {}, {}, {}, {})
