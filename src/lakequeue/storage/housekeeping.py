"""Keeping the log in few files: merging closed segments, dropping those below the floor.

A closed segment is one that is not the last of its shard in the snapshot that the commit is made on.
Everything here is fenced by ``files-<shard>`` and may fail or be killed without harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import attrs
import pyarrow as pa

from lakequeue.errors import QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.commit import commit
from lakequeue.storage.engine import Table
from lakequeue.storage.log import LogFile, log_files

TIERS = [256 * 1024, 2 * 1024 * 1024, 16 * 1024 * 1024]
"""Segments up to a tier's bytes are joined once there are ``TIER_SEGMENTS`` of them side by side."""
TIER_SEGMENTS = 8

_COLUMNS = [name for name in layout.MESSAGES.names if name not in layout.MESSAGE_PARTITIONS]
_FILE = pa.schema([layout.MESSAGES.field(name) for name in _COLUMNS])

Segment = list[LogFile]


def tidy(table: Table, shard: int, floor: int, drop_before: int | None = None) -> None:
    """Drops closed segments below ``floor`` and merges small ones.

    Args:
        table: a handle on ``messages``, locked by the caller.
        shard: the shard.
        floor: a committed floor of the ledger, of any age: floors only rise, and what lies below
            one was forgotten by the ledger before (forget first, drop later).
        drop_before: only what was sent before this instant may be dropped, as FIFO queues still look for
            deduplication ids in what is younger (RET-11).
    """
    # each step looks anew: a replacement loads the newest snapshot, in which another process may have merged
    while True:
        seen = _closed(table, shard)
        step = _next_step(seen, floor, drop_before)
        if step is None:
            return
        segments, keep = step
        if not _replace(table, shard, seen, segments, [_joined(table, shard, segments)] if keep else []):
            return


@attrs.frozen
class _Closed:
    """The closed segments of a snapshot, and its ``files-<shard>``."""

    segments: list[Segment]
    ends: list[int]
    """For each the instant at which the next one was opened; nothing in it was sent later."""
    number: int


def _next_step(seen: _Closed, floor: int, drop_before: int | None) -> tuple[list[Segment], bool] | None:
    """Segments to replace next, and whether by their rows or by nothing."""
    gone = [
        segment
        for segment, end in zip(seen.segments, seen.ends, strict=True)
        if segment[-1].last < floor and (drop_before is None or end < drop_before)
    ]
    if gone:
        return gone, False
    for segment in seen.segments:
        if len(segment) > 1:
            return [segment], True
    for tier in TIERS:
        tail = _small_tail(seen.segments, tier)
        if len(tail) >= TIER_SEGMENTS:
            return tail, True
    return None


def _closed(table: Table, shard: int) -> _Closed:
    files = sorted(log_files(table, shard), key=lambda file: file.first)
    segments = [list(group) for _, group in groupby(files, key=lambda file: file.base)]
    ends = [segment[0].opened_at for segment in segments[1:]]
    return _Closed(segments[:-1], ends, table.transaction(layout.files_id(shard)) or 0)


def _small_tail(segments: list[Segment], limit: int) -> list[Segment]:
    tail: list[Segment] = []
    for segment in reversed(segments):
        if any(file.bulk for file in segment) or sum(file.size for file in segment) > limit:
            break
        tail.insert(0, segment)
    return tail


def _joined(table: Table, shard: int, segments: Sequence[Segment]) -> pa.Table:
    files = [file for segment in segments for file in segment]
    first = files[0]
    rows = pa.concat_tables(
        [part.select(_COLUMNS).cast(_FILE) for part in table.read([file.path for file in files], _COLUMNS)]
    )
    count = len(rows)
    if count != files[-1].last - first.first + 1:
        raise QueueClientError(f"{table.path}: offsets {first.first} to {files[-1].last} hold {count} rows")
    # dense offsets mean that the joined rows are numbered through
    rows = rows.set_column(0, "position", pa.array(range(count), pa.int64()))
    partition = [
        pa.array([shard] * count, pa.int32()),
        pa.array([first.base] * count, pa.int64()),
        pa.array([first.opened_at] * count, layout.INSTANT),
    ]
    return pa.Table.from_arrays([*partition, *rows.columns], schema=layout.MESSAGES)


def _replace(
    table: Table, shard: int, seen: _Closed, segments: Sequence[Segment], rows: Sequence[pa.Table]
) -> bool:
    bases = [segment[0].base for segment in segments]
    ids = {layout.files_id(shard): seen.number + 1}
    return commit(
        table,
        {layout.files_id(shard): seen.number},
        lambda token: table.replace({"shard": [shard], "base_offset": bases}, rows, ids, token),
    )
