"""Browses the stored messages of a queue without changing them, in batches of bounded size."""

from __future__ import annotations

import base64
import heapq
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import count, islice
from typing import TYPE_CHECKING, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.arguments import check_whole
from lakequeue.model.clock import to_micros
from lakequeue.model.sequence_numbers import sequence_number
from lakequeue.model.states import MessageState
from lakequeue.operations.results import WITH_VISIBLE_AT, PeekedMessage, peeked_message
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
GROWTH = 4
"""Factor by which the batches of a long search may grow."""
BYTES = 8 * 2**20
"""Size in memory at which the batches of a queue take no more rows; those of a shard take an eighth at least."""

Integers = npt.NDArray[np.int64]
_Page = TypeVar("_Page")


@attrs.frozen(eq=False)
class Batch:
    """Stored messages of one shard, in the order of sending."""

    queue: OpenQueue
    shard: ShardService
    now: int
    """Instant of their states, in microseconds."""
    runs: list[tuple[Run, MessageState]]
    """Parts of runs with their state, from ``ShardMachine``."""
    offsets: Integers
    rows: pa.Table
    """Their rows in the log, one per offset."""

    @cached_property
    def run_numbers(self) -> Integers:
        """The index in ``runs`` of each message."""
        return np.searchsorted([run.first for run, _ in self.runs], self.offsets, side="right") - 1

    def message(self, index: int) -> PeekedMessage:
        """The message at an index in the batch."""
        run, state = self.runs[self.run_numbers[index]]
        return peeked_message(self.rows.slice(index, 1).to_pylist()[0], state, run)

    def table(self, names: Collection[str]) -> pa.Table:
        """The messages as a condition sees them: the named columns of ``COLUMNS``, at least one."""
        chosen = [name for name in COLUMNS if name in names] or ["message_id"]
        return pa.table({name: COLUMNS[name][1](self).cast(COLUMNS[name][0]) for name in chosen})


Parts = Callable[[ShardMachine, int, int, int], list[tuple[Run, MessageState]]]
"""Selects messages of a shard: ``ShardMachine.peek`` or ``ShardMachine.peek_history``."""


