"""Mending the log of a shard: rows in order again, and rows without a message where one is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import to_micros
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.commit import commit
from lakequeue.storage.engines.point import PointEngine
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.message_files import FoundFile, Range, kept_files, shown
from lakequeue.storage.inspection.shards import FoundShard
from lakequeue.storage.messages.merge_segments import CUT_ROWS
from lakequeue.storage.messages.read import Integers, stretches
from lakequeue.storage.repair.steps import Step, done

_COLUMNS = [name for name in layout.MESSAGES.names if name not in layout.MESSAGE_PARTITIONS]
_FILE = pa.schema([layout.MESSAGES.field(name) for name in _COLUMNS])


@attrs.frozen
class Segment:
    """The segment to which a message belongs, and the instant of the last send before it."""

    base: int
    opened_at: int
    sent_at: int


def log_step(engine: PointEngine, found: FoundShard, missing: Sequence[Range], end: int) -> Step | None:
    """The commit after which the log holds every offset once; None if it does.

    Offsets whose message is lost get a row without one, which the ledger knows as deleted: a reader finds the row
    of an offset by its number in the file.
    """
    assert found.state is not None and found.messages is not None
    kept, version = kept_files(found.files), found.messages.last
    replaced = [each for each in found.files if each not in kept]
    if not missing and not replaced and found.send_end == end:
        return None

    def apply() -> None:
        table = engine.open(found.messages_path)
        done(table.version == version, table.path)
        number, send = table.transaction(layout.FILES_ID) or 0, table.transaction(layout.SEND_ID) or 0
        fence = {layout.FILES_ID: number, layout.SEND_ID: send}
        ids = {layout.FILES_ID: number + 1, layout.SEND_ID: send - layout.end_of(send) + end}
        # unnamed ones, too: another process may have read the entry that named them
        removed = [each.file for each in replaced]
        clock = table.transaction(layout.CLOCK_ID) or 0
        rows = list(_rows(table.folder, kept, replaced, missing, clock))
        ids[layout.CLOCK_ID] = max([clock, *(pc.max(each["sent_at"]).cast(pa.int64()).as_py() for each in rows)])
        done(commit(table, fence, lambda token: table.exchange(removed, rows, ids, token)), table.path)

    what = shown(missing) if missing else f"the end, {end},"
    taken = ", ".join(each.file.name for each in replaced)
    return Step(f"writes {what} of the log anew{f'; it replaces {taken}' if taken else ''}", apply)


def _rows(
    folder: Folder, kept: Sequence[FoundFile], others: Sequence[FoundFile], missing: Sequence[Range], clock: int
) -> Iterator[pa.Table]:
    """Rows for the missing offsets, a table for each file."""
    offsets, rows, segments = _known(folder, others)
    for first, last in missing:
        before = next((each for each in reversed(kept) if each.last < first), None)
        after = next((each for each in kept if each.first > last), None)
        begin, stop = np.searchsorted(offsets, [first, last + 1])
        here = offsets[begin:stop]
        segment = _segment_at(folder, before, after, first, clock)
        count = last - first + 1
        picked = np.full(count, -1)
        picked[here - first] = np.arange(begin, stop)
        table = rows.take(pa.array(picked, mask=picked < 0))  # rows without a message are NULLs
        bases, opened, sent = _filled(segment, picked, segments, rows)
        columns = {name: table[name] for name in _COLUMNS} | {
            "base_offset": pa.array(bases),
            "opened_at": pa.array(opened).cast(layout.INSTANT),
            "position": pa.array(np.arange(first, last + 1) - bases),
            "sent_at": pa.array(sent).cast(layout.INSTANT),
        }
        whole = pa.table(
            [
                columns.get(field.name, table[field.name] if field.name in _COLUMNS else None)
                for field in layout.MESSAGES
            ],
            schema=layout.MESSAGES,
        )
        for start, end in stretches(bases):
            for cut in range(start, end, CUT_ROWS):
                yield whole.slice(cut, min(CUT_ROWS, end - cut))


def _filled(
    segment: Segment, picked: Integers, segments: tuple[Integers, Integers], rows: pa.Table
) -> tuple[Integers, Integers, Integers]:
    """Base, opening and send instant of each row; one without a message has those of the row before it."""
    known = np.maximum.accumulate(np.where(picked >= 0, np.arange(len(picked)), -1))
    at = np.where(known >= 0, picked[known], -1)
    sent = rows["sent_at"].cast(pa.int64()).to_numpy()

    def column(values: Integers, otherwise: int) -> Integers:
        return np.where(at >= 0, values[at], otherwise) if len(values) else np.full(len(at), otherwise)

    return (
        column(segments[0], segment.base),
        column(segments[1], segment.opened_at),
        column(sent, segment.sent_at),
    )


def _known(folder: Folder, others: Sequence[FoundFile]) -> tuple[Integers, pa.Table, tuple[Integers, Integers]]:
    """Offsets, rows, and base and opening of the segment of each row, of files that are replaced; by offset."""
    offsets, tables, bases, opened = [], [_FILE.empty_table()], [], []
    for each in reversed(others):  # of two rows of an offset, the one that was written last
        if not len(each.offsets):
            continue
        with folder.parquet(each.file.name, folder.size(each.file.name)) as parquet:
            table = parquet.read(_COLUMNS, use_threads=False).select(_COLUMNS).cast(_FILE)
        at = to_micros(each.file.partition["opened_at"])
        sent = pc.fill_null(table["sent_at"], pa.scalar(at, layout.INSTANT))
        tables.append(table.set_column(_COLUMNS.index("sent_at"), _FILE.field("sent_at"), sent))
        offsets.append(each.offsets)
        bases.append(np.full(len(table), each.file.partition["base_offset"]))
        opened.append(np.full(len(table), at))
    none = np.array([], np.int64)
    found, index = np.unique(np.concatenate([none, *offsets]), return_index=True)
    columns = np.concatenate([none, *bases])[index], np.concatenate([none, *opened])[index]
    return found, pa.concat_tables(tables).take(pa.array(index)), columns


def _segment_at(
    folder: Folder, before: FoundFile | None, after: FoundFile | None, first: int, clock: int
) -> Segment:
    """The segment of a lost message at an offset of which nothing else is known."""
    if before is not None:
        file = before.file
        opened = to_micros(file.partition["opened_at"])
        with folder.parquet(file.name, file.size) as parquet:
            last = parquet.num_row_groups - 1
            sent = parquet.read_row_group(last, ["sent_at"], use_threads=False)["sent_at"][-1]
        return Segment(_base(file), opened, opened if not sent.is_valid else to_micros(sent.as_py()))
    if after is not None:
        opened = to_micros(after.file.partition["opened_at"])
        return Segment(min(first, _base(after.file)), opened, opened)
    return Segment(first, clock, clock)


def _base(file: LiveFile) -> int:
    return int(file.partition["base_offset"])
