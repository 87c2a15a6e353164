"""Reads the stored messages of a queue in batches of bounded size, without changing them."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.arguments import Condition, check_whole
from lakequeue.model.clock import to_micros
from lakequeue.model.states import MessageState
from lakequeue.operations.message_states import (
    JUDGED,
    SCHEMA,
    TYPED_ATTRIBUTES,
    Integers,
    Judge,
    integers,
    log_columns,
    stored_runs,
)
from lakequeue.operations.results import PeekedMessage, PeekedMessages, peeked_message
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Run
from lakequeue.shard.spans import joined
from lakequeue.storage import layout
from lakequeue.storage.ledger import run_rows

if TYPE_CHECKING:
    from lakequeue.conditions.predicate import Predicate
    from lakequeue.model.clock import Interrupt

ROWS = 4096
"""Maximum number of messages in the first batch."""
PAGE = 256
"""Number of messages that an export collects before it yields them."""
FEW_BACK = 16
"""Number of messages in the first read when a shard is read from its end."""
_FEW = 16
"""Number of messages that are built together. Messages of over ``_FEW_BYTES`` on average are built one by one."""
_FEW_BYTES = 16 << 10
GROWTH = 4
"""Maximum size of a later batch of a search, as a multiple of the first batch."""
BYTES = 8 * 2**20
"""Maximum bytes of a queue's batches in memory. Each shard gets an equal part, but at least ``BYTES / 8``."""

Where: TypeAlias = str | Condition | None
_Page = TypeVar("_Page")
_LOGGED = pa.schema([layout.MESSAGES.field(name) for name in log_columns(JUDGED.names)])
PEEKED = [
    *("message_id", "body", "state", "receive_count", "sent_at", "visible_at", TYPED_ATTRIBUTES, "shard"),
    *(
        "group_id",
        "source_queue",
        "moved_at",
        "dedup_id",
        "trace_header",
        "dead_letter_reason",
        "consumer",
        "attempts",
    ),
]


@attrs.frozen(eq=False)
class MessageBatch:
    """Stored messages of one shard, in the order of sending."""

    judge: Judge
    """Computes the states of the batch's messages."""
    offsets: Integers
    rows: pa.Table
    """Rows of the log, one row for each offset."""

    def table(self, names: Collection[str]) -> pa.Table:
        """Returns the batch as a table with the columns of ``JUDGED`` in ``names``; if empty, ``message_id``."""
        return self.judge.judge(self.offsets, integers(self.rows["sent_at"]), self.rows, names or ["message_id"])

    @cached_property
    def states(self) -> list[MessageState]:
        return list(map(MessageState, self.table({"state"})["state"].to_pylist()))

    @cached_property
    def _peeked(self) -> pa.Table:
        return self.table(PEEKED)

    def found(self, condition: Predicate | None, newest: bool = False) -> Iterator[tuple[int, PeekedMessage]]:
        """Yields each message that meets ``condition``, with its index in the batch. None selects all messages."""
        if condition is None:
            indexes: Integers = np.arange(len(self.offsets))
        else:
            indexes = condition.select(self.table(condition.columns))
        indexes = indexes[::-1] if newest else indexes
        return zip(indexes.tolist(), self.messages(indexes), strict=True)

    def messages(self, indexes: Integers) -> Iterator[PeekedMessage]:
        """Yields the messages at these indexes of the batch. Builds large messages one by one."""
        few = _FEW if self.rows.nbytes <= _FEW_BYTES * len(self.rows) else 1
        for start in range(0, len(indexes), few):
            part = indexes[start : start + few]
            rows = self._peeked.slice(part[0], 1) if few == 1 else self._peeked.take(pa.array(part))
            for row in rows.to_pylist():
                yield peeked_message(row, row.pop(TYPED_ATTRIBUTES), self.judge.attributes)


