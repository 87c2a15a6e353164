"""Every message that the tables of a shard hold, with its state: SQL's ``messages`` as Arrow, without a JVM.

A shard is described once, from one snapshot of its ledger and one of its log. The description holds all that
judges its messages, so another process can read a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS
from lakequeue.model.sequence_numbers import sequence_number
from lakequeue.model.states import MessageState
from lakequeue.operations.browse import SCHEMA, attribute_texts, reasons, source_names
from lakequeue.operations.results import WITH_VISIBLE_AT
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.ledger import Ledger, check_head
from lakequeue.storage.messages.read import LogFile, LogReader
from lakequeue.storage.stores import Store

ROWS = 8_192
"""Maximum number of messages in a batch."""
BYTES = 32 << 20
"""Size in memory that its messages have on average: 8,192 of the largest bodies would be 8 GiB."""
REWINDABLE = "rewindable"
"""A column beyond ``browse.SCHEMA``: whether a rewind may bring the message back."""
TYPED_ATTRIBUTES = "typed_attributes"
"""Another: ``message_attributes`` as they were sent."""
JUDGED = SCHEMA.append(pa.field(REWINDABLE, pa.bool_())).append(
    layout.MESSAGES.field("message_attributes").with_name(TYPED_ATTRIBUTES)
)

Integers = npt.NDArray[np.int64]
_T = TypeVar("_T")
_RUNS = pa.schema(
    [
        ("settled", pa.bool_()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("state", pa.string()),
        *(layout.RUN.field(name) for name in ("receive_count", "visible_at", "first_received_at")),
    ]
)
_ALWAYS = ("position", "sent_at", "delay_seconds", "source_receive_count", "first_sent_at")
"""Columns of the log that states follow from."""
_STATES = [
    MessageState(name) for name in ("expired", "deleted", "moving", "held", "visible", "in_flight", "delayed")
]
EXPIRED, DELETED, MOVING, HELD, VISIBLE, IN_FLIGHT, DELAYED = range(len(_STATES))
_NAMES = pa.array([state.value for state in _STATES])
_SHOWN_FROM = [index for index, state in enumerate(_STATES) if state in WITH_VISIBLE_AT]
_NEVER = np.iinfo(np.int64).min


@attrs.frozen(eq=False)
class JudgedShard:
    """A shard as of one snapshot, and the instant that its messages are judged at; can be pickled.

    Instants and durations are in microseconds.
    """

    queue: str
    region: str
    fifo: bool
    shard: int
    messages: str
    """Path of the table."""
    instant: int
    head_offset: int
    purged_offset: int
    held_from: int
    retention: int
    delay: int
    rewind: int
    runs: pa.RecordBatch
    """Sorted by offset; history included."""
    files: Sequence[LogFile]
    """Of the messages that are not purged, by offset."""
    sent_before: Sequence[int | None]
    """For each file an instant at which all its messages had been sent; None if that is not known."""

    @classmethod
    def load(cls, row: QueueRow, root: str, shard: int, open_: Callable[[str], Table], now: int) -> JudgedShard:
        """Reads the ledger and the list of files of a shard; ``open_`` opens a table by its path."""
        messages = layout.messages_path(root, row.key, shard)
        ledger = Ledger(open_(layout.receipts_path(root, row.key, shard)))
        head, rows = ledger.repeated(ledger.rows)
        # the ledger first, so that the log is at least as new as the head that refers to it
        log = LogReader(open_(messages)).log
        check_head(head, log.end, ledger.table.path)
        attributes = QueueAttributes.from_wire(head.attributes)
        instant, held_from = max(now, head.committed_at), log.end
        if attributes.delayed_limit is not None:
            held_from = ledger.machine(lambda: log).held_from(instant)
        opened = sorted({file.opened_at for file in log.files})
        after = dict(zip(opened, opened[1:], strict=False))
        files = [file for file in log.files if file.last >= head.purged_offset]
        return cls(
            row.name,
            row.region,
            attributes.fifo,
            shard,
            messages,
            instant,
            head.head_offset,
            head.purged_offset,
            held_from,
            attributes.retention_micros,
            attributes.delay_micros,
            attributes.rewind_micros,
            _flat(rows.slice(1)),
            files,
            [file.opened_at if file.bulk else after.get(file.opened_at) for file in files],
        )

    def part(self, indexes: Sequence[int]) -> JudgedShard:
        """The shard with some of its files, and no more of its ledger than they need."""
        files = [self.files[index] for index in indexes]
        return attrs.evolve(
            self,
            # copied, so that it is pickled without the others
            runs=pa.concat_batches([self._runs_of(files[0].first, files[-1].last)]),
            files=files,
            sent_before=[self.sent_before[index] for index in indexes],
        )

    def matching(self, condition: ds.Expression | None) -> list[int]:
        """Indexes of the files that may have messages for which a condition over `JUDGED` is true."""
        return surviving(
            [
                [
                    self._known(index, file.first, file.last, state)
                    for state in self._states(index, file.first, file.last)
                ]
                for index, file in enumerate(self.files)
            ],
            condition,
        )

    def batches(
        self, store: Store, names: Collection[str], condition: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Columns of `JUDGED` of the messages that may meet a condition, in batches of bounded size."""
        folder = store.folder(self.messages)
        of = {TYPED_ATTRIBUTES: "message_attributes", "dead_letter_reason": "send_id"}
        wanted = {*_ALWAYS, *(of.get(name, name) for name in names)}
        needed = [name for name in layout.MESSAGES.names if name in wanted]
        for index in self.matching(condition):
            file = self.files[index]
            with folder.parquet(file.file.name, file.size) as parquet:
                for group, first in self._row_groups(parquet, index, condition):
                    rows = _rows_of(parquet.metadata.row_group(group), needed)
                    found = parquet.iter_batches(rows, [group], needed, use_threads=False)
                    for batch in found:
                        file.check(batch["position"], first, self.messages)
                        offsets = np.arange(first, first + len(batch))
                        first += len(batch)
                        if offsets[0] < self.purged_offset:
                            batch = batch.slice(int(np.searchsorted(offsets, self.purged_offset)))
                            offsets = offsets[len(offsets) - len(batch) :]
                        if len(batch):
                            yield self._judge(file, offsets, batch, names)

    def _row_groups(
        self, parquet: pq.ParquetFile, index: int, condition: ds.Expression | None
    ) -> list[tuple[int, int]]:
        """The row groups of a file that may have such messages, with their first offsets."""
        sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        firsts = self.files[index].first + np.cumsum([0, *sizes])
        chosen: Iterable[int] = range(len(sizes))
        if len(sizes) > 1:
            spans = zip(firsts[:-1].tolist(), (firsts[1:] - 1).tolist(), strict=True)
            chosen = surviving([self._alternatives(index, *span) for span in spans], condition)
        return [(group, int(firsts[group])) for group in chosen]

    def _alternatives(self, index: int, first: int, last: int) -> list[ds.Expression]:
        """What may be known of messages of a file from an offset to another: a condition for each state."""
        return [self._known(index, first, last, state) for state in self._states(index, first, last)]

    def _known(self, index: int, first: int, last: int, state: int) -> ds.Expression:
        """What is known of the messages of a file from an offset to another, if they have a state."""
        offset, sent_at = pc.field("log_offset"), pc.field("sent_at")
        known = (
            names_are(self.queue, self.region)
            & (pc.field("shard") == pa.scalar(self.shard, pa.int32()))
            & (offset >= max(first, self.purged_offset))
            & (offset <= last)
            & (sent_at >= pa.scalar(self.files[index].opened_at, layout.INSTANT))
            & (pc.field("state") == _NAMES[state])
        )
        before = self.sent_before[index]
        return known if before is None else known & (sent_at <= pa.scalar(before, layout.INSTANT))

    def _states(self, index: int, first: int, last: int) -> list[int]:
        """The states that messages of a file from an offset to another may have."""
        file, before = self.files[index], self.sent_before[index]
        if before is not None and before + self.retention <= self.instant:
            return [EXPIRED]
        runs = self._runs_of(first, last)
        begin, end = np.maximum(runs["first_offset"], first), np.minimum(runs["last_offset"], last)
        visible_at = _integers(runs["visible_at"], _NEVER)
        settled, kinds = (runs[name].to_numpy(zero_copy_only=False) for name in ("settled", "state"))
        fresh, hidden = last >= self.head_offset, visible_at > self.instant
        unseen = fresh or bool(np.any(~settled & (visible_at == _NEVER)))
        found = {
            EXPIRED: file.dead_letters or file.opened_at + self.retention <= self.instant,
            DELETED: bool(settled.any())
            or int((end - begin + 1).sum()) < min(last, self.head_offset - 1) - first + 1,
            MOVING: bool(np.any(kinds == MessageState.MOVING.value)),
            HELD: fresh and last >= self.held_from,
            VISIBLE: unseen or bool(np.any(~settled & ~hidden)),
            IN_FLIGHT: bool(np.any(hidden & (kinds == MessageState.IN_FLIGHT.value))),
            DELAYED: (unseen and (file.delayed or self.delay > 0))
            or bool(np.any(hidden & (kinds == MessageState.VISIBLE.value))),
        }
        return [state for state, possible in found.items() if possible]

    def _runs_of(self, first: int, last: int) -> pa.RecordBatch:
        start = int(np.searchsorted(self.runs["last_offset"].to_numpy(), first))
        stop = int(np.searchsorted(self.runs["first_offset"].to_numpy(), last, side="right"))
        return self.runs.slice(start, max(0, stop - start))

    def _judge(
        self, file: LogFile, offsets: Integers, rows: pa.RecordBatch, names: Collection[str]
    ) -> pa.RecordBatch:
        runs = self._runs_of(int(offsets[0]), int(offsets[-1]))
        place = np.searchsorted(runs["first_offset"].to_numpy(), offsets, side="right") - 1
        within = (place >= 0) & (np.append(runs["last_offset"].to_numpy(), -1)[place] >= offsets)
        at = pa.array(place, mask=~within)
        run_state = runs["state"].take(at).to_numpy(zero_copy_only=False)
        settled = pc.fill_null(runs["settled"].take(at), False).to_numpy(zero_copy_only=False)
        visible_at = _integers(runs["visible_at"].take(at), _NEVER)

        sent_at = file.sent_at(rows).to_numpy()
        delay = pc.fill_null(rows["delay_seconds"], self.delay / MICROS).to_numpy()
        available = np.where(delay > 0, sent_at + np.rint(delay * MICROS).astype(np.int64), _NEVER)
        available = np.where(visible_at != _NEVER, visible_at, available)
        first_sent = _integers(rows["first_sent_at"], _NEVER)
        gone_at = np.where(first_sent != _NEVER, first_sent, sent_at) + self.retention
        state = np.select(
            [
                gone_at <= self.instant,
                (~within & (offsets < self.head_offset)) | settled,
                run_state == MessageState.MOVING.value,
                ~within & (offsets >= self.held_from),
                available <= self.instant,
                run_state == MessageState.IN_FLIGHT.value,
            ],
            [EXPIRED, DELETED, MOVING, HELD, VISIBLE, IN_FLIGHT],
            DELAYED,
        )
        count = len(offsets)
        shown_at = np.where(available == _NEVER, sent_at, available)
        receive_count = pc.fill_null(pc.coalesce(runs["receive_count"].take(at), rows["source_receive_count"]), 0)
        columns: dict[str, Callable[[], pa.Array]] = {
            "queue": lambda: pa.repeat(self.queue, count),
            "region": lambda: pa.repeat(self.region, count),
            "state": lambda: _NAMES.take(pa.array(state)),
            "sent_at": lambda: pa.array(sent_at).cast(layout.INSTANT),
            "visible_at": lambda: pa.array(shown_at, mask=~np.isin(state, _SHOWN_FROM)).cast(layout.INSTANT),
            "receive_count": lambda: pc.if_else(
                pa.array((state == EXPIRED) | (state == DELETED)), pa.scalar(None, pa.int32()), receive_count
            ),
            "first_received_at": lambda: runs["first_received_at"].take(at),
            "age": lambda: pa.array((self.instant - sent_at) / MICROS),
            "message_attributes": lambda: attribute_texts(rows["message_attributes"]),
            TYPED_ATTRIBUTES: lambda: rows["message_attributes"],
            "source_queue": lambda: source_names(rows["source_queue"]),
            "dead_letter_reason": lambda: reasons(rows),
            "sequence_number": lambda: self._sequence_numbers(offsets),
            "shard": lambda: pa.repeat(pa.scalar(self.shard, pa.int32()), count),
            "log_offset": lambda: pa.array(offsets),
            REWINDABLE: lambda: pa.array((state == DELETED) & settled & (sent_at >= self.instant - self.rewind)),
        }
        shown = [field for field in JUDGED if field.name in names]
        arrays = [
            (columns[field.name]() if field.name in columns else rows[field.name]).cast(field.type)
            for field in shown
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(shown))

    def _sequence_numbers(self, offsets: Integers) -> pa.Array:
        if not self.fifo:
            return pa.nulls(len(offsets), pa.string())
        return pa.array([sequence_number(self.shard, offset) for offset in offsets.tolist()], pa.string())


