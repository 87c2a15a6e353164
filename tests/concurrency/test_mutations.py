"""Mutations of a queue in several processes that no schedule of tests/simulation comes by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import apart, check_log, small_segments
from concurrency.steps import at
from concurrency.stopping import short_logs, without_turns
from insides import shard_of
from lakequeue import LakeQueue, LakeQueueError, Queue
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.storage import layout
from lakequeue.storage.engines.interface import LostRace
from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages import merge_segments
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace


@attrs.frozen
class TwoProcesses:
    """Two processes on one queue."""

    patch: Patch
    clock: ManualClock
    here: LakeQueue
    there: LakeQueue
    queue: Queue
    other: Queue


# --- scenarios


def a_late_send_into_an_idle_segment_survives(on: TwoProcesses) -> None:
    late = apart(on.here.root, ManualClock(), 1)[0].queue("orders")
    for number in range(3):
        late.send(str(number))
    on.clock.advance(2 * 3600)

    def overtake() -> None:
        late.send("late")
        raise LostRace("conflict")

    at(on.patch, Table, "replace", overtake)
    on.queue.compact()
    assert [row.body for row in check_log(on.queue)] == ["0", "1", "2", "late"]


def a_message_whose_file_was_joined_and_removed_is_read(on: TwoProcesses) -> None:
    small_segments(on.patch)
    for name in ("MESSAGES", "RECEIPTS"):
        on.patch.setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0))
    for number in range(9):
        on.other.send(str(number))
    shard_of(on.queue).ledger.query(lambda machine: machine)  # knows the files as they are now
    for _ in range(9):
        on.other.send("more")
    on.other.compact()
    rows = shard_of(on.queue).reader.messages(0, 8)
    assert [row and row["body"] for row in rows] == [str(number) for number in range(9)]


# --- mutations


def join_the_open_segment_without_its_fence(patch: Patch) -> None:
    step = merge_segments._open_step

    def unfenced(*args: Any) -> Any:
        found = step(*args)
        return found and attrs.evolve(found, with_send=False)

    patch.setattr(merge_segments, "_open_step", unfenced)


MUTATIONS = [
    Mutation(
        "join the open segment without its fence",
        join_the_open_segment_without_its_fence,
        {a_late_send_into_an_idle_segment_survives: "1"},
    ),
    Mutation(
        "read in the log as it was known",
        replace(ShardReader, "rows", lambda self, first, last: (first, self._known(first, last))),
        {a_message_whose_file_was_joined_and_removed_is_read: "1"},
    ),
]


def _two_processes(patch: Patch, root: Path) -> TwoProcesses:
    short_logs(patch)
    without_turns(patch)
    clock = ManualClock()
    here, there = apart(root, clock)
    return TwoProcesses(patch, clock, here, there, here.create_queue("orders"), there.create_queue("orders"))


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda patch: (_two_processes(patch, tmp_path),), (LakeQueueError, OSError, pytest.fail.Exception))
