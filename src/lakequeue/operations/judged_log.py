"""Reads the messages of a shard with their states, in batches of bounded size. Needs no JVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from lakequeue.model.states import MessageState
from lakequeue.operations.message_states import (
    JUDGED,
    NO_INSTANT,
    Integers,
    Judge,
    integers,
    log_columns,
    names_are,
    stored_runs,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.clock_guard import Doubt
from lakequeue.storage.delta_log import TableState
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.ledger import Ledger, check_head
from lakequeue.storage.messages.read import LogFile, LogReader, check_order
from lakequeue.storage.parquet_files import row_groups
from lakequeue.storage.stores import Store
from lakequeue.storage.table_version import TableVersion

ROWS = 8_192
"""Maximum number of messages in a batch."""
BYTES = 32 << 20
"""Maximum estimated bytes of a batch in memory. Without this limit, 8,192 of the largest messages take 8 GiB."""
FEW = 16
"""Number of messages in the first batch, so that a reader of a single message opens few files."""

_Stored = tuple[Integers, Integers, pa.RecordBatch]
"""Offsets, arrival instants and rows of consecutive messages."""


@attrs.frozen(eq=False)
class JudgedShard:
    """One snapshot of a shard's ledger, and of its log."""

    judge: Judge
    messages: str
    """Path of the log's table."""
    files: Sequence[LogFile]
    """Files of the log with messages that were not purged, sorted by offset."""
    sent_before: Sequence[int | None]
    """For each file, an instant (microseconds) before which all its messages were sent. None if unknown."""
    outdated: bool
    """True if newer commits may have removed bodies of messages in this ledger snapshot; see ``emptied_rows``."""

    @classmethod
    def load(
        cls,
        row: QueueRow,
        root: str,
        shard: int,
        open_: Callable[[str], Table],
        now: int,
        doubt: Doubt | None = None,
    ) -> JudgedShard:
        """Reads the ledger and the list of log files of a shard.

        Args:
            open_: opens a table by its path.
            now: the instant for which states are computed, in microseconds.
            doubt: checks whether ``now`` may come from a wrong clock; None for no check.

        Raises:
            QueueClientError: messages have expired by ``now``, but the clock may be wrong (DUR-82).
        """
        messages = layout.messages_path(root, row.key, shard)
        ledger = Ledger(open_(layout.receipts_path(root, row.key, shard)))
        head, rows = ledger.table.repeated(ledger.rows)
        # the ledger first, so that the log is at least as new as the head that refers to it
        log = LogReader(open_(messages)).log
        check_head(head, log.end, ledger.table.path)
        judge = Judge.of(row.name, row.region, shard, head, now, log.end, stored_runs(rows.slice(1)))
        if doubt is not None:
            kept = judge.attributes.retention_micros
            begins = log.first_sent_at_or_after
            expire = lambda: begins(head.committed_at - kept + 1) < begins(judge.instant - kept + 1)  # noqa: E731
            doubt(judge.instant, head.committed_at, messages, expire)
        held_from = judge.held_from
        if judge.attributes.delayed_limit is not None:
            head, stored, history = ledger.load()
            held_from = ShardMachine(head, stored, log, history).held_from(judge.instant)
        judge = attrs.evolve(judge, held_from=held_from, snapshot=f"{row.key}/{shard}/{log.version}")
        opened = sorted({file.opened_at for file in log.files})
        after = dict(zip(opened, opened[1:], strict=False))
        files = [file for file in log.files if file.last >= head.purged_offset]
        before = [file.opened_at if file.bulk else after.get(file.opened_at) for file in files]
        outdated = log.forgotten > head.epoch or not head.knows(log.emptying)
        return cls(judge, messages, files, before, outdated)

    def batches(
        self, store: Store, names: Collection[str], condition: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields columns of ``JUDGED`` in batches. Omits messages that certainly do not meet the condition."""
        needed = ["position", "emptied", *log_columns(names)]
        for offsets, came_at, rows in _joined(self._stored(store.folder(self.messages), needed, condition)):
            yield self.judge.judge(offsets, came_at, rows, names)

    def _stored(self, folder: Folder, needed: Sequence[str], condition: ds.Expression | None) -> Iterator[_Stored]:
        """Yields columns of the log, sorted by offset. Skips files in which no message can meet the condition."""
        purged = self.judge.head.purged_offset
        known = [self._alternatives(index, file.first, file.last) for index, file in enumerate(self.files)]
        for index in surviving(known, condition):
            file = self.files[index]
            for batch in self._rows(folder, index, needed, condition):
                offsets = batch["position"].to_numpy() + file.base
                if offsets[0] < purged:
                    batch = batch.slice(int(np.searchsorted(offsets, purged)))
                    offsets = offsets[len(offsets) - len(batch) :]
                if self.outdated:
                    whole = pc.is_null(batch["emptied"])
                    offsets, batch = offsets[whole.to_numpy(zero_copy_only=False)], batch.filter(whole)
                if len(batch):
                    yield offsets, file.sent_at(batch).to_numpy(), batch

    def _rows(
        self, folder: Folder, index: int, needed: Sequence[str], condition: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields columns of a file, sorted by offset (DUR-5). Skips row groups that cannot meet the condition."""
        file = self.files[index]
        if file.is_foreign:  # its rows may be in any order
            yield from file.rows_of(TableVersion(folder, TableState()), needed).to_batches(ROWS)
            return
        with folder.parquet(file.file.name, file.size) as parquet:
            for group, first in self._row_groups(parquet, index, condition):
                rows = _rows_of(parquet.metadata.row_group(group), needed)
                for batch in parquet.iter_batches(rows, [group], needed, use_threads=False):
                    check_order(batch["position"], first - file.base, self.messages, file.file.name)
                    first += len(batch)
                    yield batch

    def _row_groups(
        self, parquet: pq.ParquetFile, index: int, condition: ds.Expression | None
    ) -> list[tuple[int, int]]:
        base = self.files[index].first
        found = [(group, base + begin, base + end - 1) for group, begin, end in row_groups(parquet)]
        chosen: Iterable[int] = range(len(found))
        if len(found) > 1:
            chosen = surviving([self._alternatives(index, *span) for _, *span in found], condition)
        return [found[group][:2] for group in chosen]

    def _alternatives(self, index: int, first: int, last: int) -> list[ds.Expression]:
        """Returns a condition for each possible state of the range's messages. Each message meets one or more."""
        return [self._known(index, first, last, state) for state in self._states(index, first, last)]

    def _known(self, index: int, first: int, last: int, state: MessageState) -> ds.Expression:
        """Returns a condition that is true for the range's messages in ``state``, and maybe for other messages."""
        offset, sent_at = pc.field("log_offset"), pc.field("sent_at")
        known = (
            names_are(self.judge.queue, self.judge.region)
            & (pc.field("shard") == pa.scalar(self.judge.shard, pa.int32()))
            & (offset >= max(first, self.judge.head.purged_offset))
            & (offset <= last)
            & (pc.field("state") == state.value)
        )
        if not self.files[index].dead_letters:  # those were sent before they came here
            known &= sent_at >= pa.scalar(self.files[index].opened_at, layout.INSTANT)
        before = self.sent_before[index]
        return known if before is None else known & (sent_at <= pa.scalar(before, layout.INSTANT))

    def _states(self, index: int, first: int, last: int) -> list[MessageState]:
        """Returns the states that the messages of a range of offsets may have."""
        file, before, judge = self.files[index], self.sent_before[index], self.judge
        retention, head_offset = judge.attributes.retention_micros, judge.head.head_offset
        runs = judge.runs_of(first, last)
        marked = runs["delivery_number"].is_valid().to_numpy(zero_copy_only=False)
        if before is not None and before + retention <= judge.instant and not marked.any():
            return [MessageState.EXPIRED]
        begin, end = np.maximum(runs["first_offset"], first), np.minimum(runs["last_offset"], last)
        visible_at = integers(runs["visible_at"])
        settled, kinds = (runs[name].to_numpy(zero_copy_only=False) for name in ("settled", "state"))
        fresh, hidden = last >= head_offset, visible_at > judge.instant
        unseen = fresh or bool(np.any(~settled & (visible_at == NO_INSTANT)))
        present = min(last, head_offset - 1) - first + 1
        found = {
            MessageState.EXPIRED: file.dead_letters or file.opened_at + retention <= judge.instant,
            MessageState.DELETED: bool(settled.any()) or int((end - begin + 1).sum()) < present,
            MessageState.MOVING: bool(np.any(kinds == MessageState.MOVING.value)),
            MessageState.HELD: fresh and last >= judge.held_from,
            MessageState.UNDECIDED: bool(np.any(marked & ~hidden)),
            MessageState.VISIBLE: unseen or bool(np.any(~settled & ~hidden & ~marked)),
            MessageState.IN_FLIGHT: bool(np.any(hidden & (kinds == MessageState.IN_FLIGHT.value))),
            MessageState.DELAYED: (unseen and (file.delayed or judge.attributes.delay_micros > 0))
            or bool(np.any(hidden & (kinds == MessageState.VISIBLE.value))),
        }
        return [state for state, possible in found.items() if possible]


def _joined(stored: Iterable[_Stored]) -> Iterator[_Stored]:
    """Joins batches of small files, because a ``Judge`` takes as long for one message as for a thousand."""
    parts: list[_Stored] = []
    rows = size = 0
    most = FEW
    for part in stored:
        length, more, schema = len(part[0]), part[2].nbytes, part[2].schema
        if parts and (rows + length > ROWS or size + more > BYTES or schema != parts[0][2].schema):
            yield _one(parts)
            parts, rows, size = [], 0, 0
        parts.append(part)
        rows, size = rows + length, size + more
        if rows >= most:  # at once, as the reader may need no further file
            yield _one(parts)
            parts, rows, size, most = [], 0, 0, min(2 * most, ROWS)
    if parts:
        yield _one(parts)


def _one(parts: Sequence[_Stored]) -> _Stored:
    if len(parts) == 1:
        return parts[0]
    offsets, came_at, batches = zip(*parts, strict=True)
    [rows] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return np.concatenate(offsets), np.concatenate(came_at), rows


def _rows_of(group: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """Returns how many rows of a row group fit into a batch. Considers only the columns in ``names``."""
    columns = [group.column(index) for index in range(group.num_columns)]
    size: int = sum(
        each.total_uncompressed_size for each in columns if each.path_in_schema.partition(".")[0] in names
    )
    rows: int = group.num_rows
    return min(ROWS, max(1, BYTES * rows // max(1, size)))


def surviving(
    known: Sequence[Sequence[ds.Expression]], condition: ds.Expression | None, schema: pa.Schema = JUDGED
) -> list[int]:
    """Returns the indexes of the parts, for example files, in which a row may meet ``condition``. ``known`` has a
    list of conditions for each part: each row of a part meets at least one condition of the part's list.
    """
    if condition is None:
        return list(range(len(known)))
    kind, system = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    make = partial(kind.make_fragment, filesystem=system)
    parts = [make(str(index), partition_expression=each) for index, either in enumerate(known) for each in either]
    found = ds.FileSystemDataset(parts, schema, kind, system).get_fragments(filter=condition)
    return sorted({int(part.path) for part in found})
