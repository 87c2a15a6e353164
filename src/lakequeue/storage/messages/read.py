"""Reads the log of a shard: segments, files, and the columns that the state machine needs, with a cache."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from itertools import groupby, pairwise
from sys import getsizeof
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import DamagedTable
from lakequeue.model.clock import MICROS, to_micros
from lakequeue.shard.runs import DeadLetterSpan
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Table
from lakequeue.storage.table_version import TableVersion

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class CacheBudget:
    """Memory limit that several caches share. Above the limit, drops the oldest values first. The newest value
    stays, even if it alone exceeds the limit. Thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.Lock()
        """Lock that the budget and all its caches use."""
        self.bytes = 0
        self._order: OrderedDict[tuple[int, Hashable], tuple[MutableMapping[Any, Any], int]] = OrderedDict()

    def put(self, cache: MutableMapping[_Key, _Value], key: _Key, value: _Value, size: int) -> None:
        """Adds a value of ``size`` bytes to ``cache``, unless it has the key already. Hold ``lock`` meanwhile."""
        if key in cache:
            return
        try:
            cache[key] = value
            self._order[id(cache), key] = cache, size
            self.bytes += size
            while self.bytes > self.limit and len(self._order) > 1:
                (_, oldest), (others, size) = self._order.popitem(last=False)
                others.pop(oldest, None)
                self.bytes -= size
        except BaseException:  # An interrupt in between would leave inconsistent records.
            for others, _ in [(cache, 0), *self._order.values()]:
                others.clear()
            self._order.clear()
            self.bytes = 0
            raise

    def drop(self, cache: MutableMapping[Any, Any]) -> None:
        with self.lock:
            for key in list(cache):
                self._order.pop((id(cache), key), None)
            cache.clear()
            self.bytes = sum(size for _, size in self._order.values())


BUDGET = CacheBudget(128 * 2**20)


Integers = npt.NDArray[np.int64]
_OF_DEAD_LETTERS = ["source_receive_count", "first_sent_at", "first_received_at"]
_KEPT = ["sent_at", "delay_seconds", "group_id", *_OF_DEAD_LETTERS]
_ARRAYS_BYTES = 6 * 1024
"""Bytes of memory that the columns of a file take, besides the bytes of their values."""


class FileColumns(NamedTuple):
    """Columns of a file, with a value for each message. Times are in microseconds. ``group`` indexes ``names``."""

    sent_at: Integers
    delay: Integers
    group: npt.NDArray[np.unsignedinteger[Any]]
    names: list[str]
    source_receive_count: Integers
    first_sent_at: Integers
    first_received_at: Integers

    @property
    def size(self) -> int:
        """Bytes of memory that the columns take."""
        arrays = sum(each.nbytes for each in self if isinstance(each, np.ndarray) and each.strides != (0,))
        return _ARRAYS_BYTES + arrays + sum(map(getsizeof, self.names))


