"""Describes the data files of a commit for the log. Both engines use these descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import from_micros

_STATISTICS = {"first_offset", "last_offset"} | {
    *("position", "sent_at", "delay_seconds", "source_receive_count", "group_id"),
}
"""Columns for which the log has the minimum, the maximum and the number of NULLs."""


_FEW = 16
"""For up to this number of rows, Python computes minimum and maximum. For more rows, Arrow is faster."""


@attrs.frozen
class DataFile:
    """A Parquet file below the table's directory, with the facts that Delta's log records about the file."""

    path: str
    """Path relative to the table, with ``/`` as separator, and not URL-encoded."""
    size: int
    rows: int
    partition: Mapping[str, str]
    """Partition values in Delta's form. An instant is written as ``2026-01-01T00:00:00.000000Z``."""
    minimum: Mapping[str, Any] = attrs.field(factory=dict)
    """Minimum of each column that has statistics. A text column is listed only if all its values are equal."""
    maximum: Mapping[str, Any] = attrs.field(factory=dict)
    nulls: Mapping[str, int] = attrs.field(factory=dict)

    def statistics(self) -> str:
        """Returns the statistics for Delta's log, as JSON."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": dict(self.minimum),
                "maxValues": dict(self.maximum),
                "nullCount": dict(self.nulls),
            }
        )


class Description:
    """Collects the statistics of a file's rows while the rows are written."""

    def __init__(self) -> None:
        self.rows = 0
        self._nulls: dict[str, int] = {}
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, rows: pa.Table) -> None:
        self.rows += len(rows)
        for place, name in enumerate(rows.schema.names):
            if name in _STATISTICS:
                column = rows.column(place)
                self._nulls[name] = self._nulls.get(name, 0) + column.null_count
                if column.null_count < len(column) and not pa.types.is_timestamp(column.type):
                    low, high = _ends(column)
                    known = self._bounds.get(name, (low, high))
                    self._bounds[name] = min(low, known[0]), max(high, known[1])
            elif name == "body" and (emptied := rows.column(place).null_count):
                self._nulls["body"] = self._nulls.get("body", 0) + emptied

    def file(self, path: str, size: int, partition: Mapping[str, str]) -> DataFile:
        bounds = {
            name: ends for name, ends in self._bounds.items() if ends[0] == ends[1] or type(ends[0]) is not str
        }
        minimum, maximum = ({name: ends[which] for name, ends in bounds.items()} for which in (0, 1))
        return DataFile(path, size, self.rows, partition, minimum, maximum, self._nulls)


def _ends(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if len(column) <= _FEW:  # a tenth of a send's time went into calls of Arrow and NumPy for one value
        known = [value for value in column.to_pylist() if value is not None]
        return min(known), max(known)
    if pa.types.is_integer(column.type) and not column.null_count:  # a call of Arrow takes four times as long
        values = column.to_numpy()
        return values.min().item(), values.max().item()
    ends = pc.min_max(column)
    return ends["min"].as_py(), ends["max"].as_py()


def placed(files: Iterable[DataFile], first: int, sent_at: int) -> list[DataFile]:
    """Copies the files. Gives the copies' rows successive offsets from ``first`` and the send time ``sent_at``."""
    base, opened, found = first, partition_text(from_micros(sent_at)), list[DataFile]()
    for file in files:
        found.append(attrs.evolve(file, partition={"base_offset": str(base), "opened_at": opened}))
        base += file.rows
    return found


def partition_text(value: object) -> str:
    """Returns a partition value as text in Delta's form."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        # with its zone: Spark reads an instant without one in the zone of the session
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return str(value)
