"""A version of a table: its state according to the log, and methods that read the rows of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import LiveFile, TableState
from lakequeue.storage.folder import Folder
from lakequeue.storage.parquet_files import row_groups

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class TableVersion:
    """A version of a table. An object keeps its version. The subclass ``Table`` can load newer versions."""

    def __init__(self, folder: Folder, state: TableState) -> None:
        self.folder = folder
        self.state = state
        self._rows: dict[str, pa.Table] = {}
        self.written: dict[str, pa.Table] = {}
        """Rows that this process wrote, by path of the file. ``read_rows`` uses them instead of the file."""

    @property
    def path(self) -> str:
        return self.folder.uri

    @property
    def version(self) -> int:
        """Version of the loaded snapshot."""
        return self.state.version

    def transaction(self, app_id: str) -> int:
        """Returns the last committed version of an application id, or 0 if no version was committed."""
        return self.state.transactions.get(app_id, 0)

    def files(self) -> list[LiveFile]:
        return self.state.files()

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        """Returns a table of rows for each live file. ``columns`` names the data columns to read; None for all."""
        return self.folder.for_each(lambda file: self._read(file, columns), files)

    def _read(self, file: LiveFile, columns: Sequence[str] | None) -> pa.Table:
        with self._opened_file(file) as parquet:
            return parquet.read(columns, use_threads=False)

    def rows(self, files: Sequence[LiveFile]) -> list[pa.Table]:
        """Returns a table with all data columns for each file. Keeps the rows in memory. For small tables."""
        fresh = [file for file in files if file.path not in self._rows]
        known = self._rows | dict(zip((file.path for file in fresh), self.read(fresh), strict=True))
        self._rows = {path: known[path] for path in self.state.live if path in known}
        return [known[file.path] for file in files]

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str]) -> pa.Table:
        """Returns columns of the rows from ``first`` to ``last``, both included. Reads only their row groups."""
        if (known := self.written.get(file.path)) is not None:
            return known.slice(first, last - first + 1).select(columns)
        with self._opened_file(file) as parquet:
            found = [(group, begin) for group, begin, end in row_groups(parquet) if begin <= last and end > first]
            table = parquet.read_row_groups([group for group, _ in found], columns=columns, use_threads=False)
        return table.slice(first - found[0][1] if found else 0, last - first + 1)

    @contextmanager
    def _opened_file(self, file: LiveFile) -> Iterator[pq.ParquetFile]:
        """Opens a live file. Raises DamagedTable if it was changed, or the error of ``lost`` if it is missing."""
        try:
            with self.folder.parquet(file.name, file.size) as parquet:
                if parquet.metadata.num_rows != file.rows:
                    reason = f"has {parquet.metadata.num_rows} rows instead of {file.rows}"
                    raise DamagedTable(self.path, file.name, reason)
                yield parquet
        except FileNotFoundError as error:
            raise self.lost(file) from error
        except DamagedTable:
            self.check_history()
            raise

    def check_history(self) -> None:
        """Does nothing here. ``Table`` overrides this method, and raises ReplacedLog if the log was replaced."""

    def lost(self, file: LiveFile) -> Exception:
        """Returns the error for a missing file of this version."""
        return DamagedTable(self.path, file.name, "is missing")

    def broken(self) -> list[DamagedTable]:
        """Returns an error for each damaged live file."""

        def problem(file: LiveFile) -> DamagedTable | None:
            try:
                self._read(file, [])
            except DamagedTable as error:
                return error
            return None

        return [error for error in self.folder.for_each(problem, self.files()) if error is not None]
