"""Repairs the log of a shard: puts rows in the right order, and writes empty rows for lost messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import to_micros
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.engines.transaction import Change, Ids
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.message_files import Displaced, FoundFile, Range, kept_files, shown
from lakequeue.storage.inspection.shards import FoundShard
from lakequeue.storage.messages.merge_segments import CUT_ROWS
from lakequeue.storage.messages.read import Integers, stretches
from lakequeue.storage.repair.steps import RepairStep, commit_once, done

_FILE = layout.FILES["messages"]
_MOST_ROWS = 20_000_000
"""Maximum number of lost messages for which a repair writes rows, which take 100 bytes of memory each."""


@attrs.frozen
class NeighbourSegment:
    """The segment for a lost message, and the send time of the previous message, in microseconds."""

    base: int
    opened_at: int
    sent_at: int


def fence_step(engine: Engine, found: FoundShard) -> RepairStep:
    """Returns a step after which running compactions fail, because they may use the unrepaired ledger."""
    assert found.messages is not None
    version, forgotten = found.messages.last, found.forgotten if found.ledger else 0

    def apply() -> None:
        table = engine.open(found.messages_path)
        done(table.version == version, table.path)
        files, send = (table.transaction(name) for name in (layout.FILES_ID, layout.SEND_ID))
        fence = {layout.FILES_ID: files, layout.SEND_ID: send}
        ids = {**fence, layout.FILES_ID: files + 1, layout.FORGOTTEN_ID: forgotten}
        commit_once(table, Change(fence, ids, partial(table.exchange, [], []), None))

    return RepairStep("keeps compactors from emptying messages by an older ledger", apply)


def more_than_fit(path: str, missing: Sequence[Range]) -> str | None:
    """Returns a text if too many messages are missing to write rows for them. Otherwise returns None."""
    number = sum(last - first + 1 for first, last in missing)
    if number <= _MOST_ROWS:
        return None
    limit = f"a repair writes at most {_MOST_ROWS:,} rows in their place"
    return f"{path}: {number:,} messages are missing, and {limit}; restore it from a copy"


def log_step(
    engine: Engine, found: FoundShard, missing: Sequence[Range], end: int, version: int
) -> RepairStep | None:
    """Returns a step after which each offset has one row. Lost messages get empty rows. None if all is well."""
    assert found.state is not None
    kept, twice = kept_files(found.files), found.displaced
    paths = {each.file.path for each in kept}
    replaced = [each for each in found.files if each.file.path not in paths]
    if not missing and not replaced and found.send_end == end:
        return None
    new_end = end + len(twice)

    def apply() -> None:
        table = engine.open(found.messages_path)
        done(table.version == version, table.path)
        number, send = table.transaction(layout.FILES_ID), table.transaction(layout.SEND_ID)
        fence = {layout.FILES_ID: number, layout.SEND_ID: send}
        ids = {layout.FILES_ID: number + 1, layout.SEND_ID: send - layout.end_of(send) + new_end}
        # Includes files that no readable entry names: another process may have read the entry that named them.
        removed = [each.file for each in replaced]
        known = _known(table.folder, replaced)
        clock = max([table.transaction(layout.CLOCK_ID), *known.sent_at.tolist()])
        ids[layout.CLOCK_ID] = clock

        def write(ids: Ids, token: str) -> None:
            rows = chain(_rows(table.folder, kept, known, missing, clock), _again(table.folder, twice, end, clock))
            table.exchange(removed, rows, ids, token)

        commit_once(table, Change(fence, ids, write, None))

    what = shown(missing) if missing else f"the end, {new_end},"
    taken = ", ".join(each.file.name for each in replaced)
    moved = "".join(
        f"; message {each.message_id} of offset {each.offset} gets offset {offset}"
        for offset, each in enumerate(twice, end)
    )
    return RepairStep(f"writes {what} of the log anew{f'; it replaces {taken}' if taken else ''}{moved}", apply)


def _again(folder: Folder, twice: Sequence[Displaced], base: int, clock: int) -> Iterator[pa.Table]:
    """Yields the rows of displaced messages, with new offsets from ``base`` on, as a segment of their own."""
    files = {each.file.path: each.file for each in twice}
    found = [
        layout.message_rows(folder.rows(file.name, folder.entry(file.name).size, _FILE.names)).take(
            [each.row for each in twice if each.file.path == path]
        )
        for path, file in files.items()
    ]
    if found:
        rows = pa.concat_tables(found)
        columns = {name: rows[name] for name in _FILE.names} | {
            "base_offset": pa.repeat(base, len(rows)),
            "opened_at": pa.repeat(clock, len(rows)).cast(layout.INSTANT),
            "position": pa.array(range(len(rows)), pa.int64()),
            "sent_at": pa.repeat(clock, len(rows)).cast(layout.INSTANT),
        }
        yield pa.table([columns[name] for name in layout.MESSAGES.names], schema=layout.MESSAGES)


@attrs.frozen
class _Known:
    """Rows of the files that are replaced. ``row`` has the index in ``rows`` for each offset in ``offsets``."""

    offsets: Integers
    rows: pa.Table
    row: Integers
    base: Integers
    opened_at: Integers
    sent_at: Integers


def _known(folder: Folder, files: Sequence[FoundFile]) -> _Known:
    tables, columns = [_FILE.empty_table()], [np.empty((4, 0), np.int64)]
    for each in reversed(files):  # Of two rows with the same offset, the newer wins.
        if len(each.offsets):
            rows = folder.rows(each.file.name, folder.entry(each.file.name).size, _FILE.names)
            tables.append(layout.message_rows(rows))
            opened_at = to_micros(each.file.partition["opened_at"])
            sent = pc.fill_null(tables[-1]["sent_at"].cast(pa.int64()), opened_at).to_numpy()
            count = len(each.offsets)
            columns.append(
                np.array([each.offsets, np.full(count, _start(each.file)), np.full(count, opened_at), sent])
            )
    offsets, base, opened_at, sent_at = np.concatenate(columns, axis=1)
    found, row = np.unique(offsets, return_index=True)
    return _Known(found, pa.concat_tables(tables), row, base[row], opened_at[row], sent_at[row])


def _rows(
    folder: Folder, kept: Sequence[FoundFile], known: _Known, missing: Sequence[Range], clock: int
) -> Iterator[pa.Table]:
    """Yields tables with a row for each missing offset. Each table becomes a file."""
    for first, last in missing:
        before = next((each for each in reversed(kept) if each.last < first), None)
        after = next((each for each in kept if each.first > last), None)
        segment = _segment_at(folder, before, after, first, clock)
        known_from = int(np.searchsorted(known.offsets, first))
        if before is None and known_from < len(known.offsets) and known.offsets[known_from] <= last:
            # Takes the segment of the first known message, which was sent no earlier than the segment was opened.
            opened = int(known.opened_at[known_from])
            segment = NeighbourSegment(min(first, int(known.base[known_from])), opened, opened)
        # For each offset, the index of the nearest known offset at or before it. -1 if there is none.
        at = np.searchsorted(known.offsets, np.arange(first, last + 1), side="right") - 1
        at[at < known_from] = -1
        offsets = np.arange(first, last + 1)

        def column(values: Integers, otherwise: int, at: Integers = at) -> Integers:
            return np.where(at >= 0, np.append(values, 0)[at], otherwise)

        base = column(known.base, segment.base)
        rows, there = column(known.row, 0), column(known.offsets, -1) == offsets
        opened_at, sent_at = column(known.opened_at, segment.opened_at), column(known.sent_at, segment.sent_at)
        for start, end in stretches(base):
            for cut in range(start, end, CUT_ROWS):
                part = slice(cut, min(cut + CUT_ROWS, end))
                # A row without a message is NULL in all columns of the file.
                table = known.rows.take(pa.array(rows[part], mask=~there[part]))
                columns = {name: table[name] for name in _FILE.names} | {
                    "base_offset": pa.array(base[part]),
                    "opened_at": pa.array(opened_at[part]).cast(layout.INSTANT),
                    "position": pa.array(offsets[part] - base[part]),
                    "sent_at": pa.array(sent_at[part]).cast(layout.INSTANT),
                }
                yield pa.table([columns[name] for name in layout.MESSAGES.names], schema=layout.MESSAGES)


def _segment_at(
    folder: Folder, before: FoundFile | None, after: FoundFile | None, first: int, clock: int
) -> NeighbourSegment:
    """Returns the segment for a lost message at offset ``first``, from the file before or after the message."""
    if before is not None:
        file = before.file
        opened = to_micros(file.partition["opened_at"])
        with folder.parquet(file.name, file.size) as parquet:
            last = parquet.num_row_groups - 1
            sent = parquet.read_row_group(last, ["sent_at"], use_threads=False)["sent_at"][-1]
        return NeighbourSegment(_start(file), opened, opened if not sent.is_valid else to_micros(sent.as_py()))
    if after is not None:
        opened = to_micros(after.file.partition["opened_at"])
        return NeighbourSegment(min(first, _start(after.file)), opened, opened)
    return NeighbourSegment(first, clock, clock)


def _start(file: LiveFile) -> int:
    return int(file.partition["base_offset"])
