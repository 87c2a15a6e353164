"""Splits the messages of shards into disjoint ranges for tasks of Spark. The tasks must have lakequeue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.operations import pool
from lakequeue.operations.message_states import TYPED_ATTRIBUTES, names_are
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.spark_access import quiet_about_pandas
from lakequeue.storage.messages.read import LogReader
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20
"""Approximate bytes of files, or of parts of files, that one task reads."""
RANGE_BYTES = 16 << 20
"""Bytes of files in one range of a view. A task reads one range at a time."""
PIECE_ROWS, PIECE_BYTES = 20_000, 2 << 20
"""Maximum number of messages, and maximum bytes of their files, in one value that a view passes to Spark."""
OPENING = 4 << 20
"""Bytes that are added to the size of each file, because a task must open the file."""
NO_OFFSET = (1 << 63) - 1
"""An offset that is higher than the offset of any message."""

_T = TypeVar("_T")

Place = tuple[Any, ...]
"""Queue, region and shard. For a piece of the shard, also the first and the last offset of the piece."""
Piece = tuple[int | None, int | None]


def packed(items: Iterable[tuple[_T, int]], most: int) -> list[list[_T]]:
    """Divides items, in order, into groups of about ``most`` bytes. ``items``: pairs of an item and its bytes."""
    groups: list[list[_T]] = []
    left = 0
    for item, size in items:
        if size > left or not groups:
            groups.append([])
            left = most
        groups[-1].append(item)
        left -= size
    return groups


def why_tasks_cannot_read(root: Root, spark: SparkSession) -> str | None:
    """Returns why tasks of a Spark session cannot read a root. Returns None if they can read the root."""
    path, options, wanted = root.path, tuple(root.engine.store.options.items()), version("lakequeue")

    def tried(batches: Iterator[Any]) -> Iterator[Any]:  # pickled with its code, as the task may have no lakequeue
        from importlib.metadata import version

        import pyarrow

        for batch in batches:
            try:
                found = version("lakequeue")
                reason = None if found == wanted else f"they have lakequeue {found}"
                from lakequeue.runtime.root import root_of_worker

                root_of_worker(path, options, "").rows()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            yield pyarrow.record_batch({"reason": pyarrow.array([reason] * len(batch), pyarrow.string())})

    try:
        with quiet_about_pandas():
            [[reason]] = spark.range(1).mapInArrow(tried, "reason string").collect()
    except Exception as error:  # another Python, or none; a session that is at fault says so in what comes next
        return first_line(error)
    return None if reason is None else str(reason)


def pieces_of(messages: Table) -> list[tuple[tuple[int, int], int]]:
    """Divides the messages of a shard. Returns first and last offset of each piece, and its approximate bytes."""
    found = []
    start = rows = size = 0  # the first piece begins below what is left of the log
    for file in LogReader(messages).log.files:
        step = max(1, min(PIECE_ROWS, file.rows * PIECE_BYTES // max(1, file.size)))
        for first in range(file.first, file.last + 1, step):
            if rows >= PIECE_ROWS or size >= PIECE_BYTES:
                found.append(((start, first - 1), size))
                start, rows, size = first, 0, 0
            taken = min(step, file.last + 1 - first)
            rows, size = rows + taken, size + file.size * taken // file.rows
    return [*found, ((start, NO_OFFSET), size)]


def joined(asked: Iterable[Place]) -> Iterator[tuple[Place, list[Piece]]]:
    """Joins consecutive pieces of a shard. Yields queue, region and shard with each list of joined pieces."""
    place: Place | None = None
    pieces: list[Piece] = []
    for queue, region, shard, *piece in asked:
        first, last = piece or (None, None)
        if place is not None and (place != (queue, region, shard) or first is None or first - 1 != pieces[-1][1]):
            yield place, pieces
            pieces = []
        place = queue, region, shard
        pieces.append((first, last))
    if place is not None:
        yield place, pieces


def within(place: Place, pieces: Sequence[Piece]) -> pc.Expression:
    """Returns the condition that selects the messages of consecutive pieces of a shard. If the last piece has no
    end offset, the condition also selects all later messages, and the messages of shards with higher numbers.
    """
    queue, region, number = place
    shard, offset = pa.scalar(number, pa.int32()), pc.field("log_offset")
    found, (first, _), (_, last) = pc.field("shard") == shard, pieces[0], pieces[-1]
    if first is not None:
        found &= offset >= first
        found = found | (pc.field("shard") > shard) if last is None else found & (offset <= last)
    return names_are(queue, region) & found


_JUDGED = {"offset": "log_offset", "message_attributes": TYPED_ATTRIBUTES}
"""Columns of the data source that have another name in ``JUDGED``."""


def tasks_of(root: Root, condition: pc.Expression) -> list[list[Place]]:
    """Divides the messages that may meet a condition into tasks of about ``TASK_BYTES``."""
    from lakequeue.operations.judged_log import surviving  # imports pyarrow.dataset, which other tasks do without
    from lakequeue.operations.relations import shards_of

    def of_shard(at: tuple[QueueRow, int]) -> list[tuple[Place, int]]:
        row, shard = at
        last = None if shard == row.shards - 1 else NO_OFFSET  # the queue may have more shards when tasks read
        return [
            (
                (row.name, row.region, shard, first, last if end == NO_OFFSET else end),
                size + OPENING * (first == 0),
            )
            for (first, end), size in pieces_of(root.engine.open(layout.messages_path(root.path, row.key, shard)))
        ]

    with root.storage_errors():
        found = [each for pieces in pool.concurrently(of_shard, shards_of(root, condition)) for each in pieces]
    known = [[within(place, [piece])] for each, _ in found for place, [piece] in joined([each])]
    return packed((found[index] for index in surviving(known, condition)), TASK_BYTES)


def read(
    root: Root, condition: pc.Expression, asked: Sequence[Place], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the data source's columns for those of a task's messages that meet the condition."""
    from lakequeue.operations.relations import judged  # as above

    names = [_JUDGED.get(name, name) for name in columns]
    for place, pieces in joined(asked):
        for batch in judged(root).to_batches(columns=names, filter=condition & within(place, pieces)):
            yield pa.RecordBatch.from_arrays(batch.columns, names=list(columns))
