"""The ledger of a shard, which holds the state of its messages. Converts rows of ``receipts`` to runs and a head.
The epoch grows with each commit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from itertools import pairwise, repeat
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import DamagedTable, LakeQueueError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.model.deliveries import Mark
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.states import MessageState
from lakequeue.shard.commands import Decision, Result
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Destination, Head, MovePart, Run
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, Ids
from lakequeue.storage.messages.emptied_rows import ForgottenMessages
from lakequeue.storage.messages.read import ShardLog, is_foreign
from lakequeue.storage.store_failures import first_line

RANGE_ROWS = 10_000
"""Maximum number of runs in one file of a compacted ledger."""
MAX_FILES = 16
_SPARE_FILES = 3
"""Number of files that a ledger may have beyond the necessary files. With more, the ledger is compacted."""
_CHECK_EVERY = 16
"""Number of merges between two checks for compaction."""

_ROW, _SOURCE = (pa.struct([*layout.RECEIPTS, *more]) for more in ((), [pa.field("op", pa.string())]))
_DATA = layout.FILES["receipts"]
_CELLS_OF_RUN = layout.ColumnArrays(layout.RUN)
_HEAD = [field.name for field in layout.HEAD if field.name in attrs.fields_dict(Head)]
_MOVE = ("move_number", "move_target", "move_note", "move_redrive")
_MARK = ("delivery_slot", "delivery_number")
_CELLS: Mapping[str, Callable[[Any], Any]] = {
    "failed_attempts": lambda attempts: [attrs.asdict(each) for each in attempts or ()] or None,
    "failure": lambda failure: failure and attrs.asdict(failure),
    "move_target": lambda target: target and target._asdict(),
}
"""Functions by field name. Each function converts a field of a run to a cell of a table."""
_STATES = {layout.HEAD_STATE, *(state.value for state in MessageState)}


class Ledger:
    """A handle on the ledger of a shard. Not thread-safe."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._merges = 0
        self._lineage: object = None

    @property
    def epoch(self) -> int:
        """Epoch of the ledger in the loaded snapshot."""
        return self.table.transaction(layout.RECEIPTS_ID)

    def load(self) -> tuple[Head, list[Run], list[Run]]:
        """Reads the head, runs and settled runs of the snapshot. Raises DamagedTable if they are unreadable."""
        try:
            return self._load()
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            reason = f"its rows cannot be read: {first_line(error)}"
            raise DamagedTable(self.table.path, None, reason) from error

    def _load(self) -> tuple[Head, list[Run], list[Run]]:
        rows = self._read()
        head, place = self._head(rows), pc.index(rows["first_offset"], layout.HEAD_OFFSET).as_py()
        # Slices, because a filter would copy the rows.
        unsettled = pa.concat_tables([rows.slice(0, place), rows.slice(place + 1)])
        if head.epoch != self.epoch:
            reason = f"its head is of epoch {head.epoch}, and its log of {self.epoch}; another program restored it"
            raise DamagedTable(self.table.path, None, reason)
        settled = self._read(settled=True)
        for part in rows, settled:
            offsets = part["first_offset"].null_count + part["last_offset"].null_count
            counts = pc.struct_field(part["run"].combine_chunks(), "receive_count").null_count
            states = {*part["state"].unique().to_pylist()} - _STATES
            if offsets or states or counts > (part is rows):  # Only the row of the head has no count.
                wrong = f"the state {states.pop()}" if states else "no offset" if offsets else "no receive count"
                raise DamagedTable(self.table.path, None, f"it has a run with {wrong}; another program wrote it")
        return head, to_runs(unsettled), to_runs(settled)

    def machine(self, log: Callable[[], ShardLog]) -> ShardMachine:
        """Builds the state machine from the loaded snapshot and the newest log, which ``log`` returns.

        Raises DamagedTable if the log lacks messages, or if bodies were removed after the ledger's last epoch.
        """
        head, runs, history = self.load()
        self._lineage = self.table.lineage
        newest = log()
        check_head(head, newest.end, self.table.path)
        if head.epoch >= newest.forgotten and head.knows(newest.emptying):
            return ShardMachine(head, runs, newest, history)
        self.table.refresh()  # Other processes may have committed since it was loaded.
        if self.epoch < newest.forgotten or self.epoch == head.epoch:
            raise DamagedTable(self.table.path, None, put_back(self.epoch, newest.forgotten))
        return self.machine(log)

    def is_current(self, machine: ShardMachine) -> bool:
        """True if ``machine``, the newest machine of this ledger, still has the loaded snapshot's state."""
        return self.epoch == machine.epoch and self._lineage is self.table.lineage

    def rows(self) -> tuple[Head, pa.Table]:
        """Returns the head, and all rows of the snapshot with the schema ``layout.RECEIPTS``, head row first."""
        parts = []
        for settled in (False, True):
            part = self._read(settled=settled)
            parts.append(part.add_column(0, layout.RECEIPTS.field("settled"), pa.repeat(settled, len(part))))
        rows = pa.concat_tables(parts).sort_by("first_offset")
        return self._head(rows.slice(0, 1)), rows

    def forgotten(self, log: Callable[[], ShardLog]) -> ForgottenMessages:
        """Returns the forgotten messages, which no row of the snapshot names. ``log`` must return the newest log.

        Raises:
            DamagedTable: rows contradict each other or are missing, or the log lacks messages.
        """
        head, rows = self.rows()
        check_head(head, log().end, self.table.path)
        first, last = (rows[name].slice(1).to_numpy() for name in ("first_offset", "last_offset"))
        whole = not self.table.state.lost_files and head.epoch == self.epoch
        # NULL becomes NaN, and any comparison with NaN is False.
        ordered = (first >= 0) & (first <= last) & (last < np.append(first[1:], head.head_offset)[: len(last)])
        if not (whole and ordered.all()):
            raise DamagedTable(self.table.path, None, "its rows contradict each other; another program wrote some")
        return ForgottenMessages(self.epoch, head.head_offset, first, last)

    def _head(self, rows: pa.Table) -> Head:
        heads = rows["head"].filter(pc.equal(rows["first_offset"], layout.HEAD_OFFSET)).to_pylist()
        if len(heads) != 1:
            raise DamagedTable(self.table.path, None, f"it has {len(heads)} head rows")
        try:
            return read_head(heads[0])
        except (KeyError, TypeError, ValueError, LakeQueueError) as error:
            raise DamagedTable(self.table.path, None, f"its head cannot be read: {first_line(error)}") from error

    def head(self) -> Head:
        """Returns the head of the loaded snapshot. Reads only the file that holds the head."""
        heads = [file for file in self._files() if file.minimum.get("first_offset") == layout.HEAD_OFFSET]
        return self._head(self._rows(heads))

    def has_excess_files(self, machine: ShardMachine) -> bool:
        """True if the ledger needs compaction: it has too many files, or a file of another program."""
        needed = 1 + sum(-(-len(runs) // RANGE_ROWS) for runs in (machine.runs, machine.history))
        files = self.table.files()
        foreign = not self.table.commits_alone and any(is_foreign(file.name) for file in files)
        return foreign or len(files) > needed + _SPARE_FILES

    def change(
        self,
        decision: Decision,
        machine: ShardMachine,
        rewrite: bool = False,
        more_ids: Ids = MappingProxyType({}),
        answers: str | None = None,
    ) -> Change[list[Result]]:
        """Returns the change that commits a decision on the loaded epoch. With ``rewrite``, replaces all rows."""
        epoch = decision.head.epoch
        if rewrite or self._wants_compaction(machine):
            whole = self.rewrite(epoch - 1, decision.head, machine.runs, machine.history, more_ids, answers)
            return attrs.evolve(whole, value=decision.results, counts=decision.counts)
        source = run_rows(decision.puts, decision.deletes, decision.head, with_op=True)
        if decision.settled_puts or decision.settled_deletes:
            settled = run_rows(decision.settled_puts, decision.settled_deletes, None, with_op=True, settled=True)
            source = pa.concat_tables([source, settled])
        self._merges += 1
        fence, ids = {layout.RECEIPTS_ID: epoch - 1}, {layout.RECEIPTS_ID: epoch, **more_ids}
        write = partial(self.table.merge, source, "first_offset", answers=answers)
        return Change(fence, ids, write, decision.results, counts=decision.counts)

    def rewrite(
        self,
        since: int,
        head: Head,
        runs: Sequence[Run],
        history: Sequence[Run],
        more_ids: Ids = MappingProxyType({}),
        answers: str | None = None,
    ) -> Change[Any]:
        """Returns the change that replaces all rows, if the ledger is still at the epoch ``since``."""
        files = ledger_files(head, runs, history)
        fence, ids = {layout.RECEIPTS_ID: since}, {layout.RECEIPTS_ID: head.epoch, **more_ids}
        write = partial(self.table.replace, {"settled": [False, True]}, files, answers=answers)
        return Change(fence, ids, write, None)

    def _wants_compaction(self, machine: ShardMachine) -> bool:
        # Without this, 400 scattered deletes made a MERGE slower: 192 ms instead of 21.
        if self._merges < _CHECK_EVERY:
            return False
        self._merges = 0
        needed = -(-machine.run_count // RANGE_ROWS)
        if len(self.table.files()) > needed + MAX_FILES:
            return True
        if machine.run_count <= 2 * RANGE_ROWS:
            return False
        # Every merge writes the file of the head.
        return any(
            file.rows > 2 * RANGE_ROWS
            for file in self._files()
            if file.minimum.get("first_offset") == layout.HEAD_OFFSET
        )

    def _files(self, *, settled: bool = False) -> list[LiveFile]:
        return [file for file in self.table.files() if file.partition["settled"] == settled]

    def _read(self, *, settled: bool = False) -> pa.Table:
        return self._rows(self._files(settled=settled))

    def _rows(self, files: Sequence[LiveFile]) -> pa.Table:
        tables = [
            rows if rows.schema.equals(_DATA) else rows.select(_DATA.names).cast(_DATA)
            for rows in self.table.rows(files)
        ]
        rows = pa.concat_tables(tables) if tables else _DATA.empty_table()
        return _each_once(rows) if any(is_foreign(file.name) for file in files) else rows


def _each_once(rows: pa.Table) -> pa.Table:
    """Drops repeated rows, which two simultaneous compactions by another program leave."""
    places = {repr(row): place for place, row in enumerate(rows.to_pylist())}
    return rows if len(places) == len(rows) else rows.take(list(places.values()))


def check_head(head: Head, end: int, table: str) -> None:
    """Raises DamagedTable if the head is beyond the log's end. New messages would reuse old offsets (DUR-4)."""
    if head.head_offset > end:
        raise DamagedTable(table, None, f"its head is at offset {head.head_offset}, and the log ends at {end}")


def put_back(epoch: int, forgotten: int) -> str:
    """Returns the error text for a ledger from a backup, if bodies were removed from its log after the backup."""
    by = f"epoch {forgotten}" if forgotten > epoch else "another ledger"
    problem = f"is of epoch {epoch}, and its log was emptied by {by}"
    return f"{problem}: it was put back, and `lakequeue repair` repairs it"


def create_ledger(engine: Engine, path: str, head: Head, runs: Sequence[Run] = ()) -> None:
    """Creates the table ``receipts`` of a shard, with its head row and first runs."""
    rows = run_rows(runs, [], head)
    engine.create(path, layout.RECEIPTS, layout.RECEIPT_PARTITIONS, layout.RECEIPTS_PROPERTIES, rows)


def ledger_files(head: Head, runs: Sequence[Run], history: Sequence[Run]) -> list[pa.Table]:
    """Returns a table of rows for each file of a complete ledger."""
    files = [run_rows([], [], head)]
    for settled, part in ((False, runs), (True, history)):
        starts = range(0, len(part), RANGE_ROWS)
        files += [run_rows(part[start : start + RANGE_ROWS], [], None, settled=settled) for start in starts]
    return files


@contextmanager
def _uncollected() -> Iterator[None]:
    """Stops Python's garbage collector during the block, which would take twice as long otherwise."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def run_rows(
    puts: Sequence[Run],
    deletes: Sequence[int],
    head: Head | None,
    *,
    with_op: bool = False,
    settled: bool = False,
) -> pa.Table:
    """Builds rows of ``receipts``: a head row if there is a head, then ``puts``, then ``deletes``."""
    heads = [head] if head else []
    others = len(Run._fields) - 3
    runs = [
        *(Run._make([layout.HEAD_OFFSET, layout.HEAD_OFFSET, layout.HEAD_STATE, *[None] * others]) for _ in heads),
        *puts,
        *(Run._make([first, None, None, *[None] * others]) for first in deletes),
    ]
    # A comprehension for each field takes half the time of one ``zip`` of all runs.
    fields = {name: [run[place] for run in runs] for place, name in enumerate(Run._fields)}
    if any(moves := fields["move"]):
        parts = zip(*(move or (None,) * len(MovePart._fields) for move in moves), strict=True)
        fields |= zip(_MOVE, map(list, parts), strict=True)
    if any(marks := fields["mark"]):
        parts = zip(*(mark or (None, None) for mark in marks), strict=True)
        fields |= zip(_MARK, map(list, parts), strict=True)
    for name, cell in _CELLS.items():
        fields[name] = list(map(cell, fields.get(name, ())))
    cells = _CELLS_OF_RUN.arrays(fields, len(runs))
    have_run = (((1 << len(puts)) - 1) << len(heads)).to_bytes(-(-len(runs) // 8), "little")  # a bit for each row
    arrays = [
        pa.repeat(settled, len(runs)),
        pa.array(fields["first"], pa.int64()),
        pa.array(fields["last"], pa.int64()),
        pa.array(fields["state"], pa.string()),
        pa.Array.from_buffers(layout.RUN, len(runs), [pa.py_buffer(have_run)], children=cells),
        pa.array([*map(_head_cells, heads), *[None] * (len(runs) - len(heads))], layout.HEAD),
    ]
    if with_op:
        arrays.append(pa.array(["put"] * (len(runs) - len(deletes)) + ["del"] * len(deletes), pa.string()))
    return layout.rows_of(arrays, _SOURCE if with_op else _ROW)


@_uncollected()
def to_runs(rows: pa.Table) -> list[Run]:
    if not len(rows):
        return []
    run = rows["run"].combine_chunks()
    columns = {name: rows[name].combine_chunks() for name in ("first_offset", "last_offset", "state")}
    columns |= zip(layout.RUN.names, run.flatten(), strict=True)
    values = {name: _values(column) for name, column in columns.items() if column.null_count < len(column)}
    moves = zip(*(values.get(name, repeat(None)) for name in _MOVE), strict=False)
    if "move_number" in values:
        values["move"] = [None if move[0] is None else MovePart._make(move) for move in moves]
    if "delivery_number" in values:
        marks = zip(*(values[name] for name in _MARK), strict=True)
        values["mark"] = [None if mark[1] is None else Mark._make(mark) for mark in marks]
    values |= {"first": values.pop("first_offset", []), "last": values.pop("last_offset", [])}
    defaults = Run._field_defaults
    cells = zip(*(values.get(name) or repeat(defaults[name]) for name in Run._fields), strict=False)
    # Same as ``_make``, without a call in Python for each run.
    return list(map(partial(tuple.__new__, Run), cells))


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_list(kind):
        # Uses offsets instead of ``to_pylist``, so that equal failures become one object.
        failures, ends = _values(column.values), column.offsets.to_pylist()
        return [tuple(filter(None, failures[begin:end])) for begin, end in pairwise(ends)]
    if pa.types.is_struct(kind):
        parts = zip(*map(_values, column.flatten()), strict=True)
        return list(map(_failure if kind == layout.FAILURE else _target, parts))
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    numbers = pa.types.is_integer(column.type) and not column.null_count
    values: list[Any] = column.to_numpy().tolist() if numbers else column.to_pylist()
    return values


@lru_cache(maxsize=256)  # Neighbours that fail together have equal failures.
def _failure(fields: tuple[str | None, str, int, str]) -> DeadLetterReason | None:
    error, text, at, consumer = fields
    return None if error is None or None in fields else DeadLetterReason(error, text, from_micros(at), consumer)


def _target(fields: tuple[str | None, int, bool]) -> Destination | None:
    key, shards, by_group = fields
    return None if key is None else Destination(key, shards, by_group)


def _head_cells(head: Head) -> dict[str, Any]:
    return {name: getattr(head, name) for name in _HEAD} | {
        "attributes": list(head.attributes.items()),
        "paced_to": head.paced_to or None,
    }


def read_head(cells: dict[str, Any]) -> Head:
    """Builds a head from the fields of the struct ``head``."""

    def micros(instant: datetime | None) -> int | None:
        return None if instant is None else to_micros(instant)

    QueueAttributes.check_stored(dict(cells["attributes"]))
    known = {field.name: cells[field.name] for field in attrs.fields(Head)}
    return Head(
        **known
        | {
            "purged_at": micros(cells["purged_at"]),
            "committed_at": micros(cells["committed_at"]) or 0,
            "attributes": dict(cells["attributes"]),
            "paced_to": micros(cells["paced_to"]) or 0,
        }
    )
