"""Reads the messages of a queue, or of all queues of a region, with their states, in tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.operations.judge import TYPED_ATTRIBUTES, names_are
from lakequeue.operations.ranges import Range, ranges_of, within
from lakequeue.operations.tasks import packed
from lakequeue.runtime.root import Root
from lakequeue.storage import layout

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
