"""Reads all rows and columns of the files that a log names. Compares the rows with the log's statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import DamagedTable
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.shard.spans import apart
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile, TableState
from lakequeue.storage.folder import Folder
from lakequeue.storage.messages.read import Integers, LogFile, stretches
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.table_version import TableVersion

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Range = tuple[int, int]
"""Two offsets, or two instants in microseconds. The range includes both."""
_COUNTED = ["sent_at", "delay_seconds", "source_receive_count", "group_id"]
"""Columns for which the Delta log has minimum, maximum and number of NULLs."""


@attrs.frozen
class FoundFile:
    """A file of messages, what is wrong with it, and the offsets of its messages."""

    file: LiveFile
    offsets: Integers = attrs.field(eq=False)
    """Offsets of the messages, in the order of the rows. Empty if the file cannot be read."""
    problem: str | None
    """Text that says what is wrong with the file. None if the file is sound."""
    named: bool = True
    """False if the file was found in the directory only, and no readable log entry names it."""
    sent: Range | None = None
    """Send time of the first message, and latest send time of the file, in microseconds. None if unknown."""
    doubt: str | None = None
    """Text that says how rows and log statistics differ, where either may be right. None if they agree."""
    disorder: str | None = None
    """Text that says which send times of the file are impossible. None if the send times fit."""
    harmless: bool = False
    """True if another program only changed the order of rows, or repeated rows, which readers can handle."""
    blank: Integers = attrs.field(eq=False, factory=lambda: np.array([], np.int64))
    """Offsets of empty rows, whose messages were erased, forgotten by the ledger, or lost before a repair."""

    @property
    def first(self) -> int:
        return int(self.offsets[0])

    @property
    def last(self) -> int:
        return int(self.offsets[-1])

    @property
    def logged_first(self) -> int | None:
        """First offset of the file according to the log. None if the log has no statistics of the file."""
        base, position = self.file.partition.get("base_offset"), self.file.minimum.get("position")
        return None if base is None or position is None else int(base + position)


def find_files(folder: Folder, files: Sequence[LiveFile]) -> list[FoundFile]:
    """Reads all files of a log. Returns each file with its offsets, and with its problem if it has one."""
    return folder.for_each(lambda file: _find(folder, file), files)


def _find(folder: Folder, file: LiveFile) -> FoundFile:
    nothing, base = np.array([], np.int64), file.partition.get("base_offset")
    if base is None:
        return FoundFile(file, nothing, "belongs to no segment; another program wrote it")
    try:
        size = folder.entry(file.name).size
        with folder.parquet(file.name, size) as parquet:
            rows = _read(parquet)
            blank = rows["blank"].to_numpy()
            if rows["position"].null_count:
                return FoundFile(file, nothing, "has rows without a position; another program wrote it")
            offsets = rows["position"].to_numpy() + base
    except FileNotFoundError:
        return FoundFile(file, nothing, "is missing")
    except DamagedTable as error:
        return FoundFile(file, nothing, "is empty" if size == 0 else error.reason)
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        return FoundFile(file, nothing, f"cannot be read: {first_line(error)}")
    problem: str | None = None
    bounds = [base + each["position"] for each in (file.minimum, file.maximum) if "position" in each]
    if len(offsets) != file.rows or len(offsets) == 0:
        problem = f"has {len(offsets)} rows instead of {file.rows}"
    elif size != file.size:
        problem = f"has {size} bytes instead of {file.size}"
    elif not np.array_equal(offsets, np.arange(offsets[0], offsets[0] + len(offsets))):
        problem = "does not hold its messages in order; another program wrote it"
        harmless = _is_complete(folder, file)
        return FoundFile(file, offsets, problem, harmless=harmless, blank=np.sort(offsets[blank]))
    elif bounds != [offsets[0], offsets[-1]]:
        problem = "holds other messages than its log says; another program wrote it"
    else:
        sent = LogFile.of(file).sent_at(rows)
        doubt, disorder = _contradiction(file, rows), _disorder(file, sent.to_numpy())
        times = sent[0].as_py(), pc.max(sent).as_py()
        return FoundFile(file, offsets, None, sent=times, doubt=doubt, disorder=disorder, blank=offsets[blank])
    return FoundFile(file, offsets, problem, blank=offsets[blank])


def _is_complete(folder: Folder, file: LiveFile) -> bool:
    """True if a file has no gap between its first and its last message. The order does not matter."""
    try:
        LogFile.of(file).rows_of(TableVersion(folder, TableState()), [])
    except DamagedTable:
        return False
    return True


def _read(parquet: pq.ParquetFile) -> pa.Table:
    """Reads positions and the columns in ``_COUNTED``. Adds a column ``blank``: True for rows without a body."""
    parts, nothing = [], layout.FILES["messages"].empty_table()
    counted_schema = nothing.select(["position", *_COUNTED]).schema
    groups = (parquet.read_row_group(each, use_threads=False) for each in range(parquet.num_row_groups))
    for rows in chain([nothing], groups):
        blank = pc.equal(pc.fill_null(pc.binary_length(rows["body"]), 0), 0)
        parts.append(rows.select(counted_schema.names).cast(counted_schema).append_column("blank", blank))
    return pa.concat_tables(parts)


def _contradiction(file: LiveFile, rows: pa.Table) -> str | None:
    """Returns a text if a file's rows contradict its statistics. Returns None if they agree."""
    for name in _COUNTED:
        column = rows[name]
        if file.nulls.get(name, column.null_count) != column.null_count:
            return f"has {column.null_count} rows without {name}, and its log says {file.nulls[name]}"
        low, high = file.minimum.get(name), file.maximum.get(name)
        if name == "sent_at" or low is None or high is None:
            continue
        # Spark truncates long strings in its statistics.
        if name == "group_id" and (low != high or len(low) >= 32):
            continue
        bounds = pc.min_max(column).as_py()
        if (low, high) != (bounds["min"], bounds["max"]):
            return f"has {name} from {bounds['min']} to {bounds['max']}, and its log says {low} to {high}"
    return None


