"""A shard's messages as the state machine and the readers see them: segments, files, instants."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage import layout
from lakequeue.storage.engine import Table

Micros = npt.NDArray[np.int64]
_SECOND = 1_000_000


@attrs.frozen
class LogFile:
    """A live file: offsets ``first`` to ``last`` in order, one row each."""

    path: str
    base: int
    """Offset that names its segment."""
    opened_at: int
    first: int
    last: int
    size: int
    bulk: bool
    """All of it was sent at ``opened_at``."""
    delayed: bool
    """It may hold messages with a delay."""


class ShardLog:
    """One snapshot of the log of one shard (the ``Log`` of the state machine).

    Per-message columns are read only where the statistics leave a question: at the edge of retention,
    and in files with delayed messages.
    """

    def __init__(
        self,
        files: list[LogFile],
        end: int,
        closed: bool,
        version: int,
        columns: Callable[[LogFile], tuple[Micros, Micros]],
    ) -> None:
        """``version`` is the table's; ``columns`` reads a file's instants of sending and delays (µs)."""
        self.files = sorted(files, key=lambda file: file.first)
        self.end = end
        self.closed = closed
        self.version = version
        self._columns = columns
        self._firsts = [file.first for file in self.files]
        self._opened = [file.opened_at for file in self.files]

    def file_of(self, offset: int) -> LogFile | None:
        """The file that holds an offset, None if its segment was dropped."""
        index = bisect_right(self._firsts, offset) - 1
        return self.files[index] if index >= 0 and offset <= self.files[index].last else None

    def overlapping(self, first: int, last: int) -> list[LogFile]:
        """Files with offsets in the range, in order."""
        start = max(0, bisect_right(self._firsts, first) - 1)
        stop = bisect_right(self._firsts, last)
        return [file for file in self.files[start:stop] if file.last >= first]

    def sent_at(self, offset: int) -> int:
        file = self.file_of(offset)
        if file is None:
            raise KeyError(f"offset {offset} is not in the log")
        return file.opened_at if file.bulk else int(self._columns(file)[0][offset - file.first])

    def first_sent_at_or_after(self, instant: int) -> int:
        stop = bisect_left(self._opened, instant)
        if stop == 0:
            return self.files[0].first if self.files else self.end
        # a segment was sent before the next one was opened, so only the last of these is in question
        index = stop - 1
        while index > 0 and self.files[index - 1].base == self.files[index].base:
            index -= 1
        for file in self.files[index:stop]:
            if not file.bulk:
                sent = self._columns(file)[0]
                if sent[-1] >= instant:
                    return file.first + int(np.searchsorted(sent, instant))
        return self.files[stop].first if stop < len(self.files) else self.end

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        begin = first
        for file in self.overlapping(first, last):
            if not file.delayed:
                continue
            low, high = max(first, file.first), min(last, file.last)
            sent, delay = self._columns(file)
            part = slice(low - file.first, high - file.first + 1)
            available = np.where(delay[part] > 0, sent[part] + delay[part], 0)
            edges = [0, *(np.flatnonzero(np.diff(available)) + 1).tolist(), len(available)]
            if begin < low:
                yield begin, low - 1, 0
            for start, stop in zip(edges, edges[1:], strict=False):
                yield low + start, low + stop - 1, int(available[start])
            begin = high + 1
        if begin <= last:
            yield begin, last, 0


class LogReader:
    """Follows the log of one shard through a handle of its own; not thread-safe, its owner locks."""

    def __init__(self, table: Table, shard: int) -> None:
        self.table = table
        self._shard = shard
        self._known: dict[str, tuple[Micros, Micros]] = {}
        self.log = self._load()
        self._version = table.version

    def refresh(self) -> ShardLog:
        """The log of the newest snapshot; the same object if nothing was committed."""
        self.table.refresh()
        if self.table.version != self._version:
            self.log = self._load()
            self._version = self.table.version
        return self.log

    def _load(self) -> ShardLog:
        version = self.table.transaction(layout.send_id(self._shard)) or 0
        files = log_files(self.table, self._shard)
        live = {file.path for file in files}
        self._known = {path: known for path, known in self._known.items() if path in live}
        return ShardLog(files, layout.end_of(version), version >= layout.CLOSED, self.table.version, self._columns)

    def _columns(self, file: LogFile) -> tuple[Micros, Micros]:
        known = self._known.get(file.path)
        if known is None:
            rows = self.table.read([file.path], ["sent_at", "delay_seconds"])[0]
            sent = rows["sent_at"].cast(pa.int64())
            sent = pc.fill_null(sent, file.opened_at).to_numpy()
            delay = pc.fill_null(rows["delay_seconds"], 0.0).to_numpy()
            known = self._known[file.path] = (sent, np.rint(delay * _SECOND).astype(np.int64))
        return known


def log_files(table: Table, shard: int) -> list[LogFile]:
    """The live files of a shard in the loaded snapshot."""
    files = table.files()
    files = files.filter(pc.equal(files["partition.shard"], shard))
    columns = [
        files["path"],
        files["partition.base_offset"],
        files["partition.opened_at"].cast(pa.int64()),
        files["min.position"],
        files["max.position"],
        files["size"],
        files["rows"],
        files["null_count.sent_at"],
        files["max.delay_seconds"],
    ]
    return [
        LogFile(
            path=path,
            base=base,
            opened_at=opened_at,
            first=base + low,
            last=base + high,
            size=size,
            bulk=nulls == rows,
            delayed=delay is None or delay > 0,
        )
        for path, base, opened_at, low, high, size, rows, nulls, delay in zip(
            *(column.to_pylist() for column in columns), strict=True
        )
    ]
