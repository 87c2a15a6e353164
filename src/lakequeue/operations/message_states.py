"""Computes the states of messages in Arrow. The state machine and the SQL views have their own computation."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS
from lakequeue.model.failures import parse_note
from lakequeue.model.names import sequence_number
from lakequeue.model.states import MessageState
from lakequeue.operations.results import WITH_VISIBLE_AT
from lakequeue.shard.runs import Head
from lakequeue.storage import layout

_TEXTS = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("region", pa.string()),
        ("message_id", pa.string()),
        ("state", pa.string()),
        ("group_id", pa.string()),
        ("sent_at", layout.INSTANT),
        ("visible_at", layout.INSTANT),
        ("receive_count", pa.int32()),
        ("first_received_at", layout.INSTANT),
        ("settled_at", layout.INSTANT),
        ("age", pa.float64()),
        ("body", pa.string()),
        ("message_attributes", _TEXTS),
        ("delay_seconds", pa.float64()),
        ("dedup_id", pa.string()),
        ("source_queue", pa.string()),
        ("moved_at", layout.INSTANT),
        ("dead_letter_reason", pa.string()),
        layout.RUN.field("failed_attempts").with_name("attempts"),
        ("consumer", pa.string()),
        ("sequence_number", pa.string()),
        ("shard", pa.int32()),
        ("log_offset", pa.int64()),
    ]
)
"""The columns of the table ``messages`` in SQL queries. Conditions use the same columns.

