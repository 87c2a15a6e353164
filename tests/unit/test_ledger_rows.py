"""Each field of a run and of a head has a column of its own, under its name."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import attrs
import pytest

from lakequeue.model.deliveries import Mark
from lakequeue.model.failures import DeadLetterReason
from lakequeue.shard.runs import IN_FLIGHT, MOVING, VISIBLE, Destination, Head, MovePart, Run
from lakequeue.storage import layout
from lakequeue.storage.ledger import run_rows, to_runs

START = datetime(1970, 1, 1, tzinfo=timezone.utc)
WHY = DeadLetterReason("ValueError", "no", datetime(2026, 1, 1, tzinfo=timezone.utc), "worker")
HELD = Run(0, 4, IN_FLIGHT, "a", 3, 9, 5, 2)
SHOWN = {"lease_id": "a", "receive_count": 3, "visible_at": 9, "received_at": 5, "first_received_at": 2}
MOVED = {"move_number": 7, "move_note": "why", "move_redrive": False}
RUNS = [
    (Run(0, 4), {"receive_count": 0}),
    (Run(0, 4, VISIBLE, None, 2, receives_before=2), {"receive_count": 2, "receives_before": 2}),
    (
        HELD._replace(attempt_id="x", attempted_at=5, attempt_place=0),
        SHOWN | {"attempt_id": "x", "attempted_at": 5, "attempt_place": 0},
    ),
    (HELD._replace(consumer='w"é'), SHOWN | {"consumer": 'w"é'}),
    (
        HELD._replace(failure=WHY, failed_together=12),
        SHOWN | {"failure": attrs.asdict(WHY), "failed_together": 12},
    ),
    (HELD._replace(mark=Mark(1, 2**40 + 5)), SHOWN | {"delivery_slot": 1, "delivery_number": 2**40 + 5}),
    (HELD._replace(failed_attempts=(WHY, WHY)), SHOWN | {"failed_attempts": [attrs.asdict(WHY)] * 2}),
    (
        Run(0, 4, MOVING, None, 3, move=MovePart(7, Destination("k", 2, True), "why", False)),
        MOVED | {"receive_count": 3, "move_target": {"key": "k", "shards": 2, "by_group": True}},
    ),
]


@pytest.mark.parametrize(("run", "columns"), RUNS)
def test_a_run_has_a_column_for_each_field(run: Run, columns: dict[str, object]) -> None:
    rows = run_rows([run, Run(5, 5, MOVING), run._replace(first=6, last=7)], [], None)
    cells = rows["run"][0].as_py()
    instants = {
        name: value and (value - START) // timedelta(microseconds=1)
        for name, value in cells.items()
        if str(name).endswith("_at")
    }
    expected = dict.fromkeys(layout.RUN.names) | {"receives_before": 0} | columns
    assert cells | instants == expected
    assert to_runs(rows) == [run, Run(5, 5, MOVING), run._replace(first=6, last=7)]
    assert to_runs(rows.slice(1)) == [Run(5, 5, MOVING), run._replace(first=6, last=7)]


def test_a_table_without_runs_gives_no_runs() -> None:
    assert to_runs(run_rows([], [], Head()).slice(1)) == to_runs(layout.RECEIPTS.empty_table()) == []


def test_a_head_has_a_column_for_each_field() -> None:
    head = Head(emptying="mark", paced_to=5, delivery_table="d:t")
    [cells] = run_rows([run for run, _ in RUNS], [], head)["head"].combine_chunks().drop_null().to_pylist()
    assert (cells["tracked"], cells["delivery_table"], cells["emptying"]) == (None, "d:t", "mark")
    assert cells["paced_to"] == START + timedelta(microseconds=5)
