"""How ``receipts`` keeps the fields of a run: what came later has no column, as older processes would not know it.

| column | with ``attempted_at`` | of a moving run | else |
|---|---|---|---|
| ``attempt_id`` | the attempt | the note of its move | ``{"consumer": NAME}``, or the failure |
| ``attempt_place`` | rank in the answer | of a redrive: receives; ``receive_count`` is 0 | |
| ``move_number`` | ``receives_before``; 0 is NULL | number of the move | ``receives_before``; 0 is NULL |
| ``target_key`` | ``failed_attempts`` | target of the move | ``failed_attempts`` |

The failure of N messages that failed as one batch begins with ``{"together": N, ``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.failures import consumer_of
from lakequeue.shard.runs import IN_FLIGHT, MOVING, MovePart, Run

_TOGETHER = re.compile(r'\{"together": ([1-9][0-9]{0,9}), ')
_HELD = '{"consumer": '
_PLAIN = 8  # columns that are fields, before those with several meanings
_NOTHING, _DEFAULTS = (None,) * 5, Run(0, 0)[_PLAIN:]


def of_runs(runs: Sequence[Run]) -> list[Sequence[Any]]:
    """The columns of runs: both offsets, the state, and the fields of ``layout.RUN``."""
    return list(zip(*map(_cells, runs), strict=True)) or [()] * (_PLAIN + len(_NOTHING))


def to_runs(rows: pa.Table) -> list[Run]:
    """The runs of rows; column by column, as an object per cell takes twenty times as long."""
    columns = [rows[name].combine_chunks() for name in ("first_offset", "last_offset", "state")]
    values = list(map(_values, [*columns, *rows["run"].combine_chunks().flatten()]))
    runs = map(Run._make, zip(*values[:_PLAIN], *map(repeat, _DEFAULTS), strict=False))
    coded = zip(runs, zip(*values[_PLAIN:], strict=True), strict=True)
    return [run if cells == _NOTHING else _decoded(run, cells) for run, cells in coded]


def _values(column: pa.Array) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    numbers = pa.types.is_integer(column.type) and not column.null_count
    values: list[Any] = column.to_numpy().tolist() if numbers else column.to_pylist()
    return values


def consumers(runs: pa.RecordBatch) -> pa.Array:
    """The consumers that have runs in flight, as far as they gave a name."""
    notes = pc.if_else(pc.is_null(runs["attempted_at"]), runs["attempt_id"], None)
    return pa.array(map(consumer_of, notes.to_pylist()), pa.string())


def failed_attempts(runs: pa.RecordBatch) -> pa.Array:
    """Which handlers failed with runs, in JSON."""
    return pc.if_else(pc.equal(runs["state"], MOVING), None, runs["target_key"])


def _cells(run: Run) -> tuple[Any, ...]:
    number, key, note, place = run.receives_before or None, run.failed_attempts, run.attempt_id, run.attempt_place
    if run.move is not None:
        number, key, note, redrive = run.move
        if redrive:
            return *run[:4], 0, *run[5:_PLAIN], note, None, run.receive_count, number, key
    elif run.failure is not None:
        count = run.failed_together
        note = run.failure if count is None else f'{{"together": {count}, {run.failure[1:]}'
    elif run.consumer is not None:
        note = f"{_HELD}{json.dumps(run.consumer)}}}"
    return *run[:_PLAIN], note, run.attempted_at, place, number, key


def _decoded(run: Run, cells: tuple[Any, ...]) -> Run:
    note, attempted_at, place, number, key = cells
    if run.state == MOVING:
        move = MovePart(number or 0, key or "", note, not run.receive_count)
        return run._replace(receive_count=place or run.receive_count, move=move)
    fields = (*run[:_PLAIN], number or 0, key, None)
    if note is None or attempted_at is not None:
        return Run._make((*fields, note, attempted_at, place, None, None, None))
    consumer = consumer_of(note) if run.state == IN_FLIGHT else None
    if note.startswith(_HELD):
        return Run._make((*fields, None, None, None, consumer, None, None))
    found = _TOGETHER.match(note)
    failure, together = ("{" + note[found.end() :], int(found[1])) if found else (note, None)
    return Run._make((*fields, None, None, None, consumer, failure, together))