def _disorder(file: LiveFile, sent: Integers) -> str | None:
    opened = to_micros(file.partition["opened_at"])
    if np.any(np.diff(sent) < 0) or sent[0] < opened:
        return "has messages sent before messages of lower offsets, or before its segment was opened"
    if file.minimum["position"] == 0 and sent[0] != opened:
        return f"begins its segment, and was not sent at its opening, {from_micros(opened)}"
    return None


def kept_files(found: Iterable[FoundFile]) -> list[FoundFile]:
    """Returns the sound files by offset. If two files share offsets, only the file with more rows is kept."""
    kept: list[FoundFile] = []
    # Among files with equal numbers of rows, the first offset decides, and last the age: a newer file wins.
    sound = [(each.first, -each.file.rows, -age, each) for age, each in enumerate(found) if each.problem is None]
    for *_, each in sorted(sound, key=lambda known: known[:3]):
        while kept and kept[-1].last >= each.first and kept[-1].file.rows < each.file.rows:
            kept.pop()
        if not kept or kept[-1].last < each.first:
            kept.append(each)
    return kept


@attrs.frozen
class Displaced:
    """A message that shares its offset with another message."""

    offset: int
    message_id: str
    file: LiveFile
    row: int


def displaced(folder: Folder, found: Sequence[FoundFile]) -> list[Displaced]:
    """Returns the messages that share their offset with a message in ``kept_files``, and need a new offset."""
    kept = kept_files(found)
    paths = {each.file.path for each in kept}
    others = [each for each in reversed(found) if each.file.path not in paths and len(each.offsets)]
    if not others:
        return []
    ids: dict[int, str | None] = {}
    for each in kept:
        if any(other.offsets.min() <= each.last and each.first <= other.offsets.max() for other in others):
            ids.update(zip(each.offsets.tolist(), _ids(folder, each), strict=True))
    spare: list[Displaced] = []
    for each in others:
        for row, (offset, message_id) in enumerate(zip(each.offsets.tolist(), _ids(folder, each), strict=True)):
            if ids.setdefault(offset, message_id) != message_id and message_id is not None:
                spare.append(Displaced(offset, message_id, each.file, row))
    once = {each.message_id: each for each in spare if each.message_id not in {*ids.values()}}
    return sorted(once.values(), key=lambda each: each.offset)


def _ids(folder: Folder, found: FoundFile) -> list[str | None]:
    rows = folder.rows(found.file.name, folder.entry(found.file.name).size, ["message_id"])
    return list(rows["message_id"].to_pylist())


def missing_ranges(present: Iterable[Range], low: int, end: int) -> list[Range]:
    """Returns the offsets from ``low`` up to, but without, ``end`` that are in none of the sorted ranges."""
    return apart(low, end - 1, [(first, last) for first, last in present if first < end and last >= low])


def ranges(offsets: Integers) -> list[Range]:
    """Joins sorted offsets into ranges."""
    parts = stretches(offsets - np.arange(len(offsets))) if len(offsets) else []
    return [(int(offsets[start]), int(offsets[stop - 1])) for start, stop in parts]


def shown(found: Sequence[Range]) -> str:
    """Formats at most five ranges as a text, as in ``offsets 3, 7 to 9``."""
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in found[:5]]
    more = [f"{len(found) - 5} more ranges"] if len(found) > 5 else []
    return ("offset " if parts == [str(found[0][0])] and not more else "offsets ") + ", ".join([*parts, *more])
