"""The columns in which older releases find the fields of a run, and those of theirs that this one finds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakequeue.shard.runs import IN_FLIGHT, MOVING, VISIBLE, MovePart, Run
from lakequeue.storage import layout
from lakequeue.storage.ledger import run_rows
from lakequeue.storage.run_columns import to_runs

WHY = '{"error": "ValueError", "text": "no", "at": "2026-01-01T00:00:00Z", "consumer": "worker"}'
HELD = Run(0, 4, IN_FLIGHT, "a", 3, 9, 5, 2)
NAMES = ["receive_count", "attempt_id", "attempted_at", "attempt_place", "move_number", "target_key"]
RUNS = [
    (Run(0, 4), (0, None, None, None, None, None)),
    (Run(0, 4, VISIBLE, None, 2, receives_before=2), (2, None, None, None, 2, None)),
    (HELD._replace(attempt_id="x", attempted_at=5, attempt_place=0), (3, "x", 5, 0, None, None)),
    (
        HELD._replace(consumer='w"é', failed_attempts="[]"),
        (3, '{"consumer": "w\\"\\u00e9"}', None, None, None, "[]"),
    ),
    (HELD._replace(consumer="worker", failure=WHY), (3, WHY, None, None, None, None)),
    (HELD._replace(state=VISIBLE, failure=WHY), (3, WHY, None, None, None, None)),
    (
        HELD._replace(state=VISIBLE, failure=WHY, failed_together=12_000_000),
        (3, '{"together": 12000000, ' + WHY[1:], None, None, None, None),
    ),
    (Run(0, 4, MOVING, None, 3, move=MovePart(7, "k#2", WHY, False)), (3, WHY, None, None, 7, "k#2")),
    (Run(0, 4, MOVING, None, 3, move=MovePart(7, "k#2", None, True)), (0, None, None, 3, 7, "k#2")),
]


def cells(rows: pa.Table) -> tuple[Any, ...]:
    [run] = rows["run"].combine_chunks().to_pylist()
    instant = run["attempted_at"]
    return tuple(run[name] if name != "attempted_at" or instant is None else instant.microsecond for name in NAMES)


@pytest.mark.parametrize(("run", "columns"), RUNS)
def test_a_run_is_in_the_columns_of_older_releases(run: Run, columns: tuple[Any, ...]) -> None:
    rows = run_rows([run], [], None)
    assert cells(rows) == columns
    assert to_runs(rows) == [run]


def test_a_redrive_of_an_older_release_has_lost_its_count() -> None:
    old = pa.Table.from_pylist(
        [
            {"first_offset": 0, "last_offset": 4, "state": MOVING}
            | {"run": {"receive_count": 0, "move_number": 7, "target_key": "k"}}
        ],
        layout.RECEIPTS,
    )
    assert to_runs(old) == [Run(0, 4, MOVING, move=MovePart(7, "k", None, redrive=True))]