def _rows_of(group: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """The number of rows of a batch with the named columns of a row group."""
    columns = [group.column(index) for index in range(group.num_columns)]
    size: int = sum(
        each.total_uncompressed_size for each in columns if each.path_in_schema.partition(".")[0] in names
    )
    rows: int = group.num_rows
    return min(ROWS, max(1, BYTES * rows // max(1, size)))


def names_are(queue: str, region: str) -> ds.Expression:
    """The condition that a row belongs to a queue."""
    return (pc.field("queue") == queue) & (pc.field("region") == region)


def surviving(
    known: Sequence[Sequence[ds.Expression]], condition: ds.Expression | None, schema: pa.Schema = JUDGED
) -> list[int]:
    """Indexes of the parts that may have rows for which a condition is true.

    Arrow's datasets leave out files whose partition contradicts a filter; here the parts stand for such files, and
    none is opened.

    Args:
        known: for each part alternatives, one of which is true of each of its rows.
    """
    if condition is None:
        return list(range(len(known)))
    kind, system = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    make = partial(kind.make_fragment, filesystem=system)
    parts = [make(str(index), partition_expression=each) for index, either in enumerate(known) for each in either]
    found = ds.FileSystemDataset(parts, schema, kind, system).get_fragments(filter=condition)
    return sorted({int(part.path) for part in found})


def _flat(rows: pa.Table) -> pa.RecordBatch:
    """Runs of a ledger with the fields of their struct as columns."""
    run = rows["run"].combine_chunks()
    arrays = [
        rows[field.name].combine_chunks() if field.name in rows.column_names else pc.struct_field(run, field.name)
        for field in _RUNS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_RUNS)


def _integers(instants: pa.Array, missing: int) -> Integers:
    numbers: Integers = pc.fill_null(instants.cast(pa.int64()), missing).to_numpy()
    return numbers
