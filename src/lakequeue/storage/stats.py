"""The ``stats`` table, with a row for each queue and minute. It reaches further back than the queues' logs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from lakequeue.storage import cleaning, layout
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Answer, Change, Decision, Ids, transact
from lakequeue.storage.folder import Freed
from lakequeue.storage.stats_rows import MINUTE, StatsRow, files_of, rows_of, table_of

MAX_FILES = 16
"""Maximum number of files of a day. If a day has more files, its files are merged."""
_BUSY = "the table of statistics is being changed too often; nothing was changed"


def record(engine: Engine, root: str, rows: Sequence[StatsRow], now: int) -> int:
    """Appends ``rows`` for the minute of ``now``, except rows of queues that have a row for this minute or a later
    minute already. Returns the number of appended rows.
    """
    table = _open(engine, root)
    minute = now // MINUTE

    def new_rows(_: int) -> Decision[int]:
        known = {layout.stats_id(row.key): table.transaction(layout.stats_id(row.key)) for row in rows}
        new = [row for row in rows if known[layout.stats_id(row.key)] < minute]
        if not new:
            return Answer(0)
        fence = {layout.stats_id(row.key): known[layout.stats_id(row.key)] for row in new}
        return Change(fence, dict.fromkeys(fence, minute), partial(table.append, table_of(new, minute)), len(new))

    return transact(table, new_rows, busy=_BUSY).value


def later(table: Table, key: str | None, now: int) -> list[str]:
    """Returns application ids of queues with rows for minutes after ``now``. With ``key``, only of that queue."""
    ids = [name for name in table.state.transactions if name != layout.STATS_FILES_ID]
    known = ids if key is None else [layout.stats_id(key)]
    return [name for name in known if table.transaction(name) > now // MINUTE]


def set_back(table: Table, key: str | None, now: int) -> None:
    """Removes the rows for minutes after ``now`` (DUR-83), for one queue, or for all queues if ``key`` is None."""
    transact(table, lambda _: _set_back(table, key, now), busy=_BUSY)


def _set_back(table: Table, key: str | None, now: int) -> Change[None]:
    number, found = table.transaction(layout.STATS_FILES_ID), later(table, key, now)
    fence = {layout.STATS_FILES_ID: number} | {name: table.transaction(name) for name in found}
    ids = {layout.STATS_FILES_ID: number + 1} | dict.fromkeys(found, now // MINUTE - 1)
    today = pa.scalar(now, layout.INSTANT).as_py().strftime("%Y-%m-%d")
    days, kept = sorted({day for file in table.files() if (day := file.partition["day"]) >= today}), []
    for day in days:
        rows = rows_of(table, day)
        names = [layout.stats_id(each) for each in rows["key"].to_pylist()]
        minutes = [instant // MINUTE for instant in rows["minute"].cast(pa.int64()).to_pylist()]
        stay = [name not in ids or minute <= now // MINUTE for name, minute in zip(names, minutes, strict=True)]
        for name, minute, stays in zip(names, minutes, stay, strict=True):
            if stays and name in ids:
                ids[name] = max(ids[name], minute)
        kept.append(rows.filter(pa.array(stay, pa.bool_())))
    parts = [rows for rows in kept if len(rows)]
    return Change(fence, ids, partial(table.replace, {"day": days}, parts), None)


def sweep(engine: Engine, root: str) -> Freed:
    """Merges the small files of each day, and removes unneeded files and log entries."""
    table = _open(engine, root)
    for day in sorted({file.partition["day"] for file in table.files()}):
        if len(files_of(table, day)) > MAX_FILES:
            _merge(table, day)
    return cleaning.sweep(table, layout.STATS_RETENTION)


def _merge(table: Table, day: str) -> None:
    def merge(ids: Ids, token: str) -> None:
        # Reads again at each attempt: after a lost race there are new rows.
        table.replace({"day": [day]}, [rows_of(table, day)], ids, token)

    def merged(lost: int) -> Decision[None]:
        if lost:  # Another process merges.
            return Answer(None)
        number = table.transaction(layout.STATS_FILES_ID)
        return Change({layout.STATS_FILES_ID: number}, {layout.STATS_FILES_ID: number + 1}, merge, None)

    transact(table, merged, busy=_BUSY)


def _open(engine: Engine, root: str) -> Table:
    path = layout.stats_path(root)
    if not engine.exists(path):
        engine.create(path, layout.STATS, layout.STATS_PARTITIONS, layout.STATS_PROPERTIES)
    return engine.open(path)
