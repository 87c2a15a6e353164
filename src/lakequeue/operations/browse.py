"""Browses the stored messages of a queue without changing them, in batches of bounded size."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import count, islice
from typing import TYPE_CHECKING, TypeVar

import attrs
import numpy as np
import pyarrow as pa

from lakequeue.model.arguments import check_whole
from lakequeue.model.clock import to_micros
from lakequeue.model.states import MessageState
from lakequeue.operations.judge import (
    JUDGED,
    SCHEMA,
    TYPED_ATTRIBUTES,
    Integers,
    Judge,
    integers,
    loaded_runs,
    log_columns,
)
from lakequeue.operations.results import PeekedMessage, peeked_message
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Run
from lakequeue.shard.spans import joined
from lakequeue.storage import layout

if TYPE_CHECKING:
    from lakequeue.conditions.predicate import Predicate
    from lakequeue.model.interrupts import Interrupt

ROWS = 4096
"""Maximum number of messages in the first batch."""
PAGE = 256
"""Messages of an export in memory beside its batches."""
_FEW = 16
"""Messages that are made of a batch at a time, unless they have more than `_FEW_BYTES` on average."""
_FEW_BYTES = 16 << 10
GROWTH = 4
"""Factor by which the batches of a long search may grow."""
BYTES = 8 * 2**20
"""Size in memory at which the batches of a queue take no more rows; those of a shard take an eighth at least."""

_Page = TypeVar("_Page")
_LOGGED = pa.schema([layout.MESSAGES.field(name) for name in log_columns(JUDGED.names)])
_PEEKED = [
    *("message_id", "body", "state", "receive_count", "sent_at", "visible_at", TYPED_ATTRIBUTES),
    *("group_id", "source_queue", "dedup_id", "trace_header", "dead_letter_reason"),
]


@attrs.frozen(eq=False)
class Batch:
    """Stored messages of one shard, in the order of sending."""

    judge: Judge
    """Knows the runs that the messages lie in."""
    offsets: Integers
    rows: pa.Table
    """Their rows in the log, one per offset."""

    def table(self, names: Collection[str]) -> pa.Table:
        """Columns of `JUDGED` of the messages, at least one."""
        return self.judge.judge(self.offsets, integers(self.rows["sent_at"]), self.rows, names or ["message_id"])

    @cached_property
    def states(self) -> list[MessageState]:
        """The state of each message."""
        return list(map(MessageState, self.table({"state"})["state"].to_pylist()))

    @cached_property
    def _peeked(self) -> pa.Table:
        return self.table(_PEEKED)

    def messages(self, indexes: Integers) -> Iterator[PeekedMessage]:
        """The messages at indexes in the batch; one at a time where bodies are large, without a copy of them."""
        few = _FEW if self.rows.nbytes <= _FEW_BYTES * len(self.rows) else 1
        for start in range(0, len(indexes), few):
            part = indexes[start : start + few]
            rows = self._peeked.slice(part[0], 1) if few == 1 else self._peeked.take(pa.array(part))
            for row in rows.to_pylist():
                yield peeked_message(row, row.pop(TYPED_ATTRIBUTES))


def batches(
    queue: OpenQueue,
    shard: ShardService,
    rows: int,
    start: int = 0,
    growth: int = 1,
    history: bool = False,
) -> Iterator[Batch]:
    """The messages stored in a shard from an offset on, oldest first, in batches of bounded size.

    With ``history``, those deleted messages that can be rewound.

    The size of a batch is `rows`, or half the number of messages before it if that is more, up to `growth` times
    `rows`. Each batch shows the states of its own instant, so a slow reader sees later changes. Call it within
    ``OpenQueue.service``.
    """
    most, browsed = growth * rows, 0
    while True:
        instant = queue.now()
        runs, judge = shard.query(partial(_peek, queue, shard.shard, instant, rows, start, history))
        if not runs:
            return
        most_bytes = BYTES // min(len(queue.shards), 8)
        for offsets, found in _read(shard, runs, rows, most_bytes):
            yield Batch(judge, offsets, found)
            browsed += len(offsets)
        start = runs[-1].last + 1
        rows = min(max(rows, browsed // 2), most)


def _peek(
    queue: OpenQueue, shard: int, now: int, limit: int, start: int, history: bool, machine: ShardMachine
) -> tuple[list[Run], Judge]:
    """The next runs of a shard, and the judge of their messages."""
    runs, held_from = machine.peek(now, limit, start, history), machine.held_from(now)
    head = machine.head
    known = [run for run in runs if run.first < head.head_offset]  # fresh messages are in no run
    loaded = loaded_runs(known, settled=history)
    return runs, Judge.of(queue.name, queue.region, shard, head, now, held_from, loaded)


def peek(
    queue: OpenQueue,
    where: str | None,
    limit: int,
    interrupt: Interrupt | None,
    collect: Callable[[Iterator[PeekedMessage]], _Page],
) -> _Page:
    """The oldest messages of a queue, or the oldest that meet a condition over ``SCHEMA``.

    `collect` makes the result of them, while not all of them need be in memory.
    """
    with queue.service("peek") as call:
        check_whole("limit", limit)
        condition = predicate(where, interrupt)
        search = _search(queue, condition, limit)
        found = _oldest((_found(search(shard), condition) for shard in queue.shards), limit)
        taken = count()
        page = collect(message for message, _ in zip(found, taken))  # noqa: B905
        call.messages = next(taken)
        return page


def export(queue: OpenQueue, where: str | None, interrupt: Interrupt | None) -> Iterator[PeekedMessage]:
    """All messages of a queue that meet a condition, by time of sending, in bounded memory.

    What is stored throughout appears once; what is sent or deleted meanwhile may appear.
    """
    condition = predicate(where, interrupt)
    by_shard = [_found(batches(queue, shard, ROWS), condition) for shard in queue.shards]
    merged = heapq.merge(*by_shard, key=lambda message: message.sent_at)
    while True:
        with queue.service("export") as call:  # one record a page: the caller may call other verbs in between
            page = list(islice(merged, PAGE))
            call.messages = len(page)
        if not page:
            return
        yield from page


def peek_history(
    queue: OpenQueue,
    since: datetime,
    condition: Predicate | None,
    limit: int,
    collect: Callable[[Iterator[PeekedMessage]], _Page],
) -> _Page:
    """The same for deleted messages that can be rewound and were sent at ``since`` or later (RWD-4)."""
    with queue.service("peek_history"):
        search, instant = _search(queue, condition, limit), to_micros(since)
        found = []
        for shard in queue.shards:
            start = shard.log().first_sent_at_or_after(instant)
            found.append(_found(search(shard, start=start, history=True), condition))
        return collect(_oldest(found, limit))


def predicate(where: str | None, interrupt: Interrupt | None = None) -> Predicate | None:
    """Compiles a condition over ``SCHEMA``, if there is one; InvalidParameterValue if it is malformed."""
    if where is None:
        return None
    from lakequeue.conditions.predicate import Predicate

    return Predicate(where, SCHEMA, interrupt=interrupt)


def _search(queue: OpenQueue, predicate: Predicate | None, limit: int) -> Callable[..., Iterator[Batch]]:
    """`batches` with sizes for a search by a condition, or for the first messages without one."""
    if predicate is None:
        return partial(batches, queue, rows=min(limit, ROWS))
    return partial(batches, queue, rows=ROWS, growth=GROWTH)


def _oldest(by_shard: Iterable[Iterator[PeekedMessage]], limit: int) -> Iterator[PeekedMessage]:
    return islice(heapq.merge(*by_shard, key=lambda message: message.sent_at), min(limit, sys.maxsize))


def _found(browsed: Iterable[Batch], predicate: Predicate | None) -> Iterator[PeekedMessage]:
    for batch in browsed:
        if predicate is None:
            yield from batch.messages(np.arange(len(batch.offsets)))
        else:
            yield from batch.messages(predicate.select(batch.table(predicate.columns)))


def _read(
    shard: ShardService, runs: Sequence[Run], most: int, most_bytes: int
) -> Iterator[tuple[Integers, pa.Table]]:
    offsets: list[Integers] = []
    tables: list[pa.Table] = []
    rows = size = 0
    for first, last in joined((run.first, run.last) for run in runs):
        while first <= last:
            first, table = shard.rows(first, last)
            offsets.append(np.arange(first, first + len(table)))
            tables.append(table.select(_LOGGED.names).cast(_LOGGED))
            first, rows, size = first + len(table), rows + len(table), size + table.nbytes
            if rows >= most or size >= most_bytes:
                yield np.concatenate(offsets), pa.concat_tables(tables)
                offsets, tables, rows, size = [], [], 0, 0
    if rows:
        yield np.concatenate(offsets), pa.concat_tables(tables)
