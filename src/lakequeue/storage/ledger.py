"""The ledger of one shard: rows of ``receipts`` as runs and head, committed by MERGE under the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import QueueClientError
from lakequeue.shard import Decision, Head, Run, ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.commit import commit
from lakequeue.storage.engine import Engine, Table

RANGE_ROWS = 10_000
"""Runs in a file of a compacted ledger."""
MAX_FILES = 16
_SPARE_FILES = 3
"""Files beside those that the runs need, up to which the compactor leaves a ledger as it is."""
_LOOK_EVERY = 16
"""Merges between two looks at whether the ledger wants compaction."""

_RUN_COLUMNS = layout.RECEIPTS.names[2:16]
_HEAD_COLUMNS = layout.RECEIPTS.names[16:]
_SOURCE = layout.RECEIPTS.append(pa.field("op", pa.string()))


class Ledger:
    """One handle on the ledger of one shard; not thread-safe, its owner locks."""

    def __init__(self, table: Table, shard: int) -> None:
        self.table = table
        self.shard = shard
        self._merges = 0

    @property
    def epoch(self) -> int:
        """Epoch of the loaded snapshot."""
        return self.table.transaction(layout.receipts_id(self.shard)) or 0

    def load(self) -> tuple[Head, list[Run], list[Run]]:
        """Head, unsettled and settled runs of the loaded snapshot."""
        rows = self._read()
        at_head = pc.equal(rows["first_offset"], layout.HEAD_OFFSET)
        heads = rows.filter(at_head).to_pylist()
        if len(heads) != 1:
            raise QueueClientError(f"{self.table.path} has {len(heads)} head rows for shard {self.shard}")
        history = _runs(self._read(settled=True))
        return _head(heads[0], self.shard), _runs(rows.filter(pc.invert(at_head))), history

    def floor(self) -> int:
        """Floor of the loaded snapshot, without reading the runs beside the head."""
        files = self._files()
        heads = files.filter(pc.equal(files["min.first_offset"], layout.HEAD_OFFSET))
        for part in self.table.read(heads["path"].to_pylist(), ["first_offset", "floor_offset"]):
            for floor in part.filter(pc.equal(part["first_offset"], layout.HEAD_OFFSET))["floor_offset"]:
                return int(floor.as_py())
        return 0

    def crowded(self, machine: ShardMachine) -> bool:
        """Whether the loaded snapshot has some more files than its runs (those of ``machine``) need."""
        needed = 1 + sum(-(-len(runs) // RANGE_ROWS) for runs in (machine.runs, machine.history))
        return len(self._files()) + len(self._files(settled=True)) > needed + _SPARE_FILES

    def commit(self, decision: Decision, machine: ShardMachine, rewrite: bool = False) -> bool:
        """Commits a decision made on the loaded epoch; False: the race is lost, load again.

        A ledger in many or lopsided files is written anew in the same commit instead (from the
        runs that ``machine`` holds after the decision), and with ``rewrite`` in any case.
        """
        epoch = decision.head.epoch
        fence = {layout.receipts_id(self.shard): epoch - 1}
        ids = {layout.receipts_id(self.shard): epoch}
        if rewrite or self._wants_compaction():
            files = [
                run_rows(self.shard, [], [], decision.head),
                *self._ranges(machine.runs),
                *self._ranges(machine.history, settled=True),
            ]
            parts: dict[str, list[int | bool]] = {"shard": [self.shard], "settled": [False, True]}
            return commit(self.table, fence, lambda token: self.table.replace(parts, files, ids, token))
        source = run_rows(self.shard, decision.puts, decision.deletes, decision.head, with_op=True)
        puts, deletes = [*decision.puts, *decision.settled_puts], [*decision.deletes, *decision.settled_deletes]
        offsets = [run.first for run in puts] + deletes or [layout.HEAD_OFFSET]
        # literals prune files, and keep the shards from conflicting
        prune = (
            f"t.shard = {self.shard} AND (t.first_offset = {layout.HEAD_OFFSET} "
            f"OR t.first_offset BETWEEN {min(offsets)} AND {max(offsets)})"
        )
        if decision.settled_puts or decision.settled_deletes:
            settled = run_rows(
                self.shard, decision.settled_puts, decision.settled_deletes, None, with_op=True, settled=True
            )
            source = pa.concat_tables([source, settled])
        else:
            prune += " AND t.settled = false"
        self._merges += 1
        return commit(
            self.table,
            fence,
            lambda token: self.table.merge(source, ["settled", "first_offset"], prune, ids, token),
        )

    def _ranges(self, runs: Sequence[Run], *, settled: bool = False) -> list[pa.Table]:
        return [
            run_rows(self.shard, runs[start : start + RANGE_ROWS], [], None, settled=settled)
            for start in range(0, len(runs), RANGE_ROWS)
        ]

    def _wants_compaction(self) -> bool:
        # 400 scattered deletes took the MERGE from 21 to 192 ms without this
        if self._merges < _LOOK_EVERY:
            return False
        self._merges = 0
        files = self._files()
        with_head = files.filter(pc.equal(files["min.first_offset"], layout.HEAD_OFFSET))
        return (
            max(len(files), len(self._files(settled=True))) > MAX_FILES
            or max(with_head["rows"].to_pylist(), default=0) > 2 * RANGE_ROWS
        )

    def _files(self, *, settled: bool = False) -> pa.Table:
        files = self.table.files()
        return files.filter(
            pc.and_(pc.equal(files["partition.shard"], self.shard), pc.equal(files["partition.settled"], settled))
        )

    def _read(self, *, settled: bool = False) -> pa.Table:
        columns = layout.RECEIPTS.names[2:]
        tables = self.table.read(self._files(settled=settled)["path"].to_pylist(), columns)
        return pa.concat_tables([_DATA.empty_table(), *(table.select(columns).cast(_DATA) for table in tables)])


_DATA = pa.schema([layout.RECEIPTS.field(name) for name in layout.RECEIPTS.names[2:]])


def create_ledger(engine: Engine, path: str, shards: int, head: Head) -> None:
    """Creates ``receipts`` with a head row for each shard."""
    engine.create(path, layout.RECEIPTS, layout.RECEIPT_PARTITIONS, layout.RECEIPTS_PROPERTIES)
    rows = pa.concat_tables([run_rows(shard, [], [], attrs.evolve(head, shard=shard)) for shard in range(shards)])
    engine.open(path).append(rows, {"created": 1}, "created")


def run_rows(
    shard: int,
    puts: Sequence[Run],
    deletes: Sequence[int],
    head: Head | None,
    *,
    with_op: bool = False,
    settled: bool = False,
) -> pa.Table:
    """Rows of ``receipts``: the head (if given), then ``puts``; with ``op`` also ``deletes``."""
    extra = 0 if head is None else 1
    count = extra + len(puts) + len(deletes)
    by_column = zip(*puts, strict=True) if puts else repeat(())
    columns: dict[str, list[Any]] = {
        name: [*[None] * extra, *values, *[None] * len(deletes)]
        for name, values in zip(_RUN_COLUMNS, by_column, strict=False)
    }
    if deletes:
        columns["first_offset"][-len(deletes) :] = deletes
    if head is not None:
        columns["first_offset"][0] = columns["last_offset"][0] = layout.HEAD_OFFSET
        columns["state"][0] = layout.HEAD_STATE
        columns["move_number"][0] = head.move_number
        for name in _HEAD_COLUMNS:
            columns[name] = [getattr(head, name)] + [None] * (count - 1)
        columns["attributes"][0] = list(head.attributes.items())
    schema = _SOURCE if with_op else layout.RECEIPTS
    columns |= {
        "shard": [shard] * count,
        "settled": [settled] * count,
        "op": ["put"] * (extra + len(puts)) + ["del"] * len(deletes),
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _runs(rows: pa.Table) -> list[Run]:
    # column by column: an object per cell would take twenty times as long
    return list(map(Run._make, zip(*(_values(rows[name]) for name in _RUN_COLUMNS), strict=True)))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy().tolist()
    return column.to_pylist()


def _head(row: dict[str, Any], shard: int) -> Head:
    def micros(name: str) -> int | None:
        value = row[name]
        return None if value is None else pa.scalar(value, layout.INSTANT).cast(pa.int64()).as_py()

    return Head(
        shard=shard,
        epoch=row["epoch"],
        head_offset=row["head_offset"],
        floor_offset=row["floor_offset"],
        purged_offset=row["purged_offset"],
        purged_at=micros("purged_at"),
        history_since=micros("history_since"),
        closed=row["closed"],
        move_number=row["move_number"] or 0,
        committed_at=micros("committed_at") or 0,
        attributes=dict(row["attributes"] or []),
        attributes_version=row["attributes_version"],
        released_offset=row["released_offset"] or 0,
    )