@attrs.frozen
class LogFile:
    """A file of the log's newest version. It has a row for each offset from ``first`` to ``last``."""

    file: LiveFile
    base: int
    """First offset of the segment to which the file belongs. Identifies the segment."""
    opened_at: int
    first: int
    last: int
    bulk: bool
    """True if all messages of the file were sent at ``opened_at``."""
    delayed: bool
    """True if the file may have messages with a delay."""
    dead_letters: bool
    """True if the file may have dead letters."""
    emptied: int
    """Number of emptied rows in the file, according to the log's statistics. See ``emptied_rows``."""
    group: str | None
    """Group of all messages of the file. Empty if they have no group. None if they have several, or unknown."""
    more: tuple[LiveFile, ...] = ()
    """Further files with rows of this segment, if another program rewrote it. Each row is in one of the files."""

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    @property
    def is_foreign(self) -> bool:
        """True if another program or ``engine="spark"`` wrote ``file``, or one of the files in ``more``."""
        return any(is_foreign(each.name) for each in (self.file, *self.more))

    @classmethod
    def of(cls, file: LiveFile) -> LogFile:
        base, delay = file.partition["base_offset"], file.maximum.get("delay_seconds")
        emptied = file.nulls.get("body")
        return cls(
            file=file,
            base=base,
            opened_at=to_micros(file.partition["opened_at"]),
            first=base + file.minimum["position"],
            last=base + file.maximum["position"],
            bulk=file.nulls.get("sent_at") == file.rows,
            delayed=delay is None or delay > 0,
            dead_letters=file.nulls.get("source_receive_count") != file.rows,
            # Another program may have written a value of any type.
            emptied=emptied if isinstance(emptied, int) else 0,
            group=_only_group(file),
        )

    def rows_of(
        self, table: TableVersion, columns: Sequence[str], first: int | None = None, last: int | None = None
    ) -> pa.Table:
        """Returns the rows from offset ``first`` to ``last``, in order (DUR-5). Without offsets, returns all rows.

        Adds the column ``position``. Raises DamagedTable if a message is missing, or two have one offset.
        """
        first, last = self.first if first is None else first, self.last if last is None else last
        names = ["position", *(name for name in columns if name != "position")]
        if not self.more:
            rows = table.read_rows(self.file, first - self.first, last - self.first, names)
            if are_in_order(rows["position"], first - self.base, last - self.base):
                return self._typed(rows, table, names) if self.is_foreign else rows
        return self._in_order(table, names).slice(first - self.first, last - first + 1)

    def _in_order(self, table: TableVersion, names: Sequence[str]) -> pa.Table:
        """Reads all rows of a segment that another program rewrote, and sorts them by offset."""
        read = list(dict.fromkeys(["position", "message_id", *names]))
        parts = table.read([self.file, *self.more], read)
        rows = pa.concat_tables(self._typed(part, table, read) for part in parts)
        once = self._once(rows.take(pc.sort_indices(rows["position"])), table)
        if not are_in_order(once["position"], self.first - self.base, self.last - self.base):
            raise DamagedTable(table.path, self.file.name, "lacks messages; another program wrote it")
        return once.select(names).combine_chunks()

    def _once(self, rows: pa.Table, table: TableVersion) -> pa.Table:
        """Drops repeated rows from sorted rows. Raises DamagedTable if two messages have the same position."""
        again = np.append(False, np.diff(rows["position"].to_numpy()) == 0)
        ids = pc.fill_null(rows["message_id"], "")
        same = pc.equal(ids.slice(0, max(0, len(ids) - 1)), ids.slice(1)).to_numpy()
        if (again[1:] & ~same).any():
            raise DamagedTable(table.path, self.file.name, "has two messages with one offset")
        return rows.filter(pa.array(~again))

    def _typed(self, rows: pa.Table, table: TableVersion, names: Sequence[str]) -> pa.Table:
        """Casts the columns of a file that another program wrote to the types of ``messages``."""
        if "message_id" in names and rows["message_id"].null_count:
            raise DamagedTable(table.path, self.file.name, "has messages without an id; another program wrote it")
        return rows.select(names).cast(pa.schema([layout.MESSAGES.field(name) for name in names]))

    def sent_at(self, rows: pa.Table) -> pa.ChunkedArray:
        """Returns the send times of ``rows``, which must be of this file, in microseconds."""
        return pc.fill_null(rows["sent_at"].cast(pa.int64()), self.opened_at)

    @property
    def size(self) -> int:
        """Total size of ``file`` and the files in ``more``, in bytes."""
        return sum(each.size for each in (self.file, *self.more))