def batches(
    queue: OpenQueue,
    shard: ShardService,
    rows: int,
    parts: Parts = ShardMachine.peek,
    start: int = 0,
    growth: int = 1,
) -> Iterator[Batch]:
    """The messages stored in a shard from an offset on, oldest first, in batches of bounded size.

    The size of a batch is `rows`, or half the number of messages before it if that is more, up to `growth` times
    `rows`. Each batch shows the states of its own instant, so a slow reader sees later changes. Call it within
    ``OpenQueue.service``.
    """
    most, browsed = growth * rows, 0
    while True:
        instant = queue.now()
        runs = shard.query(lambda machine: parts(machine, instant, rows, start))  # noqa: B023
        if not runs:
            return
        most_bytes = BYTES // min(len(queue.shards), 8)
        for offsets, table in _read(shard, [run for run, _ in runs], rows, most_bytes):
            yield Batch(queue, shard, instant, runs, offsets, table)
            browsed += len(offsets)
        start = runs[-1][0].last + 1
        rows = min(max(rows, browsed // 2), most)


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
            found.append(_found(search(shard, parts=ShardMachine.peek_history, start=start), condition))
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
            yield from map(batch.message, range(len(batch.offsets)))
        else:
            yield from map(batch.message, predicate.select(batch.table(predicate.columns)).tolist())


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
            tables.append(table.select(LOG_SCHEMA.names).cast(LOG_SCHEMA))
            first, rows, size = first + len(table), rows + len(table), size + table.nbytes
            if rows >= most or size >= most_bytes:
                yield np.concatenate(offsets), pa.concat_tables(tables)
                offsets, tables, rows, size = [], [], 0, 0
    if rows:
        yield np.concatenate(offsets), pa.concat_tables(tables)


def _logged(name: str) -> Callable[[Batch], pa.ChunkedArray]:
    return lambda batch: batch.rows[name]


def _of_runs(value: Callable[[Run, MessageState], object], type_: pa.DataType) -> Callable[[Batch], pa.Array]:
    return lambda batch: pa.array([value(*part) for part in batch.runs], type_).take(pa.array(batch.run_numbers))


_states = _of_runs(lambda run, state: state.value, pa.string())
_visible_from = _of_runs(lambda run, state: run.visible_at, layout.INSTANT)


def _constant(value: Callable[[Batch], object], type_: pa.DataType) -> Callable[[Batch], pa.Array]:
    return lambda batch: pa.repeat(pa.scalar(value(batch), type_), len(batch.offsets))


def _visible_at(batch: Batch) -> pa.Array:
    shown = pc.is_in(_states(batch), pa.array([state.value for state in WITH_VISIBLE_AT]))
    return pc.if_else(shown, pc.coalesce(_visible_from(batch), batch.rows["sent_at"].combine_chunks()), None)


def _sequence_numbers(batch: Batch) -> pa.Array:
    if not batch.queue.fifo:
        return pa.nulls(len(batch.offsets), pa.string())
    return pa.array([sequence_number(batch.shard.shard, offset) for offset in batch.offsets.tolist()], pa.string())


def _whole(batch: Batch, name: str) -> pa.Array:
    return batch.rows[name].combine_chunks()


def source_names(arns: pa.Array) -> pa.Array:
    """The names in the ARNs of queues."""
    return pc.list_element(pc.split_pattern(arns, ":"), 5) if arns.null_count < len(arns) else arns


def reasons(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Why the last handlers of dead letters failed, in JSON."""
    return pc.if_else(pc.is_valid(rows["source_receive_count"]), rows["send_id"], None)


def _ages(batch: Batch) -> pa.Array:
    return pc.divide(pc.subtract(batch.now, batch.rows["sent_at"].cast(pa.int64())).cast(pa.float64()), 1e6)


def attribute_texts(attributes: pa.MapArray) -> pa.MapArray:
    """Values of message attributes as text; binary values in base64."""
    texts = pc.struct_field(attributes.items, "string_value")
    binary = pc.struct_field(attributes.items, "binary_value")
    if binary.null_count < len(binary):
        encoded = [None if value is None else base64.b64encode(value).decode() for value in binary.to_pylist()]
        texts = pc.coalesce(texts, pa.array(encoded, pa.string()))
    return pa.MapArray.from_arrays(attributes.offsets, attributes.keys, texts)


COLUMNS: dict[str, tuple[pa.DataType, Callable[[Batch], pa.Array | pa.ChunkedArray]]] = {
    "queue": (pa.string(), _constant(lambda batch: batch.queue.name, pa.string())),
    "region": (pa.string(), _constant(lambda batch: batch.queue.region, pa.string())),
    "message_id": (pa.string(), _logged("message_id")),
    "state": (pa.string(), _states),
    "group_id": (pa.string(), _logged("group_id")),
    "sent_at": (layout.INSTANT, _logged("sent_at")),
    "visible_at": (layout.INSTANT, _visible_at),
    "receive_count": (pa.int32(), _of_runs(lambda run, state: run.receive_count, pa.int32())),
    "first_received_at": (layout.INSTANT, _of_runs(lambda run, state: run.first_received_at, layout.INSTANT)),
    "age": (pa.float64(), _ages),
    "body": (pa.string(), _logged("body")),
    "message_attributes": (
        pa.map_(pa.string(), pa.string()),
        lambda batch: attribute_texts(_whole(batch, "message_attributes")),
    ),
    "delay_seconds": (pa.float64(), _logged("delay_seconds")),
    "dedup_id": (pa.string(), _logged("dedup_id")),
    "source_queue": (pa.string(), lambda batch: source_names(_whole(batch, "source_queue"))),
    "first_sent_at": (layout.INSTANT, _logged("first_sent_at")),
    "dead_letter_reason": (pa.string(), lambda batch: reasons(batch.rows)),
    "sequence_number": (pa.string(), _sequence_numbers),
    "shard": (pa.int32(), _constant(lambda batch: batch.shard.shard, pa.int32())),
    "log_offset": (pa.int64(), lambda batch: pa.array(batch.offsets)),
}
"""Columns that a condition may name, with type and computation; the same as those of SQL's ``messages``."""
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in COLUMNS.items()])

LOG_SCHEMA = pa.schema(
    [
        layout.MESSAGES.field(name)
        for name in (
            *("message_id", "body", "message_attributes", "group_id", "dedup_id", "sent_at", "delay_seconds"),
            *("source_queue", "source_receive_count", "first_sent_at", "trace_header", "send_id"),
        )
    ]
)