``state`` is a ``MessageState``. A moved message counts as ``deleted``. A purged message has no row. ``visible_at``
is when a message becomes or became visible. ``visible_at`` is NULL unless the message is visible, in flight or
delayed. ``settled_at`` is the instant of the deletion, if known. ``receive_count`` is NULL for expired messages,
and for deleted messages without ``settled_at``. ``consumer`` is the name of the consumer that has the message in
flight. ``sent_at`` of a dead letter is the first send (DLQ-4). On FIFO queues, ``sent_at`` of a dead letter is the
arrival in the dead-letter queue. ``moved_at`` is when the message came from another queue. ``attempts`` are the
failed attempts. ``age`` is the seconds since ``sent_at``. ``message_attributes`` are texts, with binary values in
base64. Standard queues have no sequence numbers.
"""
REWINDABLE = "rewindable"
"""Name of a column that is True if a rewind may restore the message."""
TYPED_ATTRIBUTES = "typed_attributes"
"""Name of a column with the message attributes and their types."""
SNAPSHOT = "snapshot"
"""Name of a column that says from which log version a message was read, as ``KEY/SHARD/VERSION``."""
JUDGED = pa.schema(
    [
        *SCHEMA,
        (REWINDABLE, pa.bool_()),
        layout.MESSAGES.field("message_attributes").with_name(TYPED_ATTRIBUTES),
        layout.MESSAGES.field("trace_header"),
        (SNAPSHOT, pa.string()),
    ]
)

Integers = npt.NDArray[np.int64]
_RUNS = pa.schema(
    [
        ("settled", pa.bool_()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("state", pa.string()),
        *(layout.RUN.field(name) for name in ("receive_count", "visible_at", "first_received_at")),
        *(layout.RUN.field(name) for name in ("consumer", "failed_attempts", "delivery_number")),
    ]
)
_ALWAYS = ("sent_at", "delay_seconds", "source_receive_count", "first_sent_at")
"""Columns of the log that are always read, because the state of a message depends on them."""
STATES = [
    MessageState(name)
    for name in ("expired", "deleted", "moving", "held", "undecided", "visible", "in_flight", "delayed")
]
EXPIRED, DELETED, MOVING, HELD, UNDECIDED, VISIBLE, IN_FLIGHT, DELAYED = range(len(STATES))
_NAMES = [state.value for state in STATES]  # an array made here would import pandas
_SHOWN_FROM = [index for index, state in enumerate(STATES) if state in WITH_VISIBLE_AT]
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)  # a table keeps bodies in the chunks that a cache shares
NO_INSTANT = np.iinfo(np.int64).min


@attrs.frozen(eq=False)
class Judge:
    """Computes the states of a shard's messages at ``instant``, in microseconds, from a ledger snapshot."""

    queue: str
    region: str
    shard: int
    head: Head
    attributes: QueueAttributes
    instant: int
    held_from: int
    """Offset of the first held message (INF-9). The end of the log if no message is held."""
    runs: pa.RecordBatch
    """The ledger's runs (ranges of messages with one state), sorted by offset, including the history."""
    snapshot: str | None = None

    @classmethod
    def of(
        cls, queue: str, region: str, shard: int, head: Head, now: int, held_from: int, runs: pa.RecordBatch
    ) -> Judge:
        """Makes a ``Judge`` for ``now`` or the last commit, whichever is later. ``runs``: see ``stored_runs``."""
        attributes, instant = QueueAttributes.from_wire(head.attributes), max(now, head.committed_at)
        return cls(queue, region, shard, head, attributes, instant, held_from, runs)

    def runs_of(self, first: int, last: int) -> pa.RecordBatch:
        start = int(np.searchsorted(self.runs["last_offset"].to_numpy(), first))
        stop = int(np.searchsorted(self.runs["first_offset"].to_numpy(), last, side="right"))
        return self.runs.slice(start, max(0, stop - start))

    def judge(self, offsets: Integers, came_at: Integers, rows: _Rows, names: Collection[str]) -> _Rows:
        """Returns columns ``names`` of ``JUDGED`` for ``rows``, which need the columns ``log_columns(names)``."""
        runs = self.runs_of(int(offsets[0]), int(offsets[-1]))
        place = np.searchsorted(runs["first_offset"].to_numpy(), offsets, side="right") - 1
        within = (place >= 0) & (np.append(runs["last_offset"].to_numpy(), -1)[place] >= offsets)
        at = pa.array(place, mask=~within)
        until = integers(runs["visible_at"].take(at))
        available = np.where(until != NO_INSTANT, until, self._delayed_until(came_at, rows))
        first_sent = integers(rows["first_sent_at"])
        sent_at = np.where(first_sent != NO_INSTANT, first_sent, came_at)
        state = self._states(offsets, at, runs, sent_at, available)
        count, rewind = len(offsets), self.attributes.rewind_micros
        shown_at = np.where(available == NO_INSTANT, came_at, available)
        receive_count = pc.fill_null(pc.coalesce(runs["receive_count"].take(at), rows["source_receive_count"]), 0)
        settled_at = np.where(state == DELETED, until, NO_INSTANT)
        gone = pa.array(np.isin(state, (EXPIRED, DELETED)) & (settled_at == NO_INSTANT))
        columns: dict[str, Callable[[], pa.Array]] = {
            "queue": lambda: pa.repeat(self.queue, count),
            "region": lambda: pa.repeat(self.region, count),
            "state": lambda: pa.array(_NAMES).take(pa.array(state)),
            "sent_at": lambda: pa.array(sent_at),
            "visible_at": lambda: pa.array(shown_at, mask=~np.isin(state, _SHOWN_FROM)),
            "receive_count": lambda: pc.if_else(gone, None, receive_count),
            "first_received_at": lambda: runs["first_received_at"].take(at),
            "settled_at": lambda: pa.array(until, mask=settled_at == NO_INSTANT),
            "age": lambda: pa.array((self.instant - sent_at) / MICROS),
            "message_attributes": lambda: attribute_texts(_whole(rows["message_attributes"])),
            "body": lambda: rows["body"] if rows["body"].null_count == 0 else pc.fill_null(rows["body"], ""),
            TYPED_ATTRIBUTES: lambda: rows["message_attributes"],
            "source_queue": lambda: _source_names(_whole(rows["source_queue"])),
            "dead_letter_reason": lambda: _of_notes(rows, _reason, pa.string()),
            "attempts": lambda: pc.coalesce(
                runs["failed_attempts"].take(at),
                _of_notes(rows, _attempts, layout.RUN.field("failed_attempts").type),
            ),
            "consumer": lambda: pc.if_else(pa.array(state == IN_FLIGHT), runs["consumer"].take(at), None),
            "sequence_number": lambda: self._sequence_numbers(offsets),
            "shard": lambda: pa.repeat(pa.scalar(self.shard, pa.int32()), count),
            "log_offset": lambda: pa.array(offsets),
            SNAPSHOT: lambda: pa.repeat(pa.scalar(self.snapshot, pa.string()), count),
            REWINDABLE: lambda: pa.array((state == DELETED) & within & (came_at >= self.instant - rewind)),
        }
        shown = [field for field in JUDGED if field.name in names]
        arrays = [(columns.get(each.name) or partial(rows.column, each.name))().cast(each.type) for each in shown]
        return type(rows).from_arrays(arrays, schema=pa.schema(shown))

    def _states(
        self, offsets: Integers, at: pa.Array, runs: pa.RecordBatch, sent_at: Integers, available: Integers
    ) -> Integers:
        within = at.is_valid().to_numpy(zero_copy_only=False)
        settled = pc.fill_null(runs["settled"].take(at), False).to_numpy(zero_copy_only=False)
        run_state = runs["state"].take(at).to_numpy(zero_copy_only=False)
        marked = runs["delivery_number"].take(at).is_valid().to_numpy(zero_copy_only=False)
        return np.select(
            [
                (sent_at + self.attributes.retention_micros <= self.instant) & ~marked,
                (~within & (offsets < self.head.head_offset)) | settled,
                run_state == MessageState.MOVING.value,
                ~within & (offsets >= self.held_from),
                (available <= self.instant) & marked,
                available <= self.instant,
                run_state == MessageState.IN_FLIGHT.value,
            ],
            [EXPIRED, DELETED, MOVING, HELD, UNDECIDED, VISIBLE, IN_FLIGHT],
            DELAYED,
        )

    def _delayed_until(self, came_at: Integers, rows: _Rows) -> Integers:
        """Returns when delays end, in microseconds. ``NO_INSTANT`` means that a message has no delay."""
        delay = pc.fill_null(rows["delay_seconds"], self.attributes.delay_micros / MICROS).to_numpy()
        return np.where(delay > 0, came_at + np.rint(delay * MICROS).astype(np.int64), NO_INSTANT)

    def _sequence_numbers(self, offsets: Integers) -> pa.Array:
        if not self.attributes.fifo:
            return pa.nulls(len(offsets), pa.string())
        return pa.array([sequence_number(self.shard, offset) for offset in offsets.tolist()], pa.string())