class ShardLog:
    """A snapshot of the log of a shard. Has the interface ``MessageLog`` for the state machine."""

    def __init__(
        self,
        files: list[LogFile],
        end: int,
        closed: bool,
        version: int,
        columns: Callable[[LogFile], FileColumns],
        load: Callable[[Sequence[LogFile]], None],
        forgotten: int = 0,
        emptying: int = 0,
    ) -> None:
        """``columns`` reads the columns of one file. ``load`` reads the columns of several files concurrently."""
        self.files = files
        self.end = end
        self.closed = closed
        self.version = version
        self.forgotten, self.emptying = forgotten, emptying
        self._columns = columns
        self._load = load
        self._firsts = [file.first for file in self.files]
        self._opened = [file.opened_at for file in self.files]
        self._same_from: int | None = None  # First offset from which on all messages are of one group.

    def file_of(self, offset: int) -> LogFile | None:
        """Returns the file with the message at ``offset``. Returns None if its segment was dropped."""
        index = bisect_right(self._firsts, offset) - 1
        return self.files[index] if index >= 0 and offset <= self.files[index].last else None

    def overlapping(self, first: int, last: int) -> list[LogFile]:
        """Returns the files that have any offset from ``first`` to ``last``, in order."""
        start = max(0, bisect_right(self._firsts, first) - 1)
        stop = bisect_right(self._firsts, last)
        return [file for file in self.files[start:stop] if file.last >= first]

    def sent_at(self, offset: int) -> int:
        file = self.file_of(offset)
        if file is None:
            raise FileNotFoundError(f"offset {offset} is not in the log")
        return file.opened_at if file.bulk else int(self._columns(file).sent_at[offset - file.first])

    def load(self, offsets: Sequence[int]) -> None:
        files = {file.first: file for offset in offsets if (file := self.file_of(offset)) is not None}
        self._load([file for file in files.values() if not file.bulk or file.delayed])

    def first_sent_at_or_after(self, instant: int) -> int:
        stop = bisect_left(self._opened, instant)
        if stop == 0:
            return self.files[0].first if self.files else self.end
        # A segment has no messages sent after the next was opened, so only the last of these segments can hold the
        # instant.
        index = stop - 1
        while index > 0 and self.files[index - 1].base == self.files[index].base:
            index -= 1
        for file in self.files[index:stop]:
            if not file.bulk:
                sent = self._columns(file).sent_at
                if sent[-1] >= instant:
                    return file.first + int(np.searchsorted(sent, instant))
        return self.files[stop].first if stop < len(self.files) else self.end

    @property
    def begin(self) -> int:
        """First offset that the log still has."""
        return self.files[0].first if self.files else self.end

    def until(self, instant: int, reached: int) -> ShardLog:
        """Returns the log as of ``instant``: messages until then, and all messages below offset ``reached``."""
        end = max(reached, self.first_sent_at_or_after(instant + 1))
        files = [file for file in self.files if file.first < end]
        return ShardLog(files, end, False, self.version, self._columns, self._load)

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        if delay == 0:
            yield first, last, 0
            return
        begin = first
        for file in self.overlapping(first, last):
            if delay is None and not file.delayed:
                continue
            low, high = max(first, file.first), min(last, file.last)
            if delay is not None and file.bulk:
                parts, instants = [(0, high - low + 1)], np.array([file.opened_at + delay])
            else:
                columns, part = self._columns(file), slice(low - file.first, high - file.first + 1)
                sent, own = columns.sent_at[part], columns.delay[part] if delay is None else delay
                instants = np.where(own > 0, sent + own, 0)
                parts = stretches(instants)
            if begin < low:
                yield begin, low - 1, 0
            for start, stop in parts:
                yield low + start, low + stop - 1, int(instants[start])
            begin = high + 1
        if begin <= last:
            yield begin, last, 0

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetterSpan]:
        for file in self.overlapping(first, last):
            if not file.dead_letters:
                continue
            low, high = max(first, file.first), min(last, file.last)
            columns, part = self._columns(file), slice(low - file.first, high - file.first + 1)
            count, sent = columns.source_receive_count[part], columns.first_sent_at[part]
            received = columns.first_received_at[part]
            for start, stop in stretches(count, sent, received):
                if count[start]:
                    instants = int(sent[start]) or None, int(received[start]) or None
                    yield DeadLetterSpan(low + start, low + stop - 1, int(count[start]), *instants)

    def born_at(self, offset: int) -> int:
        """Returns the instant from which the retention period of a message counts (RET-7)."""
        letters = next(self.dead_letters(offset, offset), None)
        return (letters and letters.first_sent_at) or self.sent_at(offset)

    def only_group(self, first: int) -> str | None:
        last = self.files[-1].group if self.files else ""
        if self._same_from is None:
            differ = (file.last + 1 for file in reversed(self.files) if file.group is None or file.group != last)
            self._same_from = next(differ, 0)
        return None if first < self._same_from else last

    def groups(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Sequence[int]]]:
        for names, group, offsets in self._grouped(spans):
            if len(names) == 1:
                yield names[0], cast(Sequence[int], offsets)
                continue
            # Sorts by group, and keeps the order of offsets within each group.
            order = np.argsort(group, kind="stable")
            offsets, group = offsets[order], group[order]
            for start, stop in stretches(group):
                yield names[int(group[start])], cast(Sequence[int], offsets[start:stop])

    def group_sizes(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, int]]:
        for names, group, offsets in self._grouped(spans):
            if len(names) == 1:
                yield names[0], len(offsets)
            elif len(offsets) == 1:
                yield names[int(group[0])], 1
            else:
                sizes = np.bincount(group, minlength=len(names))
                yield from ((names[place], int(sizes[place])) for place in np.flatnonzero(sizes).tolist())

    def _grouped(
        self, spans: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Sequence[str], npt.NDArray[Any], npt.NDArray[Any]]]:
        """For each file, yields group names, each message's index into these names, and each message's offset."""
        pending = deque(spans)
        while pending:
            first, last = pending[0]
            file = self.file_of(first)
            if file is None:
                raise FileNotFoundError(f"offset {first} is not in the log")
            parts = []
            while pending and pending[0][0] <= file.last:
                first, last = pending.popleft()
                # Halves the memory of a shard's index of groups, which keeps these arrays.
                small = np.int32 if file.last < 2**31 else np.int64
                parts.append(np.arange(first, min(last, file.last) + 1, dtype=small))
                if last > file.last:
                    pending.appendleft((file.last + 1, last))
            offsets = np.concatenate(parts)
            if file.group is not None:
                yield [file.group], offsets, offsets
            else:
                columns = self._columns(file)
                yield columns.names, columns.group[offsets - file.first], offsets


