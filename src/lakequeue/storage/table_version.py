"""A version of a table, to be read: its state as the log says, and the rows of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import LiveFile, State
from lakequeue.storage.folder import Folder
from lakequeue.storage.parquet_files import row_groups

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class TableVersion:
    """A version of a table; a ``Table`` of an engine is one that moves on."""

    def __init__(self, folder: Folder, state: State) -> None:
        self.folder = folder
        self.state = state
        self._rows: dict[str, pa.Table] = {}
        """Rows of live files by path, as read or written; see ``rows``."""
        self.written: dict[str, pa.Table] = {}
        """Rows of some files that this process wrote, by path. ``read_rows`` does not read these files."""

    @property
    def path(self) -> str:
        return self.folder.uri

    @property
    def version(self) -> int:
        """Version of the loaded snapshot."""
        return self.state.version

    def transaction(self, app_id: str) -> int:
        """Last committed version of an application id; 0 if there is none."""
        return self.state.transactions.get(app_id, 0)

    def files(self) -> list[LiveFile]:
        """The live files."""
        return self.state.files()

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        """Rows of live files, one table a file, in the order given and in each file's row order.

        ``columns`` are data (not partition) columns; None: all of them."""
        return self.folder.for_each(lambda file: self._read(file, columns), files)

    def _read(self, file: LiveFile, columns: Sequence[str] | None) -> pa.Table:
        with self._opened_file(file) as parquet:
            return parquet.read(columns, use_threads=False)

    def rows(self, files: Sequence[LiveFile]) -> list[pa.Table]:
        """As ``read``, with all data columns; keeps them, so a file is read once. For small tables.

        A merge writes a file or two, so neither it nor a load after a lost race reads the others again.
        """
        fresh = [file for file in files if file.path not in self._rows]
        known = self._rows | dict(zip((file.path for file in fresh), self.read(fresh), strict=True))
        self._rows = {path: known[path] for path in self.state.live if path in known}
        return [known[file.path] for file in files]

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str]) -> pa.Table:
        """Columns of rows ``first`` to ``last`` (row numbers, inclusive) of a live file; reads little else."""
        if (known := self.written.get(file.path)) is not None:
            return known.slice(first, last - first + 1).select(columns)
        with self._opened_file(file) as parquet:
            found = [(group, begin) for group, begin, end in row_groups(parquet) if begin <= last and end > first]
            table = parquet.read_row_groups([group for group, _ in found], columns=columns, use_threads=False)
        return table.slice(first - found[0][1] if found else 0, last - first + 1)

    @contextmanager
    def _opened_file(self, file: LiveFile) -> Iterator[pq.ParquetFile]:
        """Opens a live file; DamagedTable if it is not what was written, what ``lost`` says if it is gone."""
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
        """Raises OtherHistory if the log is no longer the one of this version: then its files may be others."""

    def lost(self, file: LiveFile) -> Exception:
        """What it means that a file of this version is gone."""
        return DamagedTable(self.path, file.name, "is missing")

    def broken(self) -> list[DamagedTable]:
        """What is wrong with files that are live."""

        def problem(file: LiveFile) -> DamagedTable | None:
            try:
                self._read(file, [])
            except DamagedTable as error:
                return error
            return None

        return [error for error in self.folder.for_each(problem, self.files()) if error is not None]