def names_are(queue: str, region: str) -> pc.Expression:
    return (pc.field("queue") == queue) & (pc.field("region") == region)


def log_columns(names: Collection[str]) -> list[str]:
    """Returns the columns of the log that are needed to compute the columns ``names`` of ``JUDGED``."""
    of = {TYPED_ATTRIBUTES: "message_attributes"} | dict.fromkeys(
        ("dead_letter_reason", "attempts"), "dead_letter_note"
    )
    # a dead letter shows its first receive once it has a run
    wanted = {*_ALWAYS, *(of.get(name, name) for name in names)} - {"first_received_at"}
    return [name for name in layout.MESSAGES.names if name in wanted]


def integers(instants: pa.Array) -> Integers:
    """Returns instants as microseconds. NULL becomes ``NO_INSTANT``."""
    numbers: Integers = pc.fill_null(instants.cast(pa.int64()), NO_INSTANT).to_numpy()
    return numbers


def stored_runs(rows: pa.Table) -> pa.RecordBatch:
    """Extracts the runs from rows of the ledger (``layout.RECEIPTS``). The runs stay sorted by offset."""
    run = rows["run"].combine_chunks()
    arrays = [
        rows[field.name].combine_chunks() if field.name in rows.column_names else pc.struct_field(run, field.name)
        for field in _RUNS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_RUNS)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _source_names(arns: pa.Array) -> pa.Array:
    return pc.list_element(pc.split_pattern(arns, ":"), 5) if arns.null_count < len(arns) else arns


def _of_notes(rows: pa.Table | pa.RecordBatch, shown: Callable[[str | None], Any], kind: pa.DataType) -> pa.Array:
    """Applies the function ``shown`` to the note of each dead letter. Messages without a note get NULL."""
    notes = _whole(rows["dead_letter_note"])
    return (
        pa.nulls(len(rows), kind)
        if notes.null_count == len(notes)
        else pa.array(map(shown, notes.to_pylist()), kind)
    )


def _reason(note: str | None) -> str | None:
    reason, _ = parse_note(note)
    return None if reason is None else reason.json()


def _attempts(note: str | None) -> list[dict[str, Any]] | None:
    return [attrs.asdict(each) for each in parse_note(note)[1]] or None


def attribute_texts(attributes: pa.MapArray) -> pa.MapArray:
    """Converts the values of message attributes to text. Binary values become base64."""
    texts = pc.struct_field(attributes.items, "string_value")
    binary = pc.struct_field(attributes.items, "binary_value")
    if binary.null_count < len(binary):
        encoded = [None if value is None else base64.b64encode(value).decode() for value in binary.to_pylist()]
        texts = pc.coalesce(texts, pa.array(encoded, pa.string()))
    return pa.MapArray.from_arrays(attributes.offsets, attributes.keys, texts)