class LogReader:
    """Follows the log of a shard, through its own handle on the table. Not thread-safe."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._files: dict[str, LogFile] = {}
        self.log = self._load()
        self._loaded = table.version, table.lineage

    def refresh(self, sure: bool = False) -> ShardLog:
        """Returns the newest log, the same object if unchanged. If ``sure`` is True, uses ``Table.confirm``."""
        (self.table.confirm if sure else self.table.refresh)()
        return self._current()

    def advance(self) -> ShardLog:
        """Returns the newest log that this process knows, without a request to storage."""
        self.table.state.advance()
        return self._current()

    def _current(self) -> ShardLog:
        newest = self.table.version, self.table.lineage
        if newest != self._loaded:
            self.log = self._load()
            self._loaded = newest
        return self.log

    def _load(self) -> ShardLog:
        version = self.table.transaction(layout.SEND_ID)
        files, forgotten = log_files(self.table, self._files), self.table.transaction(layout.FORGOTTEN_ID)
        self._files = {file.file.path: file for file in files if not file.more}
        end, closed = layout.end_of(version), version >= layout.CLOSED
        emptying = self.table.transaction(layout.EMPTYING_ID)
        return ShardLog(
            files, end, closed, self.table.version, self._columns, self._load_columns, forgotten, emptying
        )

    def _load_columns(self, files: Sequence[LogFile]) -> None:
        if self.table.folder.local is None:  # a disk is fast enough one by one
            self.table.folder.for_each(self._columns, files)

    def _columns(self, file: LogFile) -> FileColumns:
        # After a restore, a file of a bulk send may be committed again, with another send time.
        name = f"{self.table.path}/{file.file.path} {file.opened_at} {len(file.more)}"
        known = _known.get(name)
        if known is None:
            rows = file.rows_of(self.table, _KEPT)
            sent = file.sent_at(rows).to_numpy()
            delay = pc.fill_null(rows["delay_seconds"], 0.0).to_numpy()
            group = pc.fill_null(rows["group_id"], "").combine_chunks().dictionary_encode()
            known = FileColumns(
                _folded(sent),
                _folded(np.rint(delay * MICROS).astype(np.int64)),
                _folded(group.indices.to_numpy().astype(np.min_scalar_type(len(group.dictionary)))),
                group.dictionary.to_pylist(),
                *(_folded(pc.fill_null(rows[each].cast(pa.int64()), 0).to_numpy()) for each in _OF_DEAD_LETTERS),
            )
            with BUDGET.lock:
                BUDGET.put(_known, name, known, known.size)
        return known


def _folded(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns an equal column, which takes less memory if all values are equal."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(column[0].copy(), column.shape)
    return column


def _only_group(file: LiveFile) -> str | None:
    nulls, low, high = file.nulls.get("group_id"), file.minimum.get("group_id"), file.maximum.get("group_id")
    if nulls == file.rows:
        return ""
    # Statistics by Spark cut texts after 32 characters.
    return low if nulls == 0 and isinstance(low, str) and low == high and len(low) < 32 else None


_known: dict[str, FileColumns] = {}
"""Cached columns of files, keyed by the path and the opening time of the file."""


def log_files(table: TableVersion, known: Mapping[str, LogFile] = MappingProxyType({})) -> list[LogFile]:
    """Returns the live files by offset. Reuses files from ``known``. Raises DamagedTable for gaps (DUR-5)."""
    try:
        files = [
            old if (old := known.get(file.path)) is not None and old.file is file else LogFile.of(file)
            for file in table.files()
        ]
        files.sort(key=lambda file: file.first)
    except (KeyError, TypeError, AttributeError) as error:
        reason = "its log does not say which messages its files hold; another program wrote it"
        raise DamagedTable(table.path, None, reason) from error
    if (misfit := _misfit(files)) is not None:
        files = _joined(files)
        if (misfit := _misfit(files)) is not None:
            file, following = misfit
            reason = f"does not hold the messages from offset {following} on; another program wrote it"
            raise DamagedTable(table.path, file.file.name, reason)
    following = files[-1].last + 1 if files else 0
    end = layout.end_of(table.transaction(layout.SEND_ID))
    if files and following != end:
        raise DamagedTable(table.path, None, f"its files end at offset {following}, and its log at {end}")
    return files


def _misfit(files: Sequence[LogFile]) -> tuple[LogFile, int] | None:
    """Returns the first file that has a wrong offset or too few rows, and the right offset. None if all fit."""
    following = files[0].first if files else 0
    for file in files:
        rows = sum(each.rows for each in (file.file, *file.more))
        if file.first != following or (file.rows > rows if file.is_foreign else file.rows != rows):
            return file, following
        following = file.last + 1
    return None


def _joined(files: Sequence[LogFile]) -> list[LogFile]:
    """If another program wrote files of a segment, combines all files of this segment into one LogFile."""
    joined: list[LogFile] = []
    for _, group in groupby(files, key=lambda file: file.base):
        segment = list(group)
        if not any(file.is_foreign for file in segment):
            joined += segment
            continue
        groups = {file.group for file in segment}
        whole = attrs.evolve(
            segment[0],
            last=max(file.last for file in segment),
            bulk=all(file.bulk for file in segment),
            delayed=any(file.delayed for file in segment),
            dead_letters=any(file.dead_letters for file in segment),
            emptied=0,
            group=groups.pop() if len(groups) == 1 else None,
            more=tuple(file.file for file in segment[1:]),
        )
        joined.append(whole)
    return joined


def is_foreign(name: str) -> bool:
    """True if another program or ``engine="spark"`` wrote the file. Only these name directories by partition."""
    return name.startswith(("base_offset=", "settled="))


def check_order(positions: pa.ChunkedArray | pa.Array, begin: int, table: str, file: str) -> None:
    """Raises DamagedTable unless the positions are ``begin``, ``begin + 1`` and so on (DUR-5)."""
    if not are_in_order(positions, begin, begin + len(positions) - 1):
        raise DamagedTable(table, file, "does not hold its messages in order; another program wrote it")


def are_in_order(positions: pa.ChunkedArray | pa.Array, first: int, last: int) -> bool:
    """True if the positions are all numbers from ``first`` to ``last`` in ascending order."""
    return bool(np.array_equal(positions.to_numpy(), np.arange(first, last + 1)))


def stretches(*columns: Integers) -> list[tuple[int, int]]:
    """Divides rows into ranges in which no column changes its value. Returns the (start, stop) of each range."""
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return list(pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(columns[0])]))
