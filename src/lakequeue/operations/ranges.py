"""Ranges of offsets that tasks of Spark read.

Together they hold every message of a queue once, whichever snapshots of its log the tasks of a query open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.operations import pool
from lakequeue.operations.tasks import cut
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.messages.read import LogFile, LogReader

RANGE_BYTES = 16 << 20
"""Size of files at which a range ends. Spark deals the ranges of a query out to its cores."""
_NO_OFFSET = (1 << 63) - 1


class Range(NamedTuple):
    """Offsets of a shard. One without an end goes on with all later shards."""

    shard: int | None
    first: int | None
    last: int | None


PIECE_ROWS, PIECE_BYTES = 20_000, 2 << 20
"""Messages, and size of their files, that are one value of Spark in a view."""


def ranges_of(root: Root, queue: QueueRow) -> list[tuple[Range, int]]:
    """Ranges that hold all messages of a queue, with their bytes.

    The last one has no end: a queue that is created anew under the name may have more shards.
    """

    def of_shard(shard: int) -> list[tuple[Range, int]]:
        starts = list(_starts(_log_files(root, queue, shard)))
        ends = [*(start - 1 for start, _ in starts[1:]), None if shard == queue.shards - 1 else _NO_OFFSET]
        return [(Range(shard, start, end), size) for (start, size), end in zip(starts, ends, strict=True)]

    found = pool.each(of_shard, range(queue.shards))
    return [each for ranges in found for each in ranges]


def pieces_of(root: Root, queue: QueueRow, shard: int) -> list[list[tuple[int, int]]]:
    """First and last offsets of small pieces, by range, that together hold all messages of a shard."""
    files = _log_files(root, queue, shard)
    cuts = [0]  # the first ranges begin below what is left of the log
    for file in files:
        rows = file.last - file.first + 1
        step = max(1, min(PIECE_ROWS, rows * PIECE_BYTES // max(1, file.size)))
        cuts += [first for first in range(file.first, file.last + 1, step) if first > cuts[-1]]
    ends = [*(first - 1 for first in cuts[1:]), _NO_OFFSET]
    starts = {start for start, _ in _starts(files)}
    found: list[list[tuple[int, int]]] = [[]]
    for first, last in zip(cuts, ends, strict=True):
        if first in starts and found[-1]:
            found.append([])
        found[-1].append((first, last))
    return found


def _log_files(root: Root, queue: QueueRow, shard: int) -> Sequence[LogFile]:
    return LogReader(root.engine.open(layout.messages_path(root.path, queue.key, shard))).log.files


def _starts(files: Sequence[LogFile]) -> Iterator[tuple[int, int]]:
    start = size = 0
    for file in files:
        for first, last in cut(file.first, file.last, file.size):
            if size >= RANGE_BYTES:
                yield start, size
                start, size = first, 0
            size += file.size * (last - first + 1) // (file.last - file.first + 1)
    yield start, size


def within(ranges: Sequence[Range]) -> pc.Expression:
    """The condition that a message lies in one of the ranges, which are in order."""
    return reduce(or_, map(_within, joined(ranges)))


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Ranges in order, neighbours as one: each stands in the condition of every batch."""
    found: list[Range] = []
    for each in ranges:
        if found and found[-1].shard == each.shard and found[-1].last == (each.first or 0) - 1:
            found[-1] = found[-1]._replace(last=each.last)
        else:
            found.append(each)
    return found


def _within(asked: Range) -> pc.Expression:
    place, offset = pc.field("shard"), pc.field("log_offset")
    shard = pa.scalar(asked.shard, pa.int32())
    if asked.last is None:
        return ((place == shard) & (offset >= asked.first)) | (place > shard)
    return (place == shard) & (offset >= asked.first) & (offset <= asked.last)