def batches(
    queue: OpenQueue,
    shard: OpenShard,
    rows: int,
    start: int = 0,
    growth: int = 1,
    history: bool = False,
    newest: bool = False,
) -> Iterator[MessageBatch]:
    """Yields the stored messages of a shard in batches, from offset ``start`` on.

    The first batch has up to ``rows`` messages. Later batches grow, up to ``growth`` times ``rows``. A batch shows
    the states at the time when it was read. Call this function within ``OpenQueue.service``.

    Args:
        history: True for rewindable messages instead of stored messages.
        newest: True for batches in descending order from ``start``. Within a batch, messages ascend.
    """
    most, browsed = growth * rows, 0

    def peek(machine: ShardMachine) -> tuple[list[Run], Judge]:
        now, head = queue.now(), machine.head
        runs, held_from = machine.peek(now, rows, start, history, newest), machine.held_from(now)
        known = [run for run in runs if run.first < head.head_offset]  # fresh messages are in no run
        loaded = stored_runs(run_rows(known, [], None, settled=history))
        return runs, Judge.of(queue.name, queue.region, shard.number, head, now, held_from, loaded)

    while True:
        runs, judge = shard.ledger.query(peek)
        if not runs:
            return
        most_bytes = BYTES // min(len(queue.shards), 8)
        read = _read_back(shard, runs, most_bytes) if newest else _read(shard, runs, rows, most_bytes)
        for offsets, found in read:
            yield MessageBatch(judge, offsets, found)
            browsed += len(offsets)
        start = runs[0].first - 1 if newest else runs[-1].last + 1
        rows = min(max(rows, browsed // 2), most)


class _Step(NamedTuple):
    """A step of a search: a message that meets the condition, or the end of a batch if ``message`` is None."""

    came_at: datetime
    shard: int
    offset: int
    message: PeekedMessage | None


@attrs.define(eq=False)
class Search:
    """Messages of a queue in the order of arrival. Iterate once, within ``OpenQueue.service``.

    Attributes:
        condition: a condition over ``SCHEMA``; None for all messages.
        limit: maximum number of messages to find.
        places: offset at which the search begins, for each shard; None to read all. With ``newest``, the search
            begins below the offset. The search sets ``places`` to the offsets where the next search continues.
        newest: True for the newest messages first.
        since: only messages that arrived at this instant or later. None for all.
        history: True for rewindable messages instead of stored messages (RWD-4).
        budget: maximum number of messages to test, so that a search for a rare message ends.
        found: number of messages that met the condition.
        tested: number of tested messages.
        unfinished: True if the search ended because it had tested ``budget`` messages.
    """

    queue: OpenQueue
    condition: Predicate | None
    limit: int
    places: list[int] | None = None
    newest: bool = attrs.field(default=False, kw_only=True)
    since: datetime | None = attrs.field(default=None, kw_only=True)
    history: bool = attrs.field(default=False, kw_only=True)
    budget: int | None = attrs.field(default=None, kw_only=True)
    found: int = attrs.field(default=0, init=False)
    tested: int = attrs.field(default=0, init=False)
    unfinished: bool = attrs.field(default=False, init=False)

    def __iter__(self) -> Iterator[PeekedMessage]:
        shards, places = self.queue.shards, self.places
        self.queue.learn_of_shards()
        if places is None and self.newest:
            places = [shard.ledger.query(lambda machine: machine.log.end) for shard in shards]
        # messages that come to an added shard later are newer than a page that began before
        places = self.places = [*(places or ()), *(0 for _ in shards)][: len(shards)]
        by_shard = [self._steps(*each) for each in zip(shards, places, strict=True)]
        for step in heapq.merge(*by_shard, key=attrgetter("came_at"), reverse=self.newest):
            if self.since is not None and step.came_at < self.since:
                return
            if step.message is not None:
                self.found += 1
                yield step.message
            places[step.shard] = step.offset + (not self.newest)
            if self.found >= self.limit:
                return
            if step.message is None and self.budget is not None and self.tested >= self.budget:
                self.unfinished = True
                return

    def _steps(self, shard: OpenShard, place: int) -> Iterator[_Step]:
        if self.since is not None and not self.newest:
            place = max(place, shard.ledger.log().first_sent_at_or_after(to_micros(self.since)))
        if self.condition is None:
            rows, growth = min(self.limit, ROWS), 1
        else:
            share = ROWS if self.budget is None else max(1, self.budget // len(self.queue.shards))
            rows, growth = min(ROWS, share), GROWTH
        start = place - 1 if self.newest else place
        for batch in batches(self.queue, shard, rows, start, growth, self.history, self.newest):
            self.tested += len(batch.offsets)
            for index, message in batch.found(self.condition, self.newest):
                yield _Step(batch.rows["sent_at"][index].as_py(), shard.number, int(batch.offsets[index]), message)
            end = 0 if self.newest else -1
            yield _Step(batch.rows["sent_at"][end].as_py(), shard.number, int(batch.offsets[end]), None)


def peek(queue: OpenQueue, where: Where, limit: int, interrupt: Interrupt | None) -> list[PeekedMessage]:
    """Returns the oldest messages, up to ``limit``. ``where`` is a condition over ``SCHEMA``, or None for all."""
    with queue.service("peek") as call:
        check_whole("limit", limit)
        found = PeekedMessages(Search(queue, predicate(where, interrupt), limit))
        call.messages = len(found)
    return found


def page(search: Search, collect: Callable[[Search], _Page]) -> _Page:
    """Calls the function ``collect`` with a search, and returns its result. Counts as one call on the queue."""
    with search.queue.service("peek_history" if search.history else "peek") as call:
        result = collect(search)
        call.messages = search.found
    return result


def export(queue: OpenQueue, where: Where, interrupt: Interrupt | None) -> Iterator[PeekedMessage]:
    """Yields messages that meet a condition, by send time. May miss messages that are sent meanwhile."""
    condition = predicate(where, interrupt)
    found = iter(Search(queue, condition, sys.maxsize))
    while True:
        with queue.service("export") as call:  # one record a page: the caller may call other verbs in between
            part = list(islice(found, PAGE))
            call.messages = len(part)
        if not part:
            return
        yield from part


def predicate(where: Where, interrupt: Interrupt | None = None) -> Predicate | None:
    """Compiles a condition over ``SCHEMA``. Returns None without a condition. Raises InvalidParameterValue."""
    if where is None:
        return None
    from lakequeue.conditions.predicate import Predicate

    return Predicate(where, SCHEMA, interrupt=interrupt)


def _read(
    shard: OpenShard, runs: Sequence[Run], most: int, most_bytes: int
) -> Iterator[tuple[Integers, pa.Table]]:
    offsets: list[Integers] = []
    tables: list[pa.Table] = []
    rows = size = 0
    for first, last in joined((run.first, run.last) for run in runs):
        while first <= last:
            first, found = shard.reader.rows(first, last)
            table, at = found.select(_LOGGED.names).cast(_LOGGED), np.arange(first, first + len(found))
            if table["body"].null_count:  # deleted, and emptied, since the runs were read; a filter copies bodies
                whole = pc.is_valid(table["body"])
                table, at = table.filter(whole), at[whole.to_numpy()]
            offsets.append(at)
            tables.append(table)
            first, rows, size = first + len(found), rows + len(table), size + table.nbytes
            if rows >= most or size >= most_bytes:
                yield np.concatenate(offsets), pa.concat_tables(tables)
                offsets, tables, rows, size = [], [], 0, 0
    if rows:
        yield np.concatenate(offsets), pa.concat_tables(tables)


def _read_back(shard: OpenShard, runs: Sequence[Run], most_bytes: int) -> Iterator[tuple[Integers, pa.Table]]:
    """Reads a shard backwards from its end, in parts. Yields the offsets and rows of each part."""
    rows = FEW_BACK
    for first, last in reversed(joined((run.first, run.last) for run in runs)):
        while first <= last:
            part = list(_read(shard, [Run(max(first, last - rows + 1), last)], rows, most_bytes))
            yield from reversed(part)
            last -= rows
            large = 2 * sum(table.nbytes for _, table in part) > most_bytes
            rows = max(1, rows // 2) if large else min(2 * rows, ROWS)
