"""A root's table ``schedules``, with a row for each schedule. Each change rewrites the table's file (JOB-7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import DamagedTable, LakeQueueError
from lakequeue.model.schedules import Schedule
from lakequeue.storage import cleaning, layout
from lakequeue.storage.engines import transaction
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Answer, Decision, transact
from lakequeue.storage.folder import Freed
from lakequeue.storage.store_failures import first_line

ScheduleChange = Callable[[Sequence[Schedule]], Mapping[str, Schedule | None]]
"""Function that gets all schedules, and returns the changed schedules by id. None removes a schedule."""


class ScheduleTable:
    """The table of schedules, which is created with its first row. Thread-safe."""

    def __init__(self, engine: Engine, root: str) -> None:
        self._engine = engine
        self._path = layout.schedules_path(root)
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._read: tuple[tuple[int, object], list[Schedule]] = (-1, None), []
        self._stored = layout.SCHEDULES.empty_table()

    def rows(self) -> list[Schedule]:
        """Returns the schedules of every region. Raises DamagedTable if lakequeue cannot have written them."""
        with self._lock, self._dropping():
            return self._rows()

    def change(self, change: ScheduleChange) -> list[Schedule]:
        """Changes the newest rows, and returns all rows. Raises RequestThrottled after too many lost races."""

        def decide(table: Table) -> Decision[tuple[int, list[Schedule], pa.Table]]:
            found = self._rows()
            changes = change(found)
            if not changes:
                return Answer((table.version, found, self._stored))
            number = table.transaction(layout.SCHEDULES_ID)
            ids, fence = {layout.SCHEDULES_ID: number + 1}, {layout.SCHEDULES_ID: number}
            new = [row for row in changes.values() if row is not None]
            left = self._stored.filter(pc.invert(pc.is_in(self._stored["id"], pa.array(changes, pa.string()))))
            added = pa.Table.from_pylist([attrs.asdict(row, recurse=False) for row in new], layout.SCHEDULES)
            stored = pa.concat_tables([left, added]).combine_chunks()
            rows = [*(row for row in found if row.id not in changes), *new]
            write = partial(table.replace, {}, [stored] if len(stored) else [])
            return transaction.Change(fence, ids, write, (table.version, rows, stored))

        with self._lock, self._dropping():
            table = self._opened()
            if table is None:
                if not change([]):
                    return []
                self._engine.create(self._path, layout.SCHEDULES, [], layout.SCHEDULES_PROPERTIES)
                table = self._table = self._engine.open(self._path)
            busy = "the table of schedules is being changed too often; nothing was changed"
            version, rows, stored = transact(table, lambda _: decide(table), busy=busy).value
            if table.version == version + 1:  # The stored rows are known, and need not be read and checked.
                self._read, self._stored = ((table.version, table.lineage), rows), stored
            return rows

    def sweep(self) -> Freed:
        if not self._engine.exists(self._path):
            return Freed()
        return cleaning.sweep(self._engine.open(self._path), layout.QUEUES_RETENTION)

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._table = None
            raise

    def _opened(self) -> Table | None:
        if self._table is None and self._engine.exists(self._path):
            self._table = self._engine.open(self._path)
        return self._table

    def _rows(self) -> list[Schedule]:
        table = self._opened()
        if table is None:
            return []
        table.refresh()
        newest = table.version, table.lineage
        if newest != self._read[0]:
            parts = table.repeated(lambda: table.read(table.files()))
            self._stored, rows = _checked_rows(parts, self._path)
            self._read = newest, rows
        return self._read[1]


def unreadable(engine: Engine, root: str) -> str | None:
    """Returns why the table of schedules cannot be read. None if it can be read or does not exist."""
    try:
        ScheduleTable(engine, root).rows()
    except DamagedTable as error:
        return error.reason
    return None


def _checked_rows(parts: Sequence[pa.Table], path: str) -> tuple[pa.Table, list[Schedule]]:
    """Returns the rows of all files, as one table and as schedules. Raises DamagedTable if a row is invalid."""
    try:
        cast = [part.select(layout.SCHEDULES.names).cast(layout.SCHEDULES) for part in parts]
        rows = pa.concat_tables([layout.SCHEDULES.empty_table(), *cast])
        found = [Schedule(**row) for row in rows.to_pylist()]
        for each in found:
            each.check()
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError, LakeQueueError) as error:
        raise DamagedTable(path, None, f"its rows cannot be read: {first_line(error)}") from error
    return rows, found
