"""The rows of the ``stats`` table, which hold the depths of queues by minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import MICROS
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Engine, Table

MINUTE = 60 * MICROS


@attrs.frozen
class StatsRow:
    """Depth of a queue at an instant."""

    queue: str
    region: str
    key: str
    visible: int
    in_flight: int
    delayed: int
    rewindable: int
    oldest_age: float | None
    """Age of the oldest message in seconds. None if the queue is empty."""
    sent: int
    """Number of messages sent since the queue was created."""
    held: int = 0


def read(engine: Engine, root: str, key: str, since: int) -> list[tuple[int, StatsRow]]:
    """Returns (minute, row) pairs of a queue since an instant. Minutes and ``since`` are in microseconds."""
    found: list[tuple[int, StatsRow]] = []
    for part in parts(engine, root, since):
        rows = part.filter(pc.equal(part["key"], key))
        minutes = rows["minute"].cast(pa.int64()).to_pylist()
        names = [field.name for field in attrs.fields(StatsRow)]
        found += zip(minutes, (StatsRow(**row) for row in rows.select(names).to_pylist()), strict=True)
    return sorted(found, key=lambda row: row[0])


def depths(engine: Engine, root: str, since: int) -> dict[str, list[tuple[int, int]]]:
    """Returns (minute, visible messages) pairs by queue key, since an instant. Times are in microseconds."""
    found: dict[str, list[tuple[int, int]]] = {}
    for part in parts(engine, root, since):
        columns = (part["key"], part["minute"].cast(pa.int64()), part["visible"])
        for key, minute, visible in zip(*(column.to_pylist() for column in columns), strict=True):
            found.setdefault(key, []).append((minute, visible))
    return {key: sorted(rows) for key, rows in found.items()}


def parts(engine: Engine, root: str, since: int = 0) -> Iterator[pa.Table]:
    """Yields the rows since an instant, as one table for each file. ``since`` is in microseconds."""
    path = layout.stats_path(root)
    if not engine.exists(path):
        return
    table = engine.open(path)
    day = pa.scalar(since, layout.INSTANT).as_py().strftime("%Y-%m-%d")
    for part in table.read([file for file in table.files() if file.partition["day"] >= day]):
        yield part.filter(pc.greater_equal(part["minute"].cast(pa.int64()), since))


def table_of(rows: Sequence[StatsRow], minute: int) -> pa.Table:
    """Returns the rows of a minute as a table with the schema ``layout.STATS``. Minutes count from 1970."""
    at = pa.scalar(minute * MINUTE, layout.INSTANT)
    day = at.as_py().strftime("%Y-%m-%d")
    cells = [attrs.asdict(row) | {"day": day, "minute": at.as_py()} for row in rows]
    return pa.Table.from_pylist(cells, schema=layout.STATS)


def rows_of(table: Table, day: str) -> pa.Table:
    """Reads all rows of a day from the loaded snapshot."""
    schema = layout.FILES["stats"]
    rows = pa.concat_tables([part.select(schema.names).cast(schema) for part in table.read(files_of(table, day))])
    return rows.add_column(0, layout.STATS.field("day"), pa.array([day] * len(rows)))


def files_of(table: Table, day: str) -> list[LiveFile]:
    return [file for file in table.files() if file.partition["day"] == day]
