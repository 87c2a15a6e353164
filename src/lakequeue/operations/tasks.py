"""What tasks of Spark read: ranges of offsets, dealt out to them, that hold every message of a queue once.

They do so whichever snapshots of its log the tasks open. Tasks need this lakequeue, and a way to the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from importlib.metadata import version
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.operations import pool
from lakequeue.operations.judge import TYPED_ATTRIBUTES, names_are
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.spark_access import quiet_about_pandas
from lakequeue.storage.messages.read import LogFile, LogReader
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20
"""Size of the files that one task reads, or of its part of one."""
OPENING = 4 << 20
"""What opening a file costs, as bytes; Spark counts it the same."""

_T = TypeVar("_T")


def packed(items: Iterable[tuple[_T, int]]) -> list[list[_T]]:
    """Items with their bytes as groups of about ``TASK_BYTES``, in order."""
    groups: list[list[_T]] = []
    left = 0
    for item, size in items:
        if size > left or not groups:
            groups.append([])
            left = TASK_BYTES
        groups[-1].append(item)
        left -= size + OPENING
    return groups


def cut(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """The range of rows or offsets of one file as ranges of about ``TASK_BYTES``."""
    step = -(-(last - first + 1) // max(1, -(-size // TASK_BYTES)))
    for start in range(first, last + 1, step):
        yield start, min(start + step - 1, last)


def why_tasks_cannot_read(root: Root, spark: SparkSession) -> str | None:
    """Why the session's tasks cannot read a root, or None."""
    path, options, wanted = root.path, root.engine.store.options, version("lakequeue")

    def tried(batches: Iterator[Any]) -> Iterator[Any]:  # pickled with its code, as the task may have no lakequeue
        from importlib.metadata import version

        import pyarrow

        for batch in batches:
            try:
                found = version("lakequeue")
                reason = None if found == wanted else f"they have lakequeue {found}"
                from lakequeue.model.clock import SystemClock
                from lakequeue.runtime.root import Root
                from lakequeue.storage.stores import Store

                Root(Store(path, options), SystemClock(), "", 0, None, False).rows()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            yield pyarrow.record_batch({"reason": pyarrow.array([reason] * len(batch), pyarrow.string())})

    try:
        with quiet_about_pandas():
            [[reason]] = spark.range(1).mapInArrow(tried, "reason string").collect()
    except Exception as error:  # another Python, or none; a session that is at fault says so in what comes next
        return first_line(error)
    return None if reason is None else str(reason)


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


_JUDGED = {"offset": "log_offset", "message_attributes": TYPED_ATTRIBUTES}
"""The names of columns of the data source in ``JUDGED``, where they differ."""

Ranges = dict[str, list[Range]]
"""What one task reads, by queue."""


def chosen(
    region: str,
    queue: str | None,
    states: Sequence[str],
    offsets: tuple[int | None, int | None],
    sent: tuple[datetime | None, datetime | None],
) -> pc.Expression:
    """The condition for the messages of a queue, or of all of a region.

    Args:
        region, queue: None is every queue of the region.
        states: none means all.
        offsets, sent: from the first on, before the second; None is no bound.
    """
    found = pc.field("region") == region if queue is None else names_are(queue, region)
    if states:
        found &= pc.field("state").isin(pa.array(states))
    instants = [None if at is None else pa.scalar(at, layout.INSTANT) for at in sent]
    for name, (first, end) in (("log_offset", offsets), ("sent_at", instants)):
        if first is not None:
            found &= pc.field(name) >= first
        if end is not None:
            found &= pc.field(name) < end
    return found


def tasks_of(root: Root, condition: pc.Expression) -> list[Ranges]:
    """What tasks have to read for the messages that meet a condition."""
    from lakequeue.operations.judged_log import surviving  # imports pyarrow.dataset, which other tasks do without

    with root.storage_errors():
        rows = [row for row in root.rows() if row.deleted_at is None]
        known = [[names_are(row.name, row.region)] for row in rows]
        rows = [rows[index] for index in surviving(known, condition)]
        found = [(row.name, *each) for row in rows for each in ranges_of(root, row)]
    known = [[names_are(name, root.region) & within([range_])] for name, range_, _ in found]
    left = (found[index] for index in surviving(known, condition))
    tasks: list[Ranges] = []
    for group in packed(((name, range_), size) for name, range_, size in left):
        ranges: Ranges = {}
        for name, range_ in group:
            ranges.setdefault(name, []).append(range_)
        tasks.append(ranges)
    return tasks


def read(root: Root, condition: pc.Expression, ranges: Ranges, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Columns of the data source of the messages of a task that meet the condition."""
    from lakequeue.operations.relations import judged  # as above

    messages, names = judged(root), [_JUDGED.get(name, name) for name in columns]
    for queue, asked in ranges.items():
        wanted = condition & names_are(queue, root.region) & within(asked)
        for batch in messages.to_batches(columns=names, filter=wanted):
            yield pa.RecordBatch.from_arrays(batch.columns, names=list(columns))
